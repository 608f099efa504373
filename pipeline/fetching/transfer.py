"""One file over HTTP: resumed where it stopped, tried again, checked; the file itself is `incoming`'s."""

from __future__ import annotations

import contextlib
import email.utils
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pipeline.codes import CosydError
from pipeline.fetching.incoming import Incoming, room_errors
from pipeline.fetching.progress import Meter, Waiting
from pipeline.fetching.sources import RemoteFile, Source

TRIES = 6
"""So often in a row without a single byte more; then it is given up."""

BACKOFF_S, BACKOFF_MAX_S = 1.0, 30.0
RETRY_AFTER_MAX_S = 300.0
"""A source that wants a longer pause is told as what it is: too many requests."""

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that another try may cure."""

_RANGE = re.compile(r"bytes (\d+)-\d*/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for a connection, and between two pieces of an answer; less than `slow_bytes` in `slow_s` is no
    answer either; how to pause."""

    connect_s: float = 15.0
    silent_s: float = 30.0
    slow_s: float = 60.0
    slow_bytes: int = 64 * 1024
    sleep: Callable[[float], None] = time.sleep
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class Again(Exception):
    """A try failed in a way that another may cure. `why` is a word of [model.why]."""

    def __init__(self, why: str, detail: str, after_s: float | None = None) -> None:
        super().__init__(detail)
        self.why, self.detail, self.after_s = why, detail, after_s


def open_client(patience: Patience, environ: Mapping[str, str] = os.environ) -> httpx.Client:
    """A client that follows redirects and honours HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY. It drops
    the token where it is sent to another host. Raises CosydError(model_missing, bad_proxy)."""
    try:
        return httpx.Client(
            follow_redirects=True,
            timeout=httpx.Timeout(patience.silent_s, connect=patience.connect_s),
            headers={"User-Agent": "cosyd", "Accept-Encoding": "identity"},
        )
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        names = [n for n in environ if n.lower() in ("http_proxy", "https_proxy", "all_proxy")]
        raise CosydError(
            "model_missing", reason="bad_proxy", names=", ".join(sorted(names)), detail=str(error)
        ) from error


