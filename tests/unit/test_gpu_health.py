"""A card that answers and is slow: named after a while, with a while's patience in both directions."""

from __future__ import annotations

import pytest

from daemon import gpu_health, gpu_states
from daemon.gpu_health import Health
from daemon.sample import VramReading
from pipeline import messages

GIB = 1024**3


def look(*, reasons: int | None = 0, util: float | None = 0.9) -> VramReading:
    return VramReading(GIB, 6 * GIB, throttle_reasons=reasons, utilisation_ratio=util)


def run(
    health: Health, reading: VramReading | None, seconds: int, busy: bool = True, start: int = 0
) -> Health:
    for second in range(start, start + seconds):
        health = gpu_health.step(health, reading, busy, float(second))
    return health


@pytest.mark.parametrize(
    ("reasons", "word"),
    [(0x20, "throttled_heat"), (0x40, "throttled_heat"), (0x80, "throttled_power"), (0x8, "throttled_power"),
     (0x4, "ok"), (0x1, "ok"), (0, "ok"), (None, "ok")],
)  # fmt: skip
def test_throttling_is_named_after_half_a_minute(reasons: int | None, word: str) -> None:
    assert run(Health(), look(reasons=reasons), 30).word == "ok"
    assert run(Health(), look(reasons=reasons), 40).word == word


def test_starved_is_below_thirty_percent_while_busy() -> None:
    assert run(Health(), look(util=0.2), 60).word == "ok"
    assert run(Health(), look(util=0.2), 70).word == gpu_states.STARVED
    assert run(Health(), look(util=0.2), 300, busy=False).word == "ok"
    assert run(Health(), look(util=0.3), 300).word == "ok"
    assert run(Health(), look(util=None), 300).word == "ok", "a card that does not tell"


def test_it_is_taken_back_when_work_ends_or_all_is_well() -> None:
    starved = run(Health(), look(util=0.1), 70)
    assert gpu_health.step(starved, look(util=0.1), False, 71.0).word == "ok"
    hot = run(Health(), look(reasons=0x40), 40)
    assert run(hot, look(), 20, start=40).word == gpu_states.HOT
    assert run(hot, look(), 40, start=40).word == "ok"


def test_an_unknown_reading_changes_nothing() -> None:
    hot = run(Health(), look(reasons=0x40), 40)
    assert run(hot, None, 600, start=40).word == gpu_states.HOT
    almost = run(Health(), look(reasons=0x40), 29)
    assert run(run(almost, None, 1, start=29), look(reasons=0x40), 20, start=30).word == "ok"


@pytest.mark.parametrize("word", sorted(gpu_states.WORDS))
def test_every_state_has_a_name_and_a_sentence_in_both_languages(word: str) -> None:
    for language in ("en", "zh"):
        catalogue = messages.catalogue(language)  # type: ignore[arg-type]
        assert f"state.gpu.{word}" in catalogue
        if word in gpu_states.TROUBLE | gpu_states.CONDITIONS:
            assert f"gpu.{word}" in catalogue, "the cure"
        if word in gpu_states.BARS_START:
            told = messages.error_text("engine_failed", language, {"engine": "x", "reason": word})  # type: ignore[arg-type]
            assert told == catalogue[f"gpu.{word}"]


def test_the_event_tells_trouble_with_its_cure() -> None:
    told = messages.event_text("gpu_state_changed", "en", {"state": "driver_mismatch", "old": "ok"})
    assert "Restart the machine" in told and "driver_mismatch" not in told
    assert messages.event_text("gpu_state_changed", "zh", {"state": "driver_mismatch"}).startswith("显卡")
