"""Log lines that taint a rep: the server compiled or fell back while it was being timed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from imagebisect.vllm.loglines import LONGEST_LINE_BYTES, pieces

_MARKS = (
    (
        "JIT compilation during inference",
        re.compile(
            r"(?P<what>[\w./ -]{1,40}?) ?(?:kernel )?JIT compilation during inference(?:: (?P<name>[^\s.]{1,120}))?"
        ),
        "JIT compilation",
    ),
    ("No tuned config covers ", re.compile(r"No tuned config covers (?P<name>[^\s;]{1,120})"), "autotuner fallback"),
)

MOST_MARKS = 64
"""No more different marks are kept; one is enough to taint a rep."""


class Marks:
    """Collects marks from lines as they come, in constant memory."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def add(self, lines: Iterable[str]) -> None:
        """Look through more lines."""
        for raw in lines:
            for words, pattern, says in _MARKS:
                if words not in raw:
                    continue
                for line in pieces(raw[:LONGEST_LINE_BYTES]):
                    hit = pattern.search(line.text)
                    if hit and len(self._found) < MOST_MARKS:
                        name = hit.groupdict().get("name")
                        self._found[f"{says}: {name}" if name else says] = None

    def take(self) -> tuple[str, ...]:
        """What was found since the last call, each thing once, in order of appearance."""
        found, self._found = tuple(self._found), {}
        return found


def marks(lines: Iterable[str]) -> tuple[str, ...]:
    """What in these lines taints a measurement, each thing once, in order of appearance."""
    found = Marks()
    found.add(lines)
    return found.take()
