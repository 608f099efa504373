"""The whole configuration as frozen values, with defaults from CONTRACTS 6.

Nothing here reads files: `pipeline.profile.load` builds a Config from layers. Field metadata says how a
value is parsed and bounded, so that one loader serves all keys. Every timeout of the product is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pipeline.profile.values import Threshold, parse_duration, parse_hours, parse_size, parse_threshold

MIB = 1024**2
GIB = 1024**3


def _key(
    default: Any,
    *,
    parse: Callable[[object], Any] | None = None,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
    runtime: bool = False,
) -> Any:
    """A configuration key. `runtime` keys may also be set in the `settings` table, without a restart."""
    meta = {"parse": parse, "low": low, "high": high, "choices": choices, "runtime": runtime}
    return field(default=default, metadata=meta)


def _seconds(default: float, *, low: float = 0.0, runtime: bool = False) -> Any:
    return _key(default, parse=parse_duration, low=low, runtime=runtime)


def _bytes(default: int, *, runtime: bool = False) -> Any:
    return _key(default, parse=parse_size, runtime=runtime)


@dataclass(frozen=True, slots=True)
class RamGuard:
    """When free RAM is called LOW or CRITICAL. Percent of the smaller of MemTotal and the cgroup limit."""

    low_enter: Threshold = _key(Threshold(0.10, 384 * MIB), parse=parse_threshold)
    critical_enter: Threshold = _key(Threshold(0.04, 160 * MIB), parse=parse_threshold)
    exit_factor: float = _key(1.5, low=1.0, high=10)
    low_hold_s: float = _seconds(5.0)
    critical_hold_s: float = _seconds(0.0)


@dataclass(frozen=True, slots=True)
class VramGuard:
    """The same for VRAM, percent of the card."""

    low_enter: Threshold = _key(Threshold(0.08, 256 * MIB), parse=parse_threshold)
    critical_enter: Threshold = _key(Threshold(0.0, 96 * MIB), parse=parse_threshold)
    exit_factor: float = _key(1.5, low=1.0, high=10)
    low_hold_s: float = _seconds(5.0)
    critical_hold_s: float = _seconds(0.0)


@dataclass(frozen=True, slots=True)
class Settle:
    """How long an action is given before its effect is judged."""

    trim_s: float = _seconds(3.0)
    unload_s: float = _seconds(5.0)
    drain_s: float = _seconds(10.0)
    kill_s: float = _seconds(2.0)


@dataclass(frozen=True, slots=True)
class Guard:
    """The memory guard. A child is renewed in a quiet minute (`quiet_s` without work) when it is older than
    `age_max_s`, or when its growth over `creep_window_s` would make memory LOW within `creep_horizon_s`.
    The card has `gpu_deadline_s` to answer, is asked again `gpu_retry_s` after trouble, and each `gpu_idle_s`
    while no worker of ours uses it. `trace_samples`: so many of the last looks are kept for a bug report."""

    cadence_s: float = _seconds(1.0, low=0.05)
    cadence_low_s: float = _seconds(0.25, low=0.05)
    ram: RamGuard = field(default_factory=RamGuard)
    vram: VramGuard = field(default_factory=VramGuard)
    settle: Settle = field(default_factory=Settle)
    trim_min_gain: float = _key(0.05, low=0, high=1)
    own_share_min: float = _key(0.25, low=0, high=1)
    sample_every_s: float = _seconds(10.0, low=0.05)
    quiet_s: float = _seconds(60.0)
    age_max_s: float = _seconds(7 * 86400.0, low=60)
    creep_window_s: float = _seconds(3600.0, low=60)
    creep_horizon_s: float = _seconds(3 * 3600.0)
    gpu_deadline_s: float = _seconds(3.0, low=0.1)
    gpu_retry_s: float = _seconds(30.0, low=0.1)
    gpu_idle_s: float = _seconds(60.0, low=0.1)
    trace_samples: int = _key(1800, low=0, high=100_000)


@dataclass(frozen=True, slots=True)
class Lean:
    """When an engine that ran out of memory comes back leaner, and when it may have all of it again."""

    after: int = _key(2, low=1, high=100)
    window_s: float = _seconds(600.0)
    restore_s: float = _seconds(1800.0, low=1)
    restore_max_s: float = _seconds(86400.0, low=1)


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart budget of one child: `budget` starts in `window_s`, then FAILED."""

    budget: int = _key(5, low=1, high=1000)
    window_s: float = _seconds(600.0)
    backoff_initial_s: float = _seconds(1.0)
    backoff_max_s: float = _seconds(60.0)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long things may take before they are ended with `deadline`."""

    queue_s: float = _seconds(600.0)
    first_audio_s: float = _seconds(60.0)
    segment_base_s: float = _seconds(30.0)
    segment_per_audio_s: float = _key(20.0, low=0)
    start_s: float = _seconds(60.0, low=1)
    stop_grace_s: float = _seconds(10.0)
    heartbeat_lost_s: float = _seconds(20.0, low=1)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Retention of recordings. `ai_tag`: files that leave say that they are AI-generated, and by which
    generation."""

    max_bytes: int = _bytes(10_000_000_000, runtime=True)
    max_age_s: float = _seconds(math.inf, runtime=True)
    ai_tag: bool = _key(True, runtime=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """What is accepted."""

    text_chars: int = _key(16_384, low=1, high=10_000_000, runtime=True)
    long_text_chars: int = _key(200_000, low=1, high=10_000_000, runtime=True)
    interactive_chars: int = _key(300, low=1)
    min_free_bytes: int = _bytes(256 * MIB)
    short_requests_min: int = _key(64, low=0)
    accept_wait_s: float = _seconds(30.0)
    upload_bytes: int = _bytes(50_000_000)
    tmp_bytes: int = _bytes(500_000_000)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each kind of client waits for its first sound, and what happens then (CONTRACTS 3)."""

    wyoming_s: float = _seconds(2.0, runtime=True)
    openai_s: float = _seconds(60.0, runtime=True)
    page_s: float = _seconds(math.inf)
    batch_s: float = _seconds(math.inf)
    disconnect_s: float = _seconds(10.0)


@dataclass(frozen=True, slots=True)
class Web:
    """The page and the API. `hosts` are further names that may stand in the Host header.

    `auth` off is for a loopback bind only; beyond it the start is refused (`unsafe_bind`).
    """

    host: str = _key("127.0.0.1")
    auth: bool = _key(True)
    port: int = _key(7860, low=0, high=65535)
    hosts: tuple[str, ...] = _key(())
    root_path: str = _key("")
    default_voice: str = _key("heart", runtime=True)


@dataclass(frozen=True, slots=True)
class Wyoming:
    """Home Assistant's door."""

    port: int = _key(10200, low=0, high=65535)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Periodic maintenance. Times of day are local."""

    backup_at: str = _key("03:17")
    backups_kept: int = _key(7, low=1, high=1000)
    retention_every_s: float = _seconds(3600.0, low=1)
    checkpoint_every_s: float = _seconds(300.0, low=1)
    expire_every_s: float = _seconds(5.0, low=0.1)


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines beyond the shipped ones: name -> `package.module:Class`. A voice of that name selects it."""

    extra: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), metadata={"mapping": True})


