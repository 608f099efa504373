"""A database that is moved, deleted, replaced or made read-only under a running service: a clear word, nobody
is started into it, and all goes on when it is back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from daemon.children import Children
from daemon.lifecycle import Child, State
from daemon.loop import Loop
from daemon.queue_reader import QueueReader
from daemon.store_watch import StoreWatch, look
from daemon.writer import Writer
from pipeline.clock import SystemClock
from pipeline.codes import CosydError
from pipeline.events import Event
from pipeline.messages import error_text
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.store.db import check_place, file_identity
from tests.integration.service import wait_for
from tests.unit.storekit import NOW, opened, submit
from ui.services import Services


def test_a_file_that_stays_is_no_trouble(paths: StatePaths) -> None:
    home = file_identity(paths.database)
    paths.database.touch()
    assert look(paths.database, home) is None


@pytest.mark.parametrize("reason", ["gone", "replaced"])
def test_a_file_that_went_is_named_with_its_cure(paths: StatePaths, reason: str) -> None:
    home = file_identity(paths.database)
    kept = paths.database.rename(paths.root / "kept.db")
    if reason == "replaced":
        shutil.copy(kept, paths.database)
    found = look(paths.database, home)
    assert found is not None and found["params"]["reason"] == reason
    for language in ("en", "zh"):
        told = error_text(found["code"], language, found["params"])
        assert "cosyd.db" in told and str(paths.root) in told and "{" not in told
    kept.rename(paths.database)
    assert look(paths.database, home) is None, "the same file is back"


def test_what_may_not_be_written_is_read_only(paths: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anything that is not on a read-only disk, so the kernel's answer is given here."""
    home, real = file_identity(paths.database), os.access
    for refused in (paths.database, paths.root):
        monkeypatch.setattr(os, "access", lambda p, mode, no=refused: Path(p) != no and real(p, mode))
        found = look(paths.database, home)
        assert found is not None and found["params"]["reason"] == "read_only"


def slot(state: State, code: str | None = None) -> Any:
    """What the watch sees of a child."""
    return SimpleNamespace(child=Child("worker:builtin", state=state, code=code))


def test_nobody_is_started_meanwhile_and_who_died_of_it_is_forgiven(paths: StatePaths) -> None:
    told: list[bool] = []
    died, failed = slot(State.FAILED, "schema_mismatch"), slot(State.FAILED, "model_missing")
    children = SimpleNamespace(
        held=False, web=slot(State.READY), workers={"builtin": died, "cosyvoice3": failed}
    )
    loop = cast(Loop, SimpleNamespace(now=lambda: 5.0))
    watch = StoreWatch(paths.database, loop, cast(Children, children), lambda: told.append(children.held))
    watch.tick()
    assert (children.held, watch.trouble, told) == (False, None, [])
    kept = paths.database.rename(paths.root / "kept.db")
    for _ in range(3):
        watch.tick()
    assert children.held and watch.trouble is not None and told == [True], "told once"
    assert died.child.state is State.FAILED
    kept.rename(paths.database)
    watch.tick()
    assert (children.held, watch.trouble, told) == (False, None, [True, False])
    assert (died.child.state, failed.child.state) == (State.ABSENT, State.FAILED)
    assert children.web.child.state is State.READY


def test_the_writer_keeps_what_it_has_until_the_file_is_back(paths: StatePaths) -> None:
    writer = Writer(paths.database, lambda callback: callback())
    writer.start()

    def kinds() -> list[str]:
        conn = opened(paths, "read", 5.0)
        try:
            return [row["kind"] for row in conn.execute("SELECT kind FROM events ORDER BY id")]
        finally:
            conn.close()

    writer.event(Event(at=NOW, kind="started", params={}))
    wait_for(lambda: kinds() == ["started"], 20, "the first event")
    kept = paths.database.rename(paths.root / "kept.db")
    writer.event(Event(at=NOW, kind="ready", params={}))
    done: list[Any] = []
    writer.do("count", lambda conn: conn.execute("SELECT 1").fetchone()[0], done.append)
    wait_for(lambda: not writer.lost_events and not done, 5, "nothing lost, nothing done")
    kept.rename(paths.database)
    wait_for(lambda: done == [1] and kinds() == ["started", "ready"], 20, "the event that waited")
    assert writer.stop(10)


def test_the_queue_is_unknown_while_the_file_is_gone(paths: StatePaths) -> None:
    conn = opened(paths)
    submit(conn)
    conn.close()
    reader = QueueReader(paths.database, SystemClock())
    first = reader.read()
    assert first is not None and first["builtin"].queued == 1
    kept = paths.database.rename(paths.root / "kept.db")
    assert reader.read() is None
    kept.rename(paths.database)
    again = reader.read()
    assert again is not None and again["builtin"].queued == 1
    reader.close()


def test_the_web_takes_nothing_into_a_file_that_is_not_there(paths: StatePaths) -> None:
    services = Services(Config(), paths)
    try:
        assert services.read_now(lambda conn: conn.execute("SELECT 1").fetchone()[0]) == 1
        kept = paths.database.rename(paths.root / "kept.db")
        for kind in ("read", "accept"):
            with pytest.raises(CosydError) as caught:
                services.connection(kind)  # type: ignore[arg-type]
            assert (caught.value.code, caught.value.params["reason"]) == ("storage_full", "gone")
            assert caught.value.retry_after_s
        assert services.voices == services.ready_made
        kept.rename(paths.database)
        assert services.read_now(lambda conn: conn.execute("SELECT 1").fetchone()[0]) == 1
    finally:
        services.close()


def test_check_place_tells_gone_from_replaced(tmp_path: Path) -> None:
    file = tmp_path / "cosyd.db"
    with pytest.raises(CosydError) as caught:
        check_place(file, None)
    assert caught.value.params["reason"] == "gone"
    file.touch()
    check_place(file, file_identity(file))
    with pytest.raises(CosydError) as caught:
        check_place(file, (0, 0))
    assert caught.value.params["reason"] == "replaced"
