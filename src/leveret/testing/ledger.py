"""Ledger: every message that was accepted, and where it is now, from what broker, store and workers show."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leveret.core import envelope
from leveret.core import headers as h
from leveret.core.envelope import Malformed
from leveret.core.message import Outgoing
from leveret.core.run import Run
from leveret.core.topology import Names
from leveret.stores.memory import MemoryData
from leveret.transports.memory_broker import MemoryBroker

#: Where a message can be found again, as the table's columns.
ENDS = ("done", "waiting", "dead", "queued")
#: Rows that the table shows; the lost ones come first.
ROWS_SHOWN = 20
#: Stands for the worker of a message that waits for its first publish.
LATER = "(later)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A message as it reached the data exchange: a first publish, a result, or a delayed one whose time had come."""

    type: str
    #: Decoded where it is JSON, else the bytes.
    payload: Any
    id: str | None
    headers: Mapping[str, Any]
    body: bytes


@dataclass(slots=True, kw_only=True)
class Account:
    """What was accepted under one message id for one worker, and where it is."""

    message_id: str
    type: str
    worker: str
    accepted: int = 0
    ends: Counter[str]
    lost: int = 0


class Ledger:
    """Notes what the broker accepts and what the workers finish, and finds what is in neither place.

    Args:
        names: of the app's namespace.
        exchange: the data exchange.
        workers: the names of the app's workers.
    """

    def __init__(self, names: Names, exchange: str, workers: Sequence[str]) -> None:
        self.published: list[Published] = []
        self._names = names
        self._exchange = exchange
        self._workers = {names.queue(worker): worker for worker in workers}
        #: By message id and worker.
        self._accounts: dict[tuple[str, str], Account] = {}
        self._done: Counter[tuple[str, str]] = Counter()

    # ── What happens ──────────────────────────────────────────────────────────────────────────────────────────────────

    def took(self, message: Outgoing, queues: Sequence[str]) -> None:
        """The broker has taken a message, for these queues."""
        properties = message.properties
        id = properties.message_id
        if message.exchange == self._exchange:
            if any(h.is_ours(name) for name in properties.headers):
                # A retry or a replay that goes through the exchange: accepted long ago.
                return
            self.published.append(_published(message))
            if id is not None and (id, LATER) in self._accounts:
                self._done[id, LATER] += 1
            if id is not None and _promised(message):
                for queue in queues:
                    if queue in self._workers:
                        self._accept(id, properties.type or message.routing_key, self._workers[queue])
        elif id is not None and properties.header(h.ENVELOPE) == h.DELAYED:
            self._accept(id, properties.type or "", LATER)

    def ran(self, run: Run) -> None:
        """A delivery was settled."""
        if run.outcome == "done" and run.message_id is not None:
            self._done[run.message_id, run.worker] += 1

    def _accept(self, id: str, type: str, worker: str) -> None:
        account = self._accounts.setdefault(
            (id, worker), Account(message_id=id, type=type, worker=worker, ends=Counter())
        )
        account.accepted += 1

    # ── Where everything is ───────────────────────────────────────────────────────────────────────────────────────────

    def check(self, broker: MemoryBroker, data: MemoryData) -> None:
        """Make sure that each accepted message is done, waiting, dead or in a queue.

        Raises:
            AssertionError: some are not; with the ledger.
        """
        accounts = self.accounts(broker, data)
        lost = sum(account.lost for account in accounts)
        if lost:
            raise AssertionError(_told(accounts, lost))

    def accounts(self, broker: MemoryBroker, data: MemoryData) -> list[Account]:
        """What was accepted, and where it is; read while nobody has anything in hand."""
        found = Counter({(*place, "done"): number for place, number in self._done.items()})
        found += self._stored(data) + self._queued(broker)
        #: Copies of a message under a worker it was not published for: moved by hand, or of no known worker.
        elsewhere: Counter[str] = Counter()
        for (id, worker, end), number in found.items():
            account = self._accounts.get((id, worker))
            if account is None:
                elsewhere[id] += number
            else:
                account.ends[end] = number
        for account in self._accounts.values():
            missing = max(0, account.accepted - account.ends.total())
            taken = min(missing, elsewhere[account.message_id])
            elsewhere[account.message_id] -= taken
            account.lost = missing - taken
        return list(self._accounts.values())

    def _stored(self, data: MemoryData) -> Counter[tuple[str, str, str]]:
        found: Counter[tuple[str, str, str]] = Counter()
        for entry, _ in data.retries.values():
            worker = LATER if entry.kind == "delayed" else entry.worker
            found[entry.message_id or "", worker, "waiting"] += 1
        for letter in data.letters.values():
            # What was replayed is in a queue again, or beyond it.
            if letter.state != "replayed":
                found[letter.message_id or "", letter.worker or LATER, "dead"] += 1
        return found

    def _queued(self, broker: MemoryBroker) -> Counter[tuple[str, str, str]]:
        found: Counter[tuple[str, str, str]] = Counter()
        there = broker.snapshot()
        for queue, worker in self._workers.items():
            for name in (queue, self._names.suspects(worker)):
                for message in broker.messages(name) if name in there else ():
                    found[message.properties.message_id or "", worker, "queued"] += 1
        for name in (self._names.retry_queue, self._names.dead_letters):
            for message in broker.messages(name) if name in there else ():
                found[message.properties.message_id or "", self._worker_of(message), "queued"] += 1
        return found

    def _worker_of(self, message: Outgoing) -> str:
        properties = message.properties
        if properties.header(h.ENVELOPE) == h.DEAD_LETTER:
            return str(properties.header(h.WORKER) or LATER)
        try:
            entry = envelope.read_retry(message.body, properties, namespace=self._names.namespace)
        except Malformed:
            return ""
        return LATER if entry.kind == "delayed" else entry.worker


def _promised(message: Outgoing) -> bool:
    """Whether leveret answers for it: persistent, mandatory, and without an expiration."""
    properties = message.properties
    return message.mandatory and properties.delivery_mode == 2 and properties.expiration is None


def _published(message: Outgoing) -> Published:
    properties = message.properties
    payload: Any = message.body
    if properties.content_type == "application/json":
        try:
            payload = json.loads(message.body)
        except ValueError:
            payload = message.body
    return Published(
        type=properties.type or message.routing_key,
        payload=payload,
        id=properties.message_id,
        headers=dict(properties.headers),
        body=message.body,
    )


def _told(accounts: Sequence[Account], lost: int) -> str:
    accepted = sum(account.accepted for account in accounts)
    totals = {end: sum(account.ends[end] for account in accounts) for end in ENDS}
    sums = " ".join(f"{name}={number}" for name, number in totals.items())
    head = ["message", "type", "worker", "accepted", *ENDS, "lost"]
    shown = sorted(accounts, key=lambda account: account.lost == 0)[:ROWS_SHOWN]
    rows = [
        [f"…{account.message_id[-6:]}", account.type, account.worker, str(account.accepted)]
        + [str(account.ends[end]) for end in ENDS]
        + [str(account.lost)]
        for account in shown
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [head, *rows]
    ]
    if len(accounts) > len(shown):
        lines.append(f"… and {len(accounts) - len(shown)} more")
    what = "1 message was" if lost == 1 else f"{lost} messages were"
    return (
        f"{what} accepted and is nowhere now: not done, not waiting, not dead and in no queue.\n"
        f"accepted={accepted} {sums} lost={lost}\n" + "\n".join(lines)
    )
