"""Survey: what lies where when all is still, written into the record."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Final

from leveret.core.dead_letter import DeadLetter, LetterState
from leveret.core.message import unwrap
from leveret.core.properties import Properties
from leveret.core.retry_entry import Filter
from leveret.proof import shop
from leveret.proof.record import Backlog, Found
from leveret.torture import daemon
from leveret.torture.scene import Scene

ALL_STATES: Final[tuple[LetterState, ...]] = ("dead", "claimed", "replayed", "discarded")
#: Letters or entries that are read at once.
_PAGE: Final = 500
#: Messages that are looked at of a queue that should be empty.
_MOST: Final = 10_000


async def survey(scene: Scene) -> None:
    """Write down what lies in the queues, in the retry store and in the dead letters; nobody may be at work."""
    for queue in scene.queues:
        await _survey_queue(scene, queue)
    await _survey_waiting(scene)
    async for letter in letters(scene, states=ALL_STATES):
        _note_letter(scene, letter)


async def letters(scene: Scene, *, states: tuple[LetterState, ...]) -> AsyncIterator[DeadLetter]:
    """All letters in these states, without their bodies."""
    after: str | None = None
    wanted = Filter(namespace=scene.names.namespace)
    while True:
        page, after = await scene.store.letters(wanted, limit=_PAGE, after=after, states=states)
        for letter in page:
            found = await scene.store.letter(scene.names.namespace, letter.id)
            if found is not None:
                yield found
        if after is None:
            return


def worker_of(scene: Scene, letter: DeadLetter) -> str:
    """Whose letter that is: a daemon's queue has no worker, and goes by its own name. Empty: it reached no queue."""
    return letter.worker or letter.queue.removeprefix(f"{scene.names.namespace}.")


async def _survey_queue(scene: Scene, queue: str) -> None:
    record, transport = scene.record, scene.transport
    state = await transport.queue_state(queue)
    record.write(
        Backlog(at=record.now(), by=record.by, queue=queue, messages=0 if state is None else state.ready)
    )
    worker = queue.removeprefix(f"{scene.names.namespace}.").removesuffix(".suspects")
    known = {each for takers in shop.TAKERS.values() for each in takers}
    for _ in range(min(_MOST, 0 if state is None else state.ready)):
        # It is not acked, and so lies there again as soon as we are gone.
        delivery = await transport.get(queue)
        if delivery is None:
            return
        body, properties, _ = unwrap(delivery.body, delivery.properties)
        if (subject := shop.subject_of(body)) is not None:
            record.write(
                Found(
                    at=record.now(), by=record.by, worker=worker if worker in known else None, subject=subject,
                    place="queue", digest=shop.digest_of(body, properties),
                )
            )  # fmt: skip


async def _survey_waiting(scene: Scene) -> None:
    record = scene.record
    after: str | None = None
    while True:
        page, after = await scene.store.entries(
            Filter(namespace=scene.names.namespace), limit=_PAGE, after=after
        )
        rows = [(row.key, row.failure) for row in page]
        for entry in await scene.store.take(scene.names.namespace, rows, held=True):
            if entry.body is None:
                continue
            body, properties, _ = unwrap(entry.body, Properties(entry.properties))
            if (subject := shop.subject_of(body)) is not None:
                record.write(
                    Found(
                        at=record.now(), by=record.by, worker=entry.worker or None, subject=subject, place="waiting",
                        attempt=entry.attempt, digest=shop.digest_of(body, properties), reason=entry.state_reason,
                    )
                )  # fmt: skip
        if after is None:
            return


def _note_letter(scene: Scene, letter: DeadLetter) -> None:
    record = scene.record
    body = letter.body or b""
    subject = shop.subject_of(body)
    if subject is None:
        # A request of a caller: calls are accounted for by themselves.
        return
    worker = worker_of(scene, letter)
    if worker == daemon.WORKER:
        digest = daemon.digest_of(json.loads(body))
    else:
        digest = shop.digest_of(body, Properties(letter.properties))
    record.write(
        Found(
            at=record.now(), by=record.by, worker=worker or None, subject=subject, place="dead",
            attempt=letter.attempts, digest=digest, reason=f"{letter.ending}: {letter.reason}",
            replayed=letter.state == "replayed",
        )
    )  # fmt: skip
