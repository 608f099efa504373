"""A real systemd with cosyd installed, booted in systemd-nspawn; one command of the host runs inside it.

The root is made once (debootstrap, Debian packages, /opt/cosyd/venv with all that cosyd needs) and kept in
the cache; a boot lays an overlay on it, so that nothing of one test reaches the next, and puts the sources of
this checkout in. The network is the host's. What it proves and what it cannot: tests/system/README.md.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.system.roots import CACHE, CHECKOUT, Root, made_once, wait_for

PACKAGES = "systemd systemd-sysv dbus python3-venv procps espeak-ng kmod".split()
BUILD_PACKAGES = "gcc pkg-config python3-dev libsystemd-dev".split()
"""systemd-python has no wheel."""
VENV = "opt/cosyd/venv"
SOURCES = ("daemon", "ui", "pipeline")
UNITS = {
    "systemd/cosyd.service": "etc/systemd/system/cosyd.service",
    "systemd/cosyd-swap.socket": "etc/systemd/system/cosyd-swap.socket",
    "systemd/cosyd-swap.service": "etc/systemd/system/cosyd-swap.service",
    "systemd/cosyd.sysusers.conf": "usr/lib/sysusers.d/cosyd.conf",
    "systemd/cosyd.tmpfiles.conf": "usr/lib/tmpfiles.d/cosyd.conf",
    "systemd/swap.toml": "etc/cosyd/swap.toml",
}
"""Where the installer puts each file of systemd/."""
BOOT_S = 90.0


def _key() -> str:
    """Changes when what is installed changes."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["systemd"], *PACKAGES]
    return hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:12]


def installed_root(suite: str = "bookworm") -> Path:
    """A root with systemd and all that cosyd needs in /opt/cosyd/venv. Made once, about three minutes."""
    final = CACHE / f"{suite}-systemd-{_key()}"
    with made_once(final) as half:
        if half is None:
            return final
        root = Root.fresh(suite, half)
        install = shlex.join(
            ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES, *BUILD_PACKAGES]
        )
        for step in (
            f"apt-get update && DEBIAN_FRONTEND=noninteractive {install}",
            f"python3 -m venv /{VENV}",
            f"/{VENV}/bin/pip install '/home/ada/cosyd[systemd]'",
            f"/{VENV}/bin/python -m compileall -q /{VENV}/lib || true",
            f"apt-get purge -y --autoremove {shlex.join(BUILD_PACKAGES)} && apt-get clean",
        ):
            done = root.run("bash", "-c", step, user="root", timeout_s=900)
            assert done.returncode == 0, f"{step}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        shutil.rmtree(root.checkout)
    mounts = Path("/proc/self/mountinfo").read_text("utf-8")
    for old in CACHE.glob(f"{suite}-systemd-*"):  # of dependencies that are no longer ours
        if not old.name.startswith(final.name) and str(old) not in mounts:
            shutil.rmtree(old, ignore_errors=True)
    return final


