"""`cosyd update`: names, extras and torch as values; the change-over with a service that obeys or does not,
killed at any step; real environments are in tests/system/test_update.py."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from daemon.cli import update
from daemon.hardware.facts import Driver, Facts, Gpu
from daemon.hardware.fit import fit
from daemon.update import build, switch, trial
from daemon.update.layout import STAMP, Layout, extras_of, name_of, prunable
from daemon.update.switch import Plan, change_over, read_plan, recover, write_plan
from pipeline.codes import CosydError
from pipeline.messages import error_text
from pipeline.paths import StatePaths
from pipeline.planning.torch_build import TorchBuild
from pipeline.store.schema import SCHEMA_VERSION
from tests.unit.killkit import KILL_AT
from tests.unit.storekit import NOW, new_state, opened, submit
from tests.unit.test_cli import cosyd

GIB = 1024**3


def made_layout(home: Path, *names: str) -> Layout:
    """Environments that are nothing but a program's name; the first is in use."""
    layout = Layout(home)
    for name in names:
        (layout.venv(name) / "bin").mkdir(parents=True)
        (layout.venv(name) / "bin/cosyd").touch()
        (layout.venv(name) / STAMP).write_text("{}")
    layout.point_to(names[0])
    return layout


# -- values ----------------------------------------------------------------------------------------


def wheel(path: Path, content: Mapping[str, str], date: tuple[int, ...] = (2026, 1, 1, 0, 0, 0)) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name, text in content.items():
            made.writestr(zipfile.ZipInfo(name, date), text)  # type: ignore[arg-type]
    return path


def test_a_name_is_the_version_and_what_is_in_the_package(tmp_path: Path) -> None:
    first = name_of(wheel(tmp_path / "cosyd-0.2.0-py3-none-any.whl", {"a.py": "1", "b.py": "2"}))
    (tmp_path / "later").mkdir()
    later = tmp_path / "later/cosyd-0.2.0-py3-none-any.whl"
    assert first.startswith("0.2.0-") and len(first) == 14
    assert name_of(wheel(later, {"b.py": "2", "a.py": "1"}, (2027, 1, 1, 0, 0, 0))) == first
    assert name_of(wheel(later, {"a.py": "1", "b.py": "3"})) != first
    for odd in ("other-1-py3-none-any.whl", "cosyd.whl", "cosyd-1.tar.gz"):
        with pytest.raises(ValueError):
            name_of(wheel(tmp_path / odd, {"a.py": "1"}))
    (tmp_path / "cosyd-1-py3-none-any.whl").write_bytes(b"no zip")
    with pytest.raises(CosydError):
        build.package_name(tmp_path / "cosyd-1-py3-none-any.whl")


def test_the_extras_are_those_of_which_all_is_installed() -> None:
    requires = [
        "gradio<7,>=6", 'systemd-python>=235; extra == "systemd"', "torch>=2.4; extra == 'cosyvoice'",
        'Faster_Whisper>=1.1 ; extra == "asr"', 'tokenizers>=0.19; extra == "cosyvoice"',
        'pytest>=8; extra == "dev"',
    ]  # fmt: skip
    have = {"gradio": "6", "systemd-python": "235", "torch": "2.14", "faster-whisper": "1", "pytest": "8"}
    assert extras_of(requires, have) == ("systemd", "asr")
    assert extras_of(requires, {**have, "tokenizers": "1"}) == ("systemd", "cosyvoice", "asr")
    assert extras_of([], have) == ()


def test_only_the_one_in_use_and_the_one_before_stay() -> None:
    assert prunable(["a", "b", "c", ".package-x", "d"], keep=("b", "d")) == ["a", "c"]


def test_a_name_leads_nowhere_else(tmp_path: Path) -> None:
    layout = made_layout(tmp_path, "0.1.0")
    for name in ("../x", "a/b", "", ".", "/etc"):
        with pytest.raises(ValueError):
            layout.venv(name)
    with pytest.raises(FileNotFoundError):
        layout.point_to("0.2.0")
    assert layout.current() == "0.1.0"


