from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from leveret.proof.record import Sampled
from leveret.torture.flatness import JUDGED, LIMITS, MIB, WARM, Growth, Life, lives, troubles

HALF_AN_HOUR = 1800
#: When a machine that has been up for a day begins.
BOOTED = 86_400


def sampled(
    figure: str, value: Callable[[int], float], *, by: str = "workers-1 1", seconds: int = HALF_AN_HOUR
) -> list[Sampled]:
    return [
        Sampled(at=float(BOOTED + at), by=by, figures={figure: value(at)}) for at in range(0, seconds + 1, 5)
    ]


def only(events: list[Sampled]) -> Life:
    (found,) = lives(events)
    return found


def growth(events: list[Sampled]) -> Growth:
    (found,) = only(events).growths
    return found


def test_what_goes_up_and_down_is_flat():
    chance = random.Random(4)

    assert growth(sampled("memory", lambda _: (80 + chance.uniform(-10, 10)) * MIB)).is_flat


def test_memories_that_fill_in_the_time_that_outcomes_are_remembered_are_flat():
    assert growth(sampled("memory", lambda at: min(40 + at / 10, 40 + WARM / 10) * MIB)).is_flat


@pytest.mark.parametrize("blow", [range(610, 780), range(1500, 1670)])
def test_a_blow_that_is_over_before_half_of_a_third_is_shows_nothing(blow: range):
    assert growth(sampled("tasks", lambda at: 1500.0 if at in blow else 12.0)).is_flat


@pytest.mark.parametrize(
    ("figure", "start", "a_minute"),
    [
        ("memory", 80 * MIB, MIB),
        ("files", 20.0, 0.5),
        ("threads", 4.0, 0.2),
        ("tasks", 30.0, 1.0),
        ("timers", 30.0, 2.0),
        ("objects", 7e4, 500.0),
        ("channels", 40.0, 0.4),
        ("connections", 20.0, 0.3),
    ],
)
def test_what_grows_all_the_time_is_not_flat(figure: str, start: float, a_minute: float):
    grown = growth(sampled(figure, lambda at: start + a_minute * at / 60))

    assert not grown.is_flat
    # From the middle of the first third of what is judged to the middle of the last.
    assert grown.last - grown.first == pytest.approx(2 / 3 * (HALF_AN_HOUR - WARM) / 60 * a_minute, rel=0.02)


@pytest.mark.parametrize("size", [1_000, 250])
def test_a_worker_that_keeps_something_of_each_message_is_not_flat(size: int):
    # So many handlers run in one of the two workers of `make soak` each second.
    runs = 60

    assert not growth(sampled("memory", lambda at: 50 * MIB + at * runs * size)).is_flat
    assert not growth(sampled("objects", lambda at: 7e4 + at * runs / 30)).is_flat


@pytest.mark.parametrize(
    ("figure", "once"), [("files", 5), ("tasks", 6), ("objects", 900), ("memory", 7 * MIB)]
)
def test_what_comes_once_is_flat(figure: str, once: float):
    assert growth(sampled(figure, lambda at: once if at > 1200 else 0.0)).is_flat


def test_every_figure_has_a_limit():
    assert set(LIMITS) == {
        "memory", "files", "threads", "tasks", "timers", "objects", "channels", "connections",
    }  # fmt: skip


@pytest.mark.parametrize(("seconds", "judged"), [(WARM + JUDGED, True), (WARM + JUDGED - 5, False)])
def test_a_life_that_is_too_short_to_tell_says_so_and_is_no_verdict(seconds: float, judged: bool):
    life = only(sampled("memory", lambda at: at * MIB, seconds=int(seconds)))

    assert bool(life.growths) is judged
    assert ("too short to tell" in str(life)) is not judged
    assert any("not flat" in trouble for trouble in troubles([life], ["workers"])) is judged


def test_a_kind_of_which_one_life_is_long_enough_can_be_told():
    events = [
        *sampled("threads", lambda _: 3.0, by="workers-1 1"),
        *sampled("threads", lambda _: 3.0, by="workers-2 1", seconds=100),
    ]

    assert troubles(lives(events), ["workers"]) == []


def test_a_kind_of_which_no_life_is_long_enough_is_a_trouble():
    events = [
        *sampled("threads", lambda _: 3.0, by="workers-1 1"),
        *sampled("threads", lambda _: 3.0, by="retry-1 1", seconds=100),
        *sampled("threads", lambda _: 3.0, by="retry-1 2", seconds=400),
    ]

    assert troubles(lives(events), ["workers", "retry", "keeper"]) == [
        "too short to tell whether keeper stays flat: the longest life was watched for 0 s, and it takes 900 s",
        "too short to tell whether retry stays flat: the longest life was watched for 400 s, and it takes 900 s",
    ]


def test_a_life_is_told_with_its_figures():
    events = [
        Sampled(at=float(at), by="workers-1 1", figures={"memory": (50 + at / 50) * MIB, "files": 14.0})
        for at in range(0, HALF_AN_HOUR + 1, 5)
    ]

    life = only(events)

    assert str(life) == "workers-1 1, 1800 s: memory 66.0 MiB → 82.0 MiB, files 14 → 14"
    assert troubles([life], ["workers"]) == [
        "not flat: workers-1 1: memory 66.0 MiB → 82.0 MiB (limit +10.0 MiB)"
    ]


def test_a_process_that_tells_nothing_of_itself_has_no_life():
    assert lives([Sampled(at=1.0, by="earlier-1 1", figures={})]) == []
