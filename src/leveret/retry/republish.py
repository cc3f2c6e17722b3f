"""Republishing: what is due goes out, pipelined, the lease checked right before each hand-over to the socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from leveret.core import handover
from leveret.core.errors import LeaseLost, PublishError, PublishTimeout, Unroutable
from leveret.core.json_form import may_go_through_exchange
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.retry_entry import RetryEntry
from leveret.pipeline.parts import Parts
from leveret.ports import Transport

#: Seconds that a batch waits for its answers. What a queue withholds longer is waited for apart: others go on.
PATIENCE = 5.0


class Republisher(Protocol):
    """Publishes entries that are due."""

    async def republish(
        self,
        entries: Sequence[RetryEntry],
        *,
        holds: Callable[[], bool],
        unseen: Callable[[RetryEntry, asyncio.Future[None]], object],
    ) -> list[PublishError | None]:
        """Publish them; for each: None once confirmed and not returned, else what was answered.

        One that has no answer after `PATIENCE` seconds is a PublishTimeout, and *unseen* is told of it with its answer
        to come; so it is of all that went out where this is ended before they have an answer.

        Raises:
            LeaseLost: *holds* said no before one of them went out.
        """


class TransportRepublisher:
    """Republishes through the transport: straight to the queue that failed it, or to the exchange on request."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def republish(
        self,
        entries: Sequence[RetryEntry],
        *,
        holds: Callable[[], bool],
        unseen: Callable[[RetryEntry, asyncio.Future[None]], object],
    ) -> list[PublishError | None]:
        """Send all, then wait for all answers. A refused one takes no other along.

        What came in the JSON form and has no queue is sent once more, through its exchange.
        """
        first: list[asyncio.Future[None]] = []
        told = await self._send_all(entries, first, holds=holds, unseen=unseen)
        again = [
            position
            for position, (entry, error) in enumerate(zip(entries, told, strict=True))
            if isinstance(error, Unroutable) and may_go_through_exchange(entry)
        ]
        if again:
            through = [replace(entries[position], through_exchange=True) for position in again]
            try:
                answers = await self._send_all(through, [], holds=holds, unseen=unseen)
            except BaseException:
                for entry, answer, error in zip(entries, first, told, strict=True):
                    if error is None:
                        unseen(entry, answer)
                raise
            for position, error in zip(again, answers, strict=True):
                told[position] = error
        return told

    async def _send_all(
        self,
        entries: Sequence[RetryEntry],
        answers: list[asyncio.Future[None]],
        *,
        holds: Callable[[], bool],
        unseen: Callable[[RetryEntry, asyncio.Future[None]], object],
    ) -> list[PublishError | None]:
        try:
            return await self._sent(entries, answers, holds, unseen)
        except BaseException:
            for entry, answer in zip(entries, answers, strict=False):
                unseen(entry, answer)
            raise

    async def _answered(self, answers: Sequence[asyncio.Future[None]]) -> None:
        """Return when all have an answer, or when it is time to go on without the rest."""
        if all(answer.done() for answer in answers):
            return
        over = asyncio.Event()
        timer = self._parts.world.clock.call_later(PATIENCE, over.set)
        late = asyncio.ensure_future(over.wait())
        # The answers are not awaited themselves, which would cancel them where we are ended: a late one counts (P9).
        everything = asyncio.ensure_future(asyncio.wait(answers))
        try:
            await asyncio.wait((everything, late), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            late.cancel()
            everything.cancel()

    async def _sent(
        self,
        entries: Sequence[RetryEntry],
        answers: list[asyncio.Future[None]],
        holds: Callable[[], bool],
        unseen: Callable[[RetryEntry, asyncio.Future[None]], object],
    ) -> list[PublishError | None]:
        transport = self._parts.transport
        probing = self._parts.world.reached is not None
        for entry in entries:
            await at_the_socket(transport)
            if not holds():
                raise LeaseLost(
                    "the lease ended while entries were being republished; the next holder has the rest"
                )
            answers.append(transport.send(outgoing(entry)))
            transport.flush()
            if probing:
                await self._parts.reach(handover.REPUBLISH_SENT, entry.message_id)
        told: list[PublishError | None] = []
        await self._answered(answers)
        for entry, answer in zip(entries, answers, strict=True):
            if not answer.done():
                unseen(entry, answer)
                told.append(
                    PublishTimeout(f"no answer from {place(entry)} in {PATIENCE:g} s; it still counts")
                )
                continue
            try:
                answer.result()
            except PublishError as error:
                told.append(error)
            else:
                told.append(None)
                if probing:
                    await self._parts.reach(handover.REPUBLISH_CONFIRMED, entry.message_id)
        return told


async def at_the_socket(transport: Transport) -> None:
    """Return when what is sent goes straight to the socket; whether it may, is to be asked right after (R4).

    What lies in a buffer of ours could still go out after the lease is over.
    """
    while True:
        # Asked once: whoever was let through may publish, also where others wait behind it.
        if not transport.sendable:
            await transport.ready()
        transport.flush()
        if not transport.buffered:
            return
        await transport.drained()


def outgoing(entry: RetryEntry) -> Outgoing:
    """What goes out when *entry* is due."""
    properties = Properties(entry.properties)
    body = entry.body or b""
    if entry.through_exchange:
        return Outgoing(entry.exchange, entry.routing_key, body, properties)
    return Outgoing("", entry.queue, body, properties)


def place(entry: RetryEntry) -> str:
    """Where *entry* goes, for people: a queue's name, or exchange/routing key."""
    return f"{entry.exchange}/{entry.routing_key}" if entry.through_exchange else entry.queue
