"""Leases in PostgreSQL, and the proof of one that guards what its holder does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.ports import Grant, LeaseState
from leveret.stores.leases import check_held
from leveret.stores.postgres.columns import exact, text_of
from leveret.stores.postgres.connections import PATIENCE, Connections

if TYPE_CHECKING:
    from leveret.stores.postgres.documents import PostgresDocumentStore
    from leveret.stores.postgres.store import PostgresStore

#: What stands before a statement that a grant guards: the lease's row, locked until the statement is over, or nothing.
#: Without a grant it is one row as well.
_HELD: Final = (
    "held AS MATERIALIZED (SELECT 1 FROM lease WHERE name = %s AND holder = %s AND term = %s FOR KEY SHARE)"
)
_NEED_NOT: Final = "held AS MATERIALIZED (SELECT 1)"


def guard(grant: Grant | None) -> tuple[str, tuple[Any, ...]]:
    """A table `held` for a statement that changes something: it has a row where the grant holds, or none was given.

    The lock keeps a take-over waiting while the statement runs, and no longer: it is one statement, so that a holder
    which is stopped in the middle of its work holds nothing up.
    """
    if grant is None:
        return _NEED_NOT, ()
    return _HELD, (exact(grant.lease), exact(grant.holder), grant.term)


async def lost(connections: Connections, grant: Grant) -> None:
    """Say who holds the lease, where *grant* does not hold any more; terms only rise, so that this stays true.

    Raises:
        LeaseLost: somebody else holds the lease by now, or it was released.
    """
    found = await connections.fetch("SELECT holder, term FROM lease WHERE name = %s", (exact(grant.lease),))
    row = (text_of(found[0][0]), found[0][1]) if found else None
    check_held(grant, row)


class PostgresRetryLease:
    """A lease in a PostgreSQL database: one holder at a time, each take-over under a higher term.

    The server's clock judges, whatever the hosts' clocks say.

    Args:
        store: an open store, or the URL of a database, which is then connected to (and its schema created) at first
            use.
        name: one lease a name.

    Raises:
        ConfigError: the URL cannot be read.

    Example:
        lease = PostgresRetryLease(store, name="shop/retry")
        await lease.acquire_or_renew("host/4711", now=0.0, expires_at=30.0)  # True
    """

    def __init__(
        self, store: PostgresStore | PostgresDocumentStore | str, *, name: str = "retry_worker"
    ) -> None:
        self.name = name
        self._own: Connections | None = None
        if isinstance(store, str):
            self._connections = self._own = Connections(store, patience=PATIENCE)
        else:
            self._connections = store.connections

    async def acquire_or_renew(self, holder_id: str, now: float, expires_at: float) -> bool:
        """Claim an expired lease or extend this holder's, for `expires_at - now` seconds by the server's clock.

        Returns:
            Whether *holder_id* holds it now.
        """
        connections = await self._opened()
        ttl, name, holder = expires_at - now, exact(self.name), exact(holder_id)
        # A renewal is a statement of its own: one that may also raise the term would lock the row as a take-over does,
        # and wait for work.
        if await connections.change(
            "UPDATE lease SET expires = epoch_now() + %s WHERE name = %s AND holder = %s",
            (ttl, name, holder),
            lane="lease",
        ):
            return True
        return bool(
            await connections.change(
                "INSERT INTO lease (name, holder, term, expires) VALUES (%s, %s, 1, epoch_now() + %s)"
                " ON CONFLICT (name) DO UPDATE SET"
                " holder = excluded.holder, term = lease.term + 1, expires = excluded.expires"
                " WHERE lease.holder = '' OR lease.expires <= epoch_now()",
                (name, holder, ttl),
                lane="lease",
            )
        )

    async def grant(self, holder_id: str) -> Grant | None:
        """Proof that *holder_id* holds the lease, with its term; None where it does not, or its time is over."""
        state = await self.state()
        if state is None or state.holder != holder_id or state.left <= 0:
            return None
        return Grant(self.name, holder_id, state.term)

    async def release(self, holder_id: str) -> None:
        """Give it up at once; harmless where *holder_id* does not hold it. The term stays."""
        connections = await self._opened()
        await connections.change(
            "UPDATE lease SET holder = '', expires = 0 WHERE name = %s AND holder = %s",
            (exact(self.name), exact(holder_id)),
            lane="lease",
        )

    async def state(self) -> LeaseState | None:
        """Who holds it (nobody: an empty name), or None where nobody ever did."""
        connections = await self._opened()
        found = await connections.fetch(
            "SELECT holder, term, expires - epoch_now() FROM lease WHERE name = %s",
            (exact(self.name),),
            lane="lease",
        )
        return state_of(*found[0]) if found else None

    async def close(self) -> None:
        """Disconnect where the lease has connected by itself; a store is left open. Idempotent."""
        if self._own is not None:
            await self._own.close()

    async def _opened(self) -> Connections:
        if self._own is not None:
            await self._own.open(create=True)
        return self._connections


def state_of(holder: str, term: int, left: float) -> LeaseState:
    """What a row says of its lease."""
    return LeaseState(text_of(holder), term, left if holder else 0.0)
