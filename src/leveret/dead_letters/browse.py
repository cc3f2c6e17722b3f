"""DeadLetters: what died, why, and what people may do about it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from leveret.core.dead_letter import DeadLetter, LetterGroup, LetterState, Replay
from leveret.core.errors import BadPayload, NotFound
from leveret.core.page import Page
from leveret.core.payload import encode
from leveret.core.retry_entry import Filter
from leveret.ports import Store, World
from leveret.retry.asking import ActReport, ask
from leveret.retry.browse import Ids, filter_by

#: Letters read at once for an export.
EXPORT_PAGE: Final = 200

ReplayReport = ActReport


class DeadLetters:
    """What ended badly, with its reason. Nothing here deletes.

    Acts take an id, ids or filter words, never nothing. Replays are done by the running keeper; discard and restore
    change the store alone.

    Example:
        >>> async def once_more(app):
        ...     for group in await app.dead_letters.groups():
        ...         print(group.count, group.reason)
        ...     await app.dead_letters.replay(reason="503", rate=50)
    """

    def __init__(self, store: Store, world: World, namespace: str, *, nudge: Callable[[], object]) -> None:
        self._store = store
        self._world = world
        self._namespace = namespace
        self._nudge = nudge

    async def list(
        self,
        *,
        limit: int = 50,
        after: str | None = None,
        states: tuple[LetterState, ...] = ("dead",),
        **words: Any,
    ) -> Page[DeadLetter]:
        """A page of letters, the newest first, without bodies; the same words as `Retries.list`."""
        found, following = await self._store.letters(
            filter_by(self._namespace, (), words), limit=limit, after=after, states=states
        )
        return Page(tuple(found), following)

    async def count(self, *, states: tuple[LetterState, ...] = ("dead",), **words: Any) -> int:
        """How many there are."""
        return await self._store.count_letters(filter_by(self._namespace, (), words), states=states)

    async def groups(self, **words: Any) -> Page[LetterGroup]:
        """Dead letters by fingerprint (worker, exception type, reason without its numbers), the largest group first."""
        return Page(tuple(await self._store.groups(filter_by(self._namespace, (), words))))

    async def get(self, id: str) -> DeadLetter:
        """One letter in any state, with its body, by letter id or message id, or any ending of six characters or more.

        Raises:
            NotFound: there is none under that id, or several are.
        """
        found = await self._store.letter(self._namespace, id)
        if found is None:
            raise NotFound(f"no dead letter of {self._namespace} lies under {id!r}")
        return found

    async def replay(
        self,
        ids: Ids = (),
        /,
        *,
        rate: float | None = None,
        reset_attempts: bool = True,
        dry_run: bool = False,
        stop_after: int | None = None,
        rpc: bool = False,
        progress: Callable[[ActReport], object] = lambda _: None,
        **words: Any,
    ) -> ReplayReport:
        """Publish dead letters again: to the queue that failed them, else to exchange and key.

        Args:
            ids: a letter, several, or none where words say which.
            rate: so many a second; None: as fast as it goes.
            reset_attempts: begin at attempt 1; False: go on counting.
            dry_run: only say how many.
            stop_after: stop once so many have died again.
            rpc: also RPC requests, whose callers have long given up; with ids only.
            progress: called with each interim report.

        Raises:
            ConfigError: nothing says which.
            ValueError: a rate of 0 or less, or *rpc* without ids.
        """
        if rate is not None and rate <= 0:
            raise ValueError(
                f"rate={rate!r}: expected more than 0 letters a second, or None for as fast as it goes"
            )
        if rpc and not ids:
            raise ValueError("rpc=True takes ids: requests whose callers gave up are replayed one by one")
        more: dict[str, Any] = {"reset_attempts": reset_attempts, "dry_run": dry_run, "rpc": rpc}
        more |= {
            name: value for name, value in (("rate", rate), ("stop_after", stop_after)) if value is not None
        }
        return await ask(
            self._store,
            self._world,
            namespace=self._namespace,
            verb="dead.replay",
            wanted=filter_by(self._namespace, ids, words),
            more=more,
            nudge=self._nudge,
            progress=progress,
        )

    async def edit(self, id: str, payload: Any) -> DeadLetter:
        """Keep a dead letter under a new payload; the old one stays as a discarded letter. Replay it as any other.

        Raises:
            NotFound: no such letter lies there.
            BadPayload: the payload cannot be written.
        """
        letter = await self.get(id)
        return await self._store.edit(
            self._namespace, letter.id, encode(payload, type=letter.type or "letter")
        )

    async def discard(self, ids: Ids = (), /, **words: Any) -> int:
        """Put letters aside; `restore` brings them back. Returns how many."""
        return await self._store.set_state(self._some(ids, words), was="dead", to="discarded")

    async def restore(self, ids: Ids = (), /, **words: Any) -> int:
        """Bring discarded letters back. Returns how many."""
        return await self._store.set_state(self._some(ids, words), was="discarded", to="dead")

    async def export(self, path: str | Path, **words: Any) -> int:
        """Write letters with their bodies to a JSON Lines file, the newest first. Returns how many."""
        written = 0
        after: str | None = None
        with Path(path).open("w", encoding="utf-8") as out:  # noqa: ASYNC230 - a shell's export waits for it anyway
            while True:
                page = await self.list(limit=EXPORT_PAGE, after=after, **words)
                for brief in page:
                    letter = await self._store.letter(self._namespace, brief.id)
                    if letter is not None:
                        out.write(json.dumps(to_json(letter)) + "\n")
                        written += 1
                after = page.after
                if after is None:
                    return written

    async def import_(self, path: str | Path) -> int:
        """Keep letters from such a file; ids that are there already are left as they are. Returns how many were new.

        Raises:
            BadPayload: a line is no letter, with its number; nothing of the file was kept.
        """
        letters = []
        with Path(path).open(encoding="utf-8") as lines:  # noqa: ASYNC230 - as above
            for number, line in enumerate(lines, 1):
                if line.strip():
                    letters.append(
                        replace(from_json(line, f"{path}, line {number}"), namespace=self._namespace)
                    )
        new = 0
        for start in range(0, len(letters), EXPORT_PAGE):
            new += await self._store.keep(letters[start : start + EXPORT_PAGE])
        return new

    def _some(self, ids: Ids, words: Mapping[str, Any]) -> Filter:
        wanted = filter_by(self._namespace, ids, words)
        if not wanted.names_something:
            raise ValueError("say which letters: ids, or worker, reason, type, text, since, until, attempts")
        return wanted


def to_json(letter: DeadLetter) -> dict[str, Any]:
    """A letter as JSON carries it, bytes in base64."""
    told: dict[str, Any] = {}
    for known in fields(letter):
        value = getattr(letter, known.name)
        if known.name == "replays":
            value = [
                {"at": done.at, "replay_id": done.replay_id, "to": done.to, "outcome": done.outcome}
                for done in value
            ]
        elif isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        told[known.name] = value
    return told


def from_json(line: str, place: str) -> DeadLetter:
    """The letter that a line of an export says.

    Raises:
        BadPayload: it says none.
    """
    try:
        told = json.loads(line)
        names = {known.name for known in fields(DeadLetter)}
        unknown = told.keys() - names
        if unknown:
            raise ValueError(f"unknown {', '.join(sorted(unknown))}")
        for name in ("body", "properties"):
            if told.get(name) is not None:
                told[name] = base64.b64decode(told[name], validate=True)
        told["replays"] = tuple(Replay(**done) for done in told.get("replays", ()))
        return DeadLetter(**told)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise BadPayload(
            f"{place}: is no dead letter of an export: {error}. Nothing was imported."
        ) from error
