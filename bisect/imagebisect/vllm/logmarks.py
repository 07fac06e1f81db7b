"""Log lines that taint a rep: the server compiled or fell back while it was being timed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from imagebisect.vllm.loglines import LONGEST_LINE_BYTES, undress

_MARKS = (
    (
        re.compile(
            r"(?P<what>[\w./ -]{1,40}?) ?(?:kernel )?JIT compilation during inference(?:: (?P<name>[^\s.]{1,120}))?"
        ),
        "JIT compilation",
    ),
    (re.compile(r"No tuned config covers (?P<name>[^\s;]{1,120})"), "autotuner fallback"),
)


def marks(lines: Iterable[str]) -> tuple[str, ...]:
    """What in these lines taints a measurement, each thing once, in order of appearance."""
    found: dict[str, None] = {}
    for raw in lines:
        text = undress(raw[:LONGEST_LINE_BYTES]).text
        for pattern, says in _MARKS:
            hit = pattern.search(text)
            if hit:
                name = hit.groupdict().get("name")
                found[f"{says}: {name}" if name else says] = None
    return tuple(found)
