"""Plan: from a seed to the faults of a run, each with its time, its target and how long it lasts."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from leveret.core import handover
from leveret.core.errors import ConfigError

#: What a fault hits: while it is hit, nothing else hits it. A process is a place of its own.
Place = Literal["broker", "store", "process", "all"]

#: Where processes kill themselves at a hand-over point, by what they are.
STRIKES: Final[Mapping[str, tuple[str, ...]]] = {
    "workers": (
        handover.DELIVERED,
        handover.HANDLER_DONE,
        handover.RESULTS_CONFIRMED,
        handover.ENVELOPE_SENT,
        handover.ENVELOPE_CONFIRMED,
        handover.DEAD_LETTER_CONFIRMED,
        handover.SUSPECT_MOVED,
    ),
    "producer": (handover.PUBLISH_SENT,),
    "retry": (
        handover.RETRY_RECEIVED,
        handover.STORED,
        handover.TAKEN_WHEN_DUE,
        handover.REPUBLISH_SENT,
        handover.REPUBLISH_CONFIRMED,
    ),
    "keeper": (handover.KEEPER_STORED, handover.REPLAY_CLAIMED, handover.REPLAY_CONFIRMED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault.

    Attributes:
        name: of it, as `--faults` takes it.
        place: what it hits.
        seconds: how long it lasts, at least and at most.
        needs: what a setting must have for it, one of these words: `node` (a broker of our own), `cluster` (three of
            them), `classic` (queues of that type), `sqlite`,
            `server` (a store on a server), `postgres` (one of our own), `namespaces` (networks of our own); none: any
            setting has it.
        hits: of the processes it may hit, what their names begin with; none: all.
        copies: whether it may leave one more copy of what was in hand. A store that is away for longer than a lease
            may: what was published and could not be removed is published again by the next holder.
        ends: what it ends: `target`, the process it hits; `any`, also others.
        weight: how often it is dealt.
    """

    name: str
    place: Place
    seconds: tuple[float, float] = (0.0, 0.0)
    needs: Collection[str] = ()
    hits: tuple[str, ...] = ()
    copies: bool = True
    ends: Literal["", "target", "any"] = ""
    weight: int = 1


