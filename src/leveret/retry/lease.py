"""LeaseKeeper: gets a lease, keeps it, and knows at every moment whether it may still act on it (R4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from leveret.core.errors import StoreError
from leveret.pipeline.parts import log
from leveret.ports import Clock, Grant, Lease, Timer

#: Seconds between a standby's looks at the lease.
STANDBY_POLL = 0.5


class Standing(NamedTuple):
    """How a process stands towards a lease."""

    held: bool
    #: Who holds it, empty where nobody does or the store does not answer.
    holder: str
    term: int
    #: Seconds that the holder has left.
    left: float


class LeaseKeeper:
    """Polls as a standby, renews as a holder, and trusts itself from the start of its last renewal request only.

    A renewal that fails or comes late means: hold nothing, from that moment. Renewal runs in a task of its own and
    never waits for work.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        holder: str,
        ttl: float,
        clock: Clock,
        gained: Callable[[Grant], object],
        lost: Callable[[str], object],
        away: Callable[[str | None], object] = lambda _: None,
    ) -> None:
        self._lease = lease
        self._holder = holder
        self._ttl = ttl
        self._clock = clock
        self._gained = gained
        self._lost = lost
        #: Told why the store does not answer, and None when it does.
        self._away = away
        self._grant: Grant | None = None
        self._trusted_until = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._expiry: Timer | None = None
        #: When the request that is under way was made.
        self._asked_at: float | None = None
        self._last_error = ""

    @property
    def holds(self) -> bool:
        """Whether the lease is ours right now, beyond doubt."""
        return self._grant is not None and self._clock.monotonic() < self._trusted_until

    def holds_as(self, grant: Grant) -> bool:
        """Whether the lease is ours right now under that very term: it may have been lost, and taken again, since."""
        return self.grant == grant

    @property
    def grant(self) -> Grant | None:
        """Proof of the lease, for the store to check; None where it is not held."""
        return self._grant if self.holds else None

    def start(self) -> None:
        """Begin to poll."""
        self._task = asyncio.create_task(self._keep(), name=f"leveret lease {self._holder}")

    async def stop(self, *, release: bool = True) -> None:
        """Stop polling, and give the lease up at once so that a standby need not wait for its end."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._step_down("stopped")
        if release:
            try:
                await self._lease.release(self._holder)
            except StoreError as error:
                # It ends by itself; the standby waits for its time to pass.
                self._last_error = str(error)

    async def standing(self) -> Standing:
        """Who holds it now, by the store's word."""
        state = await self._lease.state()
        if state is None or state.left <= 0:
            return Standing(False, "", 0 if state is None else state.term, 0.0)
        return Standing(state.holder == self._holder and self.holds, state.holder, state.term, state.left)

    async def run_once(self) -> None:
        """Ask for the lease, or for more of it, once."""
        started = self._asked_at = self._clock.monotonic()
        now = self._clock.now()
        try:
            held = await self._lease.acquire_or_renew(self._holder, now, now + self._ttl)
            grant = await self._lease.grant(self._holder) if held else None
        except StoreError as error:
            self._step_down(f"the lease could not be renewed: {error}")
            self._away(str(error))
            return
        except Exception as error:  # noqa: BLE001 - a lease may be anybody's; if this ended, nothing would ask again
            log.exception("the lease of %s could not be asked for", self._holder)
            self._step_down(f"the lease could not be renewed: {type(error).__name__}: {error}")
            return
        finally:
            self._asked_at = None
        took = self._clock.monotonic() - started
        if took >= self._ttl:
            # Nobody can hold a lease, and work, with a store that answers so late.
            self._away(f"it answered after {took:.1f} s")
            self._step_down("the renewal's answer came after the lease had ended")
            return
        self._away(None)
        if grant is None:
            self._step_down("somebody else holds the lease")
            return
        taken = self._grant is None or self._grant.term != grant.term
        if taken and self._grant is not None:
            self._step_down("the lease was lost and taken again")
        self._grant = grant
        self._trusted_until = started + self._ttl
        self._watch_expiry()
        if taken:
            self._gained(grant)

    def _watch_expiry(self) -> None:
        """Step down on time even where a renewal hangs."""
        if self._expiry is not None:
            self._expiry.cancel()
        left = self._trusted_until - self._clock.monotonic()
        self._expiry = self._clock.call_later(left, self._expired)

    def _expired(self) -> None:
        if not self.holds:
            silent = 0.0 if self._asked_at is None else self._clock.monotonic() - self._asked_at
            # A request that was made just now says nothing of the store: this process itself may have stood still.
            if silent > self._ttl / 3:
                self._away(f"it has not answered for {silent:.1f} s")
            self._step_down("the lease ended before it was renewed")
        else:
            self._watch_expiry()

    def _step_down(self, why: str) -> None:
        self._trusted_until = float("-inf")
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._grant is not None:
            self._grant = None
            self._lost(why)

    @property
    def next_in(self) -> float:
        """Seconds between two requests: a holder renews thrice in a lease, a standby looks twice a second."""
        return self._ttl / 3 if self._grant is not None else min(STANDBY_POLL, self._ttl / 3)

    async def _keep(self) -> None:
        while True:
            await self.run_once()
            await self._clock.sleep(self.next_in)
