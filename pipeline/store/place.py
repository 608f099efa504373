"""Which file system a folder lies on, and whether the database may lie there. Pure but for one small file.

SQLite in WAL mode shares memory between processes and trusts POSIX locks. Over a network neither holds: two
machines each see a lock of their own, and the database is damaged without a word
(https://www.sqlite.org/wal.html, https://www.sqlite.org/lockingv3.html). So the state folder must be local;
`outputs` and `models` hold plain files and may be mounts or links to a share. Asked by `store.migrate`,
before anything is made; `daemon.hardware` tells the kind as a fact. Standard library alone.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pipeline.codes import CosydError

MOUNTINFO = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    """nfs nfs4 cifs smb smb3 smbfs smbnetfs ncp ncpfs afs openafs auristorfs coda 9p v9fs ceph ceph-fuse
    glusterfs sshfs rclone s3fs gcsfuse goofys geesefs mountpoint-s3 davfs davfs2 curlftpfs ftpfs juicefs
    seaweedfs mfs moosefs lizardfs saunafs beegfs lustre gpfs orangefs pvfs2 ipfs dropbox gdrive onedrive
    vboxsf vmhgfs vmhgfs-fuse prl_fs drvfs""".split()
)
"""Types that reach another machine, and shared folders of virtual machines (the last line), which have no
shared memory maps. With `fuse.` before it a type is the same."""
LOCAL = frozenset(
    "mergerfs mhddfs unionfs unionfs-fuse bindfs fuse-overlayfs gocryptfs encfs ntfs-3g".split()
)
"""FUSE types over local folders, whose sources may look like `host:path` (mergerfs lists disk1:disk2)."""
_REMOTE = re.compile(r"[a-z0-9+.-]+://|[^/:\s]+:")
"""How a source that is elsewhere is written: a URL, `host:/path`, `user@host:`, `remote:`."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system: where, its type as the kernel names it, and what is mounted."""

    point: str
    kind: str
    source: str

    @property
    def network(self) -> bool:
        """Does it reach another machine? An unknown FUSE type is local unless its source says otherwise."""
        kind = self.kind.removeprefix("fuse.")
        fuse = self.kind.split(".")[0] == "fuse" and kind not in LOCAL
        return kind in NETWORK or (fuse and _REMOTE.match(self.source) is not None)


def find_mount(mountinfo: str, path: str) -> Mount | None:
    """What `path` (absolute, without links) lies on, by the text of /proc/self/mountinfo; of several mounts
    on one point the last is seen. None when nothing there can be read."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        words, tail = before.split(), after.split()
        if not dash or len(words) < 5 or not tail:
            continue
        point = _unescaped(words[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best.point)):
            best = Mount(point, tail[0], _unescaped(tail[1]) if len(tail) > 1 else "")
    return best


def _unescaped(word: str) -> str:
    """The kernel writes blanks and backslashes as octal numbers of bytes."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), word)


def mount_of(folder: Path, mountinfo: Path = MOUNTINFO) -> Mount | None:
    """The mount that `folder` lies on, or will lie on once it is made; None when it cannot be told."""
    try:
        return find_mount(mountinfo.read_text("utf-8", "replace"), os.path.realpath(folder))
    except OSError:
        return None


def refuse_network(folder: Path, mountinfo: Path = MOUNTINFO) -> None:
    """Raise CosydError(config_error, reason=network_filesystem) when the database would lie on a network file
    system. What is not known is no reason."""
    found = mount_of(folder, mountinfo)
    if found is not None and found.network:
        raise CosydError(
            "config_error",
            reason="network_filesystem",
            state=str(folder),
            kind=found.kind,
            source=found.source,
        )
