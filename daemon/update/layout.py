"""Where the environments lie, and which of them may go.

    /opt/cosyd/venvs/0.2.0-1a2b3c4d/   a whole environment; `.cosyd-complete` in it comes last
    /opt/cosyd/venv                    a link to the one in use, which the units name
    /opt/cosyd/venvs/update.json       while a change-over is on its way (`daemon.update.switch`)

The name is the version and the beginning of a digest of the package, so another build of the same version is
another environment. Pure but for reading and changing the link.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

STAMP = ".cosyd-complete"
EXTRAS = ("systemd", "cosyvoice", "ja", "asr")
"""What an installation may have beside the base; development and provisioning have environments elsewhere."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,80}")
_EXTRA = re.compile(r"""([A-Za-z0-9._-]+).*;.*\bextra\s*==\s*["']([a-z]+)["']""")


@dataclass(frozen=True, slots=True)
class Layout:
    """Below `home`."""

    home: Path

    @property
    def venvs(self) -> Path:
        return self.home / "venvs"

    @property
    def link(self) -> Path:
        """What the units name."""
        return self.home / "venv"

    @property
    def journal(self) -> Path:
        return self.venvs / "update.json"

    @classmethod
    def around(cls, prefix: Path) -> Layout | None:
        """The layout that the environment `prefix` (sys.prefix) is part of; None where it is of another
        kind."""
        home = prefix.resolve().parent.parent
        found = cls(home)
        ours = prefix.resolve().parent.name == "venvs" and found.link.is_symlink()
        return found if ours and found.current() is not None else None

    def current(self) -> str | None:
        """The name of the environment in use; None when the link leads elsewhere or nowhere."""
        try:
            target = self.link.resolve(strict=True)
        except OSError:
            return None
        return target.name if target.parent == self.venvs.resolve() else None

    def venv(self, name: str) -> Path:
        """The folder of an environment. Raises ValueError for what cannot be a name."""
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no environment's name")
        return self.venvs / name

    def python(self, name: str) -> Path:
        return self.venv(name) / "bin/python"

    def complete(self, name: str) -> bool:
        """Was it made to the end?"""
        return (self.venv(name) / STAMP).is_file()

    def point_to(self, name: str) -> None:
        """Change the link, in one step: whoever looks sees the old or the new."""
        target = self.venv(name)
        if not (target / "bin/cosyd").exists():
            raise FileNotFoundError(target / "bin/cosyd")
        beside = self.home / f".venv.{os.getpid()}"
        beside.unlink(missing_ok=True)
        beside.symlink_to(target)
        os.replace(beside, self.link)
        fd = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def name_of(wheel: Path) -> str:
    """`0.2.0-1a2b3c4d`: the version, and a digest of what is in the wheel (not of when it was packed). Raises
    ValueError when it is no wheel of ours."""
    distribution, _, rest = wheel.name.partition("-")
    version = rest.partition("-")[0]
    if distribution != "cosyd" or not version or wheel.suffix != ".whl":
        raise ValueError(f"{wheel.name} is no package of cosyd")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as made:
            for info in sorted(made.infolist(), key=lambda info: info.filename):
                digest.update(f"{info.filename}\0{info.CRC:08x}{info.file_size}\n".encode())
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(f"{wheel.name} cannot be read: {error}") from error
    return f"{version}-{digest.hexdigest()[:8]}"


def extras_of(requires: Iterable[str], installed: Mapping[str, str]) -> tuple[str, ...]:
    """The extras that an installation has: all that they ask for is installed. `requires` as in a package's
    metadata (`torch>=2.4; extra == "cosyvoice"`), `installed` has normalised names."""
    asked: dict[str, set[str]] = {}
    for line in requires:
        if found := _EXTRA.match(line):
            asked.setdefault(found[2], set()).add(normalised(found[1]))
    return tuple(name for name in EXTRAS if name in asked and asked[name] <= set(installed))


def normalised(name: str) -> str:
    """A distribution's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def prunable(names: Iterable[str], *, keep: Iterable[str]) -> list[str]:
    """Environments that may go: all but the one in use and the one before."""
    kept = set(keep)
    return sorted(name for name in names if name not in kept and _NAME.fullmatch(name))
