"""A22: a handler that raised is never acked as if it had succeeded: one dead letter more, with the reason.

Whatever it raises, also what Python itself means to end a thread, a task or a process with, and also a coroutine that
it forgot to await.
"""

from __future__ import annotations

import asyncio

import pytest

from leveret import Leveret, RetryPolicy
from leveret.testing import TestLeveret


class Ended(BaseException):
    """Not an Exception."""


def deeper() -> None:
    deeper()


def raising(error):
    def fail():
        raise error

    return fail


async def forgotten() -> None: ...


failures = pytest.mark.parametrize(
    ("fail", "error", "reason"),
    [
        (raising(ValueError("no url")), "ValueError", "ValueError: no url"),
        (raising(Ended("the end")), "Ended", "Ended: the end"),
        (raising(SystemExit(3)), "SystemExit", "SystemExit: 3"),
        (raising(asyncio.CancelledError()), "CancelledError", "CancelledError"),
        (deeper, "RecursionError", "RecursionError: maximum recursion depth exceeded"),
        (forgotten, "RuntimeError", "RuntimeError: charge returned a coroutine that nobody awaited"),
    ],
    ids=["ValueError", "BaseException", "SystemExit", "CancelledError", "RecursionError", "never awaited"],
)


@failures
@pytest.mark.parametrize("plain", [False, True], ids=["async def", "def"])
async def test_a22_it_is_tried_again_and_then_a_dead_letter_with_its_reason(fail, error, reason, plain):
    app = Leveret("shop", retry=RetryPolicy(first_delay=1, max_attempts=2))

    if plain:

        @app.worker("order.placed")
        def charge():
            return fail()

    else:

        @app.worker("order.placed")
        async def charge():
            return fail()

    async with TestLeveret(app, fail_fast=False) as t:
        await t.publish("order.placed", b'{"id": 1}')
        [entry] = t.waiting("charge")
        assert (entry.attempt, entry.error) == (1, error)
        assert entry.reason.startswith(reason)
        await t.run_until_idle()
        [letter] = t.dead("charge")
        assert (letter.ending, letter.attempts, letter.error) == ("retries exhausted", 2, error)
        assert letter.reason.startswith(f"retries exhausted: {reason}")
        assert letter.body == b'{"id": 1}'
        assert [run.outcome for run in t.runs()] == ["soft", "dead"]


@failures
async def test_a22_where_unexpected_means_dead_it_is_a_dead_letter_at_once(fail, error, reason):
    app = Leveret("shop")

    @app.worker("order.placed", unexpected="dead")
    async def charge():
        return fail()

    async with TestLeveret(app, fail_fast=False) as t:
        await t.publish("order.placed", {})
        [letter] = t.dead("charge")
        assert (letter.ending, letter.attempts, letter.error) == ("hard failure", 1, error)
        assert letter.reason.startswith(reason)
        assert [run.outcome for run in t.runs()] == ["dead"]
