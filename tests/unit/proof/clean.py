"""Made-up records in which leveret keeps its promise: what the judge must let pass, and what tests then break."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

from leveret.proof.record import (
    Answered,
    AnyEvent,
    Asked,
    Backlog,
    Began,
    Confirmed,
    Ended,
    Found,
    Healed,
    LeaseTaken,
    Replayed,
    Sent,
    Settled,
    Struck,
    Taken,
)
from leveret.proof.shop import MAX_ATTEMPTS, TAKERS, Order, orders, word_at

RETRY = "retry-1 1"


class Clean:
    """A record of orders that all end as they must.

    Args:
        seed: of everything.
        soft: share of the orders that fail softly at first.
        hard: share that fail hard, half of which are replayed.
        killed: share of the runs whose process is killed.
        unknown: share of the publishes that have to be repeated.
    """

    def __init__(
        self,
        seed: int,
        *,
        soft: float = 0.05,
        hard: float = 0.005,
        killed: float = 0.0,
        unknown: float = 0.0,
        delayed: float = 0.0,
        rate: float = 300.0,
    ) -> None:
        self._chance = random.Random(seed)
        self._seed = seed
        self._soft, self._hard, self._killed, self._unknown = soft, hard, killed, unknown
        self._delayed = delayed
        self._rate = rate
        self._names = count()
        self._lives = count(2)

    def events(self, number: int) -> Iterator[AnyEvent]:
        """What happens to so many orders, one after the other, though their times overlap."""
        yield LeaseTaken(at=0.0, by=RETRY, lease="retry", term=1)
        for index, (type, order) in enumerate(orders(self._seed, number, soft=self._soft, hard=self._hard)):
            yield from self._order(1.0 + index / self._rate, type, order)
        yield Backlog(at=1e6, by="survey", queue="shop.charge", messages=0)

    def _order(self, at: float, type: str, order: Order) -> Iterator[AnyEvent]:
        subject = order["subject"]
        id = f"id-of-{subject}"
        wait = 2.5 if self._chance.random() < self._delayed else 0.0
        while True:
            known = self._chance.random() >= self._unknown
            yield Asked(at=at, by="producer", subject=subject, type=type, message_id=id, wait=wait)
            yield from self._sent(at, "producer", "shop.events", type, subject, confirmed=known)
            yield Answered(
                at=at + 0.01, by="producer", subject=subject, answer="accepted" if known else "unknown"
            )
            if known or self._chance.random() < 0.5:
                break
            # It is sent again, and both sendings arrive.
            for worker in TAKERS[type]:
                yield from self._at_worker(at + wait + 0.02, worker, order, id, 0, 1)
            at += 1.0
        for worker in TAKERS[type]:
            yield from self._at_worker(at + wait + 0.02, worker, order, id, 0, 1)

    def _at_worker(
        self, at: float, worker: str, order: Order, id: str, step: int, attempt: int, replayed: int = 0,
        flagged: bool = False,
    ) -> Iterator[AnyEvent]:  # fmt: skip
        subject = order["subject"]
        dies = self._chance.random() < self._killed
        by = f"workers-1 {next(self._lives)}" if dies else "workers-2 1"
        delivery, run = f"d{next(self._names)}", f"{by}#{next(self._names)}"
        at += self._chance.random() / 10
        yield Taken(
            at=at, by=by, delivery=delivery, queue=f"shop.{worker}", subject=subject, redelivered=flagged
        )
        if dies and self._chance.random() < 0.3:
            # Before its handler began.
            yield from self._kill(at + 0.001, by)
            yield from self._at_worker(at + 1, worker, order, id, step, attempt, replayed, flagged=True)
            return
        yield Began(
            at=at + 0.002, by=by, run=run, worker=worker, subject=subject, message_id=id, attempt=attempt, step=step,
            retry_id=f"r-{subject}-{worker}" if step else None, digest=f"digest-{subject}", replayed=replayed,
        )  # fmt: skip
        word, _, seconds = word_at(order, worker, step).partition(":")
        if dies and self._chance.random() < 0.3:
            yield from self._kill(at + 0.003, by)
            yield from self._at_worker(at + 1, worker, order, id, step, attempt, replayed, flagged=True)
            return
        done = word == "done"
        again_in = float(seconds) if seconds else None
        yield Ended(
            at=at + 0.004, by=by, run=run, outcome="done" if done else "hard" if word == "hard" else "soft",
            again_in=again_in, counted=word != "busy",
            results=(("receipt.made", subject),) if done and worker == "charge" else (),
        )  # fmt: skip
        at += 0.005
        if done and worker == "charge":
            yield from self._sent(at, by, "shop.events", "receipt.made", subject)
            yield from self._at_worker(at + 0.02, "post", order, id, 0, 1)
        elif word == "hard" or (word != "busy" and not done and attempt == MAX_ATTEMPTS):
            yield from self._die(at, by, worker, order, id, step, replayed)
        elif not done:
            yield from self._again(
                at, by, worker, order, id, step, attempt + (word != "busy"), again_in or 0.2, replayed
            )
        if dies:
            yield from self._kill(at + 0.01, by)
            yield from self._at_worker(at + 1, worker, order, id, step, attempt, replayed, flagged=True)
        else:
            yield Settled(at=at + 0.01, by=by, delivery=delivery, how="ack")

    def _again(
        self, at: float, by: str, worker: str, order: Order, id: str, step: int, attempt: int, wait: float,
        replayed: int,
    ) -> Iterator[AnyEvent]:  # fmt: skip
        subject = order["subject"]
        yield from self._sent(at, by, "", "shop.retry", subject)
        delivery = f"d{next(self._names)}"
        yield Taken(at=at + 0.005, by=RETRY, delivery=delivery, queue="shop.retry", subject=subject)
        yield Settled(at=at + 0.008, by=RETRY, delivery=delivery, how="ack")
        due = at + 0.006 + wait
        yield from self._sent(due, RETRY, "", f"shop.{worker}", subject, term=1)
        yield from self._at_worker(due, worker, order, id, step + 1, attempt, replayed)

    def _die(
        self, at: float, by: str, worker: str, order: Order, id: str, step: int, replayed: int
    ) -> Iterator[AnyEvent]:
        subject = order["subject"]
        yield from self._sent(at, by, "", "shop.events.dlq", subject)
        again = self._chance.random() < 0.5
        if again:
            yield Replayed(
                at=at + 5, by="replayer", worker=worker, subject=subject, letter=f"l{next(self._names)}"
            )
            yield from self._sent(at + 5, "replayer", "", f"shop.{worker}", subject)
            yield from self._at_worker(at + 5.01, worker, order, id, step + 1, 1, replayed + 1)
        yield Found(
            at=1e6, by="survey", worker=worker, subject=subject, place="dead", digest=f"digest-{subject}",
            reason="the shop says: never", replayed=again,
        )  # fmt: skip

    def _sent(
        self, at: float, by: str, exchange: str, key: str, subject: str, *, term: int | None = None,
        confirmed: bool = True,
    ) -> Iterator[AnyEvent]:  # fmt: skip
        publish = f"p{next(self._names)}"
        yield Sent(
            at=at, by=by, publish=publish, exchange=exchange, routing_key=key, subject=subject, term=term
        )
        yield Confirmed(at=at + 0.003, by=by, publish=publish, answer="accepted" if confirmed else "unknown")

    def _kill(self, at: float, by: str) -> Iterator[AnyEvent]:
        fault = f"kill {next(self._names)}"
        yield Struck(at=at, by="hand", fault=fault, kind="kill", target=by)
        yield Healed(at=at + 0.5, by="hand", fault=fault)
