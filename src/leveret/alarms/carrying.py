"""Carrying: where alarms are carried none is raised, for it would have itself carried again, for ever (A1)."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_CARRYING: contextvars.ContextVar[bool] = contextvars.ContextVar("leveret_carrying_alarms", default=False)

#: Whether the caller is a log handler, a callback or a library that carries an alarm just now, in this thread or in one
#: that was asked to from here.
is_carrying = _CARRYING.get


@contextlib.contextmanager
def carrying() -> Iterator[None]:
    """Alarms are carried in this block."""
    token = _CARRYING.set(True)
    try:
        yield
    finally:
        _CARRYING.reset(token)
