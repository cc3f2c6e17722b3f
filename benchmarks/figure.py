"""A figure that a benchmark gives, and how it is shown and written down."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

#: Where files are written: unlike /tmp it lies on a disk on most systems, and a sync to memory would cost nothing.
_DISK: Final = Path("/var/tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured, and what a peer made of the same in the same run."""

    name: str
    value: float
    #: `/s` is the better the higher, every other unit the better the lower.
    unit: str
    #: What it is compared with, None where nothing would be fair.
    peer: str | None = None
    peer_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """Our value divided by the peer's."""
        return self.value / self.peer_value if self.peer_value else None

    @property
    def line(self) -> str:
        """The figure on one line."""
        shown = f"{self.name:<24} {_number(self.value) + self.unit:>10}"
        if self.ratio is None or self.peer_value is None:
            return shown
        return f"{shown}   {self.peer} {_number(self.peer_value)}{self.unit}   {self.ratio:.2f} ×"

    def written(self) -> dict[str, Any]:
        """The figure as it stands in results.json."""
        found = {**asdict(self), "ratio": self.ratio}
        found["unit"] = self.unit.strip()
        return {name: _rounded(value) if isinstance(value, float) else value for name, value in found.items()}


@contextmanager
def folder() -> Iterator[Path]:
    """A folder on disk that is gone afterwards."""
    disk = _DISK if _DISK.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="leveret-bench-", dir=disk) as name:
        yield Path(name)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
