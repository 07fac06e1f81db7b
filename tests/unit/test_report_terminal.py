"""The answer on the terminal."""

from __future__ import annotations

import report_runs
from imagebisect.report import build_report, terminal


def test_it_names_last_good_first_bad_and_the_report():
    """A person finds the two builds, the numbers, what could not be tested, and where the report is."""
    report = build_report(report_runs.finished(report_runs.step(5, b4="unknown_flag")))

    text = terminal.render(report, where="results/r1")

    assert "long-prefill: NARROWED" in text
    assert "last good  b3" in text
    assert "first bad  b5" in text
    assert "1,415 -> 755 tok/s (-46.6 %, 1.87x slower, spread between starts 0.0 %, 2+2 starts)" in text
    assert "could not be tested: b4 (unknown_flag)" in text
    assert "in a range probed at" in text
    assert "results/r1" in text


def test_a_probe_shows_both_clocks_and_the_counts():
    """Client and server time, counted tokens, cache hits and why a rep is invalid, for every rep."""
    text = terminal.render_probe(build_report(report_runs.finished(report_runs.step(5))))

    assert "client 2.895 s, server prefill 2.890 s, counted [4096], cache hits 0" in text
    assert "invalid: prefix cache hit of 4096 tokens" in text
