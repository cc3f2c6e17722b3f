"""A blow: one fault in the record, from when it strikes until it is over."""

from __future__ import annotations

from typing import Final

from leveret.proof.record import Healed, Struck
from leveret.simulate.process import Machine, Process

#: Who writes down what the simulator itself does and finds.
BY: Final = "simulator"


class Blow:
    """One fault that has begun: written down before it strikes, and again when it is over.

    Args:
        name: of this blow, never used again.
        kind: what it is.
        target: a process, in the life that it is in; or `broker` or `store`, which may strike everybody.
        copies: whether it may leave one more copy of what was in hand.
        clock: seconds by which it moves the target's wall clock.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        kind: str,
        target: Process | str,
        *,
        copies: bool = True,
        clock: float = 0.0,
        note: str = "",
    ) -> None:
        self._machine: Final = machine
        self._name: Final = name
        machine.events.append(
            Struck(
                at=machine.loop.time(), by=BY, fault=name, kind=kind,
                target=target if isinstance(target, str) else target.by, process=not isinstance(target, str),
                copies=copies, clock=clock, note=note,
            )
        )  # fmt: skip

    def heal(self) -> None:
        """It is over."""
        self._machine.events.append(Healed(at=self._machine.loop.time(), by=BY, fault=self._name))
