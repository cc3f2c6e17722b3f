"""Acts as stores keep them: arguments and reports as JSON, and reports of what is finished for a while."""

from __future__ import annotations

import json

from leveret.core.errors import NotFound, StoreRefused
from leveret.ports import Acknowledged, Act

#: How long reports of finished acts are kept: whoever asked has looked by then.
REPORTS_KEPT = 86_400.0


def act_arguments(act: Act) -> str:
    """The arguments of an act as JSON in plain ASCII.

    Raises:
        StoreRefused: JSON cannot carry them.
    """
    try:
        return json.dumps(dict(act.arguments), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreRefused(
            f"the arguments of act {act.id!r} ({act.verb}) cannot be written as JSON: {error}"
        ) from error


def report_text(report: Acknowledged) -> str:
    """A report as JSON in plain ASCII."""
    return json.dumps(report._asdict())


def act_of(id: str, namespace: str, verb: str, arguments: str, asked_at: float, report: str | None) -> Act:
    """The act of what was stored: arguments and report as `act_arguments` and `report_text` wrote them."""
    acknowledged = None
    if report is not None:
        said = json.loads(report)
        acknowledged = Acknowledged(**{**said, "notes": tuple(said["notes"])})
    return Act(
        id=id,
        namespace=namespace,
        verb=verb,
        arguments=json.loads(arguments),
        asked_at=asked_at,
        report=acknowledged,
    )


def no_such_act(id: str) -> NotFound:
    """The error for a report of an act that is not there."""
    return NotFound(f"there is no act {id!r}: it was finished more than a day ago, or never asked for here")