def test_the_layout_is_known_by_its_link(tmp_path: Path) -> None:
    layout = made_layout(tmp_path / "opt", "0.1.0")
    assert Layout.around(layout.link) == Layout.around(layout.venv("0.1.0")) == layout
    other = tmp_path / "plain/venvs/x"
    other.mkdir(parents=True)
    assert Layout.around(other) is None
    layout.link.unlink()
    layout.link.symlink_to(other)
    assert Layout.around(layout.venv("0.1.0")) is None


def card(total: float, capability: tuple[int, int]) -> Facts:
    gpu = Gpu("GPU-1", "NVIDIA RTX", int(total * GIB), int(total * GIB), capability)
    return Facts(gpus=(gpu,), driver=Driver(module="580.65.06", library="580.65.06", cuda=(13, 0)))


@pytest.mark.parametrize(
    ("facts", "build_", "version", "words"),
    [
        (card(12, (8, 6)), TorchBuild("2.14.0+cu130", (13, 0)), "2.14.0", ("torch==2.14.0",)),
        (
            card(12, (8, 6)), TorchBuild("2.13.1+cu126", (12, 6)), "2.13.1+cu126",
            ("torch==2.13.1+cu126", "--index-url", "https://download.pytorch.org/whl/cu126"),
        ),
        (
            Facts(), TorchBuild("2.14.0+cpu", None), "2.14.0+cpu",
            ("torch==2.14.0+cpu", "--index-url", "https://download.pytorch.org/whl/cpu"),
        ),
    ],
)  # fmt: skip
def test_torch_stays_as_it_is_where_it_fits(
    facts: Facts, build_: TorchBuild, version: str, words: tuple[str, ...]
) -> None:
    assert build.torch_words(facts, fit(facts), build_, version) == words


def test_a_torch_that_does_not_fit_the_card_is_chosen_anew() -> None:
    facts = card(8, (12, 0))  # a newer card was put in
    found = fit(facts)
    assert build.torch_words(facts, found, TorchBuild("2.9.0+cu126", (12, 6)), "2.9.0+cu126") == (
        found.torch.pip_arguments
    )
    assert build.torch_words(Facts(), fit(Facts()), None, "") == fit(Facts()).torch.pip_arguments


# -- where it does not apply -----------------------------------------------------------------------


def test_in_a_checkout_it_says_what_to_do_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyproject.toml", "install.sh"):
        (tmp_path / name).touch()
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    done = cosyd("update")
    assert done.exit_code == 2
    assert "git pull" in done.stderr and "./install.sh try" in done.stderr and str(tmp_path) in done.stderr
    assert "git pull" in cosyd("update", lang="zh").stderr
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "elsewhere/env"))
    assert "./install.sh install" in cosyd("update").stderr


def test_as_somebody_else_than_root_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = made_layout(tmp_path, "0.1.0")
    monkeypatch.setattr(sys, "prefix", str(layout.link))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = cosyd("update")
    assert done.exit_code == 2 and "sudo cosyd update" in done.stderr


@pytest.mark.parametrize("source", ["nonsense", "cosyd-plus", "README.md", "cosyd; rm -rf /"])
def test_what_cannot_be_installed_is_refused(source: str, tmp_path: Path) -> None:
    layout = made_layout(tmp_path, "0.1.0")
    (tmp_path / "README.md").touch()
    place = str(tmp_path / source) if source == "README.md" else source
    with pytest.raises(CosydError) as caught, build.package(layout, Path(sys.executable), place):
        pass
    assert caught.value.params["reason"] == "update_source"
    assert [path.name for path in layout.venvs.iterdir()] == ["0.1.0"]


def test_too_small_a_disk_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = made_layout(tmp_path / "opt", "0.1.0")
    monkeypatch.setattr(update, "MARGIN_BYTES", 2**60)
    with pytest.raises(CosydError) as caught:
        update.check_room(layout, new_state(tmp_path / "state"), "0.1.0")
    assert (caught.value.code, caught.value.params["reason"]) == ("storage_full", "no_room")


# -- the change-over -------------------------------------------------------------------------------


