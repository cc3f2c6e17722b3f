"""The command line: one file a group of commands. Heavy imports wait inside the commands, so that `--help` is quick."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of the codes in `leveret.cli.exits`.

    What leveret expects to go wrong is told in a sentence on stderr; only a fault, in leveret or in the user's own
    module, shows its traceback.

    Args:
        arguments: instead of those of the process.

    Raises:
        SystemExit: always.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 gets an escape for what it cannot show, instead of an error.
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = _run(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has seen enough. What is left must not fail again when Python flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(code)


def _run(arguments: Sequence[str] | None) -> int:
    from typer.main import get_command

    from leveret.cli import exits
    from leveret.cli.commands import cli
    from leveret.core.errors import LeveretError

    try:
        get_command(cli).main(args=None if arguments is None else list(arguments), prog_name="leveret")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else exits.USAGE if ended.code else exits.DONE
    except LeveretError as error:
        from leveret.cli.words import safe_lines

        sys.stderr.write(f"{type(error).__name__}: {safe_lines(str(error))}\n")
        return exits.of(error)
    except Exception as error:  # noqa: BLE001 - the outermost door: nothing passes it untold
        return exits.of_fault(error)
    return exits.DONE
