"""The host's simulated cards: live servers leave a file in a folder, readers add up what is alive."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebisect.simulator import events
from imagebisect.simulator.profile import Profile

DEFAULT_STATE_DIR = "/tmp/imagebisect-standin"  # noqa: S108 - inside an image, where nothing else is said
CARD_NAME = "NVIDIA Stand-in 16GB"
POWER_LIMIT_W = 300.0


@dataclass(frozen=True, kw_only=True)
class Card:
    """One card now; memory in MiB, power in watts. `processes` are (pid, used MiB), `names` of those that are planted.

    `slowdown_bits` are clock event reasons.
    """

    index: int
    total_mib: float
    baseline_mib: float
    processes: tuple[tuple[int, float], ...] = ()
    names: tuple[tuple[int, str], ...] = ()
    slowdown_bits: int = 0
    power_limit_w: float = POWER_LIMIT_W

    @property
    def uuid(self) -> str:
        """As NVIDIA spells one; the same for the same index everywhere."""
        digest = hashlib.sha256(f"imagebisect stand-in card {self.index}".encode()).hexdigest()
        return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    @property
    def used_mib(self) -> float:
        """Baseline and all processes; at most the total."""
        return min(self.total_mib, self.baseline_mib + sum(used for _, used in self.processes))


def start_time(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty where it is dead or there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    after = text.rpartition(")")[2].split()
    return "" if after[0] in {"Z", "X"} else after[19]


def _write(path: Path, content: dict[str, Any]) -> None:
    """Replace a file whole. No fsync: it dies with its server."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_text(json.dumps(content), encoding="utf-8")
    fresh.replace(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def count_start(folder: Path, key: str) -> int:
    """How many starts of this key came before; counts this one."""
    starts = folder / "starts"
    starts.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        try:
            (starts / f"{key}.{number}").touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return number


class Registration:
    """What one server holds on its cards, until it is closed or its process is dead."""

    def __init__(self, folder: Path, *, profile: Profile, pid: int, cards: tuple[int, ...]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"server-{pid}.json"
        self._pid = pid
        self._cards = cards
        self._start_time = start_time(pid)
        host = {"cards": profile.cards, "total_mib": profile.card_total_mib, "baseline_mib": profile.baseline_mib}
        _write(folder / "cards.json", host)

    def hold(self, mib: float) -> None:
        """Hold so much on each card from now on; a folder that has gone is no error."""
        content = {
            "pid": self._pid,
            "start_time": self._start_time,
            "used_mib": {str(card): mib for card in self._cards},
        }
        try:
            _write(self._path, content)
        except OSError:
            return

    def close(self) -> None:
        """Give everything back, unless it is planted that the card does not come back."""
        _end(self._path)


def _end(path: Path) -> None:
    """A server is no more: so is what it held, or it is held by a process that is not there."""
    if events.in_effect(path.parent).leftover:
        with contextlib.suppress(OSError):
            path.replace(path.with_name(path.name.replace("server-", "leftover-")))
    else:
        path.unlink(missing_ok=True)


def _held(folder: Path, *, leftover: bool) -> Iterator[tuple[int, int, float]]:
    """(card, pid, MiB) of every server that lives, and of those whose memory was left behind."""
    for path in sorted(folder.glob("server-*.json")):
        entry = _read(path)
        pid = int(entry.get("pid", 0))
        if not pid or start_time(pid) != entry.get("start_time"):
            _end(path)
            continue
        for card, used in entry.get("used_mib", {}).items():
            yield int(card), pid, float(used)
    for path in sorted(folder.glob("leftover-*.json")):
        entry = _read(path)
        if not leftover:
            path.unlink(missing_ok=True)
            continue
        for card, used in entry.get("used_mib", {}).items():
            yield int(card), int(entry.get("pid", 0)), float(used)


def read(folder: Path, profile: Profile | None = None) -> tuple[Card, ...]:
    """All cards of the host. What they are like comes from `profile`, else from the last server, else the defaults."""
    said = _read(folder / "cards.json")
    standard = profile or Profile()
    count = standard.cards if profile else int(said.get("cards", standard.cards))
    total = standard.card_total_mib if profile else float(said.get("total_mib", standard.card_total_mib))
    baseline = standard.baseline_mib if profile else float(said.get("baseline_mib", standard.baseline_mib))
    happens = events.in_effect(folder)
    held: dict[int, list[tuple[int, float]]] = {index: [] for index in range(count)}
    for card, pid, used in _held(folder, leftover=happens.leftover):
        held.setdefault(card, []).append((pid, used))
    for card, pid, used, _ in happens.foreign:
        held.setdefault(card, []).append((pid, used))
    every = happens.slowdown_bits.get(-1, 0)
    return tuple(
        Card(
            index=index,
            total_mib=total,
            baseline_mib=baseline,
            processes=tuple(processes),
            names=tuple((pid, name) for card, pid, _, name in happens.foreign if card == index),
            slowdown_bits=every | happens.slowdown_bits.get(index, 0),
            power_limit_w=POWER_LIMIT_W if happens.power_limit_w is None else happens.power_limit_w,
        )
        for index, processes in sorted(held.items())
    )
