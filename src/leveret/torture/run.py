"""Run: a scene put through a plan, brought to rest, surveyed and judged."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from leveret.core.errors import BrokerError, LeveretError, StoreError
from leveret.proof import shop
from leveret.proof.record import Replayed, Sampled, machine_seconds
from leveret.torture import daemon, faults
from leveret.torture.child import ChildGone
from leveret.torture.members import ask_all
from leveret.torture.plan import Planned
from leveret.torture.scene import Scene
from leveret.torture.survey import letters, survey, worker_of
from leveret.torture.tally import Tally

#: Who takes what, for the ledger.
TAKERS: Final = {**shop.TAKERS, **daemon.TAKERS}
#: Seconds between two lines of progress, and two samples.
PROGRESS: Final = 2.0
SAMPLE: Final = 5.0
#: Likewise of the broker, whose command line tool is a machine of its own.
SAMPLE_BROKER: Final = 30.0
#: What a node says of its channels and connections.
_COUNTED: Final = "{length(rabbit_channel:list()), length(rabbit_networking:connections())}."
#: Seconds between two replays of dead letters.
REPLAY: Final = 10.0
#: Letters that are replayed at once.
_REPLAYED: Final = 50
#: Seconds in which nothing must have happened before all is called still.
_STILL: Final = 3.0
#: Seconds until all must be still after the load has stopped, beside as many as it lasted: a backlog takes its time.
REST: Final = 240.0


class Run:
    """One run.

    Args:
        scene: that is open.
        plan: of its faults.
        seconds: that the load lasts.
        say: told of each line of progress.
        soaks: sample what is judged for flatness: what is alive, and channels and connections at a broker of our own.
    """

    def __init__(
        self,
        scene: Scene,
        plan: Sequence[Planned],
        seconds: float,
        say: Callable[[str], object],
        *,
        soaks: bool = False,
    ) -> None:
        self._scene: Final = scene
        self._plan: Final = plan
        self._seconds: Final = seconds
        self._say: Final = say
        self._soaks: Final = soaks
        self._tally: Final = Tally(scene.folder / "record.jsonl")
        self._began = machine_seconds()
        self._now_on: Final[list[Planned]] = []
        #: One place is not struck twice at once, also where healing takes longer than planned.
        self._places: Final[dict[str, asyncio.Lock]] = defaultdict(asyncio.Lock)
        self._struck = 0
        #: The load was ended before its time.
        self._early = False
        #: What follows the load; empty while that lasts.
        self._phase = ""

    async def run(self, asked_to_stop: asyncio.Event) -> int:
        """Put the scene through its plan, bring it to rest, stop it and survey it.

        Args:
            asked_to_stop: set: the load ends early.

        Returns:
            How many faults were struck.
        """
        scene = self._scene
        self._began = machine_seconds()
        watches = [self._watch, self._sample, self._replay]
        if self._soaks and scene.brokers.nodes:
            watches.append(self._sample_broker)
        watching = [asyncio.create_task(each()) for each in watches]
        try:
            await self._strike(asked_to_stop)
            await self._rest()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.wait(watching)
        self._say(f"{self._time()}  stopping")
        await scene.stop()
        await survey(scene)
        self._tally.read()
        self._tally.close()
        wrong, rightly = self._tally.idle(TAKERS, early=self._early)
        scene.troubles.extend(wrong)
        for told in rightly:
            self._say(told)
        return self._struck

    # ── The plan ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _strike(self, asked_to_stop: asyncio.Event) -> None:
        """Strike fault after fault, each beside what is left of those before it, until the load's time is over."""
        async with asyncio.TaskGroup() as blows:
            for planned in self._plan:
                self._early = await self._reached(planned.at, asked_to_stop)
                if self._early:
                    break
                blows.create_task(self._blow(planned))
            else:
                self._early = await self._reached(self._seconds, asked_to_stop)
            self._phase = "healing"

    async def _reached(self, at: float, asked_to_stop: asyncio.Event) -> bool:
        """Return when so many seconds of the load are over, or earlier with True where a stop was asked for."""
        left = at - (machine_seconds() - self._began)
        try:
            await asyncio.wait_for(asked_to_stop.wait(), max(0.0, left))
        except TimeoutError:
            return False
        return True

    async def _blow(self, planned: Planned) -> None:
        async with self._places[planned.target]:
            if self._phase:
                # The load is over, and it was not its turn before.
                return
            await self._blow_now(planned)

    async def _blow_now(self, planned: Planned) -> None:
        self._now_on.append(planned)
        self._struck += 1
        self._say(f"{self._time()}  {planned}")
        try:
            await faults.strike(self._scene, planned)
        except (LeveretError, OSError, RuntimeError, TimeoutError) as error:
            self._scene.troubles.append(
                f"{planned.kind.name} could not be struck: {type(error).__name__}: {error}"
            )
        finally:
            self._now_on.remove(planned)

    # ── Rest ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _rest(self) -> None:
        """Stop what makes work, wait until it is done, replay a part of what is dead, and wait once more."""
        self._phase = "coming to rest"
        members = list(self._scene.members.values())
        patience = REST + self._seconds
        try:
            async with asyncio.timeout(patience):
                for member in members:
                    await member.up(patience)
                await ask_all(members, "rest", patience=patience)
                await self._still()
        except ChildGone as error:
            self._scene.troubles.append(f"not brought to rest: {error}")
        except TimeoutError:
            left = await self._scene.left()
            self._scene.troubles.append(
                f"not at rest {patience:g} s after the load had stopped: {left or 'nothing is left'}"
            )

    async def _still(self) -> None:
        """Return when all queues are empty, nothing waits, and nothing has happened for a while."""
        while True:
            left = await self._scene.left()
            self._tally.read()
            if left == {} and machine_seconds() - self._tally.last > _STILL:
                return
            await asyncio.sleep(0.5)

    # ── Beside it ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS)
            self._tally.read()
            now = ", ".join(each.kind.name for each in self._now_on) or self._phase or "nothing struck"
            self._say(f"{self._time()}  {self._tally}  · {now}")

    def _time(self) -> str:
        minutes, seconds = divmod(int(machine_seconds() - self._began), 60)
        return f"{minutes:02d}:{seconds:02d}"

    async def _sample(self) -> None:
        scene = self._scene
        # Who rests uses less, which would hide what has grown under the load.
        while not self._phase:
            await asyncio.sleep(SAMPLE)
            asked = await ask_all([*scene.members.values()], "sample", collects=self._soaks)
            for by, figures in asked.items():
                scene.record.write(Sampled(at=scene.record.now(), by=by, figures=figures))

    async def _sample_broker(self) -> None:
        scene = self._scene
        while not self._phase:
            await asyncio.sleep(SAMPLE_BROKER)
            try:
                told = await asyncio.to_thread(scene.brokers.nodes[0].evaluate, _COUNTED)
            except (RuntimeError, OSError):
                # It is struck; there is a next time.
                continue
            channels, connections = map(float, told.strip("{}").split(","))
            figures = {"channels": channels, "connections": connections}
            scene.record.write(Sampled(at=scene.record.now(), by="broker", figures=figures))

    async def _replay(self) -> None:
        """Replay some of the dead letters whose handlers will be done with them, now and then."""
        while True:
            await asyncio.sleep(REPLAY)
            try:
                await self._replay_some()
            except (BrokerError, StoreError):
                # The store is struck; there is a next time.
                continue

    async def _replay_some(self) -> None:
        scene = self._scene
        chosen: list[str] = []
        async for letter in letters(scene, states=("dead",)):
            subject = shop.subject_of(letter.body or b"")
            if subject is not None and "the shop says: never" in letter.reason and not letter.replays:
                chosen.append(letter.id)
                scene.record.write(
                    Replayed(
                        at=scene.record.now(), by=scene.record.by, worker=worker_of(scene, letter), subject=subject,
                        letter=letter.id,
                    )
                )  # fmt: skip
                if len(chosen) == _REPLAYED:
                    break
        if chosen:
            await scene.dead_letters.replay(chosen)
