"""What leveret needs from outside: a world to run in, a broker, a store, and somebody to tell of alarms.

Protocols only; their docstrings are the contract, and the suites in `leveret.testing` hold every adapter to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from leveret.core.alarm import Alarm
from leveret.core.dead_letter import DeadLetter, LetterGroup, LetterState, Replay
from leveret.core.errors import PublishError
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.retry_entry import Due, Filter, RetryEntry
from leveret.core.topology import Difference, Topology

R = TypeVar("R")


# ── The world: what a simulator owns ──────────────────────────────────────────────────────────────────────────────────


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Do not make the call; harmless when it was made or cancelled already."""


class Clock(Protocol):
    """Time. Nothing in leveret asks the system for it."""

    def now(self) -> float:
        """Wall clock, epoch seconds. May jump either way."""

    def monotonic(self) -> float:
        """Seconds that never go back, and go on while the machine is suspended where the system can tell."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call *callback* on the running loop once *seconds* have passed by the monotonic clock."""

    async def sleep(self, seconds: float) -> None:
        """Return once *seconds* have passed; 0 lets others run."""


class Threads(Protocol):
    """Threads for plain `def` handlers."""

    def run(self, call: Callable[[], R]) -> Awaitable[R]:
        """Run *call* in a thread; a cancelled waiter does not stop it. SystemExit is handed on like any exception."""

    def close(self) -> None:
        """Take no more calls; do not wait for those that run."""


class Random(Protocol):
    """A source of randomness, as `random.Random` has it."""

    def random(self) -> float:
        """A float in [0, 1)."""

    def uniform(self, a: float, b: float) -> float:
        """A float between a and b."""

    def getrandbits(self, k: int, /) -> int:
        """K random bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that a simulator must own: clock, randomness, ids, threads, and the points where it may strike.

    `reached` is called at each numbered hand-over point (`leveret.core.handover`) with the message's id, or is None.
    """

    clock: Clock
    random: Random
    #: A fresh message id or retry id.
    new_id: Callable[[], str]
    #: Makes a pool of so many threads, whose names begin with the given text.
    threads: Callable[[int, str], Threads]
    reached: Callable[[str, str | None], Awaitable[None]] | None = None


# ── The broker ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Delivery(Protocol):
    """A message that the broker handed over, unacked. It is settled once: the first of `ack` and `requeue` counts."""

    @property
    def queue(self) -> str:
        """The queue it came from."""

    @property
    def exchange(self) -> str:
        """The exchange it was published to, empty for the default one."""

    @property
    def routing_key(self) -> str:
        """The key it was published with."""

    @property
    def body(self) -> bytes:
        """Its body."""

    @property
    def properties(self) -> Properties:
        """Its properties, byte for byte as delivered, but for the tag, which is taken off."""

    @property
    def tag(self) -> str | None:
        """The `leveret-tag` it bore, if any."""

    @property
    def redelivered(self) -> bool:
        """The broker's flag: it was handed over before, and not settled."""

    @property
    def stale(self) -> bool:
        """Whether its channel is gone, or its consumer was cancelled by the broker: the broker has the message back."""

    def ack(self) -> bool:
        """Release it for good. False, and nothing happens, where it is stale or settled already."""

    def requeue(self) -> bool:
        """Give it back to its queue. False, and nothing happens, where it is stale or settled already."""


class Subscription(Protocol):
    """A consumer. It comes back by itself after any outage, once, with its prefetch."""

    @property
    def active(self) -> bool:
        """Whether the broker has the consumer now."""

    async def cancel(self) -> None:
        """Take no more. Deliveries already handed over stay with their receiver, and can still be settled."""


class QueueState(NamedTuple):
    """What the broker says of a queue."""

    #: Messages that lie ready in it (those handed over and unsettled are not among them).
    ready: int
    consumers: int


ConnectionState = Literal["disconnected", "connecting", "connected", "blocked", "closed"]


