"""Entries and letters for tests, with something in every field."""

# ruff: noqa: S101 - what a test builds on is asserted too

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from leveret.core.dead_letter import DeadLetter
from leveret.core.retry_entry import RetryEntry

if TYPE_CHECKING:
    from leveret.ports import Store

#: What a lone surrogate and a NUL look like in a text that came from somewhere else.
AWKWARD = "a\0b\ud800c"
#: Bytes that no text holds, with a NUL and a lone surrogate. Seven, so that no piece of a large body is like another.
_HOSTILE = b"\x00\xff" + "\ud800".encode("utf-8", "surrogatepass") + b"\r\n"
#: Bodies that a text, a JSON document or a document of 16 MB cannot hold.
BODIES = [
    pytest.param(b"", id="empty"),
    pytest.param(b'{"a": "x\\u0000y"}', id="escaped NUL"),
    pytest.param(b'"\\ud800"', id="escaped surrogate"),
    pytest.param(b"\x00\xff", id="raw"),
    pytest.param(bytes(range(256)), id="every byte"),
    pytest.param(b"\xed\xa0\x80", id="encoded surrogate"),
    pytest.param((_HOSTILE * 2_300_000)[:15_900_000], id="15.9 MB"),
    pytest.param((_HOSTILE * 2_500_000)[:17_000_000], id="17 MB"),
]


def an_entry(name: str = "one", **changes: Any) -> RetryEntry:
    """An entry that is due in ten seconds, unless told otherwise."""
    entry = RetryEntry(
        namespace="shop",
        key=f"shop.charge/{name}",
        kind="soft-failure",
        queue="shop.charge",
        exchange="shop.events",
        routing_key="order.created",
        worker="charge",
        type="order.created",
        message_id=f"message-{name}",
        retry_id=f"retry-id-{name}",
        attempt=2,
        max_attempts=5,
        failure=3,
        reason="no answer within 30 s",
        error="TimeoutError",
        traceback="Traceback (most recent call last): …",
        host="web-1/4711",
        wait=10.0,
        first_failed_at=1_750_000_000.25,
        failed_at=1_750_000_060.5,
        body=b'{"order": 17}',
        properties=b"\x80\x00\x10application/json",
    )
    return replace(entry, **changes)


def a_letter(name: str = "one", **changes: Any) -> DeadLetter:
    """A dead letter."""
    letter = DeadLetter(
        namespace="shop",
        id=f"letter-id-{name}",
        ending="retries exhausted",
        worker="charge",
        queue="shop.charge",
        exchange="shop.events",
        routing_key="order.created",
        type="order.created",
        message_id=f"message-{name}",
        retry_id=f"retry-id-{name}",
        attempts=5,
        failure=5,
        reason="no answer within 30 s",
        error="TimeoutError",
        traceback="Traceback (most recent call last): …",
        host="web-1/4711",
        first_failed_at=1_750_000_000.25,
        died_at=1_750_000_600.5,
        first_letter="letter-id-earlier",
        body=b'{"order": 17}',
        properties=b"\x80\x00\x10application/json",
        rpc=True,
    )
    return replace(letter, **changes)


async def stored(store: Store, key: str, namespace: str = "shop", failure: int = 3) -> RetryEntry | None:
    """The whole entry of that key and failure, None where it is not there, or held."""
    found = await store.take(namespace, [(key, failure)])
    return found[0] if found else None


async def keys_due(store: Store, within: float = 0.0, **more: Any) -> list[str]:
    """Keys of what is due within so many seconds, in the store's order."""
    return [due.key for due, _ in await store.upcoming("shop", within=within, limit=1000, **more)]


async def a_grant(store: Store, clock: Any, name: str = "shop/retry", holder: str = "me") -> Any:
    """A lease taken for 30 s, as a grant."""
    lease = store.lease(name)
    assert await lease.acquire_or_renew(holder, clock.now(), clock.now() + 30.0)
    return await lease.grant(holder)
