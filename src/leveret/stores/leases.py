"""The proof of a lease that guards what its holder does, as every store judges it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.errors import LeaseLost

if TYPE_CHECKING:
    from leveret.ports import Grant


def check_held(grant: Grant, row: tuple[str, int] | None) -> None:
    """Make sure that *grant* is what the lease's row says: who holds it, and the term; None where there is no row.

    An end that has passed does not matter: as long as nobody took over, nobody else acts.

    Raises:
        LeaseLost: somebody else holds the lease by now, or it was released.
    """
    if row != (grant.holder, grant.term):
        now = f"{row[0] or 'nobody'} holds it, term {row[1]}" if row else "nobody ever held it"
        raise LeaseLost(
            f"{grant.holder} has lost the lease {grant.lease} of term {grant.term}: {now}. Nothing was changed"
        )
