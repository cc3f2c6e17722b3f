from __future__ import annotations

import random

import pytest

from leveret.proof.record import Sampled
from leveret.torture.flatness import MIB, Growth, growths, slope

HALF_AN_HOUR = range(0, 1800, 5)


def sampled(figure: str, value) -> list[Sampled]:
    return [Sampled(at=float(at), by="workers-1 1", figures={figure: value(at)}) for at in HALF_AN_HOUR]


def only(events: list[Sampled]) -> Growth:
    (found,) = growths(events)
    return found


def test_what_goes_up_and_down_is_flat():
    chance = random.Random(4)

    assert only(sampled("memory", lambda _: (80 + chance.uniform(-5, 5)) * MIB)).is_flat


def test_what_grows_at_first_and_then_stays_is_flat():
    assert only(sampled("memory", lambda at: min(40 + at / 10, 90) * MIB)).is_flat


@pytest.mark.parametrize(
    ("figure", "start", "a_minute"),
    [
        ("memory", 80 * MIB, MIB),
        ("files", 20.0, 0.2),
        ("threads", 4.0, 0.1),
        ("tasks", 30.0, 2.0),
        ("objects", 2e5, 2e3),
    ],
)
def test_what_grows_all_the_time_is_not_flat(figure: str, start: float, a_minute: float):
    growth = only(sampled(figure, lambda at: start + a_minute * at / 60))

    assert not growth.is_flat
    assert growth.rise == pytest.approx(15 * a_minute, rel=0.01)


def test_a_growth_is_told_with_its_limit():
    growth = only(sampled("memory", lambda at: (80 + at / 60) * MIB))

    assert str(growth) == (
        "workers-1 1: memory 102.5 MiB on average, +14.9 MiB over the second half (limit 4.0 MiB)"
    )


def test_of_a_process_that_lived_for_a_moment_nothing_is_said():
    assert growths(sampled("memory", lambda at: at * MIB)[:10]) == []


def test_a_line_through_one_point_is_flat():
    assert slope([(3.0, 4.0)]) == 0
