"""The values that the queue takes and gives. Frozen, no database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from pipeline.jobs import JobRequest, JobState, Lane, SegmentState

MAX_ATTEMPTS = 3
"""Tries that a job has (CONTRACTS 3), and one more for each segment that was finished."""

ACTIVE = "state IN ('queued', 'running')"
"""SQL: the jobs that are not over. In these very words SQLite sees that the partial index serves."""

POISON_CRASHES = 2
"""Crashes on one and the same segment that make it poison."""


@dataclass(frozen=True, slots=True)
class Job:
    """A row of `jobs`. Times are the row's UTC texts. `request` is None once the job is over."""

    id: str
    created_at: str
    state: JobState
    engine: str
    lane: Lane
    source: str
    client: str
    owner: str
    priority: int
    request: JobRequest | None
    attempt: int
    not_before: str | None
    deadline_at: str | None
    cancel_requested_at: str | None
    lease_owner: str | None
    lease_until: str | None
    wait_reason: str | None
    updated_at: str
    error_code: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that is ours for as long as `token` is in its row."""

    job: Job
    token: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A queued job that may be claimed now. `client_key` is who takes turns in round robin."""

    job_id: str
    lane: Lane
    source: str
    client: str
    priority: int
    created_at: str

    @property
    def client_key(self) -> str:
        """Clients of different doors are different, even when both give no name."""
        return f"{self.source}:{self.client}"


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A row of `segments`. `attempt` counts the crashes on it; `samples` is 0 until it is done."""

    job_id: str
    idx: int
    start: int
    end: int
    text: str
    state: SegmentState
    seed: int
    attempt: int
    samples: int
    error_code: str | None


class PlannedSegment(Protocol):
    """What `plan_segments` takes; `pipeline.engines.base.Segment` is one, and so is `Planned`."""

    @property
    def idx(self) -> int: ...

    @property
    def text(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Planned:
    """A piece of the text: characters `start`..`end` of it."""

    idx: int
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EngineQueue:
    """What waits for one engine. `oldest_age_s` is of the queued ones, None when there is none; `seconds`
    is the speech still to be made, running jobs included."""

    queued: int
    running: int
    oldest_age_s: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Position:
    """How many jobs go before, and the seconds that they are expected to take."""

    ahead: int
    seconds_ahead: float


@dataclass(frozen=True, slots=True)
class Requeued:
    """What became of a job whose worker is gone: back in the queue, or ended (`failed`) with `code`.

    `poison`: the same segment killed two workers; the restart budget is not to be charged. `attempt` is the
    number of the try that comes next, or that was the last.
    """

    job_id: str
    engine: str
    attempt: int
    failed: bool = False
    poison: bool = False
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended and what only the worker knows of it. Times, retries and rtf are computed.

    `audio_path` is relative to the state folder. `language` is the one found when "auto" was asked for.
    `first_audio_at` (wall seconds) and `synthesis_seconds` override what `finish_segment` was told.
    """

    status: Literal["done", "failed", "cancelled"]
    error_code: str | None = None
    error: str | None = None
    audio_path: str | None = None
    audio_format: str | None = None
    audio_seconds: float | None = None
    language: str | None = None
    model: str = ""
    device: str = ""
    dtype: str = ""
    profile: str = ""
    first_audio_at: float | None = None
    synthesis_seconds: float | None = None
    peak_rss_bytes: int | None = None
    peak_vram_bytes: int | None = None
    stand_in: bool = False
    degraded: bool = False
    retakes: int = 0
