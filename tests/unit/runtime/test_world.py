from __future__ import annotations

import threading
import uuid

import pytest

from leveret.runtime.world import DaemonThreads, random_uuid


def test_an_id_is_a_uuid_of_version_4_in_its_usual_writing():
    for _ in range(200):
        id = random_uuid()
        read = uuid.UUID(id)
        assert str(read) == id
        assert (read.version, read.variant) == (4, uuid.RFC_4122)


def test_every_free_bit_of_an_id_is_random():
    ids = [uuid.UUID(random_uuid()).int for _ in range(200)]
    always = ids[0]
    ever = 0
    for id in ids:
        always &= id
        ever |= id
    # Six bits are given: version 0100 and variant 10, of which two are ones and four are noughts.
    assert always == 0x4000_8000_0000_0000_0000
    assert ~ever & (2**128 - 1) == 0xB000_4000_0000_0000_0000
    assert len(set(ids)) == 200


async def test_a_call_that_gets_no_thread_is_told_so_and_the_next_one_runs(monkeypatch):
    threads = DaemonThreads(1, "test")

    def none_left(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        with pytest.raises(RuntimeError, match="new thread"):
            await threads.run(lambda: 1)
    assert await threads.run(lambda: 2) == 2
    threads.close()


async def test_where_no_thread_is_left_those_that_are_there_take_the_call(monkeypatch):
    threads, go_on = DaemonThreads(2, "test"), threading.Event()
    first = threads.run(lambda: go_on.wait(10))

    def none_left(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        second = threads.run(lambda: 2)
    go_on.set()
    assert await first
    assert await second == 2
    threads.close()