class CallChannel(Protocol):
    """A way out for requests with an address for their replies, which no other channel hears.

    It lives on a connection that the transport has for calls alone, and ends with it, for good: where that comes back,
    ask for another one.
    """

    @property
    def blocked(self) -> bool:
        """Whether the broker has stopped reading from its connection."""

    def send(self, request: Outgoing) -> str:
        """Publish once, and return by what name `on_return` would speak of it. It is not confirmed: the reply tells.

        A confirm would have the broker sync each request to disk before the next, which doubles the time of a call. A
        `reply_to` of `leveret.core.message.DIRECT_REPLY` names this channel's address; a mandatory request gets a
        `leveret-tag`.

        Raises:
            PublishRefused: the channel is gone, or the request does not fit a frame; it was not sent.
        """

    def leave(self) -> None:
        """End it; nothing is told to anybody any more. Idempotent."""


class Transport(Protocol):
    """A connection to one broker, which it keeps up by itself from `open` to `close`.

    A lost connection settles everything: each outstanding send fails with PublishTimeout (unknown), each delivery of it
    becomes stale, and then declarations, prefetch and consumers are built again from scratch.
    """

    @property
    def display(self) -> str:
        """The broker's address as it may be shown: without password."""

    @property
    def state(self) -> ConnectionState:
        """Where it stands."""

    @property
    def server_version(self) -> str:
        """The version of RabbitMQ over there, such as `4.0.5`; empty where it is none, or while not connected."""

    @property
    def frame_max(self) -> int:
        """The negotiated frame size in bytes."""

    @property
    def user(self) -> str | None:
        """The user it is logged in as: the only user-id that the broker accepts on a message."""

    @property
    def buffered(self) -> int:
        """Bytes that were sent, but not yet handed to the operating system."""

    def flush(self) -> None:
        """Hand to the operating system now what was sent, as far as it takes it."""

    async def drained(self) -> None:
        """Return when nothing is buffered, or the connection is gone."""

    async def open(self) -> None:
        """Connect. Returns when connected.

        Raises:
            BrokerUnreachable: nobody answers.
            AccessRefused: wrong password, vhost or TLS; with the broker's words.
        """

    async def close(self) -> None:
        """Disconnect, bounded in time. Idempotent. Unsettled deliveries go back to their queues."""

    def discard(self) -> None:
        """Let go of its sockets without a word: in a process that was forked off, where they are the parent's."""

    async def declare(self, topology: Topology) -> Sequence[str]:
        """Make sure that all of it is there; remembered, and declared again after a reconnect.

        Returns:
            A sentence for each existing queue that differs in a harmless way and is used as it is.

        Raises:
            QueueMismatch: an existing queue differs and is unsafe, or an exchange has another type.
            AccessRefused: no permission.
        """

    async def inspect(self, topology: Topology) -> Sequence[Difference]:
        """How exchanges and queues on the broker differ from *topology*; nothing is made or changed.

        Bindings are left out: a broker does not tell of them.

        Raises:
            BrokerUnreachable: the connection went, and none is being made.
        """

    @property
    def sendable(self) -> bool:
        """Whether a send would go out now: connected, not blocked, room in the confirm window."""

    async def ready(self) -> None:
        """Return when a send would go out now."""

    def send(self, message: Outgoing) -> asyncio.Future[None]:
        """Publish once, and return what settles with the broker's answer. Many may be outstanding.

        It goes out in this turn of the loop, together with what else is sent in it; at once where `flush` follows.

        The future ends as: done (confirmed, and not returned where mandatory), `Unroutable`,
        `PublishRefused` (nack, 403, 404, 406; `.code`), or `PublishTimeout` (the connection went before an answer came:
        unknown). It has no deadline of its own, but it never outlives the connection. A send while not connected fails
        at once with PublishRefused (not sent). Cancelling it forgets the answer and touches no other.

        A mandatory message gets a `leveret-tag`; properties otherwise go out as they are. A refused message never takes
        its neighbours along.
        """

    async def call_channel(
        self,
        *,
        on_reply: Callable[[bytes, Properties], object],
        on_return: Callable[[str], object],
        on_gone: Callable[[PublishError], object],
    ) -> CallChannel:
        """A new channel for calls. The connection of all such channels is made when the first one is asked for.

        Args:
            on_reply: told of each reply, body and properties; it is not acked, and comes once.
            on_return: told the name of each mandatory request that reached no queue; nobody has it.
            on_gone: told when it ends by anything but its `leave`; after that nothing comes. PublishRefused: the broker
                closed it over something that was sent on it. PublishTimeout: the connection went.

        Raises:
            BrokerUnreachable, AccessRefused: there is no such connection now.
        """

    async def renew_publishing(self) -> None:
        """Publish over a new connection from here on, where there is doubt about the one in use.

        What is outstanding on the old one stays there, and may still be answered.

        Raises:
            BrokerUnreachable, AccessRefused: none could be made, and all is as before.
        """

    async def consume(
        self, queue: str, on_delivery: Callable[[Delivery], object], *, prefetch: int, exclusive: bool = False
    ) -> Subscription:
        """Have messages of *queue* handed to *on_delivery* (a plain function), at most *prefetch* unsettled at a time.

        Raises:
            NotFound: there is no such queue.
            AccessRefused: somebody else consumes it exclusively, or it is consumed and *exclusive* was asked for.
        """

    async def get(self, queue: str) -> Delivery | None:
        """Fetch one message, or None where the queue is empty or gone."""

    async def queue_state(self, queue: str) -> QueueState | None:
        """What the broker says of the queue, None where it does not exist."""


