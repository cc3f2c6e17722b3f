"""Cursors of listings: where a page ended, as a text that callers hand back and never read."""

from __future__ import annotations

import base64
import json

from leveret.core.errors import StoreRefused


def written(time: float, namespace: str, id: str) -> str:
    """The cursor of a row."""
    return base64.urlsafe_b64encode(json.dumps([time, namespace, id]).encode()).decode()


def read(cursor: str) -> tuple[float, str, str]:
    """The row that a cursor stands for.

    Raises:
        StoreRefused: it is no cursor of ours.
    """
    try:
        time, namespace, id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        return float(time), str(namespace), str(id)
    except (ValueError, TypeError) as error:
        raise StoreRefused(
            f"{cursor!r} is not a cursor of a listing: start again from the first page"
        ) from error
