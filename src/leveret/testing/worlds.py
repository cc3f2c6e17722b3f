"""Worlds for tests: a clock that stands still, randomness and ids from a seed, and threads that are none."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from typing import TypeVar

from leveret.ports import Clock, Threads, World
from leveret.testing.fake_clock import FakeClock

R = TypeVar("R")


class InlineThreads:
    """Runs each call at once, where it was asked for: no thread, hence no order of events but one."""

    def __init__(self) -> None:
        self._closed = False

    def run(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Run *call* now; the answer, or what it raised (also SystemExit), is in the future that comes back.

        Raises:
            RuntimeError: after `close`.
        """
        if self._closed:
            raise RuntimeError("these threads are closed and take no more calls")
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        try:
            answer.set_result(call())
        except StopIteration as error:
            # A future cannot carry it: it would end the coroutine that awaits.
            stopped = RuntimeError("the call raised StopIteration")
            stopped.__cause__ = error
            answer.set_exception(stopped)
        except BaseException as error:  # noqa: BLE001 - handed on, whatever it is
            answer.set_exception(error)
        return answer

    def close(self) -> None:
        """Take no more calls."""
        self._closed = True


def fake_world(seed: int = 0, clock: Clock | None = None) -> World:
    """A world in which everything that could vary comes from *seed*, and time passes only when told to.

    Args:
        seed: of the randomness and the ids; each has a source of its own, so that one more jitter changes no id.
        clock: by default a `FakeClock` of its own. Give one to be able to move it.

    Example:
        >>> fake_world(7).new_id() == fake_world(7).new_id() != fake_world(8).new_id()
        True
    """
    ids = random.Random(f"ids of {seed}")

    def new_id() -> str:
        return str(uuid.UUID(int=ids.getrandbits(128), version=4))

    def threads(_number: int, _named: str) -> Threads:
        return InlineThreads()

    return World(
        clock=FakeClock() if clock is None else clock,
        random=random.Random(seed),
        new_id=new_id,
        threads=threads,
    )
