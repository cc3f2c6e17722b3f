"""RetryWorkerRunner: a RetryWorker with all that it stands on, from set-up to tear-down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from leveret.core.alarm import RETRY_REPUBLISH_FAILED, Alarm
from leveret.core.errors import ConfigError
from leveret.core.json_form import RETRY_WORKER_TYPE
from leveret.core.topology import RMQExchangeConfig
from leveret.pipeline.parts import log
from leveret.pipeline.store_condition import StoreCondition
from leveret.ports import (
    Alarms,
    ConsumerManagerFactory,
    ConsumerManagerInterface,
    DocumentStore,
    DocumentStoreInterface,
    Lease,
    MessageConsumerInterface,
    PublisherInterface,
    World,
)
from leveret.retry.exchanges import observer_exchange
from leveret.retry.worker import READ, REMOVED, STORED, RetryWorker
from leveret.runtime import wiring
from leveret.runtime.backends import (
    RuntimeInfra,
    create_consumer_manager,
    create_publisher,
    create_runtime_infra,
)
from leveret.runtime.config import RuntimeConfig
from leveret.runtime.runner import on_signals
from leveret.runtime.world import system_world


@runtime_checkable
class _Wrapping(Protocol):
    """A document store that stands before another one, which has the leases."""

    @property
    def wrapped(self) -> DocumentStoreInterface: ...


class _TellingWorker(RetryWorker):
    """A retry worker that tells people what keeps messages from going on, and that it is over (S2, R1)."""

    def __init__(
        self,
        worker_name: str,
        *,
        exchange: str,
        condition: StoreCondition,
        alarms: Alarms,
        overdue_rate: float | None,
        **given: Any,
    ) -> None:
        self.overdue_rate = overdue_rate
        self._exchange = exchange
        self._condition = condition
        self._alarms = alarms
        #: Places that an alarm was raised for.
        self._failing: set[str] = set()
        super().__init__(worker_name, **given)

    def _asking(self, what: str) -> AbstractContextManager[None]:
        meanwhile = {
            STORED: f"they wait in {self._exchange}.{RETRY_WORKER_TYPE}",
            READ: "nothing is given back",
            REMOVED: "they are published, and not again as long as this process lives",
        }
        return self._condition.asking(
            what, f"retries of {self._exchange} cannot be {what}; {meanwhile[what]}"
        )

    def _store_is_away(self, why: str | None) -> None:
        if why is None and self._holds:
            self._condition.over_for("lease")
        elif why is None:
            # Whatever could not be read or removed is the affair of the next holder.
            self._condition.over_for("lease", READ, REMOVED)
        else:
            title = (
                f"the lease for the retries of {self._exchange} cannot be asked for; nothing is given back"
            )
            self._condition.failed("lease", title, why)

    def _place_fails(self, place: str, error: Exception) -> None:
        self._failing.add(place)
        self._alarms.emit(
            Alarm(
                code=RETRY_REPUBLISH_FAILED,
                title=f"retries of {self._exchange} for {place} cannot be published; they stay stored ({error})",
                about=place,
                fields={"queue": place, "error": str(error)},
            )
        )

    def _place_works(self, place: str) -> None:
        if place in self._failing:
            self._failing.discard(place)
            self._alarms.resolved(RETRY_REPUBLISH_FAILED, place)


class RetryWorkerRunner:
    """Runs a retry worker for programs that write the JSON form.

    It consumes `<exchange>.retry_worker`, bound to all that goes through *exchange*, stores soft failures, and gives
    each message back when it is due: to the queue `<republish exchange>.<failing worker>` where that exists, else to
    the republish exchange with the key it came with. Leveret's own workers do not need it.

    While a store of ours does not answer, envelopes stay in hand and the alarm `retry_store_unavailable` is told, on
    the alerts exchange of the namespace that *config* names, else of *exchange*.

    Args:
        config: names the broker and, where no *retry_store* is given, the store.
        worker_name: its name, for people.
        exchange: where soft failures can be watched, `observer_exchange(...)` of the pipeline's.
        republish_exchange: the data exchange; None: *exchange*, which is right for fanout and topic. Needed beside a
            direct one: what is published to its observers' exchange reaches no worker.
        retry_store: instead of one in the store of *config*.
        republish_publisher: instead of one to the republish exchange.
        consumer_manager_factory: instead of one on the queue `<exchange>.retry_worker`.
        message_key_func: as for `RetryWorker`.
        infra: a connection that is shared; used, and not closed.

    Raises:
        ConfigError: *exchange* is the one that observers of a direct exchange watch, and no *republish_exchange* is
            named.

    Example:
        runner = RetryWorkerRunner(config, "retry", exchange=observer_exchange(RMQExchangeConfig("jobs")))
        await runner.run()
    """

    def __init__(
        self,
        config: RuntimeConfig,
        worker_name: str,
        *,
        exchange: RMQExchangeConfig,
        republish_exchange: RMQExchangeConfig | None = None,
        retry_store: DocumentStoreInterface | None = None,
        republish_publisher: PublisherInterface | None = None,
        consumer_manager_factory: ConsumerManagerFactory | None = None,
        message_key_func: Callable[[dict[str, Any]], str] | None = None,
        infra: RuntimeInfra | None = None,
    ) -> None:
        if republish_exchange is None and exchange == observer_exchange(
            RMQExchangeConfig(pipeline := exchange.name.removesuffix(".observer"), "direct", exchange.durable)
        ):
            raise ConfigError(
                f"exchange {exchange.name} is where a direct exchange is watched, and no worker has a queue there. "
                f'Name the data exchange: republish_exchange=RMQExchangeConfig("{pipeline}", "direct"). A fanout '
                "whose name merely ends so is named itself"
            )
        self._config = config
        self._worker_name = worker_name
        self._exchange = exchange
        self._republish_exchange = exchange if republish_exchange is None else republish_exchange
        self._store = retry_store
        self._publisher = republish_publisher
        self._factory = consumer_manager_factory
        self._key_func = message_key_func
        self._infra = infra
        self._consumer: ConsumerManagerInterface | None = None
        #: What `setup` has done and `teardown` undoes, the last first.
        self._undo: list[tuple[str, Callable[[], Awaitable[object]]]] = []

    async def setup(self) -> None:
        """Connect, make what was not given, and schedule what is stored; consuming begins with `run`. Idempotent.

        Where something fails, what was set up is torn down again.

        Raises:
            ConfigError, MissingExtra, BrokerError, StoreError: what cannot be used, and what to do.
        """
        await self._ready()

    async def run(self) -> None:
        """Work until SIGINT, SIGTERM or cancelled, then tear down.

        Raises:
            ConfigError, MissingExtra, BrokerError, StoreError: as `setup` says.
        """
        consumer = await self._ready()
        asked = asyncio.Event()
        try:
            async with on_signals(asked.set, wanted=True):
                await consumer.start_consuming()
                await asked.wait()
        finally:
            await self.teardown()

    async def teardown(self) -> None:
        """Stop consuming, cancel what is scheduled, let go of what `setup` took; what is stored stays. Idempotent."""
        self._consumer = None
        while self._undo:
            what, undo = self._undo.pop()
            try:
                await undo()
            except Exception as error:  # noqa: BLE001 - parts of any program; the others are torn down all the same
                log.warning("%s could not be torn down: %s: %s", what, type(error).__name__, error)

    async def _ready(self) -> ConsumerManagerInterface:
        if self._consumer is not None:
            return self._consumer
        try:
            consumer = await self._set_up()
        except BaseException:
            await self.teardown()
            raise
        self._consumer = consumer
        return consumer

    async def _set_up(self) -> ConsumerManagerInterface:
        needs_broker = self._publisher is None or self._factory is None
        infra = await self._connected() if needs_broker else self._infra
        world = system_world() if infra is None else infra.world
        store = self._store if self._store is not None else self._own_store(world)
        publisher, factory = self._publisher, self._factory
        if infra is not None:
            if publisher is None:
                publisher = create_publisher(infra, exchange=self._republish_exchange)
            if factory is None:
                factory = self._own_factory(infra)
        if publisher is None or factory is None:
            raise AssertionError("what was not given is made on a connection")
        await publisher.setup()
        self._undo.append(("the publisher", publisher.teardown))
        alarms = self._own_alarms(world, infra)
        store_name = str(self._config.store) if self._store is None else type(self._store).__name__
        worker = _TellingWorker(
            self._worker_name,
            exchange=self._exchange.name,
            condition=StoreCondition(self._exchange.name, store=store_name, alarms=lambda: alarms),
            alarms=alarms,
            overdue_rate=self._config.retry_worker.overdue_rate,
            retry_store=store,
            republish_publisher=publisher,
            message_key_func=self._key_func,
            scoping_enabled=self._config.retry_worker.scoping,
            lease=await self._lease(store, world),
            lease_ttl_seconds=self._config.lease.ttl,
            clock=world.clock.now,
            sleep=world.clock.sleep,
        )
        self._undo.append(("the retry worker", worker.shutdown))
        consumer = factory(worker)
        await consumer.setup()
        self._undo.append(("the consumer", consumer.stop_consuming))
        await worker.start()
        queue = f"{self._exchange.name}.{RETRY_WORKER_TYPE}"
        log.warning(
            "%s keeps the retries of exchange %s. Other queues are bound there, so a publisher is not told where %s "
            "is missing: start this runner once before anything can fail.",
            self._worker_name, self._exchange.name, queue, extra={"action": "shared"},
        )  # fmt: skip
        return consumer

    def _own_alarms(self, world: World, infra: RuntimeInfra | None) -> Alarms:
        """People are told as the settings say, by a broker that was made from them."""
        name = self._config.namespace or self._exchange.name
        alarms = wiring.make_alarms(
            world,
            name,
            broker=None if infra is None else self._config.broker,
            transport=None if infra is None else infra.transport,
            notify=self._config.notify,
        )
        alarms.start()
        self._undo.append(("the alarms", alarms.aclose))
        return alarms

    # ── What was not given ────────────────────────────────────────────────────────────────────────────────────────────

    async def _connected(self) -> RuntimeInfra:
        if self._infra is not None:
            return self._infra
        infra = await create_runtime_infra(self._config)
        self._undo.append(("the connection", infra.close))
        return infra

    def _own_store(self, world: World) -> DocumentStoreInterface:
        documents = wiring.make_document_store(
            self._config.store,
            world,
            collection_name=f"{self._exchange.name}.{RETRY_WORKER_TYPE}",
            doc_id_field=RetryWorker.REQUIRED_DOC_ID_FIELD,
        )
        if self._config.cache is None or self._config.store.kind != "mongodb":
            self._undo.append(("the store", documents.close))
            return documents
        cached = wiring.behind_cache(documents, self._config.cache)
        self._undo.append(("the store", cached.close))
        return cached

    async def _lease(self, store: DocumentStoreInterface, world: World) -> Lease:
        """The right to publish: where the messages wait, if that has leases, else in the store that is configured."""
        name = f"{self._exchange.name}/{RETRY_WORKER_TYPE}"
        while isinstance(store, _Wrapping):
            store = store.wrapped
        if isinstance(store, DocumentStore):
            await store.open()
            return store.lease(name)
        if self._config.origin("store") == "default":
            log.warning(
                "%s has no leases, so that this one lies in %s, as no store is named. It keeps two runners apart that "
                "start in one folder of one host, no others: elsewhere both would publish everything. Name a store "
                "that all of them reach (LEVERET_STORE).",
                type(store).__name__, self._config.store, extra={"action": "lease"},
            )  # fmt: skip
        configured = wiring.make_store(self._config.store, world)
        self._undo.append(("the store of the lease", configured.close))
        await configured.open()
        return configured.lease(name)

    def _own_factory(self, infra: RuntimeInfra) -> ConsumerManagerFactory:
        def factory(consumer: MessageConsumerInterface, /) -> ConsumerManagerInterface:
            return create_consumer_manager(
                self._config, infra, consumer, exchange=self._exchange, worker_type=RETRY_WORKER_TYPE
            )

        return factory
