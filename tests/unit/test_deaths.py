"""Who was ended by the kernel for lack of memory, and the brake: on made-up cgroups and kernel counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daemon import lifecycle
from daemon.cgroups import STEP_BYTES, Ended, Groups, brake_bytes
from daemon.deaths import LOOK_EVERY_S, OOM_KILL, OOM_KILL_LIKELY, Death, Deaths, cause_of
from daemon.levels import Level
from daemon.lifecycle import Child, Record, State
from daemon.ram_reader import RamReader
from daemon.returning import Blame, blame
from daemon.sample import RamReading
from pipeline.messages import event_text
from pipeline.profile import Config

MIB = 1024**2
CONFIG = Config()


@pytest.mark.parametrize(
    ("status", "ours", "group", "before", "now", "cause"),
    [
        ("signal 9", False, 1, None, None, OOM_KILL),
        ("signal 9", False, 0, 3, 9, None),  # its own group knows better than the machine's count
        ("signal 9", False, None, 3, 4, OOM_KILL_LIKELY),
        ("signal 9", False, None, 4, 4, None),  # somebody's kill -9
        ("signal 9", False, None, None, 4, None),  # unknown stays unknown
        ("signal 9", False, None, 4, None, None),
        ("signal 9", True, 1, 3, 4, None),  # we did it
        ("signal 11", False, 1, 3, 4, None),
        ("exit 0", False, 1, 3, 4, None),
    ],
)
def test_what_is_said_of_a_death(
    status: str, ours: bool, group: int | None, before: int | None, now: int | None, cause: str | None
) -> None:
    assert cause_of(status, ours, group, before, now) == cause


def vmstat(root: Path, kills: int) -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/vmstat").write_text(f"nr_free_pages 1\noom_kill {kills}\nzswpin 0\n")


def test_without_a_cgroup_the_kernels_count_is_the_evidence(tmp_path: Path) -> None:
    deaths = Deaths(RamReader(tmp_path), None)
    assert deaths.ended(9, "signal 9", False) == Death(), "nothing was ever read"
    vmstat(tmp_path, 7)
    deaths.look(None, Level.OK, CONFIG, 100.0)
    assert deaths.ended(9, "signal 9", False) == Death()
    vmstat(tmp_path, 8)
    assert deaths.ended(9, "signal 9", False) == Death(OOM_KILL_LIKELY)
    assert deaths.ended(9, "signal 9", True) == Death()
    deaths.look(None, Level.OK, CONFIG, 101.0)
    assert deaths.ended(9, "signal 9", False).cause, "while memory is well it is looked at now and then"
    deaths.look(None, Level.OK, CONFIG, 100.0 + LOOK_EVERY_S)
    assert deaths.ended(9, "signal 9", False) == Death(), "that one was somebody else's"


def cgroup(root: Path, procs: str, controllers: str = "cpu memory pids") -> Path:
    """A delegated folder. The kernel's files appear by themselves there; here they are written."""
    base = root / "sys/fs/cgroup/system.slice/cosyd.service"
    (base / "supervisor").mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/system.slice/cosyd.service\n")
    (base / "cgroup.controllers").write_text(controllers)
    (base / "cgroup.procs").write_text(procs)
    for name in ("cgroup.subtree_control", "supervisor/cgroup.procs"):
        (base / name).touch()
    return base


def child_group(base: Path, pid: int, name: str = "worker", current: int = 100 * MIB) -> Path:
    folder = base / f"{name}-{pid}"
    folder.mkdir()
    (folder / "cgroup.procs").touch()
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.high").write_text("max")
    (folder / "memory.peak").write_text(f"{300 * MIB}\n")
    (folder / "memory.events").write_text("low 0\nhigh 12\nmax 0\noom 1\noom_kill 0\noom_group_kill 0\n")
    return folder


def test_the_delegated_cgroup_becomes_a_parent_with_the_supervisor_in_a_group(tmp_path: Path) -> None:
    base = cgroup(tmp_path, f"{os.getpid()}\n")
    assert Groups.take(tmp_path) is not None
    assert (base / "supervisor/cgroup.procs").read_text() == str(os.getpid())
    assert (base / "cgroup.subtree_control").read_text() == "+memory"


def test_a_cgroup_that_others_live_in_is_left_as_it_is(tmp_path: Path) -> None:
    """A shell in a login session: root may write there, but it was not given to us."""
    base = cgroup(tmp_path, f"{os.getpid()}\n1\n")
    assert Groups.take(tmp_path) is None
    assert (base / "supervisor/cgroup.procs").read_text() == ""


