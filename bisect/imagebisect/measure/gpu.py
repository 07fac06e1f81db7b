"""GPU memory behind a protocol: NVML on the host, or an `nvidia-smi` on the host, in the container, of the stand-in.

`free` is the number that counts; `used` means different things in different drivers.
"""

from __future__ import annotations

import contextlib
import csv
import io
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from imagebisect.domain import CardMemory, Server
from imagebisect.errors import EnvironmentFault
from imagebisect.outcome import Cause
from imagebisect.runtime.base import Running

_MIB = 2.0**20
_COMMAND_S = 20.0
"""A wedged driver makes nvidia-smi hang; then the cards count as unreadable."""

_CARD_FIELDS = ("index", "uuid", "name", "memory.total", "memory.free")
_SAMPLE_FIELDS = ("index", "memory.free", "clocks_event_reasons.active")
_PROCESS_FIELDS = ("gpu_uuid", "pid", "used_memory")
_SLOWDOWN_BITS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Clock event reasons that spoil a rep; the software power cap (0x4) is normal under load."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One quick look: free MiB by card index, and what slows a card's clocks other than the ordinary power cap."""

    free_mib: Mapping[int, float] = field(default_factory=dict)
    slowdowns: tuple[str, ...] = ()


class GpuProbe(Protocol):
    """Reads the memory of the cards that a server uses."""

    source: str
    """`nvml`, `nvidia-smi`, `exec` or `none`; recorded with every measurement."""

    interval_s: float
    """How often a sampler may ask."""

    def read(self) -> tuple[CardMemory, ...]:
        """All cards of the server, in index order; empty where they cannot be read now."""

    def sample(self) -> Sample:
        """The least that a sampler needs, read as cheaply as can be."""

    def attach(self, running: Running) -> None:
        """From now on read where this server runs; only probes inside containers care."""


def _selected(cards: list[CardMemory], gpus: tuple[int, ...] | Literal["all", "none"]) -> tuple[CardMemory, ...]:
    kept = [card for card in cards if gpus == "all" or card.index in gpus]
    return tuple(sorted(kept, key=lambda card: card.index))


class NoProbe:
    """There are no cards to read."""

    source = "none"
    interval_s = 1.0

    def read(self) -> tuple[CardMemory, ...]:
        """Nothing."""
        return ()

    def sample(self) -> Sample:
        """Nothing."""
        return Sample()

    def attach(self, running: Running) -> None:
        """Nothing to do."""


class NvmlProbe:
    """The driver's own library on this host. Raises OSError at construction where there is none."""

    source = "nvml"
    interval_s = 0.2

    def __init__(self, gpus: tuple[int, ...] | Literal["all", "none"]) -> None:
        import pynvml

        self.gpus = gpus
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise OSError(str(error)) from error

    def read(self) -> tuple[CardMemory, ...]:
        """See GpuProbe; a card that cannot be read (MIG, lost) is left out."""
        import pynvml

        cards = []
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError:
            return ()
        for index in range(count):
            try:
                cards.append(self._card(index))
            except pynvml.NVMLError:
                continue
        return _selected(cards, self.gpus)

    @staticmethod
    def _card(index: int) -> CardMemory:
        import pynvml

        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        try:
            listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except pynvml.NVMLError:
            listed = []
        return CardMemory(
            index=index,
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            total_mib=memory.total / _MIB,
            free_mib=memory.free / _MIB,
            processes=tuple((p.pid, (p.usedGpuMemory or 0) / _MIB) for p in listed),
        )

    def sample(self) -> Sample:
        """See GpuProbe."""
        import pynvml

        free: dict[int, float] = {}
        slow: list[str] = []
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                if self.gpus != "all" and index not in self.gpus:
                    continue
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                free[index] = pynvml.nvmlDeviceGetMemoryInfo(handle).free / _MIB
                bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
                slow += [f"GPU {index}: {says}" for says in _slowdown_words(bits)]
        except pynvml.NVMLError:
            pass
        return Sample(free_mib=free, slowdowns=tuple(slow))

    def attach(self, running: Running) -> None:
        """Nothing to do: the driver sees every process of the host."""


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _slowdown_words(bits: int) -> list[str]:
    return [says for bit, says in _SLOWDOWN_BITS.items() if bits & bit]


