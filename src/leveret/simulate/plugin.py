"""The pytest plug-in: the fixture `simulate_app`, and two flags that overrule what tests say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from leveret.app import Leveret
    from leveret.core.message import Message


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flags."""
    group = parser.getgroup("leveret")
    group.addoption(
        "--simulate-runs", type=int, metavar="N", help="So many seeds in each test that simulates an app."
    )
    group.addoption(
        "--simulate-seed", type=int, metavar="S", help="The first of them, such as one that failed."
    )


@pytest.fixture(name="simulate_app")
def simulate_app_fixture(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`leveret.simulate.simulate_app`, with the seeds of the command line where it names any.

    Example:
        ```
        def test_no_order_is_lost_or_charged_twice(simulate_app):
            charged = {}
            simulate_app(lambda: make_app(charged), [("order.placed", {"id": n}) for n in range(200)])
            assert len(charged) == 200
        ```
    """
    runs, seed = request.config.getoption("--simulate-runs"), request.config.getoption("--simulate-seed")

    def simulate(
        make_app: Callable[[], Leveret],
        messages: Iterable[Message | tuple[str, Any]],
        *,
        faults: str | Sequence[str] = "all",
        **chosen: int,
    ) -> None:
        from leveret.simulate import simulate_app

        if runs is not None:
            chosen["runs"] = runs
        if seed is not None:
            chosen["seed"] = seed
        simulate_app(make_app, messages, faults=faults, **chosen)

    return simulate
