"""Durations are seconds: int, float, Decimal or timedelta. Refused where they are given, never later."""

from __future__ import annotations

import math
import sys
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, TypeAlias

Seconds: TypeAlias = int | float | Decimal | timedelta

#: A thousand years. Beyond it a date can no longer be shown, and nobody means it.
LONGEST: Final = 1000 * 365.25 * 86400.0

#: The end of the year 9998, with room for time zones: what `datetime` can show.
LAST_MOMENT: Final = 253_370_764_800.0

#: Whole numbers travel in message headers and lie in stores as signed 64 bits.
LARGEST: Final = 2**63 - 1

#: A refused value is shown so far: it may be a whole document, given by mistake.
SHOWN: Final = 100


def seconds(value: object, name: str) -> float:
    """*value* as seconds, fractions kept; 0 is zero.

    Raises:
        ValueError: for True, text, negative, NaN, infinite or over a thousand years, naming *name* and the value.

    Example:
        >>> seconds(timedelta(minutes=2), "timeout")
        120.0
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float, Decimal)):
        raise ValueError(
            f"{name}={shown(value)}: expected seconds as a number (int, float, Decimal) or a timedelta, "
            f"got {type(value).__name__}"
        )
    if not _is_finite(number):
        raise ValueError(f"{name}={shown(value)}: expected a finite number of seconds")
    if number < 0:
        raise ValueError(f"{name}={shown(value)}: expected 0 or more seconds")
    # Compared before the conversion: float() of a huge int overflows.
    if number > LONGEST:
        raise ValueError(f"{name}={shown(value)}: expected at most a thousand years ({LONGEST:.0f} seconds)")
    return _plain(number)


def whole(value: object, name: str, *, least: int) -> int:
    """*value* as a whole number from *least* to what 64 bits hold; a bool, a float or text is a ValueError.

    Example:
        >>> whole(6, "max_attempts", least=1)
        6
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}={shown(value)}: expected a whole number, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name}={shown(value)}: expected {least} or more")
    if value > LARGEST:
        raise ValueError(f"{name}={shown(value)}: expected at most {LARGEST}, which is what 64 bits hold")
    return int(value)


def fraction(value: object, name: str, *, most: float | None) -> float:
    """*value* as a finite float from 0 to *most* (None: as far as floats go); otherwise a ValueError.

    Example:
        >>> fraction(Decimal("0.5"), "jitter", most=1.0)
        0.5
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ValueError(f"{name}={shown(value)}: expected a number, got {type(value).__name__}")
    upper = " up" if most is None else f" to {most:g}"
    if not _is_finite(value) or value < 0 or value > (sys.float_info.max if most is None else most):
        raise ValueError(f"{name}={shown(value)}: expected a finite number from 0{upper}")
    return _plain(value)


def shown(value: object) -> str:
    """*value* for an error message: its repr, cut where it is long.

    Example:
        >>> shown("30"), shown(10**5000)
        ("'30'", 'an int of 16610 bits')
    """
    # Python itself refuses to write out a huge int, with an error that names neither the setting nor the way out.
    if isinstance(value, int) and value.bit_length() > SHOWN * 3:
        return f"an int of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _is_finite(value: float | Decimal) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite()
    # An int is finite, and math.isfinite() of a huge one would overflow.
    return isinstance(value, int) or math.isfinite(value)


def _plain(value: float | Decimal) -> float:
    # Adding zero turns -0.0 into 0.0, which no listing should show.
    return float(value) + 0.0


def moment(value: object, name: str) -> float:
    """Epoch seconds of an aware datetime, or of a finite number that is some already; else a ValueError."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(
                f"{name}={value}: has no time zone; write datetime.now(UTC) or value.astimezone()"
            )
        return value.timestamp()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError(f"{name}={value!r}: expected an aware datetime")


def due_moment(value: object, name: str) -> float:
    """When something shall be due, as `moment` reads it: what has passed is now; beyond the calendar: a ValueError."""
    at = moment(value, name)
    if at > LAST_MOMENT:
        raise ValueError(f"{name}={value}: expected a time before the year 9999")
    # Whether it has passed by years or by centuries makes no difference, and headers carry no time before 1970.
    return max(0.0, at)
