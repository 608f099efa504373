"""Converted weights on disk: one safetensors file for each part and dtype, mapped at start.

A part `flow-bf16` has a stamp `flow-bf16.json` that names its file and the official files it came from, with
size, mtime, inode and SHA-256. While size, mtime and inode match, the hash is trusted and nothing big is
read; if they do not, the hash decides. Files are written beside, synced and renamed, so a cache is whole or
absent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pipeline.engines.cosyvoice3.config import FlowConfig, LlmConfig, VocoderConfig
from pipeline.engines.cosyvoice3.convert import LAYOUT, Item
from pipeline.engines.cosyvoice3.errors import problem

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
}
_ALIGN = 64
_BLOCK = 1 << 24
_progress: ContextVar[Callable[[], None] | None] = ContextVar("progress", default=None)
_hashes: dict[tuple[str, int, int, int], str] = {}
"""What this process has hashed: two parts come from llm.pt, and it is 2 GB."""
Config = LlmConfig | FlowConfig | VocoderConfig


@dataclass(frozen=True, slots=True)
class Source:
    """One official file as it was at conversion."""

    name: str
    size: int
    mtime_ns: int
    inode: int
    sha256: str

    def unchanged(self, folder: Path) -> bool:
        """True when the file looks the same without reading it."""
        try:
            stat = (folder / self.name).stat()
        except OSError:
            return False
        return (stat.st_size, stat.st_mtime_ns, stat.st_ino) == (self.size, self.mtime_ns, self.inode)


@dataclass(frozen=True, slots=True)
class Part:
    """A converted part: its mapped tensors and the configuration of its model."""

    tensors: dict[str, torch.Tensor]
    config: dict[str, Any]
    path: Path


@contextmanager
def progress_to(listener: Callable[[], None] | None) -> Iterator[None]:
    """While hashing and converting inside, `listener` is called at least every few megabytes: a first start
    reads and writes gigabytes, and whoever waits for it must see that it is at work."""
    token = _progress.set(listener)
    try:
        yield
    finally:
        _progress.reset(token)


def _tell() -> None:
    if (listener := _progress.get()) is not None:
        listener()


def hash_file(path: Path) -> str:
    """SHA-256 of the content."""
    digest, block = hashlib.sha256(), bytearray(_BLOCK)
    view = memoryview(block)
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(block):
            digest.update(view[:count])
            _tell()
    return digest.hexdigest()


def describe_source(folder: Path, name: str) -> Source:
    """Read one official file through and describe it. Raises EngineUnavailable(changed_while_reading)."""
    path = folder / name
    before = path.stat()
    key = (str(path), before.st_size, before.st_mtime_ns, before.st_ino)
    digest = _hashes.get(key) or hash_file(path)
    after = path.stat()
    if (before.st_size, before.st_mtime_ns, before.st_ino) != (
        after.st_size,
        after.st_mtime_ns,
        after.st_ino,
    ):
        raise problem("changed_while_reading", name)
    _hashes[key] = digest
    return Source(name, after.st_size, after.st_mtime_ns, after.st_ino, digest)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_tensors(path: Path, items: Sequence[Item]) -> None:
    """Write a safetensors file one tensor at a time, then rename it into place. The largest tensor bounds the
    memory."""
    header: dict[str, Any] = {}
    offset = 0
    for item in items:
        count = 1
        for n in item.shape:
            count *= n
        size = count * torch.empty(0, dtype=item.dtype).element_size()
        header[item.name] = {
            "dtype": _NAMES[item.dtype],
            "shape": list(item.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            for item in items:
                tensor = item.make().contiguous()
                if tuple(tensor.shape) != item.shape or tensor.dtype != item.dtype:
                    raise AssertionError(f"{item.name}: {tuple(tensor.shape)} {tensor.dtype}")
                content = tensor.reshape(-1).view(torch.uint8).numpy().data
                for at in range(0, len(content), _BLOCK):
                    stream.write(content[at : at + _BLOCK])
                    _tell()
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise problem("cannot_write", str(path), error.strerror or str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _remove_leftovers(folder: Path) -> None:
    """Half-written files of processes that are gone: a killed conversion leaves hundreds of megabytes."""
    for path in folder.glob("*.part"):
        pid = path.name.split(".")[-2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            path.unlink(missing_ok=True)


def map_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a safetensors file as a view of the mapped file. Raises SafetensorError, OSError."""
    with safe_open(str(path), framework="pt", device="cpu") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping


def _write_stamp(path: Path, stamp: dict[str, Any]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("w") as stream:
            json.dump(stamp, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        raise problem("cannot_write", str(path), error.strerror or str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _read_stamp(path: Path) -> tuple[dict[str, Any], list[Source]] | None:
    try:
        stamp = json.loads(path.read_text("utf-8"))
        sources = [Source(**s) for s in stamp["sources"]]
        if stamp["layout"] != LAYOUT or not isinstance(stamp["config"], dict) or not sources:
            return None
        if (path.parent / Path(stamp["file"]).name).stat().st_size != stamp["size"]:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return stamp, sources


@dataclass(frozen=True, slots=True)
class Cache:
    """The folder of converted parts of one official directory. Several processes may use it."""

    folder: Path
    official: Path

    def find(self, part: str) -> Part | None:
        """The converted `part` when it belongs to the official files as they are now; mapped, not read."""
        stamp_path = self.folder / f"{part}.json"
        found = _read_stamp(stamp_path)
        if found is None:
            return None
        stamp, sources = found
        if not all(s.unchanged(self.official) for s in sources):
            try:
                now = [describe_source(self.official, s.name) for s in sources]
            except OSError:
                return None
            if [s.sha256 for s in now] != [s.sha256 for s in sources]:
                return None
            _write_stamp(stamp_path, {**stamp, "sources": [dataclasses.asdict(s) for s in now]})
        path = self.folder / Path(stamp["file"]).name
        try:
            return Part(map_tensors(path), stamp["config"], path)
        except (SafetensorError, OSError):
            return None

    def store(self, part: str, names: Iterable[str], config: Config, items: Sequence[Item]) -> Part:
        """Write `part`, made from the official files `names`, and map it. Raises EngineUnavailable."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise problem("cannot_write", str(self.folder), error.strerror or str(error)) from error
        _remove_leftovers(self.folder)
        before = [describe_source(self.official, name) for name in names]
        key = hashlib.sha256("".join(s.sha256 for s in before).encode()).hexdigest()[:12]
        path = self.folder / f"{part}-{LAYOUT}-{key}.safetensors"
        write_tensors(path, items)
        if not all(s.unchanged(self.official) for s in before):
            path.unlink(missing_ok=True)
            raise problem("changed_while_reading", ", ".join(s.name for s in before))
        stamp = {
            "layout": LAYOUT,
            "file": path.name,
            "size": path.stat().st_size,
            "config": dataclasses.asdict(config),
            "sources": [dataclasses.asdict(s) for s in before],
        }
        _write_stamp(self.folder / f"{part}.json", stamp)
        for old in self.folder.glob(f"{part}-[0-9]*-*.safetensors"):
            if old.name != path.name:
                old.unlink(missing_ok=True)
        return Part(map_tensors(path), dataclasses.asdict(config), path)

    def get(
        self, part: str, names: Sequence[str], make: Callable[[], tuple[Config, Sequence[Item]]]
    ) -> tuple[Part, bool]:
        """The part and whether it had to be converted."""
        if (found := self.find(part)) is not None:
            return found, False
        config, items = make()
        return self.store(part, names, config, items), True
