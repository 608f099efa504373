"""`python -m daemon.hardware`: facts and what follows from them, one JSON value on stdout. Standard library
only, so that the installer can ask before there is a venv. Exit status 0; what could not be read is null."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from daemon.hardware.driver import advise
from daemon.hardware.fit import fit
from daemon.hardware.host import RealHost
from daemon.hardware.reader import read_facts
from pipeline.planning.torch_choice import WHEELS


def main(argv: Sequence[str] | None = None) -> int:
    """`facts`, `sources`, `fit` (with `torch`) and `driver`."""
    parser = argparse.ArgumentParser(prog="python -m daemon.hardware")
    parser.add_argument("--state", default="/var/lib/cosyd", help="where recordings will be kept")
    parser.add_argument("--port", type=int, default=7860, help="the page's port")
    parser.add_argument("--profile", help="the hardware class that was chosen")
    parser.add_argument("--gpu", default="auto", help="auto, none, or a UUID")
    parser.add_argument("--wheels", default=WHEELS, help="folder of PyTorch's indexes, for a mirror")
    given = parser.parse_args(argv)
    facts = read_facts(RealHost(), state=given.state, port=given.port)
    found = fit(facts, gpu=given.gpu, configured=given.profile, origin="flags", wheels=given.wheels)
    told = {
        "facts": facts.to_params(),
        "sources": dict(facts.sources),
        "fit": found.to_params(),
        "driver": advise(facts, found.torch).to_params(),
    }
    print(json.dumps(told, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
