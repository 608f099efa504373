"""What counts as available: real and odd /proc files, cgroups, ZFS, other programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daemon.ram_reader import RamReader, available_bytes, parse_meminfo, reclaimable_arc_bytes, script_of

KIB, MIB, GIB = 1024, 1024**2, 1024**3


def write(root: Path, files: dict[str, str]) -> RamReader:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return RamReader(root)


def meminfo(**mib: int) -> str:
    return "".join(f"{name}: {value * 1024} kB\n" for name, value in mib.items())


def test_this_machine_can_be_read() -> None:
    found = RamReader().read()
    assert found is not None and 0 < found.available_bytes <= found.total_bytes


def test_memavailable_is_taken_not_free(tmp_path: Path) -> None:
    reader = write(
        tmp_path, {"proc/meminfo": meminfo(MemTotal=16000, MemFree=300, MemAvailable=9000, Cached=9000)}
    )
    found = reader.read()
    assert found is not None
    assert (found.available_bytes, found.source) == (9000 * MIB, "meminfo")


def test_c01_a_container_that_shows_free_as_available_gets_its_cache_counted(tmp_path: Path) -> None:
    reader = write(
        tmp_path, {"proc/meminfo": meminfo(MemTotal=16000, MemFree=400, MemAvailable=400, Cached=9000)}
    )
    found = reader.read()
    assert found is not None
    assert found.available_bytes > 4000 * MIB and found.source == "meminfo+cache"


def test_a_really_full_machine_stays_full() -> None:
    memory = parse_meminfo(meminfo(MemTotal=16000, MemFree=200, MemAvailable=500, Cached=700, Shmem=100))
    assert available_bytes(memory) == (500 * MIB, "meminfo")


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB\n", "garbage\n", "MemAvailable: x kB\n"])
def test_what_cannot_be_read_is_unknown(tmp_path: Path, text: str) -> None:
    assert write(tmp_path, {"proc/meminfo": text}).read() is None


def test_no_proc_at_all_is_unknown(tmp_path: Path) -> None:
    assert RamReader(tmp_path).read() is None
    assert RamReader(tmp_path).largest_others(frozenset()) == []


def status(parent: int, anonymous: int, shared: int = 0) -> str:
    """/proc/PID/status, sizes in kB."""
    return f"Name:\tx\nPPid:\t{parent}\nRssAnon:\t{anonymous} kB\nRssFile:\t99 kB\nRssShmem:\t{shared} kB\n"


BASE = {"proc/meminfo": meminfo(MemTotal=16000, MemFree=8000, MemAvailable=12000, Cached=4000)}


def test_c03_a_cgroup_limit_bounds_and_its_file_cache_is_no_use(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/system.slice/cosyd.service"
    reader = write(
        tmp_path,
        BASE
        | {
            "proc/self/cgroup": "0::/system.slice/cosyd.service\n",
            f"{folder}/memory.max": str(4 * GIB),
            f"{folder}/memory.current": str(4 * GIB),
            f"{folder}/memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\n",
        },
    )
    found = reader.read()
    assert found is not None
    assert (found.total_bytes, found.available_bytes, found.source) == (4 * GIB, 3 * GIB, "cgroup")


def test_c03_more_cache_than_use_in_one_sample_is_no_negative_number(tmp_path: Path) -> None:
    reader = write(
        tmp_path,
        BASE
        | {
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": str(GIB),
            "sys/fs/cgroup/a/memory.current": "1000",
            "sys/fs/cgroup/a/memory.stat": f"inactive_file {2 * GIB}\n",
        },
    )
    found = reader.read()
    assert found is not None and found.available_bytes == GIB


def test_a_limit_above_us_counts_and_max_is_none(tmp_path: Path) -> None:
    reader = write(
        tmp_path,
        BASE
        | {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/memory.max": str(2 * GIB),
            "sys/fs/cgroup/a/memory.current": str(GIB),
        },
    )
    found = reader.read()
    assert found is not None and (found.total_bytes, found.available_bytes) == (2 * GIB, GIB)


def test_the_old_cgroup_names_are_read_too(tmp_path: Path) -> None:
    reader = write(
        tmp_path,
        BASE
        | {
            "proc/self/cgroup": "5:cpu:/\n4:memory:/lxc/1\n",
            "sys/fs/cgroup/memory/lxc/1/memory.limit_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/lxc/1/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/lxc/1/memory.stat": f"total_inactive_file {GIB // 2}\n",
        },
    )
    found = reader.read()
    assert found is not None and found.available_bytes == GIB + GIB // 2


def test_zfs_gives_back_all_but_its_minimum(tmp_path: Path) -> None:
    assert reclaimable_arc_bytes("name type data\nsize 4 5000\nc_min 4 1000\n") == 4000
    assert reclaimable_arc_bytes("") == 0
    reader = write(tmp_path, BASE | {"proc/spl/kstat/zfs/arcstats": f"size 4 {2 * GIB}\nc_min 4 {GIB}\n"})
    found = reader.read()
    assert found is not None and found.available_bytes == 12000 * MIB + GIB


def test_pressure_stall_is_a_ratio(tmp_path: Path) -> None:
    text = "some avg10=9.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=12.50 avg60=0.00 avg300=0.00 total=0\n"
    found = write(tmp_path, BASE | {"proc/pressure/memory": text}).read()
    assert found is not None and found.stall_ratio == 0.125


def test_the_largest_others_are_named_with_their_processes_together(tmp_path: Path) -> None:
    reader = write(
        tmp_path,
        {
            "proc/10/comm": "ollama\n",
            "proc/10/status": status(1, 4000),
            "proc/11/comm": "ollama\n",
            "proc/11/status": status(10, 1000),
            "proc/12/comm": "cosyd\n",
            "proc/12/status": status(1, 9000),
            "proc/13/comm": "kthread\n",
            "proc/13/status": "Name:\tkthread\nPPid:\t2\n",
            "proc/self/comm": "x\n",
        },
    )
    assert reader.largest_others(frozenset({12})) == [("ollama", 5000 * 1024)]


def test_shared_memory_counts_once_for_a_program(tmp_path: Path) -> None:
    """A database's buffers are in each of its processes; a hog of tmpfs has nothing else."""
    files = {f"proc/{pid}/comm": "postgres\n" for pid in (10, 11, 12)}
    files |= {f"proc/{pid}/status": status(1, 10, shared) for pid, shared in ((10, 500), (11, 700), (12, 0))}
    files |= {"proc/20/comm": "hog\n", "proc/20/status": status(1, 1, 600)}
    assert write(tmp_path, files).largest_others(frozenset()) == [
        ("postgres", 730 * 1024),
        ("hog", 601 * 1024),
    ]


