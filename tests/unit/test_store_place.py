"""The database is refused on network file systems, by /proc/self/mountinfo; the rest may lie there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.codes import CosydError
from pipeline.messages import error_text
from pipeline.store.place import Mount, find_mount, mount_of, refuse_network

ROOT = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"


def line(point: str, kind: str, source: str) -> str:
    """A mount as the kernel lists it."""
    return f"80 22 0:60 / {point} rw,relatime shared:9 - {kind} {source} rw,vers=4.2"


@pytest.mark.parametrize(
    ("kind", "source", "network"),
    [
        ("nfs", "nas:/export", True), ("nfs4", "[fd00::1]:/export", True), ("cifs", "//nas/share", True),
        ("smb3", "//nas/share", True), ("fuse.sshfs", "ada@nas:/srv", True), ("9p", "share", True),
        ("ceph", "10.0.0.2:6789:/", True), ("fuse.ceph-fuse", "ceph-fuse", True),
        ("fuse.glusterfs", "nas:vol", True), ("fuse.rclone", "cloud:bucket", True), ("afs", "AFS", True),
        ("fuse", "https://nas/dav", True), ("fuse", "nas:/x", True), ("fuse.newfs", "ada@nas:/x", True),
        ("vboxsf", "share", True), ("fuse.vmhgfs-fuse", "vmhgfs-fuse", True), ("lustre", "mgs@tcp:/l", True),
        ("ext4", "/dev/sda1", False), ("xfs", "/dev/sda1", False), ("btrfs", "/dev/sda1", False),
        ("zfs", "tank/cosyd", False), ("overlay", "overlay", False), ("tmpfs", "tmpfs", False),
        ("fuse.mergerfs", "disk1:disk2", False), ("fuse.mergerfs", "/mnt/disk1:/mnt/disk2", False),
        ("fuseblk", "/dev/sdb1", False), ("fuse.fuse-overlayfs", "fuse-overlayfs", False),
        ("fuse.bindfs", "/srv/x", False), ("fuse", "/dev/fuse", False), ("virtiofs", "share", False),
    ],
)  # fmt: skip
def test_what_reaches_another_machine_is_told_from_what_does_not(
    kind: str, source: str, network: bool
) -> None:
    found = find_mount("\n".join([ROOT, line("/srv", kind, source)]), "/srv/cosyd")
    assert found == Mount("/srv", kind, source)
    assert found.network is network


def test_the_nearest_mount_counts_and_the_last_on_one_point() -> None:
    text = "\n".join(
        [
            ROOT,
            line("/srv", "autofs", "systemd-1"),
            line("/srv", "nfs4", "nas:/srv"),
            line("/srv/with\\040blank", "ext4", "/dev/sdb1"),
            line("/srvices", "cifs", "//nas/x"),
            "not a line",
            "1 2 3 - nothing",
        ]
    )
    assert find_mount(text, "/srv/a/b") == Mount("/srv", "nfs4", "nas:/srv")
    assert find_mount(text, "/srv/with blank/state") == Mount("/srv/with blank", "ext4", "/dev/sdb1")
    assert find_mount(text, "/srvice") == Mount("/", "ext4", "/dev/vda")
    assert find_mount(text, "/") == Mount("/", "ext4", "/dev/vda")
    assert find_mount("", "/srv") is None


def test_a_link_is_followed_and_what_cannot_be_read_is_no_reason(tmp_path: Path) -> None:
    share, local = tmp_path / "share", tmp_path / "local"
    share.mkdir()
    local.symlink_to(share)
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("\n".join([ROOT, line(str(share), "nfs4", "nas:/x")]))
    with pytest.raises(CosydError) as caught:
        refuse_network(local / "not-made-yet", mountinfo)
    assert caught.value.info.exit_status == 78
    for language in ("en", "zh"):
        told = error_text(caught.value.code, language, caught.value.params)  # type: ignore[arg-type]
        assert "nfs4" in told and "nas:/x" in told and "COSYD_STATE_DIR" in told
    refuse_network(tmp_path, mountinfo)
    refuse_network(share, tmp_path / "no-such-file")
    assert mount_of(share, tmp_path / "no-such-file") is None
    assert mount_of(Path("/proc/self")) is not None  # in a chroot `/` is none of the mounts
