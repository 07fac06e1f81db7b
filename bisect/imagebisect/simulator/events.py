"""What happens to the simulated cards while servers run: planted from outside, in the cards' own folder.

`plant` says what happens and when, `clear` takes it back; whoever reads the cards sees it from then on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOREIGN_PID = 4_100_000
"""A pid that hardly any host has in use."""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """All that is in effect now. `foreign` are (card, pid, MiB, name); mappings go by card index."""

    foreign: tuple[tuple[int, int, float, str], ...] = ()
    slowdown_bits: Mapping[int, int] = field(default_factory=dict)
    power_limit_w: float | None = None
    leftover: bool = False
    wedged_s: float = 0.0


def plant(
    folder: Path,
    *,
    foreign: Mapping[int, float] | None = None,
    pid: int = FOREIGN_PID,
    name: str = "python3",
    slowdown_bits: int | Mapping[int, int] = 0,
    power_limit_w: float | None = None,
    leftover: bool = False,
    wedged_s: float = 0.0,
    after_s: float = 0.0,
    for_s: float | None = None,
) -> Path:
    """Let something happen to the cards of a folder; what it returns is for `clear`.

    Args:
        folder: the cards' state, `<run>/standin` of a run.
        foreign: MiB by card index that a process of somebody else holds; plant it again with more to let it grow.
        pid: that process's id; it need not exist.
        name: that process's name.
        slowdown_bits: clock event reasons, of all cards or by card index, e.g. 0x40.
        power_limit_w: the cards' power limit from then on.
        leftover: a server's memory stays held after its end, by a pid that is dead.
        wedged_s: nvidia-smi says nothing for so long.
        after_s: it begins so many seconds from now.
        for_s: it ends so many seconds after it began; None: never.
    """
    folder.mkdir(parents=True, exist_ok=True)
    begins = time.monotonic() + after_s
    bits = slowdown_bits if isinstance(slowdown_bits, Mapping) else {-1: slowdown_bits} if slowdown_bits else {}
    event = {
        "begins": begins,
        "ends": None if for_s is None else begins + for_s,
        "foreign": [[card, pid, mib, name] for card, mib in (foreign or {}).items()],
        "slowdown_bits": {str(card): value for card, value in bits.items()},
        "power_limit_w": power_limit_w,
        "leftover": leftover,
        "wedged_s": wedged_s,
    }
    path = folder / f"planted-{time.monotonic_ns():020d}-{os.getpid()}.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(event), encoding="utf-8")
    fresh.replace(path)
    return path


def clear(folder: Path, *planted: Path) -> None:
    """Take back what was planted; all of it where nothing is named."""
    for path in planted or tuple(folder.glob("planted-*.json")):
        path.unlink(missing_ok=True)


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    now = time.monotonic()
    for path in sorted(folder.glob("planted-*.json")):
        try:
            event = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if event["begins"] <= now and (event["ends"] is None or now < event["ends"]):
            yield event


def in_effect(folder: Path) -> Planted:
    """What is planted and on now; of two that say the same, the later one holds."""
    foreign: dict[tuple[int, int], tuple[float, str]] = {}
    bits: dict[int, int] = {}
    power: float | None = None
    leftover = False
    wedged = 0.0
    for event in _events(folder):
        foreign |= {(card, pid): (mib, name) for card, pid, mib, name in event["foreign"]}
        for card, value in event["slowdown_bits"].items():
            bits[int(card)] = bits.get(int(card), 0) | value
        power = power if event["power_limit_w"] is None else event["power_limit_w"]
        leftover = leftover or event["leftover"]
        wedged = max(wedged, event["wedged_s"])
    return Planted(
        foreign=tuple((card, pid, mib, name) for (card, pid), (mib, name) in foreign.items()),
        slowdown_bits=bits,
        power_limit_w=power,
        leftover=leftover,
        wedged_s=wedged,
    )
