"""Account: one message at one worker, from who sent it to where it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Final, Literal

from leveret.proof.histories import Case, Histories, Run, Terms
from leveret.proof.record import Answer, Answered, AnyEvent, Asked, Ended, Found

#: Seconds that a failure which does not count waits at least.
LEAST_UNCOUNTED: Final = 1.0
#: What became of it: the columns of the ledger.
End = Literal["done", "dead", "waiting", "lost"]

_at = attrgetter("at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """A publish, or a handler's return, after which the message may be there once more.

    Attributes:
        at: when; it cannot be there before.
        sure: whether it must be there: its publisher was told so, or a handler returned it.
        wait: seconds that it was to wait first.
        events: those that show it.
    """

    at: float
    sure: bool
    wait: float
    events: tuple[AnyEvent, ...]


class Account:
    """One message at one worker.

    Args:
        record: the whole one.
        case: all that is known of its subject.
        worker: whose. Of what nobody takes: its type, and it must be among the dead.
        births: in their order; none: nobody sent it there.
    """

    __slots__ = ("births", "case", "found", "record", "runs", "worker")

    def __init__(self, record: Histories, case: Case, worker: str, births: list[Birth]) -> None:
        self.record: Final = record
        self.case: Final = case
        self.worker: Final = worker
        self.births: Final = births
        self.runs: Final[list[Run]] = case.runs.get(worker, [])
        self.found: Final[list[Found]] = [each for each in case.found if each.worker == worker]

    @property
    def terms(self) -> Terms:
        """What the judge was told."""
        return self.record.terms

    @property
    def subject(self) -> str:
        """The message's."""
        return self.case.subject

    def is_plain(self) -> bool:
        """Whether it was sent once, not delayed, and done in its first and only run: then there is nothing to judge."""
        if len(self.runs) != 1 or len(self.births) != 1 or self.case.found or self.case.replayed:
            return False
        run, birth = self.runs[0], self.births[0]
        began, ended = run.began, run.ended
        return (
            ended is not None
            and ended.outcome == "done"
            and began.attempt == 1
            and not began.step
            and not began.replayed
            and not birth.wait
            and birth.at <= began.at
            and all(
                asked.message_id == began.message_id and asked.digest in ("", began.digest)
                for asked in self.case.asked
            )
        )

    def end(self) -> End | None:
        """What became of it; None: it need not be anywhere, and is not."""
        if any(run.ended is not None and run.ended.outcome == "done" for run in self.runs):
            return "done"
        # What is no worker's lies there for each that would have taken it.
        found = [each for each in self.case.found if each.worker in (self.worker, None)]
        if any(each.place == "dead" and not each.replayed for each in found):
            return "dead"
        if any(each.place != "dead" for each in found):
            return "waiting"
        return "lost" if self.runs or any(birth.sure for birth in self.births) else None

    def steps(self) -> dict[int, list[Run]]:
        """Its runs by how often it had failed before."""
        steps: dict[int, list[Run]] = {}
        for run in self.runs:
            steps.setdefault(run.began.step, []).append(run)
        return steps

    def failures_before(self, run: Run) -> list[Run]:
        """The runs of the step before that had failed when this one began."""
        return [
            each
            for each in self.runs
            if each.began.step == run.began.step - 1
            and each.failed is not None
            and each.failed.at <= run.began.at
        ]

    def dies(self, run: Run) -> bool:
        """Whether the message is dead after that run: it failed hard, or had no tries left."""
        ended = run.ended
        return ended is not None and (
            ended.outcome == "hard"
            or (ended.outcome == "soft" and ended.counted and run.began.attempt >= self.terms.max_attempts)
        )

    def due(self, run: Run) -> float | None:
        """The earliest moment at which that run may begin; None: nobody said."""
        if run.began.step == 0:
            waits = [(birth.at, birth.wait) for birth in self.births]
        else:
            waits = [
                (ended.at, 0.0 if self.dies(failed) else _waits(ended))
                for failed in self.failures_before(run)
                if (ended := failed.failed) is not None
            ]
        # Where one of several copies went its way at once, or by a policy, nobody can say.
        return (
            min((at + wait for at, wait in waits), default=None) if all(wait for _, wait in waits) else None
        )


def _waits(ended: Ended) -> float:
    """Seconds that a failure asked for, 0 where it left that to the policy."""
    return max(ended.again_in or 0.0, 0.0 if ended.counted else LEAST_UNCOUNTED)


def accounts(record: Histories, case: Case) -> Iterator[Account]:
    """One account for each worker that takes the message, was given it, or is said to have it."""
    takers = record.terms.takers
    births: dict[str, list[Birth]] = {}
    for asked, answered in sent(case):
        workers = takers.get(asked.type, (asked.type,))
        if answered is None or _may_have_arrived(answered.answer, workers):
            birth = Birth(
                at=asked.at,
                sure=answered is not None and answered.answer == "accepted",
                wait=asked.wait,
                events=(asked,) if answered is None else (asked, answered),
            )
            for worker in workers:
                births.setdefault(worker, []).append(birth)
    for type, at, run in case.returned:
        birth = Birth(at=at, sure=True, wait=0.0, events=run.events)
        for worker in takers.get(type, (type,)):
            births.setdefault(worker, []).append(birth)
    for worker, its in births.items():
        if len(its) > 1:
            its.sort(key=_at)
        yield Account(record, case, worker, its)
    for worker in sorted(case.runs.keys() | {each.worker for each in case.found if each.worker is not None}):
        if worker not in births:
            yield Account(record, case, worker, [])


def _may_have_arrived(answer: Answer, workers: Sequence[str]) -> bool:
    """Whether one of these may have what was answered so: of several queues one may have refused it for all."""
    return answer in {"accepted", "unknown"} or (answer == "refused" and len(workers) > 1)


def sent(case: Case) -> Iterator[tuple[Asked, Answered | None]]:
    """Each publish with what its caller was told; None: it was never told, since its process was killed."""
    if len(case.asked) == 1 and len(case.answers) <= 1:
        yield case.asked[0], case.answers[0] if case.answers else None
        return
    for asked in case.asked:
        until = min(
            (each.at for each in case.asked if each.by == asked.by and each.at > asked.at), default=inf
        )
        answers = (each for each in case.answers if each.by == asked.by and asked.at <= each.at < until)
        yield asked, next(answers, None)


def last_answer(case: Case) -> Answer | None:
    """What a publisher of it was told at last, accepted as soon as it was once; None: nobody published it."""
    answers = [(asked.at, "unknown" if answer is None else answer.answer) for asked, answer in sent(case)]
    if any(answer == "accepted" for _, answer in answers):
        return "accepted"
    return max(answers, default=(0.0, None))[1]