# ── The store ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Grant(NamedTuple):
    """Proof of a lease: who holds it, under which term. Checked by the store in the same statement that it guards."""

    lease: str
    holder: str
    term: int


class LeaseState(NamedTuple):
    """What the store says of a lease."""

    holder: str
    term: int
    #: Seconds left, by the store's own clock; 0 or less: free.
    left: float


class RetryLeaseInterface(Protocol):
    """The right to republish, one holder at a time."""

    async def acquire_or_renew(self, holder_id: str, now: float, expires_at: float) -> bool:
        """Claim an expired lease or extend this holder's; True where *holder_id* holds it afterwards.

        Where the store has a clock of its own, it judges: only `expires_at - now` counts then.
        """


class RetryLeaseTerm(Protocol):
    """What leveret's own leases offer beyond the interface: terms, and a clean release."""

    async def grant(self, holder_id: str) -> Grant | None:
        """Proof that *holder_id* holds the lease, with its term, or None. Each take-over raises the term."""

    async def release(self, holder_id: str) -> None:
        """Give it up at once; harmless where *holder_id* does not hold it. The term stays."""

    async def state(self) -> LeaseState | None:
        """Who holds it, or None where nobody ever did."""


class Lease(RetryLeaseInterface, RetryLeaseTerm, Protocol):
    """A lease of leveret's own stores."""


class Placed(NamedTuple):
    """What became of an entry that was put."""

    #: False: the store has this failure, or a later one, already; nothing was changed.
    written: bool
    #: Seconds until it is due, by the store's clock.
    due_in: float


