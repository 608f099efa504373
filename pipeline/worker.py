"""`python -m pipeline.worker --engine NAME`: the process that holds one engine (CONTRACTS 4).

Started by the supervisor, over whose link it says hello, ready, heartbeats, oom, drained and fatal. Only the
end of a process gives back all memory, so whatever goes wrong with the engine ends here, never in the page.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pipeline import logs
from pipeline.child import (
    ChildContext,
    HeartbeatState,
    adopt,
    end_group,
    lease_owner,
    settle_heap,
    start_heartbeat,
    watch_signals,
)
from pipeline.codes import CosydError
from pipeline.engines.base import Engine, Options, OutOfMemory, Segment, open_engine
from pipeline.rpc import Link
from pipeline.runner import Runner, WorkerEnds
from pipeline.store.db import SCHEMA_VERSION, check_schema, connect
from pipeline.take import Why

log = logging.getLogger(__name__)

WARM_TEXT = "Hi."


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.worker", description="Holds one engine.")
    parser.add_argument("--engine", required=True, help="name in the engine registry, for example builtin")
    parser.add_argument("--quiet", action="store_true", help="log warnings and errors only")
    arguments = parser.parse_args(argv)
    name = arguments.engine
    logs.set_up(f"worker {name}", level=logging.WARNING if arguments.quiet else logging.INFO)
    try:
        return Worker(adopt(), name).serve()
    except CosydError as error:  # there was no link to say it on
        log.error("%s", error)
        return error.info.exit_status


class Worker:
    """One engine in this process, and the conversation with the supervisor about it."""

    def __init__(self, context: ChildContext, name: str) -> None:
        self._context, self._name = context, name
        self._engine: Engine | None = None
        self._heartbeat = HeartbeatState(vram_bytes=self._vram_bytes)
        self._runner = Runner(
            name=name,
            owner=lease_owner(context.instance, os.getpid()),
            paths=context.paths,
            config=context.config,
            on_hang=self._hung,
            notify=lambda method, **params: self._link.notify(method, **params),
            heartbeat=self._heartbeat,
        )
        self._link: Link = context.open_link(
            {
                "work_available": lambda params: self._runner.work_available(),
                "cancel": lambda params: self._runner.cancel(str(params.get("job", ""))),
                "trim": lambda params: self._runner.trim(),
                "drain": lambda params: self._runner.leave(_seconds(params.get("deadline_s"))),
                # Quick: the supervisor counts its grace until SIGKILL, a segment is not worth that risk.
                "shutdown": lambda params: self._runner.leave(0.0),
            }
        )

    def serve(self) -> int:
        """Say hello, load, warm, work; the exit status."""
        self._link.notify("hello", role="worker", engine=self._name, pid=os.getpid(), schema=SCHEMA_VERSION)
        watch_signals({signal.SIGTERM: lambda: self._runner.leave(0.0)})
        threading.excepthook = self._thread_died
        start_heartbeat(self._link, self._heartbeat, self._context.config.heartbeat_s)
        try:
            self._check_schema()
            engine = self._load()
            self._runner.run(engine)
        except WorkerEnds as ending:
            return self._fatal(ending.error)
        except OutOfMemory as error:
            self._link.notify("oom", resource=error.resource, footprint=self._footprint(), job=None)
            return self._fatal(error)
        except MemoryError:
            self._link.notify("oom", resource="ram", footprint=self._footprint(), job=None)
            return self._fatal(CosydError("out_of_memory", resource="ram"))
        except CosydError as error:
            return self._fatal(error)
        except Exception as error:
            log.exception("the worker failed")
            return self._fatal(CosydError("internal", reason=type(error).__name__))
        self._link.notify("drained")
        engine.close()
        return 0

    def _check_schema(self) -> None:
        conn = connect(self._context.paths.database, "read")
        try:
            check_schema(conn)
        finally:
            conn.close()

    def _load(self) -> Engine:
        engine = open_engine(self._name, self._context.config.engines.extra)
        if hasattr(engine, "on_progress"):  # it may prepare for minutes at its first start
            engine.on_progress = self._heartbeat.progress
        footprint = engine.load(self._context.config, self._runner.leaving)
        self._engine = engine
        warm(engine, self._runner.leaving)
        settle_heap()
        self._link.notify(
            "ready",
            capabilities=engine.capabilities().to_params(),
            footprint=dataclasses.asdict(footprint),
        )
        return engine

    def _footprint(self) -> dict[str, Any]:
        sizes = self._heartbeat.sample()
        return {"rss_bytes": sizes["rss_bytes"], "vram_bytes": sizes["vram_bytes"]}

    def _vram_bytes(self) -> int | None:
        """What the engine says that it holds on the card, when it knows."""
        read: Callable[[], int | None] | None = getattr(self._engine, "vram_bytes", None)
        return read() if read is not None else None

    def _fatal(self, error: CosydError) -> int:
        log.error("ends: %s", error)
        self._link.notify("fatal", code=error.code, params=error.params)
        return error.info.exit_status

    def _hung(self, why: Why) -> NoReturn:
        """The engine did not come back: nothing in this process can help it. The lease returns the job."""
        log.error("the engine does not come back after: %s", why)
        self._link.notify("fatal", code="deadline", params={"engine": self._name, "reason": "engine_hung"})
        end_group()

    def _thread_died(self, args: threading.ExceptHookArgs) -> None:
        """Without its lease or its link a worker must not go on."""
        log.error("thread %s died", args.thread.name if args.thread else "?", exc_info=args.exc_value)
        self._link.notify("fatal", code="internal", params={"reason": "thread_died"})
        end_group()


def warm(engine: Engine, stop: threading.Event) -> None:
    """Speak two letters to nobody, so that the first listener does not pay for lazy set-up."""
    can = engine.capabilities()
    if not can.voices:
        return  # speaks with enrolled voices only: its load warms it
    segment = Segment(0, WARM_TEXT, 0, len(WARM_TEXT), language="en")
    try:
        for _ in engine.synthesize(segment, can.voices[0], Options(seed=0), stop):
            pass
    except OutOfMemory:
        raise
    except CosydError as error:
        log.warning("warming failed: %s", error.code)


def _seconds(value: object) -> float:
    """A deadline from a message; none means: as long as the segment takes."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return float(value) if known else math.inf  # type: ignore[arg-type]


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)  # libraries' own threads and destructors are not waited for
