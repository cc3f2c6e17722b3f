"""Story: the events about one message as a person reads them, one line an event, with what was struck in between."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from leveret.proof.record import (
    Answer,
    Answered,
    AnyEvent,
    Asked,
    Backlog,
    Began,
    Called,
    CallEnded,
    Confirmed,
    Ended,
    Found,
    Healed,
    LeaseTaken,
    Replayed,
    Sampled,
    Sent,
    Served,
    Settled,
    Struck,
    Taken,
)

#: What a publisher is told, as a story says it.
_ANSWERS: Final[dict[Answer, str]] = {
    "accepted": "accepted",
    "unroutable": "not accepted: nobody takes it",
    "refused": "not accepted: the broker refused it",
    "unknown": "unknown whether it arrived",
    "not sent": "not sent",
}


def pick(events: Iterable[AnyEvent], subjects: Collection[str]) -> dict[str, list[AnyEvent]]:
    """All events about some subjects, and the blows that fell between the first and the last of each.

    Args:
        events: of a whole record; read once.
        subjects: the messages' names.
    """
    wanted = frozenset(subjects)
    picked: dict[str, list[AnyEvent]] = {subject: [] for subject in subjects}
    #: The subjects of deliveries, publishes and runs whose ends name none.
    begun: dict[tuple[str, str, str], str] = {}
    blows: list[Struck | Healed] = []
    for event in events:
        if isinstance(event, Struck | Healed):
            blows.append(event)
            continue
        subject = getattr(event, "subject", None)
        if subject is None:
            key = _end_of(event)
            subject = begun.get(key) if key is not None else None
        elif subject in wanted and (key := _begin_of(event)) is not None:
            begun[key] = subject
        if subject in wanted:
            picked[subject].append(event)
    for its in picked.values():
        if its:
            first, last = min(event.at for event in its), max(event.at for event in its)
            its.extend(blow for blow in blows if first <= blow.at <= last)
            its.sort(key=lambda event: event.at)
    return picked


def _begin_of(event: AnyEvent) -> tuple[str, str, str] | None:
    match event:
        case Taken(by=by, delivery=name):
            return "delivery", by, name
        case Sent(by=by, publish=name):
            return "publish", by, name
        case Began(run=name):
            return "run", "", name
    return None


def _end_of(event: AnyEvent) -> tuple[str, str, str] | None:
    match event:
        case Settled(by=by, delivery=name):
            return "delivery", by, name
        case Confirmed(by=by, publish=name):
            return "publish", by, name
        case Ended(run=name):
            return "run", "", name
    return None


def tell(events: Sequence[AnyEvent], *, since: float | None = None) -> list[str]:
    """The events as a story, one line each.

    Args:
        events: about one message, or those that show a fault.
        since: the moment that is 0 s; default: the first event.

    Example:
        >>> from leveret.proof.record import Asked, Began, Struck
        >>> for line in tell([
        ...     Asked(at=7.0, by="producer", subject="o1", type="order.placed", message_id="7c1e4b"),
        ...     Began(
        ...         at=7.2, by="shop", run="1", worker="charge", subject="o1", message_id="7c1e4b", attempt=1, step=0
        ...     ),
        ...     Struck(at=7.25, by="hand", fault="1", kind="kill", target="shop"),
        ... ]):
        ...     print(line)
           0.000 s  producer  publishes o1 as order.placed (id 7c1e4b)
           0.200 s  shop      charge begins on o1, attempt 1
           0.250 s  hand      ⚡ kill: shop
    """
    ordered = sorted(events, key=lambda event: event.at)
    if not ordered:
        return []
    start = ordered[0].at if since is None else since
    width = max(len(event.by) for event in ordered)
    about = {key: event for event in ordered if (key := _begin_of(event)) is not None}
    return [f"{event.at - start:8.3f} s  {event.by:<{width}}  {_words(event, about)}" for event in ordered]


def _words(event: AnyEvent, about: dict[tuple[str, str, str], AnyEvent]) -> str:
    """One event; *about*: what its end began with, as far as the story has it."""
    key = _end_of(event)
    begun = about.get(key) if key is not None else None
    match event:
        case Asked():
            later = f", in {event.wait:g} s" if event.wait else ""
            return f"publishes {event.subject} as {event.type} (id {event.message_id}){later}"
        case Answered():
            why = f" ({event.error})" if event.error else ""
            return f"is told of {event.subject}: {_ANSWERS[event.answer]}{why}"
        case Taken():
            again = ", for another time" if event.redelivered else ""
            return f"takes {event.subject or 'a message'} from {event.queue}{again}"
        case Settled():
            where = (
                f" {begun.subject} from {begun.queue}" if isinstance(begun, Taken) else f" {event.delivery}"
            )
            return f"{'acks' if event.how == 'ack' else 'gives back'}{where}"
        case Sent():
            term = "" if event.term is None else f", in term {event.term} of its lease"
            return f"sends {event.subject or 'a message'} to {_where(event)}{term}"
        case Confirmed():
            what = (
                f"what it sent to {_where(begun)}" if isinstance(begun, Sent) else f"publish {event.publish}"
            )
            return f"is told of {what}: {_ANSWERS[event.answer]}"
        case Began():
            failed = f", failed {event.step} before" if event.step else ""
            replayed = f", replayed {event.replayed}" if event.replayed else ""
            return f"{event.worker} begins on {event.subject}, attempt {event.attempt}{failed}{replayed}"
        case Ended():
            return _end_words(event, begun)
        case LeaseTaken():
            return f"takes the lease {event.lease} in term {event.term}"
        case Called():
            return f"calls {event.call}, waits {event.timeout:g} s"
        case CallEnded():
            wrong = "" if event.right else ", and not with what it asks for"
            return f"is told of call {event.call}: {event.outcome}{wrong}"
        case Served():
            return f"starts on call {event.call}"
        case Struck():
            note = f" ({event.note})" if event.note else ""
            return f"⚡ {event.kind}: {event.target}{note}"
        case Healed():
            return f"⚡ {event.fault} is over"
        case Replayed():
            return f"replays {event.subject} to {event.worker} (letter {event.letter})"
        case Found():
            place = {"queue": "in a queue", "waiting": "waiting", "dead": "dead"}[event.place]
            why = f": {event.reason}" if event.reason else ""
            return f"finds {event.subject} of {event.worker or 'no worker yet'} {place}{why}"
        case Backlog():
            return f"finds {event.messages} messages in {event.queue}"
        case Sampled():
            return ", ".join(f"{name} {value:g}" for name, value in event.figures.items())


def _where(sent: Sent) -> str:
    return f"{sent.exchange} as {sent.routing_key}" if sent.exchange else sent.routing_key


def _end_words(event: Ended, begun: AnyEvent | None) -> str:
    whose = f"{begun.worker} " if isinstance(begun, Began) else f"run {event.run} "
    if event.outcome == "done":
        returned = f", returns {', '.join(type for type, _ in event.results)}" if event.results else ""
        return f"{whose}is done{returned}"
    if event.outcome == "hard":
        return f"{whose}fails for good"
    again = "" if event.again_in is None else f", wants it back in {event.again_in:g} s"
    return f"{whose}fails{again}{'' if event.counted else ', which does not count'}"
