# ruff: noqa: SLF001 - it stands in for the real world of an app, and listens at its handlers
"""Simulating an app of the user's own: its handlers, on its messages, through all faults."""

from __future__ import annotations

import asyncio
import copy
import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from leveret.app import Leveret
from leveret.core import headers as h
from leveret.core.errors import SoftFailure
from leveret.core.message import Message, result_id
from leveret.core.outcome import Decision, Raised, Retry, settle
from leveret.core.policy import RetryPolicy
from leveret.core.topology import Names, QueueType
from leveret.pipeline.context import Context
from leveret.pipeline.worker import WorkerSpec
from leveret.proof.record import Began, Ended, Outcome
from leveret.proof.shop import digest_of
from leveret.runtime.plan import WorkerPlan
from leveret.simulate.batch import told
from leveret.simulate.faults import names_of
from leveret.simulate.process import Process
from leveret.simulate.publishes import note_publishes
from leveret.simulate.run import plan_of, simulate
from leveret.simulate.scene import Ask, Scene, moment
from leveret.simulate.shrink import shrink
from leveret.transports.memory_routing import topic_matches

#: What a message to be published is: a Message, or its type and its payload.
Publish = Message | tuple[str, Any]


def simulate_app(
    make_app: Callable[[], Leveret],
    messages: Iterable[Publish],
    *,
    runs: int = 20,
    seed: int = 0,
    faults: str | Sequence[str] = "all",
) -> None:
    """Put an app through faults, once for each seed: it must lose nothing, and repeat no more than it may.

    Several processes run the app, each made anew at each start, on virtual time: they are killed anywhere, cut off,
    stopped; broker and store go away and come back. Handlers run as they are. One that sleeps does so with
    `asyncio.sleep`, which takes no time here; one that talks to a real server has no place in it. A plain `def` runs
    on the loop. What they publish by `app.publish` or `app.publish_many` is accounted for as well; `app.sync` has
    threads of its own, and no place in it either. What handlers leave behind outside (a list, a dict) outlives the
    processes, as a database would: look at it afterwards, and find out whether they are idempotent.

    Args:
        make_app: makes the app with its workers, not open. Broker and store that it names are not used.
        messages: to be published in each run, `Message` or `(type, payload)`.
        runs: so many seeds, one after the other.
        seed: the first of them.
        faults: the names of those that may strike, `"all"` or `"none"`; a wrong one is told with all that there are.

    Raises:
        AssertionError: a message was lost, or something else that leveret does not promise to bear happened; with the
            seed, and with the shortest run that goes wrong in the same way, told as a story.
        ValueError: there is nothing to publish, or something that no worker takes; not even one run, or no such fault.

    Example:
        >>> charged = {}
        >>> def make_app():
        ...     app = Leveret("shop")
        ...
        ...     @app.worker("order.placed")
        ...     async def charge(order: dict, ctx: Context) -> None:
        ...         charged.setdefault(ctx.message_id, order["cents"])
        ...
        ...     return app
        >>> simulate_app(make_app, [("order.placed", {"cents": n}) for n in range(20)], runs=2)
        >>> len(charged)
        20
    """
    published = [each if isinstance(each, Message) else Message(*each) for each in messages]
    if not published:
        raise ValueError("simulate_app(messages=[]): there is nothing to publish, so nothing could be lost")
    if runs < 1:
        raise ValueError(f"simulate_app(runs={runs}): expected at least 1; nothing is proved by none")
    example = make_app()
    scene = scene_of(make_app, example)
    _check_taken(published, scene, example)
    may_strike = names_of(faults)
    for number in range(seed, seed + runs):
        plan = plan_of(number, _asks(published), faults=may_strike)
        result = simulate(plan, scene)
        if not result.passed:
            story = "\n".join(told(shrink(result, live=lambda plan: simulate(plan, scene))))
            raise AssertionError(f"seed {number}: {result.verdict.line()}\n{story}")


def _check_taken(published: Sequence[Message], scene: Scene, example: Leveret) -> None:
    """Make sure that each message can be handled.

    Raises:
        ValueError: no worker takes it.
    """
    untaken = sorted({message.type for message in published if not scene.takers(message.type)})
    if not untaken:
        return
    workers = (
        f"{name} ({', '.join(spec.types or (name,))})" for name, spec in sorted(example._workers.items())
    )
    raise ValueError(
        f"simulate_app(messages=…): no worker of the app takes {', '.join(map(repr, untaken))}, so that it would reach "
        f"nobody. Workers, and what they take: {' · '.join(workers) or 'none'}"
        + "".join(
            f". {name} is a channel of @app.rpc: it takes what app.call sends, and no messages"
            for name in untaken
            if name in example._rpcs
        )
    )


def _asks(published: Sequence[Message]) -> list[Ask]:
    asks = []
    for position, message in enumerate(published):
        known_as = message.id or f"message-{position}"
        asks.append(
            Ask(
                subject=known_as,
                message=structs.replace(message, id=known_as),
                at=moment(position, len(published)),
            )
        )
    return asks


