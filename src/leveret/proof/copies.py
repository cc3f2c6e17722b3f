"""Copies: how often a message may be there, and which blow left which copy.

A kill, a cut or a channel closed by the broker may leave one extra copy of each message that was in hand at that
moment. So a run that is not the first of its step is allowed by one of three things: the step before was done so often
itself, the message was sent again because its first sending was unknown, or a blow struck while a copy was in hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from leveret.proof.accounts import Account
from leveret.proof.histories import Blow, Hold, Terms
from leveret.proof.record import AnyEvent
from leveret.proof.verdict import Fault


def no_copies_beyond_the_promise(account: Account) -> Iterator[Fault]:
    """A step has as many runs as fed it, and one more for each blow at a copy in hand; dead letters likewise."""
    # Of what nobody sent there speaks another rule.
    if account.births and (extras := [*_extra_runs(account), *_extra_letters(account)]):
        left = _not_excused(account, extras)
        if left:
            yield left[0].fault(account)


@dataclass(slots=True, kw_only=True)
class _Extra:
    """A run or a letter too many, but for a blow between two moments.

    Attributes:
        since: when something first led to its like.
        until: when it was there.
        told: what it would be a fault of.
        events: all of its like until then.
    """

    since: float
    until: float
    told: str
    events: list[AnyEvent]

    def fault(self, account: Account) -> Fault:
        """Of which no blow acquits it."""
        blows = [blow.struck for blow in account.record.blows if self.since <= blow.struck.at <= self.until]
        return Fault(
            rule="copies",
            told=f"{self.told}; {len(blows)} blows in between left fewer",
            at=min(self.until, self.events[-1].at),
            subject=account.subject,
            worker=account.worker,
            events=tuple(sorted((*self.events, *blows), key=lambda event: event.at)),
        )


def _extra_runs(account: Account) -> Iterator[_Extra]:
    for step, runs in account.steps().items():
        # Where nothing led to it, the rule of the attempts tells of it.
        if len(runs) < 2 or not (fed := _fed(account, step)):
            continue
        extra = 0
        for number, run in enumerate(runs, 1):
            if sum(at <= run.began.at for at in fed) + extra < number:
                extra += 1
                yield _Extra(
                    since=fed[0],
                    until=run.began.at,
                    told=f"{account.worker} began on {account.subject} {number} times after {step} failures",
                    events=[event for each in runs[:number] for event in each.events],
                )


def _extra_letters(account: Account) -> Iterator[_Extra]:
    letters = [each for each in account.found if each.place == "dead"]
    if len(letters) < 2:
        return
    deaths = [run for run in account.runs if account.dies(run)]
    # A result that no queue took, and what no handler can read, are dead letters before anybody runs them, and again
    # after a replay of them.
    unrun = sum(
        each.worker == account.worker and all(each.at < run.began.at for run in account.runs)
        for each in account.case.replayed
    )
    # What kills its process dies without a run that says so.
    for number in range(max(1, len(deaths) + unrun + (not account.runs)) + 1, len(letters) + 1):
        yield _Extra(
            since=deaths[0].began.at if deaths else account.births[0].at,
            until=inf,
            told=f"{account.subject} died {len(deaths)} times at {account.worker} and left {number} dead letters",
            events=[*(event for run in deaths for event in run.events), *letters],
        )


def _fed(account: Account, step: int) -> list[float]:
    """When something happened after which the message is at that step, or is there once more."""
    if step == 0:
        return [birth.at for birth in account.births]
    fed = []
    died = inf
    for run in account.runs:
        if run.began.step == step - 1:
            if run.ended is None or account.dies(run):
                died = min(died, run.began.at)
            elif run.ended.outcome == "soft":
                fed.append(run.ended.at)
    fed += [each.at for each in account.case.replayed if each.worker == account.worker and each.at >= died]
    return sorted(fed)


def _not_excused(account: Account, extras: list[_Extra]) -> list[_Extra]:
    """Those that no blow accounts for, the earliest first.

    A blow that struck while the message was in hand left one copy at most, or as many as there were copies of its own
    in hand. A record that does not say what was in hand is given the benefit of the doubt.
    """
    extras.sort(key=lambda extra: extra.until)
    held: list[_Held] | None = None
    for blow in account.record.blows:
        # Blow after blow, each for the one that no later blow may account for: so none is wasted.
        of_it = [extra for extra in extras if blow.struck.at <= extra.until and blow.last >= extra.since]
        if not of_it or not blow.struck.copies:
            continue
        copies = 1
        if account.record.shows_hands:
            held = _held(account) if held is None else held
            copies = _in_hand(blow, held)
        for extra in of_it[:copies]:
            extras.remove(extra)
        if not extras:
            break
    return extras


def _in_hand(blow: Blow, held: list[_Held]) -> int:
    """How many copies a blow may have left: as many as were in hand at one moment of it, not one after the other."""
    hit = [each for each in held if blow.hits(each.hold.process, each.begin, each.end)]
    if not hit:
        return 0
    own = [each for each in hit if each.own]
    moments = {max(each.begin, blow.first) for each in own}
    at_once = (sum(each.begin <= moment <= each.end for each in own) for moment in moments)
    return max(at_once, default=1)


def taken_back(account: Account) -> int:
    """How often a blow ended a delivery of it to its worker, which was not acked by then.

    What the broker had sent right before a blow may not have been read any more: it shows in that it is flagged when it
    comes again, and no delivery that anybody saw is missing its ack.
    """
    blows, own = account.record.blows, (account.worker,)
    taken = [
        hold for hold in account.case.holds if hold.taken and _workers_of(hold.place, account.terms) == own
    ]
    kept = [_Held(hold, own=True) for hold in taken if not hold.acked]
    seen = sum(any(blow.hits(each.hold.process, each.begin, each.end) for blow in blows) for each in kept)
    flagged = [hold.begin for hold in taken if hold.flagged]
    if len(flagged) <= len(kept):
        return seen
    first = account.births[0].at if account.births else taken[0].begin
    between = sum(blow.last >= first and blow.struck.at <= max(flagged) for blow in blows)
    return seen + min(len(flagged) - len(kept), between)


class _Held:
    """A copy in a process's hands: from when, until when, and whether it was one of its own.

    Such are a delivery of the worker's own queue, and what is due or replayed and is being published to it, which the
    store has too: a process that both works and publishes may have a message in hand in both places.
    """

    __slots__ = ("begin", "end", "hold", "own")

    def __init__(self, hold: Hold, *, own: bool) -> None:
        self.begin: Final = hold.begin
        # What was never settled was given back by the broker at the latest when its process was gone.
        self.end = hold.end if hold.end != inf else hold.process.gone
        self.hold: Final = hold
        self.own: Final = own and (hold.taken or hold.stored)


def _held(account: Account) -> list[_Held]:
    """What was in hand of that message for that worker; what a queue for all workers held counts for each."""
    all_held: list[_Held] = []
    unsettled: dict[str, list[_Held]] = {}
    for hold in sorted(account.case.holds, key=lambda hold: hold.begin):
        workers = _workers_of(hold.place, account.terms)
        if workers is not None and account.worker not in workers:
            continue
        held = _Held(hold, own=workers is not None)
        if hold.taken:
            waiting = unsettled.setdefault(hold.place, [])
            if hold.flagged and waiting:
                # The broker hands it over again: so the oldest that was never settled had come back to it.
                oldest = waiting.pop(0)
                oldest.end = min(oldest.end, hold.begin)
            if hold.end == inf:
                waiting.append(held)
        all_held.append(held)
    return all_held


def _workers_of(place: str, terms: Terms) -> tuple[str, ...] | None:
    """Whose messages that place holds; None: anybody's.

    Example:
        `shop.charge` and `shop.charge.suspects` hold charge's, `shop.retry` anybody's, and what is sent to
        `shop.events/order.placed` is for those that take `order.placed`.
    """
    exchange, _, type = place.rpartition("/")
    if exchange:
        return terms.takers.get(type)
    parts = place.split(".")
    worker = parts[1] if len(parts) > 1 else place
    return (worker,) if any(worker in workers for workers in terms.takers.values()) else None
