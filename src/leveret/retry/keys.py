"""The keys of failed messages in a document store: two workers, or two messages, never share one (R5)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from leveret.core.envelope import Malformed
from leveret.core.json_form import FailedMessage, build_message_key

#: What a key of ours ends in, behind its first part.
_END = re.compile(r"(?P<worker>.*):[0-9a-f]{32}", re.DOTALL)


class RetryKeys:
    """Makes the keys, and reads them.

    A key is a first part that people recognise (job, document and part), the worker that failed the message, and 32
    hexadecimal digits: of the message itself where it names a document, so that its later failures take the place of
    earlier ones; random where it does not. `s:<scope>:` stands in front where scoping is on and a valid scope is named.

    Args:
        first_part: of a message; None: by job, document and part.
        scoping: whether scopes count.
    """

    def __init__(self, first_part: Callable[[dict[str, Any]], str] | None, *, scoping: bool) -> None:
        self._first_part: Callable[[dict[str, Any]], str] = first_part or build_message_key
        self._scoping = scoping

    def scope(self, failed: FailedMessage) -> str | None:
        """The scope that the key of this message bears."""
        return failed.scope if self._scoping else None

    def key(self, failed: FailedMessage) -> str:
        """The key of a message that failed.

        Raises:
            Malformed: *first_part* cannot name it.
        """
        last = uuid.uuid4().hex if failed.doc_id is None else failed.digest
        return f"{self._base(failed.message, self.scope(failed))}:{failed.worker}:{last}"

    def worker(self, doc: Mapping[str, Any]) -> str:
        """Who failed the message of a stored row; empty for rows with the plain old keys."""
        if isinstance(named := doc.get("worker"), str):
            return named
        key: str = doc["retry_key"]
        try:
            base = f"{self._base(doc['message'], doc.get('scope'))}:"
        except Malformed:
            # It was stored when the first part was made in another way.
            return ""
        match = _END.fullmatch(key.removeprefix(base)) if key.startswith(base) else None
        return match["worker"] if match else ""

    def _base(self, message: Mapping[str, Any], scope: str | None) -> str:
        try:
            first = self._first_part(dict(message))
        except Exception as error:
            raise Malformed(f"message_key_func raised {type(error).__name__}: {error}") from error
        if not isinstance(first, str):
            raise Malformed(f"message_key_func gave {type(first).__name__}: expected text")
        return first if scope is None else f"s:{scope}:{first}"
