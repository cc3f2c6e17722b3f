"""What the judge says: the ledger's figures, and each fault with the events that show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leveret.proof.record import AnyEvent, CallOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that the promise does not allow.

    Attributes:
        rule: which sentence of the promise it breaks, in few words.
        told: what happened, in a sentence with its values.
        subject: of the message; None where it is about none.
        worker: whose handler; None where it is about none.
        at: when, by the record's clock.
        events: those that show it, oldest first.
    """

    rule: str
    told: str
    at: float
    subject: str | None = None
    worker: str | None = None
    events: tuple[AnyEvent, ...] = ()

    def __str__(self) -> str:
        """The rule and the sentence, on one line."""
        return f"{self.rule}: {self.told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """How much later than it was due a message came back, in seconds.

    Attributes:
        number: of messages that had a due time.
        p50: half of them came no later than that.
        p99: all but one in a hundred came no later than that.
        most: the latest one.
    """

    number: int = 0
    p50: float = 0.0
    p99: float = 0.0
    most: float = 0.0

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Lateness:
        """The figures of these, each counted as it is.

        Example:
            >>> Lateness.of([0.1, 0.2, 3.0])
            Lateness(number=3, p50=0.2, p99=3.0, most=3.0)
        """
        ordered = sorted(seconds)
        if not ordered:
            return cls()
        return cls(
            number=len(ordered),
            p50=_rank(ordered, 0.5),
            p99=_rank(ordered, 0.99),
            most=ordered[-1],
        )

    def as_json(self) -> dict[str, Any]:
        """The figures by name."""
        return {
            "number": self.number,
            "p50": round(self.p50, 4),
            "p99": round(self.p99, 4),
            "most": round(self.most, 4),
        }


def _rank(ordered: Sequence[float], share: float) -> float:
    """The smallest value that this share of all does not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The ledger of a record: accepted = done + dead + waiting + lost, each counted once for each worker that takes it.

    Attributes:
        published: messages that somebody asked to publish.
        accepted: messages, once for each worker that takes them: those whose publish returned, those of an unknown
            publish that turned up, and what handlers returned.
        done: of these, handled.
        dead: not done, and in the dead letters.
        waiting: neither, and in the retry store or a queue.
        lost: nowhere.
        duplicated: of these, begun more than once between two failures.
        late: retries and delayed messages that came later than the judge was told to call late.
        unknown: messages whose publisher was told at last that it is unknown whether they arrived.
        outside: lateness of what was due and came while nothing was struck.
        inside: lateness of what was due or under way during a fault, or while one was being recovered from.
        calls: how many ended how.
        strikes: faults that somebody caused on purpose.
        start: when the first event happened, by the record's clock.
        seconds: from then to the last one.
        faults: what the promise does not allow: first what is lost, then in the order in which it happened.
    """

    published: int
    accepted: int
    done: int
    dead: int
    waiting: int
    lost: int
    duplicated: int
    late: int
    unknown: int
    outside: Lateness
    inside: Lateness
    calls: Mapping[CallOutcome, int]
    strikes: int
    start: float
    seconds: float
    faults: tuple[Fault, ...]

    @property
    def passed(self) -> bool:
        """Whether the promise was kept. What is lost is a fault like any other."""
        return not self.faults

    def line(self) -> str:
        """The ledger in one line.

        Example:
            `accepted 184220   done 183305   dead 915   waiting 0   duplicated 37   late 204   unknown 9   lost 0`
        """
        return "   ".join(f"{name} {getattr(self, name)}" for name in LINE)

    def as_json(self) -> dict[str, Any]:
        """The figures by name, and the faults as sentences."""
        return {
            **{name: getattr(self, name) for name in ("published", *LINE, "strikes")},
            "seconds": round(self.seconds, 3),
            "lateness": {"outside": self.outside.as_json(), "inside": self.inside.as_json()},
            "calls": dict(sorted(self.calls.items())),
            "faults": [
                {"rule": each.rule, "told": each.told, "subject": each.subject, "worker": each.worker}
                for each in self.faults
            ],
        }


#: The figures that the line shows, in its order.
LINE = ("accepted", "done", "dead", "waiting", "duplicated", "late", "unknown", "lost")