def test_we_and_what_we_started_are_never_others(tmp_path: Path) -> None:
    """The supervisor was named as the program that uses the memory, with 23 MB."""
    me = os.getpid()
    files = {f"proc/{pid}/comm": f"p{pid}\n" for pid in (me, 5, 6, 7)}
    files |= {
        f"proc/{me}/status": status(1, 9000),
        "proc/5/status": status(me, 8000),  # the warden, the NVML helper, maintenance
        "proc/6/status": status(12, 7000),  # what a worker started
        "proc/7/status": status(1, 1),
    }
    assert write(tmp_path, files).largest_others(frozenset({12})) == [("p7", 1024)]


def test_swap_that_is_not_told_is_unknown_and_not_zero(tmp_path: Path) -> None:
    found = write(tmp_path, BASE).read()
    assert found is not None and (found.swap_used_bytes, found.swap_total_bytes) == (None, None)
    text = BASE["proc/meminfo"] + "SwapTotal: 2048 kB\nSwapFree: 1024 kB\n"
    found = write(tmp_path, {"proc/meminfo": text}).read()
    assert found is not None and (found.swap_used_bytes, found.swap_total_bytes) == (1 * MIB, 2 * MIB)


def test_a_soft_limit_counts_as_one(tmp_path: Path) -> None:
    reader = write(
        tmp_path,
        BASE
        | {
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": str(3 * GIB),
            "sys/fs/cgroup/a/memory.high": str(2 * GIB),
            "sys/fs/cgroup/a/memory.current": str(GIB),
            "sys/fs/cgroup/a/memory.pressure": "some avg10=1.0\nfull avg10=25.00 avg60=0 avg300=0 total=0\n",
            "proc/pressure/memory": "full avg10=90.00 avg60=0.00 avg300=0.00 total=0\n",
        },
    )
    found = reader.read()
    assert found is not None and (found.total_bytes, found.available_bytes) == (2 * GIB, GIB)
    assert found.stall_ratio == 0.25, "the host's stalls are not those of the container"


def test_a_container_sees_its_limit_at_the_root_of_its_cgroup_tree(tmp_path: Path) -> None:
    """LXC and Docker with a cgroup namespace (v2), and Docker without one (v1: the path is the host's)."""
    for cgroup, names in (
        ("0::/\n", ("memory.max", "memory.current", "")),
        ("4:memory:/docker/abc\n", ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory/")),
    ):
        root = tmp_path / names[0]
        reader = write(
            root,
            BASE
            | {
                "proc/self/cgroup": cgroup,
                f"sys/fs/cgroup/{names[2]}{names[0]}": str(2 * GIB),
                f"sys/fs/cgroup/{names[2]}{names[1]}": str(GIB),
            },
        )
        found = reader.read()
        assert found is not None and (found.total_bytes, found.source) == (2 * GIB, "cgroup")


def test_zfs_of_the_host_does_not_widen_a_containers_limit(tmp_path: Path) -> None:
    reader = write(
        tmp_path,
        BASE
        | {
            "proc/spl/kstat/zfs/arcstats": f"size 4 {9 * GIB}\nc_min 4 0\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(2 * GIB),
            "sys/fs/cgroup/memory.current": str(GIB),
        },
    )
    found = reader.read()
    assert found is not None and found.available_bytes == GIB


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["python3", "/opt/ComfyUI/main.py", "--listen"], "ComfyUI/main.py"),
        (["python3", "-u", "train_lora.py"], "train_lora.py"),
        (["python3", "-m", "vllm.entrypoints.api_server", "--key", "secret"], "vllm.entrypoints.api_server"),
        (["java", "-Xmx4g", "-jar", "/srv/minecraft/server.jar"], "server.jar"),
        (["python3", "-c", "import secret"], None),
        (["python3"], None),
        ([""], None),
    ],
)
def test_of_an_interpreter_the_script_is_named_and_nothing_more(arguments: list[str], name: str) -> None:
    assert script_of(arguments) == name
