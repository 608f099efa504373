"""`cosyd support-bundle`: one zip that helps to find a fault. What goes in is listed here and in its README;
what may be in a value is `scrub`'s business. Reads the database, asks the running service, changes nothing.
"""

from __future__ import annotations

import csv
import io
import json
import platform
import sqlite3
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from daemon.cli import control, hardware, scrub
from daemon.cli.doctor import examine
from daemon.cli.frame import Command, Option, note, state_option, text
from daemon.cli.layers import resolve_all
from daemon.cli.policy import running_trace
from daemon.ram_reader import RamReader
from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.planning.torch_build import installed_build
from pipeline.profile import to_json
from pipeline.profile.load import flatten
from pipeline.store.db import SCHEMA_VERSION, connect

EVENTS = 1000
DAY_S = 86400.0
READ_S = 5.0
PACKAGES = ("cosyd", "gradio", "onnxruntime", "nvidia-ml-py", "hibari-tts", "torch", "psutil", "wyoming")
EVENT_COLUMNS = ("level", "resource", "code", "ram_available_bytes", "vram_free_bytes", "freed_bytes")
SAMPLE_COLUMNS = (
    "at", "ram_available_bytes", "swap_used_bytes", "worker_rss_bytes", "web_rss_bytes", "vram_used_bytes",
    "gpu_util_ratio", "gpu_temp_c", "power_w",
)  # fmt: skip


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def versions(paths: StatePaths) -> str:
    """Software and hardware; not the name of the machine."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    build = installed_build()
    seen, ram = hardware.probe(), RamReader().read()
    release = _os_release()
    return _dump(
        {
            "packages": found,
            "torch_cuda": build.cuda if build else None,
            "python": platform.python_version(),
            "system": {"id": release.get("ID"), "version": release.get("VERSION_ID")},
            "kernel": platform.release(),
            "machine": platform.machine(),
            "cards": [{"name": card.name, "total_bytes": card.total_bytes} for card in seen.cards],
            "driver": {"kernel": seen.kernel, "library": seen.library, "error": seen.error},
            "ram": scrub.scrub({"available_bytes": ram.available_bytes, "total_bytes": ram.total_bytes})
            if ram
            else None,
            "schema": SCHEMA_VERSION,
        }
    )


def _os_release(path: Path = Path("/etc/os-release")) -> dict[str, str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return {}
    return {k: v.strip('"') for k, _, v in (line.partition("=") for line in lines)}


def configuration(paths: StatePaths) -> str:
    """Numbers, and whether a value is the default's, the profile's or the person's."""
    resolved = resolve_all(paths)
    values = flatten(json.loads(to_json(resolved.config)))
    shown: dict[str, Any] = {}
    for key, value in sorted(values.items()):
        origin = resolved.origin.get(key, "default").partition(" ")[0]
        kept = scrub.setting(key, value)
        if kept is None:
            kept = "set" if origin not in ("default", "profile") else "default"
        shown[key] = {"value": kept, "own": origin not in ("default", "profile")}
    return _dump(shown)


def status(paths: StatePaths) -> str:
    """How it is now; `null` when it does not run."""
    found = control.status(paths)
    return _dump(scrub.state(found) if found is not None else None)


def events(paths: StatePaths) -> str:
    """A line each, the oldest first."""
    lines: list[str] = []
    for row in _rows(paths, "SELECT * FROM events ORDER BY id DESC LIMIT ?", EVENTS):
        try:
            params = json.loads(row["params"] or "{}")
        except ValueError:
            params = {}
        columns = {key: row[key] for key in EVENT_COLUMNS}
        lines.append(
            json.dumps(
                {"at": row["at"], "kind": row["kind"], **scrub.scrub(columns), "params": scrub.scrub(params)}
            )
        )
    return "\n".join([*reversed(lines), ""])


