"""Progress on stderr."""

from __future__ import annotations

import io
import re
import sys

import pytest

from imagebisect.cli import progress
from imagebisect.progress import (
    Decided,
    Noted,
    PhaseBegan,
    Pulling,
    RepEnded,
    RunBegan,
    Silent,
    StartEnded,
)

EVENTS = [
    RunBegan(run_id="r1", folder="results/r1", builds=16, resumed=False),
    Decided(build="b07", server="bt4096", why="b07 halves b00..b15", starts_left=9, seconds_left=3600.0),
    Pulling(build="b07", done_bytes=1_000_000, total_bytes=9_000_000_000),
    PhaseBegan(build="b07", server="bt4096", phase="long"),
    RepEnded(build="b07", scenario="long", concurrency=1, rep=1, reps=3, value=1415.2, unit="tok/s"),
    RepEnded(build="b07", scenario="long", concurrency=1, rep=2, reps=3, value=None, unit="tok/s", note="cache hit"),
    StartEnded(build="b07", server="bt4096", cause="unknown_flag", message="--x is not known", seconds=12.0),
    Noted(text="anything [else]"),
]


def test_lines_carry_the_time_and_what_happens(monkeypatch):
    """Off a terminal: one plain line an event, stamped in UTC, without control characters."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    lines = progress.Lines()
    for event in EVENTS:
        lines.emit(event)

    text = stream.getvalue()
    assert all(re.match(r"\d\d:\d\d:\d\dZ ", line) for line in text.splitlines())
    assert "\x1b" not in text
    for needed in (
        "b07 on bt4096",
        "about 9 starts left, about 60 min",
        "rep 1/3: 1,415 tok/s",
        "cache hit",
        "unknown_flag: --x is not known",
    ):
        assert needed in text


def test_a_line_says_which_load_it_was():
    """The length of a ladder's rung and the concurrency; a warm-up is no rep; a scenario called `boot` is not the boot."""
    rung = RepEnded(
        build="b", scenario="lens", concurrency=1, rep=1, reps=2, value=1.0, unit="tok/s", prompt_tokens=4000
    )
    warm = RepEnded(
        build="b", scenario="lens", concurrency=4, rep=1, reps=2, value=None, unit="tok/s", note="warm-up",
        prompt_tokens=4000,
    )  # fmt: skip

    assert progress.line_of(rung) == "  b lens 4,000 tokens C=1 rep 1/2: 1 tok/s"
    assert progress.line_of(warm) == "  b lens 4,000 tokens C=4 warm-up"
    for phase in ("long", "scenario long"):
        assert progress.line_of(PhaseBegan(build="b", server="s", phase=phase)) == "  b s: scenario long"
    assert progress.line_of(PhaseBegan(build="b", server="s", phase="scenario boot")) == "  b s: scenario boot"
    assert progress.line_of(PhaseBegan(build="b", server="s", phase="boot")) == "  b s: boot"


def test_one_is_no_plural():
    """`1 start`, `1 build`."""
    last = Decided(build="b", server="s", why="x", starts_left=1, seconds_left=None)
    began = RunBegan(run_id="r1", folder="f", builds=1, resumed=False)

    assert "about 1 start left" in (progress.line_of(last) or "")
    assert "r1: 1 build," in (progress.line_of(began) or "")


def test_pull_lines_are_rare(monkeypatch):
    """A pull of 30 GB does not fill a log: two reports in a row are one line."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    lines = progress.Lines()
    for done in range(50):
        lines.emit(Pulling(build="b", done_bytes=done * 10**9, total_bytes=None))

    assert len(stream.getvalue().splitlines()) == 1


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def test_a_terminal_gets_a_live_panel_and_everything_that_lasts(monkeypatch):
    """On a terminal: outcomes stay on screen, brackets in messages are no markup, and it ends cleanly."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    chosen = progress.choose(quiet=False)
    try:
        for event in EVENTS:
            chosen.emit(event)
    finally:
        progress.close(chosen)

    assert isinstance(chosen, progress.Panel)
    assert "anything [else]" in stream.getvalue()
    assert "unknown_flag" in stream.getvalue()


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_gets_lines(monkeypatch, term):
    """TERM=dumb means no cursor control."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", term)

    assert isinstance(progress.choose(quiet=False), progress.Lines)


def test_quiet_is_silent():
    """--quiet prints nothing."""
    assert isinstance(progress.choose(quiet=True), Silent)