class Acknowledged(NamedTuple):
    """What a holder reports of an act."""

    #: Who did it: host/pid of the holder.
    by: str
    #: How many entries or letters it concerned, were changed, and were not, with a sentence for each kind of "not".
    asked: int
    done: int
    notes: tuple[str, ...]
    #: Whether it is finished; False: more reports follow.
    finished: bool
    #: Replays: letters that died again meanwhile, and such as may have been published twice.
    dead_again: int = 0
    maybe_twice: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something that a person asked for, to be obeyed by the holder of a lease."""

    id: str
    namespace: str
    #: `retries.now`, `.cancel`, `.reschedule`, `.hold`, `.release`, `.move`, or `dead.replay`.
    verb: str
    #: What JSON carries.
    arguments: Mapping[str, Any]
    asked_at: float
    report: Acknowledged | None = None


class RetryStore(Protocol):
    """Where messages wait. Everything comes in batches; a call is one transaction, durable when it returns.

    With a *grant*, the lease is checked in the same transaction: `LeaseLost`, and nothing changed, where its term is
    over.
    """

    async def put(self, entries: Sequence[RetryEntry]) -> list[Placed]:
        """Write entries; a key that waits already is replaced by a higher failure number only.

        Raises:
            StoreUnavailable: the store cannot be used; nothing was written.
            StoreRefused: it works, but not with this data; nothing was written.
        """

    async def upcoming(
        self,
        namespace: str,
        *,
        within: float,
        limit: int,
        since: float | None = None,
        after: tuple[float, str] | None = None,
    ) -> list[tuple[Due, tuple[float, str]]]:
        """Rows that are due within so many seconds (0: now), the longest due first, each with a cursor for *after*.

        *since*: leave out what became due more than so many seconds ago. Held rows are not among them; blocked and
        postponed ones only once their time to try again has come. Its cost depends on what it returns alone.
        """

    async def next_due(self, namespace: str) -> float | None:
        """Seconds until the next row may be tried, negative where one is overdue, None where nothing waits."""

    async def take(
        self,
        namespace: str,
        rows: Sequence[tuple[str, int]],
        *,
        grant: Grant | None = None,
        held: bool = False,
    ) -> list[RetryEntry]:
        """The whole entries of these (key, failure) rows that still carry that failure.

        *held*: held ones too, for whoever does not publish them. Rows may share a retry id, but no key.

        A row that cannot be read whole never stops the others: it is left out, and held from then on, with the reason;
        with *held* it comes as it is, with None for its body and `state_reason` saying what is missing.
        """

    async def remove(
        self, namespace: str, rows: Sequence[tuple[str, int]], *, grant: Grant | None = None
    ) -> int:
        """Delete these (key, failure) rows, those that still carry that failure. Returns how many."""

    async def postpone(
        self,
        namespace: str,
        rows: Sequence[tuple[str, int]],
        *,
        seconds: float,
        blocked: str | None = None,
        grant: Grant | None = None,
    ) -> None:
        """Try these rows again after so many seconds; `due_at` stays. *blocked*: the reason that listings show."""

    async def unblock(self, namespace: str, queue: str, *, grant: Grant | None = None) -> int:
        """Let every blocked row of that queue be tried at once. Returns how many.

        Many are released in portions, each in a transaction of its own: an error may leave some released, some not.
        """

    async def reschedule(
        self, rows: Sequence[tuple[str, str]], *, due_at: float | None = None, wait: float | None = None
    ) -> int:
        """Set when these (namespace, key) rows are due: at a time, or so many seconds from now. Also unblocks them."""

    async def hold(self, rows: Sequence[tuple[str, str]], *, held: bool, reason: str = "") -> int:
        """Hold these (namespace, key) rows, or release them. Held rows are never due."""

    async def move(self, rows: Sequence[tuple[str, str]], *, queue: str) -> int:
        """Let these (namespace, key) rows go to another queue; keys and retry ids stay."""

    async def bury(
        self, rows: Sequence[tuple[str, int]], letters: Sequence[DeadLetter], *, grant: Grant | None = None
    ) -> list[bool]:
        """Turn each (key, failure) row, of its letter's namespace, into that dead letter, in one transaction.

        Returns, for each, whether the row was still there with that failure; where not, its letter was not kept either.
        """

    async def entries(
        self, wanted: Filter, *, limit: int, after: str | None = None
    ) -> tuple[list[RetryEntry], str | None]:
        """A page of what waits, the next due first, without bodies; and a cursor for the next page, or None."""

    async def count_entries(self, wanted: Filter, *, overdue: bool = False) -> int:
        """How many wait; *overdue*: only those whose time has come."""

    async def entry(self, namespace: str | None, id: str) -> RetryEntry | None:
        """One entry, with its body, by retry id or message id, or any ending of six characters or more that is unique.

        Raises:
            NotFound: several have that ending; the message lists them.
        """


class DeadLetterStore(Protocol):
    """Where dead letters lie. Nothing here deletes."""

    async def keep(self, letters: Sequence[DeadLetter]) -> int:
        """Store letters; an id that is there already is left as it is. Returns how many were new."""

    async def letters(
        self,
        wanted: Filter,
        *,
        limit: int,
        after: str | None = None,
        states: Sequence[LetterState] = ("dead",),
    ) -> tuple[list[DeadLetter], str | None]:
        """A page of letters, the newest first, without bodies; and a cursor for the next page, or None."""

    async def count_letters(self, wanted: Filter, *, states: Sequence[LetterState] = ("dead",)) -> int:
        """How many there are."""

    async def groups(self, wanted: Filter) -> list[LetterGroup]:
        """Dead letters by fingerprint, the largest group first."""

    async def letter(self, namespace: str | None, id: str) -> DeadLetter | None:
        """One letter in any state, with its body, by letter or message id, or any ending of six or more characters."""

    async def claim(
        self, wanted: Filter, *, replay_id: str, limit: int, grant: Grant | None = None
    ) -> list[DeadLetter]:
        """Take up to *limit* dead letters for a replay, the oldest first, whole. No two claims get the same one.

        Letters that this same replay claimed before and did not report are handed out first (their `state` is still
        `claimed`, that of the others `dead`): where a process was killed, they may have been published already. One
        that cannot be read whole comes with None for its body: it is to be reported as failed, and stops no other.
        """

    async def replayed(
        self, letters: Sequence[tuple[str, str]], replay: Replay, *, state: LetterState
    ) -> int:
        """Note the outcome on these (namespace, id) letters, and set their state: `replayed`, or `dead` again."""

    async def set_state(self, wanted: Filter, *, was: LetterState, to: LetterState) -> int:
        """Discard (dead → discarded) or restore (discarded → dead, also replayed → dead). Returns how many."""

    async def edit(self, namespace: str, id: str, body: bytes) -> DeadLetter:
        """Keep a dead letter under a new body; the old body stays as a discarded letter that names it."""


class ActStore(Protocol):
    """Where people's acts are written, and obeyed."""

    async def ask(self, act: Act) -> None:
        """Write an act."""

    async def asked(self, namespace: str, verbs: Sequence[str]) -> list[Act]:
        """Acts that nobody has finished, oldest first. Cheap enough to be asked several times a second."""

    async def report(self, act_id: str, report: Acknowledged) -> None:
        """Say what became of an act. Reports of finished acts are kept for a day."""

    async def act(self, act_id: str) -> Act | None:
        """An act with its newest report."""


