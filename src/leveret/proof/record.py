"""The record: what producers, handlers and whoever strikes have seen, line by line, and nothing that leveret says.

Only ever appended to. Processes on one machine share a file; each line is one write, so a line that was begun before a
kill is there after it. A message is known by its *subject*, a name in its payload that nothing on the way may change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

#: What became of a publish, as its caller was told. `unknown`: it raised PublishTimeout, or its process was killed.
Answer = Literal["accepted", "unroutable", "refused", "unknown", "not sent"]
#: What a handler said.
Outcome = Literal["done", "soft", "hard"]
#: What became of a call, as its caller was told.
CallOutcome = Literal["answered", "failed", "timeout", "unreachable", "unknown", "not sent"]
#: Where something lies when all is still: in a queue, in the retry store, in the dead letters.
Place = Literal["queue", "waiting", "dead"]


# A record holds millions of events, and none refers back to what holds it: the collector need not look at them.
class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", omit_defaults=True, gc=False):
    """Something that happened.

    Attributes:
        at: when, in seconds of one clock that all who write share and that never goes back.
        by: who saw it: the name of a process in one of its lives, so that a process killed and started is two.
    """

    at: float
    by: str


# ── Producers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Asked(Event, frozen=True, kw_only=True, tag="asked"):
    """A publish is about to be called.

    Attributes:
        subject: of the message.
        type: its type, which says who takes it.
        message_id: its id; the same again where an unknown one is sent again.
        wait: seconds that it is to wait before it goes, 0 for at once.
        digest: as in Began, of what its publisher gave; empty: unknown.
    """

    subject: str
    type: str
    message_id: str
    wait: float = 0.0
    digest: str = ""


class Answered(Event, frozen=True, kw_only=True, tag="answered"):
    """What its caller was told of a publish."""

    subject: str
    answer: Answer
    error: str = ""


# ── Handlers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Began(Event, frozen=True, kw_only=True, tag="began"):
    """A handler has begun.

    Attributes:
        run: the name of this run, never used again.
        worker: whose handler.
        attempt: as the handler was told, from 1.
        step: how often it had failed before, counted or not; two runs of one step are copies.
        retry_id: as the handler was told.
        digest: of body and properties, without what brokers and leveret write on their way.
        replayed: how often it had been replayed from the dead letters.
    """

    run: str
    worker: str
    subject: str
    message_id: str | None
    attempt: int
    step: int
    retry_id: str | None = None
    digest: str = ""
    replayed: int = 0


class Ended(Event, frozen=True, kw_only=True, tag="ended"):
    """A handler is about to return or raise.

    Attributes:
        run: as in Began.
        again_in: seconds that the handler asked to be left alone for, exact; None: the policy says.
        counted: whether a soft failure counts as an attempt.
        results: subjects of what it returns, with their types.
    """

    run: str
    outcome: Outcome
    again_in: float | None = None
    counted: bool = True
    results: tuple[tuple[str, str], ...] = ()


# ── Deliveries and publishes, as they pass the transport ──────────────────────────────────────────────────────────────


class Taken(Event, frozen=True, kw_only=True, tag="taken"):
    """The broker has handed over a message.

    Attributes:
        delivery: the name of this delivery in this process, never used again.
        subject: None where the body names none.
    """

    delivery: str
    queue: str
    subject: str | None
    redelivered: bool = False


class Settled(Event, frozen=True, kw_only=True, tag="settled"):
    """A delivery was acked or given back, and the transport took the word for it."""

    delivery: str
    how: Literal["ack", "requeue"]


class Sent(Event, frozen=True, kw_only=True, tag="sent"):
    """A mandatory publish of leveret's own or of a producer is about to be handed to the socket.

    Attributes:
        publish: the name of this publish in this process, never used again.
        term: of the lease under which a due message is published; None for all other publishes.
        replay: it is a dead letter that is being replayed.
    """

    publish: str
    exchange: str
    routing_key: str
    subject: str | None
    term: int | None = None
    replay: bool = False


class Confirmed(Event, frozen=True, kw_only=True, tag="confirmed"):
    """How a publish ended."""

    publish: str
    answer: Answer


class LeaseTaken(Event, frozen=True, kw_only=True, tag="lease taken"):
    """A process has been told that it holds a lease, for the first time in this term."""

    lease: str
    term: int


# ── Calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Called(Event, frozen=True, kw_only=True, tag="called"):
    """A request is about to be sent.

    Attributes:
        call: its name, never used again.
        timeout: seconds after which its caller gives up.
    """

    call: str
    timeout: float


class CallEnded(Event, frozen=True, kw_only=True, tag="call ended"):
    """What the caller was told; exactly one such event for each call whose process lived on.

    Attributes:
        call: as in `Called`.
        outcome: what the call came to.
        right: whether what came back is what this very request asks for: its answer, or the failure it asked for.
    """

    call: str
    outcome: CallOutcome
    right: bool = True


class Served(Event, frozen=True, kw_only=True, tag="served"):
    """The handler of a request has begun."""

    call: str


# ── Whoever strikes ───────────────────────────────────────────────────────────────────────────────────────────────────


class Struck(Event, frozen=True, kw_only=True, tag="struck"):
    """A fault has begun; written before the blow, so that nothing it causes is older than it.

    Attributes:
        fault: the name of this blow, never used again.
        kind: what it is: `kill`, `cut`, `black hole`, `memory alarm`, `partition`, …
        target: whom. A process as in `by` loses what it alone had in hand; any other word (`broker`, `store`, a node)
            may have struck everybody.
        process: whether *target* is a process, also where that has written nothing yet.
        copies: whether it may leave one more copy of what was in hand.
        clock: seconds by which it moves the wall clock of its target.
        note: anything else a reader would like to know.
    """

    fault: str
    kind: str
    target: str
    process: bool = False
    copies: bool = True
    clock: float = 0.0
    note: str = ""


class Healed(Event, frozen=True, kw_only=True, tag="healed"):
    """A fault is over, and what it hit works again."""

    fault: str


class Sampled(Event, frozen=True, kw_only=True, tag="sampled"):
    """What a process uses at this moment.

    Attributes:
        figures: by name: bytes of memory, open files, threads, channels, …
    """

    figures: dict[str, float]


# ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Replayed(Event, frozen=True, kw_only=True, tag="replayed"):
    """A dead letter is about to be replayed."""

    worker: str
    subject: str
    letter: str


class Found(Event, frozen=True, kw_only=True, tag="found"):
    """What was found when all was still, one event for each copy.

    Attributes:
        worker: whose it is. Of a result that reached nobody: who would have taken it. None where it is no single
            worker's: one that is delayed and has not reached their queues yet, or one that nobody takes.
        place: where it lies.
        attempt: how often it had been tried.
        digest: as in Began.
        reason: why it is dead.
        replayed: of a dead letter: it was replayed, and lies there as history only.
    """

    worker: str | None
    subject: str
    place: Place
    attempt: int = 0
    digest: str = ""
    reason: str = ""
    replayed: bool = False


class Backlog(Event, frozen=True, kw_only=True, tag="backlog"):
    """How many messages a queue holds after all faults stopped and all had time to come to rest."""

    queue: str
    messages: int


AnyEvent = (
    Asked
    | Answered
    | Began
    | Ended
    | Taken
    | Settled
    | Sent
    | Confirmed
    | LeaseTaken
    | Called
    | CallEnded
    | Served
    | Struck
    | Healed
    | Sampled
    | Replayed
    | Found
    | Backlog
)

#: Seconds since boot, suspended time included where the system can tell: all processes of a machine read the same, and
#: no jump of the wall clock moves it.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def machine_seconds() -> float:
    """The time by which processes on one machine note their events."""
    return time.clock_gettime(_CLOCK)


class Record(Protocol):
    """Where somebody writes down what they see."""

    def now(self) -> float:
        """The time for the next event."""

    @property
    def by(self) -> str:
        """Who writes."""

    def write(self, event: AnyEvent) -> None:
        """Write it down; on return it outlives this process."""


class FileRecord:
    """A record in a file that all processes of a machine append to.

    Args:
        path: of the file; made where it is missing.
        by: who writes.

    Raises:
        OSError: the file cannot be opened or written to. A record that has a hole proves nothing, so nobody goes on.
    """

    def __init__(self, path: Path, by: str) -> None:
        self.by: Final = by
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._encode = msgspec.json.Encoder().encode

    def now(self) -> float:
        """The machine's seconds since boot."""
        return machine_seconds()

    def write(self, event: AnyEvent) -> None:
        """Append one line in one write. The rest of half a line could come behind a line of somebody else."""
        line = self._encode(event) + b"\n"
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"the record took {written} of the {len(line)} bytes of a line: is its disk full?")

    def close(self) -> None:
        """Close the file; harmless when done already."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class MemoryRecord:
    """A record in memory, for a simulation.

    Args:
        by: who writes.
        now: the time of the simulation.
        events: where to; writers of one simulation share a list.
    """

    def __init__(self, by: str, now: Callable[[], float], events: list[AnyEvent]) -> None:
        self.by: Final = by
        self.now: Final = now
        self._events = events

    def write(self, event: AnyEvent) -> None:
        """Append it."""
        self._events.append(event)


def read(path: Path) -> Iterator[AnyEvent]:
    """The events of a file, in the order in which they were written. A last line that a kill cut short is left out."""
    decode = msgspec.json.Decoder(AnyEvent).decode
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield decode(line)


def write_all(path: Path, events: Iterable[AnyEvent]) -> None:
    """Write events that are in memory into a file, as FileRecord would have."""
    encode = msgspec.json.Encoder().encode
    with path.open("xb") as file:
        file.writelines(encode(event) + b"\n" for event in events)
