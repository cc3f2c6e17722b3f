"""Charts: lines over time as SVG, with the faults as bands behind them. Their colours stand in the report's styles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from leveret.proof.timeline import Band, Points, Timeline

#: Of a chart, in units of its own; the page scales it.
WIDTH: Final = 1000
HEIGHT: Final = 120
#: Room for the numbers to the left, and for the times below.
LEFT: Final = 56
RIGHT: Final = 12
BOTTOM: Final = 18
TOP: Final = 8
#: Height of a row of the faults' names, and the width of one of their letters.
ROW: Final = 16
LETTER: Final = 6.2
#: Distances that two lines of a grid may have: of values, times a power of ten; of times, in seconds.
_STEPS: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_TIMES: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


def faults_chart(drawn: Timeline) -> str:
    """The faults with their names, each where it fell, in as many rows as they need."""
    if not drawn.bands:
        return ""
    rows: list[float] = []
    parts = []
    for band in drawn.bands:
        x, width = _span(band, drawn.seconds)
        name = f"{band.struck.kind}: {band.struck.target}"
        needs = width + 8 + LETTER * len(name)
        # To the left of its band where it would run out of the picture.
        turned = x + needs > WIDTH
        begins = x + width - needs if turned else x
        row = next((row for row, taken in enumerate(rows) if taken <= begins), len(rows))
        rows[row : row + 1] = [begins + needs + 4]
        y = TOP + row * ROW
        anchor = f'x="{x - 4:.1f}" text-anchor="end"' if turned else f'x="{x + width + 4:.1f}"'
        parts.append(
            f'<g class="fault">{_title(band)}<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 4}" rx="2"/>'
            f'<text {anchor} y="{y + 10}">{escape(name)}</text></g>'
        )
    return _svg(TOP + len(rows) * ROW + 4, "Faults", "".join(parts))


def chart(title: str, drawn: Timeline, lines: Mapping[str, Sequence[Points]], *, unit: str = "") -> str:
    """Lines over time.

    Args:
        title: what it shows.
        drawn: whose time it is, and whose faults stand behind.
        lines: by the class that colours them.
        unit: of the values.
    """
    top = max((value for each in lines.values() for points in each for _, value in points), default=0.0)
    step = _step(top)
    most = max(step, step * -(-top // step))
    floor = HEIGHT - BOTTOM
    parts = [
        f'<rect class="band" x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{floor - TOP}">{_title(band)}</rect>'
        for band in drawn.bands
        for x, width in (_span(band, drawn.seconds),)
    ]
    for number in range(round(most / step) + 1):
        y = _y(number * step, most)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(number * step)}{escape(unit)}</text>'
        )
    parts += [_time(at, drawn.seconds) for at in _times(drawn.seconds)]
    for kind, each in lines.items():
        for points in each:
            path = " ".join(f"{_x(at, drawn.seconds):.1f},{_y(value, most):.1f}" for at, value in points)
            parts.append(f'<polyline class="line {escape(kind)}" points="{path}"/>')
    return _svg(HEIGHT, title, "".join(parts))


def clock(seconds: float) -> str:
    """A time from the start, as minutes and seconds.

    Example:
        >>> clock(83.2), clock(7.04)
        ('1:23', '0:07')
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _svg(height: float, title: str, content: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{content}</svg>'
    )


def _title(band: Band) -> str:
    struck = band.struck
    note = f", {struck.note}" if struck.note else ""
    told = f"{struck.kind}: {struck.target}, {clock(band.begin)} to {clock(band.end)}{note}"
    return f"<title>{escape(told)}</title>"


def _time(at: float, seconds: float) -> str:
    # The first one would run into the number beside it.
    anchor = "middle" if at else "start"
    return f'<text x="{_x(at, seconds):.1f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{clock(at)}</text>'


def _times(seconds: float) -> list[float]:
    step = next((step for step in _TIMES if seconds / step <= 10), _TIMES[-1])
    return [float(number * step) for number in range(int(seconds // step) + 1)]


def _span(band: Band, seconds: float) -> tuple[float, float]:
    """Where a band begins, and how wide it is: never so narrow that nobody sees it."""
    begin = _x(min(band.begin, seconds), seconds)
    return begin, max(2.0, _x(min(band.end, seconds), seconds) - begin)


def _x(at: float, seconds: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * at / (seconds or 1.0)


def _y(value: float, most: float) -> float:
    floor = HEIGHT - BOTTOM
    return floor - (floor - TOP) * value / most


def _step(top: float) -> float:
    """The distance of lines of a grid, so that there are three or four."""
    if top <= 0:
        return 1.0
    size = 10.0 ** (len(str(int(top))) - 1)
    while top < size:
        size /= 10
    return next((step * size for step in _STEPS if top / (step * size) <= 4), top)


def _number(value: float) -> str:
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {sign}"
    return f"{value:.3g}"
