"""Which namespaces a table holds something of, found by jumping from one to the next along its index."""

from __future__ import annotations

from typing import Final

#: A common table `of_<table>`, behind WITH RECURSIVE.
NAMESPACES_OF: Final = """
    jump_{table} (namespace) AS (
        (SELECT namespace FROM {table} ORDER BY namespace LIMIT 1)
        UNION ALL
        SELECT (SELECT namespace FROM {table} WHERE namespace > jump_{table}.namespace ORDER BY namespace LIMIT 1)
        FROM jump_{table} WHERE namespace IS NOT NULL
    ),
    of_{table} AS (SELECT namespace FROM jump_{table} WHERE namespace IS NOT NULL)
"""
