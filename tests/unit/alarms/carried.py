"""An emitter whose line keeps what it is given, on a clock that the test moves."""

from __future__ import annotations

import json
from typing import Any

from leveret.alarms.emitter import AlarmEmitter
from leveret.alarms.line import Parcel
from leveret.ports import World


class KeptLine:
    """Keeps parcels instead of carrying them."""

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []
        self.closed = False

    def put(self, parcel: Parcel) -> None:
        self.parcels.append(parcel)

    async def run(self) -> None: ...

    async def flush(self) -> None: ...

    async def close(self) -> None:
        self.closed = True

    def discard(self) -> None: ...

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(parcel.body) for parcel in self.parcels if parcel.is_alarm]

    def of(self, code: str) -> list[tuple[str, int]]:
        """State and count of what was told under that code."""
        return [(told["state"], told["count"]) for told in self.told if told["code"] == code]


def kept_emitter(world: World, *, inside: bool = True) -> tuple[AlarmEmitter, KeptLine]:
    line = KeptLine()
    return AlarmEmitter("shop", world=world, line=lambda: line, inside=inside), line