@dataclass(frozen=True, slots=True)
class Cosyvoice:
    """CosyVoice 3. `flow_steps`: fewer are quicker and rougher (6 take 0.6 of the flow's time). `reinforced`:
    speak with `llm.rl.pt`, which `cosyd model fetch --rl` brings, in place of `llm.pt`."""

    flow_steps: int = _key(10, low=2, high=50)
    reinforced: bool = _key(False)


@dataclass(frozen=True, slots=True)
class Asr:
    """Writing down what is said (extra `asr`). `model`: a folder with a Whisper model for faster-whisper, ""
    is `models/whisper` in the state folder."""

    model: str = _key("")


@dataclass(frozen=True, slots=True)
class Config:
    """Everything. The first block comes from the hardware profile (DESIGN 6).

    `take_check`: `speech` judges each segment as speech of its text, `signal` refuses only silence and noise,
    `words` writes each segment down as well and compares where `asr` has a model for the language.
    """

    profile: str = _key("cpu")
    weights: str = _key("int8", choices=("int8", "bf16", "mixed", "fp32"))
    longest_segment_s: float = _seconds(25.0, low=1, runtime=True)
    reference_audio_max_s: float = _seconds(10.0, low=1)
    batch_segments: int = _key(2, low=1, high=64)
    queue_max_s: float = _seconds(300.0, low=1, runtime=True)
    keep_alive: float = _seconds(900.0, runtime=True)
    keep_warm: tuple[str, ...] = _key((), parse=parse_hours, runtime=True)
    swap_below_ram_bytes: int = _bytes(16 * GIB)
    swap_bytes: int = _bytes(8 * GIB)

    gpu: str = _key("auto")
    take_check: str = _key("speech", choices=("speech", "signal", "words"))
    timeout_factor: float = _key(1.0, low=0.1, high=100)
    lease_s: float = _seconds(15.0, low=0.5)
    heartbeat_s: float = _seconds(1.0, low=0.05)
    guard: Guard = field(default_factory=Guard)
    lean: Lean = field(default_factory=Lean)
    restart: Restart = field(default_factory=Restart)
    deadlines: Deadlines = field(default_factory=Deadlines)
    outputs: Outputs = field(default_factory=Outputs)
    limits: Limits = field(default_factory=Limits)
    patience: Patience = field(default_factory=Patience)
    web: Web = field(default_factory=Web)
    wyoming: Wyoming = field(default_factory=Wyoming)
    schedule: Schedule = field(default_factory=Schedule)
    engines: Engines = field(default_factory=Engines)
    cosyvoice: Cosyvoice = field(default_factory=Cosyvoice)
    asr: Asr = field(default_factory=Asr)
