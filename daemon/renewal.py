"""Planned restarts before anything is tight: a child that grows, or that is old, in a quiet minute. Pure.

`step` gives what to do about the children of one sample. A growing child is foretold (`Predicted`), asked to
give back what it can (`Soothe`), and renewed only if that did not help. Footprints are the least size in
each minute, so that the work in hand does not count. Called by `daemon.decide`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from daemon.creep import Point, growth, seconds_until
from daemon.levels import Level
from daemon.policy import PolicyState
from daemon.sample import OwnProcess, Resource, Sample
from pipeline.profile import Config

BUCKET_S = 60.0
SOOTHED_S = 2 * BUCKET_S
"""How long after a trim its effect is looked for: a whole minute must have passed."""
AGAIN_S = 600.0
"""The least time between two renewals: they are not urgent."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Memory will be LOW in `eta_s` if this child goes on growing."""

    name: str
    pid: int
    resource: Resource
    bytes_a_second: float
    eta_s: float
    size_bytes: int
    free_bytes: int
    line_bytes: int


@dataclass(frozen=True, slots=True)
class Soothe:
    """Ask it to give memory back."""

    name: str
    pid: int
    resource: Resource


@dataclass(frozen=True, slots=True)
class Renew:
    """Start it anew now. `reason` is `creep` or `age`."""

    name: str
    pid: int
    reason: str
    age_s: float
    size_bytes: int | None


Output = Predicted | Soothe | Renew


@dataclass(frozen=True, slots=True)
class Track:
    """What is known of one child. `least` is the smallest size in the minute that began at `bucket_at`."""

    pid: int
    bucket_at: float
    least: Mapping[Resource, int] = field(default_factory=lambda: MappingProxyType({}))
    points: Mapping[Resource, tuple[Point, ...]] = field(default_factory=lambda: MappingProxyType({}))
    soothed_at: float | None = None
    soothed_size: int = 0
    due: Resource | None = None


@dataclass(frozen=True, slots=True)
class RenewalState:
    """All that is remembered."""

    tracks: Mapping[str, Track] = field(default_factory=lambda: MappingProxyType({}))
    quiet_since: float | None = None
    renewed_at: float | None = None


def step(
    state: RenewalState, sample: Sample, policy: PolicyState, now: float, config: Config
) -> tuple[RenewalState, list[Output]]:
    """One tick. Unknown sizes and an unknown queue bring nothing about."""
    out: list[Output] = []
    quiet = sample.work == 0 and all(p.idle for p in sample.own)
    since = (state.quiet_since if state.quiet_since is not None else now) if quiet else None
    tracks: dict[str, Track] = {}
    for process in sample.own:
        if not process.ready:
            continue
        track = state.tracks.get(process.name)
        if track is None or track.pid != process.pid:
            track = Track(process.pid, now)
        tracks[process.name] = _look(track, process, sample, now, config, out)
    state = replace(state, tracks=MappingProxyType(tracks), quiet_since=since)
    if since is None or now - since < config.guard.quiet_s:
        return state, out
    if policy.level is not Level.OK or policy.in_flight is not None:
        return state, out
    if state.renewed_at is not None and now - state.renewed_at < AGAIN_S:
        return state, out
    if (found := _due(sample, tracks, config)) is not None:
        out.append(found)
        rest = {name: track for name, track in tracks.items() if name != found.name}
        state = replace(state, renewed_at=now, tracks=MappingProxyType(rest))
    return state, out


def _due(sample: Sample, tracks: Mapping[str, Track], config: Config) -> Renew | None:
    """Whose turn it is: who grows before who is old, the largest first."""
    ready = [p for p in sample.own if p.ready and not p.keep and p.name in tracks]
    growing = [p for p in ready if tracks[p.name].due is not None]
    old = [p for p in ready if p.age_s >= config.guard.age_max_s]
    for reason, found in (("creep", growing), ("age", old)):
        if found:
            process = max(found, key=lambda p: p.rss_bytes or 0)
            resource = tracks[process.name].due or "ram"
            return Renew(process.name, process.pid, reason, process.age_s, process.bytes_of(resource))
    return None


def _look(
    track: Track, process: OwnProcess, sample: Sample, now: float, config: Config, out: list[Output]
) -> Track:
    least = dict(track.least)
    resources: tuple[Resource, Resource] = ("ram", "vram")
    for resource in resources:
        size = process.bytes_of(resource)
        if size:
            least[resource] = min(size, least.get(resource, size))
    if now - track.bucket_at < BUCKET_S:
        return replace(track, least=MappingProxyType(least))
    oldest = now - config.guard.creep_window_s
    points = {
        resource: (*(p for p in track.points.get(resource, ()) if p[0] >= oldest), (now, size))
        for resource, size in least.items()
    }
    track = replace(track, bucket_at=now, least=MappingProxyType({}), points=MappingProxyType(points))
    if track.due is not None or process.keep:
        return track
    for resource in resources:
        track = _judge(track, process, resource, sample, now, config, out)
    return track


def _judge(
    track: Track, process: OwnProcess, resource: Resource, sample: Sample, now: float, config: Config,
    out: list[Output],
) -> Track:  # fmt: skip
    """A minute is over: does it grow, and did giving back help?"""
    points, free = track.points.get(resource, ()), sample.free_bytes(resource)
    rate = growth(points)
    if rate is None or free is None or track.due is not None:
        return track
    total = sample.ram.total_bytes if resource == "ram" and sample.ram else 0
    if resource == "vram" and sample.vram:
        total = sample.vram.total_bytes
    guard = config.guard.ram if resource == "ram" else config.guard.vram
    line = guard.low_enter.bytes_of(total)
    eta_s, size = seconds_until(free, line, rate), points[-1][1]
    if eta_s > config.guard.creep_horizon_s:
        return track
    if track.soothed_at is None:
        out.append(Predicted(process.name, process.pid, resource, rate, eta_s, size, free, line))
        out.append(Soothe(process.name, process.pid, resource))
        return replace(track, soothed_at=now, soothed_size=size)
    if now - track.soothed_at < SOOTHED_S:
        return track
    if track.soothed_size - size >= config.guard.trim_min_gain * max(1, track.soothed_size):
        # It helped: what was seen before says nothing about what comes.
        return replace(track, points=MappingProxyType({}), soothed_at=None)
    return replace(track, due=resource)
