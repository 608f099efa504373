"""A server that speaks like Hugging Face and ModelScope, with a CDN on another port, and breaks on demand.

Real sockets, a thread for each connection. Shapes as the two sources' own clients read them: listings with
sizes and checksums, `resolve` with a redirect and `X-Linked-*` headers, `Range`, 404 as a JSON or HTML page.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pipeline.fetching.sources import REPOSITORY

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LFS = (".pt", ".onnx", ".safetensors")


@dataclass
class Seen:
    """One request: path with query, the headers that tests look at."""

    host: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Hub:
    """What is offered, what was asked, and what to do wrong.

    `faults` maps a file name to acts, each used once: a status, "cut" (half of the body), "stall", "trickle",
    "flip" (a wrong byte), "no-range", "longer", "html"; "listing" is a name too."""

    files: Mapping[str, bytes]
    faults: dict[str, list[Any]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    listing_sha: Callable[[str, bytes], str] = lambda name, body: hashlib.sha256(body).hexdigest()
    retry_after: str = "0"
    api_url: str = ""
    cdn_url: str = ""

    def asked(self, name: str) -> list[Seen]:
        """Requests for the content of one file, at the CDN or where there is no redirect."""
        return [s for s in self.seen if s.path.split("?")[0].endswith("/blob/" + name)]

    def listing(self) -> dict[str, Any]:
        """Hugging Face's model info with `blobs=true`."""
        siblings = []
        for name, body in self.files.items():
            git = hashlib.sha1(f"blob {len(body)}\0".encode() + body, usedforsecurity=False).hexdigest()
            entry: dict[str, Any] = {"rfilename": name, "size": len(body), "blobId": git}
            if name.endswith(LFS):
                entry["blobId"] = "f" * 40
                entry["lfs"] = {"sha256": self.listing_sha(name, body), "size": len(body), "pointerSize": 134}
            siblings.append(entry)
        return {"_id": "x", "id": REPOSITORY, "sha": COMMIT, "private": False, "siblings": siblings}

    def scope_listing(self) -> dict[str, Any]:
        """ModelScope's answer to `repo/files`."""
        files: list[dict[str, Any]] = [
            {
                "Name": "CosyVoice-BlankEN",
                "Path": "CosyVoice-BlankEN",
                "Type": "tree",
                "Size": 0,
                "Sha256": "",
            }
        ]
        files += [
            {
                "Name": name.rpartition("/")[2], "Path": name, "Type": "blob", "Size": len(body),
                "Sha256": self.listing_sha(name, body), "Revision": "abc", "Mode": "33188",
            }
            for name, body in self.files.items()
        ]  # fmt: skip
        return {
            "Code": 200,
            "Data": {"Files": files},
            "Message": "success",
            "RequestId": "r",
            "Success": True,
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, parts = self.hub, urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        hub.seen.append(
            Seen(
                self.headers["Host"], self.path, self.headers.get("Range"), self.headers.get("Authorization")
            )
        )
        if path == f"/api/models/{REPOSITORY}/revision/main":
            return self._fault("listing") or self._send_json(hub.listing())
        if path == f"/api/v1/models/{REPOSITORY}/repo/files":
            return self._fault("listing") or self._send_json(hub.scope_listing())
        if path == f"/api/v1/models/{REPOSITORY}/repo":
            return self._redirect(query["FilePath"][0])
        prefix = f"/{REPOSITORY}/resolve/{COMMIT}/"
        if path.startswith(prefix):
            return self._redirect(path.removeprefix(prefix))
        if path.startswith("/blob/"):
            return self._blob(path.removeprefix("/blob/"))
        return self._send_json({"error": "Repository not found"}, 404)

    def _redirect(self, name: str) -> None:
        body = self.hub.files.get(name)
        if body is None:
            return self._send_json({"error": "Entry not found"}, 404)
        large = name.endswith(LFS)  # small ones come from the same host, by a relative address
        self.send_response(302 if large else 307)
        self.send_header("Location", f"{self.hub.cdn_url if large else ''}/blob/{name}?Signature=x")
        self.send_header("X-Linked-Size", str(len(body)))
        self.send_header("X-Linked-Etag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def _take(self, name: str) -> Any:
        queue = self.hub.faults.get(name)
        return queue.pop(0) if queue else None

    def _fault(self, name: str) -> bool | None:
        """Answer with a failure when one is due."""
        act = self._take(name)
        if act is None:
            return None
        if act == "html":
            self._send(b"<html>Please sign in to the hotel's network</html>", "text/html")
        else:
            self._status(act)
        return True

    def _status(self, status: int) -> None:
        self.send_response(status)
        if status in (429, 503):
            self.send_header("Retry-After", self.hub.retry_after)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _blob(self, name: str) -> None:
        body, act = self.hub.files[name], self._take(name)
        if isinstance(act, int):
            return self._status(act)
        if act == "html":
            return self._send(b"<html>Please sign in</html>", "text/html")
        if act == "flip":
            body = bytes([body[0] ^ 1]) + body[1:]
        if act == "longer":
            return self._send(body + b"x", "application/octet-stream", chunked=True)
        start = 0
        if (asked := self.headers.get("Range")) and act != "no-range":
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            if start >= len(body):
                return self._status(416)
        rest = body[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if act == "cut":
            self.wfile.write(rest[: len(rest) // 2])
            self.close_connection = True
            return None
        if act == "stall":
            self.wfile.write(rest[: len(rest) // 3])
            self.wfile.flush()
            self.hub.released.wait(60)
            self.close_connection = True
            return None
        if act == "trickle":
            for byte in rest:
                self.wfile.write(bytes([byte]))
                if self.hub.released.wait(0.02):
                    break
            self.close_connection = True
            return None
        self.wfile.write(rest)
        return None

    def _send_json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", status)

    def _send(self, body: bytes, kind: str, status: int = 200, chunked: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is part of the play."""


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[Hub]:
    """A hub with its API and its CDN, on two free ports, under two host names."""
    hub = Hub(files)
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [_Server(("127.0.0.1", 0), handler) for _ in range(2)]
    hub.api_url = f"http://127.0.0.1:{servers[0].server_address[1]}"
    hub.cdn_url = f"http://localhost:{servers[1].server_address[1]}"
    threads = [threading.Thread(target=s.serve_forever, args=(0.05,)) for s in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
