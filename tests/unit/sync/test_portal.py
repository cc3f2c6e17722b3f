from __future__ import annotations

import asyncio
import gc
import os
import threading

import pytest

from leveret.core.errors import LeveretError, TransportUnavailableError
from leveret.sync.portal import Portal


@pytest.fixture
def portal():
    portal = Portal("test portal", owner="the test", forked=lambda: None)
    yield portal
    portal.close()


async def answer(value):
    return value


async def the_thread():
    return threading.current_thread()


def test_no_thread_is_started_before_it_is_needed(portal):
    assert not portal.running


def test_work_runs_on_one_thread_of_its_own(portal):
    first, second = portal.call(the_thread()), portal.call(the_thread())

    assert first is second
    assert first is not threading.current_thread()
    assert first.daemon


def test_what_the_work_raises_is_raised_here(portal):
    async def fail():
        raise KeyError("url")

    with pytest.raises(KeyError, match="url"):
        portal.call(fail())


def test_a_timeout_of_the_works_own_is_told_as_it_is(portal):
    async def fail():
        raise TimeoutError("the work's own")

    with pytest.raises(TimeoutError, match="the work's own"):
        portal.call(fail(), within=10)


def test_work_that_takes_too_long_is_cancelled(portal):
    ended = threading.Event()

    async def wait():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        portal.call(wait(), within=0.05)
    assert ended.wait(5)


def test_calls_of_many_threads_are_all_made_once(portal):
    made = []

    def submit():
        for number in range(500):
            portal.submit(lambda number=number: made.append(number))

    threads = [threading.Thread(target=submit) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    portal.call(answer(None))

    assert sorted(made) == sorted(list(range(500)) * 20)


def test_called_on_its_own_thread_it_raises_at_once(portal):
    async def call_itself():
        work = answer(1)
        try:
            return portal.call(work)
        finally:
            work.close()

    with pytest.raises(LeveretError, match="on its own I/O thread"):
        portal.call(call_itself())


async def test_it_works_inside_somebody_elses_event_loop(portal):
    assert portal.call(answer(7)) == 7


def test_after_close_it_says_so(portal):
    portal.call(answer(1))
    portal.close()
    portal.close()

    work = answer(2)
    with pytest.raises(TransportUnavailableError, match="the test was closed: nothing was sent"):
        portal.call(work)


def test_whoever_waits_at_close_is_told(portal):
    waiting = portal.start(asyncio.sleep(3600))
    portal.call(answer(None))
    portal.close()

    with pytest.raises(TransportUnavailableError, match="was closed"):
        waiting.result(5)


def test_a_farewell_that_hangs_does_not_hold_up_the_close(portal):
    portal.call(answer(None))
    portal.close(asyncio.sleep(3600), within=0.1)

    assert portal.closed


def test_closed_before_it_was_used_it_starts_nothing(portal):
    portal.close(answer(None))

    assert not portal.running


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_a_loop_of_its_own_and_the_parents_goes_on():
    told = []
    portal = Portal("test portal", owner="the test", forked=lambda: told.append(os.getpid()))
    before = portal.call(the_thread())
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            fine = not portal.running and portal.call(answer(1)) == 1 and told == [os.getpid()]
            os.write(writing, b"1" if fine else b"0")
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"1"
    os.close(reading)
    os.waitpid(child, 0)

    assert portal.call(the_thread()) is before
    assert told == []
    portal.close()


def test_a_thread_that_bears_the_number_of_the_one_that_ended_may_close_again(portal, monkeypatch):
    number = portal.call(the_thread()).ident
    portal.close()

    # As the system gives it to whoever starts next.
    monkeypatch.setattr(threading, "get_ident", lambda: number)
    portal.close(answer(None))


def test_a_close_on_its_own_thread_is_refused_and_leaves_no_farewell_unsaid(portal, recwarn):
    async def close():
        portal.close(answer("goodbye"))

    with pytest.raises(LeveretError, match="on its own I/O thread"):
        portal.call(close())
    gc.collect()
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]
