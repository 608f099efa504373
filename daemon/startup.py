"""From flags to a running supervisor: lock, leftovers, migration, sockets, effective configuration, greeting.

Whatever is wrong is told in one readable line and the code's own exit status, never as a traceback.
"""

from __future__ import annotations

import getpass
import logging
import os
import secrets
import shutil
import socket
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon import interrupt
from daemon.configuration import (
    Options,
    load,
    parse_options,
    read_settings,
    with_ports,
    write_effective,
)
from daemon.instance import end_leftovers, start_warden, take_lock
from daemon.notifier import Notifier
from daemon.recorder import set_up_log
from daemon.sockets import lan_address, listen, listen_next_free
from daemon.writer import Writer
from pipeline import access
from pipeline.clock import Clock, SystemClock
from pipeline.codes import CosydError
from pipeline.messages import error_text, render, terminal_language
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.store.db import connect
from pipeline.store.ensure import ensure_schema
from pipeline.store.place import refuse_network

log = logging.getLogger("cosyd")


@dataclass(frozen=True, slots=True)
class Doors:
    """The listening sockets by their name (`http`, `wyoming`) and where people find the page."""

    sockets: Mapping[str, socket.socket]
    url: str
    host: str
    http_port: int
    wyoming_port: int


def open_doors(config: Config, lan: bool) -> Doors:
    """Bind. Raises CosydError: `unsafe_bind`, `config_error`."""
    host = lan_address() if lan and access.is_loopback(config.web.host) else config.web.host
    access.check_bind(host, authentication=config.web.auth)
    http = listen(host, config.web.port, "web.port")
    try:
        wyoming = listen_next_free(host, config.wyoming.port, "wyoming.port")
    except BaseException:
        http.close()
        raise
    port, wyoming_port = http.getsockname()[1], wyoming.getsockname()[1]
    if config.wyoming.port not in (0, wyoming_port):
        log.warning("port %d is taken; Wyoming listens on %d", config.wyoming.port, wyoming_port)
    shown = lan_address() if host in ("0.0.0.0", "::", "") else host
    return Doors(
        {"http": http, "wyoming": wyoming},
        f"http://{f'[{shown}]' if ':' in shown else shown}:{port}",
        host,
        port,
        wyoming_port,
    )


def greeting(url: str, port: int, environ: Mapping[str, str], user: str, login: str | None) -> list[str]:
    """The lines that a person at a terminal reads when the page is up."""
    language = terminal_language(environ)
    lines = [render("daemon.ready", language, {"url": url})]
    if login is not None:
        lines.append(render("daemon.login", language, {"url": f"{url}/login?token={login}"}))
    connection = environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4 and login is None:
        command = f"ssh -L {port}:127.0.0.1:{port} {user}@{connection[2]}"
        lines.append(render("daemon.tunnel", language, {"command": command}))
    return lines


def announce(
    doors: Doors, options: Options, writer: Writer, clock: Clock, environ: Mapping[str, str]
) -> None:
    """Print the greeting on stdout; with --lan first have the writer thread make the login token."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "root"

    def say(login: str | None) -> None:
        # stdout and not the log: a login link is no business of a journal.
        for line in greeting(doors.url, doors.http_port, environ, user, login):
            print(line, flush=True)

    if options.lan:
        writer.do("login", lambda conn: access.create_login_token(conn, clock.wall()), say)
    elif "JOURNAL_STREAM" not in environ:
        say(None)


def clear_tmp(paths: StatePaths) -> None:
    """Temporary files of an earlier run."""
    for entry in paths.tmp.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def prepare(options: Options, instance: str, environ: Mapping[str, str]) -> tuple[Config, StatePaths, Doors]:
    """Everything up to the loop. Raises CosydError; OSError where the state folder is no good."""
    config = load(
        options, environ, {}
    ).config  # what is wrong in files and flags is told before anything is touched
    paths = StatePaths.at(options.state, environ)
    refuse_network(paths.root)  # the lock too would mean nothing there
    paths.ensure()
    take_lock(paths.instance_lock)
    if left := end_leftovers(paths.root):
        log.warning("ended what an earlier run left: pids %s", ", ".join(map(str, left)))
    ensure_schema(paths)
    conn = connect(paths.database, "read", busy_s=5.0)
    try:
        settings = read_settings(conn)
    finally:
        conn.close()
    config = load(options, environ, settings).config
    doors = open_doors(config, options.lan)
    config = with_ports(config, doors.host, doors.http_port, doors.wyoming_port)
    write_effective(paths, config)
    clear_tmp(paths)
    return config, paths, doors


def make_importable() -> None:
    """Children find our packages, and no folder that happens to be called `ui`, wherever the person
    stands."""
    root = Path(__file__).resolve().parent.parent
    if root.name not in ("site-packages", "dist-packages"):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    os.environ["PYTHONSAFEPATH"] = "1"


def main(
    argv: Sequence[str] | None = None,
    *,
    web_module: tuple[str, ...] = ("ui",),
    worker_module: tuple[str, ...] = ("pipeline.worker",),
) -> int:
    """Entry of `python -m daemon.supervisor`; the exit status. The modules are what the children run."""
    os.umask(0o077)
    set_up_log()
    try:
        interrupt.raise_again()
        options = parse_options(sys.argv[1:] if argv is None else argv)
        instance = secrets.token_hex(8)
        # First of all, while there is no thread and hardly any memory to share. Held open to the very end.
        warden = start_warden(options.state, instance)
        make_importable()
        config, paths, doors = prepare(options, instance, os.environ)
        from daemon.supervisor import Supervisor

        status = Supervisor(
            options, config, paths, doors, instance, SystemClock(),
            web_module=web_module, worker_module=worker_module,
        ).run()  # fmt: skip
        os.close(warden)
        return status
    except CosydError as error:
        params = {**error.params, "path": str(error.params.get("path", ""))}
        told = error_text(error.code, terminal_language(), params)
        log.error("%s [%s]", told, error.code)
        Notifier().failed(told)
        return error.info.exit_status
    except (OSError, sqlite3.Error) as error:
        folder = options.state if "options" in locals() else ""
        told = render("daemon.cannot_start", terminal_language(), {"folder": folder, "detail": error})
        log.error("%s", told)
        Notifier().failed(told)
        return 75
    except KeyboardInterrupt:
        return interrupt.EXIT_INTERRUPTED
