"""`Filter` as conditions in SQL, and the few words that each database has of its own for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from leveret.stores.endings import SHORTEST_ENDING
from leveret.stores.intake import shown

if TYPE_CHECKING:
    from leveret.core.retry_entry import Filter

#: How many of an id's last characters the indexes on endings hold.
_INDEXED: Final = 6
#: More characters than any id has: its ending of that length is all of it.
_ALL: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What a database says in words of its own."""

    #: Stands for a value.
    mark: str
    #: How a text that names something lies in a column.
    exact: Callable[[str], Any]
    #: How a text may lie at the end of a column: as what, and how long it is there.
    endings: Callable[[str], Sequence[tuple[Any, int]]]
    #: Such texts as rows (name, length), and the values of that: no more of them for many texts than for one, since a
    #: statement takes so many only.
    given: str
    given_values: Callable[[Sequence[tuple[Any, int]]], Sequence[Any]]
    #: The last {length} characters of a {text}, in the words of the indexes on endings.
    ending: str
    #: What tells a row from all others; {key} tells it from those of its namespace.
    row: str
    #: The namespace of rows that are named, in words that no index serves: else all of a namespace might be walked.
    namespace: str
    #: Whether a folded text lies within the reason in any case, and bytes within the body.
    in_reason: str
    in_body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What the two kinds of rows call their columns."""

    name: str
    #: Tells a row from others of its namespace.
    key: str
    id: str
    attempts: str
    #: When it failed, or died.
    time: str


RETRIES: Final = Table(name="retry", key="key", id="retry_id", attempts="attempt", time="failed_at")
LETTERS: Final = Table(name="dead_letter", key="id", id="id", attempts="attempts", time="died_at")


@dataclass(slots=True)
class Condition:
    """Conditions that must all hold, with their values."""

    #: The namespace's column, as it has to be written beside this condition.
    namespace: str
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


def condition(wanted: Filter, table: Table, dialect: Dialect, *, namespace: bool = True) -> Condition:
    """What *wanted* asks of the rows of *table*; *namespace*: also in which one they lie."""
    mark = dialect.mark
    asked = Condition(dialect.namespace if wanted.ids else "namespace")
    if namespace and wanted.namespace is not None:
        asked.add(f"{asked.namespace} = {mark}", dialect.exact(wanted.namespace))
    if wanted.ids:
        _add_names(asked, wanted.ids, table, dialect)
    if wanted.worker is not None:
        asked.add(f"worker = {mark}", shown(wanted.worker))
    if wanted.reason is not None:
        asked.add(dialect.in_reason, shown(wanted.reason).casefold())
    if wanted.type is not None:
        asked.add(f"type = {mark}", shown(wanted.type))
    if wanted.since is not None:
        asked.add(f"{table.time} >= {mark}", wanted.since)
    if wanted.until is not None:
        asked.add(f"{table.time} <= {mark}", wanted.until)
    if wanted.attempts is not None:
        asked.add(f"{table.attempts} = {mark}", wanted.attempts)
    if wanted.rpc is not None and table is LETTERS:
        asked.add(f"rpc = {mark}", wanted.rpc)
    if wanted.text is not None:
        # Last: only now is the body looked at.
        asked.add(dialect.in_body, wanted.text.encode("utf-8", "surrogatepass"))
    return asked


def _add_names(asked: Condition, ids: Collection[str], table: Table, dialect: Dialect) -> None:
    """Rows that one of *ids* names, in full or by its ending: each is looked up in the indexes on endings.

    CROSS JOIN tells SQLite to go from the names to the rows, never the other way round.
    """
    given = [
        (name, length if len(id) >= SHORTEST_ENDING else _ALL)
        for id in ids
        for name, length in dialect.endings(id)
    ]
    row = dialect.row.format(key=table.key)

    def by(column: str) -> str:
        def end(text: str, length: object) -> str:
            return dialect.ending.format(text=text, length=length)

        return (
            # The indexes on message ids hold those that are there, and serve who asks for no others.
            f"SELECT {row} FROM given CROSS JOIN {table.name} WHERE {column} IS NOT NULL"  # noqa: S608 - names of ours
            f" AND {end(column, _INDEXED)} = {end('given.name', _INDEXED)}"
            f" AND {end(column, 'given.length')} = given.name"
        )

    asked.add(
        f"({row}) IN (WITH given (name, length) AS ({dialect.given})"
        f" {by(table.id)} UNION ALL {by('message_id')})",
        *dialect.given_values(given),
    )
