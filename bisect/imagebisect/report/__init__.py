"""One model of a run, several renderers."""

from __future__ import annotations

from imagebisect.report.model import build_report

__all__ = ["build_report"]
