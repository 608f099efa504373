"""Fresh Debian roots to try the installer in: debootstrap once, a copy for each test, all gone afterwards.

A command runs in mount and process namespaces of its own: its mounts vanish and its processes die with it,
whatever happens to the test. The network is the host's unless a namespace is named. How this machine reaches
the package registries (mirror, pip's configuration, certificates, proxies) is read from it and given to the
root.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

CHECKOUT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("COSYD_TEST_CACHE", "/var/cache/cosyd-tests"))
SUITES = {"bookworm": "Debian 12", "trixie": "Debian 13"}
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
INCLUDE = ("ca-certificates", "python3")
"""What a small Debian server has. Not python3-venv, espeak-ng or ffmpeg: the installer must say so."""

USER = "ada"
UID = 1000
T = TypeVar("T")

# Run by bash as process 1 of the new namespaces: it mounts, runs the command in the root, and reaps orphans.
ENTER = """
set -eu
root=$1; owner=$2; shift 2
mount -t proc proc "$root/proc"
mkdir -p "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    shift 2
done
shift
set +e
chroot --userspec="$owner" --groups="" "$root" "$@"
status=$?
for entry in "$root"/proc/[0-9]*; do # listed by the shell itself, so that no helper is counted
    [ "${entry##*/}" = 1 ] || echo "left running: $(tr '\\0' ' ' <"$entry/cmdline")"
done
exit $status
"""


def wait_for(check: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Polls `check` until it gives something true. Raises AssertionError naming `what` at the deadline."""
    end = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < end, f"waited {timeout_s} s in vain for {what}"
        time.sleep(0.05)


def debian_mirror() -> str | None:
    """The archive this machine takes Debian from; None leaves it to debootstrap."""
    files = [*sorted(Path("/etc/apt/sources.list.d").glob("*.sources")), Path("/etc/apt/sources.list")]
    for file in files:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        found = re.search(
            r"^(?:URIs:|deb(?: \[[^]]*\])?)\s*(https?://\S+/debian)/?(?:\s|$)", text, flags=re.MULTILINE
        )
        if found:
            return found.group(1)
    return None


@contextmanager
def made_once(final: Path) -> Iterator[Path | None]:
    """A folder of the cache that takes minutes to make. Gives None when it is there, else where to make it:
    it gets its name when the block ends well. Two processes that need the same one do not make it twice."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{final.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.exists():
            yield None
            return
        half = CACHE / f".{final.name}.{os.getpid()}"
        try:
            yield half
            half.rename(final)
        finally:
            shutil.rmtree(half, ignore_errors=True)


def base_root(suite: str) -> Path:
    """The root that copies are made of. Made once with debootstrap (about 45 s) and kept in the cache."""
    final = CACHE / f"{suite}-{'-'.join(INCLUDE)}"
    with made_once(final) as half:
        if half is None:
            return final
        mirror = debian_mirror()
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={','.join(INCLUDE)}", suite, str(half)]
            + ([mirror] if mirror else []),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        shutil.rmtree(half / "var/cache/apt/archives", ignore_errors=True)
    return final


def pip_folders() -> list[Path]:
    """Local folders this machine's pip looks into (find-links, file:// indexes), bound as they are named."""
    listed = subprocess.run(["pip3", "config", "list"], capture_output=True, text=True).stdout
    words = re.findall(r"(?:file://)?(/[^\s']+)", listed)
    folders = [Path(word) for word in words if not word.startswith("//")]
    # The files of an index lie beside its folder `simple`.
    return [folder.parent if folder.name == "simple" else folder for folder in folders if folder.is_dir()]


def registry_environment() -> dict[str, str]:
    """Variables that say how the registries are reached: pip's own, certificates, proxies."""
    names = re.compile(
        r"(PIP_.*|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|(https?|no|all)_proxy)", re.IGNORECASE
    )
    return {key: value for key, value in os.environ.items() if names.fullmatch(key)}


