"""The last restart in words: cause, numbers, what was tried, what came of it, in both languages."""

from __future__ import annotations

from typing import Any

import pytest

from daemon.cli.story import Row, last_ending, tell
from pipeline.messages import Language

MIB, GIB = 1024**2, 1024**3
X = "worker:cosyvoice3"


def row(at: float, kind: str, ram: int | None = None, vram: int | None = None, **params: Any) -> Row:
    return Row(at, kind, None, params, ram, vram)


def said(rows: list[Row], language: Language = "en") -> str:
    return tell(rows, 1000.0, language, "14:03")


TIGHT = [
    row(800, "level_changed", resource="ram", old="ok", new="low", free_bytes=380 * MIB, total_bytes=4 * GIB,
        low_bytes=410 * MIB, critical_bytes=164 * MIB),
    row(805, "trim_failed", resource="ram", freed_bytes=31 * MIB, targets=X),
    row(870, "level_changed", resource="ram", old="low", new="critical", free_bytes=120 * MIB,
        total_bytes=4 * GIB, low_bytes=410 * MIB, critical_bytes=164 * MIB),
    row(871, "drain_started", child=X, reason="memory_critical", deadline_s=10.0),
    row(881, "worker_killed", 118 * MIB, None, child=X, reason="memory_critical", rss_bytes=2100 * MIB),
    row(881.2, "worker_exited", child=X, reason="memory_critical", status="signal 9", engine="cosyvoice3"),
    row(881.3, "job_requeued", child=X, engine="cosyvoice3", job="j", attempt=1),
    row(890, "worker_ready", child=X, engine="cosyvoice3", seconds=3.0),
]  # fmt: skip


def test_a_kill_is_told_with_all_its_numbers() -> None:
    assert said(TIGHT) == (
        "14:03 (2 min ago) cosyd ended the voice engine cosyvoice3 by force because RAM was very tight:"
        " 118 MB were free of 4 GB, and 164 MB is the least at which nothing is done. It held 2.1 GB."
        " Freeing memory had been tried first and gave 31 MB. It had 10 s to finish its piece. Texts in hand:"
        " 1; they went back into the queue and go on where they stopped. It was back after 9 s."
    )


def test_the_same_in_chinese() -> None:
    assert said(TIGHT, "zh") == (
        "14:03（2 分钟前），cosyd 强制结束了语音引擎 cosyvoice3，因为内存告急：共 4 GB，只剩 118 MB，"
        "低于 164 MB 就会处理。当时占用 2.1 GB。此前先清理过缓存，释放了 31 MB。给了 10 秒读完当前这一段。"
        "正在读的文本有 1 个，已放回队列，从停下的地方继续。9 秒后恢复。"
    )


def test_growth_is_told_with_its_rate() -> None:
    rows = [
        row(700, "creep_predicted", child=X, resource="vram", eta_s=7200, hourly_bytes=150 * MIB,
            bytes=3 * GIB, free_bytes=600 * MIB, low_bytes=328 * MIB),
        row(701, "trim_failed", freed_bytes=0, reason="creep"),
        row(900, "drain_started", child=X, reason="creep", deadline_s=50.0),
        row(901, "worker_exited", child=X, reason="creep", status="exit 0"),
        row(905, "worker_ready", child=X),
    ]  # fmt: skip
    told = said(rows)
    assert "150 MB an hour, 3 GB by then" in told and "VRAM would have been tight in about 2 h" in told
    assert told.endswith("It was back after 4 s.")


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (
            row(900, "worker_exited", child=X, reason="signal 9", status="signal 9"),
            "signal 9 ended it; cosyd did",
        ),
        (row(900, "worker_exited", child=X, reason="exit 1", status="exit 1"), "because: exit 1."),
        (row(900, "worker_killed", child=X, reason="no_progress"), "because: it was stuck."),
        (row(900, "worker_killed", child=X, reason="gpu_lost"), "because: the graphics card was lost."),
        (row(900, "web_recycled", child="web", reason="age"), "The page stayed open meanwhile."),
        (row(900, "unloaded", child=X, engine="cosyvoice3", reason="idle"), "because: nothing to do."),
    ],
)
def test_every_cause_has_its_words(ending: Row, words: str) -> None:
    assert words in said([ending])
    assert said([ending], "zh") and "?" not in said([ending], "zh")


def test_what_did_not_come_back_says_what_to_do() -> None:
    rows = [row(900, "worker_exited", child=X, reason="exit 1"), row(901, "failed", child=X, restarts=5)]
    assert "after 5 tries: run `cosyd doctor`" in said(rows)
    rows = [row(900, "unloaded", child=X, reason="memory_low", ram=GIB),
            row(901, "admission_refused", child=X, short_bytes=700 * MIB)]  # fmt: skip
    assert "when 700 MB more are free" in said(rows)


def test_without_any_ending_there_is_nothing_to_tell() -> None:
    assert said([row(1, "started")]) == "" and last_ending([]) is None


def test_an_earlier_ending_of_the_same_child_is_another_story() -> None:
    rows = [row(100, "worker_killed", child=X, reason="no_progress"), row(110, "worker_ready", child=X),
            row(150, "worker_exited", child=X, reason="exit 3", status="exit 3")]  # fmt: skip
    found = last_ending(rows)
    assert found is not None and found.params["reason"] == "exit 3"


def test_the_stop_of_all_is_no_restart() -> None:
    rows = [*TIGHT, row(950, "worker_exited", child="web", reason="stop", status="exit 0")]
    assert said(rows) == said(TIGHT)
