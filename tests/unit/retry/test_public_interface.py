"""The interface that other programs build on: each name where it is looked for, with what can be given to it."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from leveret.retry import RetryWorker, RetryWorkerRunner

#: Name, home, and what can be given to it.
NAMES = [
    (
        "RetryWorker", "leveret.retry",
        ("worker_name, *, retry_store, republish_publisher, message_key_func=None, scoping_enabled=False, lease=None, "
         "lease_ttl_seconds=30, clock=time, sleep=sleep"),
    ),
    (
        "RetryWorkerRunner", "leveret.retry",
        ("config, worker_name, *, exchange, republish_exchange=None, retry_store=None, republish_publisher=None, "
         "consumer_manager_factory=None, message_key_func=None, infra=None"),
    ),
    ("MongoRetryLease", "leveret.retry", "client, *, database_name, collection_name"),
    ("SqliteRetryLease", "leveret.retry", "store, *, name='retry_worker', clock=None"),
    ("MemoryRetryLease", "leveret.retry", "*, clock=None, name='retry_worker', data=None"),
    ("create_runtime_infra", "leveret.runtime.backends", "config, *, world=None"),
    ("create_publisher", "leveret.runtime.backends", "infra, *, exchange, route_func=None"),
    ("create_consumer_manager", "leveret.runtime.backends", "config, infra, consumer, *, exchange, worker_type"),
    ("observer_exchange", "leveret.retry.exchanges", "pipeline_exchange"),
    ("ReplayRouter", "leveret.retry.exchanges", ""),
    ("RMQExchangeConfig", "leveret", "name, type='topic', durable=True"),
    ("CachedDocumentStore", "leveret.stores.cached", "store, cache, *, cache_ttl_seconds=3600"),
    ("build_message_key", "leveret.core.json_form", "message"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "home", "parameters"), NAMES, ids=[name for name, *_ in NAMES])
def test_it_is_there_with_the_parameters_that_it_promises(name, home, parameters):
    found = []
    starred = False
    for parameter in inspect.signature(getattr(import_module(home), name)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            found.append("*")
            starred = True
        default = parameter.default
        named = getattr(default, "__name__", repr(default))
        found.append(parameter.name if default is parameter.empty else f"{parameter.name}={named}")
    assert ", ".join(found) == parameters


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("DocumentStoreInterface", ["insert", "upsert_many", "update", "exists", "get_document", "query", "delete",
                                    "get_document_type", "get_doc_id_field"]),
        ("PublisherInterface", ["setup", "__call__", "teardown"]),
        ("MessageConsumerInterface", ["__call__"]),
        ("ConsumerManagerInterface", ["setup", "start_consuming", "stop_consuming"]),
        ("ConsumerManagerFactory", ["__call__"]),
        ("RetryLeaseInterface", ["acquire_or_renew"]),
        ("RetryLeaseTerm", ["grant", "release", "state"]),
    ],
)  # fmt: skip
def test_a_protocol_asks_for_these_methods_and_no_more(name, methods):
    protocol = getattr(import_module("leveret.ports"), name)
    own = {each for each in vars(protocol) if not each.startswith("_") or each == "__call__"}
    assert own == set(methods)


@pytest.mark.parametrize(
    ("kind", "methods"),
    [
        (RetryWorker, ["__call__", "schedule_pending", "start", "shutdown"]),
        (RetryWorkerRunner, ["setup", "run", "teardown"]),
    ],
)
def test_workers_and_runners_are_awaited(kind, methods):
    for method in methods:
        assert inspect.iscoroutinefunction(getattr(kind, method))
    assert RetryWorker.REQUIRED_DOC_ID_FIELD == "retry_key"
