"""Where things lie below the state folder (CONTRACTS 5 and 6). Pure path arithmetic plus `ensure()`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ETC_CONFIG = Path("/etc/cosyd/cosyd.toml")


@dataclass(frozen=True, slots=True)
class StatePaths:
    """All paths of one instance. `root` is the state folder; `run` holds sockets and the lock."""

    root: Path
    run: Path

    @classmethod
    def at(cls, root: Path, environ: Mapping[str, str] = os.environ) -> StatePaths:
        """Paths for `root`; sockets go to `/run/cosyd` for the packaged service, else to `<root>/run`."""
        root = root.absolute()
        runtime = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
        return cls(root=root, run=Path(runtime) if runtime else root / "run")

    @property
    def database(self) -> Path:
        return self.root / "cosyd.db"

    @property
    def outputs(self) -> Path:
        return self.root / "outputs"

    @property
    def voices(self) -> Path:
        return self.root / "voices"

    @property
    def uploads(self) -> Path:
        """Recordings that were looked at and may become voices, for a day."""
        return self.root / "uploads"

    @property
    def backups(self) -> Path:
        return self.root / "backups"

    @property
    def tmp(self) -> Path:
        """Bounded scratch space: Gradio's cache, encodes, uploads. Emptied at start."""
        return self.root / "tmp"

    @property
    def control_socket(self) -> Path:
        return self.run / "control.sock"

    @property
    def instance_lock(self) -> Path:
        """flock here: one instance per state folder."""
        return self.root / "instance.lock"

    @property
    def restore_journal(self) -> Path:
        """While a restore changes places: what is still to be renamed (`pipeline.backup.moves`)."""
        return self.root / "restore.journal"

    @property
    def effective_config(self) -> Path:
        """The resolved configuration that the running supervisor gives to its children and the CLI."""
        return self.run / "effective.json"

    def job_dir(self, created_at: str, job_id: str) -> Path:
        """`outputs/YYYY-MM/JOB`, from the job's own `created_at`, so that every process finds the same."""
        return self.outputs / created_at[:7] / job_id

    def final_audio(self, created_at: str, job_id: str) -> Path:
        """`outputs/YYYY-MM/JOB.flac`, what stays when the job is done."""
        return self.outputs / created_at[:7] / f"{job_id}.flac"

    def ensure(self) -> None:
        """Make the folders, private to the user (0700; run is 0750 for the control socket's group)."""
        for folder in (self.root, self.outputs, self.voices, self.backups, self.tmp):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.run.mkdir(mode=0o750, parents=True, exist_ok=True)


def segment_pcm(job_dir: Path, idx: int) -> Path:
    """A finished segment: s16le, 24 kHz, mono."""
    return job_dir / f"{idx:04d}.pcm"


def segment_part(job_dir: Path, idx: int) -> Path:
    """A segment while it is made. A new take is a new file (another inode) under the same name."""
    return job_dir / f"{idx:04d}.part"


def default_state_root(
    environ: Mapping[str, str] = os.environ, etc: Path = ETC_CONFIG, cwd: Path | None = None
) -> Path:
    """CONTRACTS 6: COSYD_STATE_DIR, else /var/lib/cosyd when the appliance's config exists, else ./.cosyd."""
    if value := environ.get("COSYD_STATE_DIR"):
        return Path(value)
    if etc.exists():
        return Path("/var/lib/cosyd")
    return (cwd or Path.cwd()) / ".cosyd"
