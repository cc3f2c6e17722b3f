from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel

import leveret
from leveret import Context, Leveret, RetryPolicy, RMQExchangeConfig, WorkerDefinition
from leveret.testing import TestLeveret

if TYPE_CHECKING:
    from somewhere import Elsewhere


@pytest.fixture
def app():
    return Leveret("shop", retry=RetryPolicy(first_delay=1))


async def charge(order: dict) -> None: ...


def faults(app: Leveret, handler=charge, *types, **options) -> str:
    """What is wrong with this definition."""
    with pytest.raises(WorkerDefinition) as told:
        app.worker(*types, **options)(handler)
    assert repr(app) == "<Leveret shop: 0 workers>"
    return str(told.value)


# ── The decorator ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_function_itself_comes_back(app):
    assert app.worker("order.placed")(charge) is charge
    assert Leveret("shop").worker(charge) is charge
    assert Leveret("shop").worker()(charge) is charge


async def test_a_bare_decorator_takes_the_type_of_its_own_name(app):
    seen = []

    @app.worker
    async def charge(order: dict) -> None:
        seen.append(order)

    async with TestLeveret(app) as t:
        await t.publish("charge", {"id": 1})
    assert seen == [{"id": 1}]


async def test_a_worker_takes_every_type_that_it_names_by_binding_key(app):
    seen = []

    @app.worker("order.placed", "invoice.*", "audit.#", name="books")
    async def anything(payload: dict, ctx: Context) -> None:
        seen.append((ctx.worker, ctx.type))

    types = ["order.placed", "invoice.sent", "audit", "audit.a.b"]
    async with TestLeveret(app) as t:
        for type in types:
            await t.publish(type, {})
        assert "shop.books" in t.broker.snapshot()
    assert seen == [("books", type) for type in types]


def test_all_faults_are_told_in_one_error_with_the_place(app):
    def charge(id, cents): ...

    assert faults(app, charge, prefech=20, retry=5) == (
        f"@app.worker on charge (test_worker_definition.py:{charge.__code__.co_firstlineno}) has 3 faults. "
        "prefech=20: no such option, did you mean prefetch? · "
        "retry=5: 5 tries or 5 retries? Write RetryPolicy(max_attempts=5): 5 tries, the first included · "
        "charge(id, cents): a handler takes the whole payload in one parameter. Declare a dataclass with id and cents, "
        "or take a dict."
    )


