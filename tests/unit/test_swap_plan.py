"""The plan of swap: what the profile wants, one step in an emergency, a wish, and what it never does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.swap import plan as plans
from daemon.swap.plan import MIB, Other, Plan, SwapView
from pipeline.profile import Config

GIB = 1024**3
CONFIG = Config()
VIEW = SwapView(
    own_bytes=0,
    own_used_bytes=0,
    inactive_bytes=0,
    others=(),
    max_bytes=10 * GIB,
    keep_free_bytes=2 * GIB,
    disk_free_bytes=100 * GIB,
    filesystem="ext4",
    ram_total_bytes=8 * GIB,
    ram_available_bytes=4 * GIB,
)
PARTITION = Other("partition", 2 * GIB, 0)
ZRAM = Other("zram", 4 * GIB, GIB)


@pytest.mark.parametrize(
    ("changes", "action", "own", "reason"),
    [
        ({}, "grow", 8 * GIB, None),
        ({"own_bytes": 8 * GIB}, "none", 8 * GIB, None),
        ({"own_bytes": 10 * GIB}, "none", 10 * GIB, None),  # never smaller by itself
        ({"others": (PARTITION,)}, "grow", 6 * GIB, None),
        ({"others": (PARTITION, ZRAM)}, "grow", 2 * GIB, None),
        ({"others": (replace(PARTITION, bytes=9 * GIB),)}, "none", 0, None),
        ({"others": (replace(PARTITION, bytes=8 * GIB - 4096),)}, "none", 0, None),  # a file of a few bytes
        ({"inactive_bytes": 8 * GIB, "disk_free_bytes": 0}, "grow", 8 * GIB, None),  # after a reboot
        ({"ram_total_bytes": 32 * GIB}, "none", 0, None),
        ({"ram_total_bytes": None}, "none", 0, None),
        ({"max_bytes": GIB}, "grow", GIB, None),
        ({"max_bytes": 0}, "none", 0, None),
        ({"disk_free_bytes": 5 * GIB}, "grow", 3 * GIB, None),  # what leaves the disk its room
        ({"disk_free_bytes": 2 * GIB}, "refuse", 0, "disk_full"),
        ({"obstacle": "hibernation"}, "refuse", 0, "hibernation"),
        ({"obstacle": "filesystem", "filesystem": "zfs"}, "refuse", 0, "filesystem"),
        ({"obstacle": "container", "own_bytes": 8 * GIB}, "none", 8 * GIB, None),
    ],
)
def test_the_swap_of_the_profile(
    changes: dict[str, object], action: str, own: int, reason: str | None
) -> None:
    plan = plans.standing(replace(VIEW, **changes), CONFIG)
    assert (plan.action, plan.own_bytes, plan.reason) == (action, own, reason)


def test_an_emergency_gives_one_step_beyond_the_profile_and_no_second() -> None:
    full = replace(VIEW, own_bytes=8 * GIB)
    assert plans.emergency(full, CONFIG) == Plan("grow", 10 * GIB)
    assert plans.emergency(replace(full, own_bytes=10 * GIB), CONFIG).reason == "already_grown"
    rich = replace(VIEW, ram_total_bytes=64 * GIB)
    assert plans.emergency(rich, CONFIG) == Plan("grow", 2 * GIB)
    assert plans.emergency(replace(rich, own_bytes=2 * GIB), CONFIG).reason == "already_grown"
    assert plans.emergency(replace(VIEW, ram_total_bytes=None), CONFIG).reason == "unknown"


def test_e05_a_smaller_size_needs_ram_that_takes_the_pages_back() -> None:
    used = replace(VIEW, own_bytes=4 * GIB, own_used_bytes=3 * GIB, ram_available_bytes=GIB)
    refused = plans.resize(used, 0)
    assert (refused.action, refused.reason) == ("refuse", "ram_short")
    assert plans.resize(replace(used, ram_available_bytes=4 * GIB), 0) == Plan("shrink", 0)
    assert plans.resize(replace(used, ram_available_bytes=None), 0).reason == "unknown"
    assert plans.resize(replace(used, own_used_bytes=0), 0) == Plan("shrink", 0)


def test_a_wish_is_about_all_swap_and_bounded_by_roots_limit() -> None:
    view = replace(VIEW, others=(PARTITION,))
    assert plans.resize(view, 4 * GIB) == Plan("grow", 2 * GIB)
    assert plans.resize(view, GIB) == Plan("none", 0)  # less than what others made: theirs stays
    assert plans.resize(view, 20 * GIB).reason == "above_ceiling"


def test_the_answer_of_the_helper_is_read_whole_or_not_at_all() -> None:
    from daemon.swap.keeper import numbers

    answer = {**numbers(VIEW), "ram_total_bytes": 1, "ram_available_bytes": None, "v": 1, "ok": True}
    view = plans.parse_view(answer)
    assert view is not None and view.ram_total_bytes == 1
    del answer["max_bytes"]
    assert plans.parse_view(answer) is None
    assert plans.parse_view({"ok": False, "reason": "not_allowed"}) is None


sizes = st.integers(0, 40 * 1024).map(lambda mib: mib * MIB)
views = st.builds(
    SwapView,
    own_bytes=sizes,
    own_used_bytes=sizes,
    inactive_bytes=sizes,
    others=st.lists(
        st.builds(Other, kind=st.sampled_from(["zram", "file", "partition"]), bytes=sizes, used_bytes=sizes),
        max_size=3,
    ).map(tuple),
    max_bytes=sizes,
    keep_free_bytes=sizes,
    disk_free_bytes=sizes,
    filesystem=st.just("ext4"),
    ram_total_bytes=st.none() | sizes,
    ram_available_bytes=st.none() | sizes,
    obstacle=st.none() | st.sampled_from(["container", "hibernation"]),
)


@given(views, st.sampled_from(["standing", "emergency", "resize"]), sizes)
def test_no_plan_breaks_a_limit(view: SwapView, kind: str, total: int) -> None:
    plan = plans.resize(view, total) if kind == "resize" else getattr(plans, kind)(view, CONFIG)
    have = view.own_bytes + view.inactive_bytes
    if plan.action == "grow":
        assert view.own_bytes < plan.own_bytes <= view.max_bytes
        assert view.obstacle is None
        new = max(0, plan.own_bytes - have)
        assert view.disk_free_bytes - new >= view.keep_free_bytes or new == 0
        if kind == "standing":
            assert plan.own_bytes + view.others_bytes <= max(CONFIG.swap_bytes, view.others_bytes)
    elif plan.action == "shrink":
        assert kind == "resize" and plan.own_bytes < view.own_bytes
        if view.own_used_bytes:
            assert view.ram_available_bytes is not None
            assert view.ram_available_bytes > view.own_used_bytes
    else:
        assert plan.own_bytes == view.own_bytes
        assert (plan.reason is None) == (plan.action == "none")


@given(views)
def test_once_done_there_is_nothing_more_to_do(view: SwapView) -> None:
    plan = plans.standing(view, CONFIG)
    if plan.action != "grow":
        return
    new = max(0, plan.own_bytes - view.own_bytes - view.inactive_bytes)
    after = replace(
        view, own_bytes=plan.own_bytes, inactive_bytes=0, disk_free_bytes=view.disk_free_bytes - new
    )
    assert plans.standing(after, CONFIG).action in ("none", "refuse")
    assert plans.standing(after, CONFIG).own_bytes == plan.own_bytes
