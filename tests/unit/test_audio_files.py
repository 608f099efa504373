"""Segment files and the final FLAC."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from pipeline.audio.files import SegmentWriter, disk_errors, remove_segments, to_int16, write_final_flac
from pipeline.audio.join import join
from pipeline.codes import CosydError
from pipeline.paths import segment_part, segment_pcm
from tests.unit.audiokit import write_segment


def test_floats_are_rounded_and_held_at_full_scale() -> None:
    samples = np.array([0, 1, -1, 1.5, -7, 0.5, 1.4 / 32767, 1.6 / 32767], np.float32)
    assert to_int16(samples).tolist() == [0, 32767, -32767, 32767, -32768, 16384, 1, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_a_bad_take(bad: float) -> None:
    with pytest.raises(CosydError) as error:
        to_int16(np.array([0, bad], np.float32))
    assert error.value.code == "bad_take"


def test_a_growing_segment_can_be_read_and_gets_its_name_when_finished(tmp_path: Path) -> None:
    job_dir = tmp_path / "job"
    with SegmentWriter(job_dir, 3) as writer:
        writer.append(np.full(100, 0.5, np.float32))
        assert segment_part(job_dir, 3).stat().st_size == 200
        assert not segment_pcm(job_dir, 3).exists()
        writer.append(np.zeros(50, np.float32))
        assert writer.finish() == 150
    assert not segment_part(job_dir, 3).exists()
    assert np.fromfile(segment_pcm(job_dir, 3), "<i2").tolist() == [16384] * 100 + [0] * 50


def test_a_take_that_is_left_leaves_nothing_and_a_new_take_is_another_file(tmp_path: Path) -> None:
    old = SegmentWriter(tmp_path, 0)
    old.append_int16(np.ones(10, np.int16))
    first = segment_part(tmp_path, 0).stat().st_ino
    with segment_part(tmp_path, 0).open("rb") as reader:
        new = SegmentWriter(tmp_path, 0)
        assert segment_part(tmp_path, 0).stat().st_ino != first
        assert len(reader.read()) == 20
    new.abort()
    assert list(tmp_path.iterdir()) == []
    old.abort()


def test_a_full_disk_is_named() -> None:
    with pytest.raises(CosydError) as error, disk_errors(), open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")
    assert error.value.code == "storage_full"


def test_the_flac_has_exactly_the_joined_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    segments = [rng.integers(-9000, 9000, n).astype(np.int16) for n in (30_000, 500, 100_001, 7)]
    for idx, samples in enumerate(segments):
        write_segment(tmp_path / "job", idx, samples)
    final = tmp_path / "job.flac"
    total = write_final_flac(tmp_path / "job", final, len(segments))
    read, rate = soundfile.read(final, dtype="int16")
    assert rate == 24_000
    assert total == len(read)
    assert np.array_equal(read, join(segments))
    assert not final.with_name("job.flac.part").exists()
    remove_segments(tmp_path / "job")
    remove_segments(tmp_path / "job")
    assert [path.name for path in tmp_path.iterdir()] == ["job.flac"]


def test_a_missing_segment_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    write_segment(tmp_path / "job", 0, np.ones(1000, np.int16))
    with pytest.raises(CosydError) as error:
        write_final_flac(tmp_path / "job", tmp_path / "job.flac", 2)
    assert error.value.params["segment"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


def test_an_hour_of_sound_is_joined_in_little_memory(tmp_path: Path) -> None:
    minute = np.random.default_rng(2).integers(-500, 500, 24_000 * 60).astype(np.int16)
    write_segment(tmp_path / "job", 0, minute)
    for idx in range(1, 60):
        segment_pcm(tmp_path / "job", idx).hardlink_to(segment_pcm(tmp_path / "job", 0))
    code = (
        "import resource, sys, pathlib\n"
        "from pipeline.audio.files import write_final_flac\n"
        "d = pathlib.Path(sys.argv[1])\n"
        "write_final_flac(d / 'job', d / 'a.flac', 1)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "n = write_final_flac(d / 'job', d / 'b.flac', 60)\n"
        "print(n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    samples, grown_kib = map(int, done.stdout.split())
    assert samples == 60 * len(minute) - 59 * 720
    assert grown_kib < 4096