class FileService:
    """A service whose state is a file, so that it outlives a kill. It becomes ready when the environment in
    use has a file `good`; a start may change the schema, as a new version's does."""

    def __init__(self, layout: Layout, paths: StatePaths) -> None:
        self.layout, self.paths, self.file = layout, paths, layout.home / "running"

    def active(self) -> bool:
        return self.file.exists()

    def stop(self) -> None:
        self.file.unlink(missing_ok=True)

    def start(self) -> bool:
        self.file.touch()
        name = self.layout.current() or ""
        if (self.layout.venv(name) / "migrates").exists():
            with closing(sqlite3.connect(self.paths.database)) as conn:
                conn.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        return True

    def wait_ready(self) -> bool:
        return (self.layout.venv(self.layout.current() or "") / "good").exists()


@pytest.fixture
def house(tmp_path: Path) -> tuple[Layout, StatePaths, FileService]:
    """An old version that runs, with a text that waits; a new one, and one from before."""
    layout = made_layout(tmp_path / "opt", "old", "new", "before")
    paths = new_state(tmp_path / "state")
    with closing(opened(paths)) as conn:
        submit(conn, "This one waits.")
    (layout.venv("old") / "good").touch()
    service = FileService(layout, paths)
    service.start()
    return layout, paths, service


def plan(paths: StatePaths) -> Plan:
    return Plan(str(paths.root), "old", "new", was_active=True, schema=0)


def waiting(paths: StatePaths) -> int:
    with closing(opened(paths)) as conn:
        assert conn.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION
        return int(conn.execute("SELECT count(*) FROM jobs WHERE state = 'queued'").fetchone()[0])


def test_a_new_version_that_becomes_ready_stays_and_one_old_one_is_kept(
    house: tuple[Layout, StatePaths, FileService],
) -> None:
    layout, paths, service = house
    (layout.venv("new") / "good").touch()
    change_over(layout, plan(paths), service, NOW)
    assert layout.current() == "new" and service.active() and read_plan(layout) is None
    assert sorted(path.name for path in layout.venvs.iterdir()) == ["new", "old"]
    (saved,) = paths.backups.glob("before-update-*.db")
    with closing(sqlite3.connect(saved)) as conn:
        assert conn.execute("SELECT count(*) FROM jobs").fetchone()[0] == 1
    assert saved.stat().st_mode & 0o077 == 0
    for second in range(1, 4):
        change_over(layout, plan(paths), service, NOW + second)
    assert len(list(paths.backups.glob("before-update-*.db"))) == 2


@pytest.mark.parametrize("migrates", [False, True], ids=["same schema", "newer schema"])
def test_one_that_does_not_become_ready_is_taken_back_with_its_database(
    house: tuple[Layout, StatePaths, FileService], migrates: bool
) -> None:
    layout, paths, service = house
    if migrates:
        (layout.venv("new") / "migrates").touch()
    with pytest.raises(CosydError) as caught:
        change_over(layout, plan(paths), service, NOW)
    assert caught.value.params["reason"] == "update_back"
    for language in ("en", "zh"):
        assert "new" in error_text("internal", language, caught.value.params)  # type: ignore[arg-type]
    assert layout.current() == "old" and service.active() and read_plan(layout) is None
    assert waiting(paths) == 1
    assert bool(list(paths.root.glob("restored-*/cosyd.db"))) == migrates
    assert {path.name for path in layout.venvs.iterdir()} == {"old", "new", "before"}


def test_a_service_that_did_not_run_is_not_started(house: tuple[Layout, StatePaths, FileService]) -> None:
    layout, paths, service = house
    service.stop()
    change_over(layout, Plan(str(paths.root), "old", "new", was_active=False, schema=0), service, NOW)
    assert layout.current() == "new" and not service.active()


def test_without_systemd_or_a_database_the_link_alone_changes(tmp_path: Path) -> None:
    layout = made_layout(tmp_path / "opt", "old", "new")
    empty = StatePaths.at(tmp_path / "state", {})
    change_over(layout, Plan(str(empty.root), "old", "new", was_active=False, schema=0), None, NOW)
    assert layout.current() == "new" and not empty.root.exists()