@dataclass
class Machine:
    """A booted system. `run` runs a command in it as root; files are reached from outside below `path`."""

    path: Path
    leader: int
    log: Path

    def run(
        self, *argv: str, timeout_s: float = 60, check: bool = False, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command inside, with its output."""
        enter = ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-r", "-w"]
        done = subprocess.run(
            [*enter, "env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", *argv],
            stdin=subprocess.DEVNULL if stdin is None else None,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0 or not check, f"{argv}: {done.stdout}{done.stderr}"
        return done

    def show(self, *properties: str, unit: str = "cosyd.service") -> dict[str, str]:
        """`systemctl show`."""
        wanted = [f"--property={name}" for name in properties]
        lines = self.run("systemctl", "show", unit, *wanted, check=True).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines)

    def wait_state(self, state: str, timeout_s: float = 60) -> None:
        """Until the service's ActiveState is `state`."""
        try:
            wait_for(
                lambda: self.show("ActiveState")["ActiveState"] == state, timeout_s, f"cosyd to be {state}"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.journal()}") from None

    def journal(self, unit: str = "cosyd.service") -> str:
        """What the service said in this boot."""
        return self.run("journalctl", "-q", "--no-pager", "-o", "cat", "-u", unit).stdout

    def pids(self, user: str = "cosyd") -> list[str]:
        """Processes of the service's user, as lines of ps."""
        return self.run("ps", "-u", user, "-o", "pid=,stat=,args=").stdout.splitlines()

    def rows(self, query: str) -> list[sqlite3.Row]:
        """A look into the database, from outside."""
        database = self.path / "var/lib/cosyd/cosyd.db"
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as conn:
            conn.row_factory = sqlite3.Row
            return conn.execute(query).fetchall()


def free_port() -> int:
    """The network is the host's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def put_in(root: Path, config: str) -> None:
    """The sources, units and configuration of this checkout, as the installer lays them."""
    packages = next((root / VENV / "lib").glob("python3*/site-packages"))
    for name in SOURCES:
        shutil.rmtree(packages / name, ignore_errors=True)
        shutil.copytree(CHECKOUT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CHECKOUT / "tests/engines", packages / "tests/engines", dirs_exist_ok=True)
    for source, target in UNITS.items():
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(CHECKOUT / source, root / target)
        (root / target).chmod(0o644)
    (root / "etc/cosyd/cosyd.toml").write_text(config, encoding="utf-8")
    # The journal is looked at from here; a boot is quicker without what a test does not need.
    for unit in ("systemd-networkd", "systemd-resolved", "apt-daily.timer", "apt-daily-upgrade.timer"):
        (root / "etc/systemd/system" / (unit if "." in unit else f"{unit}.service")).symlink_to("/dev/null")


def child_of(pid: int) -> int | None:
    """The first child of a process."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    words = found.read_text("ascii").split() if found.exists() else []
    return int(words[0]) if words else None


@contextmanager
def overlaid(lower: Path, folder: Path) -> Iterator[Path]:
    """A root that looks like `lower` and keeps its changes in `folder`. Unmounted at the end."""
    root, upper, work = folder / "root", folder / "upper", folder / "work"
    for path in (root, upper, work):
        path.mkdir()
    layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", str(root)], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


@contextmanager
def running(root: Path, folder: Path, *arguments: str) -> Iterator[Machine]:
    """The system of `root`, booted with further `arguments` of systemd-nspawn; powered off at the end."""
    log = folder / "boot.log"
    with log.open("wb") as out:
        container = subprocess.Popen(
            [
                *("systemd-nspawn", "--quiet", "-D", str(root), "--boot", "--register=no", "--keep-unit"),
                *("--machine", f"cosyd-test-{os.getpid()}", "--console=pipe", "--kill-signal=SIGRTMIN+3"),
                *("--link-journal=no", "--resolv-conf=off", "--timezone=off", *arguments),
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def up() -> Machine | None:
        assert container.poll() is None, log.read_text("utf-8", "replace")
        leader = child_of(container.pid)  # at first a helper of nspawn's own
        if leader is None:
            return None
        machine = Machine(root, leader, log)
        state = machine.run("systemctl", "is-system-running").stdout.strip()
        return machine if state in ("running", "degraded") else None

    try:
        yield wait_for(up, BOOT_S, "the system to come up")
    finally:
        end(container)


@contextmanager
def booted(folder: Path, config: str, suite: str = "bookworm") -> Iterator[Machine]:
    """A system that runs, cosyd installed and enabled but not started. Gone at the end, mounts and all."""
    with overlaid(installed_root(suite), folder) as root:
        put_in(root, config)
        with running(root, folder) as machine:
            machine.run("systemctl", "daemon-reload", check=True)
            machine.run(f"/{VENV}/bin/python", "-m", "compileall", "-q", f"/{VENV}/lib", timeout_s=300)
            yield machine


def end(container: subprocess.Popen[bytes]) -> None:
    """Power off; by force after a while."""
    container.send_signal(signal.SIGTERM)
    try:
        container.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(container.pid, signal.SIGKILL)
        container.wait(timeout=30)
