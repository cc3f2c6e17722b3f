"""Watch: looks at something again and again, in a task of its own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar


class Watch(ABC):
    """Looks from `start` to `stop`. A subclass says how, and what its task is called."""

    #: Of the task that looks.
    task_name: ClassVar[str]
    _looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._looking = asyncio.create_task(self._look(), name=self.task_name)

    async def stop(self) -> None:
        """Look no more. Idempotent."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait([looking])

    @abstractmethod
    async def _look(self) -> None:
        """Look, until cancelled."""
