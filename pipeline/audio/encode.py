"""The six audio formats: as a stream while a job runs, and exactly, from the finished FLAC.

libsndfile writes flac and opus into memory that is emptied after each call; headers that it would mend at
the end are left as they were sent (sizes unknown). mp3 is made by LAME itself: through libsndfile each mp3
left 2.9 KB behind, the largest leak of the web process. aac is made by an ffmpeg child. Measured on two cores
at 2.x GHz: 10 s of speech cost 4 ms as flac, 35 ms as mp3, 70 ms as opus.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Protocol

import numpy as np

from pipeline.audio.files import disk_errors, sndfile_error
from pipeline.audio.tags import SOFTWARE, copy_flac, id3, riff_info
from pipeline.codes import CosydError
from pipeline.jobs import FORMATS, SAMPLE_RATE

MIME_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "wav": "audio/wav",
        "flac": "audio/flac",
        "mp3": "audio/mpeg",
        "opus": "audio/ogg; codecs=opus",
        "aac": "audio/aac",
        "pcm": "audio/pcm",
    }
)
"""Content-Type by format. Ogg, not audio/opus, since that is what a browser's audio element knows."""

EXTENSIONS: Mapping[str, str] = MappingProxyType({name: f".{name}" for name in FORMATS})

_AAC_BITRATE = "96k"
_MP3_KBIT = 80
"""Constant: players work out the length of a stream from its bitrate."""
_MP3_QUALITY = 5  # LAME's scale, 0 best to 9 fastest
_SNDFILE: Mapping[str, Mapping[str, Any]] = {
    "wav": {"format": "WAV", "subtype": "PCM_16"},
    "flac": {"format": "FLAC", "subtype": "PCM_16"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
}
_SET_OGG_PAGE_LATENCY_MS = 0x1302  # sndfile.h; the default of a second would be heard as a late start
_UNKNOWN_SIZE = 0xFFFFFFFF


class StreamEncoder(Protocol):
    """s16le in, encoded bytes out; what is not out yet comes with a later call. One thread at a time."""

    def encode(self, pcm: bytes) -> bytes:
        """Take s16le samples (whole ones) and return the bytes that are ready, possibly none."""
        ...

    def finish(self) -> bytes:
        """No more samples: the remaining bytes."""
        ...

    def close(self) -> None:
        """Let go of everything without finishing. Idempotent; also fine after `finish`."""
        ...


def missing_program(format: str) -> str:
    """The program that `format` needs and that is not installed; "" when it can be made."""
    return "ffmpeg" if format == "aac" and shutil.which("ffmpeg") is None else ""


def check_format(format: str) -> None:
    """Raises CosydError(unknown_format), with `missing` when a program would be needed for it."""
    if format not in FORMATS:
        raise CosydError("unknown_format", value=format[:80], allowed=", ".join(FORMATS), missing="")
    if missing := missing_program(format):
        usable = ", ".join(f for f in FORMATS if not missing_program(f))
        raise CosydError(
            "unknown_format", value=format, allowed=usable, missing=missing, reason="missing_program"
        )


def open_encoder(format: str, rate: int = SAMPLE_RATE, tag: str = "") -> StreamEncoder:
    """An encoder for a mono stream of unknown length; `tag` is what it says of itself (`audio.tags`). Raises
    CosydError(unknown_format)."""
    check_format(format)
    if format == "pcm":
        return _Raw(b"")
    if format == "wav":
        return _Raw(_wav_header(rate, tag))
    if format == "aac":
        return _Led(id3(tag), _Ffmpeg(rate))
    if format == "mp3":
        return _Led(id3(tag), _Lame(rate))
    return _Sndfile(format, rate, tag)


def encode_file(source: Path, format: str, out: Path, tag: str = "") -> None:
    """Make `out` from a finished FLAC, with exact sizes in its header; written beside, then renamed. aac in a
    file named .m4a or .mp4 gets that container.

    Raises CosydError(unknown_format | storage_full | internal).
    """
    import soundfile

    check_format(format)
    part = out.with_name(out.name + ".part")
    try:
        with disk_errors():
            if format == "flac":
                copy_flac(source, part, tag)
            elif format == "aac":
                _ffmpeg_file(source, part, tag, m4a=out.suffix.lower() in (".m4a", ".mp4"))
            elif format == "pcm":
                with part.open("wb") as raw:
                    for block in _blocks(source):
                        raw.write(block.astype("<i2", copy=False).tobytes())
            elif format == "mp3":
                lame = _Lame(SAMPLE_RATE)
                with part.open("wb") as raw:
                    raw.write(id3(tag))
                    for block in _blocks(source):
                        raw.write(lame.encode(block.astype("<i2", copy=False).tobytes()))
                    raw.write(lame.finish())
            else:
                with soundfile.SoundFile(part, "w", SAMPLE_RATE, 1, **_SNDFILE[format]) as encoded:
                    _set_comment(encoded, tag)
                    for block in _blocks(source):
                        encoded.write(block)
            os.rename(part, out)
    except soundfile.LibsndfileError as error:
        raise sndfile_error(error, out) from error
    finally:
        part.unlink(missing_ok=True)


def _blocks(source: Path) -> Iterator[np.ndarray[Any, np.dtype[np.int16]]]:
    import soundfile

    with soundfile.SoundFile(source) as file:
        while len(block := file.read(4 * SAMPLE_RATE, dtype="int16")):
            yield block


def _set_comment(file: Any, tag: str) -> None:
    """Before the first sample, since the header goes out with it."""
    if tag:
        file.comment, file.software = tag, SOFTWARE


def _wav_header(rate: int, tag: str) -> bytes:
    """RIFF header of a stream: both sizes say "unknown" by being as large as they can."""
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16)
    return (
        struct.pack("<4sI4s", b"RIFF", _UNKNOWN_SIZE, b"WAVE")
        + fmt
        + riff_info(tag)
        + struct.pack("<4sI", b"data", _UNKNOWN_SIZE)
    )


