"""A job's samples as one of the six formats, on the way out. Encoding steps run in the audio threads."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Callable

from pipeline.audio.encode import StreamEncoder, open_encoder
from pipeline.child import clean_up
from ui.services import Services

INLINE_FORMATS = frozenset({"pcm", "wav"})
"""Nothing to compute: encoded on the event loop, which saves a thread hop before the first byte."""


async def encoded(
    services: Services, pcm: AsyncGenerator[bytes, None], format: str, tag: str
) -> AsyncGenerator[bytes, None]:
    """`pcm` (s16le pieces) in `format`, none of the pieces empty; `tag` as in `pipeline.audio.tags`. Raises
    what `pcm` raises, after closing."""
    inline = format in INLINE_FORMATS

    def begin() -> StreamEncoder:
        return open_encoder(format, tag=tag)

    encoder = begin() if inline else await services.in_audio_thread(begin)
    try:
        async for piece in pcm:
            out = encoder.encode(piece) if inline else await _step(services, encoder.encode, piece)
            if out:
                yield out
        if out := await services.in_audio_thread(encoder.finish):
            yield out
    finally:
        await pcm.aclose()
        await services.in_audio_thread(encoder.close)
        if not inline:
            # A codec's tables come and go between small blocks that stay: the holes go back at once, else the
            # page grows by 2.6 KB a recording. About a millisecond, in the audio thread.
            await services.in_audio_thread(clean_up)


async def _step(services: Services, encode: Callable[[bytes], bytes], piece: bytes) -> bytes:
    return await services.in_audio_thread(lambda: encode(piece))


def with_exact_sizes(wav: bytes) -> bytes:
    """A streamed wav, whole, with its two unknown sizes filled in; strict readers want them"""
    at = 12  # behind RIFF, size, WAVE; then chunks: fmt, what it says of itself, data
    while wav[:4] == b"RIFF" and at + 8 <= len(wav):
        name, size = wav[at : at + 4], struct.unpack("<I", wav[at + 4 : at + 8])[0]
        if name == b"data":
            sizes = struct.pack("<I", len(wav) - 8), struct.pack("<I", len(wav) - at - 8)
            return wav[:4] + sizes[0] + wav[8 : at + 4] + sizes[1] + wav[at + 8 :]
        at += 8 + size + size % 2
    return wav