@dataclass
class Root:
    """A fresh system in `path`, with a plain user and a clone of the committed state of this repository."""

    path: Path
    suite: str
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def checkout(self) -> Path:
        """Where the clone lies, seen from outside."""
        return self.path / f"home/{USER}/cosyd"

    @classmethod
    def fresh(cls, suite: str, path: Path) -> Root:
        """A copy of the base root at `path`, made ready. Needs root."""
        subprocess.run(["cp", "-a", "--reflink=auto", str(base_root(suite)), str(path)], check=True)
        root = cls(path, suite)
        root._give_network()
        with (path / "etc/passwd").open("a", encoding="utf-8") as file:
            file.write(f"{USER}:x:{UID}:{UID}::/home/{USER}:/bin/bash\n")
        with (path / "etc/group").open("a", encoding="utf-8") as file:
            file.write(f"{USER}:x:{UID}:\n")
        root.checkout.parent.mkdir(parents=True)
        subprocess.run(
            ["git", "-c", "safe.directory=*", "clone", "-q", f"file://{CHECKOUT}", str(root.checkout)],
            check=True,
        )
        subprocess.run(["chown", "-R", f"{UID}:{UID}", str(root.checkout.parent)], check=True)
        return root

    def _give_network(self) -> None:
        etc = self.path / "etc"
        for name in ("resolv.conf", "hosts", "pip.conf"):
            if (source := Path("/etc") / name).exists():
                (etc / name).unlink(missing_ok=True)
                shutil.copy(source, etc / name)
        if Path("/etc/xdg/pip").is_dir():
            shutil.copytree("/etc/xdg/pip", etc / "xdg/pip", dirs_exist_ok=True)
        own = Path.home() / ".config/pip/pip.conf"
        if own.exists():
            with (etc / "pip.conf").open(
                "a", encoding="utf-8"
            ) as file:  # ini files may say [global] only once
                body = own.read_text(encoding="utf-8")
                file.write(body if (etc / "pip.conf").stat().st_size == 0 else body.replace("[global]", ""))
        if BUNDLE.exists():
            shutil.copy(BUNDLE, self.path / BUNDLE.relative_to("/"))
        settings = subprocess.run(["apt-config", "dump"], capture_output=True, text=True).stdout
        wanted = [line for line in settings.splitlines() if re.match(r"Acquire::(Check|https?::)", line)]
        (etc / "apt/apt.conf.d/99registry").write_text("\n".join(wanted) + "\n", encoding="utf-8")

    def command(
        self, argv: Sequence[str], *, user: str = USER, env: Mapping[str, str] | None = None, netns: str = ""
    ) -> list[str]:
        """The argument list that runs `argv` in this root, in its checkout, as the plain user or "root"."""
        home = f"/home/{USER}" if user == USER else "/root"
        cache = CACHE / f"pip-{user}"
        cache.mkdir(parents=True, exist_ok=True)
        owner = f"{UID}:{UID}" if user == USER else "0:0"
        os.chown(cache, UID if user == USER else 0, -1)
        variables = {
            **registry_environment(),
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": home,
            "LANG": "C.UTF-8",
            "PIP_CACHE_DIR": "/var/cache/pip",
            **(env or {}),
        }
        binds = [str(cache), "/var/cache/pip"]
        for folder in pip_folders():
            binds += [str(folder), str(folder)]
        inner = shlex.join(argv)
        return [
            *(("ip", "netns", "exec", netns) if netns else ()),
            *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--propagation", "private"),
            *("bash", "-c", ENTER, "root", str(self.path), owner, *binds, "--"),
            *("/usr/bin/env", "-i", *(f"{key}={value}" for key, value in variables.items())),
            *("/bin/bash", "-c", f"cd /home/{USER}/cosyd && exec {inner}"),
        ]

    def run(
        self,
        *argv: str,
        user: str = USER,
        netns: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 600,
    ) -> subprocess.CompletedProcess[str]:
        """Runs to the end, and gives back what it said."""
        return subprocess.run(
            self.command(argv, user=user, netns=netns, env=env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def start(
        self, *argv: str, log: Path, env: Mapping[str, str] | None = None, netns: str = ""
    ) -> subprocess.Popen[bytes]:
        """Starts it in the background in a session of its own, like a terminal's; output goes to `log`."""
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.command(argv, env=env, netns=netns),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def remove(self) -> None:
        """Ends what was started and deletes the root. Its mounts went with their processes."""
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait(timeout=30)
        assert str(self.path) not in Path("/proc/self/mounts").read_text(encoding="utf-8")
        shutil.rmtree(self.path, ignore_errors=True)