@dataclass
class _Raw:
    """Samples as they are, after an optional header."""

    header: bytes

    def encode(self, pcm: bytes) -> bytes:
        out, self.header = self.header + pcm, b""
        return out

    def finish(self) -> bytes:
        return self.encode(b"")

    def close(self) -> None:
        pass


@dataclass
class _Led:
    """What `encoder` makes, with `lead` before its first bytes: not earlier, so that a header alone is never
    taken for the beginning of the sound."""

    lead: bytes
    encoder: StreamEncoder

    def _led(self, data: bytes) -> bytes:
        if not data:
            return data
        out, self.lead = self.lead + data, b""
        return out

    def encode(self, pcm: bytes) -> bytes:
        return self._led(self.encoder.encode(pcm))

    def finish(self) -> bytes:
        return self._led(self.encoder.finish())

    def close(self) -> None:
        self.encoder.close()


class _Sink:
    """A write-only file for libsndfile: keeps what is appended, drops what would change sent bytes."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._at = self._end = 0

    def write(self, data: Any) -> int:
        data = bytes(data)
        if self._at == self._end:
            self._kept += data
            self._end += len(data)
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def take(self) -> bytes:
        data = bytes(self._kept)
        self._kept.clear()
        return data


class _Lame:
    """mp3 by LAME, at a constant bitrate."""

    def __init__(self, rate: int) -> None:
        import lameenc

        self._lame: Any = lameenc.Encoder()
        self._lame.silence()  # else it reports to stdout
        self._lame.set_channels(1)
        self._lame.set_in_sample_rate(rate)
        self._lame.set_bit_rate(_MP3_KBIT)
        self._lame.set_quality(_MP3_QUALITY)
        self._begun = False

    def encode(self, pcm: bytes) -> bytes:
        self._begun = self._begun or bool(pcm)
        return bytes(self._lame.encode(pcm)) if pcm else b""

    def finish(self) -> bytes:
        if not self._begun:  # LAME refuses to end what never began
            return b""
        self._begun = False
        return bytes(self._lame.flush())

    def close(self) -> None:
        self._begun = False


class _Sndfile:
    """flac and opus by libsndfile."""

    def __init__(self, format: str, rate: int, tag: str) -> None:
        import soundfile

        self._sink = _Sink()
        self._file = soundfile.SoundFile(self._sink, "w", rate, 1, **_SNDFILE[format])
        _set_comment(self._file, tag)
        if format == "opus":
            latency_ms = soundfile._ffi.new("double*", 100.0)
            soundfile._snd.sf_command(self._file._file, _SET_OGG_PAGE_LATENCY_MS, latency_ms, 8)

    def encode(self, pcm: bytes) -> bytes:
        self._file.write(np.frombuffer(pcm, "<i2").astype(np.int16, copy=False))
        return self._sink.take()

    def finish(self) -> bytes:
        self._file.close()
        return self._sink.take()

    def close(self) -> None:
        self._file.close()


_ADTS = ("-f", "adts", "-flush_packets", "1")


def _ffmpeg_command(source: list[str], target: str, container: Sequence[str] = _ADTS) -> list[str]:
    quiet = ["ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "error", "-y"]
    coded = ["-vn", "-c:a", "aac", "-b:a", _AAC_BITRATE, "-ac", "1", *container]
    return [*quiet, *source, *coded, target]


def _ffmpeg_file(source: Path, part: Path, tag: str, *, m4a: bool) -> None:
    if m4a:
        named = ["-metadata", f"comment={tag}"] if tag else []
        container = [*named, "-f", "ipod", "-movflags", "+faststart"]
    else:
        container = [*_ADTS, "-write_id3v2", "1", "-metadata", f"comment={tag}"] if tag else list(_ADTS)
    command = _ffmpeg_command(["-i", f"file:{source.absolute()}"], f"file:{part.absolute()}", container)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip()[-200:]
        code = "storage_full" if "No space left" in reason else "internal"
        raise CosydError(code, reason=reason, path=str(part))


class _Ffmpeg:
    """aac (ADTS frames) by an ffmpeg child between two pipes; it ends with its stdin, so with us."""

    def __init__(self, rate: int) -> None:
        source = ["-f", "s16le", "-ar", str(rate), "-ac", "1", "-probesize", "32", "-i", "pipe:0"]
        self._child = subprocess.Popen(
            _ffmpeg_command(source, "pipe:1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        for pipe in (self._pipe("stdin"), self._pipe("stdout")):
            os.set_blocking(pipe.fileno(), False)

    def _pipe(self, name: str) -> IO[bytes]:
        pipe: IO[bytes] = getattr(self._child, name)
        return pipe

    def encode(self, pcm: bytes) -> bytes:
        """Both pipes move at once: a full one of the two must not stop the other for ever."""
        todo, out = memoryview(pcm), bytearray()
        stdin, stdout = self._pipe("stdin"), self._pipe("stdout")
        with selectors.DefaultSelector() as ready:
            ready.register(stdin, selectors.EVENT_WRITE)
            ready.register(stdout, selectors.EVENT_READ)
            while todo:
                for key, _ in ready.select():
                    if key.fileobj is stdout:
                        out += self._read(required=True)
                    else:
                        try:
                            todo = todo[os.write(stdin.fileno(), todo) :]
                        except BlockingIOError:
                            pass
                        except BrokenPipeError:
                            raise CosydError("internal", reason="ffmpeg ended early") from None
        out += self._read(required=False)
        return bytes(out)

    def _read(self, *, required: bool) -> bytes:
        out = bytearray()
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._pipe("stdout").fileno(), 65536):
                out += data
            if required:
                raise CosydError("internal", reason="ffmpeg ended early")
        return bytes(out)

    def finish(self) -> bytes:
        self._pipe("stdin").close()
        os.set_blocking(self._pipe("stdout").fileno(), True)
        out = self._pipe("stdout").read()
        self._pipe("stdout").close()
        if self._child.wait() != 0:
            raise CosydError("internal", reason="ffmpeg failed")
        return out

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        for pipe in (self._pipe("stdin"), self._pipe("stdout")):
            pipe.close()
