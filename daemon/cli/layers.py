"""The configuration a command works with: what the running cosyd uses, else what it would use.

How layers are read is `daemon.configuration`'s business; here it is only decided which.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from daemon.cli.frame import PACKAGED_ROOT
from daemon.configuration import Options, load, read_settings
from pipeline.codes import CosydError
from pipeline.paths import ETC_CONFIG, StatePaths
from pipeline.profile import Config, Layer, Resolved, from_json
from pipeline.profile.load import file_layer
from pipeline.profile.problems import unreadable
from pipeline.store.db import connect

READ_S = 5.0


def config_file(chosen: Path | None, etc: Path = ETC_CONFIG) -> Path | None:
    """The file that is read: the one named, else the appliance's, else ./cosyd.toml if there is one."""
    return chosen or next((path for path in (etc, Path("cosyd.toml")) if path.exists()), None)


def read_layer(path: Path) -> Layer:
    """The file as a layer. Raises CosydError(config_error) when it cannot be read or is no TOML."""
    try:
        return file_layer(str(path), path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CosydError("config_error", problems=[unreadable(str(path), error)]) from None


def stored_settings(database: Path) -> dict[str, object]:
    """Configuration keys of the `settings` table; none when there is no database that can be read."""
    if not database.exists():
        return {}
    try:
        conn = connect(database, "read", busy_s=READ_S)
        try:
            return read_settings(conn)
        finally:
            conn.close()
    except (CosydError, sqlite3.Error):
        return {}  # `cosyd doctor` names it


def resolve_all(
    paths: StatePaths,
    file: Path | None = None,
    flags: Layer | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Resolved:
    """All layers in their order (CONTRACTS 6). Raises CosydError(config_error)."""
    options = Options(paths.root, file, lan=False, flags=flags or Layer("flags", {}))
    return load(options, environ, stored_settings(paths.database))


def current_config(paths: StatePaths) -> Config:
    """What the running (or last) cosyd uses; without one, what the layers say."""
    try:
        return from_json(paths.effective_config.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return resolve_all(paths).config


def instance_config(paths: StatePaths) -> Path:
    """The configuration file that belongs to a state folder: the appliance's, else the one beside it."""
    return ETC_CONFIG if paths.root == PACKAGED_ROOT else paths.root.parent / "cosyd.toml"
