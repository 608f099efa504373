"""The ladder, rung by rung, on made-up machines."""

from __future__ import annotations

from dataclasses import replace

from daemon import policy
from daemon.levels import Level
from daemon.policy import Act, Foreign, Judged, LevelChanged, Output, PolicyState, Rung
from daemon.sample import OwnProcess, RamReading, Sample, VramReading
from pipeline.profile import Config

MIB = 1024**2
GIB = 1024 * MIB
TOTAL = 4 * GIB
CONFIG = Config()
LOW = CONFIG.guard.ram.low_enter.bytes_of(TOTAL) - MIB
CRITICAL = CONFIG.guard.ram.critical_enter.bytes_of(TOTAL) - MIB

WEB = OwnProcess("web", 10, 400 * MIB, base_rss_bytes=150 * MIB)
IDLE = OwnProcess("worker:builtin", 20, 300 * MIB)
BUSY = OwnProcess("worker:cosyvoice3", 30, 2000 * MIB, idle=False)


def at(free: int | None, *own: OwnProcess) -> Sample:
    return Sample(None if free is None else RamReading(free, TOTAL), None, own)


class Run:
    """Feeds samples a second apart and keeps what came out."""

    def __init__(self) -> None:
        self.state, self.now = PolicyState(), 1000.0
        self.out: list[Output] = []

    def feed(self, sample: Sample, seconds: float = 1.0) -> list[Output]:
        end = self.now + seconds
        fed: list[Output] = []
        while self.now < end:
            self.state, out = policy.step(self.state, sample, self.now, CONFIG)
            fed += out
            self.now += 1.0
        self.out += fed
        return fed

    @property
    def rungs(self) -> list[Rung]:
        return [o.rung for o in self.out if isinstance(o, Act)]


def test_nothing_happens_while_there_is_enough() -> None:
    run = Run()
    assert run.feed(at(2 * GIB, WEB, IDLE, BUSY), 600) == []


def test_at_low_the_ladder_goes_up_one_rung_a_settle_time_and_never_kills() -> None:
    run = Run()
    run.feed(at(LOW, WEB, IDLE, BUSY), 5)
    assert run.rungs == []
    run.feed(at(LOW, WEB, IDLE, BUSY), 1)
    assert run.rungs == [Rung.TRIM]
    run.feed(at(LOW, WEB, IDLE, BUSY), 200)
    assert run.rungs == [Rung.TRIM, Rung.UNLOAD, Rung.RECYCLE_WEB, Rung.DRAIN]


def test_a_trim_goes_to_all_and_is_judged_after_its_settle_time() -> None:
    run = Run()
    run.feed(at(LOW, WEB, BUSY), 6)
    act = run.out[-1]
    assert isinstance(act, Act) and set(act.pids) == {10, 30}
    out = run.feed(at(LOW, WEB, replace(BUSY, rss_bytes=1500 * MIB)), 3)
    judged = [o for o in out if isinstance(o, Judged)]
    assert [(j.helped, j.freed_bytes) for j in judged] == [(True, 500 * MIB)]


def test_a_trim_that_freed_nothing_counts_as_failed() -> None:
    run = Run()
    run.feed(at(LOW, WEB, BUSY), 6)
    judged = [o for o in run.feed(at(LOW, WEB, BUSY), 3) if isinstance(o, Judged)]
    assert [(j.helped, j.freed_bytes) for j in judged] == [(False, 0)]


def test_a_fall_straight_to_critical_does_not_start_at_trim() -> None:
    run = Run()
    out = run.feed(at(CRITICAL, WEB, IDLE, BUSY), 1)
    assert [type(o).__name__ for o in out] == ["LevelChanged", "Act"]
    assert run.rungs == [Rung.UNLOAD]


def test_at_critical_a_piece_has_ten_seconds_and_then_the_larger_is_killed() -> None:
    run = Run()
    run.feed(at(CRITICAL, WEB, BUSY), 1)
    act = run.out[-1]
    assert isinstance(act, Act) and (act.rung, act.deadline_s) == (Rung.DRAIN, 10.0)
    run.feed(at(CRITICAL, WEB, BUSY), 10)
    assert run.rungs == [Rung.DRAIN], "it may still finish what it says"
    run.feed(at(CRITICAL, WEB, BUSY), 15)
    kill = next(o for o in run.out if isinstance(o, Act) and o.rung is Rung.KILL)
    assert kill.targets == ("worker:cosyvoice3",)


