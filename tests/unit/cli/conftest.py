from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

import pytest

from leveret.cli import main
from leveret.core.dead_letter import DeadLetter
from leveret.core.properties import Properties
from leveret.core.retry_entry import RetryEntry
from leveret.runtime.world import SystemClock
from leveret.stores.sqlite.store import SqliteStore


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def records(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def leveret(folder, capsys):
    """Runs a command line in this process, in a folder of its own."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        return Ended(int(ended.value.code), out, err)

    return run


def an_entry(name: str, **changes) -> RetryEntry:
    return RetryEntry(
        **{
            "namespace": "shop",
            "key": f"shop.charge/{name}",
            "queue": "shop.charge",
            "exchange": "shop.events",
            "routing_key": "order.placed",
            "worker": "charge",
            "type": "order.placed",
            "message_id": f"message-{name}",
            "retry_id": f"retry-{name}",
            "attempt": 2,
            "max_attempts": 6,
            "failure": 2,
            "reason": "the card service answered 503",
            "failed_at": 1000.0,
            "wait": 600.0,
            "body": b'{"id": 1}',
            "properties": Properties.build(message_id=f"message-{name}", headers={"tenant": "42"}).raw,
        }
        | changes
    )


def a_letter(name: str, **changes) -> DeadLetter:
    return DeadLetter(
        **{
            "namespace": "shop",
            "id": f"letter-{name}",
            "worker": "charge",
            "queue": "shop.charge",
            "type": "order.placed",
            "message_id": f"message-{name}",
            "attempts": 1,
            "reason": "HardFailure: cannot charge 0 cents",
            "error": "HardFailure",
            "died_at": 1000.0,
            "body": b'{"id": 0}',
        }
        | changes
    )


@pytest.fixture
def stored(folder):
    """Puts retries and dead letters into ./leveret.db, and reads from it."""

    def put(*rows: RetryEntry | DeadLetter) -> None:
        async def work(store):
            await store.put([row for row in rows if isinstance(row, RetryEntry)])
            await store.keep([row for row in rows if isinstance(row, DeadLetter)])

        with_store(work)

    return put


def with_store(work, *, create=True):
    """What *work* returns, given the open store ./leveret.db."""

    async def opened():
        store = SqliteStore("leveret.db", clock=SystemClock())
        await store.open(create=create)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(opened())