class StartStore(Protocol):
    """Counts starts of flagged deliveries of ordered queues, durably and before the start."""

    async def count_start(self, namespace: str, queue: str, message: str) -> int:
        """One more start of that message (an opaque fingerprint of it); returns how many there were."""

    async def forget_starts(self, namespace: str, queue: str, messages: Sequence[str]) -> None:
        """These were settled."""


class Store(RetryStore, DeadLetterStore, ActStore, StartStore, Protocol):
    """A store: all of it in one place, so that a retry becomes a dead letter in one transaction."""

    @property
    def display(self) -> str:
        """Where it is, as it may be shown: without password."""

    @property
    def shared(self) -> bool:
        """Whether several hosts may use it at once (False: SQLite and memory, where consumers are exclusive)."""

    @property
    def lasting(self) -> bool:
        """Whether what it keeps outlives this process."""

    async def open(self, *, create: bool = True) -> None:
        """Open it, migrate it forward, and create it where asked to.

        Raises:
            NotFound: not there, and *create* is False: reading commands never create a store.
            StoreUnavailable, StoreRefused: it cannot be opened; the message says what to do.
        """

    async def close(self) -> None:
        """Close it. Idempotent."""

    def lease(self, name: str) -> Lease:
        """The lease of that name."""

    async def leases(self, namespace: str | None) -> Mapping[str, LeaseState]:
        """Every lease of the namespace (None: all), by name: `<namespace>/retry`, `<namespace>/keeper`."""

    async def namespaces(self) -> list[str]:
        """Every namespace that it holds something of."""

    async def document_collections(self) -> list[str]:
        """Every collection of documents (`DocumentStore`) of retry workers that lies in the same place, sorted."""

    async def check(self) -> Mapping[str, Any]:
        """Schema version, integrity, size: for `store check`."""