def test_a_definition_error_is_a_type_error_raised_at_import():
    assert issubclass(WorkerDefinition, TypeError)
    with pytest.raises(TypeError):
        exec(
            "from leveret import Leveret\napp = Leveret('shop')\n@app.worker(retry=3)\ndef charge(order): ...",
            {"__name__": "shop"},
        )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prefech": 1}, "prefech=1: no such option, did you mean prefetch?"),
        ({"xyz": 1}, "xyz=1: no such option"),
        ({"name": ""}, "worker name ''"),
        ({"name": "a.b"}, "worker name 'a.b': expected 1 to 64"),
        ({"name": "a" * 65}, "expected 1 to 64"),
        ({"name": 5}, "worker name 5"),
        ({"name": "retry"}, "worker name 'retry': <namespace>.retry is"),
        ({"name": "retry_worker"}, "Choose another name"),
        ({"name": "observer"}, "Choose another name"),
        ({"name": "events_of_mine"}, "Choose another name"),
        ({"name": "usual_suspects"}, "Choose another name"),
        ({"name": "intent"}, "Choose another name"),
        ({"retry": True}, "retry=True: expected a RetryPolicy"),
        ({"retry": "5"}, "retry='5': expected a RetryPolicy"),
        ({"retry": RetryPolicy}, "expected a RetryPolicy"),
        ({"timeout": 0}, "timeout=0: no handler ends in no time"),
        ({"timeout": -1}, "timeout=-1: expected 0 or more seconds"),
        ({"timeout": True}, "timeout=True: expected seconds"),
        ({"timeout": "5m"}, "timeout='5m': expected seconds"),
        ({"timeout": float("nan")}, "timeout=nan: expected a finite number"),
        ({"timeout": float("inf")}, "timeout=inf: expected a finite number"),
        ({"timeout": timedelta(seconds=-1)}, "expected 0 or more seconds"),
        ({"prefetch": 0}, "prefetch=0: expected 1 or more"),
        ({"prefetch": 65536}, "prefetch=65536: expected at most 65535"),
        ({"prefetch": "10"}, "prefetch='10': expected a whole number"),
        ({"prefetch": True}, "prefetch=True: expected a whole number"),
        ({"prefetch": 1.5}, "prefetch=1.5: expected a whole number"),
        ({"prefetch": None}, "prefetch=None: expected a whole number"),
        ({"concurrency": 0}, "concurrency=0: expected 1 or more"),
        ({"concurrency": False}, "concurrency=False: expected a whole number"),
        ({"unexpected": "drop"}, "unexpected='drop': expected 'retry' or 'dead'"),
        ({"unexpected": ["dead"]}, "expected 'retry' or 'dead'"),
        ({"max_deliveries": 0}, "max_deliveries=0: expected 1 or more"),
        ({"max_deliveries": None}, "max_deliveries=None: expected a whole number"),
        ({"replay": "no"}, "replay='no': expected 'queue' or 'exchange'"),
        ({"queue_type": "stream"}, "queue_type='stream': expected 'classic' or 'quorum'"),
        ({"queue_type": ["quorum"]}, "expected 'classic' or 'quorum'"),
        ({"queue_arguments": 5}, "queue_arguments=5: expected a mapping"),
        ({"queue_arguments": ["x-max-priority"]}, "expected a mapping"),
        ({"queue_arguments": "x-max-priority"}, "expected a mapping"),
        ({"queue_arguments": {1: 2}}, "queue_arguments[int]: the name of a header: expected text, got int"),
        (
            {"queue_arguments": {"x-max-priority": object}},
            'queue_arguments["x-max-priority"]: type is no type',
        ),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(app, options, told):
    text = faults(app, **options)
    assert "has 1 fault. " in text
    assert told in text


@pytest.mark.parametrize("type", [5, None, b"order.placed", ["order.placed"], "", "x" * 256, "\ud800"])
def test_a_type_that_cannot_be_one_is_refused(app, type):
    assert "message type" in faults(app, charge, "order.placed", type)


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [(1, 1.0), (0.5, 0.5), (Decimal("2.5"), 2.5), (timedelta(minutes=1), 60.0), (None, None)],
)
async def test_a_timeout_takes_every_form_of_seconds(app, timeout, expected):
    left = []

    @app.worker(timeout=timeout)
    async def charge(ctx: Context) -> None:
        left.append(ctx.remaining())

    async with TestLeveret(app) as t:
        await t.publish("charge", {})
    assert left == [expected]


def test_two_workers_of_one_name_are_refused(app):
    app.worker("order.placed")(charge)
    with pytest.raises(
        WorkerDefinition, match=r"worker of that name already \(test_worker_definition.py:\d+\)"
    ):
        app.worker("order.charged")(charge)
    app.worker("order.charged", name="charge_again")(charge)


def test_types_on_a_fanout_exchange_are_refused():
    app = Leveret("shop", exchange=RMQExchangeConfig("shop.events", type="fanout"))
    assert "leave the types out" in faults(app, charge, "order.placed")


async def test_a_worker_that_comes_late_is_refused(app):
    async with TestLeveret(app):
        assert "the app is open already" in faults(app)


# ── What a handler takes ──────────────────────────────────────────────────────────────────────────────────────────────


class Row(TypedDict):
    id: int


class Model(BaseModel):
    id: int


@dataclass
class Order:
    id: int


def nothing(): ...


