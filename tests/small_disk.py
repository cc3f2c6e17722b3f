"""A small disk that tests fill, or let be read alone: a tmpfs, where one may be mounted."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest


class SmallDisk:
    """A disk of its own, where `mounted`; else a mere folder.

    Args:
        folder: where; it is made.
        size: in MiB.
    """

    def __init__(self, folder: Path, *, size: int) -> None:
        self.folder = folder
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}m", "leveret-test", str(folder)]
        self.mounted = (
            sys.platform == "linux"
            and os.geteuid() == 0
            and shutil.which("mount") is not None
            and subprocess.run(mount, capture_output=True, check=False).returncode == 0
        )

    def need(self) -> None:
        """Skip the test where it could not be mounted."""
        if not self.mounted:
            pytest.skip("nobody but root may mount the small disk that this test needs")

    def fill(self) -> None:
        """Leave no room."""
        with contextlib.suppress(OSError), (self.folder / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(b"x" * 1024):
                pass

    def make_room(self) -> None:
        """As it was before `fill`."""
        (self.folder / "ballast").unlink()

    @contextlib.asynccontextmanager
    async def full(self) -> AsyncIterator[None]:
        """Full within the block."""
        self.fill()
        try:
            yield
        finally:
            self.make_room()

    def remount(self, mode: str) -> None:
        """`ro` lets it be read alone, `rw` ends that; no file may be open there for writing."""
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.folder)], check=True)

    def close(self) -> None:
        """Unmount it."""
        if self.mounted:
            subprocess.run(["umount", str(self.folder)], check=True)
