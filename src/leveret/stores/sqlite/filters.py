"""`Filter` as conditions in SQL."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leveret.stores.intake import SHORTEST_ENDING, shown
from leveret.stores.sqlite.columns import exact

if TYPE_CHECKING:
    from leveret.core.retry_entry import Filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What the two kinds of rows call their columns."""

    name: str
    id: str
    attempts: str
    #: When it failed, or died.
    time: str
    #: What listings go by.
    order: str


RETRIES = Table(
    name="retry", id="retry_id", attempts="attempt", time="failed_at", order="try_at, namespace, key"
)
LETTERS = Table(
    name="dead_letter", id="id", attempts="attempts", time="died_at", order="died_at, namespace, id"
)


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
        return " AND ".join(self.terms) or "1"


def condition(wanted: Filter, table: Table) -> Condition:
    """What *wanted* asks of the rows of *table*, but for the namespace."""
    asked = Condition()
    if wanted.ids:
        named = [named_by(id, table) for id in wanted.ids]
        asked.add(
            f"({' OR '.join(each.sql for each in named)})",
            *(value for each in named for value in each.values),
        )
    if wanted.worker is not None:
        asked.add("worker = ?", shown(wanted.worker))
    if wanted.reason is not None:
        asked.add("instr(casefold(reason), ?) > 0", shown(wanted.reason).casefold())
    if wanted.type is not None:
        asked.add("type = ?", shown(wanted.type))
    if wanted.since is not None:
        asked.add(f"{table.time} >= ?", wanted.since)
    if wanted.until is not None:
        asked.add(f"{table.time} <= ?", wanted.until)
    if wanted.attempts is not None:
        asked.add(f"{table.attempts} = ?", wanted.attempts)
    if wanted.rpc is not None and table is LETTERS:
        asked.add("rpc = ?", wanted.rpc)
    if wanted.text is not None:
        # Last: only now is the body looked at.
        asked.add("instr(body, ?) > 0", wanted.text.encode("utf-8", "surrogatepass"))
    return asked


def named_by(id: str, table: Table) -> Condition:
    """Rows that *id* names: in full, or by an ending of six characters or more. Served by the indexes on endings."""
    named = Condition()
    parts = []
    value = exact(id)
    for column in (table.id, "message_id"):
        term = f"substr({column}, -6) = substr(?, -6) AND "
        values: list[Any] = [value, value]
        if len(id) >= SHORTEST_ENDING:
            term += f"substr({column}, -?) = ?"
            values = [value, len(value), value]
        else:
            term += f"{column} = ?"
        if column == "message_id":
            term = f"message_id IS NOT NULL AND {term}"
        parts.append(f"({term})")
        named.values.extend(values)
    named.terms.append(f"({' OR '.join(parts)})")
    return named