def test_at_the_brink_a_piece_is_not_waited_for() -> None:
    """Half of what CRITICAL begins at: what is left then is gone before the piece is."""
    run = Run()
    run.feed(at(CRITICAL, WEB, BUSY), 3)
    assert run.rungs == [Rung.DRAIN]
    run.feed(at(CRITICAL // 2 - MIB, WEB, BUSY), 1)
    kill = run.out[-1]
    assert isinstance(kill, Act) and (kill.rung, kill.targets) == (Rung.KILL, ("worker:cosyvoice3",))


def test_an_idle_engine_that_is_being_unloaded_has_its_settle_time_at_critical() -> None:
    """Else the page would be ended beside it, for memory that comes back anyway."""
    run = Run()
    run.feed(at(CRITICAL, WEB, replace(IDLE, rss_bytes=900 * MIB)), 5)
    assert run.rungs == [Rung.UNLOAD]


def test_a_worker_that_holds_next_to_nothing_is_not_ended_for_a_page_that_leaks() -> None:
    small = OwnProcess("worker:builtin", 20, 26 * MIB)
    run = Run()
    run.feed(at(CRITICAL, replace(WEB, rss_bytes=2400 * MIB), small), 1)
    assert run.rungs == [Rung.KILL]
    assert isinstance(act := run.out[-1], Act) and act.targets == ("web",)


def test_what_began_at_low_is_cut_short_at_critical() -> None:
    run = Run()
    run.feed(at(LOW, WEB, BUSY), 10)
    assert run.rungs == [Rung.TRIM, Rung.RECYCLE_WEB]
    run.feed(at(CRITICAL, WEB, BUSY), 1)
    assert run.rungs[-1] is Rung.DRAIN


def test_at_critical_a_new_page_is_not_waited_for_longer_than_a_piece() -> None:
    big = 16 * GIB
    sample = Sample(RamReading(500 * MIB, big), None, (replace(WEB, rss_bytes=8 * GIB), BUSY))
    run = Run()
    run.feed(sample, 1)
    assert run.rungs == [Rung.RECYCLE_WEB]
    run.feed(sample, 11)
    assert run.rungs == [Rung.RECYCLE_WEB, Rung.DRAIN]


def test_a_lower_rung_never_replaces_a_higher_one() -> None:
    run = Run()
    run.feed(at(CRITICAL // 2 - MIB, WEB, BUSY), 2)
    assert run.rungs[-1] is Rung.KILL
    run.feed(at(LOW, WEB, IDLE), 2)
    assert run.rungs[-1] is Rung.KILL


def test_a_recovery_ends_the_episode_and_the_next_one_starts_low() -> None:
    run = Run()
    run.feed(at(LOW, WEB, BUSY), 10)
    run.feed(at(3 * GIB, WEB, BUSY), 120)
    assert run.state.level is Level.OK and run.state.in_flight is None and not run.state.tried
    run.feed(at(LOW, WEB, BUSY), 6)
    assert run.rungs[-1] is Rung.TRIM


def test_a_plateau_at_low_is_no_restart_loop() -> None:
    run = Run()
    run.feed(at(LOW, WEB, IDLE, BUSY), 3600)
    # Each rung once, then a rest of five minutes.
    assert len(run.rungs) <= 4 * (3600 / policy.REST_S + 1)


def test_pressure_of_others_is_named_once_and_not_acted_on() -> None:
    run = Run()
    run.feed(at(CRITICAL, OwnProcess("web", 10, 100 * MIB)), 600)
    assert run.rungs == []
    assert [type(o).__name__ for o in run.out] == ["LevelChanged", "Foreign"]
    foreign = run.out[1]
    assert isinstance(foreign, Foreign) and foreign.own_bytes == 100 * MIB


def test_unknown_is_never_acted_on() -> None:
    run = Run()
    run.feed(at(None, WEB, BUSY), 600)
    assert run.out == []
    run.feed(at(CRITICAL, replace(WEB, rss_bytes=None), replace(BUSY, rss_bytes=None)), 60)
    assert run.rungs == [], "whose memory it is cannot be told"


def test_a_reading_that_goes_missing_stops_the_ladder() -> None:
    run = Run()
    run.feed(at(LOW, WEB, IDLE, BUSY), 7)
    before = len(run.rungs)
    run.feed(at(None, WEB, IDLE, BUSY), 600)
    assert len(run.rungs) == before


def test_a_web_that_has_not_grown_is_not_recycled() -> None:
    run = Run()
    run.feed(at(LOW, replace(WEB, rss_bytes=160 * MIB), BUSY), 200)
    assert Rung.RECYCLE_WEB not in run.rungs


def test_no_second_web_is_started_where_it_would_not_fit() -> None:
    run = Run()
    run.feed(at(CRITICAL, WEB, BUSY), 60)
    assert Rung.RECYCLE_WEB not in run.rungs


def test_look_again_before_a_kill() -> None:
    run = Run()
    run.feed(at(CRITICAL // 2 - MIB, WEB, BUSY), 2)
    kill = run.out[-1]
    assert isinstance(kill, Act) and kill.rung is Rung.KILL
    assert policy.still_needed(run.state, kill, at(CRITICAL, WEB, BUSY), run.now, CONFIG)
    assert not policy.still_needed(run.state, kill, at(2 * GIB, WEB, BUSY), run.now, CONFIG)
    assert not policy.still_needed(run.state, kill, at(CRITICAL, WEB), run.now, CONFIG), "it is gone"
    assert not policy.still_needed(run.state, kill, at(None, WEB, BUSY), run.now, CONFIG)


def test_a_full_card_of_ours_unloads_and_drains_but_never_touches_the_page() -> None:
    def card(free: int, *own: OwnProcess) -> Sample:
        return Sample(RamReading(2 * GIB, TOTAL), VramReading(free, 6 * GIB), own)

    worker = replace(BUSY, vram_bytes=5 * GIB)
    run = Run()
    run.feed(card(100 * MIB, WEB, worker), 200)
    assert run.rungs == [Rung.TRIM, Rung.DRAIN]
    for act in (o for o in run.out if isinstance(o, Act)):
        assert act.targets == ("worker:cosyvoice3",) and act.resource == "vram"


def test_a_card_that_others_fill_is_foreign() -> None:
    run = Run()
    worker = replace(BUSY, vram_bytes=300 * MIB)
    run.feed(Sample(RamReading(2 * GIB, TOTAL), VramReading(50 * MIB, 6 * GIB), (WEB, worker)), 1800)
    assert run.rungs == []
    assert any(isinstance(o, Foreign) and o.resource == "vram" for o in run.out)


def test_without_per_process_numbers_a_full_card_is_nobodys_fault() -> None:
    run = Run()
    run.feed(Sample(RamReading(2 * GIB, TOTAL), VramReading(50 * MIB, 6 * GIB), (WEB, BUSY)), 600)
    assert run.rungs == []
    assert all(isinstance(o, LevelChanged) for o in run.out)


def test_c13_what_held_before_a_suspend_no_longer_counts() -> None:
    run = Run()
    run.feed(at(LOW, WEB, BUSY), 4)
    run.now += 3600
    run.feed(at(LOW, WEB, BUSY), 5)
    assert run.rungs == [], "four seconds before and five after are no six in a row"
    run.feed(at(LOW, WEB, BUSY), 1)
    assert run.rungs == [Rung.TRIM]


def test_c15_pressure_near_the_line_between_ours_and_others_does_not_flap() -> None:
    run = Run()
    used = TOTAL - CRITICAL
    for share in (0.24, 0.26, 0.24, 0.26, 0.30, 0.30):
        run.feed(at(CRITICAL, OwnProcess("web", 10, round(share * used))), 5)
    assert sum(isinstance(o, Foreign) for o in run.out) == 1
    run.feed(at(CRITICAL, OwnProcess("web", 10, round(0.4 * used))), 1)
    assert run.rungs == [Rung.KILL], "now it is ours, and nothing gentler is left"


def test_what_cannot_be_had_back_is_given_up_at_critical_only() -> None:
    """C05: its CUDA context goes on after a driver update, and no new one can be made."""
    kept = replace(IDLE, rss_bytes=2000 * MIB, keep=True)
    run = Run()
    run.feed(at(LOW, kept), 120)
    assert run.rungs == [Rung.TRIM]
    run.feed(at(CRITICAL, kept), 1)
    assert run.rungs[-1] is Rung.UNLOAD
