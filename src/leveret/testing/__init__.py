"""For tests of your own: the app on memory adapters and a fake clock, and the contract suites of the ports.

`import leveret.testing` needs no pytest; the contract suites do.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leveret.testing.fake_clock import FakeClock
    from leveret.testing.harness import TestLeveret
    from leveret.testing.ledger import Published
    from leveret.testing.store_contract import StoreContract
    from leveret.testing.transport_contract import TransportContract
    from leveret.testing.worlds import InlineThreads, fake_world

_HOMES = {
    "TestLeveret": "leveret.testing.harness",
    "Published": "leveret.testing.ledger",
    "FakeClock": "leveret.testing.fake_clock",
    "InlineThreads": "leveret.testing.worlds",
    "fake_world": "leveret.testing.worlds",
    "StoreContract": "leveret.testing.store_contract",
    "TransportContract": "leveret.testing.transport_contract",
}

__all__ = [
    # An app under test
    "Published",
    "TestLeveret",
    # Worlds
    "FakeClock",
    "InlineThreads",
    "fake_world",
    # What every adapter keeps
    "StoreContract",
    "TransportContract",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'leveret.testing' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
