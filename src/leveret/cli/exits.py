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
    RpcUnreachableError,
    StoreError,
    TransportUnavailableError,
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
    ((NotFound, Unroutable, RpcUnreachableError), MISSING),
    (PublishFailures, PART),
    ((BrokerError, PublishError, TransportUnavailableError), BROKER),
    (StoreError, STORE),
)


#: Packages that stand between leveret's own frames.
_OUR_LIBRARIES: Final = ("click", "msgspec", "pydantic", "rich", "typer")


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
    if isinstance(error, SyntaxError):
        # It names its own file and line, and nothing of it has run.
        error.__traceback__ = None
    else:
        error.__traceback__ = users_part(error) or error.__traceback__
    traceback.print_exception(error)


def users_part(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame of the user's own code that leveret called; None where there is none."""
    import leveret

    own = Path(leveret.__file__ or "").parent
    packages = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    # What leveret calls and what calls leveret; any other installed package may be the user's.
    ours = {own} | {folder / name for folder in packages for name in _OUR_LIBRARIES}
    standard = Path(sysconfig.get_path("stdlib"))
    found: TracebackType | None = None
    step = error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        folders = set(Path(name).parents)
        if ours & folders:
            # Whatever came before led into leveret again.
            found = None
        elif found is None and not name.startswith("<") and (standard not in folders or packages & folders):
            found = step
        step = step.tb_next
    return found