def _rows(text: str, width: int) -> Iterator[list[str]]:
    """The rows of nvidia-smi's CSV that have enough fields; warnings between them are passed over."""
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) == width:
            yield [cell.strip() for cell in row]


def parse_smi(cards_text: str, processes_text: str = "") -> list[CardMemory]:
    """The cards in `nvidia-smi --query-gpu=index,uuid,name,memory.total,memory.free --format=csv,noheader,nounits`."""
    processes: dict[str, list[tuple[int, float]]] = {}
    for uuid, pid, used in _rows(processes_text, len(_PROCESS_FIELDS)):
        if pid.isdigit():
            # WSL and MIG say [N/A] or [Insufficient Permissions] where the size should be.
            size = float(used) if used.replace(".", "", 1).isdigit() else 0.0
            processes.setdefault(uuid, []).append((int(pid), size))
    cards = []
    for index, uuid, name, total, free in _rows(cards_text, len(_CARD_FIELDS)):
        try:
            cards.append(
                CardMemory(
                    index=int(index),
                    uuid=uuid,
                    name=name,
                    total_mib=float(total),
                    free_mib=float(free),
                    processes=tuple(processes.get(uuid, ())),
                )
            )
        except ValueError:
            continue
    return cards


Command = Callable[[tuple[str, ...]], tuple[int, str]]
"""Runs an argv; (exit code, stdout). Never raises: a command that cannot run has an exit code other than 0."""


def run_here(argv: tuple[str, ...]) -> tuple[int, str]:
    """Run a command on this host within 20 s."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_COMMAND_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return 127, ""
    return done.returncode, done.stdout.decode(errors="replace")


class SmiProbe:
    """An `nvidia-smi`, by whatever runs it."""

    def __init__(
        self,
        gpus: tuple[int, ...] | Literal["all", "none"],
        *,
        argv: tuple[str, ...] = ("nvidia-smi",),
        command: Command = run_here,
        source: str = "nvidia-smi",
        interval_s: float = 0.5,
    ) -> None:
        self.gpus = gpus
        self.argv = argv
        self.command = command
        self.source = source
        self.interval_s = interval_s
        self._knows_clocks = True

    def _ask(self, query: str, fields: tuple[str, ...]) -> str:
        code, text = self.command((*self.argv, f"--query-{query}={','.join(fields)}", "--format=csv,noheader,nounits"))
        return text if code == 0 else ""

    def read(self) -> tuple[CardMemory, ...]:
        """See GpuProbe."""
        cards = self._ask("gpu", _CARD_FIELDS)
        if not cards:
            return ()
        return _selected(parse_smi(cards, self._ask("compute-apps", _PROCESS_FIELDS)), self.gpus)

    def sample(self) -> Sample:
        """See GpuProbe. One command; drivers that lack the clock field are asked without it from then on."""
        fields = _SAMPLE_FIELDS if self._knows_clocks else _SAMPLE_FIELDS[:2]
        text = self._ask("gpu", fields)
        if not text and self._knows_clocks:
            self._knows_clocks, fields = False, _SAMPLE_FIELDS[:2]
            text = self._ask("gpu", fields)
        free: dict[int, float] = {}
        slow: list[str] = []
        for index, size, *bits in _rows(text, len(fields)):
            if not index.isdigit() or (self.gpus != "all" and int(index) not in self.gpus):
                continue
            with contextlib.suppress(ValueError):
                free[int(index)] = float(size)
                slow += [f"GPU {index}: {says}" for says in _slowdown_words(int(bits[0], 16) if bits else 0)]
        return Sample(free_mib=free, slowdowns=tuple(slow))

    def attach(self, running: Running) -> None:
        """Nothing to do: it sees every process of the host."""


class ExecProbe(SmiProbe):
    """`nvidia-smi` where the server runs; it reads nothing before the first server is attached."""

    def __init__(self) -> None:
        # A container sees only the cards it was given, numbered from 0.
        super().__init__("all", command=self._exec, source="exec", interval_s=1.0)
        self.running: Running | None = None

    def _exec(self, argv: tuple[str, ...]) -> tuple[int, str]:
        if self.running is None or self.running.exit_state() is not None:
            return 127, ""
        return self.running.exec(argv, _COMMAND_S)

    def attach(self, running: Running) -> None:
        """Read inside this server's container from now on."""
        self.running = running


