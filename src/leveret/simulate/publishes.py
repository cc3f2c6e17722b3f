"""What handlers of an app publish, written down as a producer's publishes are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from leveret.app import Leveret
from leveret.core.errors import PublishError, PublishFailures
from leveret.core.message import Message, identified
from leveret.core.seconds import Seconds, seconds
from leveret.proof.record import Answer, Answered, Asked
from leveret.simulate.process import Process
from leveret.simulate.roles import answer_of


def note_publishes(app: Leveret, process: Process) -> None:
    """Have `app.publish` and `app.publish_many` write down what is asked of them, and what their callers are told.

    A message without an id is given the one that the app would have given it: it is known by that.
    """
    notes = _Notes(app, process)
    app.publish = notes.publish  # type: ignore[method-assign]
    app.publish_many = notes.publish_many  # type: ignore[method-assign]


class _Notes:
    """Stands in for the two methods of an app in a process."""

    def __init__(self, app: Leveret, process: Process) -> None:
        self._publish: Final = app.publish
        self._publish_many: Final = app.publish_many
        self._process: Final = process

    async def publish(
        self,
        type: str | Message,
        payload: Any = None,
        /,
        *,
        id: str | None = None,
        delay: Seconds | None = None,
        at: datetime | None = None,
        **options: Any,
    ) -> str:
        new_id = self._process.world.new_id
        if isinstance(type, Message):
            message = type = identified(type, new_id() if type.id is None else type.id)
        else:
            id = new_id() if id is None else id
            named = {name: options[name] for name in ("mandatory", "expiration") if name in options}
            message = Message(type, id=id, **named)
        self._asked(message, self._wait(delay, at))
        try:
            told = await self._publish(type, payload, id=id, delay=delay, at=at, **options)
        except BaseException as error:
            self._answered(message, _answer(error), error)
            raise
        self._answered(message, "accepted")
        return told

    async def publish_many(
        self, messages: Iterable[Message] | AsyncIterable[Message], /, *, timeout: Seconds | None = None
    ) -> list[str]:
        noted: list[Message] = []

        def note(message: Message) -> Message:
            message = identified(message, self._process.world.new_id() if message.id is None else message.id)
            noted.append(message)
            self._asked(message, 0.0)
            return message

        async def drawn(source: AsyncIterable[Message]) -> AsyncIterator[Message]:
            async for message in source:
                yield note(message)

        def taken(source: Iterable[Message]) -> Iterator[Message]:
            return map(note, source)

        try:
            told = await self._publish_many(
                drawn(messages) if isinstance(messages, AsyncIterable) else taken(messages), timeout=timeout
            )
        except PublishFailures as failures:
            for position, message in enumerate(noted):
                error = failures.failed.get(position)
                self._answered(message, "accepted" if error is None else _answer(error), error)
            raise
        except BaseException as error:
            # Some may have gone out before.
            for message in noted:
                self._answered(message, "unknown", error)
            raise
        for message in noted:
            self._answered(message, "accepted")
        return told

    def _wait(self, delay: Seconds | None, at: datetime | None) -> float:
        """Seconds that a message is to wait. One that cannot be meant is refused by the app itself."""
        if delay is not None:
            return seconds(delay, "delay")
        return (
            max(0.0, at.timestamp() - self._process.machine.clock.now()) if isinstance(at, datetime) else 0.0
        )

    def _asked(self, message: Message, wait: float) -> None:
        record, id = self._process.record, message.id or ""
        record.write(
            Asked(at=record.now(), by=record.by, subject=id, type=str(message.type), message_id=id, wait=wait)
        )

    def _answered(self, message: Message, answer: Answer, error: BaseException | None = None) -> None:
        promised = message.mandatory and message.persistent and message.expiration is None
        if answer == "accepted" and not promised:
            # It may be there, and need not.
            answer = "unknown"
        record = self._process.record
        record.write(
            Answered(
                at=record.now(), by=record.by, subject=message.id or "", answer=answer,
                error="" if error is None else type(error).__name__,
            )
        )  # fmt: skip


def _answer(error: BaseException) -> Answer:
    """What an error of a publish says: but for those of the broker and of one that was given up, nothing was sent."""
    if isinstance(error, PublishError):
        return answer_of(error)
    return "unknown" if isinstance(error, asyncio.CancelledError) else "not sent"
