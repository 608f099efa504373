"""Swap for real: the root helper on loop-mounted ext4, XFS and btrfs, with the kernel's own swapon."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.swap_helper import MIB, SHRINK_STAGES, STAGES, Helper, own_swaps, small_disk

pytestmark = pytest.mark.root
DISKS = {"ext4": (), "xfs": (), "btrfs": ()}
SMALLEST = {"ext4": 64, "xfs": 320, "btrfs": 128}
"""MiB that a file system needs for itself, more or less."""


@pytest.mark.parametrize("filesystem", DISKS)
def test_swap_grows_and_goes_again_on(
    filesystem: str, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    size = rounds(128, 1024) * MIB
    with small_disk(tmp_path, filesystem, size * 2 + SMALLEST[filesystem] * MIB) as mount:
        helper = Helper(tmp_path, mount)
        try:
            first = helper.set(size // 2)
            assert first["own_bytes"] == size // 2, first
            grown = helper.set(size)
            assert grown["ok"], grown
            assert (grown["before_bytes"], grown["own_bytes"]) == (size // 2, size)
            assert grown["filesystem"] == filesystem
            assert len(own_swaps(mount)) == 2
            shown = subprocess.run(
                ["swapon", "--show=NAME,SIZE", "--noheadings", "--bytes"], capture_output=True
            )
            assert str(helper.folder / "swap-01").encode() in shown.stdout
            for name in helper.files():
                assert (helper.folder / name).stat().st_blocks * 512 >= size // 2  # no holes
            if filesystem == "btrfs":
                attributes = subprocess.run(
                    ["lsattr", helper.folder / "swap-00"], capture_output=True, check=True
                )
                assert b"C" in attributes.stdout.split()[0]
            gone = helper.set(0)
            assert gone["ok"] and gone["own_bytes"] == 0, gone
            assert own_swaps(mount) == []
            assert helper.files() == []
        finally:
            helper.close()


@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
def test_e01_a_file_with_holes_is_written_in_full_and_taken(filesystem: str, tmp_path: Path) -> None:
    with small_disk(tmp_path, filesystem, 512 * MIB) as mount:
        helper = Helper(tmp_path, mount, flags=("--holes",))
        try:
            answer = helper.set(64 * MIB)
            assert answer["ok"] and answer["own_bytes"] == 64 * MIB, answer
            assert (helper.folder / "swap-00").stat().st_blocks * 512 >= 64 * MIB
        finally:
            helper.close()


@pytest.mark.parametrize("stage", STAGES)
def test_killed_while_it_makes_a_file_it_leaves_nothing(stage: str, helper: Helper) -> None:
    free = helper.status()["disk_free_bytes"]
    helper.stop()
    line = {"v": 1, "op": "set", "own_bytes": 64 * MIB}
    assert helper.ask(line, flags=("--kill-at", stage)) is None
    after = helper.status()  # what the next run sees, whatever it is asked
    if stage == "activated":  # the work was done: it is ours, whole and in use
        assert after["own_bytes"] == 64 * MIB
        assert helper.files() == ["swap-00"]
        assert helper.set(0)["ok"]
    else:
        assert (after["own_bytes"], after["inactive_bytes"]) == (0, 0)
    assert helper.files() == []
    assert own_swaps(helper.mount) == []
    assert abs(helper.status()["disk_free_bytes"] - free) < MIB
    too_soon = helper.ask(line)
    assert too_soon is not None
    assert stage == "activated" or too_soon["reason"] == "too_soon"


@pytest.mark.parametrize("stage", SHRINK_STAGES)
def test_killed_while_it_removes_a_file_it_leaves_no_half_state(stage: str, helper: Helper) -> None:
    assert helper.set(64 * MIB)["ok"]
    helper.stop()
    (helper.folder / "last-change").unlink()
    assert helper.ask({"v": 1, "op": "set", "own_bytes": 0}, flags=("--kill-at", stage)) is None
    after = helper.status()
    assert after["inactive_bytes"] == 0
    assert after["own_bytes"] == (64 * MIB if stage == "shrink_marked" else 0)
    assert helper.files() == (["swap-00"] if stage == "shrink_marked" else [])


def test_clean_takes_away_what_a_killed_run_left(helper: Helper) -> None:
    """As the unit's ExecStopPost does, at once and without a caller."""
    assert helper.ask({"v": 1, "op": "set", "own_bytes": 64 * MIB}, flags=("--kill-at", "linked")) is None
    assert helper.files() == ["swap-00", "swap-00.pending"]
    assert helper.start("--clean").wait(timeout=30) == 0
    assert helper.files() == []