#: All kinds, by what they hit.
KINDS: Final[tuple[Kind, ...]] = (
    Kind(name="cut", place="broker", weight=2),
    Kind(name="cut some", place="broker"),
    Kind(name="cut in mid-frame", place="broker", seconds=(1, 2), weight=2),
    Kind(name="out of reach", place="broker", seconds=(1, 6)),
    Kind(name="black hole", place="broker", seconds=(2, 8)),
    Kind(name="black hole to the broker", place="broker", seconds=(2, 8)),
    Kind(name="black hole to clients", place="broker", seconds=(2, 8)),
    Kind(name="late answers", place="broker", seconds=(11, 13)),
    Kind(name="half-open", place="broker", seconds=(3, 8)),
    Kind(name="latency", place="broker", seconds=(3, 8), copies=False),
    Kind(name="slow network", place="broker", seconds=(3, 8), copies=False),
    Kind(name="broker restart", place="broker", needs={"node"}),
    Kind(name="broker killed", place="broker", needs={"node"}),
    Kind(name="memory alarm", place="broker", seconds=(5, 12), needs={"node"}, copies=False),
    Kind(name="memory alarm for a minute", place="broker", seconds=(60, 60), needs={"node"}, copies=False),
    Kind(name="channels closed", place="broker", needs={"node"}),
    Kind(name="queues crash", place="broker", needs={"classic"}),
    Kind(name="node killed", place="broker", seconds=(3, 15), needs={"cluster"}, weight=2),
    Kind(name="one node apart", place="broker", seconds=(10, 10), needs={"cluster"}),
    Kind(name="one node apart for long", place="broker", seconds=(30, 30), needs={"cluster"}),
    Kind(name="leader apart", place="broker", seconds=(10, 10), needs={"cluster"}),
    Kind(name="leader apart for long", place="broker", seconds=(30, 30), needs={"cluster"}),
    Kind(name="all apart", place="broker", seconds=(10, 10), needs={"cluster"}),
    Kind(name="all apart for long", place="broker", seconds=(30, 30), needs={"cluster"}),
    Kind(name="one way apart", place="broker", seconds=(10, 10), needs={"cluster", "namespaces"}),
    Kind(name="one way apart for long", place="broker", seconds=(30, 30), needs={"cluster", "namespaces"}),
    Kind(name="clients cut from a node", place="broker", seconds=(5, 15), needs={"cluster"}),
    Kind(name="killed", place="process", ends="target", weight=4),
    Kind(
        name="killed at a hand-over", place="process", seconds=(3, 6), hits=tuple(STRIKES), ends="target", weight=6
    ),
    Kind(name="paused", place="process", seconds=(3, 12), weight=2),
    Kind(name="paused and resumed as holder", place="process", seconds=(4, 8), hits=("retry",)),
    Kind(name="stopped", place="process", copies=False, ends="target"),
    Kind(name="deadly message", place="process", hits=("producer",), ends="any"),
    Kind(name="clock jump", place="process", seconds=(5, 15), hits=("workers", "retry", "keeper"), copies=False),
    Kind(name="rolling restart", place="all", copies=False, ends="any"),
    Kind(name="store locked", place="store", seconds=(2, 8), needs={"sqlite"}),
    Kind(name="store restart", place="store", seconds=(0, 3), needs={"postgres"}, weight=2),
    Kind(name="store killed", place="store", seconds=(0, 3), needs={"postgres"}, weight=2),
    Kind(name="store cut off", place="store", seconds=(2, 8), needs={"server"}),
    Kind(name="slow store", place="store", seconds=(20, 25)),
    Kind(name="late store", place="store", seconds=(3, 8)),
    Kind(name="disk full", place="store", seconds=(3, 8)),
)  # fmt: skip

#: Seconds that a place is left alone after a fault.
_BREATH: Final = 2.0
#: Seconds from which on a fault is a long one.
_LONG: Final = 30.0

