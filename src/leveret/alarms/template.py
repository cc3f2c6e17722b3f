"""Template: how an alarm reads in a chat or a mail."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any, Final

#: What a template may name, each as text.
NAMES: Final = (
    "code", "title", "severity", "state", "about", "fields", "count", "first", "last", "namespace", "host",
)  # fmt: skip

TITLE: Final = "{severity} {namespace}: {code} {state}"
BODY: Final = "{title}\n\n{fields}\n\n{count} times from {first} to {last}, told by {host}"


def check_template(text: object) -> str:
    """*text* where it is a template: text with names in braces, and no more than that.

    Raises:
        ValueError: it names something else, or cannot be read.

    Example:
        >>> check_template("{code}: {titel}")
        Traceback (most recent call last):
        ValueError: {titel} is no name of an alarm; there are {code}, {title}, {severity}, {state}, {about}, ...
    """
    if not isinstance(text, str) or not text:
        raise ValueError("expected text with names in braces, such as {severity} {code}")
    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(
            f"is no template ({error}); a brace that is meant is written twice: {{{{ and }}}}"
        ) from None
    for _, name, format_spec, conversion in pieces:
        if name is None:
            continue
        if name not in NAMES:
            known = ", ".join(f"{{{each}}}" for each in NAMES)
            raise ValueError(f"{{{name}}} is no name of an alarm; there are {known}")
        if format_spec or conversion:
            raise ValueError(f"{{{name}}} takes no format: every value is text already")
    return text


def render(template: str, told: Mapping[str, Any]) -> str:
    """*template* with what `leveret.core.alarm.read_alert` found.

    Example:
        >>> render("{severity}: {title}", {"severity": "CRITICAL", "title": "disk full"})
        'CRITICAL: disk full'
    """
    given = {name: _text(told.get(name, "")) for name in NAMES}
    return template.format_map(given).strip()


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {each}" for name, each in value.items())
    return str(value)
