"""One message in full: its fields, its body, its headers, its traceback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from leveret.cli.words import safe, safe_lines, size

if TYPE_CHECKING:
    from leveret.cli.console import Console

#: Characters of a body that are shown; the whole of it: --json, or an export.
_SHOWN: Final = 4000
#: Bytes of a body without text that are shown.
_SHOWN_BYTES: Final = 256


def show_fields(console: Console, fields: Sequence[tuple[str, str]]) -> None:
    """Name and value in two columns; what is empty is left out."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        if value:
            console.result(f" {name:<{width}}   {safe(value)}")


def show_content(console: Console, body: bytes, properties: bytes, traceback: str) -> None:
    """Headers, body and traceback, each under its title, cut where they are long."""
    from leveret.core.properties import Properties

    headers = Properties(properties).headers
    if headers:
        console.result(" headers", "title")
        for name, value in headers.items():
            console.result(f"   {safe(str(name))}: {safe(str(value))}")
    console.result(f" body, {size(len(body))}", "title")
    for line in _body(body).splitlines():
        console.result(f"   {line}")
    if traceback:
        console.result(" traceback", "title")
        for line in safe_lines(traceback).splitlines():
            console.result(f"   {line}")


def _body(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        more = " …" if len(body) > _SHOWN_BYTES else ""
        return f"no UTF-8; in hex: {body[:_SHOWN_BYTES].hex(' ')}{more}"
    more = f"\n… {len(text) - _SHOWN} characters more; all of it: --json" if len(text) > _SHOWN else ""
    return safe_lines(text[:_SHOWN]) + more
