"""One model of a run, several renderers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagebisect.state import RunState


def build_report(state: RunState) -> dict[str, Any]:
    """The whole report of a run as it stands; see `report.model`, which is loaded only where a report is made."""
    from imagebisect.report import model

    return model.build_report(state)
