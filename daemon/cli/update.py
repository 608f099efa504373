"""`cosyd update`: the installed programs renewed, tried before they are used, and taken back by themselves
when they do not work. The work is in `daemon.update`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from daemon.cli.appliance import Appliance
from daemon.cli.doctor import chosen_class, folder_bytes, machine
from daemon.cli.frame import Command, json_option, note, print_json, state_option
from daemon.cli.layers import resolve_all
from daemon.hardware.fit import fit
from daemon.update import switch
from daemon.update.build import build, finish, installed_extras, package, package_name, torch_words
from daemon.update.layout import Layout
from daemon.update.trial import try_out
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.planning.torch_build import installed_build
from pipeline.store.migrate import locked, os_storage_error

MARGIN_BYTES = 512 * 1024**2
SWITCH_UNIT = "cosyd-update"
RECOVER_S = 900


@click.command(cls=Command, help_key="help_update", example="cosyd update")
@click.argument("source", metavar="[SOURCE]", default="cosyd")
@state_option
@json_option
def update(source: str, paths: StatePaths, as_json: bool) -> None:
    """Renew the installed programs."""
    layout = place(Path(sys.prefix))
    if os.geteuid() != 0:
        raise CosydError("unauthorized", reason="root")
    os.umask(0o022)  # the service's user reads what is made here
    try:
        with locked(layout.venvs / "update.lock", 0.0):
            if switch.recover(layout, Appliance.of(paths), time.time()) is not None:
                note("update_recovered", name=layout.current())
            old, new = renew(layout, paths, source)
    except CosydError as error:
        if error.code == "storage_busy":
            raise CosydError("storage_busy", reason="update_running") from None
        raise
    except OSError as error:
        raise os_storage_error(error) from error
    if as_json:
        print_json({"from": old, "to": new, "changed": old != new})
    else:
        note("update_done" if old != new else "update_same", old=old, new=new)


def place(prefix: Path) -> Layout:
    """The layout that is to be updated. Raises CosydError(bad_value) with what to do where it is another."""
    found = Layout.around(prefix)
    if found is not None:
        return found
    folder = prefix.resolve().parent
    checkout = (folder / "pyproject.toml").exists() and (folder / "install.sh").exists()
    reason = "update_checkout" if checkout else "update_layout"
    raise CosydError("bad_value", field="", reason=reason, folder=str(folder if checkout else prefix))


def renew(layout: Layout, paths: StatePaths, source: str) -> tuple[str, str]:
    """Build, try, change over: the names of the environment before and after. Raises CosydError; then the old
    one is in use."""
    old = layout.current()
    assert old is not None  # `place` saw it
    note("update_getting", source=source)
    with package(layout, layout.python(old), source) as wheel:
        new = package_name(wheel)
        if new == old:
            return old, old
        if not layout.complete(new):
            check_room(layout, paths, old)
            extras = installed_extras()
            note("update_building", name=new)
            folder = Path(source)
            links = source if folder.is_dir() and not (folder / "pyproject.toml").exists() else None
            torch = wanted_torch(paths) if "cosyvoice" in extras else ()
            build(layout, wheel, new, extras, torch, links)
    note("update_trying")
    try:
        try_out(layout.venv(new), paths)
    except CosydError:
        if not layout.complete(new):
            shutil.rmtree(layout.venv(new), ignore_errors=True)
        raise
    finish(layout, new, {"name": new, "source": source, "made_at": time.time()})
    change(layout, paths, old, new)
    return old, new


def check_room(layout: Layout, paths: StatePaths, old: str) -> None:
    """Room for an environment like the old one, and for copies of the database. Raises
    CosydError(storage_full)."""
    needed = folder_bytes(layout.venv(old)) + MARGIN_BYTES
    free = shutil.disk_usage(layout.home).free
    if free < needed:
        raise CosydError("storage_full", reason="no_room", needed=needed, free=free, folder=str(layout.home))
    if paths.database.exists():
        needed = 3 * paths.database.stat().st_size
        free = shutil.disk_usage(paths.root).free
        if free < needed:
            folder = str(paths.root)
            raise CosydError("storage_full", reason="no_room", needed=needed, free=free, folder=folder)


def wanted_torch(paths: StatePaths) -> tuple[str, ...]:
    """pip's words for torch on this machine."""
    try:
        resolved = resolve_all(paths)
        name, card, layer = chosen_class(resolved.config, resolved.origin)
    except CosydError:
        name, card, layer = None, "auto", None
    facts = machine(paths)
    found = fit(facts, gpu=card, configured=name, origin=layer)
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = ""
    return torch_words(facts, found, installed_build(), version)


def change(layout: Layout, paths: StatePaths, old: str, new: str) -> None:
    """The change-over: with systemd in a unit of its own, so that it ends well whatever happens to this
    terminal. Raises CosydError(internal, update_back) when the old environment is in use again."""
    service = Appliance.of(paths)
    plan = switch.Plan(
        str(paths.root), old, new, was_active=service is not None and service.active(), schema=0
    )
    note("update_switching" if plan.was_active else "update_linking")
    if service is None or shutil.which("systemd-run") is None:
        switch.change_over(layout, plan, service, time.time())
        return
    switch.write_plan(layout, plan)
    told = in_a_unit(layout, old)
    if layout.current() != new:
        raise told or CosydError("internal", reason="update_back", old=old, new=new)


def in_a_unit(layout: Layout, old: str) -> CosydError | None:
    """Run the change-over as `cosyd-update.service`; what it reported."""
    program = [str(layout.python(old)), "-P", "-m", "daemon.update.switch", str(layout.home)]
    done = subprocess.run(
        [
            *("systemd-run", f"--unit={SWITCH_UNIT}", "--collect", "--quiet", "--wait", "--pipe"),
            f"--property=ExecStopPost={' '.join(program)} --recover",
            f"--property=TimeoutStopSec={RECOVER_S}",
            *program,
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    lines: list[str] = done.stdout.strip().splitlines()
    try:
        report: dict[str, Any] = json.loads(lines[-1])
        return CosydError(report["code"], **report["params"])
    except (IndexError, ValueError, KeyError, TypeError):
        if done.returncode == 0:
            return None
        return CosydError("internal", reason="systemctl", detail=done.stderr.strip()[-300:])