def headers_of(source: Source) -> dict[str, str]:
    """What this source wants to see."""
    return {"Authorization": f"Bearer {source.token}"} if source.token else {}


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait by a Retry-After header, as a number or a date; None when there is none."""
    if not value:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    return None


@contextlib.contextmanager
def answered(
    client: httpx.Client,
    source: Source,
    url: str,
    patience: Patience,
    headers: Mapping[str, str] | None = None,
) -> Iterator[httpx.Response]:
    """A successful answer, its body not read. Raises Again, CosydError(model_missing) with `refused`,
    `not_offered`, `source_broken`."""
    try:
        with client.stream("GET", url, headers={**headers_of(source), **(headers or {})}) as response:
            status = response.status_code
            if status in PASSING:
                wait = retry_after(response.headers.get("retry-after"), patience.wall())
                raise Again("busy" if status == 429 else "error", f"HTTP {status}", wait)
            if status in (401, 403):
                raise CosydError(
                    "model_missing", reason="refused", source=source.name, detail=f"HTTP {status}"
                )
            if status in (404, 410):
                raise CosydError("model_missing", reason="not_offered", source=source.name, detail=url)
            if status >= 300 and status != 416:
                raise CosydError(
                    "model_missing", reason="source_broken", source=source.name, detail=f"HTTP {status}"
                )
            yield response
    except httpx.TimeoutException as error:
        connecting = isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout)
        raise Again("unreachable" if connecting else "stalled", type(error).__name__) from error
    except (httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol) as error:
        raise Again("unreachable", str(error) or type(error).__name__) from error
    except httpx.TooManyRedirects as error:
        raise CosydError(
            "model_missing", reason="source_broken", source=source.name, detail=str(error)
        ) from error
    except httpx.TransportError as error:
        raise Again("cut", str(error) or type(error).__name__) from error


GIVEN_UP = {
    "unreachable": "no_network", "stalled": "stalled", "cut": "stalled", "busy": "too_many",
    "error": "source_broken", "checksum": "checksum",
}  # fmt: skip


def given_up(again: Again, source: Source, name: str) -> CosydError:
    """The error when the tries are used up."""
    return CosydError(
        "model_missing", reason=GIVEN_UP[again.why], source=source.name, file=name, detail=again.detail
    )


def pause(again: Again, tries: int, source: Source, name: str, meter: Meter, patience: Patience) -> None:
    """Wait before the next try: as long as the source asked for, else longer each time. Raises CosydError
    when `tries` are used up."""
    asked = again.after_s
    if tries >= TRIES or (asked is not None and asked > RETRY_AFTER_MAX_S):
        raise given_up(again, source, name) from again
    grown = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (tries - 1))
    seconds = asked if asked is not None else grown * random.uniform(0.75, 1.0)
    meter.wait(Waiting(again.why, seconds, tries))
    patience.sleep(seconds)


def get_json(
    client: httpx.Client, source: Source, url: str, meter: Meter, patience: Patience, tries: int
) -> Any:
    """The JSON of an address, at most 16 MB. Raises CosydError(model_missing)."""
    for attempt in range(1, tries + 1):
        try:
            with answered(client, source, url, patience) as response:
                body = b""
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > 16 << 20:
                        break
                try:
                    return json.loads(body)
                except ValueError as error:
                    raise CosydError(
                        "model_missing", reason="source_broken", source=source.name,
                        detail=f"no JSON from {url}",
                    ) from error  # fmt: skip
        except Again as again:
            if attempt == tries:
                raise given_up(again, source, url) from again
            pause(again, attempt, source, url, meter, patience)
    raise AssertionError("unreachable: the last try returns or raises")


def download(
    client: httpx.Client,
    source: Source,
    url: str,
    file: RemoteFile,
    target: Path,
    meter: Meter,
    patience: Patience,
) -> str:
    """Bring `file` to `target`; its SHA-256 or "". Raises CosydError(model_missing | storage_full)."""
    with room_errors(target.parent, file.size), Incoming(target, file) as incoming:
        meter.had(incoming.size)
        tries, mismatches = 0, 0
        while True:
            before = incoming.size
            try:
                if incoming.size < file.size:
                    _receive(client, source, url, file, incoming, meter, patience)
                if incoming.good:
                    meter.tell(file.path)
                    return incoming.finish()
                meter.had(-incoming.restart())
                mismatches += 1
                again = Again("checksum", f"{file.path}: {file.digest[:12]}")
                if mismatches > 1:  # what was kept of an earlier run may have been bad; a fresh one is not
                    raise given_up(again, source, file.path)
                tries = 0
            except Again as failed:
                again = failed
                tries = 1 if incoming.size > before else tries + 1
            pause(again, max(tries, 1), source, file.path, meter, patience)


def _receive(
    client: httpx.Client,
    source: Source,
    url: str,
    file: RemoteFile,
    incoming: Incoming,
    meter: Meter,
    patience: Patience,
) -> None:
    """One try: from where the part ends, or from the start where the server cannot do that."""
    headers = {"Range": f"bytes={incoming.size}-"} if incoming.size else {}
    with answered(client, source, url, patience, headers) as response:
        if response.status_code == 416 or not _continues(response, incoming.size, file.size):
            meter.had(-incoming.restart())
            if response.status_code != 200:
                raise Again("cut", f"HTTP {response.status_code} for a range")
        length = response.headers.get("content-length", "")
        if response.status_code == 200 and length.isdigit() and int(length) != file.size:
            raise CosydError(
                "model_missing", reason="source_broken", source=source.name,
                detail=f"{file.path}: {length} bytes, {file.size} announced",
            )  # fmt: skip
        looked_at, looked_size = patience.monotonic(), incoming.size
        for piece in response.iter_raw():  # as it comes: what is gathered to a size is lost when it is cut
            if incoming.size + len(piece) > file.size:
                meter.had(-incoming.restart())
                raise Again("checksum", f"{file.path}: more than {file.size} bytes")
            incoming.write(piece)
            meter.moved(file.path, len(piece))
            if (now := patience.monotonic()) - looked_at >= patience.slow_s:
                if incoming.size - looked_size < patience.slow_bytes and incoming.size < file.size:
                    raise Again("stalled", f"{incoming.size - looked_size} bytes in {now - looked_at:.0f} s")
                looked_at, looked_size = now, incoming.size
    if incoming.size < file.size:
        raise Again("cut", f"{incoming.size} of {file.size} bytes")


def _continues(response: httpx.Response, have: int, size: int) -> bool:
    """Whether the body goes on where we stopped."""
    if response.status_code != 206:
        return have == 0
    found = _RANGE.fullmatch(response.headers.get("content-range", ""))
    return found is not None and int(found[1]) == have and found[2] in ("*", str(size))
