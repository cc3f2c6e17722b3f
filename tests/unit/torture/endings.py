"""The end of processes that are not ours to wait for."""

from __future__ import annotations

import os
import select


def until_it_ends(pid: int) -> None:
    """Wait for the end of a process that is not ours to wait for."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([handle], [], [], 30)
    finally:
        os.close(handle)
    assert ended, f"{pid} lives on"
