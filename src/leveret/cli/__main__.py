"""`python -m leveret.cli`: the same as `leveret`."""

from __future__ import annotations

from leveret.cli import main

if __name__ == "__main__":
    main()
