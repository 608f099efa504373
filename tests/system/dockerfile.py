"""Runs a Dockerfile without a container engine: each stage is a copy of a Debian root, RUN a command in it.

For what such a file says in the words below, and nothing else: a line that is not known is an error, so that
no line goes untested. An engine's layers, its build cache and its network are not played; the root file
system, the user, the environment, the volume and the health check are.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.system.roots import BUNDLE, ENTER, Root, pip_folders, registry_environment, wait_for

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HEALTH_FLAGS = {"--interval", "--timeout", "--start-period", "--retries"}
_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")


class Unknown(ValueError):
    """A line of the file that this cannot run."""


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """(word, rest) of each instruction; comments and continued lines as Docker reads them."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        lines.append(line.rstrip())
        if lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            continue
        word, _, rest = "".join(lines).strip().partition(" ")
        lines = []
        yield word, rest.strip()
    if lines:
        raise Unknown("the last line goes on nowhere")


@dataclass
class Image:
    """A root file system and how it is started."""

    root: Path
    env: dict[str, str] = field(default_factory=lambda: {"PATH": DEFAULT_PATH})
    args: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    workdir: str = "/"
    volumes: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    health_flags: dict[str, str] = field(default_factory=dict)
    stop_signal: str = "SIGTERM"

    def owner(self) -> tuple[int, int]:
        """The numbers of USER in this root's own passwd."""
        if self.user == "root":
            return 0, 0
        for line in (self.root / "etc/passwd").read_text("utf-8").splitlines():
            words = line.split(":")
            if words[0] == self.user:
                return int(words[2]), int(words[3])
        raise Unknown(f"no user {self.user}")

    def run(self, argv: Sequence[str], env: Mapping[str, str], binds: Sequence[str]) -> None:
        """A command of a RUN line, as USER in WORKDIR. Raises AssertionError with what it said."""
        uid, gid = self.owner()
        variables = {**env, **self.env, **self.args}
        words = [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--propagation", "private"),
            *("bash", "-c", ENTER, "root", str(self.root), f"{uid}:{gid}", *binds, "--"),
            *("/usr/bin/env", "-i", "-C", self.workdir, *(f"{k}={v}" for k, v in variables.items()), *argv),
        ]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{argv}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        assert "left running" not in done.stdout, done.stdout