def bare(order): ...


def a_dict(order: dict): ...


def typed(order: dict[str, int]): ...


def anything(order: Any): ...


def row(order: Row): ...


def order(order: Order): ...


def model(order: Model): ...


def raw(order: bytes): ...


def only_context(ctx: Context): ...


def named_otherwise(c: Context): ...


def context_last(order: Order, ctx: Context): ...


def context_first(ctx: Context, order: Order): ...


def context_of_the_module(order: Order, ctx: leveret.Context): ...


def context_annotated(order: Order, ctx: Annotated[Context, "mine"]): ...


def positional_only(order: Order, ctx: Context, /): ...


def with_default(order: Order = None, more: int = 5): ...


def keyword_with_default(order: Order, *, more: int = 5): ...


C = "the context"


@pytest.mark.parametrize(
    ("handler", "given"),
    [
        (nothing, []),
        (bare, [{"id": 1}]),
        (a_dict, [{"id": 1}]),
        (typed, [{"id": 1}]),
        (anything, [{"id": 1}]),
        (row, [{"id": 1}]),
        (order, [Order(1)]),
        (model, [Model(id=1)]),
        (raw, [b'{"id":1}']),
        (only_context, [C]),
        (named_otherwise, [C]),
        (context_last, [Order(1), C]),
        (context_first, [C, Order(1)]),
        (context_of_the_module, [Order(1), C]),
        (context_annotated, [Order(1), C]),
        (positional_only, [Order(1), C]),
        (with_default, [Order(1)]),
        (keyword_with_default, [Order(1)]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("form", ["plain", "async"])
async def test_a_handler_is_given_what_its_parameters_say(app, handler, given, form):
    seen = []

    def note(*arguments):
        seen.extend(C if isinstance(argument, Context) else argument for argument in arguments)

    # A decorator of the user's own: what it wraps says what is taken.
    @functools.wraps(handler)
    def plain(*arguments):
        note(*arguments)

    @functools.wraps(handler)
    async def other(*arguments):
        note(*arguments)

    app.worker("order.placed", name="worker")(plain if form == "plain" else other)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {"id": 1})
    assert seen == given


def test_two_payloads_are_refused_with_what_to_write(app):
    def charge(id: int, cents: int, ctx: Context): ...

    text = faults(app, charge)
    assert "charge(id, cents, ctx): a handler takes the whole payload in one parameter" in text
    assert "Declare a dataclass with id and cents, or take a dict." in text


def test_a_context_without_its_annotation_is_told_how_to_write_it(app):
    def charge(order, ctx): ...

    assert "If ctx is to be the context, write ctx: Context." in faults(app, charge)


def all_there_is(*args): ...


def payload_and_more(order, *more): ...


def named(**options): ...


def named_only(*, order): ...


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (all_there_is, "all_there_is(*args): a handler takes a payload, a ctx: Context, or both"),
        (payload_and_more, "payload_and_more(*more)"),
        (named, "named(**options)"),
        (named_only, "named_only(*, order): a handler's parameters are positional"),
        (int, "int is a class: a worker is a function"),
        (5, "5: a worker is a function"),
    ],
    ids=["args", "payload and args", "kwargs", "keyword only", "class", "number"],
)
def test_what_cannot_be_called_with_a_payload_is_refused(app, handler, told):
    assert told in faults(app, handler, name="charge")


@pytest.mark.parametrize(
    "annotation", [int, set, list, list[int], str, Context | None, Order | None, object()]
)
def test_a_payload_that_no_json_object_fits_is_refused(app, annotation):
    def charge(order): ...

    charge.__annotations__ = {"order": annotation}
    assert "a payload cannot be" in faults(app, charge)


def test_an_annotation_that_names_nothing_is_refused(app):
    def charge(order: Elsewhere): ...

    assert "charge: the annotation 'Elsewhere' names nothing that can be found from here" in faults(
        app, charge
    )


