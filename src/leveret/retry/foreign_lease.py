"""A lease of any program as a lease of ours: whatever goes wrong in it means that it is not held."""

from __future__ import annotations

from leveret.core.errors import StoreUnavailable
from leveret.ports import Grant, LeaseState, RetryLeaseInterface


class ForeignLease:
    """Offers terms and release, also for a lease that knows neither, and tells every failure as `StoreUnavailable`."""

    def __init__(self, lease: RetryLeaseInterface) -> None:
        self._lease = lease
        #: Counts take-overs as this process sees them, where the lease has no terms.
        self._term = 0
        self._holds = False

    async def acquire_or_renew(self, holder_id: str, now: float, expires_at: float) -> bool:
        """Claim or extend it.

        Raises:
            StoreUnavailable: the lease failed, in whatever way.
        """
        try:
            holds = bool(await self._lease.acquire_or_renew(holder_id, now, expires_at))
        except Exception as error:
            self._holds = False
            raise _unavailable(error) from error
        if holds and not self._holds:
            self._term += 1
        self._holds = holds
        return holds

    async def grant(self, holder_id: str) -> Grant | None:
        """Proof that it is held, under its own term where it has one."""
        own = getattr(self._lease, "grant", None)
        if own is None:
            return Grant("retry_worker", holder_id, self._term) if self._holds else None
        try:
            grant: Grant | None = await own(holder_id)
        except Exception as error:
            raise _unavailable(error) from error
        return grant

    async def release(self, holder_id: str) -> None:
        """Give it up where it can be; else it ends by itself."""
        self._holds = False
        own = getattr(self._lease, "release", None)
        if own is None:
            return
        try:
            await own(holder_id)
        except Exception as error:
            raise _unavailable(error) from error

    async def state(self) -> LeaseState | None:
        """Who holds it, None where it cannot tell."""
        own = getattr(self._lease, "state", None)
        if own is None:
            return None
        try:
            state: LeaseState | None = await own()
        except Exception as error:
            raise _unavailable(error) from error
        return state


def _unavailable(error: Exception) -> StoreUnavailable:
    if isinstance(error, StoreUnavailable):
        return error
    return StoreUnavailable(f"the lease failed with {type(error).__name__}: {error}")