def scene_of(make_app: Callable[[], Leveret], example: Leveret) -> Scene:
    """An app of somebody else's, whose messages are known by their ids. *example* is one that was made, to look at."""
    namespace = example.namespace or "test"
    plan = example._planned()
    exchange = plan.exchange(Names(namespace))
    keys = {each.spec.name: each.spec.types or (each.spec.name,) for each in plan.workers}

    def takes(key: str, type: str) -> bool:
        return (
            exchange.type == "fanout"
            or key == type
            or (exchange.type == "topic" and topic_matches(key, type))
        )

    def app(process: Process, works: bool, _queue_type: QueueType | None) -> Leveret:
        if not works:
            return Leveret(namespace, broker="memory://", exchange=exchange)
        made = make_app()
        for worker in made._planned().workers:
            name = worker.spec.name
            made._workers[name] = _noted(made._workers[name], worker, process)
        note_publishes(made, process)
        return made

    return Scene(
        namespace=namespace,
        channel=None,
        takers=lambda type: tuple(name for name in keys if any(takes(key, type) for key in keys[name])),
        max_attempts={each.spec.name: _most_attempts(each.policy) for each in plan.workers},
        max_deliveries=min((each.spec.max_deliveries for each in plan.workers), default=1),
        unread=True,
        subject=lambda _, properties: properties.message_id,
        app=app,
    )


def _most_attempts(policy: RetryPolicy) -> int:
    """Runs that a message may have at most, whatever its failures are and ask for."""
    others = (rule for rule in policy.retry_on.values() if isinstance(rule, RetryPolicy))
    return max(max(each.max_attempts, each.cap) for each in (policy, *others))


def _noted(spec: WorkerSpec, planned: WorkerPlan, process: Process) -> WorkerSpec:
    """The worker, whose handler writes down that it began, and how it ended. *planned* is how it runs."""
    handler, record, runs = spec.handler, process.record, itertools.count(1)

    def began(ctx: Context) -> str:
        run = f"{record.by}#{spec.name}{next(runs)}"
        headers = ctx.properties.headers
        record.write(
            Began(
                at=record.now(), by=record.by, run=run, worker=spec.name, subject=ctx.message_id or "",
                message_id=ctx.message_id, attempt=ctx.attempt, step=headers.get(h.FAILURE, 0),
                retry_id=ctx.retry_id, digest=digest_of(ctx.body, ctx.properties), replayed=headers.get(h.REPLAYS, 0),
            )
        )  # fmt: skip
        return run

    def ended(ctx: Context, run: str, outcome: Outcome, value: object = None, **more: Any) -> None:
        results = [value] if isinstance(value, Message) else value if isinstance(value, list | tuple) else []
        ids = (
            (each.type, each.id or result_id(ctx.message_id, spec.name, position) or "")
            for position, each in enumerate(results)
            if isinstance(each, Message)
        )
        record.write(
            Ended(at=record.now(), by=record.by, run=run, outcome=outcome, results=tuple(ids), **more)
        )

    def failed(ctx: Context, run: str, error: BaseException | None) -> None:
        # None: its time was up.
        raised = Raised(TimeoutError() if error is None else error, timed_out=error is None)

        def follows(chance: random.Random | None) -> Decision:
            return settle(
                raised, ctx._message, worker=spec.name, policy=planned.policy, now=process.clock.now(),
                unexpected=planned.spec.unexpected, random=chance,
            )  # fmt: skip

        # Each failure has rules of its own for what follows, so it is told here which one is the last. Where that hangs
        # on how a wait is spread, it is spread as it will be.
        decision = follows(copy.copy(process.random))
        if not isinstance(decision, Retry):
            ended(ctx, run, "hard")
            return
        again_in = None
        if isinstance(raised.error, SoftFailure) and raised.error.retry_after is not None:
            # Spreading makes longer what was asked for, and shorter what a policy makes of it.
            least = follows(None)
            if isinstance(least, Retry) and least.plan.shortened_from is None:
                again_in = least.plan.delay
        ended(ctx, run, "soft", again_in=again_in, counted=decision.plan.counted)

    async def noted(ctx: Context, *arguments: Any) -> Any:
        run = began(ctx)
        timeout = planned.spec.timeout
        ends = process.clock.monotonic() + (math.inf if timeout is None else timeout)

        def late() -> bool:
            return process.clock.monotonic() >= ends

        try:
            value = handler(*arguments)
            if inspect.isasyncgen(value):
                value = [item async for item in value]
            elif inspect.isawaitable(value):
                value = await value
        except asyncio.CancelledError:
            # Before its time is up it has not failed: its process stops, and could wait for it no longer.
            if late():
                failed(ctx, run, None)
            raise
        except BaseException as error:
            failed(ctx, run, error)
            raise
        if late():
            failed(ctx, run, None)
        else:
            ended(ctx, run, "done", value)
        return value

    return replace(spec, handler=noted, takes=("context", *spec.takes), is_async=True)
