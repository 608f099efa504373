"""Makes an environment: from a name in the index, a wheel, a folder of wheels or a checkout. Shell.

pip does all of it, with whatever index, proxies and folders its configuration and environment name. torch
is kept as it is where it still fits the machine: it is most of the download, and its build was chosen for
the card.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from daemon.hardware.facts import Facts
from daemon.hardware.fit import Fit
from daemon.update.layout import STAMP, Layout, extras_of, name_of, normalised
from pipeline.codes import CosydError
from pipeline.planning.torch_build import TorchBuild
from pipeline.planning.torch_choice import WHEELS, build_suits

QUIET = ("--no-input", "--disable-pip-version-check")
NOT_SOURCES = (
    ".git",
    ".venv",
    ".cosyd",
    "build",
    "dist",
    "*.egg-info",
    "__pycache__",
    ".*_cache",
    ".hypothesis",
)
_REQUIREMENT = re.compile(r"cosyd\s*([=<>!~]=?.*)?")
TAIL = 12
"""Lines of pip's that are shown."""


def pip(python: Path, *words: str) -> None:
    """Run pip. Raises CosydError(internal, reason=update_pip) with the end of what it said."""
    done = subprocess.run(
        [str(python), "-m", "pip", *words, *QUIET], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise CosydError("internal", reason="update_pip", detail="\n  ".join(lines[-TAIL:]))


@contextmanager
def package(layout: Layout, python: Path, source: str) -> Iterator[Path]:
    """The wheel that `source` names, in a folder that goes afterwards. Raises CosydError."""
    folder = Path(tempfile.mkdtemp(prefix=".package-", dir=layout.venvs))
    try:
        path = Path(source)
        if path.is_file():
            if path.suffix != ".whl":
                raise not_a_source(source)
            shutil.copy(path, folder)
        elif path.is_dir() and (path / "pyproject.toml").is_file():
            # A copy: building leaves folders behind, and takes in those of an earlier build.
            shutil.copytree(path, folder / "src", ignore=shutil.ignore_patterns(*NOT_SOURCES))
            pip(python, "wheel", "--no-deps", "--wheel-dir", str(folder), str(folder / "src"))
        elif path.is_dir():
            pip(python, "download", "--no-deps", "--find-links", str(path), "--dest", str(folder), "cosyd")
        elif _REQUIREMENT.fullmatch(source):
            pip(python, "download", "--no-deps", "--dest", str(folder), source)
        else:
            raise not_a_source(source)
        wheels = list(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise not_a_source(source)
        yield wheels[0]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def not_a_source(source: str) -> CosydError:
    """What was named cannot be installed."""
    return CosydError("bad_value", field="SOURCE", reason="update_source", value=source)


def package_name(wheel: Path) -> str:
    """The environment's name for a wheel. Raises CosydError(bad_value)."""
    try:
        return name_of(wheel)
    except ValueError:
        raise not_a_source(wheel.name) from None


def installed_extras() -> tuple[str, ...]:
    """The extras of the environment that runs."""
    try:
        requires = metadata.requires("cosyd") or []
    except metadata.PackageNotFoundError:
        return ()
    names = {normalised(found.name): found.version for found in metadata.distributions() if found.name}
    return extras_of(requires, names)


def torch_words(facts: Facts, found: Fit, build: TorchBuild | None, version: str) -> tuple[str, ...]:
    """pip's words for torch: the version that is installed where it fits card and driver, else what would be
    chosen today; nothing where there is none for this machine."""
    choice = found.torch
    if choice.requirement is None:
        return ()
    fits = build is not None and version != ""
    if fits and choice.device == "cuda" and found.card is not None and build is not None:
        fits = build_suits(build.cuda, found.card, facts.driver.seen, facts.platform) is not False
    if not fits:
        return choice.pip_arguments
    label = version.partition("+")[2]  # 2.14.0+cu126 is in the index of that family only
    index = f"{WHEELS}/{label}" if label else choice.index
    return (f"torch=={version}", *(("--index-url", index) if index else ()))


def build(
    layout: Layout,
    wheel: Path,
    name: str,
    extras: Sequence[str],
    torch: Sequence[str],
    find_links: str | None,
) -> Path:
    """Make the environment `name`; one that was half made is made afresh. `torch` are pip's words for it, to
    be installed first. Raises CosydError: `internal(update_pip, update_venv)`."""
    venv = layout.venv(name)
    shutil.rmtree(venv, ignore_errors=True)
    base = os.path.realpath(sys.executable)  # the system's own python
    done = subprocess.run([base, "-m", "venv", str(venv)], capture_output=True, text=True)
    if done.returncode != 0:
        shutil.rmtree(venv, ignore_errors=True)
        raise CosydError("internal", reason="update_venv", detail=(done.stdout + done.stderr).strip()[-500:])
    python = layout.python(name)
    more = ("--find-links", find_links) if find_links else ()
    wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    try:
        if torch:
            pip(python, "install", *torch, *more)
        pip(python, "install", wanted, *more)
    except BaseException:
        shutil.rmtree(venv, ignore_errors=True)
        raise
    return venv


def finish(layout: Layout, name: str, about: Mapping[str, object]) -> None:
    """Say that the environment is whole and was tried. Its name counts from here on."""
    stamp = layout.venv(name) / STAMP
    part = stamp.with_name(f"{STAMP}.part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(dict(about), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(stamp)
    os.sync()  # thousands of files of pip's, none of them synced: the link must not survive them
