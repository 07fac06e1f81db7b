"""The host's simulated cards: live servers leave a file in a folder, readers add up what is alive."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebisect.simulator.profile import Profile

DEFAULT_STATE_DIR = "/tmp/imagebisect-standin"  # noqa: S108 - inside an image, where nothing else is said
CARD_NAME = "NVIDIA Stand-in 16GB"


@dataclass(frozen=True, kw_only=True)
class Card:
    """One card now; memory in MiB. `processes` are (pid, used MiB)."""

    index: int
    total_mib: float
    baseline_mib: float
    processes: tuple[tuple[int, float], ...] = ()

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
        """Give everything back."""
        self._path.unlink(missing_ok=True)


def read(folder: Path, profile: Profile | None = None) -> tuple[Card, ...]:
    """All cards of the host. What they are like comes from `profile`, else from the last server, else the defaults."""
    said = _read(folder / "cards.json")
    standard = profile or Profile()
    count = standard.cards if profile else int(said.get("cards", standard.cards))
    total = standard.card_total_mib if profile else float(said.get("total_mib", standard.card_total_mib))
    baseline = standard.baseline_mib if profile else float(said.get("baseline_mib", standard.baseline_mib))
    held: dict[int, list[tuple[int, float]]] = {index: [] for index in range(count)}
    for path in sorted(folder.glob("server-*.json")):
        entry = _read(path)
        pid = int(entry.get("pid", 0))
        if not pid or start_time(pid) != entry.get("start_time"):
            path.unlink(missing_ok=True)
            continue
        for card, used in entry.get("used_mib", {}).items():
            held.setdefault(int(card), []).append((pid, float(used)))
    return tuple(
        Card(index=index, total_mib=total, baseline_mib=baseline, processes=tuple(processes))
        for index, processes in sorted(held.items())
    )
