"""Dead letters in memory. Nothing here deletes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.core.dead_letter import LetterGroup
from leveret.core.errors import NotFound
from leveret.stores import cursors
from leveret.stores.endings import names, the_one
from leveret.stores.intake import letter_body, shown, with_new_body
from leveret.stores.memory.data import NEVER, letter_matches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.core.dead_letter import DeadLetter, LetterState, Replay
    from leveret.core.retry_entry import Filter
    from leveret.ports import Grant
    from leveret.stores.memory.data import MemoryData


class MemoryLetters:
    """The dead-letter part of the memory store. No call awaits anything, so each is one transaction."""

    _open: Callable[[], MemoryData]

    async def keep(self, letters: Sequence[DeadLetter]) -> int:
        """Store letters; an id that is there already is left as it is. Returns how many were new."""
        data = self._open()
        before = len(data.letters)
        for letter in [as_kept(letter) for letter in letters]:
            data.letters.setdefault((letter.namespace, letter.id), letter)
        return len(data.letters) - before

    async def letters(
        self,
        wanted: Filter,
        *,
        limit: int,
        after: str | None = None,
        states: Sequence[LetterState] = ("dead",),
    ) -> tuple[list[DeadLetter], str | None]:
        """A page of letters, the newest first, without bodies; and a cursor for the next page, or None."""
        start = (NEVER, "", "") if after is None else cursors.read(after)
        found = [
            letter
            for letter in self._matching(wanted, states)
            if (letter.died_at, letter.namespace, letter.id) < start
        ][::-1]
        last = found[limit - 1] if len(found) > limit else None
        more = None if last is None else cursors.written(last.died_at, last.namespace, last.id)
        return [replace(letter, body=None) for letter in found[:limit]], more

    async def count_letters(self, wanted: Filter, *, states: Sequence[LetterState] = ("dead",)) -> int:
        """How many there are."""
        return len(self._matching(wanted, states))

    async def groups(self, wanted: Filter) -> list[LetterGroup]:
        """Dead letters by fingerprint, the largest group first."""
        alike: dict[str, list[DeadLetter]] = {}
        for letter in self._matching(wanted, ("dead",)):
            alike.setdefault(letter.fingerprint, []).append(letter)
        groups = [
            LetterGroup(
                fingerprint=fingerprint,
                worker=letters[-1].worker,
                error=letters[-1].error,
                reason=letters[-1].reason,
                count=len(letters),
                first_died_at=letters[0].died_at,
                last_died_at=letters[-1].died_at,
            )
            for fingerprint, letters in alike.items()
        ]
        return sorted(groups, key=lambda group: (-group.count, -group.last_died_at, group.fingerprint))

    async def letter(self, namespace: str | None, id: str) -> DeadLetter | None:
        """One letter in any state, with its body, by letter id or message id, or a unique ending of six or more."""
        found = [
            (letter, letter.id, letter.state)
            for letter in self._open().letters.values()
            if namespace in (None, letter.namespace)
            and names(id, own=letter.id, message_id=letter.message_id)
        ]
        return the_one("dead letters", id, found)

    async def claim(
        self, wanted: Filter, *, replay_id: str, limit: int, grant: Grant | None = None
    ) -> list[DeadLetter]:
        """Take up to *limit* dead letters for a replay, the oldest first, whole. No two claims get the same one.

        Those that this same replay claimed before and did not report come first, `claimed`; the others are `dead`.
        """
        data = self._open()
        data.check_grant(grant)
        again = sorted(
            (data.letters[place] for place, replay in data.claims.items() if replay == replay_id), key=_age
        )
        fresh = self._matching(wanted, ("dead",))[: max(0, limit - len(again))]
        for letter in fresh:
            self._set(letter, "claimed")
            data.claims[letter.namespace, letter.id] = replay_id
        return [*again[:limit], *fresh]

    async def replayed(
        self, letters: Sequence[tuple[str, str]], replay: Replay, *, state: LetterState
    ) -> int:
        """Note the outcome on these (namespace, id) letters; set the state of those no other replay has claimed."""
        data = self._open()
        noted = 0
        for place in letters:
            letter = data.letters.get(place)
            if letter is None:
                continue
            noted += 1
            letter = replace(
                letter, replays=(*letter.replays, replace(replay, outcome=shown(replay.outcome)))
            )
            data.letters[place] = letter
            if data.claims.get(place) in (None, replay.replay_id):
                self._set(letter, state)
        return noted

    async def set_state(self, wanted: Filter, *, was: LetterState, to: LetterState) -> int:
        """Discard (dead → discarded) or restore (discarded → dead, also replayed → dead). Returns how many."""
        found = self._matching(wanted, (was,))
        for letter in found:
            self._set(letter, to)
        return len(found)

    async def edit(self, namespace: str, id: str, body: bytes) -> DeadLetter:
        """Keep a dead letter under a new body; the old body stays as a discarded letter that names it."""
        data = self._open()
        letter = data.letters.get((namespace, id))
        if letter is None:
            raise NotFound(f"there is no dead letter {id!r} in namespace {namespace!r}")
        edited, old = with_new_body(letter, body)
        data.letters.setdefault((old.namespace, old.id), old)
        data.letters[namespace, id] = edited
        return edited

    def _matching(self, wanted: Filter, states: Sequence[LetterState]) -> list[DeadLetter]:
        """Letters that are meant, the oldest first."""
        found = (
            letter
            for letter in self._open().letters.values()
            if wanted.namespace in (None, letter.namespace)
            and letter.state in states
            and letter_matches(letter, wanted)
        )
        return sorted(found, key=_age)

    def _set(self, letter: DeadLetter, state: LetterState) -> None:
        data = self._open()
        data.letters[letter.namespace, letter.id] = replace(letter, state=state)
        data.claims.pop((letter.namespace, letter.id), None)


def as_kept(letter: DeadLetter) -> DeadLetter:
    """A letter as it is stored.

    Raises:
        StoreRefused: it has no body.
    """
    return replace(
        letter,
        size=len(letter_body(letter)),
        worker=shown(letter.worker),
        type=shown(letter.type),
        reason=shown(letter.reason),
        error=shown(letter.error),
        traceback=shown(letter.traceback),
        host=shown(letter.host),
    )


def _age(letter: DeadLetter) -> tuple[float, str, str]:
    return letter.died_at, letter.namespace, letter.id
