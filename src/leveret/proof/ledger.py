"""The ledger: what was accepted, what became of it, and every breach of the promise, judged from a record alone."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final

from leveret.proof.accounts import Account, accounts, last_answer
from leveret.proof.conduct import RECORD_RULES
from leveret.proof.histories import Histories, Terms
from leveret.proof.record import AnyEvent, CallOutcome
from leveret.proof.rules import ACCOUNT_RULES, LOSSES
from leveret.proof.verdict import Fault, Lateness, Verdict

__all__ = ["Fault", "Lateness", "Verdict", "judge"]


def judge(
    events: Iterable[AnyEvent],
    *,
    takers: Mapping[str, tuple[str, ...]],
    max_attempts: int,
    max_deliveries: int = 5,
    unread: bool = False,
    publish_timeout: float = 10.0,
    margin: float = 2.0,
    late_after: float = 1.0,
    recovery: float = 5.0,
) -> Verdict:
    """Account for every message of a record, and find what the promise does not allow.

    Nothing is taken from leveret's word: only what producers, handlers and the transport's edge have seen.

    Args:
        events: of the record, those of each process in their order. Read once.
        takers: the workers that take a type.
        max_attempts: runs that a message may have, the first included.
        max_deliveries: starts after which what ends its process may be dead.
        unread: whether a message may die without a run, since a handler may be unable to read it.
        publish_timeout: seconds after which a publish ends as unknown.
        margin: seconds around a fault in which an ack, a confirm or a commit that was made may not have reached the
            disk or the socket, so that the message was still in hand. Half a second at most where one process was hit.
        late_after: seconds after which what was due is counted as late.
        recovery: seconds after a fault has healed in which lateness is still put down to it.

    Example:
        >>> from leveret.proof.record import Answered, Asked, Began, Ended
        >>> happened = [
        ...     Asked(at=0.0, by="producer", subject="o1", type="order.placed", message_id="7c1e4b"),
        ...     Answered(at=0.1, by="producer", subject="o1", answer="accepted"),
        ...     Began(
        ...         at=0.2, by="shop", run="1", worker="charge", subject="o1", message_id="7c1e4b", attempt=1, step=0
        ...     ),
        ...     Ended(at=0.3, by="shop", run="1", outcome="done"),
        ... ]
        >>> print(judge(happened, takers={"order.placed": ("charge",)}, max_attempts=6).line())
        accepted 1   done 1   dead 0   waiting 0   duplicated 0   late 0   unknown 0   lost 0
    """
    terms = Terms(
        takers=takers, max_attempts=max_attempts, max_deliveries=max_deliveries, unread=unread,
        publish_timeout=publish_timeout, margin=margin, late_after=late_after, recovery=recovery,
    )  # fmt: skip
    record = Histories(events, terms)
    count = _Count(record)
    faults: list[Fault] = []
    for case in record.cases.values():
        if case.asked:
            count.published += 1
            count.unknown += last_answer(case) == "unknown"
        for account in accounts(record, case):
            if account.is_plain():
                count.ends["done"] += 1
                continue
            count.add(account)
            for rule in ACCOUNT_RULES:
                faults += rule(account)
    for record_rule in RECORD_RULES:
        faults += record_rule(record)
    faults.sort(key=lambda fault: (fault.rule not in LOSSES, fault.at, fault.rule, fault.told))
    calls: Counter[CallOutcome] = Counter(end.outcome for call in record.calls.values() for end in call.ends)
    ends = count.ends
    return Verdict(
        published=count.published,
        accepted=ends.total(),
        done=ends["done"],
        dead=ends["dead"],
        waiting=ends["waiting"],
        lost=ends["lost"],
        duplicated=count.duplicated,
        late=count.late,
        unknown=count.unknown,
        outside=Lateness.of(count.outside),
        inside=Lateness.of(count.inside),
        calls=calls,
        strikes=len(record.blows),
        start=record.first if record.processes else 0.0,
        seconds=record.last - record.first if record.processes else 0.0,
        faults=tuple(faults),
    )


class _Count:
    """The figures, as account after account is added."""

    def __init__(self, record: Histories) -> None:
        self.published = 0
        self.unknown = 0
        self.duplicated = 0
        self.late = 0
        self.ends: Final[Counter[str]] = Counter()
        self.outside: Final[list[float]] = []
        self.inside: Final[list[float]] = []
        self._terms: Final = record.terms
        blows = record.blows
        #: When the blows began, in their order, and how long the longest of each and those before it showed.
        self._struck: Final = [blow.struck.at for blow in blows]
        self._recovered: Final = list(
            accumulate((blow.healed + record.terms.recovery for blow in blows), max)
        )

    def add(self, account: Account) -> None:
        end = account.end()
        if end is not None:
            self.ends[end] += 1
        steps = account.steps()
        self.duplicated += any(len(runs) > 1 for runs in steps.values())
        for runs in steps.values():
            due = account.due(runs[0])
            if due is not None:
                self._add_lateness(due, runs[0].began.at)

    def _add_lateness(self, due: float, began: float) -> None:
        late = max(0.0, began - due)
        self.late += late > self._terms.late_after
        # The last blow that began before it came; of those before it, one may have lasted longer.
        last = bisect_right(self._struck, began) - 1
        struck = last >= 0 and self._recovered[last] >= due
        (self.inside if struck else self.outside).append(late)
