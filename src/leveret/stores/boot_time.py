"""The time that a lease goes by where nobody gives a clock."""

from __future__ import annotations

import time

#: Linux's clock that goes on while the machine is suspended; elsewhere `time.monotonic` is what there is.
_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def boot_time() -> float:
    """Seconds since boot, suspended time included where the system can tell."""
    return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)
