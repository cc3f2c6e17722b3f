"""Exit codes, and which error means which."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from leveret.core.errors import (
    AppNotFound,
    BadPayload,
    BrokerError,
    ConfigError,
    LeveretError,
    MissingExtra,
    NotFound,
    NotSupported,
    PublishError,
    PublishFailures,
    StoreError,
    Unroutable,
    WorkerDefinition,
)

DONE: Final = 0
WRONG: Final = 1
USAGE: Final = 2
BROKER: Final = 3
STORE: Final = 4
MISSING: Final = 5
PART: Final = 6
NEEDS_YES: Final = 7
FAULT: Final = 70
INTERRUPTED: Final = 130

#: What each code says, for the help and the reference.
MEANINGS: Final = {
    DONE: "done, or stopped cleanly by a signal",
    WRONG: "looked, and something is wrong",
    USAGE: "wrong command line or configuration",
    BROKER: "the broker is unreachable or refuses us",
    STORE: "likewise the store",
    MISSING: "no such message, worker or queue",
    PART: "done in part: run it again to go on",
    NEEDS_YES: "needs --yes, for there is no terminal to ask on",
    FAULT: "a fault in leveret itself",
    INTERRUPTED: "second Ctrl+C, stopped at once (143: second SIGTERM)",
}

# The first that fits counts.
_CODES: Final[tuple[tuple[type[LeveretError] | tuple[type[LeveretError], ...], int], ...]] = (
    ((ConfigError, WorkerDefinition, AppNotFound, NotSupported, MissingExtra, BadPayload), USAGE),
    ((NotFound, Unroutable), MISSING),
    (PublishFailures, PART),
    ((BrokerError, PublishError), BROKER),
    (StoreError, STORE),
)


class ReaderGone(Exception):
    """Whoever read standard output has seen enough, and closed it (`leveret dead list | head`)."""


def of(error: LeveretError) -> int:
    """The exit code for an error of leveret's.

    Example:
        >>> of(NotFound("no dead letter lies under '91aa07'"))
        5
    """
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), WRONG)


def of_fault(error: BaseException) -> int:
    """Show the traceback of what nobody expected; of the user's own code from its first line on, with exit code 1."""
    if users_part(error) is None:
        traceback.print_exception(error)
        sys.stderr.write(
            "This is a fault in leveret itself, and nothing you did. Please report it with the lines above.\n"
        )
        return FAULT
    show_users(error)
    return WRONG


def show_users(error: BaseException) -> None:
    """Print an error of the user's code whole, without the frames of leveret's that led to it."""
    error.__traceback__ = users_part(error) or error.__traceback__
    traceback.print_exception(error)


def users_part(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame that is neither leveret's nor Python's, or None where there is none."""
    import leveret

    own = Path(leveret.__file__ or "").parent
    libraries = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    step = error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        file = Path(name)
        if (
            not name.startswith("<")
            and own not in file.parents
            and not any(library in file.parents for library in libraries)
        ):
            return step
        step = step.tb_next
    return None
