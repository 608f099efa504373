"""The checks of `cosyd doctor`: functions from what was read to a verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.store.place import Mount

Verdict = Literal["ok", "warn", "fail"]
GIB, MIB = 1024**3, 1024**2
DISK_WARN_BYTES = 2 * GIB
RAM_WARN_BYTES = 2 * GIB
BACKUP_WARN_S = 3 * 86400.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line: `name` and `text` are keys of [doctor]; `cure` is one too, empty when nothing is to do. A key
    with a dot in it is one of the whole catalogue. `source` says where the values come from."""

    name: str
    verdict: Verdict
    text: str
    params: Mapping[str, Any] = field(default_factory=dict)
    cure: str = ""
    source: str = ""


def check_python(version: tuple[int, int, int]) -> Check:
    params = {"version": ".".join(map(str, version))}
    if version >= (3, 11, 0):
        return Check("python", "ok", "version", params)
    return Check("python", "fail", "version", params, "cure_python")


def check_program(name: str, path: str | None, version: str) -> Check:
    """espeak-ng or ffmpeg: missing ones take something away, but cosyd speaks without."""
    if path is not None:
        return Check(name, "ok", "version", {"version": version})
    return Check(name, "warn", f"missing_{name.replace('-', '_')}", {}, f"cure_{name.replace('-', '_')}")


def check_disk(free_bytes: int, min_free_bytes: int) -> Check:
    params = {"free": free_bytes}
    if free_bytes < min_free_bytes:
        return Check("disk", "fail", "free", params, "cure_disk")
    return Check("disk", "warn" if free_bytes < DISK_WARN_BYTES else "ok", "free", params,
                 "cure_disk" if free_bytes < DISK_WARN_BYTES else "")  # fmt: skip


def check_memory(total_bytes: int, available_bytes: int, low_bytes: int) -> Check:
    params = {"free": available_bytes, "total": total_bytes}
    if available_bytes < low_bytes:
        return Check("memory", "warn", "free_of", params, "cure_memory")
    if total_bytes < RAM_WARN_BYTES:
        return Check("memory", "warn", "free_of", params, "cure_memory_small")
    return Check("memory", "ok", "free_of", params)


def check_swap(
    total_bytes: int, used_bytes: int, ram_bytes: int, wanted_bytes: int, below_ram_bytes: int
) -> Check:
    params = {"used": used_bytes, "total": total_bytes}
    if ram_bytes < below_ram_bytes and total_bytes < wanted_bytes:
        return Check(
            "swap",
            "warn",
            "used_of" if total_bytes else "swap_none",
            {**params, "wanted": wanted_bytes},
            "cure_swap",
        )
    return Check("swap", "ok", "used_of" if total_bytes else "swap_none", params)


def check_port(port: int, *, free: bool, ours: bool, holder: str) -> Check:
    params = {"port": port, "holder": holder or "?"}
    if ours:
        return Check("port", "ok", "port_ours", params)
    return (
        Check("port", "ok", "port_free", params)
        if free
        else Check("port", "fail", "port_taken", params, "cure_port")
    )


def check_wyoming(port: int, *, free: bool, holder: str) -> Check:
    """Another port is found by itself, but whoever was told the first one does not hear of it."""
    params = {"port": port, "holder": holder or "?"}
    if free:
        return Check("wyoming", "ok", "port_free", params)
    return Check("wyoming", "warn", "wyoming_taken", params, "cure_wyoming")


def check_update(name: str | None) -> Check | None:
    """`name`: what is in use while an update stands half-way; None where none does."""
    return None if name is None else Check("update", "warn", "update_left", {"name": name}, "cure_update")


def check_database(state: str, detail: str = "") -> Check:
    """`state`: absent, ok, damaged, other_version, unreadable."""
    if state in ("ok", "absent"):
        return Check("database", "ok", f"database_{state}")
    return Check("database", "fail", f"database_{state}", {"detail": detail}, f"cure_database_{state}")


def check_place(folder: str, mount: Mount | None) -> Check:
    """Where the state folder lies: the database may not be on a network file system."""
    if mount is None:
        return Check("place", "ok", "place_unknown", {"folder": folder})
    params = {"folder": folder, "kind": mount.kind, "source": mount.source}
    if mount.network:
        return Check("place", "fail", "place_network", params, "cure_place")
    return Check("place", "ok", "place_local", params)


def check_service(status: Mapping[str, Any] | None, able: bool) -> Check:
    if status is None:
        return Check("service", "warn", "service_absent", {}, "cure_service_absent")
    if able:
        return Check("service", "ok", "service_running", {"pid": status.get("pid", "?")})
    return Check("service", "fail", "service_unable", {}, "cure_service_unable")


def check_outputs(used_bytes: int, max_bytes: int) -> Check:
    params = {"used": used_bytes, "total": max_bytes}
    return Check("outputs", "ok" if used_bytes <= max_bytes * 1.05 else "warn", "used_of", params,
                 "" if used_bytes <= max_bytes * 1.05 else "cure_outputs")  # fmt: skip


def check_backup(age_s: float | None, *, database: bool, database_age_s: float) -> Check:
    """No backup is fine in the first days; later it is told."""
    if age_s is None:
        late = database and database_age_s > BACKUP_WARN_S
        return Check("backup", "warn" if late else "ok", "backup_none", {}, "cure_backup" if late else "")
    late = age_s > BACKUP_WARN_S
    return Check(
        "backup", "warn" if late else "ok", "backup_age", {"age": age_s}, "cure_backup" if late else ""
    )


def check_config(problems: Sequence[object]) -> Check:
    """`problems` of `pipeline.profile.problems`; they stay data for `--json`."""
    if not problems:
        return Check("config", "ok", "config_ok")
    return Check("config", "fail", "config_wrong", {"problems": list(problems)}, "cure_config")


def worst(checks: list[Check]) -> Verdict:
    """fail before warn before ok."""
    verdicts = {check.verdict for check in checks}
    return "fail" if "fail" in verdicts else "warn" if "warn" in verdicts else "ok"
