"""How late retries go out on RabbitMQ, from SQLite and from PostgreSQL, with 500 of them due each second."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from benchmarks import broker, postgres
from benchmarks.figure import Figure, folder
from benchmarks.retry_load import QUEUE, failing_app, until
from benchmarks.waiting_1m import put

from leveret import Leveret
from leveret.core.message import Outgoing
from leveret.core.urls import parse_broker, parse_store
from leveret.runtime.opening import Stand
from leveret.runtime.wiring import make_store
from leveret.runtime.world import system_world
from leveret.transports.rabbitmq.transport import RabbitTransport

A_SECOND: Final = 500
SECONDS: Final = 20
#: Seconds from the first row that is written to the first that is due: by then all are written and the process works.
HEAD_START: Final = 6.0

#: A folder of the trial's own to the URL of an empty store.
Stored = Callable[[Path], AbstractContextManager[str]]


class Watched(RabbitTransport):
    """Notes what goes out to the worker's queue: when it was confirmed, by the time it was due at."""

    def __init__(self, url: str) -> None:
        super().__init__(parse_broker(url, "the benchmark"), world=system_world())
        #: (due, confirmed), both in epoch seconds, in the order in which they were sent.
        self.sent: list[tuple[float, float]] = []

    def send(self, message: Outgoing) -> asyncio.Future[None]:
        """Publish as ever."""
        answer = super().send(message)
        if message.routing_key == QUEUE:
            place = len(self.sent)
            due: float = json.loads(message.body)["wait"]
            self.sent.append((due, 0.0))

            def note(done: asyncio.Future[None]) -> None:
                if not done.cancelled() and done.exception() is None:
                    self.sent[place] = due, time.time()

            answer.add_done_callback(note)
        return answer


def measure() -> Iterator[Figure]:
    """Once in each store: twenty seconds give ten thousand, and the slowest hundred of them are what counts."""
    for end, stored in STORES:
        with folder() as here, stored(here) as store, watched(here, store) as (app, transport):
            late = asyncio.run(_late(app, transport, store))
        yield Figure(name=f"retry_lateness{end}", value=late * 1000, unit=" ms")


async def _late(app: Leveret, transport: Watched, store: str) -> float:
    """Seconds from due to confirmed, 99 of 100."""
    messages = A_SECOND * SECONDS
    first_due = await put(store, [HEAD_START + number / A_SECOND for number in range(messages)]) + HEAD_START
    async with app, app.running(workers=[], keeper=False):
        in_time(first_due)
        await asyncio.sleep(first_due + SECONDS - time.time())

        async def all_confirmed() -> bool:
            return len(transport.sent) == messages and all(confirmed for _, confirmed in transport.sent)

        await until(all_confirmed)
    late = sorted(confirmed - due for due, confirmed in transport.sent)
    assert late[0] >= -0.001, "one went out before it was due"
    return late[int(len(late) * 0.99)]


def in_time(first_due: float) -> None:
    """Refuse to measure where writing the rows took longer than the head start."""
    assert time.time() < first_due, (
        "the rows took too long to write: nothing can be said of how late they are"
    )


@contextlib.contextmanager
def watched(here: Path, store: str) -> Iterator[tuple[Leveret, Watched]]:
    """An app on RabbitMQ and that store, without a limit for what is overdue, and the transport it publishes by."""
    app = failing_app(here, broker.url(), store)
    transport, world = Watched(broker.url()), system_world()
    app._stand = Stand(  # noqa: SLF001 - what a test may do, to look on
        world=world,
        transport=lambda: transport,
        store=lambda: make_store(parse_store(store, "the benchmark"), world),
    )
    with broker.swept(app):
        yield app, transport


@contextlib.contextmanager
def _in_sqlite(here: Path) -> Iterator[str]:
    yield f"sqlite:///{here}/store.db"


@contextlib.contextmanager
def _in_postgres(_here: Path) -> Iterator[str]:
    with postgres.schema() as store:
        yield store


#: The end of a figure's name, and where its rows lie.
STORES: Final[tuple[tuple[str, Stored], ...]] = (("", _in_sqlite), ("_postgres", _in_postgres))
