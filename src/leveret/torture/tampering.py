"""Tampering: what can be done to a store from inside the process that uses it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final, cast

from leveret.core.errors import StoreUnavailable
from leveret.ports import Clock, Store

#: Calls that put something on a disk.
_WRITES: Final = frozenset(
    {"put", "remove", "postpone", "unblock", "reschedule", "hold", "move", "bury", "keep", "claim", "replayed",
     "set_state", "edit", "ask", "report", "count_start", "forget_starts", "acquire_or_renew"}
)  # fmt: skip


class Tampering:
    """How a process's store behaves.

    Attributes:
        slow: seconds that each call takes longer.
        late: share of the calls that are done, and answered by an error all the same.
        full: whether what needs room on a disk is refused.
    """

    def __init__(self) -> None:
        self.set()

    def set(self, *, slow: float = 0.0, late: float = 0.0, full: bool = False) -> None:
        """From now on so; without words: as it should."""
        self.slow = slow
        self.late = late
        self.full = full
        self._owed = 0.0

    def is_late(self) -> bool:
        """Whether this call is one of the late ones; they are spread evenly."""
        self._owed += self.late
        if self._owed < 1:
            return False
        self._owed -= 1
        return True


def tampered(store: Store, tampering: Tampering, clock: Clock) -> Store:
    """The same store, as long as nobody tampers with it."""
    return cast("Store", _Tampered(store, tampering, clock))


class _Tampered:
    """Stands before a store or a lease."""

    def __init__(self, inner: Any, tampering: Tampering, clock: Clock) -> None:
        self._inner: Final = inner
        self._tampering: Final = tampering
        self._clock: Final = clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in {"open", "close"} or not inspect.iscoroutinefunction(found):
            return found
        call = self._call(name, found)
        # Looked up once: this stands in the way of every call.
        setattr(self, name, call)
        return call

    def lease(self, name: str) -> Any:
        return _Tampered(self._inner.lease(name), self._tampering, self._clock)

    def _call(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        writes = name in _WRITES
        tampering = self._tampering

        @wraps(call)
        async def tampered(*given: Any, **named: Any) -> Any:
            if tampering.slow:
                await self._clock.sleep(tampering.slow)
            if tampering.full and writes:
                raise StoreUnavailable(f"{name}: no space left on the device. Nothing was written")
            answer = await call(*given, **named)
            if tampering.late and tampering.is_late():
                raise StoreUnavailable(f"{name}: no answer in time; it may have been done, or not")
            return answer

        return tampered
