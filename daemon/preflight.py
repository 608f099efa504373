"""`python -m daemon.preflight`: what an installation would do here, for people; changes nothing.

Standard library only: install.sh runs it from the sources before anything is set up. Exit status 0 when the
installation can begin, else that of the first thing in the way.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from daemon.hardware.driver import advise
from daemon.hardware.fit import fit
from daemon.hardware.host import RealHost
from daemon.hardware.preflight import Kind, Wish, preflight
from daemon.hardware.reader import read_facts
from pipeline.messages import render, terminal_language
from pipeline.planning.torch_choice import WHEELS
from pipeline.profile import PROFILES

KINDS: tuple[Kind, ...] = ("found", "do", "cannot", "stop")
STATE, PROGRAMS = "/var/lib/cosyd", "/opt/cosyd"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(prog="python -m daemon.preflight")
    parser.add_argument("--port", type=int, default=7860)
    parser.add_argument("--profile", choices=PROFILES)
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--cosyvoice", action="store_true")
    parser.add_argument("--model-dir", default="")
    parser.add_argument("--source", default="auto")
    parser.add_argument("--driver", choices=("keep", "install", "replace"), default="keep")
    parser.add_argument("--wheels", default=WHEELS)
    parser.add_argument("--root", type=Path, default=Path("/"), help="read a tree that looks like a machine")
    given = parser.parse_args(argv)
    language = terminal_language(os.environ)
    host = RealHost(given.root)
    facts = read_facts(host, state=STATE, port=given.port)
    found = fit(facts, gpu=given.gpu, configured=given.profile, origin="--profile", wheels=given.wheels)
    wish = Wish(
        given.port, given.cosyvoice, given.model_dir, given.source, given.driver,
        host.exists(f"{PROGRAMS}/venv"), _elsewhere(host),
    )  # fmt: skip
    statements = preflight(facts, found, advise(facts, found.torch), wish)
    for kind in KINDS:
        lines = [s for s in statements if s.kind == kind]
        if lines:
            print(render(f"install.{kind}", language))
        for statement in lines:
            key = statement.key if "." in statement.key else f"install.{statement.key}"
            print(f"  {render(key, language, statement.params)}")
    return next((s.status for s in statements if s.status), 0)


def _elsewhere(host: RealHost) -> int | None:
    """Free bytes of the programs' disk, where it is not that of the recordings."""
    programs, state = host.disk(PROGRAMS), host.disk(STATE)
    return programs[0] if programs is not None and state is not None and programs != state else None


if __name__ == "__main__":
    sys.exit(main())
