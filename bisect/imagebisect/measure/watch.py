"""Is a server that does not answer still at work? `/health` says 200 for hours while nothing moves (vllm #51663).

Its metrics tell: looked at only once a round has taken suspiciously long, so that no ordinary rep pays for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from imagebisect.vllm.metrics import Snapshot

SUSPICIOUS_SHARE = 0.5
"""Of the deadline: from here on the metrics are looked at. The deadline is three times what the slow end took."""

MOST_LOOKS = 20
"""In the rest of the deadline, spread evenly, and never more often than each second."""


def _signs_of_life(seen: Snapshot) -> tuple[float | None, ...]:
    """What changes while a server works: engine steps, tokens, the KV cache filling, requests ending or changing places."""
    return (
        seen.steps,
        seen.generation_tokens,
        seen.prompt_tokens,
        seen.kv_usage,
        seen.succeeded,
        seen.running,
        seen.waiting,
        seen.preemptions,
    )


class ProgressWatch:
    """Looks at the metrics of a server whose answer is late. `moved` says whether anything changed between looks.

    Args:
        scrape: reads the metrics; None when they cannot be read.
        deadline_s: seconds the round may take.
    """

    def __init__(self, scrape: Callable[[], Snapshot | None], deadline_s: float) -> None:
        self._scrape = scrape
        self._deadline_s = deadline_s
        self._pause_s = max(1.0, deadline_s * (1 - SUSPICIOUS_SHARE) / MOST_LOOKS)
        self._next = float("inf")
        self._last: tuple[float | None, ...] | None = None
        self._still_since = 0.0
        self.looks = 0
        self.moved = False

    def begin(self) -> None:
        """A round begins now."""
        self._next = time.monotonic() + self._deadline_s * SUSPICIOUS_SHARE
        self._last, self.looks, self.moved = None, 0, False

    def end(self) -> None:
        """The round is over: no more looks. What was seen stays until the next begins."""
        self._next = float("inf")

    def look(self) -> None:
        """Look if it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._pause_s
        seen = self._scrape()
        if seen is None:
            return
        signs = _signs_of_life(seen)
        self.looks += 1
        if self._last is None or signs != self._last:
            # the deadline judges how it ended: what moved once and then stopped for good is stuck
            self.moved = self._last is not None
            self._still_since = now
        elif now - self._still_since > 3 * self._pause_s:
            self.moved = False
        self._last = signs

    def words(self) -> str:
        """What was seen, for a message."""
        if self.looks < 2:
            return "its metrics could not be read twice meanwhile"
        if self.moved:
            return "it was still making progress (its metrics moved), so it is slow rather than stuck"
        return f"no progress in its metrics for {time.monotonic() - self._still_since:.0f} s"
