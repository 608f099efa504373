"""Tries an environment before it is used: it imports, it takes a copy of the database, it speaks. Shell.

All of it as the service's user, in a folder of its own, without a sound device and without the running
service noticing.
"""

from __future__ import annotations

import array
import os
import shutil
import subprocess
import tempfile
import wave
from contextlib import closing
from pathlib import Path

from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store.backup import copy_database
from pipeline.store.db import connect

SENTENCE = "This is the new version. It can speak."
IMPORTS = """
import daemon.supervisor, daemon.cli.main, pipeline.worker, pipeline.maintenance, ui.app, ui.server
from importlib.util import find_spec
if find_spec("torch"):
    import torch, pipeline.engines.cosyvoice3.engine
"""
"""Of torch too where it is installed: a build that this machine cannot load is found here."""
STEP_S = 300.0
LEAST_S, LEAST_PEAK = 0.5, 1000
TAIL = 12


def try_out(venv: Path, paths: StatePaths) -> None:
    """Raise CosydError(internal, reason=update_trial_...) when the environment is not fit to be used."""
    owner = paths.root.stat()
    base = paths.tmp if paths.tmp.is_dir() else paths.root
    folder = Path(tempfile.mkdtemp(prefix="update-", dir=base))
    try:
        trial = _Trial(venv, folder, (owner.st_uid, owner.st_gid))
        trial.own(folder)
        trial.run("imports", "-c", IMPORTS)
        _database(trial, paths)
        _speech(trial)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Trial:
    """Commands of an environment, run as somebody in a folder."""

    def __init__(self, venv: Path, folder: Path, owner: tuple[int, int]) -> None:
        self.venv, self.folder, self.owner = venv, folder, owner

    def own(self, *paths: Path) -> None:
        """Give files to the service's user."""
        if os.geteuid() == 0:
            for path in paths:
                os.chown(path, *self.owner)

    def run(self, step: str, *words: str) -> None:
        """`python WORDS`. Raises CosydError with the end of what it said."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("COSYD_", "NOTIFY_", "XDG_"))}
        environ = {**kept, "HOME": str(self.folder), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        as_owner = {"user": self.owner[0], "group": self.owner[1], "extra_groups": []}
        try:
            done = subprocess.run(
                [str(self.venv / "bin/python"), *words],
                cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=STEP_S, **(as_owner if os.geteuid() == 0 else {}),  # type: ignore[call-overload]
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise failed(step, f"no end after {STEP_S:.0f} s") from None
        except OSError as error:
            raise failed(step, str(error)) from None
        if done.returncode != 0:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise failed(step, "\n  ".join(lines[-TAIL:]) or f"exit status {done.returncode}")


def _database(trial: _Trial, paths: StatePaths) -> None:
    """Its migrations on a copy of the real database."""
    if not paths.database.exists():
        return
    state = trial.folder / "database"
    state.mkdir(mode=0o700)
    with closing(connect(paths.database, "work")) as conn:
        copy_database(conn, state / paths.database.name)
    trial.own(state, state / paths.database.name)
    trial.run("migration", "-m", "pipeline.store.migrate", "--state", str(state))


def _speech(trial: _Trial) -> None:
    """One sentence into a file, in a state folder of its own: nothing of the real queue is spoken."""
    said = trial.folder / "said.wav"
    state = trial.folder / "speech"
    words = ("say", SENTENCE, "--voice", "heart", "-o", str(said), "--state", str(state))
    trial.run("speech", "-m", "daemon.cli.main", *words)
    try:
        with wave.open(str(said)) as sound:
            frames = array.array("h", sound.readframes(sound.getnframes()))
            seconds = sound.getnframes() / sound.getframerate()
    except (OSError, EOFError, wave.Error) as error:
        raise failed("speech", str(error)) from None
    if seconds < LEAST_S or max(map(abs, frames), default=0) < LEAST_PEAK:
        raise failed("speech", f"{seconds:.1f} s of silence")


def failed(step: str, detail: str) -> CosydError:
    """Which step, and the end of what was said."""
    return CosydError("internal", reason="update_trial", step=step, detail=detail)
