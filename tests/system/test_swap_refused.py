"""What the swap helper refuses, with the reason, leaving nothing: on real disks and kernels."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.swap.helper import Helper as RealHelper
from tests.system.swap_helper import MIB, Helper, own_swaps

pytestmark = pytest.mark.root
NOBODY = 65534


def test_who_may_not_ask_is_refused_and_learns_nothing(helper: Helper) -> None:
    refused = helper.ask({"v": 1, "op": "set", "own_bytes": 64 * MIB}, uid=12345)
    assert refused == {"v": 1, "ok": False, "reason": "not_allowed", "params": {}}
    assert not helper.folder.exists()
    allowed = helper.set(32 * MIB, uid=NOBODY)
    assert allowed["ok"], allowed


NO_REQUESTS = [
    b"\n", b"{}\n", b"[]\n", b"not json\n", b"\xff\xfe\n", b'{"v":2,"op":"status"}\n',
    b'{"v":1,"op":"set","own_bytes":-1}\n', b'{"v":1,"op":"set","own_bytes":1e9}\n',
    b'{"v":1,"op":"set","own_bytes":true}\n', b'{"v":1,"op":"set","own_bytes":"1"}\n',
    b'{"v":1,"op":"set","own_bytes":1,"path":"/etc/passwd"}\n', b'{"v":1,"op":"remove"}\n',
    b"[" * 4000 + b"\n", b"x" * 5000,
]  # fmt: skip


def test_a_request_that_is_not_one_is_refused(helper: Helper) -> None:
    for line in NO_REQUESTS:
        answer = helper.ask(line)
        assert answer is not None, line[:40]
        assert answer["reason"] == "bad_request", line[:40]
    assert helper.files() == []


def test_a_caller_who_says_nothing_does_not_hold_up_the_next(helper: Helper) -> None:
    helper.start()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(helper.address))
        assert helper.status()["ok"]


def test_only_one_change_a_minute(helper: Helper) -> None:
    assert helper.set(32 * MIB)["ok"]
    refused = helper.ask({"v": 1, "op": "set", "own_bytes": 64 * MIB})
    assert refused is not None
    assert refused["reason"] == "too_soon"
    assert 50 < refused["params"]["retry_after_s"] <= 60
    assert refused["own_bytes"] == 32 * MIB


@pytest.mark.parametrize(
    "wrong", ["missing", "not root's", "open to all", "a link", "unknown key", "no number"]
)
def test_without_limits_that_only_root_can_write_nothing_is_done(wrong: str, helper: Helper) -> None:
    if wrong == "missing":
        helper.limits.unlink()
    elif wrong == "not root's":
        os.chown(helper.limits, NOBODY, -1)
    elif wrong == "open to all":
        helper.limits.chmod(0o666)
    elif wrong == "a link":
        helper.limits.rename(helper.limits.with_suffix(".real"))
        helper.limits.symlink_to(helper.limits.with_suffix(".real"))
    elif wrong == "unknown key":
        helper.write_limits(folder="/etc")
    else:
        helper.write_limits(max_bytes="1 GiB")
    assert helper.set(32 * MIB)["reason"] == "no_limits"


def test_more_than_the_ceiling_is_refused(helper: Helper) -> None:
    helper.write_limits(max_bytes=64 * MIB)
    refused = helper.set(65 * MIB)
    assert refused["reason"] == "above_ceiling"
    assert refused["params"]["max_bytes"] == 64 * MIB
    assert helper.set(64 * MIB)["ok"]


@pytest.mark.parametrize("wrong", ["a link", "open to all", "somebody's"])
def test_a_folder_that_others_could_change_is_not_used(wrong: str, helper: Helper, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if wrong == "a link":
        helper.folder.symlink_to(elsewhere)
    else:
        helper.folder.mkdir(mode=0o700)
        if wrong == "open to all":
            helper.folder.chmod(0o777)
        else:
            os.chown(helper.folder, NOBODY, -1)
    assert helper.set(32 * MIB)["reason"] == "unsafe_folder"
    assert list(elsewhere.iterdir()) == []


def test_links_planted_under_our_names_are_never_followed(helper: Helper, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_bytes(b"x" * 100_000)
    helper.folder.mkdir(mode=0o700)
    (helper.folder / "swap-00").symlink_to(canary)
    (helper.folder / "swap-00.pending").symlink_to(canary)
    os.link(canary, tmp_path / "second")
    assert helper.status()["own_bytes"] == 0
    answer = helper.set(32 * MIB)
    assert answer["own_bytes"] == 32 * MIB, answer
    assert canary.read_bytes() == b"x" * 100_000


def test_e12_a_disk_without_the_room_keeps_the_old_swap_and_no_part_of_the_new(helper: Helper) -> None:
    assert helper.set(64 * MIB)["ok"]
    free = helper.status()["disk_free_bytes"]
    refused = helper.set(2048 * MIB)
    assert refused["reason"] == "disk_full"
    assert refused["params"]["need_bytes"] == 1984 * MIB
    assert refused["own_bytes"] == 64 * MIB
    assert abs(refused["disk_free_bytes"] - free) < MIB
    assert helper.files() == ["swap-00"]
    # The last bytes are left to others as well.
    assert helper.set(64 * MIB + free - 8 * MIB)["reason"] == "disk_full"


def test_a_file_system_that_runs_full_meanwhile_is_left_as_it_was(helper: Helper) -> None:
    """The check before said yes; the kernel says no."""
    helper.write_limits(keep_free_bytes=0)
    free = helper.status()["disk_free_bytes"]
    room = os.statvfs(helper.mount)
    refused = helper.set(room.f_bfree * room.f_frsize // MIB * MIB - MIB)
    assert refused["reason"] == "disk_full", refused
    assert helper.files() == []
    assert abs(helper.status()["disk_free_bytes"] - free) < MIB


def test_e05_shrink_is_refused_when_ram_cannot_take_what_is_swapped_out(
    helper: Helper, tmp_path: Path
) -> None:
    assert helper.set(64 * MIB)["ok"]
    helper.stop()
    swaps, meminfo = tmp_path / "swaps", tmp_path / "meminfo"
    swaps.write_text(
        Path("/proc/swaps").read_text("utf-8").replace("\t0\t", "\t60000\t", 1), encoding="utf-8"
    )
    meminfo.write_text("MemTotal: 1000000 kB\nMemFree: 90000 kB\nMemAvailable: 300000 kB\n", encoding="utf-8")
    mounts = f"mount --bind {swaps} /proc/swaps && mount --bind {meminfo} /proc/meminfo"
    helper.wrapper = ("unshare", "-m", "bash", "-c", f'{mounts} && exec "$@"', "x")
    refused = helper.set(0)
    assert refused["reason"] == "ram_short", refused
    assert refused["params"] == {"used_bytes": 60000 * 1024, "available_bytes": 300000 * 1024}
    assert len(own_swaps(helper.mount)) == 1


@pytest.mark.parametrize(
    ("obstacle", "mounts"),
    [
        ("hibernation", "echo 'root=/dev/vda resume=/dev/vda2' > {0}/f && mount --bind {0}/f /proc/cmdline"),
        ("container", "mount -t tmpfs x /run && mkdir /run/systemd && echo lxc > /run/systemd/container"),
        ("filesystem", "mkdir {1}/cosyd-swap && mount -t tmpfs -o mode=700 x {1}/cosyd-swap"),
        (
            "filesystem",
            "mkdir {1}/u {1}/w {1}/cosyd-swap && chmod 700 {1}/cosyd-swap {1}/u "
            "&& mount -t overlay -o lowerdir=/etc/default,upperdir={1}/u,workdir={1}/w x {1}/cosyd-swap",
        ),
    ],
    ids=["hibernation", "container", "tmpfs", "overlay"],
)  # fmt: skip
def test_where_swap_does_harm_it_is_refused_with_the_reason(
    obstacle: str, mounts: str, helper: Helper, tmp_path: Path
) -> None:
    script = mounts.format(tmp_path, helper.mount) + ' && exec "$@"'
    helper.wrapper = ("unshare", "-m", "bash", "-c", script, "x")
    refused = helper.set(32 * MIB)
    assert refused["reason"] == obstacle, refused
    assert refused["obstacle"] == obstacle
    assert own_swaps(helper.mount) == []


@pytest.mark.parametrize(
    "wrapper",
    [
        ("capsh", "--drop=cap_sys_admin", "--", "-c", 'exec "$@"', "x"),
        ("unshare", "-rmp", "--fork", "--mount-proc"),
    ],
    ids=["without the capability", "in a user namespace"],
)
def test_e07_where_swapon_is_denied_nothing_is_left(wrapper: tuple[str, ...], helper: Helper) -> None:
    """As in an unprivileged container."""
    helper.wrapper = wrapper
    refused = helper.set(32 * MIB)
    assert refused["reason"] == "denied", refused
    assert helper.files() == []


def test_e04_on_zfs_it_is_refused_with_the_reason(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.swap.kernel.filesystem", lambda fd: "zfs")
    line = json.dumps({"v": 1, "op": "set", "own_bytes": 32 * MIB}).encode()
    refused = RealHelper(helper.folder, helper.limits).answer(0, line)
    assert (refused["reason"], refused["params"]) == ("filesystem", {"filesystem": "zfs"})
    assert helper.files() == []


def test_the_helper_uses_the_standard_library_only() -> None:
    script = (
        "import sys; sys.path[:0] = ['.']; import daemon.swap.helper;"
        "print(*(name for name in sys.modules if name.partition('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    )
    names = {name for name in done.stdout.split() if name != "__main__"}
    assert names == {
        "daemon",
        "daemon.swap",
        "daemon.swap.folder",
        "daemon.swap.helper",
        "daemon.swap.kernel",
    }
