"""The scripts that bring a schema forward, a folder for each database. Their files are numbered from 0001."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def scripts(database: str) -> tuple[str, ...]:
    """The scripts of a database, the first one first."""
    folder = files("leveret.stores") / "sql" / database
    found = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name
    )
    return tuple(file.read_text("utf-8") for file in found)