# ── Alarms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Alarms(Protocol):
    """Somebody to tell. Never blocks, never raises."""

    def emit(self, alarm: Alarm) -> None:
        """A condition holds. Repeats within its window are counted, not told again."""

    def resolved(self, code: str, about: str = "") -> None:
        """A condition has ended; told once, and only where it was told that it held."""


# ── One message, one document at a time: what other programs bring along ──────────────────────────────────────────────


class DocumentStoreInterface(Protocol):
    """Documents by id, one at a time. A document is what JSON carries, an object; one of its fields is its id.

    The way in for stores of other programs. Leveret's own verbs speak to `Store`, in bytes and batches.
    """

    async def insert(self, doc: Mapping[str, Any], overwrite_existing: bool = False) -> str:
        """Store a document and return its id. One of that id is replaced where asked for, else it is an error."""

    async def upsert_many(self, docs: Sequence[Mapping[str, Any]]) -> Sequence[str | None]:
        """Store documents, each in place of the one with its id. Returns their ids."""

    async def update(self, doc_id: str, updates: Mapping[str, Any]) -> None:
        """Set fields of a document; an error where there is none of that id."""

    async def exists(self, doc_id: str) -> bool:
        """Whether there is a document of that id."""

    async def get_document(self, doc_id: str) -> dict[str, Any]:
        """The document of that id, a copy; an error where there is none."""

    def query(
        self, params: Mapping[str, Any], *, sort_by: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Documents whose fields equal *params* (none: all of them), sorted by a field where one is named."""

    async def delete(self, doc_id: str, *, expected: Mapping[str, Any] | None = None) -> bool:
        """Delete a document whose fields equal *expected* (a missing field equals None). False where none did."""

    def get_document_type(self) -> str:
        """What it holds, for people: the name of a collection."""

    def get_doc_id_field(self) -> str:
        """The field that holds the id."""


@runtime_checkable
class DocumentStore(DocumentStoreInterface, Protocol):
    """A document store of leveret's own: it is opened and closed, and has leases."""

    async def open(self) -> None:
        """Open it, and create what is missing. Idempotent."""

    async def close(self) -> None:
        """Close it. Idempotent."""

    def lease(self, name: str) -> Lease:
        """The lease of that name among all who use these documents."""


class PublisherInterface(Protocol):
    """Publishes messages, one at a time, and knows where to."""

    async def setup(self) -> None:
        """Get ready: exchanges, connections."""

    async def __call__(self, message: dict[str, Any]) -> None:
        """Publish a message; returns once the broker has it, and raises where it does not, or that is unknown."""

    async def teardown(self) -> None:
        """Let go of what `setup` took."""


@runtime_checkable
class QueuePublisherInterface(Protocol):
    """What leveret's own publishers offer beyond the interface: straight to one worker's queue."""

    async def to_worker(self, worker: str, message: dict[str, Any]) -> bool:
        """Publish straight to that worker's queue. False, and nothing was accepted, where it has none."""


class MessageConsumerInterface(Protocol):
    """Takes messages, one at a time."""

    async def __call__(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Take a message; what it returns goes downstream, None is nothing. Returned: the message is done."""


class ConsumerManagerInterface(Protocol):
    """Feeds a consumer from a queue."""

    async def setup(self) -> None:
        """Make sure that the queue is there."""

    async def start_consuming(self) -> None:
        """Begin to hand messages over."""

    async def stop_consuming(self) -> None:
        """Hand over no more; what is in hand is finished or goes back to its queue."""


class ConsumerManagerFactory(Protocol):
    """Makes what feeds a consumer."""

    def __call__(self, consumer: MessageConsumerInterface, /) -> ConsumerManagerInterface:
        """The manager of that consumer, not set up yet."""
