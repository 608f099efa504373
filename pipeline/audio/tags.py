"""What a file that leaves says of itself: that it is AI-generated, and by which generation. Pure bytes.

The tag is one comment in the place each format has for it, before the sound, so that a stream carries it too:
RIFF INFO in wav, a Vorbis comment in flac and opus, ID3v2.4 in mp3 and aac (ADTS has nothing of its own, and
what reads it skips ID3 as HTTP Live Streaming does), `comment` in m4a. Raw samples have no place for one.
`outputs.ai_tag = false` switches it off. Used by `pipeline.audio.encode`.
"""

from __future__ import annotations

import io
import shutil
import struct
from pathlib import Path
from typing import IO

SOFTWARE = "cosyd"
_VORBIS_COMMENT, _PADDING = 4, 1


def ai_tag(generation_id: str) -> str:
    """The comment for one generation; English whoever reads it, since programs look for these words."""
    return f"AI-generated speech; cosyd generation {generation_id}"


def riff_info(tag: str) -> bytes:
    """A LIST chunk for a wav file, to stand before its `data`; empty without a tag."""
    if not tag:
        return b""
    items = b"".join(_riff_chunk(name, text) for name, text in ((b"ICMT", tag), (b"ISFT", SOFTWARE)))
    return struct.pack("<4sI", b"LIST", 4 + len(items)) + b"INFO" + items


def _riff_chunk(name: bytes, text: str) -> bytes:
    data = text.encode("ascii", "replace") + b"\0"
    return struct.pack("<4sI", name, len(data)) + data + b"\0" * (len(data) % 2)


def id3(tag: str) -> bytes:
    """An ID3v2.4 tag (id3.org, 2000) to stand before the first frame; empty without a tag."""
    if not tag:
        return b""
    frames = _id3_frame(b"TSSE", b"\3" + SOFTWARE.encode()) + _id3_frame(b"COMM", b"\3eng\0" + tag.encode())
    return b"ID3\4\0\0" + _syncsafe(len(frames)) + frames


def _id3_frame(name: bytes, data: bytes) -> bytes:
    return name + _syncsafe(len(data)) + b"\0\0" + data


def _syncsafe(number: int) -> bytes:
    """28 bits in four bytes of seven, so that no byte looks like the start of a frame of sound."""
    return bytes((number >> shift) & 0x7F for shift in (21, 14, 7, 0))


def copy_flac(source: Path, out: Path, tag: str) -> None:
    """Copy a FLAC file of ours with `tag` as its only comment; the sound is not touched. Raises OSError,
    ValueError for what is no FLAC."""
    with source.open("rb") as old, out.open("wb") as new:
        _copy_flac(old, new, tag)


def flac_bytes(source: Path, tag: str) -> bytes:
    """The same in memory, for what is short."""
    with source.open("rb") as old, io.BytesIO() as new:
        _copy_flac(old, new, tag)
        return new.getvalue()


def _copy_flac(old: IO[bytes], new: IO[bytes], tag: str) -> None:
    if tag:
        if old.read(4) != b"fLaC":
            raise ValueError("no FLAC file")
        blocks: list[tuple[int, bytes]] = []
        last = False
        while not last:
            head = old.read(4)
            if len(head) < 4:
                raise ValueError("a FLAC file that ends in its header")
            last, kind = bool(head[0] & 0x80), head[0] & 0x7F
            data = old.read(int.from_bytes(head[1:], "big"))
            if kind not in (_VORBIS_COMMENT, _PADDING):
                blocks.append((kind, data))
        blocks.insert(1, (_VORBIS_COMMENT, _vorbis_comment(tag)))  # STREAMINFO must be the first
        new.write(b"fLaC")
        for at, (kind, data) in enumerate(blocks):
            flag = 0x80 if at + 1 == len(blocks) else 0
            new.write(bytes([flag | kind]) + len(data).to_bytes(3, "big") + data)
    shutil.copyfileobj(old, new)


def _vorbis_comment(tag: str) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<I", len(value.encode())) + value.encode()

    return text(SOFTWARE) + struct.pack("<I", 1) + text(f"COMMENT={tag}")