BY_NAME: Final[Mapping[str, Kind]] = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One fault of a plan.

    Attributes:
        name: `f1`, `f2`, …
        at: seconds from the start of the load.
        kind: of it.
        target: a process by name; else what `place` says.
        seconds: how long it lasts.
        how: what else there is to decide: a hand-over point, how far a clock jumps.
    """

    name: str
    at: float
    kind: Kind
    target: str
    seconds: float
    how: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ends(self) -> float:
        """When it heals, if all goes well."""
        return self.at + self.seconds

    def __str__(self) -> str:
        how = ", ".join(f"{name} {value}" for name, value in self.how.items())
        lasts = f"  for {self.seconds:.1f} s" if self.seconds else ""
        told = f"{self.at:7.1f} s  {self.kind.name:<28} {self.target:<12}{lasts}{f'  ({how})' if how else ''}"
        return told.rstrip()


def available(has: Collection[str], names: Sequence[str] = ()) -> list[Kind]:
    """The kinds that a setting has; of them, those that are named.

    Raises:
        ConfigError: a name that is none, or one that this setting does not have.
    """
    kinds = [kind for kind in KINDS if set(kind.needs) <= set(has)]
    if not names:
        return kinds
    for name in names:
        if name not in BY_NAME:
            raise ConfigError(
                f"--faults {name}: there is no such fault. There are: {', '.join(sorted(BY_NAME))}"
            )
        if BY_NAME[name] not in kinds:
            needed = " and ".join(sorted(set(BY_NAME[name].needs) - set(has)))
            raise ConfigError(f"--faults {name}: needs {needed}, which this run does not have")
    return [kind for kind in kinds if kind.name in names]


def plan(
    seed: int,
    *,
    seconds: float,
    every: tuple[float, float],
    kinds: Sequence[Kind],
    processes: Sequence[str],
    spared: Collection[str] = (),
) -> list[Planned]:
    """The faults of a run: the same for the same arguments.

    Args:
        seed: of all that is left to chance.
        seconds: that the load lasts.
        every: seconds from one fault to the next, at least and at most; a longer fault goes on beside those that
            follow.
        kinds: to be dealt; each comes once before one comes twice.
        processes: by name, such as `workers-1`.
        spared: those of them that nothing ends.
    """
    if spared:
        kinds = [kind for kind in kinds if kind.ends != "any" and _targets(kind, processes, spared)]
    chance = random.Random(f"plan of {seed}")
    deck = _dealt(chance, kinds)
    #: Until when each place is hit.
    hit: dict[str, float] = {}
    planned: list[Planned] = []
    #: Kinds that were dealt while their place was hit, for the next turn.
    kept: list[Kind] = []
    at = round(chance.uniform(*every) / 2, 3)
    while kinds and at < seconds - 1:
        passed: list[Kind] = []
        while len(passed) <= len(kinds):
            kind = kept.pop(0) if kept else next(deck)
            last = round(chance.uniform(*kind.seconds), 1)
            free = [target for target in _targets(kind, processes, spared) if _is_free(hit, target, at)]
            # What lasts long leaves time to catch up with what was owed meanwhile.
            ends = seconds * 2 / 3 if last >= _LONG else seconds + every[1]
            if not free or at + last > ends:
                passed.append(kind)
                continue
            target = chance.choice(free)
            hit[target] = at + last + _BREATH
            name = f"f{len(planned) + 1}"
            how = _how(chance, kind, target)
            planned.append(Planned(name=name, at=at, kind=kind, target=target, seconds=last, how=how))
            break
        kept[:0] = passed
        at = round(at + chance.uniform(*every), 3)
    return planned


def _dealt(chance: random.Random, kinds: Sequence[Kind]) -> Iterator[Kind]:
    while kinds:
        deck = [kind for kind in kinds for _ in range(kind.weight)]
        chance.shuffle(deck)
        yield from deck


def _targets(kind: Kind, processes: Sequence[str], spared: Collection[str]) -> list[str]:
    if kind.place != "process":
        return [kind.place]
    hit = [name for name in processes if not kind.hits or name.startswith(kind.hits)]
    return [name for name in hit if name not in spared] if kind.ends else hit


def _is_free(hit: Mapping[str, float], target: str, at: float) -> bool:
    if target == "all":
        return all(until <= at for until in hit.values())
    return hit.get(target, 0.0) <= at and hit.get("all", 0.0) <= at


def _how(chance: random.Random, kind: Kind, target: str) -> dict[str, Any]:
    match kind.name:
        case "cut some" | "half-open":
            return {"share": round(chance.uniform(0.3, 1.0), 2)}
        case "cut in mid-frame":
            return {"bytes": chance.randrange(1, 20_000)}
        case "latency":
            return {"latency": round(chance.uniform(0.02, 0.3), 3)}
        case "slow network":
            return {"rate": chance.randrange(20_000, 200_000)}
        case "killed at a hand-over":
            role = target.rpartition("-")[0]
            return {"point": chance.choice(STRIKES[role]), "arrival": chance.randrange(1, 40)}
        case "clock jump":
            return {
                "by": round(chance.choice((-1, 1)) * chance.choice((3.0, 60.0, 3600.0, 86_400.0 * 400)), 1)
            }
        case "late store":
            return {"late": round(chance.uniform(0.1, 0.6), 2)}
        case "node killed" | "clients cut from a node":
            return {"node": chance.randrange(3)}
        case name if name.startswith(("one node apart", "one way apart")):
            return {"node": chance.randrange(3)}
    return {}
