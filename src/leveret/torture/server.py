"""Server processes of our own: started on a free port, on a leash that ends them with the process that started them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

#: Becomes the command, beside a process of its group that kills the group when standard input ends. The system closes
#: that pipe when the process at its other end is gone, also when that was killed. The command itself must not hold it,
#: nor find a child that it has not started; and it is our own child, so it is buried, with its number, when we waited.
_LEASH: Final = 'exec 3<&0 </dev/null; ( { read -r _ <&3; kill -KILL 0; } & ); exec "$@" 3<&-'
#: Seconds in which what was killed is gone.
_GONE: Final = 30.0
#: Seconds between two looks at whether a server answers.
_LOOK_AGAIN: Final = 0.05


class Leashed:
    """A process, with all that it starts in its group, that never outlives the process that started it.

    Args:
        command: to run.
        out: the file that its output is added to.
        environment: of the process; None: this process's own.
        folder: it runs in.
        user: it runs as; None: as we do.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        out: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        user: str | None = None,
    ) -> None:
        self._out = out
        rights: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        with out.open("ab") as to:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LEASH, "leash", *command],
                env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=to, stderr=to, start_new_session=True,
                **rights,
            )  # fmt: skip

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def wait(self, seconds: float = _GONE) -> None:
        """Wait until it has ended by itself.

        Raises:
            subprocess.TimeoutExpired: it has not after so many seconds.
        """
        self._process.wait(seconds)
        # This ends what is left of its group.
        if self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """Kill it, as `kill -9` does, with all that it has started in its group."""
        if not self.ended:
            # Another thread, which waits for it to answer, may find it ended at this very moment.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self.wait()

    def until(self, answers: Callable[[], bool], *, seconds: float, what: str) -> None:
        """Wait until the server answers; one that does not is killed.

        Args:
            answers: says whether it does.
            seconds: to wait at most.
            what: names the server in the error.

        Raises:
            RuntimeError: it ended, or does not answer in time; with the last words of its output.
        """
        until = time.monotonic() + seconds
        while not answers():
            if self.ended or time.monotonic() > until:
                how = "ended" if self.ended else f"does not answer after {seconds:g} s"
                self.kill()
                raise RuntimeError(f"{what} {how}: {self._out.read_text(errors='replace')[-2000:]}")
            time.sleep(_LOOK_AGAIN)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
