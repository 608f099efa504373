"""From flags, files and environment to the configuration (CONTRACTS 6), and to `run/effective.json`."""

from __future__ import annotations

import argparse
import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.codes import CosydError
from pipeline.paths import ETC_CONFIG, StatePaths, default_state_root
from pipeline.profile import PROFILES, Config, Layer, Resolved, resolve, to_json
from pipeline.profile.load import environment_layer, file_layer, known_keys
from pipeline.profile.problems import problem, unreadable
from pipeline.store.db import connect


@dataclass(frozen=True, slots=True)
class Options:
    """The flags of `python -m daemon.supervisor`, which `cosyd run` passes on."""

    state: Path
    config: Path | None
    lan: bool
    flags: Layer


def parse_options(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Options:
    """Raises SystemExit(2) for an unknown flag, CosydError(config_error) for `--set` without `=`."""
    parser = argparse.ArgumentParser(
        prog="cosyd run", description="Start cosyd here and keep it running until Ctrl-C."
    )
    parser.add_argument("--state", type=Path, metavar="DIR", help="state folder (default: ./.cosyd)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="cosyd.toml")
    parser.add_argument("--profile", choices=PROFILES, help="hardware class")
    parser.add_argument("--host", help="address of the page")
    parser.add_argument("--port", type=int, help="port of the page")
    parser.add_argument(
        "--lan", action="store_true", help="reachable from other machines; prints a login link"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any configuration key"
    )
    given = parser.parse_args(argv)
    values: dict[str, object] = {}
    for item in given.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise CosydError("config_error", problems=[problem(f"--set {item}", "not_pair")])
        values[key.strip()] = value
    named = {"profile": given.profile, "web.host": given.host, "web.port": given.port}
    values |= {key: value for key, value in named.items() if value is not None}
    state = given.state if given.state is not None else default_state_root(environ)
    return Options(state.absolute(), given.config, given.lan, Layer("flags", values))


def load(
    options: Options, environ: Mapping[str, str], settings: Mapping[str, object], etc: Path = ETC_CONFIG
) -> Resolved:
    """All layers. `settings` are the rows of the settings table that are configuration keys. Raises
    CosydError(config_error) with every problem."""
    layers: list[Layer] = []
    path = options.config or next((p for p in (etc, Path("cosyd.toml")) if p.exists()), None)
    if path is not None:
        try:
            layers.append(file_layer(str(path), path.read_text("utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise CosydError("config_error", problems=[unreadable(str(path), error)]) from None
    layers.append(Layer("settings", settings, runtime_only=True))
    layers.append(environment_layer(environ))
    layers.append(options.flags)
    return resolve(layers)


def read_settings(conn: sqlite3.Connection) -> dict[str, object]:
    """Rows of `settings` that are configuration keys; links, sessions and the page's own rows are left
    out."""
    keys = known_keys()
    return {row[0]: row[1] for row in conn.execute("SELECT key, value FROM settings") if row[0] in keys}


def with_ports(config: Config, host: str, http_port: int, wyoming_port: int) -> Config:
    """The configuration with what was really bound, so that children and the CLI find it."""
    return replace(
        config,
        web=replace(config.web, host=host, port=http_port),
        wyoming=replace(config.wyoming, port=wyoming_port),
    )


def write_effective(paths: StatePaths, config: Config) -> None:
    """`run/effective.json`, 0600, whole or not at all."""
    write_effective_to(paths.effective_config, config)


def write_effective_to(path: Path, config: Config) -> None:
    """The same in another place. Raises OSError."""
    part = path.with_suffix(".part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(to_json(config))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def concerns_children(old: Config, new: Config) -> bool:
    """Whether running children go by a value that changed; the supervisor's own take effect at once."""
    own = replace(
        new,
        guard=old.guard,
        restart=old.restart,
        schedule=old.schedule,
        keep_alive=old.keep_alive,
        keep_warm=old.keep_warm,
    )
    return own != old


def reread(options: Options, environ: Mapping[str, str], paths: StatePaths, bound: Config) -> Config:
    """All layers anew, for a service that runs as `bound`: what was bound stays. Also writes
    `effective.json`. Raises CosydError."""
    try:
        with closing(connect(paths.database, "read")) as conn:
            settings = read_settings(conn)
        fresh = load(options, environ, settings).config
        fresh = with_ports(fresh, bound.web.host, bound.web.port, bound.wyoming.port)
        # A new authentication rule on an open socket would be a hole until the restart.
        fresh = replace(fresh, web=replace(fresh.web, auth=bound.web.auth), gpu=bound.gpu)
        write_effective(paths, fresh)
    except (sqlite3.Error, OSError) as error:
        raise CosydError("internal", detail=str(error)[:200]) from error
    return fresh