def test_e09_swap_of_others_is_counted_and_never_touched(helper: Helper) -> None:
    theirs = helper.mount / "swap.img"
    theirs.write_bytes(b"\0" * 32 * MIB)
    theirs.chmod(0o600)
    subprocess.run(["mkswap", "-q", str(theirs)], check=True)
    subprocess.run(["swapon", str(theirs)], check=True)
    before = hashlib.sha256(theirs.read_bytes()[:4096]).hexdigest()
    shown = Path("/proc/swaps").read_text("utf-8").split(str(theirs))[1].split()
    size = int(shown[1]) * 1024
    status = helper.status()
    assert {"kind": "file", "bytes": size, "used_bytes": 0} in status["others"]
    assert helper.set(48 * MIB)["ok"]
    assert helper.set(0)["ok"]
    assert str(theirs) in own_swaps(helper.mount)
    assert hashlib.sha256(theirs.read_bytes()[:4096]).hexdigest() == before
    subprocess.run(["swapoff", str(theirs)], check=True)


def test_e09_a_swap_file_that_lies_in_our_folder_under_another_name_stays(helper: Helper) -> None:
    helper.folder.mkdir(mode=0o700)
    theirs = helper.folder / "mine.img"
    theirs.write_bytes(b"\0" * 16 * MIB)
    subprocess.run(["mkswap", "-q", str(theirs)], check=True, capture_output=True)
    assert helper.set(32 * MIB)["ok"]
    assert helper.set(0)["ok"]
    assert theirs.stat().st_size == 16 * MIB


def test_a_smaller_size_makes_the_new_file_before_the_old_one_goes(helper: Helper) -> None:
    assert helper.set(128 * MIB)["ok"]
    answer = helper.set(64 * MIB)
    assert answer["ok"] and answer["own_bytes"] == 64 * MIB, answer
    assert helper.files() == ["swap-01"]
    assert helper.set(96 * MIB)["own_bytes"] == 96 * MIB
    # One of both fits: nothing is made.
    assert helper.set(32 * MIB)["own_bytes"] == 32 * MIB


def test_after_a_reboot_the_files_are_used_again(helper: Helper) -> None:
    assert helper.set(64 * MIB)["ok"]
    subprocess.run(["swapoff", str(helper.folder / "swap-00")], check=True)  # what a reboot comes to
    inode = (helper.folder / "swap-00").stat().st_ino
    assert helper.status()["inactive_bytes"] == 64 * MIB
    answer = helper.set(64 * MIB)
    assert answer["own_bytes"] == 64 * MIB, answer
    assert (helper.folder / "swap-00").stat().st_ino == inode


def test_a_file_opened_through_another_mount_is_known_again(helper: Helper) -> None:
    """Its name in /proc/swaps is of a mount that is gone."""
    helper.wrapper = ("unshare", "-m", "--propagation", "private")
    assert helper.set(64 * MIB)["ok"]
    helper.stop()
    helper.wrapper = ()
    assert "/cosyd-swap/swap-00" in Path("/proc/swaps").read_text("utf-8")
    assert (helper.status()["own_bytes"], helper.status()["others"]) == (64 * MIB, [])
    assert helper.set(0)["ok"]
    assert helper.files() == []


def test_in_a_mount_namespace_of_its_own_it_works_through_the_folder_that_systemd_opened(
    helper: Helper,
) -> None:
    """As its unit has it: everything is read-only for it, and the file has its real name for all."""
    helper.folder.mkdir(mode=0o700)
    helper.folder_given = True
    read_only = 'mount -o remount,bind,ro "$0" && exec "$@"'
    helper.wrapper = (
        *("unshare", "-m", "--propagation", "private"),
        *("bash", "-c", read_only, str(helper.mount)),
    )
    answer = helper.set(64 * MIB)
    assert answer["ok"], answer
    helper.stop()
    assert own_swaps(helper.folder) == [str(helper.folder / "swap-00")]
    assert (helper.status()["own_bytes"], helper.status()["others"]) == (64 * MIB, [])
    assert helper.set(0)["ok"]
    assert helper.files() == [] and own_swaps(helper.folder) == []
