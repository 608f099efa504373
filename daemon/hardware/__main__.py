"""`python -m daemon.hardware`: facts and what follows from them, one JSON value on stdout. Standard library
only, so that the installer can ask before there is a venv (`PYTHONPATH=cosyd.whl` is enough). Exit status 0;
what could not be read is null."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from daemon.hardware.driver import DriverAdvice, advise
from daemon.hardware.fit import Fit, fit
from daemon.hardware.host import RealHost
from daemon.hardware.reader import read_facts
from pipeline.messages import Language, render
from pipeline.planning.torch_choice import WHEELS


def said(found: Fit, advice: DriverAdvice, language: Language) -> dict[str, str]:
    """The same for people: why this class, what it can do, which torch, what to do about the driver."""
    return {
        "fit": render(f"fit.{found.reason}", language, found.params),
        "ability": render(f"fit.ability_{found.profile.replace('-', '_')}", language),
        "torch": render(f"torch.{found.torch.reason}", language, found.torch.params),
        "driver": render(f"driver.{advice.reason}", language, advice.params),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """`facts`, `sources`, `fit` (with `torch`), `driver`, and `text` in a person's language."""
    parser = argparse.ArgumentParser(prog="python -m daemon.hardware")
    parser.add_argument("--state", default="/var/lib/cosyd", help="where recordings will be kept")
    parser.add_argument("--port", type=int, default=7860, help="the page's port")
    parser.add_argument("--profile", help="the hardware class that was chosen")
    parser.add_argument("--gpu", default="auto", help="auto, none, or a UUID")
    parser.add_argument("--wheels", default=WHEELS, help="folder of PyTorch's indexes, for a mirror")
    parser.add_argument("--language", choices=("en", "zh"), default="en", help="of `text`")
    parser.add_argument(
        "--root", type=Path, default=Path("/"), metavar="DIR", help="read a tree that looks like a machine"
    )
    given = parser.parse_args(argv)
    facts = read_facts(RealHost(given.root), state=given.state, port=given.port)
    found = fit(facts, gpu=given.gpu, configured=given.profile, origin="flags", wheels=given.wheels)
    advice = advise(facts, found.torch)
    told = {
        "facts": facts.to_params(),
        "sources": dict(facts.sources),
        "fit": found.to_params(),
        "driver": advice.to_params(),
        "text": said(found, advice, given.language),
    }
    print(json.dumps(told, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
