"""The simulator: the real core on virtual time, with faults, the same for the same seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leveret.simulate.apps import simulate_app

__all__ = ["simulate_app"]


def __getattr__(name: str) -> Any:
    # pytest loads this package in every run of somebody's tests: what is heavy waits until it is used.
    if name == "simulate_app":
        from leveret.simulate.apps import simulate_app

        return simulate_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
