"""A record in a file: a line is whole, or who writes it is told that it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import leveret
from leveret.proof.record import Backlog, FileRecord, read

#: Writes lines of one length into a file that may hold two and a half of them, and says how many it thinks there are.
WRITES = """
import resource, signal, sys
from pathlib import Path
from leveret.proof.record import Backlog, FileRecord
from leveret.torture.child import ChildRecord

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, kind = Path(sys.argv[1]), {"file": FileRecord, "child": ChildRecord}[sys.argv[2]]
record = kind(path, "torture")
for number in range(1, 4):
    record.write(Backlog(at=1.0, by="torture", queue="shop.charge", messages=number))
    print(number, flush=True)
    length = path.stat().st_size // number
    resource.setrlimit(resource.RLIMIT_FSIZE, (length * 5 // 2, length * 5 // 2))
"""


def written(path: Path, kind: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(leveret.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", WRITES, path, kind],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", ["file", "child"])
def test_a_line_that_the_disk_takes_half_of_is_told_as_a_failure(tmp_path: Path, kind: str):
    came_to = written(tmp_path / "record.jsonl", kind)

    assert came_to.returncode == 1
    assert came_to.stdout.split() == ["1", "2"]
    assert "OSError: the record took " in came_to.stderr
    # It is the last line, which nobody goes on after.
    assert len(list(read(tmp_path / "record.jsonl"))) == 2


def test_a_line_that_is_taken_whole_is_read_again(tmp_path: Path):
    event = Backlog(at=1.0, by="torture", queue="shop.charge", messages=3)
    record = FileRecord(tmp_path / "record.jsonl", "torture")
    record.write(event)
    record.close()

    assert list(read(tmp_path / "record.jsonl")) == [event]