@pytest.mark.parametrize("trouble", ["no cgroup v2", "the root cgroup", "no memory controller", "empty"])
def test_without_delegation_there_are_no_groups(tmp_path: Path, trouble: str) -> None:
    procs = "" if trouble == "empty" else f"{os.getpid()}\n"
    cgroup(tmp_path, procs, "cpu pids" if "controller" in trouble else "cpu memory")
    if "cgroup" in trouble:
        text = "4:memory:/x\n" if "v2" in trouble else "0::/\n"
        (tmp_path / "proc/self/cgroup").write_text(text)
    assert Groups.take(tmp_path) is None


def test_a_child_is_placed_braked_and_read_at_its_end(tmp_path: Path) -> None:
    base = cgroup(tmp_path, f"{os.getpid()}\n")
    groups = Groups.take(tmp_path)
    assert groups is not None
    folder = child_group(base, 77)
    groups.place(77, "worker")
    assert (folder / "cgroup.procs").read_text() == "77"
    groups.brake(1000 * MIB, 768 * MIB, 40 * MIB)
    assert (folder / "memory.high").read_text() == "max", "while it is calm nothing is touched"
    groups.brake(500 * MIB, 768 * MIB, 40 * MIB)
    assert (folder / "memory.high").read_text() == str(560 * MIB)
    groups.brake(499 * MIB, 768 * MIB, 40 * MIB)
    assert (folder / "memory.high").read_text() == str(560 * MIB), "no write for a breath of air"
    groups.brake(20 * MIB, 768 * MIB, 40 * MIB)
    assert (folder / "memory.high").read_text() == str(100 * MIB + STEP_BYTES)
    groups.brake(2000 * MIB, 768 * MIB, 40 * MIB)
    assert (folder / "memory.high").read_text() == "max"
    (folder / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert groups.ended(77) == Ended(300 * MIB, 2)
    assert groups.ended(77) is None


def test_a_kernel_that_tells_no_peak_leaves_it_unknown(tmp_path: Path) -> None:
    base = cgroup(tmp_path, f"{os.getpid()}\n")
    groups = Groups.take(tmp_path)
    assert groups is not None
    folder = child_group(base, 77)
    (folder / "memory.peak").unlink()
    groups.place(77, "worker")
    assert groups.ended(77) == Ended(None, 0)


def test_a_child_that_cannot_be_placed_lives_without_a_group(
    tmp_path: Path,
) -> None:
    base = cgroup(tmp_path, f"{os.getpid()}\n")
    groups = Groups.take(tmp_path)
    assert groups is not None
    groups.place(78, "web")  # the folder is made, but no kernel puts files into it here
    assert groups.ended(78) is None and not (base / "web-78").exists()


def test_the_brake_lets_a_child_have_what_is_free_above_the_floor() -> None:
    assert brake_bytes(100, 5000 * MIB, 768 * MIB, 40 * MIB) is None
    assert brake_bytes(100 * MIB, 700 * MIB, 768 * MIB, 40 * MIB) == 760 * MIB
    assert brake_bytes(100 * MIB, 0, 768 * MIB, 40 * MIB) == 116 * MIB, "never below its size"


def test_the_brake_follows_what_is_available(tmp_path: Path) -> None:
    base = cgroup(tmp_path, f"{os.getpid()}\n")
    deaths = Deaths(RamReader(tmp_path), Groups.take(tmp_path))
    folder = child_group(base, 77)
    deaths.born(77, "worker")
    deaths.look(RamReading(200 * MIB, 1536 * MIB), Level.LOW, CONFIG, 1.0)
    floor = CONFIG.guard.ram.critical_enter.bytes_of(1536 * MIB) // 4
    assert (folder / "memory.high").read_text() == str(300 * MIB - floor)
    deaths.look(None, Level.LOW, CONFIG, 2.0)
    assert (folder / "memory.high").read_text() == str(300 * MIB - floor), "unknown changes nothing"


def test_a_child_that_the_kernel_ended_is_told_as_that_and_its_segment_is_not_blamed() -> None:
    child = Child("worker:x", State.READY)
    gone, effects = lifecycle.exited(child, "signal 9", 5.0, CONFIG, killer=OOM_KILL, peak=7)
    assert gone.state is State.BACKOFF and gone.code == "out_of_memory"
    record = effects[0]
    assert isinstance(record, Record) and record.code == "out_of_memory"
    assert record.params == {"child": "worker:x", "reason": "oom_kill", "status": "signal 9", "peak_bytes": 7}
    for language, words in (("en", "ran out of memory"), ("zh", "内存用尽")):
        assert words in event_text("worker_exited", language, record.params)  # type: ignore[arg-type]
    assert blame(child, OOM_KILL) == Blame(segment=False, job=True)
    assert blame(child) == Blame(segment=True, job=True)


def test_an_end_that_took_too_long_has_words_whatever_it_was_for() -> None:
    params = {"child": "web", "reason": "memory_critical_timeout"}
    assert (
        event_text("worker_killed", "en", params) == "The page was ended by force (it did not end in time)."
    )
