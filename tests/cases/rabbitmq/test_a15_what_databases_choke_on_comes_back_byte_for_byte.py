"""A15: bodies, headers and words that a database cannot hold as text, and delays of any length, on each store.

A message goes its whole road on RabbitMQ: it fails softly, waits in the store, comes back, dies, lies in the dead
letters, and is replayed. At each station its bytes and its headers are what they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pika
import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.postgres_cluster import Cluster
from tests.rabbitmq_scene import until

from leveret import Context, HardFailure, Leveret, SoftFailure
from leveret.core.page import Page

DAY = 86_400.0
HEADERS = {"a.b": 1, "$x": "two", "": b"\x00\xff", "table": {"$set": {"a.b": [None, {"": True}]}}}
#: What the failures say; of a text that is only shown, NUL and surrogates are made visible.
WORDS = "no\0thing\ud800"
SHOWN = "no\\x00thing\\ud800"
HOSTILE = b"\x00\xff\xed\xa0\x80\r\n"
BODIES = {
    "escaped NUL": b'{"a": "x\\u0000y"}',
    "escaped surrogate": b'"\\ud800"',
    "raw": HOSTILE,
    "15.9 MB": (HOSTILE * 2_300_000)[:15_900_000],
    "17 MB": (HOSTILE * 2_500_000)[:17_000_000],
}
#: Seconds that the second try waits for; the two long ones are cut short.
DELAYS = {
    "escaped NUL": 0.0,
    "escaped surrogate": 0.001,
    "raw": 40 * DAY,
    "15.9 MB": 3652.5 * DAY,
    "17 MB": 0.001,
}
#: What RabbitMQ takes before 4.0; later ones have to be told, or no store would be tried with more than 16 MiB.
LIMIT = 134_217_728


@pytest.fixture(params=["memory", "sqlite", "postgres", "mongodb"])
def store(request: pytest.FixtureRequest, shop: Shop) -> str:
    """The URL of an empty store."""
    if request.param == "postgres":
        cluster: Cluster = request.getfixturevalue("postgres")
        return f"{cluster.url}?schema={cluster.schema()}"
    if request.param == "mongodb":
        return str(request.getfixturevalue("mongodb_url"))
    return shop.store if request.param == "sqlite" else "memory://"


@dataclass
class Seen:
    """What the handler was given, by message id, and whether it succeeds."""

    given: dict[str, list[tuple[bytes, dict[str, object]]]] = field(
        default_factory=lambda: {name: [] for name in BODIES}
    )
    mended: bool = False

    def note(self, ctx: Context) -> None:
        theirs = {name: value for name, value in ctx.headers.items() if not name.startswith("leveret-")}
        self.given[str(ctx.message_id)].append((ctx.body, theirs))

    def ran(self, times: int) -> bool:
        return all(len(given) == times for given in self.given.values())


async def listed(look: Callable[[], Awaitable[Page[Any]]], names: list[str]) -> Sequence[Any]:
    """Wait until messages of these names are listed, and no others."""
    async with asyncio.timeout(60):
        while True:
            found = (await look()).items
            if sorted(each.message_id for each in found) == names:
                return found
            await asyncio.sleep(0.05)


async def test_a15_on_its_whole_road_a_message_stays_what_it_was_whatever_is_in_it_and_however_long_it_waits(
    shop: Shop, store: str
):
    app: Leveret = shop.app(store=store)
    seen = Seen()

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        seen.note(ctx)
        if ctx.attempt == 1 and not seen.mended:
            raise SoftFailure(WORDS, retry_after=DELAYS[str(ctx.message_id)])
        if not seen.mended:
            raise HardFailure(WORDS)

    async with shop.limited_to(LIMIT), app:
        for name, body in BODIES.items():
            properties = pika.BasicProperties(message_id=name, headers=HEADERS, type="order.placed")
            shop.send("charge", body, properties)
        async with app.running():
            # What is due at once comes back by itself, and the rest waits, for as long as it was told to.
            waiting = await listed(app.retries.list, ["15.9 MB", "raw"])
            for entry in waiting:
                assert entry.reason == SHOWN
                assert entry.due_in == pytest.approx(DELAYS[str(entry.message_id)], abs=60.0)
            await app.retries.now([entry.retry_id for entry in waiting])
            for letter in await listed(app.dead_letters.list, sorted(BODIES)):
                assert letter.reason == f"HardFailure: {SHOWN}"
                kept = (await app.dead_letters.get(letter.id)).body
                # Compared before the assert, which would print megabytes.
                same = kept == BODIES[str(letter.message_id)]
                assert same
            seen.mended = True
            await app.dead_letters.replay(worker="charge")
            await until(lambda: seen.ran(3), seconds=60)
    for name, given in seen.given.items():
        same = all(body == BODIES[name] for body, _ in given)
        assert same, name
        assert [headers for _, headers in given] == [HEADERS] * 3