def samples(paths: StatePaths) -> str:
    """A row each ten seconds, as CSV."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(SAMPLE_COLUMNS)
    since = utc_text(time.time() - DAY_S)
    query = f"SELECT {', '.join(SAMPLE_COLUMNS)} FROM samples WHERE at >= ? ORDER BY at"
    for row in _rows(paths, query, since):
        writer.writerow(tuple(row))
    return out.getvalue()


def trace(paths: StatePaths) -> str:
    """What the guard of the running service saw last; empty when none runs."""
    found = running_trace(paths) or ""
    return "\n".join(scrub.trace_line(line) for line in found.splitlines())


def counts(paths: StatePaths) -> str:
    """How many jobs and recordings of each kind, and how long they took."""
    jobs = _rows(
        paths, "SELECT state, engine, lane, wait_reason, COUNT(*) AS n FROM jobs GROUP BY 1, 2, 3, 4"
    )
    made = _rows(
        paths,
        "SELECT status, engine, error_code, stand_in, degraded, COUNT(*) AS n, AVG(rtf) AS rtf,"
        " AVG(first_audio_seconds) AS first_audio_s, AVG(queue_seconds) AS queue_s, SUM(retries) AS retries"
        " FROM generations GROUP BY 1, 2, 3, 4, 5",
    )

    kinds = {"engine": "engine", "wait_reason": "wait_reason", "error_code": "code"}

    def plain(row: sqlite3.Row) -> dict[str, Any]:
        return {
            key: scrub.word_of(kinds[key], value) if key in kinds and isinstance(value, str) else value
            for key, value in dict(row).items()
        }

    return _dump({"jobs": [plain(row) for row in jobs], "recordings": [plain(row) for row in made]})


def doctor(paths: StatePaths) -> str:
    """Names of the checks and their results, without the details."""
    return _dump([{"name": c.name, "verdict": c.verdict, "text": c.text} for c in examine(paths)])


PARTS: dict[str, tuple[str, Callable[[StatePaths], str]]] = {
    "versions.json": ("bundle_versions", versions),
    "configuration.json": ("bundle_configuration", configuration),
    "status.json": ("bundle_status", status),
    "events.jsonl": ("bundle_events", events),
    "samples.csv": ("bundle_samples", samples),
    "trace.jsonl": ("bundle_trace", trace),
    "counts.json": ("bundle_counts", counts),
    "doctor.json": ("bundle_doctor", doctor),
}
"""File -> what it is (a key of [cli]) and how it is made."""


def _rows(paths: StatePaths, query: str, *values: Any) -> list[sqlite3.Row]:
    if not paths.database.exists():
        return []
    conn = connect(paths.database, "read", busy_s=READ_S)
    try:
        return conn.execute(query, values).fetchall()
    finally:
        conn.close()


def listing() -> Iterator[str]:
    """What is in it and what is not, for people."""
    for name, (key, _) in PARTS.items():
        yield f"  {name:<20}{text(key)}"
    yield text("bundle_none_of")


def write_bundle(paths: StatePaths, file: Path) -> None:
    """Make the zip, for its owner only. A part that cannot be made says so in its place: a bundle is asked
    for when something is broken."""
    part = file.with_name(file.name + ".part")
    part.touch(mode=0o600)
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("README.txt", "\n".join([*listing(), ""]))
        for name, (_, make) in PARTS.items():
            try:
                content = make(paths)
            except CosydError as error:
                content = _dump({"not_made": error.code})
            except Exception as error:  # its message may hold anything: the kind alone is told
                content = _dump({"not_made": type(error).__name__})
            bundle.writestr(name, content)
    part.replace(file)


@click.command(
    "support-bundle",
    cls=Command,
    help_key="help_support_bundle",
    example="cosyd support-bundle -o bundle.zip",
)
@click.option(
    "-o", "--output", cls=Option, type=click.Path(dir_okay=False, path_type=Path), help="opt_bundle_output"
)
@state_option
def support_bundle(output: Path | None, paths: StatePaths) -> None:
    """Pack what helps to find a fault."""
    file = output or Path(f"cosyd-support-{time.strftime('%Y%m%d-%H%M%S')}.zip")
    try:
        write_bundle(paths, file)
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None
    note("bundle_written", file=file, size=file.stat().st_size)
    for line in listing():
        click.echo(line, err=True)
    click.echo(str(file), file=sys.stdout)
