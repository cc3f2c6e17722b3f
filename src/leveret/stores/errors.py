"""Errors that every store tells in the same words: what happened, where, and what to do."""

from __future__ import annotations

from leveret.core.errors import StoreRefused, StoreUnavailable


def unavailable(store: object, what: str, remedy: str) -> StoreUnavailable:
    """The error for a file or a server that cannot be used now; *store* is shown, so it holds no password."""
    return StoreUnavailable(f"the store {store} cannot be used: {what}. What to do: {remedy}")


def no_memory(store: object) -> StoreUnavailable:
    """The error for a MemoryError on the way to a store: the shortage passes, and the data is not the culprit."""
    return unavailable(
        store,
        "this process has too little memory for that at the moment",
        "free some, or give it more; leveret goes on by itself once the shortage is over",
    )


def newer_schema(store: object, found: int, newest: int) -> StoreRefused:
    """The error for a store whose schema this leveret does not know yet."""
    return StoreRefused(
        f"the store {store} has schema {found}, and this leveret knows schemas up to {newest}: a newer leveret has "
        "written it. Upgrade leveret here"
    )
