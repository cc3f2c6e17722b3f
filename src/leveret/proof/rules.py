"""Rules: each sentence of the promise about one message at one worker, as a function that finds its breaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from leveret.proof.accounts import Account, sent
from leveret.proof.copies import no_copies_beyond_the_promise, taken_back
from leveret.proof.histories import Run
from leveret.proof.record import AnyEvent, Asked, Found
from leveret.proof.verdict import Fault

#: Seconds that two readings of a clock may differ by for reasons of arithmetic.
EXACT: Final = 0.001

Rule = Callable[[Account], Iterator[Fault]]


def accounted_for(account: Account) -> Iterator[Fault]:
    """What was accepted is done, dead or waiting; and so is each result of a run that was done."""
    if account.end() == "lost":
        sendings = [event for birth in account.births for event in birth.events]
        asked = any(isinstance(event, Asked) for event in sendings)
        began = f"began on it {_times(len(account.runs))}" if account.runs else "never began on it"
        told = (
            f"{account.subject} was {'accepted' if asked else 'returned by a handler'}, and is nowhere: "
            f"not done by {account.worker}, which {began}, not dead, not waiting"
        )
        runs = (event for run in account.runs for event in run.events)
        yield _fault("accounted for" if asked else "conservation", account, told, (*sendings, *runs))


def nothing_invented(account: Account) -> Iterator[Fault]:
    """No handler gets what nobody sent to it, or before it was sent, or a replay that nobody asked for."""
    for run in account.runs:
        began = run.began
        if account.births and began.at < account.births[0].at - EXACT:
            told = f"{account.worker} had {account.subject} before it was sent"
            yield _fault("nothing invented", account, told, (*run.events, *account.births[0].events))
            return
        if not account.births and not (began.step and _failed_elsewhere(account, run)):
            answers = [answer.answer for _, answer in sent(account.case) if answer is not None]
            known = f", which was {answers[-1]}" if answers else ", which nobody sent there"
            told = f"{account.worker} had {account.subject}{known}"
            yield _fault(
                "nothing invented", account, told, (*account.case.asked, *account.case.answers, *run.events)
            )
            return
        if began.replayed and not any(
            each.worker == account.worker and each.at <= began.at for each in account.case.replayed
        ):
            told = f"{account.worker} had a replay of {account.subject} that nobody asked for"
            yield _fault("nothing invented", account, told, run.events)
            return
    if account.found and not account.case.asked and not account.case.returned:
        told = f"{account.subject} was found at {account.worker}, and nobody sent it"
        yield _fault("nothing invented", account, told, tuple(account.found))


def only_the_failing_worker_sees_a_retry(account: Account) -> Iterator[Fault]:
    """A message comes back only to a worker whose handler failed on it."""
    for run in account.runs:
        if (
            run.began.step
            and not account.failures_before(run)
            and (others := _failed_elsewhere(account, run))
        ):
            told = (
                f"{account.worker} had {account.subject} as a message that had failed {_times(run.began.step)}, "
                f"but it was {others[0].began.worker} that failed on it"
            )
            yield _fault("only the failing worker", account, told, (*others[0].events, *run.events))
            return


def attempts_bounded_and_in_order(account: Account) -> Iterator[Fault]:
    """Attempt k + 1 follows a failure of k that counts, up to the last one; only a replay begins anew."""
    for run in account.runs:
        began = run.began
        before = account.failures_before(run)
        if began.step and not before:
            # Of a retry that went astray speaks the rule above; a run that killed its process has no end.
            if began.replayed or _failed_elsewhere(account, run):
                continue
            told = f"{account.worker} was told that {account.subject} had failed {_times(began.step)}, and it had not"
            yield _fault("attempts", account, told, run.events)
            return
        allowed = (
            {attempt for failed in before for attempt in _next_attempts(account, failed, run)}
            if began.step
            else {1}
        )
        if began.attempt not in allowed:
            told = (
                f"{account.worker} had {account.subject} as attempt {began.attempt} after {_times(began.step)} failed, "
                f"expected {' or '.join(map(str, sorted(allowed))) or 'none any more'} "
                f"(at most {account.terms.max_attempts})"
            )
            failures = (event for failed in before for event in failed.events)
            yield _fault("attempts", account, told, (*failures, *run.events))
            return


def dead_for_a_reason(account: Account) -> Iterator[Fault]:
    """A message dies where its last try failed, or for a reason that the record shows."""
    for letter in account.found:
        if letter.place == "dead" and (though := _had_no_reason(account, letter)) is not None:
            told = f"{account.subject} is dead ({letter.reason}), though {though}"
            runs = (event for run in account.runs for event in run.events)
            yield _fault("attempts", account, told, (*runs, letter))
            return


def _had_no_reason(account: Account, letter: Found) -> str | None:
    """What speaks against it that a message died so; None: nothing."""
    terms = account.terms
    if letter.reason.startswith("worker died"):
        # A record that does not say what was in hand is given the benefit of the doubt.
        if not account.record.shows_hands or (ended := taken_back(account)) >= terms.max_deliveries:
            return None
        return (
            f"a blow ended its being in hand {_times(ended)}, "
            f"of {terms.max_deliveries} that it takes at {account.worker}"
        )
    # A result that no queue took never reached its worker.
    if any(map(account.dies, account.runs)) or letter.reason.startswith("unroutable result"):
        return None
    if not account.runs:
        return None if terms.unread else f"{account.worker} never began on it"
    if "max_age" in letter.reason and any(run.failed for run in account.runs):
        return None
    return f"{account.worker} had tries left"


def _next_attempts(account: Account, failed: Run, run: Run) -> tuple[int, ...]:
    """The numbers that a run may bear after that failure of another one."""
    attempt = failed.began.attempt
    if account.dies(failed):
        # Only a replay goes on, from the beginning or, if it was asked to, where it was.
        return (1, attempt + 1) if run.began.replayed else ()
    return (attempt + 1,) if failed.failed is None or failed.failed.counted else (attempt,)


def never_early(account: Account) -> Iterator[Fault]:
    """What was asked to wait, waits; a jump of a wall clock in between may shorten it by as much."""
    for run in account.runs:
        due = account.due(run)
        if due is None or run.began.at >= due - EXACT:
            continue
        before = account.failures_before(run)
        since = min([failed.began.at for failed in before] or [birth.at for birth in account.births])
        jumps = sum(
            abs(blow.struck.clock)
            for blow in account.record.blows
            if blow.struck.clock and blow.struck.at <= run.began.at and blow.healed >= since
        )
        if run.began.at < due - EXACT - jumps:
            told = f"{account.worker} had {account.subject} {due - run.began.at:.3f} s before it was due"
            shown = [event for failed in before for event in failed.events] or list(account.births[0].events)
            yield _fault("never early", account, told, (*shown, *run.events))
            return


def always_the_same_message(account: Account) -> Iterator[Fault]:
    """Each copy, retry, replay and letter has the same bytes, properties, message id and retry id."""
    if len(account.runs) + len(account.found) < 2 and not account.case.asked:
        return
    asked = account.case.asked
    takes = [each for each in asked if account.worker in account.terms.takers.get(each.type, ())]
    seen: list[tuple[str, str | None, AnyEvent]] = []
    for each in takes:
        seen += (("message id", each.message_id, each), ("digest", each.digest or None, each))
    for run in account.runs:
        began = run.began
        seen.append(("message id", began.message_id, began))
        seen.append(("digest", began.digest or None, began))
        if began.message_id is not None:
            # Without an id each copy is given a retry id of its own where it fails.
            seen.append(("retry id", began.retry_id, began))
    seen += [("digest", each.digest or None, each) for each in account.found]
    first: dict[str, tuple[str, AnyEvent]] = {}
    for name, value, event in seen:
        if value is None:
            continue
        known, shown = first.setdefault(name, (value, event))
        if known != value:
            told = f"the {name} of {account.subject} at {account.worker} was {known}, and then {value}"
            yield _fault("the same message", account, told, (shown, event))
            return


def _failed_elsewhere(account: Account, run: Run) -> list[Run]:
    """Runs of other workers that had failed on the message, that often, when this one began."""
    return [
        other
        for worker, runs in account.case.runs.items()
        if worker != account.worker
        for other in runs
        if other.failed is not None
        and other.began.step == run.began.step - 1
        and other.failed.at <= run.began.at
    ]


def _fault(rule: str, account: Account, told: str, events: tuple[AnyEvent, ...]) -> Fault:
    ordered = tuple(sorted(dict.fromkeys(events), key=lambda event: event.at))
    at = ordered[-1].at if ordered else 0.0
    return Fault(rule=rule, told=told, at=at, subject=account.subject, worker=account.worker, events=ordered)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


#: The names of those after which something is gone.
LOSSES: Final = frozenset({"accounted for", "conservation"})
#: All that are about one message at one worker.
ACCOUNT_RULES: Final[tuple[Rule, ...]] = (
    accounted_for,
    nothing_invented,
    only_the_failing_worker_sees_a_retry,
    attempts_bounded_and_in_order,
    dead_for_a_reason,
    never_early,
    always_the_same_message,
    no_copies_beyond_the_promise,
)
