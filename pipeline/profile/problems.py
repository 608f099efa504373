"""What is wrong with a configuration, as data: where, which key of `[config]` in the catalogues, its params.

`pipeline.messages.problem_text` says it in a person's language. A problem is plain JSON, since it travels in
CosydError("config_error", problems=[...]) over sockets and into rows.
"""

from __future__ import annotations

import errno
import re
import tomllib
from typing import Any

_PLACE = re.compile(r"(.*) \(at line (\d+), column (\d+)\)", re.DOTALL)


def problem(at: str, what: str, **params: Any) -> dict[str, Any]:
    """One problem. `at` says where it is written: `cosyd.toml: web.port`."""
    return {"at": at, "what": what, "params": params}


class BadValue(ValueError):
    """A value that does not fit its key: `what` is a key of `[config]`."""

    def __init__(self, what: str, **params: Any) -> None:
        super().__init__(what, params)
        self.what, self.params = what, params

    def at(self, place: str) -> dict[str, Any]:
        """The problem of a value that is written there."""
        return problem(place, self.what, **self.params)


def unreadable(at: str, error: OSError | UnicodeDecodeError) -> dict[str, Any]:
    """A file that cannot be read, with the causes that people meet in words."""
    if isinstance(error, UnicodeDecodeError):
        return problem(at, "not_utf8")
    known = {
        errno.ENOENT: "file_missing",
        errno.EACCES: "file_denied",
        errno.EPERM: "file_denied",
        errno.EISDIR: "file_folder",
    }.get(error.errno or 0)
    return (
        problem(at, known) if known else problem(at, "file_unreadable", detail=error.strerror or str(error))
    )


def not_toml(at: str, error: tomllib.TOMLDecodeError) -> dict[str, Any]:
    """A file that is no TOML, with the place where reading ended."""
    found = _PLACE.fullmatch(str(error))
    if found is None:  # "(at end of document)"
        return problem(at, "not_toml", detail=str(error))
    return problem(at, "not_toml_at", detail=found[1], line=int(found[2]), column=int(found[3]))
