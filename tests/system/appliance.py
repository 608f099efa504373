"""A bare Debian server with a systemd, to install the appliance on as a person would.

It has what a minimal Debian has and nothing of cosyd. What is installed on it stays over a reboot. The
network is the host's, so each test takes a port of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.system.booted import Machine, overlaid, running
from tests.system.roots import (
    CACHE,
    CHECKOUT,
    USER,
    Root,
    made_once,
    pip_folders,
    registry_environment,
    wait_for,
)

PACKAGES = "systemd systemd-sysv dbus procps iproute2 openssh-server sudo".split()
"""What every server has; openssh-server and sudo for the installation from another machine."""
CLONE = "/root/cosyd"
INSTALL_S = 5400.0
"""Two minutes on two idle cores; half an hour at the lowest priority beside other work."""
LEFT = [
    "find", "/etc", "/usr", "/opt", "/var/lib", "/var/cache", "/run", "/root", "-xdev",
    "-iname", "*cosyd*", "-not", "-path", f"{CLONE}*", "-not", "-path", "/var/cache/pip/*",
]  # fmt: skip
"""What is still there by name, after a removal."""
KEPT = ["/etc/cosyd", "/etc/cosyd/cosyd.toml", "/var/lib/cosyd", "/var/lib/cosyd/cosyd.db"]
"""What was promised to stay."""
UNITS = ("cosyd.service", "cosyd-swap.service", "cosyd-swap.socket")


def bare_root(suite: str) -> Path:
    """Made once, about a minute."""
    final = CACHE / f"{suite}-bare"
    if final.exists():
        return final
    half = CACHE / f".{final.name}.{os.getpid()}"
    try:
        root = Root.fresh(suite, half)
        install = shlex.join(["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES])
        done = root.run(
            "bash", "-c", f"apt-get update && DEBIAN_FRONTEND=noninteractive {install} && apt-get clean",
            user="root", timeout_s=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        for unit in ("ssh.service", "ssh.socket", "apt-daily.timer", "apt-daily-upgrade.timer"):
            (half / "etc/systemd/system" / unit).unlink(missing_ok=True)
            (half / "etc/systemd/system" / unit).symlink_to("/dev/null")  # its port is the host's
        shutil.rmtree(root.checkout)
        half.rename(final)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return final


def recap(said: str) -> dict[str, int]:
    """The numbers of the line about our host in what Ansible said."""
    line = [line for line in said.splitlines() if re.match(r"\S+ +: ok=", line)][-1]
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line)}


def unwrapped(said: str) -> str:
    """On one line: Ansible breaks what it tells where the line is full."""
    return " ".join(said.split())


@dataclass
class Server:
    """The machine, its clone of this checkout, and the port that its page gets."""

    machine: Machine
    port: int

    def install(
        self, *options: str, timeout_s: float = INSTALL_S, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`./install.sh install OPTIONS`, unattended, without a card."""
        return self.shell(shlex.join(self._words(options)), timeout_s=timeout_s, env=env)

    def _words(self, options: Sequence[str] = ()) -> list[str]:
        return ["./install.sh", "install", "--unattended", "--no-gpu", "--port", str(self.port), *options]

    def begin(self, name: str) -> None:
        """The same in the background, all its processes in the unit NAME; it says into /root/NAME.log."""
        unit = [
            *("systemd-run", "--quiet", "--collect", "--unit", name, f"--working-directory={CLONE}"),
            *(f"--property=StandardOutput=append:/root/{name}.log", "--property=StandardError=inherit"),
            *(f"--setenv={key}={value}" for key, value in self.variables().items()),
        ]
        self.machine.run(*unit, "bash", *self._words(), check=True)

    def runs(self, name: str) -> bool:
        """Is a process of the unit NAME left?"""
        return self.machine.run("systemctl", "is-active", f"{name}.service").returncode == 0

    def kill(self, name: str) -> None:
        """SIGKILL to all of its processes."""
        self.machine.run("systemctl", "kill", "--signal=KILL", f"{name}.service", check=True)
        wait_for(lambda: not self.runs(name), 30, f"{name} to be gone")

    def variables(self) -> dict[str, str]:
        """The way to the registries, and root's home."""
        return {**registry_environment(), "HOME": "/root", "PIP_CACHE_DIR": "/var/cache/pip"}

    def shell(
        self,
        command: str,
        *,
        timeout_s: float = 120,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """A line of bash as root in the clone, with the way to the registries."""
        pairs = [f"{key}={value}" for key, value in {**self.variables(), **(env or {})}.items()]
        line = f"cd {CLONE} || exit\n{command}"  # so that `command &` is in the background alone
        return self.machine.run("env", *pairs, "bash", "-c", line, timeout_s=timeout_s, stdin=stdin)

    def forbid_mounts(self) -> None:
        """From now on nobody in it gets mounts of his own, as in many containers. Wants
        `--private-users=identity`: the limit is that of its own user namespace."""
        limit = "echo 0 >/proc/sys/user/max_mnt_namespaces"
        subprocess.run(["nsenter", "-t", str(self.machine.leader), "-U", "sh", "-c", limit], check=True)

    def packages(self) -> set[str]:
        """Debian packages that are installed."""
        listed = self.machine.run("dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package}\\n", check=True)
        return {line[3:] for line in listed.stdout.splitlines() if line[:2] in ("ii", "hi")}

    def cosyd(self, *words: str, timeout_s: float = 120) -> Any:
        """`cosyd WORDS --json`."""
        done = self.machine.run("/usr/local/bin/cosyd", *words, "--json", timeout_s=timeout_s, check=True)
        return json.loads(done.stdout)

    def get(self, path: str, host: str = "127.0.0.1", **keywords: Any) -> httpx.Response:
        """GET of the page."""
        return httpx.get(f"http://{host}:{self.port}{path}", timeout=30, trust_env=False, **keywords)

    def answers(self) -> bool:
        """Does the page answer?"""
        try:
            return self.get("/healthz").status_code == 200
        except httpx.HTTPError:
            return False

    def wait_for_page(self) -> None:
        """Until it does."""
        wait_for(self.answers, 120, "the page")


def put_clone(root: Path) -> None:
    """The committed state of this checkout, without .git: as one who unpacked an archive, and so that nothing
    in it is a path of here."""
    clone = root / CLONE.lstrip("/")
    subprocess.run(
        ["git", "-c", "safe.directory=*", "clone", "-q", f"file://{CHECKOUT}", str(clone)], check=True
    )
    shutil.rmtree(clone / ".git")


def wheelhouse(suite: str) -> Path:
    """Wheels of all that an installation fetches from an index, by the line of docs/provisioning.md, on a
    machine with the same Debian and Python. Made once, about two minutes."""
    guide = (CHECKOUT / "docs/provisioning.md").read_text("utf-8")
    (line,) = re.findall(r"^ +(python3 -m pip wheel -w wheels .*)$", guide, flags=re.MULTILINE)
    project = (CHECKOUT / "pyproject.toml").read_text("utf-8")
    final = CACHE / f"{suite}-wheels-{hashlib.sha256(f'{line}{project}'.encode()).hexdigest()[:12]}"
    with made_once(final) as half:
        if half is None:
            return final
        root = Root.fresh(suite, half.with_name(f"{half.name}-root"))
        try:
            build = "python3-pip gcc pkg-config python3-dev libsystemd-dev"
            install = f"DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {build}"
            for user, step in (("root", f"apt-get update && {install}"), (USER, line)):
                done = root.run("bash", "-c", step, user=user, timeout_s=900)
                assert done.returncode == 0, f"{step}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            shutil.move(root.checkout / "wheels", half)
        finally:
            root.remove()
    return final


@contextmanager
def server_root(folder: Path, suite: str = "bookworm") -> Iterator[Path]:
    """The files of a bare server with a clone of the committed state of this checkout."""
    with overlaid(bare_root(suite), folder) as root:
        put_clone(root)
        yield root


@contextmanager
def server(root: Path, folder: Path, port: int, *arguments: str) -> Iterator[Server]:
    """It runs. `arguments` are systemd-nspawn's."""
    cache = CACHE / "pip-root"
    cache.mkdir(parents=True, exist_ok=True)
    binds = [f"--bind={cache}:/var/cache/pip", *(f"--bind-ro={found}" for found in pip_folders())]
    with running(root, folder, *binds, *arguments) as machine:
        yield Server(machine, port)
