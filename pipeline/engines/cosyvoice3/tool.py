"""`python -m pipeline.engines.cosyvoice3.tool TASK`: the engine's part of `cosyd model`, as a child.

The command line imports no engine and no torch; it starts this (`pipeline.model_child`) and reads JSON lines:
`{"progress": [name, done, total]}`, at the end `{"result": ...}` or `{"error": {"code", "params"}}`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.codes import CosydError
from pipeline.profile import Config, from_json

Told = Callable[[str, int, int], None]


def main(argv: list[str] | None = None) -> int:
    """Entry of the child."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.engines.cosyvoice3.tool", description=__doc__)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="the official files")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="converted weights")
    parser.add_argument("--config", default="", help="the configuration as JSON")
    parser.add_argument("--clip", type=Path, help="reference audio of the trial")
    parser.add_argument("--transcript", default="", help="what is said in it")
    parser.add_argument("--quick", action="store_true", help="do not open the ONNX graphs")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not come between the lines

    def say(value: Any) -> None:
        out.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
        out.flush()

    def told(name: str, done: int, total: int) -> None:
        say({"progress": [name, done, total]})

    try:
        config = from_json(options.config) if options.config else Config()
        say({"result": TASKS[options.task](options, config, told)})
    except CosydError as error:
        say({"error": {"code": error.code, "params": error.params}})
        return error.info.exit_status
    except ImportError as error:
        params = {"reason": "no_torch", "detail": str(error)}
        say({"error": {"code": "model_missing", "params": params}})
        return CosydError("model_missing").info.exit_status
    return 0


def _check(options: argparse.Namespace, config: Config, told: Told) -> dict[str, Any]:
    from pipeline.engines.cosyvoice3.looking import look

    return look(options.folder, lambda name: told(name, 0, 0), graphs=not options.quick)


def _convert(options: argparse.Namespace, config: Config, told: Told) -> dict[str, Any]:
    """What this machine will load, and the voices of spk2info.pt."""
    from pipeline.engines.cosyvoice3.engine import CosyVoice3Engine
    from pipeline.engines.cosyvoice3.model import convert_parts
    from pipeline.engines.cosyvoice3.plan import options_of
    from pipeline.engines.cosyvoice3.saved_voices import take_over

    chosen = options_of(CosyVoice3Engine(options.folder, options.cache).plan_here(config).choice)
    files, made = convert_parts(options.folder, options.cache, chosen, told)
    return {
        "parts": [file.name for file in files],
        "made": made,
        "bytes": sum(file.stat().st_size for file in files),
        "voices": take_over(options.folder, options.cache),
    }


def _random(options: argparse.Namespace, config: Config, told: Told) -> dict[str, Any]:
    from pipeline.engines.cosyvoice3.random_weights import full_checkpoint

    full_checkpoint(options.folder, told)
    return {"bytes": sum(f.stat().st_size for f in options.folder.rglob("*") if f.is_file())}


def _speak(options: argparse.Namespace, config: Config, told: Told) -> dict[str, Any]:
    from pipeline.engines.cosyvoice3.trial import try_out

    return try_out(
        options.folder, options.cache, config, options.clip, options.transcript, told, now=time.time()
    )


TASKS: dict[str, Callable[[argparse.Namespace, Config, Told], dict[str, Any]]] = {
    "check": _check,
    "convert": _convert,
    "random": _random,
    "speak": _speak,
}


if __name__ == "__main__":
    sys.exit(main())
