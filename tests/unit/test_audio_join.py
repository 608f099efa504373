"""Joining segments: the incremental joiner against its definition, and the passage to a second take."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audio.join import OVERLAP, RETAKE_FADE, Joiner, crossfade, join, joined_length
from tests.engines.numbers import decode

LENGTHS = st.one_of(st.integers(0, 3), st.integers(700, 740), st.integers(0, 5000))


def noise(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng([length, seed]).integers(-32768, 32768, length).astype(np.int16)


def pieces_of(signal: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    out, at = [], 0
    for size in sizes:
        out.append(signal[at : at + size])
        at += size
    return [*out, signal[at:]]


@given(st.lists(LENGTHS, max_size=6), st.lists(st.integers(0, 1500), max_size=8))
def test_the_joiner_gives_the_same_samples_as_join_for_any_chunking(
    lengths: list[int], sizes: list[int]
) -> None:
    segments = [noise(length, i) for i, length in enumerate(lengths)]
    joiner, out = Joiner(), []
    for segment in segments:
        for piece in pieces_of(segment, sizes):
            out.append(joiner.feed(piece))
            assert joiner.position == sum(map(len, out))
        out.append(joiner.end_segment())
        assert joiner.position == sum(map(len, out))
    out.append(joiner.finish())
    expected = join(segments)
    assert np.array_equal(np.concatenate(out), expected)
    assert len(expected) == joined_length(lengths)


def test_neighbours_overlap_by_30_ms_and_the_rest_is_untouched() -> None:
    a, b = noise(5000, 1), noise(5000, 2)
    joined = join([a, b])
    assert OVERLAP == 720
    assert len(joined) == 10_000 - 720
    assert np.array_equal(joined[:4280], a[:4280])
    assert np.array_equal(joined[5000:], b[720:])


def test_a_signal_faded_with_itself_does_not_change_and_extremes_do_not_wrap() -> None:
    signal = noise(2000, 3)
    assert np.array_equal(crossfade(signal, signal), signal)
    low, high = np.full(720, -32768, np.int16), np.full(720, 32767, np.int16)
    faded = crossfade(low, high).astype(int)
    assert (np.diff(faded) > 0).all()
    assert faded[0] < -32_000 and faded[-1] > 32_000


def test_only_the_last_30_ms_are_held_back() -> None:
    joiner = Joiner()
    assert len(joiner.feed(noise(10_000, 1))) == 10_000 - OVERLAP
    assert len(joiner.end_segment()) == 0
    assert len(joiner.finish()) == OVERLAP


@given(
    st.lists(st.integers(1500, 4000), min_size=1, max_size=4),
    st.data(),
)
def test_an_equal_second_take_cannot_be_heard(lengths: list[int], data: st.DataObject) -> None:
    segments = [noise(length, i) for i, length in enumerate(lengths)]
    joiner, out = Joiner(), []
    for segment in segments:
        for _ in range(data.draw(st.integers(0, 2))):
            for piece in pieces_of(segment[: data.draw(st.integers(0, len(segment)))], [500, 700]):
                out.append(joiner.feed(piece))
            joiner.restart_segment()
        for piece in pieces_of(segment, [data.draw(st.integers(0, 3000))]):
            out.append(joiner.feed(piece))
        out.append(joiner.end_segment())
    out.append(joiner.finish())
    assert np.array_equal(np.concatenate(out), join(segments))


@given(st.integers(800, 6000), st.integers(1500, 9000))
def test_another_take_goes_on_at_the_listeners_offset_after_a_20_ms_fade(heard: int, length: int) -> None:
    first, second = noise(6000, 1), noise(length, 2)
    joiner = Joiner()
    out = [joiner.feed(first[:heard])]
    offset = len(out[0])
    joiner.restart_segment()
    out += [joiner.feed(second), joiner.end_segment(), joiner.finish()]
    stream = np.concatenate(out)
    assert np.array_equal(stream[:offset], first[:offset])
    if length >= offset + RETAKE_FADE:
        assert len(stream) == length
        assert np.array_equal(stream[offset + RETAKE_FADE :], second[offset + RETAKE_FADE :])
    else:
        assert len(stream) <= max(length, offset + OVERLAP)


def test_a_new_take_that_is_not_yet_as_long_gives_nothing() -> None:
    joiner = Joiner()
    joiner.feed(noise(5000, 1))
    joiner.restart_segment()
    assert len(joiner.feed(noise(4000, 2))) == 0
    assert joiner.position == 5000 - OVERLAP
    assert len(joiner.feed(noise(4000, 3))) > 0


def test_numbers_survive_the_joints_and_a_repeated_stretch_is_seen() -> None:
    from tests.unit.audiokit import number_segment

    segments = [number_segment(n) for n in (1, 42, 42, 907)]
    joined = join(segments)
    assert decode(joined.tobytes()) == [1, 42, 42, 907]
    repeated = np.concatenate([joined[:9000], joined[6000:]])
    assert decode(repeated) != [1, 42, 42, 907]
    assert -1 in decode(joined[: len(segments[0]) // 2])
