"""StoreCondition: whether the store answers those who ask it. One condition, whoever meets it (S2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from leveret.core.alarm import RETRY_STORE_UNAVAILABLE, Alarm
from leveret.core.errors import LeaseLost, StoreRefused, StoreUnavailable
from leveret.ports import Alarms


class StoreCondition:
    """Tells that the store is away once one who asks is not answered, and that it is back once all of them are.

    A store may answer some and not others: one with a full disk is read, and renews a lease. So each who asks ends the
    condition only for itself, and an answer to what was asked before a failure proves nothing.

    Args:
        about: whose retries and dead letters lie there, as the alarm names it.
        store: the store for people, without secrets.
        alarms: who is told.
    """

    def __init__(self, about: str, *, store: str, alarms: Callable[[], Alarms]) -> None:
        self._about = about
        self._store = store
        self._alarms = alarms
        #: Who was not answered, and the number of its last failure.
        self._unanswered: dict[str, int] = {}
        self._failures = 0

    @contextmanager
    def asking(self, who: str, title: str) -> Iterator[None]:
        """Ask the store within the block.

        Args:
            who: asks. What one could not do, only the same one's next answer proves possible.
            title: the alarm's, where it does not answer: what cannot be done, and what becomes of it.
        """
        failures = self._failures
        try:
            yield
        except StoreUnavailable as error:
            self.failed(who, title, str(error))
            raise
        except (StoreRefused, LeaseLost):
            # It has read what it was given, and judged.
            self._answered(who, failures)
            raise
        self._answered(who, failures)

    def failed(self, who: str, title: str, why: str) -> None:
        """It did not answer *who*."""
        self._failures += 1
        self._unanswered[who] = self._failures
        fields = {"store": self._store, "error": why}
        self._alarms().emit(
            Alarm(code=RETRY_STORE_UNAVAILABLE, title=title, about=self._about, fields=fields)
        )

    def over_for(self, *those: str) -> None:
        """It has answered these, or they ask no more."""
        held = bool(self._unanswered)
        for who in those:
            self._unanswered.pop(who, None)
        if held and not self._unanswered:
            self._alarms().resolved(RETRY_STORE_UNAVAILABLE, self._about)

    def _answered(self, who: str, failures_before: int) -> None:
        if self._unanswered.get(who, failures_before + 1) <= failures_before:
            self.over_for(who)
