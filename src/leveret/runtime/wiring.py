"""Wiring: from a URL to the adapter that speaks its protocol. It alone knows the adapters, and imports them late."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leveret.core.errors import MissingExtra
from leveret.core.topology import Names
from leveret.core.urls import BrokerUrl, CacheUrl, StoreUrl
from leveret.ports import DocumentStore, Store, Transport, World

if TYPE_CHECKING:
    from leveret.alarms.emitter import AlarmEmitter
    from leveret.alarms.line import Line
    from leveret.alarms.notify import Notifier
    from leveret.runtime.schema import Notify
    from leveret.stores.cached import CachedDocumentStore


def make_transport(url: BrokerUrl, world: World) -> Transport:
    """The transport of a broker's URL, not connected yet.

    Raises:
        MissingExtra: pika is not installed.
    """
    if url.scheme == "memory":
        from leveret.transports.memory import MemoryTransport
        from leveret.transports.memory_broker import MemoryBroker

        return MemoryTransport(MemoryBroker.named(url.name) if url.name else MemoryBroker(), world=world)
    try:
        from leveret.transports.rabbitmq.transport import RabbitTransport
    except ModuleNotFoundError as error:
        if error.name != "pika":
            raise
        raise MissingExtra(f'{url}: RabbitMQ is spoken with pika: pip install "leveret[rabbitmq]"') from error
    return RabbitTransport(url, world=world)


def make_store(url: StoreUrl, world: World) -> Store:
    """The store of a URL, not opened yet.

    Raises:
        MissingExtra: its driver is not installed.
        ConfigError: its driver cannot read the URL.
    """
    if url.kind == "sqlite":
        from leveret.stores.sqlite.store import SqliteStore

        return SqliteStore(url.path, clock=world.clock)
    if url.kind == "memory":
        from leveret.stores.memory.store import MemoryStore

        return MemoryStore(clock=world.clock)
    if url.kind == "postgresql":
        from leveret.stores.postgres.store import PostgresStore

        return PostgresStore(url.url)
    from leveret.stores.mongodb.store import MongoStore

    return MongoStore(url.url)


def make_document_store(
    url: StoreUrl, world: World, *, collection_name: str, doc_id_field: str
) -> DocumentStore:
    """Documents one at a time, in the store of a URL, not opened yet.

    Raises:
        MissingExtra: its driver is not installed.
        ConfigError: its driver cannot read the URL.
    """
    if url.kind == "sqlite":
        from leveret.stores.sqlite.documents import SqliteDocumentStore

        return SqliteDocumentStore(
            url.path, collection_name=collection_name, doc_id_field=doc_id_field, clock=world.clock
        )
    if url.kind == "memory":
        from leveret.stores.documents import MemoryDocumentStore

        return MemoryDocumentStore(
            collection_name=collection_name, doc_id_field=doc_id_field, clock=world.clock
        )
    if url.kind == "postgresql":
        from leveret.stores.postgres.documents import PostgresDocumentStore

        return PostgresDocumentStore(url.url, collection_name=collection_name, doc_id_field=doc_id_field)
    from leveret.stores.mongodb.documents import MongoDBDocumentStore

    return MongoDBDocumentStore.at(url.url, collection_name=collection_name, doc_id_field=doc_id_field)


def behind_cache(documents: DocumentStore, cache: CacheUrl) -> CachedDocumentStore:
    """The same documents behind a cache, which is not connected yet.

    Raises:
        MissingExtra: its driver is not installed.
    """
    from leveret.stores.cached import CachedDocumentStore
    from leveret.stores.redis_cache import RedisDictCache

    return CachedDocumentStore(documents, RedisDictCache.at(cache.url))


def make_notifier(notify: Notify) -> Notifier:
    """Who is told of alarms.

    Raises:
        MissingExtra: Apprise is not installed.
        ConfigError: a URL that Apprise cannot read, told without showing it.
    """
    from leveret.alarms.notify import Notifier

    return Notifier(notify.urls, title=notify.title, body=notify.body, least=notify.severity)


def make_alarms(
    world: World,
    namespace: str,
    *,
    broker: BrokerUrl | None = None,
    transport: Transport | None = None,
    inside: bool = False,
    notify: Notify | None = None,
) -> AlarmEmitter:
    """Where alarms go, besides the log: the alerts exchange of *namespace*, or people.

    Args:
        world: clock and threads.
        namespace: of the exchange.
        broker: where it is, on a connection that is made with the first alarm, in a thread of its own; None: nowhere.
        transport: an open one of the running loop, which carries where the broker is memory://: that is reached nowhere
            else, and as no other process can listen there, people are told as well.
        inside: carry in a task of the running loop (`AlarmEmitter.start`), as with memory://, and not in a thread.
        notify: who is told while the broker is not to be reached; None: nobody.
    """
    from leveret.alarms.emitter import AlarmEmitter

    borrowed = transport if broker is not None and broker.scheme == "memory" else None

    def line() -> Line:
        from leveret.alarms.line import Line
        from leveret.alarms.people import StraightToPeople

        people = None
        if notify is not None and notify.urls:
            people = StraightToPeople(partial(make_notifier, notify), world=world)
        way: Callable[[], Transport] | None = None
        if borrowed is not None:
            way = partial(_itself, borrowed)
        elif broker is not None:
            way = partial(make_transport, broker, world)
        return Line(
            Names(namespace), clock=world.clock, transport=way, borrowed=borrowed is not None, people=people
        )

    return AlarmEmitter(namespace, world=world, line=line, inside=inside or borrowed is not None)


def _itself(transport: Transport) -> Transport:
    return transport
