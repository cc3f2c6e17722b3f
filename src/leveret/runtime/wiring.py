"""Wiring: from a URL to the adapter that speaks its protocol. It alone knows the adapters, and imports them late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.errors import MissingExtra, NotSupported
from leveret.core.urls import BrokerUrl, StoreUrl
from leveret.ports import Alarms, Store, Transport, World

if TYPE_CHECKING:
    from leveret.stores.documents import MemoryDocumentStore
    from leveret.stores.sqlite.documents import SqliteDocumentStore


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
        NotSupported: this release does not speak that protocol.
    """
    if url.kind == "sqlite":
        from leveret.stores.sqlite.store import SqliteStore

        return SqliteStore(url.path, clock=world.clock)
    if url.kind == "memory":
        from leveret.stores.memory.store import MemoryStore

        return MemoryStore(clock=world.clock)
    raise NotSupported(
        f"{url}: this release of leveret keeps its messages in sqlite:// or memory://. Nothing was started."
    )


def make_document_store(
    url: StoreUrl, world: World, *, collection_name: str, doc_id_field: str
) -> MemoryDocumentStore | SqliteDocumentStore:
    """Documents one at a time, in the store of a URL.

    Raises:
        NotSupported: this release does not speak that protocol.
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
    raise NotSupported(
        f"{url}: this release of leveret keeps its documents in sqlite:// or memory://. Nothing was started."
    )


def make_alarms(world: World) -> Alarms:
    """Where alarms go."""
    from leveret.alarms.log_alarms import LogAlarms

    return LogAlarms(world.clock)
