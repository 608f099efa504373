"""Where the model can be had: addresses and listings of Hugging Face, its mirror and ModelScope. Pure.

Shapes, as their own clients use them. Hugging Face: `GET /api/models/REPO/revision/REV?blobs=true` names the
commit and each file with its size and either `lfs.sha256` or the git id of its content; files come from
`/REPO/resolve/COMMIT/PATH`, mostly by a redirect to another host. ModelScope: `GET /api/v1/models/REPO/repo/
files?Revision=REV&Recursive=true` has size and SHA-256 of all; files come from `/api/v1/models/REPO/repo`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal
from urllib.parse import quote, urlencode

from pipeline.codes import CosydError
from pipeline.messages import Language

Kind = Literal["huggingface", "modelscope"]

REPOSITORY = "FunAudioLLM/Fun-CosyVoice3-0.5B-2512"
"""The same name in both places."""

HUGGINGFACE, MIRROR, MODELSCOPE = (
    "https://huggingface.co", "https://hf-mirror.com", "https://www.modelscope.cn",
)  # fmt: skip
NAMES = ("huggingface", "hf-mirror", "modelscope")

_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Source:
    """One place. `token` goes to this host only, never to where it redirects."""

    name: str
    kind: Kind
    endpoint: str
    revision: str
    token: str = ""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that is offered. `sha256` of its content, or `git_sha1`, git's id of it; "" is not told."""

    path: str
    size: int
    sha256: str = ""
    git_sha1: str = ""

    @property
    def digest(self) -> str:
        """Whichever checksum there is."""
        return self.sha256 or self.git_sha1


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source offers. `revision` is the exact commit where the source tells it."""

    revision: str
    files: Mapping[str, RemoteFile]


def choose_sources(wanted: str, environ: Mapping[str, str], language: Language) -> tuple[Source, ...]:
    """The places to try, in order. `wanted` is one of NAMES, or "auto".

    HF_ENDPOINT replaces Hugging Face's address and comes first; without it people who read Chinese are sent
    to ModelScope first, others to Hugging Face. HF_TOKEN, MODELSCOPE_ENDPOINT (or its own MODELSCOPE_DOMAIN)
    and MODELSCOPE_API_TOKEN are honoured.
    """
    token = environ.get("HF_TOKEN", "").strip()
    own = environ.get("HF_ENDPOINT", "").strip().rstrip("/")
    domain = environ.get("MODELSCOPE_DOMAIN", "").strip().strip("/")
    scope = environ.get("MODELSCOPE_ENDPOINT", "").strip().rstrip("/") or (
        f"https://{domain}" if domain else MODELSCOPE
    )
    places = {
        "huggingface": Source("huggingface", "huggingface", own or HUGGINGFACE, "main", token),
        "hf-mirror": Source("hf-mirror", "huggingface", MIRROR, "main"),
        "modelscope": Source(
            "modelscope", "modelscope", scope, "master", environ.get("MODELSCOPE_API_TOKEN", "").strip()
        ),
    }
    if wanted != "auto":
        return (places[wanted],)
    if own:
        return (places["huggingface"], places["modelscope"])
    order = ("modelscope", "hf-mirror", "huggingface") if language == "zh" else (
        "huggingface", "modelscope", "hf-mirror")  # fmt: skip
    return tuple(places[name] for name in order)


def listing_url(source: Source, repository: str = REPOSITORY) -> str:
    """Where the names, sizes and checksums are."""
    if source.kind == "huggingface":
        return (
            f"{source.endpoint}/api/models/{repository}/revision/{quote(source.revision, safe='')}?blobs=true"
        )
    query = urlencode({"Revision": source.revision, "Recursive": "true"})
    return f"{source.endpoint}/api/v1/models/{repository}/repo/files?{query}"


def file_url(source: Source, revision: str, path: str, repository: str = REPOSITORY) -> str:
    """Where one file is. Hugging Face redirects large ones to another host."""
    if source.kind == "huggingface":
        return f"{source.endpoint}/{repository}/resolve/{quote(revision, safe='')}/{quote(path)}"
    query = urlencode({"Revision": revision, "FilePath": path})
    return f"{source.endpoint}/api/v1/models/{repository}/repo?{query}"


def parse_listing(source: Source, answer: Any) -> Listing:
    """The listing as a value. Raises CosydError(model_missing, source_broken) for anything else; names that
    would lead out of the folder are left out."""
    try:
        if source.kind == "huggingface":
            revision = str(answer.get("sha") or source.revision)
            found = [_huggingface(entry) for entry in answer["siblings"]]
        else:
            if answer.get("Code") != 200:
                raise ValueError(str(answer.get("Message"))[:200])
            revision = source.revision
            entries = answer["Data"]["Files"]
            found = [_modelscope(e) for e in entries if e.get("Type", "blob") != "tree"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CosydError(
            "model_missing", reason="source_broken", source=source.name, detail=f"listing: {error}"
        ) from error
    return Listing(revision, {file.path: file for file in found if _stays_inside(file.path)})


def _huggingface(entry: Mapping[str, Any]) -> RemoteFile:
    lfs = entry.get("lfs") or {}
    return RemoteFile(
        path=str(entry["rfilename"]),
        size=_size(lfs.get("size", entry.get("size"))),
        sha256=_hash(lfs.get("sha256") or lfs.get("oid"), _SHA256),
        git_sha1="" if lfs else _hash(entry.get("blobId"), _SHA1),
    )


def _modelscope(entry: Mapping[str, Any]) -> RemoteFile:
    return RemoteFile(str(entry["Path"]), _size(entry.get("Size")), _hash(entry.get("Sha256"), _SHA256))


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"size {value!r}")
    return value


def _hash(value: Any, form: re.Pattern[str]) -> str:
    text = str(value or "").lower().removeprefix("sha256:")
    return text if form.fullmatch(text) else ""


def _stays_inside(path: str) -> bool:
    pure = PurePosixPath(path)
    return bool(path) and not pure.is_absolute() and ".." not in pure.parts and "\\" not in path
