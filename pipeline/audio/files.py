"""Audio on disk: segment files while they grow, and the one FLAC that stays (CONTRACTS 5).

The worker writes, `pipeline.audio.follow` reads at the same time: a take is always a new file (inode), so
that a reader who has an older one open can tell. Files: write beside, fsync, rename, fsync the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.audio.join import I16Mono, Joiner
from pipeline.codes import CosydError
from pipeline.jobs import SAMPLE_RATE
from pipeline.paths import segment_part, segment_pcm

_BLOCK_BYTES = 2 * SAMPLE_RATE * 4  # four seconds at a time keep memory flat for hours of audio


def to_int16(samples: npt.NDArray[np.float32]) -> I16Mono:
    """Float [-1, 1] to int16: rounded to the nearest, held at full scale instead of wrapping, no dither.

    Raises CosydError(bad_take) when a value is not finite: noise at full scale must not reach an ear.
    """
    if not np.isfinite(samples).all():
        raise CosydError("bad_take", reason="not_finite")
    return np.clip(np.rint(samples * np.float32(32767.0)), -32768, 32767).astype(np.int16)


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """A full disk (or quota) becomes CosydError(storage_full); other OSErrors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CosydError("storage_full", path=str(error.filename or "")) from error
        raise


def fsync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes) -> None:
    """A small file that is there whole or not at all: written beside, fsync, rename. Raises
    CosydError(storage_full)."""
    part = path.with_name(path.name + ".part")
    with disk_errors():
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        fsync_folder(path.parent)


class SegmentWriter:
    """Writes one take of one segment: `append` chunks, then `finish`, or `abort`.

    `samples` counts what was written. Readers see each chunk at once. As a context manager it aborts
    when `finish` was not reached.
    """

    def __init__(self, job_dir: Path, idx: int) -> None:
        self.samples = 0
        self._pcm, self._part = segment_pcm(job_dir, idx), segment_part(job_dir, idx)
        with disk_errors():
            job_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._part.unlink(missing_ok=True)
            self._fd: int | None = os.open(
                self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )

    def append(self, chunk: npt.NDArray[np.float32]) -> None:
        """Convert and write. Raises CosydError(bad_take) on NaN or infinity, `storage_full`."""
        self.append_int16(to_int16(chunk))

    def append_int16(self, chunk: I16Mono) -> None:
        """Write samples as they are. Raises CosydError(storage_full)."""
        if self._fd is None:
            raise ValueError("segment file is closed")
        data = memoryview(chunk.astype("<i2", copy=False).tobytes())
        with disk_errors():
            while data:
                data = data[os.write(self._fd, data) :]
        self.samples += len(chunk)

    def finish(self) -> int:
        """fsync, rename to `.pcm`, fsync the folder; returns the number of samples."""
        if self._fd is None:
            raise ValueError("segment file is closed")
        with disk_errors():
            os.fsync(self._fd)
            os.rename(self._part, self._pcm)
            fsync_folder(self._pcm.parent)
        os.close(self._fd)
        self._fd = None
        return self.samples

    def abort(self) -> None:
        """Throw the take away. Does nothing after `finish`."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self._part.unlink(missing_ok=True)

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abort()


def read_blocks(path: Path) -> Iterator[I16Mono]:
    """The samples of a finished segment, a few seconds at a time."""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield np.frombuffer(block, "<i2", len(block) // 2).astype(np.int16, copy=False)


def write_final_flac(job_dir: Path, final: Path, segments: int) -> int:
    """Join the `segments` finished segments of `job_dir` into `final`; returns the number of samples.

    Memory stays flat whatever the length. Raises CosydError(storage_full), and CosydError(internal) when a
    segment's file is missing. The segment files stay: remove them after the row is written.
    """
    import soundfile  # lazily: the supervisor imports neighbours of this module, never libsndfile

    part = final.with_name(final.name + ".part")
    total, joiner = 0, Joiner()
    try:
        with disk_errors():
            final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with soundfile.SoundFile(part, "w", SAMPLE_RATE, 1, "PCM_16", format="FLAC") as out:

            def put(samples: I16Mono) -> None:
                nonlocal total
                if len(samples):
                    out.write(samples)
                    total += len(samples)

            for idx in range(segments):
                path = segment_pcm(job_dir, idx)
                if not path.exists():
                    raise CosydError("internal", reason="segment_missing", segment=idx)
                for block in read_blocks(path):
                    put(joiner.feed(block))
                put(joiner.end_segment())
            put(joiner.finish())
        with disk_errors():
            fd = os.open(part, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(part, final)
            fsync_folder(final.parent)
    except soundfile.LibsndfileError as error:
        part.unlink(missing_ok=True)
        raise sndfile_error(error, final) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return total


def sndfile_error(error: Exception, path: Path) -> CosydError:
    """libsndfile hides errno; a file system with less than a megabyte left is the likely cause."""
    stat = os.statvfs(path.parent)
    if stat.f_bavail * stat.f_frsize < 1024**2:
        return CosydError("storage_full", path=str(path))
    return CosydError("internal", reason=str(error))


def remove_segments(job_dir: Path) -> None:
    """Remove a job's folder of segment files; missing is fine. Readers that hold one open keep it."""
    try:
        entries = list(job_dir.iterdir())
    except FileNotFoundError:
        return
    for entry in entries:
        entry.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        job_dir.rmdir()
