"""The CSV."""

from __future__ import annotations

import io

import pandas as pd

import report_runs
from imagebisect.report import build_report, table


def test_every_rep_is_a_row_and_a_failed_start_is_one_too():
    """Warm-ups and invalid reps are marked, not lost; a build that failed has a row with its cause."""
    report = build_report(report_runs.finished(report_runs.step(5, b4="unknown_flag")))

    rows = pd.read_csv(io.StringIO(table.render(report)), dtype={"start": str})

    assert tuple(rows.columns) == table.COLUMNS
    reps = rows[rows["rep"].notna()]
    assert len(reps) == report["run"]["reps"] + report["run"]["warmup_reps"]
    assert (reps["invalid"].notna()).sum() == report["run"]["invalid_reps"]
    assert list(rows[rows["cause"] == "unknown_flag"]["build"]) == ["b4"]
