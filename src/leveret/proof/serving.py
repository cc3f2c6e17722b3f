"""A store with somebody before it who decides what becomes of each call."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from leveret.ports import Store

#: What changes something in a store; all other calls only read.
WRITES: Final = frozenset(
    {"put", "remove", "postpone", "unblock", "reschedule", "hold", "move", "bury", "keep", "claim", "replayed",
     "set_state", "edit", "ask", "report", "count_start", "forget_starts", "acquire_or_renew", "release"}
)  # fmt: skip

#: Does a call, given its name, or does something else to whoever makes it.
Serve = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]


def served(store: Store, serve: Serve) -> Store:
    """The same store, each of whose calls, and of its leases', *serve* does; only `close` has no need of the server."""
    return cast("Store", _Served(store, serve))


class _Served:
    """Stands before a store or a lease."""

    def __init__(self, inner: Any, serve: Serve) -> None:
        self._inner: Final = inner
        self._serve: Final = serve

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == "close" or not inspect.iscoroutinefunction(found):
            return found
        serve = self._serve

        async def call(*given: Any, **named: Any) -> Any:
            return await serve(name, lambda: found(*given, **named))

        # Looked up once: this stands in the way of every call.
        setattr(self, name, call)
        return call

    def lease(self, name: str) -> Any:
        return _Served(self._inner.lease(name), self._serve)