class Builder:
    """Builds the image of a Dockerfile in `folder`, from `context`, with build arguments `args`."""

    def __init__(self, context: Path, folder: Path, args: Mapping[str, str] = {}) -> None:
        self.context, self.folder, self.given = context, folder, dict(args)
        self.stages: dict[str, Image] = {}
        self.image: Image | None = None

    def build(self, dockerfile: Path) -> Image:
        """The last stage. Raises Unknown for a line that is not known."""
        for word, rest in instructions(dockerfile.read_text("utf-8")):
            method = getattr(self, f"do_{word.lower()}", None)
            if method is None or word != word.upper():
                raise Unknown(f"{word} {rest}")
            if self.image is None and word != "FROM":
                raise Unknown(f"{word} before FROM")
            method(rest)
        assert self.image is not None
        return self.image

    def _filled(self, text: str) -> str:
        """Variables outside of RUN, where the shell does it."""
        image = self._image()
        known = {**image.args, **image.env}

        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            if name not in known:
                raise Unknown(f"${name} is set nowhere")
            return known[name]

        if "${" in _VARIABLE.sub("", text):
            raise Unknown(text)
        return _VARIABLE.sub(value, text)

    def _image(self) -> Image:
        assert self.image is not None
        return self.image

    @staticmethod
    def _words(text: str) -> list[str]:
        """The exec form. The shell form would need a shell as process 1, which gets no signals."""
        words = json.loads(text)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise Unknown(text)
        return words

    def do_from(self, rest: str) -> None:
        found = re.fullmatch(r"debian:(\w+)-slim(?: AS (\w+))?", rest)
        if found is None:
            raise Unknown(f"FROM {rest}")
        name = found[2] or f"stage{len(self.stages)}"
        root = self.folder / name
        self.image = self.stages[name] = Image(slim_root(found[1], root))

    def do_arg(self, rest: str) -> None:
        name, _, default = rest.partition("=")
        self._image().args[name] = self.given.pop(name, shlex.split(default or '""')[0])

    def do_env(self, rest: str) -> None:
        for pair in shlex.split(rest):
            name, equals, value = pair.partition("=")
            if not equals:
                raise Unknown(f"ENV {rest}")
            self._image().env[name] = self._filled(value)

    def do_run(self, rest: str) -> None:
        if rest.startswith(("[", "--", "<<")):
            raise Unknown(f"RUN {rest}")
        binds = [word for folder in pip_folders() for word in (str(folder), str(folder))]
        env = registry_environment()
        if BUNDLE.exists():  # how this machine knows the registries; ca-certificates writes its own
            (registry := self.folder / "registry").mkdir(exist_ok=True)
            shutil.copy(BUNDLE, registry)
            binds += [str(registry), "/mnt/registry"]
            names = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
            env |= dict.fromkeys(names, f"/mnt/registry/{BUNDLE.name}")
        self._image().run(["/bin/sh", "-c", rest], env, binds)

    def do_copy(self, rest: str) -> None:
        words = shlex.split(rest)
        source = self.context
        if words[0].startswith("--from="):
            source = self.stages[words.pop(0).removeprefix("--from=")].root
        if any(word.startswith("--") for word in words) or len(words) < 2:
            raise Unknown(f"COPY {rest}")
        *names, target = words
        place = self._image().root / target.lstrip("/")
        for name in names:
            found = source / name.lstrip("/")
            if found.is_dir():
                if len(names) > 1:
                    raise Unknown(f"COPY {rest}")  # Docker copies what is inside, not the folder
                ignore = shutil.ignore_patterns("__pycache__") if source == self.context else None
                shutil.copytree(found, place, symlinks=True, dirs_exist_ok=True, ignore=ignore)
            elif target.endswith("/"):
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, place)
            else:
                raise Unknown(f"COPY {rest}")

    def do_user(self, rest: str) -> None:
        self._image().user = rest
        self._image().owner()

    def do_workdir(self, rest: str) -> None:
        if not rest.startswith("/"):
            raise Unknown(f"WORKDIR {rest}")
        self._image().workdir = rest
        (self._image().root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def do_volume(self, rest: str) -> None:
        if rest.startswith("["):
            raise Unknown(f"VOLUME {rest}")
        self._image().volumes += rest.split()

    def do_expose(self, rest: str) -> None:
        self._image().ports += rest.split()

    def do_stopsignal(self, rest: str) -> None:
        self._image().stop_signal = rest

    def do_healthcheck(self, rest: str) -> None:
        flags, found, command = rest.partition("CMD ")
        for flag in flags.split():
            name, _, value = flag.partition("=")
            if name not in HEALTH_FLAGS:
                raise Unknown(f"HEALTHCHECK {rest}")
            self._image().health_flags[name] = value
        if not found:
            raise Unknown(f"HEALTHCHECK {rest}")
        self._image().health = self._words(command)

    def do_entrypoint(self, rest: str) -> None:
        self._image().entrypoint, self._image().command = self._words(rest), []

    def do_cmd(self, rest: str) -> None:
        self._image().command = self._words(rest)


def slim_root(suite: str, path: Path) -> Path:
    """Like debian:SUITE-slim: no Python, no certificates, no manuals. A copy; needs root."""
    root = Root.fresh(suite, path)
    shutil.rmtree(root.checkout.parent)
    done = root_run(path, "apt-get purge -y --autoremove 'python3*' ca-certificates && apt-get clean")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (path / "usr/bin/python3").exists()
    return path


def root_run(root: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A line of shell as root in a root."""
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--propagation", "private"]
    return subprocess.run(
        [*words, "bash", "-c", ENTER, "root", str(root), "0:0", "--", "/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


# Run by bash as process 1 of the container: read-only root, private /tmp, the volume; the command as USER.
START = """
set -eu
root=$1; volume=$2; target=$3; owner=$4; workdir=$5; shift 5
mount --bind "$root" "$root"
mkdir -p "$root$target"
mount --bind "$volume" "$root$target"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root/dev/shm"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -o remount,ro,bind "$root"
chroot --userspec="$owner" --groups="" "$root" /usr/bin/env -i -C "$workdir" "$@" &
child=$!
trap 'kill -TERM $child' TERM
while kill -0 $child 2>/dev/null; do wait $child && status=0 || status=$?; done
exit "$status"
"""


@dataclass
class Container:
    """An image that runs. `process` is what keeps its namespaces."""

    image: Image
    process: subprocess.Popen[bytes]
    log: Path
    env: Mapping[str, str]

    def inside(self) -> int:
        """Its process 1, seen from outside."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(wait_for(lambda: children.read_text("ascii").split(), 20, "its first process")[0])

    def exec(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Like `docker exec`: as USER, in WORKDIR, with the image's environment."""
        uid, gid = self.image.owner()
        pairs = [f"{key}={value}" for key, value in {**self.image.env, **self.env}.items()]
        return subprocess.run(
            [
                *("nsenter", "-t", str(self.inside()), "-m", "-p", "chroot", f"--userspec={uid}:{gid}"),
                *("--groups=", str(self.image.root), "/usr/bin/env", "-i", "-C", self.image.workdir, *pairs),
                *argv,
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    def stop(self) -> int:
        """STOPSIGNAL; the exit status."""
        os.kill(self.inside(), 15)
        return self.process.wait(timeout=30)


@contextmanager
def container(image: Image, volume: Path, log: Path, env: Mapping[str, str] = {}) -> Iterator[Container]:
    """ENTRYPOINT and CMD as an engine starts them with `read_only: true`, a tmpfs and one volume."""
    (target,) = image.volumes
    uid, gid = image.owner()
    if not any(volume.iterdir()):  # a new named volume looks like the folder in the image
        inside = (image.root / target.lstrip("/")).stat()
        os.chown(volume, inside.st_uid, inside.st_gid)
        volume.chmod(inside.st_mode & 0o7777)
    pairs = [f"{key}={value}" for key, value in {**image.env, **env}.items()]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--propagation", "private"),
                *("bash", "-c", START, "container", str(image.root), str(volume), target, f"{uid}:{gid}"),
                *(image.workdir, *pairs, *image.entrypoint, *image.command),
            ],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield Container(image, process, log, env)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait(timeout=30)
