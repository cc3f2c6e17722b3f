"""Whatever is done to them, memory store and PostgreSQL store answer alike: tests on the one speak for the other."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contracts.test_postgres_store import ServerClock
from tests.postgres_cluster import Cluster
from tests.unit.stores.test_stores_agree import all_of, answer, steps

from leveret.stores.memory import MemoryStore
from leveret.stores.postgres import PostgresStore

#: What is done to several rows at once; PostgreSQL changes, and counts, a row that is named twice once.
BY_FAILURE = {"take", "remove", "postpone", "bury"}
BY_NAMESPACE = {"reschedule", "hold", "move", "replayed"}


def named_once(step) -> bool:
    name, arguments, _ = step
    if name not in BY_FAILURE | BY_NAMESPACE:
        return True
    rows = arguments[1] if isinstance(arguments[0], str) else arguments[0]
    named = {row[0] if name in BY_FAILURE else row for row in rows}
    return len(named) == len(rows)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(plan=st.lists(steps.filter(named_once), max_size=25))
def test_both_stores_give_the_same_answers(postgres: Cluster, plan):
    async def main() -> None:
        clock = ServerClock(postgres.url, postgres.schema())
        memory, server = MemoryStore(clock=clock), PostgresStore(f"{postgres.url}?schema={clock.schema}")
        await memory.open()
        await server.open()
        await clock.take_over()
        try:
            for name, arguments, options in plan:
                if name == "advance":
                    await clock.advance(*arguments)
                    continue
                given = await answer(memory, name, arguments, options)
                assert await answer(server, name, arguments, options) == given
            assert await all_of(server) == await all_of(memory)
        finally:
            await server.close()

    asyncio.run(main())
