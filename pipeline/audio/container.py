"""Was a file cut off? What its header promises against the bytes that are there. Pure; reads, never decodes.

A half-sent WAV opens without complaint and passes for a short clip. Known here: RIFF and RF64 (WAV), FORM
(AIFF) and the boxes of MP4, QuickTime and 3GP. Other containers come as streams or are checked by decoding.
"""

from __future__ import annotations

from typing import BinaryIO

_STREAMED = 0x7FFF0000
"""Sizes from here on stand for "not known yet" (sox and ffmpeg write them into pipes), as does 0."""
_MOST_PARTS = 10_000


def is_cut_off(file: BinaryIO, size: int) -> bool:
    """True when parts of a file of `size` bytes are missing at its end. The position is changed."""
    file.seek(0)
    head = file.read(12)
    if len(head) < 12:
        return False
    if head[:4] in (b"RIFF", b"RIFX", b"FORM", b"RF64"):
        return _chunks_end(file, size, "big" if head[:4] in (b"RIFX", b"FORM") else "little")
    return _boxes_end(file, size) if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free") else False


def _chunks_end(file: BinaryIO, size: int, order: str) -> bool:
    """Chunks of RIFF and FORM: id, 32-bit size, bytes, padded to an even number."""
    at, missing = 12, False
    for _ in range(_MOST_PARTS):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            return missing
        length = int.from_bytes(head[4:], "little" if order == "little" else "big")
        if head[:4] in (b"data", b"SSND"):
            return 0 < length < _STREAMED and at + 8 + length > size
        at += 8 + length + length % 2
        missing = at > size + 1
    return False


def _boxes_end(file: BinaryIO, size: int) -> bool:
    """Boxes: 32-bit size, kind; size 1 means that 64 bits follow, 0 that it goes to the end. The table of
    contents is wanted too: without it nothing can be read."""
    at, contents = 0, False
    for _ in range(_MOST_PARTS):
        file.seek(at)
        head = file.read(16)
        if len(head) < 8:
            return not contents or at != size
        length, kind = int.from_bytes(head[:4], "big"), head[4:8]
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        contents = contents or kind == b"moov"
        if length == 0:
            return not contents
        if length < 8 or at + length > size:
            return True
        at += length
    return False
