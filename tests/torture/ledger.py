"""A ledger outside the system: what was accepted, started and done, and what was in hand when something struck.

A message is known by its body, which nothing on its way may change; so one look proves identity and bytes at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from leveret import Context, HardFailure, SoftFailure
from leveret.core.dead_letter import DeadLetter
from leveret.core.headers import is_broker_owned
from leveret.core.message import Message

Kind = Literal[
    "plain", "result", "soft", "uncounted", "exhausted", "hard", "broken", "no taker", "later", "no id", "malformed",
    "ordered", "wide",
]  # fmt: skip

#: The letters that each kind of message must end in; the others are done, and have none.
DIES_OF: dict[Kind, str] = {
    "exhausted": "retries exhausted",
    "hard": "hard failure",
    "broken": "undecodable",
    "malformed": "malformed",
}


@dataclass(slots=True)
class Planned:
    """A message that somebody publishes."""

    kind: Kind
    message: Message
    body: bytes
    #: accepted: publish returned · unknown: it raised PublishTimeout, or never returned.
    state: Literal["planned", "accepted", "unknown"] = "planned"


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a handler."""

    worker: str
    body: bytes
    message_id: str | None
    retry_id: str | None
    attempt: int
    #: What makes two starts the same step of one message's life; an uncounted failure leaves the attempt as it was.
    step: tuple[Any, ...]
    told: tuple[Any, ...]


@dataclass(slots=True)
class Ledger:
    """Accepted, started, done, and how often each message was in hand when something was struck."""

    planned: list[Planned] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    done: Counter[bytes] = field(default_factory=Counter)
    interrupted: Counter[bytes] = field(default_factory=Counter)
    #: Whether what made messages fail hard has been mended, so that a replay succeeds.
    mended: bool = False

    def start(self, ctx: Context) -> None:
        step = (ctx.worker, ctx.attempt, ctx.first_failed_at is not None, self.mended)
        # A quorum queue sorts the headers of what came back, and counts in some of its own.
        headers = sorted(item for item in ctx.headers.items() if not is_broker_owned(item[0]))
        told = (ctx.type, ctx.properties.correlation_id, ctx.properties.priority, headers)
        self.starts.append(Start(ctx.worker, ctx.body, ctx.message_id, ctx.retry_id, ctx.attempt, step, told))

    def interrupt(self, bodies: Iterable[bytes]) -> None:
        """These copies were in hand when it struck: each may be there once more, and what its handler returns."""
        for body in bodies:
            self.interrupted[body] += 1
            self.interrupted[result_of(body)] += 1

    # ── At the end ────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self, letters: Iterable[DeadLetter], *, max_attempts: int) -> None:
        """Account for every accepted message; the store and all queues are empty, so each is done or dead."""
        died = defaultdict(list)
        for letter in letters:
            died[letter.body].append(letter)
        lost = [plan for plan in self.planned if not self.done[plan.body] and not died[plan.body]]
        assert lost == [], f"lost {len(lost)}"
        assert [plan for plan in self.planned if plan.state != "accepted"] == []
        for plan in self.planned:
            self._ends_as_it_must(plan, died[plan.body])
            self._goes_its_way(plan.body, died[plan.body], max_attempts)
            if plan.kind in {"result", "soft", "later"}:
                result = result_of(plan.body)
                assert self.done[result], f"the result of {plan.body!r} is lost"
                self._goes_its_way(result, died[result], max_attempts)
            if plan.kind == "no taker":
                result = result_of(plan.body)
                assert [letter.ending for letter in died[result]][:1] == ["unroutable result"]
                # Its letter's id is that of the result, so a second copy is the same letter.
                assert len(died[result]) == 1
        known = {plan.body for plan in self.planned} | {result_of(plan.body) for plan in self.planned}
        assert {start.body for start in self.starts} | died.keys() <= known, "a message that nobody published"

    def _ends_as_it_must(self, plan: Planned, letters: list[DeadLetter]) -> None:
        most = 1 + self.interrupted[plan.body]
        assert {letter.ending for letter in letters} == (
            {DIES_OF[plan.kind]} if plan.kind in DIES_OF else set()
        )
        assert len(letters) <= most, f"{plan.body!r} died {len(letters)} times, at most {most} can be"
        assert all(letter.message_id == plan.message.id for letter in letters)
        if plan.kind == "hard":
            assert {letter.state for letter in letters} == {"replayed"}
        if plan.kind in DIES_OF and plan.kind != "hard":
            assert self.done[plan.body] == 0
        else:
            assert 1 <= self.done[plan.body] <= most, f"{plan.body!r} done {self.done[plan.body]} times"

    def _goes_its_way(self, body: bytes, letters: list[DeadLetter], max_attempts: int) -> None:
        starts = [start for start in self.starts if start.body == body]
        most = 1 + self.interrupted[body]
        for step, number in Counter(start.step for start in starts).items():
            assert number <= most, f"{body!r} was started {number} times at {step}, at most {most} can be"
        attempts = sorted({start.attempt for start in starts})
        assert attempts == list(range(1, len(attempts) + 1))
        assert len(attempts) <= max_attempts
        assert len({repr(start.told) for start in starts}) <= 1, "type, properties or headers have changed"
        ids = {start.message_id for start in starts}
        assert len(ids) <= 1
        retry_ids = {start.retry_id for start in starts} | {letter.retry_id or None for letter in letters}
        # Where there is no message id, each failing side mints a random one for the copy in its hand.
        assert len(retry_ids - {None}) <= (most if None in ids else 1), f"{body!r} goes by {retry_ids}"


def result_of(body: bytes) -> bytes:
    """The body of what the handler returns for *body*."""
    return b'{"receipt_for":"' + body.hex().encode() + b'"}'


# ── The scenario ──────────────────────────────────────────────────────────────────────────────────────────────────────


def decide(kind: str, ctx: Context, *, mended: bool) -> Message | None:
    """What the handler of a message of that kind raises or returns."""
    if kind in {"soft", "no id", "wide"} and ctx.attempt == 1:
        raise SoftFailure("not yet")
    if kind == "uncounted" and ctx.first_failed_at is None:
        raise SoftFailure("not yet", retry_after=1.5, counted=False)
    if kind == "exhausted":
        raise SoftFailure("never")
    if kind == "hard" and not mended:
        raise HardFailure("hopeless")
    if kind in {"result", "soft", "later"}:
        return Message("receipt.sent", result_of(ctx.body))
    if kind == "no taker":
        return Message("nobody.takes", result_of(ctx.body))
    return None


def planned() -> Iterator[Planned]:
    """What is published: three of each kind, and some more that are replayed."""
    kinds: list[Kind] = [
        "plain", "result", "soft", "uncounted", "exhausted", "hard", "broken", "no taker", "later", "no id",
        "malformed", "ordered", "wide",
    ]  # fmt: skip
    hard: list[Kind] = ["hard"]
    for number in range(6):
        for kind in kinds if number < 3 else hard:
            body = b'{"kind":"%s","number":%d}' % (kind.encode(), number)
            if kind in {"broken", "malformed"}:
                body = body[:-1]
            message = Message(
                "book.kept" if kind == "ordered" else "order.placed",
                body,
                id=None if kind == "no id" else f"{kind}-{number}",
                # With the headers of an envelope, a wide one's would no longer fit their frame.
                headers={"kept": [1, {"deep": number}]} | ({"wide": "x" * 130_700} if kind == "wide" else {}),
                correlation_id=None if kind == "no id" else f"about {number}",
                priority=None if kind == "no id" else number,
            )
            yield Planned(kind, message, body)
