"""The log of a running command: lines for people, or one JSON object each."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from leveret.cli.words import iso, safe, safe_lines

if TYPE_CHECKING:
    from leveret.runtime.schema import Log

#: Lines whose first word says already how grave they are.
_SPEAKING: Final = frozenset({"soft", "dead", "alarm"})

#: What every record has; all else is something that the one who logged wants to be found.
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextLines(logging.Formatter):
    """`14:02:11  soft  charge  7c1e4b  attempt 1 of 6, again in 27.4 s: …`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it where there is one."""
        grave = record.levelno >= logging.WARNING and getattr(record, "action", "") not in _SPEAKING
        level = f"{record.levelname.lower()}  " if grave else ""
        line = f"{self.formatTime(record, '%H:%M:%S')}  {level}{safe(record.getMessage())}"
        if record.exc_info:
            line += "\n" + safe_lines(self.formatException(record.exc_info))
        return line


class JsonLines(logging.Formatter):
    """One JSON object a line, with everything that the record carries."""

    def format(self, record: logging.LogRecord) -> str:
        """The object; times in UTC."""
        told: dict[str, object] = {
            "time": iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= {name: value for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def show_log(settings: Log, *, quiet: bool, as_json: bool) -> None:
    """Send leveret's log to stderr, unless the user's module has set up logging of its own.

    Args:
        settings: level and format, as configured.
        quiet: warnings and errors only.
        as_json: JSON whatever the settings say.
    """
    logger = logging.getLogger("leveret")
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json or settings.format == "json" else TextLines())
    logger.addHandler(handler)
    level = getattr(logging, settings.level.upper())
    logger.setLevel(max(level, logging.WARNING) if quiet else level)
    logger.propagate = False
