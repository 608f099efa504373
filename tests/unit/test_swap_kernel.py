"""What the swap helper reads of a machine, from folders that stand in for it; its pure parts need no root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from daemon.swap import folder, helper, kernel
from daemon.swap.folder import OwnFile, Refused

SWAPS = """Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/dev/zram0                              partition\t4194300\t1024\t100
/dev/sda3                               partition\t976892\t0\t-2
/swap\\040of\\040mine.img                 file\t\t2097148\t12\t-3
garbage
"""


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def test_zram_is_told_from_a_partition_and_names_are_read_as_they_are(tmp_path: Path) -> None:
    put(tmp_path, "proc/swaps", SWAPS)
    found = kernel.swaps(tmp_path)
    assert [(swap.path, swap.kind) for swap in found] == [
        ("/dev/zram0", "zram"), ("/dev/sda3", "partition"), ("/swap of mine.img", "file")
    ]  # fmt: skip
    assert (found[0].bytes, found[0].used_bytes) == (4194300 * 1024, 1024 * 1024)
    assert kernel.swaps(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("cmdline", "resume", "state", "found"),
    [
        ("root=/dev/sda1 quiet", "0:0\n", "freeze mem disk\n", False),
        ("root=/dev/sda1 resume=UUID=1", "0:0\n", "freeze mem disk\n", True),
        ("root=/dev/sda1 resume=/dev/sda3 noresume", "0:0\n", "freeze mem disk\n", False),
        ("root=/dev/sda1", "8:3\n", "freeze mem disk\n", True),
        ("root=/dev/sda1", "8:3\n", "freeze mem\n", False),
        ("root=/dev/sda1 nohibernate", "8:3\n", "freeze mem disk\n", False),
    ],
)
def test_a_machine_that_resumes_from_swap_is_known(
    cmdline: str, resume: str, state: str, found: bool, tmp_path: Path
) -> None:
    put(tmp_path, "proc/cmdline", cmdline)
    put(tmp_path, "sys/power/resume", resume)
    put(tmp_path, "sys/power/state", state)
    assert kernel.hibernates(tmp_path) is found


def test_a_container_is_known_and_a_machine_made_of_an_image_is_none(tmp_path: Path) -> None:
    put(tmp_path, ".dockerenv", "")
    put(tmp_path, "proc/1/environ", "HOME=/\0PATH=/bin\0")
    assert kernel.in_container(tmp_path) is False
    put(tmp_path, "proc/1/environ", "HOME=/\0container=lxc\0")
    assert kernel.in_container(tmp_path) is True
    put(tmp_path, "proc/1/environ", "")
    put(tmp_path, "run/systemd/container", "systemd-nspawn")
    assert kernel.in_container(tmp_path) is True


def test_memory_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert kernel.memory(tmp_path) is None
    put(tmp_path, "proc/meminfo", "MemTotal:  100 kB\n")
    assert kernel.memory(tmp_path) is None
    put(tmp_path, "proc/meminfo", "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable: 50 kB\n")
    assert kernel.memory(tmp_path) == (102400, 51200)


def test_the_first_page_is_that_of_mkswap(tmp_path: Path) -> None:
    if shutil.which("swaplabel") is None:
        pytest.skip("needs swaplabel (util-linux)")
    area = tmp_path / "area"
    with area.open("wb") as file:
        file.write(kernel.header(1024 * 1024))
        file.truncate(1024 * 1024)
    area.chmod(0o600)
    shown = subprocess.run(["swaplabel", str(area)], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "LABEL: cosyd" in shown.stdout and "UUID:" in shown.stdout


def test_the_file_system_has_a_name(tmp_path: Path) -> None:
    fd = os.open("/proc", os.O_RDONLY)
    try:
        assert kernel.filesystem(fd) == hex(0x9FA0)  # not one of ours
    finally:
        os.close(fd)
    assert kernel.FILESYSTEMS[0x2FC12FC1] == "zfs"
    assert "zfs" not in kernel.GOOD and "overlay" not in kernel.GOOD and "tmpfs" not in kernel.GOOD


@pytest.mark.parametrize(
    ("sizes", "target", "kept"),
    [
        ((), 5, ()),
        ((4, 2, 1), 5, (4, 1)),
        ((4, 2), 3, (2,)),
        ((8,), 4, ()),
        ((3, 3, 3), 6, (3, 3)),
        ((4,), 4, (4,)),
    ],
)
def test_what_stays_comes_closest_without_being_more(
    sizes: tuple[int, ...], target: int, kept: tuple[int, ...]
) -> None:
    files = [OwnFile(f"swap-0{i}", size, True, 0) for i, size in enumerate(sizes)]
    assert tuple(file.bytes for file in folder.kept(files, target)) == kept


@pytest.mark.parametrize(
    ("line", "size"),
    [
        (b'{"v":1,"op":"status"}', None),
        (b'{"v":1,"op":"set","own_bytes":0}', 0),
        (b'{"v":1,"op":"set","own_bytes":1048577}', 1048576),
    ],
)
def test_a_request_is_a_size_or_a_question(line: bytes, size: int | None) -> None:
    assert helper.parse(line) == size


def test_limits_that_somebody_else_could_have_written_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "swap.toml"
    path.write_text("max_bytes = 1\n")
    path.chmod(0o666)
    with pytest.raises(Refused, match="no_limits"):
        helper.read_limits(path)


def test_root_may_ask_and_a_stranger_not() -> None:
    assert helper.may_ask(0, helper.Limits(user="no-such-user"))
    assert not helper.may_ask(12345, helper.Limits(user="no-such-user"))
    assert not helper.may_ask(12345, helper.Limits(user="root"))
