"""A handler that blocks the event loop is named, from outside the loop (B06)."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from pathlib import Path

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret
from leveret.pipeline.watchdog import Watchdog
from leveret.pipeline.worker import codes_of
from leveret.runtime.world import DaemonThreads

HERE = Path(__file__).name
#: Seconds between looks, so that nobody waits for three whole ones.
EVERY = 0.01


class Told(logging.Handler):
    """Lets those go on who block until the watchdog has told of them."""

    def __init__(self) -> None:
        super().__init__()
        self.of_it = threading.Event()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") == "loop_blocked":
            self.messages.append(record.getMessage())
            self.of_it.set()


@pytest.fixture
def told():
    handler = Told()
    log = logging.getLogger("leveret")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def line_of(function, text):
    """The line of *function* that contains *text*, as file:line."""
    code = function.__code__
    lines = Path(code.co_filename).read_text().splitlines()[code.co_firstlineno - 1 :]
    return f"{HERE}:{code.co_firstlineno + next(n for n, line in enumerate(lines) if text in line)}"


async def watched(*handlers):
    """Run these on the loop while a watchdog looks."""
    names = {code: handler.__name__ for handler in handlers for code in codes_of(handler)}
    watchdog = Watchdog(names, threads=DaemonThreads(1, "watchdog"), every=EVERY)
    watchdog.start()
    try:
        for handler in handlers:
            await asyncio.create_task(handler())
    finally:
        await watchdog.stop()


async def test_an_async_handler_that_blocks_is_named_with_the_call_and_the_line(told):
    async def charge():
        told.of_it.wait(10)

    await watched(charge)
    [said] = told.messages
    place = f"(told.of_it.wait at {line_of(charge, 'wait')})"
    assert said.startswith(f"charge has blocked the event loop for 0.03 s {place}; make it a plain def. ")


async def test_where_no_call_stands_the_line_is_named(told):
    async def charge():
        while not told.messages: ...  # fmt: skip

    await watched(charge)
    assert f" 0.03 s ({line_of(charge, 'while')}); make it" in told.messages[0]


async def test_time_sleep_is_named_as_it_is_written(told):
    async def charge():
        while not told.of_it.is_set():
            time.sleep(0.1)

    await watched(charge)
    assert f"(time.sleep at {line_of(charge, 'time.sleep')}); make it a plain def" in told.messages[0]


async def test_it_is_the_handlers_own_line_that_is_named_however_deep_it_blocks(told):
    def deep():
        told.of_it.wait(10)

    async def deeper():
        deep()

    async def charge():
        await deeper()

    await watched(charge)
    assert f"(deeper at {line_of(charge, 'await deeper')})" in told.messages[0]


async def test_it_is_told_once_of_each_blocking(told):
    rounds = []

    async def charge():
        told.of_it.clear()
        told.of_it.wait(10)
        # Ten looks more, in the same blocking.
        for _ in range(10):
            rounds.append(1)
            threading.Event().wait(EVERY)

    await watched(charge, charge)
    assert len(rounds) == 20
    assert len(told.messages) == 2


async def test_a_decorated_handler_is_known_by_what_it_wraps_and_by_its_decorator(told):
    def patiently(handler):
        @functools.wraps(handler)
        async def wrapper():
            told.of_it.wait(10)
            return await handler()

        return wrapper

    @patiently
    async def charge(): ...

    await watched(charge)
    assert told.messages[0].startswith("charge has blocked")


async def test_whoever_blocks_the_loop_without_being_a_handler_is_shown_by_the_line(told):
    async def web_page():
        told.of_it.wait(10)

    watchdog = Watchdog({}, threads=DaemonThreads(1, "watchdog"), every=EVERY)
    watchdog.start()
    await asyncio.create_task(web_page())
    await watchdog.stop()
    assert told.messages[0].startswith("the event loop has been blocked for 0.03 s, by no worker's handler (")


async def test_a_loop_that_answers_is_left_alone(told):
    looks = 0

    class Looking(Watchdog):
        def _answer(self, number):
            nonlocal looks
            looks = number
            super()._answer(number)

    async def charge():
        # Work enough for several looks, in pieces.
        while looks < 10:  # noqa: ASYNC110 - the loop has much to do, that is the point
            await asyncio.sleep(0)

    watchdog = Looking({}, threads=DaemonThreads(1, "watchdog"), every=EVERY)
    watchdog.start()
    await charge()
    await watchdog.stop()
    assert told.messages == []


def test_a_loop_that_is_closed_without_a_word_ends_the_watch():
    threads = DaemonThreads(1, "watchdog")

    async def work():
        Watchdog({}, threads=threads, every=EVERY).start()

    asyncio.run(work())
    threads.close()
    [thread] = threads._threads
    thread.join(10)
    assert not thread.is_alive()


async def test_in_an_app_it_is_off_unless_asked_for_and_ends_with_the_run():
    app = Leveret("shop", broker="memory://", store="memory://")

    @app.worker
    async def charge(body: bytes) -> None: ...

    def watchdogs():
        return [thread for thread in threading.enumerate() if thread.name.startswith("leveret-watchdog")]

    async with RunningApp(app) as t:
        assert t.runner._watches == []
    assert watchdogs() == []
    app._stand = None
    async with app.running():
        [thread] = watchdogs()
    thread.join(10)
    assert watchdogs() == []


async def test_one_function_that_serves_two_workers_is_told_under_both_names():
    app = Leveret("shop", broker="memory://", store="memory://")

    async def both(body: bytes) -> None: ...

    app.worker(name="charge")(both)
    app.worker(name="refund")(both)
    async with RunningApp(app) as t:
        assert t.runner._watchdog()._handlers == {both.__code__: "charge or refund"}
