"""How times, spans, ids and other people's texts are written in a terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from leveret.core.errors import ConfigError

if TYPE_CHECKING:
    from leveret.ports import Transport

#: A short id is any ending of at least so many characters.
SHORTEST: Final = 6

# What a terminal would obey instead of showing, what breaks a line, and what turns the reading direction.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_LINE_ENDS: Final = re.compile(r"\s*[\r\n]+\s*")
_TIME_OF_DAY: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")


def safe(text: str) -> str:
    r"""*text* in one line that no terminal obeys: a reason or a type may come from anybody.

    Example:
        >>> safe("no answer\n  in 10 s\x1b[2J")
        'no answer in 10 s\\x1b[2J'
    """
    return safe_lines(_LINE_ENDS.sub(" ", text.strip()).replace("\t", " "))


def safe_lines(text: str) -> str:
    """As `safe`, but lines and tabs stay."""
    return _CONTROL.sub(lambda found: found[0] if found[0] in "\n\t" else repr(found[0])[1:-1], text)


def span(seconds: float) -> str:
    """Seconds as people say them, always in a unit that shows a change.

    Example:
        >>> span(0.004), span(12.44), span(245), span(10920), span(183_600)
        ('0.004 s', '12.4 s', '4 m 05 s', '3 h 02 m', '2 d 03 h')
    """
    if seconds < 59.95:
        return f"{round(seconds, 3):.3g} s"
    whole = round(seconds)
    for size, unit, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02d} {smaller}"
    return f"{whole} s"


def clock(at: float, *, now: float) -> str:
    """A moment (epoch seconds) in this machine's time: of today the time alone, else with its date."""
    moment, today = datetime.fromtimestamp(at).astimezone(), datetime.fromtimestamp(now).astimezone()
    if moment.date() == today.date():
        return f"{moment:%H:%M:%S}"
    return f"{moment:%b %d %H:%M}" if moment.year == today.year else f"{moment:%Y-%m-%d %H:%M}"


def iso(at: float) -> str:
    """A moment (epoch seconds) in UTC, for programs.

    Example:
        >>> iso(0.5)
        '1970-01-01T00:00:00.500+00:00'
    """
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def moment(text: str, flag: str, *, now: datetime | None = None) -> float:
    """The epoch seconds that *text* names: ISO 8601, or a time of today; without a zone it is this machine's time.

    Raises:
        ConfigError: it names none.
    """
    today = (now or datetime.now(UTC)).astimezone()
    if found := _TIME_OF_DAY.fullmatch(text.strip()):
        hour, minute, second = (int(part or 0) for part in found.groups())
        return today.replace(hour=hour, minute=minute, second=second, microsecond=0).timestamp()
    try:
        return datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError):
        example = (today + timedelta(hours=1)).isoformat(timespec="seconds")
        raise ConfigError(
            f"{flag} {text!r}: expected a time, such as {example} or 18:00 (of today). Without a zone it is "
            "this machine's time"
        ) from None


def size(count: int) -> str:
    """Bytes as people say them.

    Example:
        >>> size(812), size(2_202_009)
        ('812 bytes', '2.1 MB')
    """
    if count < 1024:
        return counted(count, "byte")
    units = ["KB", "MB", "GB", "TB"]
    power = min(len(units), int(math.log2(count)) // 10)
    return f"{count / 1024**power:.1f} {units[power - 1]}"


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun.

    Example:
        >>> counted(1, "letter"), counted(0, "retry", "retries")
        ('1 letter', '0 retries')
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def listed(names: Iterable[str], *, most: int = 5) -> str:
    """Names with commas; of many, the first few and how many more."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def short_ids(rows: Sequence[tuple[str | None, str]]) -> list[str]:
    """For each (message id, id of its own) the shortest ending that tells it from the other rows.

    The message's own id is what a log shows, so that it is preferred; rows that share one are told by their own.

    Example:
        >>> short_ids([("4711-91aa07", "x-000001"), (None, "x-000002"), ("a-77", "x-000003"), ("b-77", "x-000004")])
        ['91aa07', '000002', 'a-77', 'b-77']
    """
    # Row and id of all that end alike: only among these can an ending be taken for another.
    alike: dict[str, list[tuple[int, str]]] = {}
    for place, pair in enumerate(rows):
        for id in pair:
            if id:
                alike.setdefault(id[-SHORTEST:], []).append((place, id))
    found = []
    for place, (message_id, own) in enumerate(rows):
        for name in (message_id, own):
            if name and (ending := _ending(place, name, alike[name[-SHORTEST:]])):
                break
        else:
            ending = own
        found.append(safe(ending))
    return found


def _ending(place: int, id: str, alike: Sequence[tuple[int, str]]) -> str:
    """The shortest ending of *id* that names the row at *place* alone; nothing where there is none."""
    for length in range(min(SHORTEST, len(id)), len(id) + 1):
        if all(other == place for other, name in alike if name.endswith(id[-length:])):
            return id[-length:]
    return ""


def broker_words(transport: Transport) -> str:
    """Which broker a connected transport speaks to."""
    version = transport.server_version
    return f"RabbitMQ {safe(version)} at {transport.display}" if version else transport.display


def holder(name: str) -> str:
    """Who holds a lease, as people know it: host/pid, without the letters that make it one of its kind.

    Example:
        >>> holder("web-1/4711/a41f09")
        'web-1/4711'
    """
    return safe("/".join(name.split("/")[:2]))
