"""Bytes of a stranger to blocks of samples: libsndfile, else ffmpeg. Only in the confined child.

The content decides, never the name: libsndfile is given a descriptor, ffmpeg `/dev/stdin` (the same file, so
that it can seek). ffmpeg may open real audio containers only, none that names other files: a `.wav` that
holds a playlist would otherwise decode a neighbour's file. `avi` is left out for that reason (its GAB2
subtitles are opened as whatever they claim to be), and only audio decoders are allowed, since the search for
streams opens those of pictures as well.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

MOST_CHANNELS = 8
LOWEST_RATE, HIGHEST_RATE = 1_000, 768_000
BLOCK = 65_536
"""Samples of a block, all channels together at most about this many."""

CONTAINERS = (
    "aac,ac3,aiff,amr,amrnb,amrwb,ape,asf,au,caf,dsf,eac3,flac,matroska,mov,mp3,mpc,mpc8,ogg,tak,tta,voc,w64,"
    "wav,wv"
)
DECODERS = (
    "aac,aac_fixed,aac_latm,ac3,eac3,alac,als,amrnb,amrwb,libopencore_amrnb,libopencore_amrwb,"
    "ape,flac,mp1float,mp2,mp2float,mp3,mp3float,mp1,mpc7,mpc8,opus,libopus,vorbis,"
    "libvorbis,tak,tta,wavpack,wmav1,wmav2,wmapro,wmavoice,wmalossless,gsm,gsm_ms,adpcm_ms,"
    "adpcm_ima_wav,adpcm_ima_qt,adpcm_yamaha,pcm_alaw,pcm_mulaw,pcm_u8,pcm_s8,pcm_s16le,"
    "pcm_s16be,pcm_s24le,pcm_s24be,pcm_s32le,pcm_s32be,pcm_f32le,pcm_f32be,pcm_f64le,pcm_f64be,"
    "pcm_s16le_planar,dsd_lsbf,dsd_msbf,dsd_lsbf_planar,dsd_msbf_planar,ilbc,speex,libspeex,qdm2,"
    "qdmc,mace3,mace6"
)


@dataclass(frozen=True, slots=True)
class Stream:
    """What is coming: `rate`, `channels`; `exact` for samples that were stored as floating point numbers
    (they may exceed 1 unclipped); `promised` samples by the header, None when it does not say."""

    rate: int
    channels: int
    exact: bool
    promised: int | None
    blocks: Iterator[F32]
    """[n, channels], at most `BLOCK` numbers each."""


class Unreadable(Exception):
    """No decoder takes it."""


def open_sndfile(fd: int, seconds: float) -> Stream:
    """By libsndfile. Raises Unreadable."""
    import soundfile

    try:
        file = soundfile.SoundFile(fd, closefd=False)
    except (soundfile.LibsndfileError, OSError, ValueError, TypeError) as error:
        raise Unreadable from error
    rate, channels = file.samplerate, file.channels
    if not LOWEST_RATE <= rate <= HIGHEST_RATE or not 0 < channels <= MOST_CHANNELS:
        raise Unreadable

    def blocks() -> Iterator[F32]:
        left = int(seconds * rate)
        while left > 0:
            block = file.read(min(left, BLOCK // channels), dtype="float32", always_2d=True)
            if not len(block):
                return
            left -= len(block)
            yield block

    exact = file.subtype in ("FLOAT", "DOUBLE")
    promised = file.frames if file.format == "FLAC" and 0 < file.frames < 2**40 else None
    return Stream(rate, channels, exact, promised, _whole(blocks(), soundfile.LibsndfileError))


def open_ffmpeg(seconds: float) -> Stream:
    """By an ffmpeg that reads our standard input, where it is installed. Raises Unreadable."""
    program = shutil.which("ffmpeg")
    if program is None:
        raise Unreadable
    command = [
        program, "-nostdin", "-hide_banner", "-loglevel", "quiet", "-protocol_whitelist", "file,pipe",
        "-format_whitelist", CONTAINERS, "-codec_whitelist", DECODERS, "-threads", "1", "-t", f"{seconds:g}",
        "-i", "file:/dev/stdin", "-map", "0:a:0", "-vn", "-sn", "-dn", "-map_metadata", "-1", "-threads", "1",
        "-t", f"{seconds:g}", "-c:a", "pcm_f32be", "-f", "au", "pipe:1",
    ]  # fmt: skip
    child = subprocess.Popen(command, stdin=None, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    # An AU file as ffmpeg writes it to a pipe: magic, offset of samples, size, encoding 6, rate, channels.
    head = child.stdout.read(24)
    if len(head) < 24 or head[:4] != b".snd":
        child.stdout.close()
        child.wait()
        raise Unreadable
    offset, _, encoding, rate, channels = struct.unpack(">5I", head[4:])
    if encoding != 6 or not LOWEST_RATE <= rate <= HIGHEST_RATE or not 0 < channels <= MOST_CHANNELS:
        child.stdout.close()
        child.wait()
        raise Unreadable
    child.stdout.read(min(offset - 24, 65536))
    return Stream(rate, channels, False, None, _whole(_from_pipe(child, child.stdout, channels), OSError))


def _from_pipe(child: subprocess.Popen[bytes], pipe: IO[bytes], channels: int) -> Iterator[F32]:
    frame = 4 * channels
    with child, pipe:
        while data := pipe.read(BLOCK // channels * frame):
            samples = np.frombuffer(data[: len(data) // frame * frame], ">f4")
            yield samples.astype(np.float32).reshape(-1, channels)


def _whole(blocks: Iterator[F32], trouble: type[Exception]) -> Iterator[F32]:
    """`blocks`, ending where a decoder gives up: what came before is good. Raises Unreadable when nothing
    came."""
    found = False
    try:
        for block in blocks:
            found = True
            yield block
    except trouble as error:
        if not found:
            raise Unreadable from error
    if not found:
        raise Unreadable