def test_an_annotation_that_names_nothing_leaves_the_context_alone(app):
    def charge(order: Elsewhere, ctx: Context): ...

    assert "has 1 fault. charge: the annotation 'Elsewhere'" in faults(app, charge)


async def test_a_class_that_is_local_to_the_function_is_found(app):
    @dataclass
    class Local:
        id: int

    seen = []

    @app.worker
    async def charge(order: Local, ctx: Context) -> None:
        seen.append(order)

    @app.worker("charge", name="books")
    def book(order: Local) -> None:
        seen.append(order)

    async with TestLeveret(app) as t:
        await t.publish("charge", {"id": 1})
    assert seen == [Local(1), Local(1)]


def test_a_class_that_names_a_local_class_is_refused_with_what_to_do(app):
    @dataclass
    class Item:
        id: int

    @dataclass
    class Local:
        items: list[Item]

    def charge(order: Local): ...

    with pytest.raises(WorkerDefinition, match="Define that type at the top level of its module"):
        app.worker(charge)


# ── What a handler may be ─────────────────────────────────────────────────────────────────────────────────────────────


class Service:
    def __init__(self) -> None:
        self.seen: list[Order] = []

    async def take(self, order: Order, ctx: Context) -> None:
        self.seen.append(order)

    async def __call__(self, order: Order) -> None:
        self.seen.append(order)


async def test_a_bound_method_an_object_and_a_partial_are_handlers(app):
    service = Service()
    app.worker("order.placed")(service.take)
    app.worker("order.placed")(service)
    app.worker("order.placed", name="partly")(functools.partial(Service.take, service))

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {"id": 1})
        assert sorted(run.worker for run in t.runs()) == ["Service", "partly", "take"]
    assert service.seen == [Order(1)] * 3


def test_a_partial_bears_the_name_and_place_of_its_function(app):
    text = faults(app, functools.partial(Service.take, None), prefetch=0)
    assert f"@app.worker on take (test_worker_definition.py:{Service.take.__code__.co_firstlineno})" in text


async def test_an_async_wrapper_of_a_plain_function_is_awaited(app):
    seen = []

    def plain(order: Order) -> None:
        seen.append(order)

    @functools.wraps(plain)
    async def charge(order):
        plain(order)

    app.worker("order.placed")(charge)
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {"id": 1})
        assert [run.outcome for run in t.runs("plain")] == ["done"]
    assert seen == [Order(1)]


async def test_a_plain_wrapper_of_an_async_function_is_awaited(app):
    seen = []

    async def charge(order: Order) -> None:
        seen.append(order)

    @functools.wraps(charge)
    def wrapper(*arguments):
        return charge(*arguments)

    app.worker("order.placed")(wrapper)
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {"id": 1})
        assert [run.outcome for run in t.runs("charge")] == ["done"]
    assert seen == [Order(1)]


def test_a_lambda_has_no_name_that_a_queue_could_bear(app):
    assert "worker name '<lambda>'" in faults(app, lambda order: None)
    app.worker(name="charge")(lambda order: None)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"x-message-ttl": 60_000}, "messages that wait for 60000 ms are taken away"),
        ({"x-expires": 60_000}, "it is deleted when nobody used it for 60000 ms"),
        ({"x-max-length": 10}, "its oldest messages are dropped"),
        ({"x-delivery-limit": 3}, "a message that came back 3 times is deleted"),
    ],
)
def test_queue_arguments_that_take_messages_away_are_refused(arguments: dict, why: str) -> None:
    app = Leveret("shop", broker="memory://")
    with pytest.raises(WorkerDefinition, match=why):

        @app.worker(queue_arguments=arguments)
        async def charge(order: dict) -> None: ...


def test_a_length_limit_that_refuses_is_accepted() -> None:
    app = Leveret("shop", broker="memory://")

    @app.worker(queue_arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    async def charge(order: dict) -> None: ...
