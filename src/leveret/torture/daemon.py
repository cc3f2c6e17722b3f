"""Daemon: a program of threads beside the shop, which publishes ticks and consumes them over `leveret.sync`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from leveret.core.errors import TransportUnavailableError
from leveret.core.urls import BrokerUrl
from leveret.ports import Transport, World
from leveret.proof.noting import noted_transport
from leveret.proof.record import Answered, Asked, Began, Ended
from leveret.runtime import wiring
from leveret.sync import RabbitMQTransport
from leveret.torture import child

if TYPE_CHECKING:
    from leveret.torture.process import Told

#: What it publishes, and under which name it takes that, for the ledger.
TICK: Final = "tick"
WORKER: Final = "daemon"
TAKERS: Final[Mapping[str, tuple[str, ...]]] = {TICK: (WORKER,)}
#: Ticks a second, and the share of them whose handler raises: those become dead letters.
_RATE: Final = 5.0
_RAISE: Final = 0.01
#: Seconds until what may not have arrived is published again.
_AGAIN: Final = 0.5


def queue_of(namespace: str) -> str:
    """The queue that it consumes."""
    return f"{namespace}.{WORKER}"


def digest_of(payload: Mapping[str, Any]) -> str:
    """What makes two copies of a tick the same to its handler, who sees nothing but the payload."""
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:16]


class Daemon:
    """One life of the daemon."""

    def __init__(self, told: Told) -> None:
        self._told: Final = told
        self._record: Final = child.ChildRecord(Path(told.record), told.by)
        self._stop: Final = threading.Event()
        self._rests: Final = threading.Event()
        # The transport of a daemon is its own affair, so the one that it makes is replaced where it is made.
        make: Callable[[BrokerUrl, World], Transport] = wiring.make_transport
        wiring.make_transport = lambda url, world: noted_transport(make(url, world), self._record)
        self._transport: Final = RabbitMQTransport(told.broker, namespace=told.namespace)

    def close(self) -> None:
        """Stop its threads, and disconnect."""
        self._rests.set()
        self._stop.set()
        self._transport.close()

    async def live(self) -> None:
        """Consume and publish in threads until asked to stop by a signal.

        Raises:
            Exception: what one of them ended with.
        """
        queue = queue_of(self._told.namespace)
        await asyncio.to_thread(self._declared, queue)
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[None] = loop.create_future()

        def tell(error: BaseException) -> None:
            if not failed.done():
                failed.set_exception(error)

        def guarded(work: Callable[..., None], *arguments: str) -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the process ends with it
                loop.call_soon_threadsafe(tell, error)

        threads = [
            threading.Thread(target=guarded, args=(self._consume, queue), daemon=True),
            threading.Thread(target=guarded, args=(self._publish,), daemon=True),
        ]
        for thread in threads:
            thread.start()
        serving = asyncio.create_task(child.serve(self._obey))
        await child.until_signalled(serving, failed)
        self._rests.set()
        self._stop.set()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        serving.cancel()

    async def _obey(self, command: child.Command) -> Mapping[str, Any]:
        """Tell what it uses, or publish nothing more; nothing else concerns it."""
        if command["do"] == "sample":
            return child.figures(collects=command["collects"])
        if command["do"] == "rest":
            self._rests.set()
        return {}

    def _declared(self, queue: str) -> None:
        while True:
            try:
                self._transport.declare_strategy_queue(queue, TICK)
            except TransportUnavailableError:
                self._stop.wait(_AGAIN)
            else:
                return

    def _consume(self, queue: str) -> None:
        runs = count(1)

        def handle(_: str, payload: dict[str, Any]) -> None:
            record, run = self._record, f"{self._record.by}#{next(runs)}"
            record.write(
                Began(
                    at=record.now(), by=record.by, run=run, worker=WORKER, subject=payload["subject"],
                    message_id=payload["id"], attempt=1, step=0, digest=digest_of(payload),
                )
            )  # fmt: skip
            outcome: Any = "hard" if payload["raises"] else "done"
            record.write(Ended(at=record.now(), by=record.by, run=run, outcome=outcome))
            if payload["raises"]:
                raise ValueError("the daemon says: never")

        self._transport.consume_events_forever(queue, TICK, handle, self._stop)

    def _publish(self) -> None:
        record = self._record
        for number in count(1):
            subject = f"t{self._told.seed}-{number:06d}"
            payload = {"subject": subject, "id": subject, "raises": number % round(1 / _RAISE) == 0}
            while not self._rests.wait(1 / _RATE):
                record.write(
                    Asked(
                        at=record.now(),
                        by=record.by,
                        subject=subject,
                        type=TICK,
                        message_id=subject,
                        digest=digest_of(payload),
                    )
                )
                try:
                    self._transport.publish_event(TICK, payload)
                except TransportUnavailableError as error:
                    record.write(
                        Answered(
                            at=record.now(), by=record.by, subject=subject, answer="unknown", error=str(error)
                        )
                    )
                else:
                    record.write(Answered(at=record.now(), by=record.by, subject=subject, answer="accepted"))
                    break
            if self._rests.is_set():
                return
