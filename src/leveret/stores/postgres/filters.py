"""`Filter` as conditions in PostgreSQL's SQL."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leveret.stores.intake import SHORTEST_ENDING, shown
from leveret.stores.postgres.columns import exact

if TYPE_CHECKING:
    from leveret.core.retry_entry import Filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What the two kinds of rows call their columns."""

    id: str
    attempts: str
    #: When it failed, or died.
    time: str


RETRIES = Table(id="retry_id", attempts="attempt", time="failed_at")
LETTERS = Table(id="id", attempts="attempts", time="died_at")


@dataclass(slots=True)
class Condition:
    """Conditions that must all hold, with their values."""

    terms: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, term: str, *values: Any) -> None:
        """One more condition."""
        self.terms.append(term)
        self.values.extend(values)

    @property
    def sql(self) -> str:
        """As what stands behind WHERE."""
        return " AND ".join(self.terms) or "true"


def condition(wanted: Filter, table: Table, *, namespace: bool = False) -> Condition:
    """What *wanted* asks of the rows of *table*; of their namespace only where told to."""
    asked = Condition()
    if namespace and wanted.namespace is not None:
        asked.add("namespace = %s", exact(wanted.namespace))
    if wanted.ids:
        named = [named_by(id, table) for id in wanted.ids]
        asked.add(
            f"({' OR '.join(each.sql for each in named)})",
            *(value for each in named for value in each.values),
        )
    if wanted.worker is not None:
        asked.add("worker = %s", shown(wanted.worker))
    if wanted.reason is not None:
        asked.add("strpos(reason_folded, %s) > 0", shown(wanted.reason).casefold())
    if wanted.type is not None:
        asked.add("type = %s", shown(wanted.type))
    if wanted.since is not None:
        asked.add(f"{table.time} >= %s::float8", wanted.since)
    if wanted.until is not None:
        asked.add(f"{table.time} <= %s::float8", wanted.until)
    if wanted.attempts is not None:
        asked.add(f"{table.attempts} = %s::bigint", wanted.attempts)
    if wanted.rpc is not None and table is LETTERS:
        asked.add("rpc = %s", wanted.rpc)
    if wanted.text is not None:
        # Last: only now is the body looked at.
        asked.add("position(%b::bytea in body) > 0", wanted.text.encode("utf-8", "surrogatepass"))
    return asked


def named_by(id: str, table: Table) -> Condition:
    """Rows that *id* names: in full, or by an ending of six characters or more. Served by the indexes on endings."""
    named = Condition()
    parts = []
    value = exact(id)
    for column in (table.id, "message_id"):
        term = f'"right"({column}, 6) = %s'
        named.values.append(value[-6:])
        if len(id) >= SHORTEST_ENDING:
            term += f' AND "right"({column}, %s) = %s'
            named.values += [len(value), value]
        else:
            term += f" AND {column} = %s"
            named.values.append(value)
        parts.append(f"({term})")
    named.terms.append(f"({' OR '.join(parts)})")
    return named
