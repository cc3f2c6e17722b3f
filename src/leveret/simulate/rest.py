"""Rest: what is still under way in a run, and what is told of it where all should have come to its end."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from leveret.core.properties import Properties
from leveret.core.retry_entry import RetryEntry
from leveret.proof.record import Answered, AnyEvent, Asked, Called, CallEnded
from leveret.proof.verdict import Fault
from leveret.simulate.process import Machine, Process
from leveret.simulate.roles import Share

#: The rule that a run breaks which does not come to rest.
REST: Final = "rest"


class UnderWay:
    """What is still under way on a machine. What waits for its time, or for an operator, is not."""

    def __init__(self, machine: Machine) -> None:
        self._machine: Final = machine
        self._prefix: Final = f"{machine.scene.namespace}."

    def entries(self, due: float) -> list[RetryEntry]:
        """What the retry store holds that was due by then, by the time of the loop."""
        machine = self._machine
        by = due + machine.clock.now() - machine.loop.time()
        return [
            entry
            for entry, _ in machine.store.data.retries.values()
            if entry.state != "held" and entry.due_at <= by
        ]

    def nothing(self, due: float) -> bool:
        """Whether the queues are empty, nothing is in hand, and all is obeyed and gone that was due by then."""
        return (
            not self.entries(due)
            and not self._acts()
            and not self._machine.broker.busy(lambda name: name.startswith(self._prefix))
        )

    def told(self, due: float, shares: Sequence[Share], processes: Sequence[Process]) -> Iterator[Fault]:
        """All of it, a fault each: what is not published yet, has no answer, lies in a queue, waits, is not obeyed."""
        machine = self._machine
        unanswered = list(self.unanswered(processes))
        yield from unanswered
        known = {fault.subject for fault in unanswered}
        for share in shares:
            yield from (
                self.fault(f"{ask.subject} was not accepted, however often it was published", ask.subject)
                for ask in share.asks
                if ask.subject not in share.accepted | known
            )
        for queue, state in machine.broker.snapshot().items():
            if queue.startswith(self._prefix) and (state.ready or state.unsettled):
                yield self.fault(
                    f"{queue} holds {state.ready} messages, {state.unsettled} more are in hand, and there are "
                    f"{state.consumers} consumers"
                )
        for entry in self.entries(due):
            subject = machine.scene.subject(entry.body or b"", Properties(entry.properties))
            late = machine.clock.now() - entry.due_at
            yield self.fault(
                f"{subject or entry.key} waits in the retry store ({entry.state}), and was due {late:.1f} s ago",
                subject,
                entry.worker or None,
            )
        for act in self._acts():
            yield self.fault(f"{act} was asked for, and is not done")

    def unanswered(self, processes: Sequence[Process]) -> Iterator[Fault]:
        """Publishes and calls of those who live that have not ended."""
        living = {process.by for process in processes if process.alive}
        for event in _open(self._machine.events, living):
            since = self._machine.loop.time() - event.at
            if isinstance(event, Asked):
                yield self.fault(
                    f"{event.by} published {event.subject} {since:.1f} s ago, and was told nothing",
                    event.subject,
                )
            else:
                yield self.fault(f"{event.by} made call {event.call} {since:.1f} s ago, and was told nothing")

    def fault(self, told: str, subject: str | None = None, worker: str | None = None) -> Fault:
        """A breach of the rule."""
        return Fault(rule=REST, told=told, at=self._machine.loop.time(), subject=subject, worker=worker)

    def _acts(self) -> list[str]:
        data = self._machine.store.data
        return [f"{act.verb} ({act.id})" for act in data.acts.values() if act.id not in data.finished]


def _open(events: Sequence[AnyEvent], living: Collection[str]) -> Iterator[Asked | Called]:
    """What these have asked and called without having been told how it ended."""
    asked: dict[tuple[str, str], Asked] = {}
    called: dict[str, Called] = {}
    for event in events:
        if event.by not in living:
            continue
        match event:
            case Asked():
                asked[event.by, event.subject] = event
            case Answered():
                asked.pop((event.by, event.subject), None)
            case Called():
                called[event.call] = event
            case CallEnded():
                called.pop(event.call, None)
    yield from asked.values()
    yield from called.values()