def test_a_disk_that_is_full_leaves_the_old_one_running(
    house: tuple[Layout, StatePaths, FileService], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, paths, service = house

    def full(*_: object) -> None:
        raise CosydError("storage_full", reason="disk_full")

    monkeypatch.setattr(switch, "copy_database", full)
    with pytest.raises(CosydError):
        change_over(layout, plan(paths), service, NOW)
    assert layout.current() == "old" and service.active() and read_plan(layout) is None


KILLED = (
    KILL_AT
    + """
import sys
from pathlib import Path
home, state = Path(sys.argv[2]), Path(sys.argv[3])
from daemon.update import switch
from daemon.update.layout import Layout
from pipeline.paths import StatePaths
from tests.unit.test_update import FileService
service = FileService(Layout(home), StatePaths.at(state, {}))
switch.Appliance.of = staticmethod(lambda paths: service)
kill_at(int(sys.argv[1]), ("rename", "replace", "unlink", "mkdir", "symlink"))
sys.exit(switch.main(sys.argv[4:]))
"""
)


def run_switch(kill_at: int, layout: Layout, paths: StatePaths, *words: str) -> int:
    """`python -m daemon.update.switch` with the service above, killed -9 before a call that changes names."""
    done = subprocess.run(
        [
            *(sys.executable, "-c", KILLED, str(kill_at), str(layout.home), str(paths.root)),
            *(str(layout.home), *words),
        ],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode in (0, 70, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.parametrize("good", [True, False], ids=["good", "bad"])
def test_killed_at_any_step_one_version_runs_afterwards_and_nothing_that_waited_is_lost(
    tmp_path: Path, good: bool, long: bool
) -> None:
    step, seen = 0, set()
    while True:
        shutil.rmtree(tmp_path, ignore_errors=True)
        layout = made_layout(tmp_path / "opt", "old", "new")
        paths = new_state(tmp_path / "state")
        with closing(opened(paths)) as conn:
            submit(conn, "This one waits.")
        (layout.venv("old") / "good").touch()
        (layout.venv("new") / ("good" if good else "migrates")).touch()
        service = FileService(layout, paths)
        service.start()
        write_plan(layout, plan(paths))
        status = run_switch(step, layout, paths)
        recover(layout, service, NOW)  # as the unit's ExecStopPost
        assert read_plan(layout) is None and service.active(), f"killed at {step}"
        assert service.wait_ready(), f"killed at {step}"
        assert waiting(paths) == 1, f"killed at {step}"
        seen.add(layout.current())
        if status != -signal.SIGKILL:
            break
        step += 1 if long else 3
    assert seen == ({"old", "new"} if good else {"old"})
    assert step > 4


def test_what_was_interrupted_is_settled_by_the_next_call(
    house: tuple[Layout, StatePaths, FileService],
) -> None:
    layout, paths, service = house
    assert recover(layout, service, NOW) is None
    service.stop()
    write_plan(layout, plan(paths))  # killed before anything: the service must come back
    assert recover(layout, service, NOW) == "old" and service.active()
    (layout.venv("new") / "good").touch()
    write_plan(layout, plan(paths))
    layout.point_to("new")  # killed before the journal said so
    assert recover(layout, service, NOW) == "new" and service.active()
    assert json.loads(json.dumps(layout.current())) == "new"


# -- the trial -------------------------------------------------------------------------------------


def test_an_environment_that_cannot_speak_or_import_is_found_out(tmp_path: Path) -> None:
    paths = new_state(tmp_path / "state")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)

    def python(script: str) -> None:
        (venv / "bin/python").write_text(f"#!/bin/sh\n{script}\n")
        (venv / "bin/python").chmod(0o755)

    for script, step in (
        ('[ "$1" = -c ] && echo no module >&2 && exit 1; exit 0', "imports"),
        ('case "$*" in *store.migrate*) exit 70;; esac', "migration"),
        ("exit 0", "speech"),  # says that it spoke, and there is no file
    ):
        python(script)
        with pytest.raises(CosydError) as caught:
            trial.try_out(venv, paths)
        assert (caught.value.params["reason"], caught.value.params["step"]) == ("update_trial", step)
    assert list(paths.tmp.iterdir()) == []
