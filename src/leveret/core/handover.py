"""The sixteen points where a message passes from one hand to the next, by number, so that tests can strike at each."""

from __future__ import annotations

from typing import Final

PUBLISH_SENT: Final = "H1"
DELIVERED: Final = "H2"
HANDLER_DONE: Final = "H3"
RESULTS_CONFIRMED: Final = "H4"
ENVELOPE_SENT: Final = "H5"
ENVELOPE_CONFIRMED: Final = "H6"
DEAD_LETTER_CONFIRMED: Final = "H7"
RETRY_RECEIVED: Final = "H8"
STORED: Final = "H9"
TAKEN_WHEN_DUE: Final = "H10"
REPUBLISH_SENT: Final = "H11"
REPUBLISH_CONFIRMED: Final = "H12"
KEEPER_STORED: Final = "H13"
REPLAY_CLAIMED: Final = "H14"
REPLAY_CONFIRMED: Final = "H15"
SUSPECT_MOVED: Final = "H16"

ALL: Final = tuple(f"H{number}" for number in range(1, 17))
