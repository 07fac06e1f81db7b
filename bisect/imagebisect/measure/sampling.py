"""Watching the cards while something is timed: memory at its lowest, who came, what slowed the clocks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from imagebisect.measure.cards import GpuProbe, GpuProcess, NoProbe, Sample
from imagebisect.measure.patience import Patience

GREW_MIB = 64.0
"""A process that was there and takes more than this is as good as a new one."""

PATIENCE_S = 10.0
"""Longer than any answer of a working driver takes."""

_Processes = tuple[GpuProcess, ...] | None


class _Asked:
    """What is kept of a probe from one block to the next."""

    def __init__(self) -> None:
        self.patience = Patience(PATIENCE_S)
        self._last: _Processes = None
        self._at = 0.0

    def processes(self, probe: GpuProbe) -> _Processes:
        """Who is on the cards now; None where that cannot be read, or not in time."""
        found = self.patience.ask(probe.processes, None)
        self._last, self._at = found, time.monotonic()
        return found

    def processes_before(self, probe: GpuProbe, *, however_old: bool) -> _Processes:
        """Who was on the cards at the last look, unless that is too old; asking a command takes tens of milliseconds.

        Where it is known who may be there, any age will do: whoever came since is a stranger either way.
        """
        if self._last is not None and (however_old or time.monotonic() - self._at < probe.process_interval_s):
            return self._last
        return self.processes(probe)


_asked: WeakKeyDictionary[GpuProbe, _Asked] = WeakKeyDictionary()


@dataclass(kw_only=True)
class Lowest:
    """What a sampler saw. Mappings go by card index, `new_processes` and `grown` by (card index, pid).

    `free_mib` is the least free memory (MiB), `min_sm_clock_mhz` the lowest clock of a card that was busy. `grown` has
    the MiB that a process which is not the server's gained. `wedged` says that the driver did not answer in time, so
    that what is missing here may have happened all the same.
    """

    free_mib: dict[int, float] = field(default_factory=dict)
    reads: int = 0
    slowdowns: set[str] = field(default_factory=set)
    new_processes: dict[tuple[int, int], GpuProcess] = field(default_factory=dict)
    grown: dict[tuple[int, int], float] = field(default_factory=dict)
    min_sm_clock_mhz: dict[int, float] = field(default_factory=dict)
    max_temperature_c: dict[int, float] = field(default_factory=dict)
    max_power_w: dict[int, float] = field(default_factory=dict)
    wedged: bool = False

    @property
    def worst_mib(self) -> float | None:
        """The least free memory of any card, None when nothing could be read."""
        return min(self.free_mib.values(), default=None)


class _Watcher:
    """Writes into a Lowest until it is told that nobody reads any more."""

    def __init__(
        self, probe: GpuProbe, lowest: Lowest, own: frozenset[int], known: frozenset[tuple[int, int]] | None
    ) -> None:
        self._probe = probe
        self._lowest = lowest
        self._own = own
        self._known = known
        self._before: dict[tuple[int, int], GpuProcess] | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._abandoned = False

    def begin(self, processes: tuple[GpuProcess, ...] | None) -> None:
        """Remember who is there; a stranger who came since the server was ready counts as new."""
        if processes is None or not self._probe.host_pids:
            return
        self._before = {process.key: process for process in processes}
        if self._known is not None:
            for key, process in self._before.items():
                if key not in self._known and process.pid not in self._own:
                    self._lowest.new_processes[key] = process

    def watch(self) -> None:
        """Look until told to end."""
        next_look = time.monotonic() + self._probe.process_interval_s
        while True:
            began = time.monotonic()
            self._note(self._probe.sample())
            if self._before is not None and began >= next_look:
                next_look = began + self._probe.process_interval_s
                self.note_processes(self._probe.processes())
            if self._over.wait(max(0.01, self._probe.interval_s - (time.monotonic() - began))):
                return

    def end(self, *, abandon: bool = False) -> None:
        """Look no more; once abandoned, an answer that comes late is not noted."""
        self._over.set()
        if abandon:
            with self._lock:
                self._abandoned = True

    def _note(self, seen: Sample) -> None:
        lowest = self._lowest
        with self._lock:
            if self._abandoned:
                return
            for index, free in seen.free_mib.items():
                lowest.free_mib[index] = min(free, lowest.free_mib.get(index, free))
            for index, clock in seen.sm_clock_mhz.items():
                lowest.min_sm_clock_mhz[index] = min(clock, lowest.min_sm_clock_mhz.get(index, clock))
            for index, heat in seen.temperature_c.items():
                lowest.max_temperature_c[index] = max(heat, lowest.max_temperature_c.get(index, heat))
            for index, power in seen.power_w.items():
                lowest.max_power_w[index] = max(power, lowest.max_power_w.get(index, power))
            lowest.slowdowns.update(seen.slowdowns)
            lowest.reads += 1

    def note_processes(self, seen: tuple[GpuProcess, ...] | None) -> None:
        """Compare with who was there at the beginning; a list that could not be read says nothing."""
        if seen is None or self._before is None:
            return
        # where none of the server's pids is listed, nobody can tell its growth from a neighbour's
        tells_growth = any(pid in self._own for _, pid in self._before)
        with self._lock:
            if self._abandoned:
                return
            for process in seen:
                if process.pid in self._own:
                    continue
                before = self._before.get(process.key)
                if before is None:
                    known = self._lowest.new_processes.get(process.key)
                    if known is None or process.used_mib > known.used_mib:
                        self._lowest.new_processes[process.key] = process
                elif tells_growth:
                    grew = process.used_mib - before.used_mib
                    if grew > max(GREW_MIB, self._lowest.grown.get(process.key, 0.0)):
                        self._lowest.grown[process.key] = grew


@contextlib.contextmanager
def sampling(
    probe: GpuProbe,
    *,
    own: frozenset[int] = frozenset(),
    known: frozenset[tuple[int, int]] | None = None,
    patience_s: float = PATIENCE_S,
) -> Iterator[Lowest]:
    """Watch the cards from a thread while the block runs.

    The processes are read before the block is entered (unless the list that ended the block before will do), after it is left, and now and then meanwhile. Where the driver does not answer, the thread
    is left behind as a daemon and `wedged` is set.

    Args:
        probe: reads the server's cards.
        own: the pids of the server, on this host. While none of them is listed on the cards, growth is nobody's.
        known: the (card index, pid) that were there when the server was ready; None where nobody looked.
        patience_s: how long to wait for each answer when the block is entered, and when it is left.
    """
    lowest = Lowest()
    if isinstance(probe, NoProbe):
        yield lowest
        return
    asked = _asked.setdefault(probe, _Asked())
    patience = asked.patience
    patience.limit_s = patience_s
    watcher = _Watcher(probe, lowest, own, known)
    if probe.host_pids:
        watcher.begin(asked.processes_before(probe, however_old=known is not None))
    if patience.wedged:
        lowest.wedged = True
        yield lowest
        return
    thread = threading.Thread(target=watcher.watch, name="gpu-sampler", daemon=True)
    thread.start()
    try:
        yield lowest
    finally:
        watcher.end()
        thread.join(patience_s)
        if thread.is_alive():
            watcher.end(abandon=True)
            patience.leave(thread)
            lowest.wedged = True
        elif probe.host_pids:
            watcher.note_processes(asked.processes(probe))
            lowest.wedged = patience.wedged
