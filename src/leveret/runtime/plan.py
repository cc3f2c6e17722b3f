"""What an app does: what its code declares, with what its operators have set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from leveret.core.policy import RetryPolicy
from leveret.core.topology import Names, RMQExchangeConfig, Topology, base_topology, worker_topology
from leveret.pipeline.parts import log
from leveret.pipeline.worker import WorkerSpec
from leveret.rpc.endpoint import RpcSpec
from leveret.runtime.config import RuntimeConfig

#: What a decorator says that a setting may say too.
_OPTIONS: Final = (
    "prefetch", "concurrency", "timeout", "retry", "unexpected", "max_deliveries", "replay", "queue_type",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """A worker as it runs: its declaration with what operators have set, and its policy."""

    spec: WorkerSpec
    policy: RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an app runs, and under which settings."""

    config: RuntimeConfig
    workers: tuple[WorkerPlan, ...]
    rpcs: tuple[RpcSpec, ...]

    def exchange(self, names: Names) -> RMQExchangeConfig:
        """The data exchange."""
        return self.config.exchange or RMQExchangeConfig(names.events)

    def topology(self, names: Names, *, pinned: bool) -> Topology:
        """What it declares on its broker; *pinned* as in `leveret.core.topology.base_topology`."""
        config, exchange = self.config, self.exchange(names)
        topology = base_topology(names, exchange, config.queue_type, pinned=pinned)
        for plan in self.workers:
            spec = plan.spec
            topology += worker_topology(
                names,
                exchange,
                spec.name,
                spec.types,
                spec.queue_type or config.queue_type,
                spec.queue_arguments,
            )
        for rpc in self.rpcs:
            topology += rpc.topology(names, config.queue_type)
        return topology


def plan(
    workers: Mapping[str, WorkerSpec], rpcs: Iterable[RpcSpec], config: RuntimeConfig, retry: RetryPolicy
) -> Plan:
    """The plan of an app.

    Args:
        workers: that its code declares, by name.
        rpcs: channels that it answers.
        config: the settings, without what decorators say.
        retry: the app's policy, for workers that name none.
    """
    config = _with_decorators(workers, config)
    return Plan(
        config=config,
        workers=tuple(_worker(spec, config, retry) for spec in workers.values()),
        rpcs=tuple(rpcs),
    )


def _with_decorators(workers: Mapping[str, WorkerSpec], config: RuntimeConfig) -> RuntimeConfig:
    told = {
        spec.name: {name: spec.given[name] for name in _OPTIONS if spec.given.get(name) is not None}
        for spec in workers.values()
    }
    config = config.with_code({"workers": {name: given for name, given in told.items() if given}})
    for name in config.workers:
        # A variable spells every worker's name in capitals.
        if name not in workers and not any(known.lower().replace("-", "_") == name for known in workers):
            log.warning("[workers.%s] is set, but this app has no worker of that name", name)
    return config


def _worker(spec: WorkerSpec, config: RuntimeConfig, retry: RetryPolicy) -> WorkerPlan:
    found = config.worker(spec.name)
    found.pop("retry", None)
    if "prefetch" in found and "concurrency" not in found and spec.given.get("concurrency") is None:
        found["concurrency"] = found["prefetch"]
    base = spec.retry if spec.retry is not None else config.retry_policy(retry)
    return WorkerPlan(spec=replace(spec, **found), policy=config.retry_policy(base, worker=spec.name))
