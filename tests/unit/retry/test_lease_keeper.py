"""A store that answers later than a lease lasts is as good as away, and told so."""

from __future__ import annotations

import pytest

from leveret.ports import Grant, LeaseState
from leveret.retry.lease import LeaseKeeper
from leveret.testing.fake_clock import FakeClock

TTL = 30.0


class Clock(FakeClock):
    """Timers do not run while the process stands still."""

    stood_still = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.stood_still


class SlowLease:
    """Free for whoever asks; answers once so many seconds have passed."""

    name = "shop/retry"

    def __init__(self, clock: FakeClock) -> None:
        self.after = 0.0
        self._clock = clock

    async def acquire_or_renew(self, holder_id: str, now: float, expires_at: float) -> bool:
        if self.after:
            await self._clock.sleep(self.after)
        return True

    async def grant(self, holder_id: str) -> Grant | None:
        return Grant(self.name, holder_id, 1)

    async def release(self, holder_id: str) -> None: ...

    async def state(self) -> LeaseState | None: ...


class Kept:
    def __init__(self) -> None:
        self.clock = Clock()
        self.lease = SlowLease(self.clock)
        #: Why the store was said to be away, and None where it was said to be back.
        self.away: list[str | None] = []
        self.keeper = LeaseKeeper(
            self.lease,
            holder="me",
            ttl=TTL,
            clock=self.clock,
            gained=lambda _: None,
            lost=lambda _: None,
            away=self.away.append,
        )


@pytest.fixture
async def kept():
    kept = Kept()
    kept.keeper.start()
    await kept.clock.advance(0)
    assert kept.keeper.holds
    kept.away.clear()
    yield kept
    await kept.keeper.stop()


async def test_a_renewal_without_an_answer_is_told_when_the_lease_ends(kept):
    kept.lease.after = 1000.0
    await kept.clock.advance(TTL - 0.1)
    assert kept.away == []
    await kept.clock.advance(0.1)
    assert not kept.keeper.holds
    assert kept.away == ["it has not answered for 20.0 s"]


async def test_an_answer_that_comes_after_a_lease_does_not_mean_that_the_store_is_back(kept):
    kept.lease.after = TTL
    await kept.clock.advance(300)
    assert not kept.keeper.holds
    assert None not in kept.away
    kept.lease.after = 0.0
    await kept.clock.advance(TTL + 1)
    assert kept.keeper.holds
    assert kept.away[-1] is None


async def test_a_process_that_stood_still_itself_does_not_blame_the_store(kept):
    kept.clock.stood_still = 2 * TTL
    kept.lease.after = 1.0
    # The renewal comes late, and is made now; so is the call at the end of the lease, before the answer.
    await kept.clock.advance(TTL / 3)
    kept.keeper._expired()
    await kept.clock.advance(1.0)
    assert kept.keeper.holds
    assert kept.away == [None]