def standin_argv(run_folder: Path) -> tuple[str, ...]:
    """The stand-in's own `nvidia-smi`, which reports the cards that its servers of this run share."""
    return (sys.executable, "-m", "imagebisect.simulator", "nvidia-smi", "--state-dir", str(run_folder / "standin"))


def choose(
    server: Server, source_kind: str, gpu_probe: Literal["auto", "nvml", "nvidia-smi", "exec", "none"], run_folder: Path
) -> GpuProbe:
    """The probe for a server's cards.

    Args:
        server: names the cards; `none` means that there is nothing to read.
        source_kind: `image`, `venv` or `simulated`.
        gpu_probe: what the suite asks for (`exec` reads inside the container even where the server asks for no GPU); `auto` takes NVML, then the host's `nvidia-smi`, then the container's.
        run_folder: where the stand-in keeps its cards' state.

    Raises:
        EnvironmentFault: the suite asks for NVML or `nvidia-smi` by name and the host has none.
    """
    if gpu_probe == "none" or (server.gpus == "none" and gpu_probe != "exec"):
        return NoProbe()
    if source_kind == "simulated":
        return SmiProbe(server.gpus, argv=standin_argv(run_folder))
    if gpu_probe == "exec":
        return ExecProbe()
    if gpu_probe in {"auto", "nvml"}:
        try:
            return NvmlProbe(server.gpus)
        except OSError as error:
            if gpu_probe == "nvml":
                raise EnvironmentFault(
                    f"NVML cannot be used on this host: {error}",
                    next_step="install the NVIDIA driver, or set `gpu_probe: auto` in the suite",
                    cause=Cause.NO_GPU,
                ) from error
    host = SmiProbe(server.gpus)
    if host.read():
        return host
    if gpu_probe == "nvidia-smi":
        raise EnvironmentFault(
            "`nvidia-smi` does not list the server's GPUs on this host",
            next_step="run `nvidia-smi` by hand, or set `gpu_probe: auto` in the suite",
            cause=Cause.NO_GPU,
        )
    return ExecProbe() if source_kind == "image" else NoProbe()


@dataclass(kw_only=True)
class Lowest:
    """What a sampler saw: the least free memory of each card (MiB, by index), how often it looked, what slowed clocks."""

    free_mib: dict[int, float] = field(default_factory=dict)
    reads: int = 0
    slowdowns: set[str] = field(default_factory=set)

    @property
    def worst_mib(self) -> float | None:
        """The least free memory of any card, None when nothing could be read."""
        return min(self.free_mib.values(), default=None)


@contextlib.contextmanager
def sampling(probe: GpuProbe) -> Iterator[Lowest]:
    """Watch the cards from a thread while the block runs. The thread has ended when the block is left."""
    lowest = Lowest()
    if isinstance(probe, NoProbe):
        yield lowest
        return
    over = threading.Event()

    def watch() -> None:
        while True:
            began = time.monotonic()
            seen = probe.sample()
            for index, free in seen.free_mib.items():
                lowest.free_mib[index] = min(free, lowest.free_mib.get(index, free))
            lowest.slowdowns.update(seen.slowdowns)
            lowest.reads += 1
            if over.wait(max(0.01, probe.interval_s - (time.monotonic() - began))):
                return

    thread = threading.Thread(target=watch, name="gpu-sampler", daemon=True)
    thread.start()
    try:
        yield lowest
    finally:
        over.set()
        thread.join()
