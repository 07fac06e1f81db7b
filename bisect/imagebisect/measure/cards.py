"""What is read of a server's cards, and the protocol of whatever reads it.

`free` is the number that counts; `used` means different things in different drivers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from imagebisect.domain import CardMemory
from imagebisect.runtime.base import Running

Gpus = tuple[int, ...] | Literal["all", "none"]
"""The cards of a server, as its suite names them."""

IDLE_BIT = 0x01
"""Clock event reason: the card had nothing to do, so its clock says nothing of a load."""

_SLOWDOWN_BITS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Clock event reasons that spoil a rep; the software power cap (0x4) is normal under load."""


def slowdown_words(index: int, bits: int) -> list[str]:
    """What slows a card's clocks, in words, from its clock event reasons."""
    return [f"GPU {index}: {says}" for bit, says in _SLOWDOWN_BITS.items() if bits & bit]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One quick look, each mapping by card index; what cannot be read is left out.

    Memory in MiB, the SM clock in MHz (of busy cards only), temperature in degrees Celsius, power in watts.
    `slowdowns` says what slows a card's clocks other than the ordinary power cap.
    """

    free_mib: Mapping[int, float] = field(default_factory=dict)
    slowdowns: tuple[str, ...] = ()
    sm_clock_mhz: Mapping[int, float] = field(default_factory=dict)
    temperature_c: Mapping[int, float] = field(default_factory=dict)
    power_w: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process on a card. `used_mib` is 0 where the driver hides it, `name` (a program's, no path) may be empty."""

    index: int
    pid: int
    used_mib: float
    name: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """The card and the process."""
        return self.index, self.pid


@dataclass(frozen=True, kw_only=True)
class CardDetails:
    """What a card is and how it is set, each None where the driver does not say.

    Power in watts, clocks in MHz. The PCIe maxima are of the card in this slot; the `now` values change by themselves.
    """

    index: int
    uuid: str
    name: str
    total_mib: float | None = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    vbios_version: str | None = None
    compute_capability: str | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    max_sm_clock_mhz: float | None = None
    max_memory_clock_mhz: float | None = None
    application_sm_clock_mhz: float | None = None
    application_memory_clock_mhz: float | None = None
    persistence_mode: bool | None = None
    ecc: bool | None = None
    mig: bool | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    pcie_generation_now: int | None = None
    pcie_width_now: int | None = None


class GpuProbe(Protocol):
    """Reads the cards that a server uses. Nothing here raises, and everything comes back within about 20 s."""

    source: str
    """`nvml`, `nvidia-smi`, `exec` or `none`; recorded with every measurement."""

    interval_s: float
    """How often a sampler may ask."""

    process_interval_s: float
    """How often a sampler may ask for the processes."""

    host_pids: bool
    """Whether pids are this host's; inside a container they are its own and name nobody here."""

    def read(self) -> tuple[CardMemory, ...]:
        """All cards of the server, in index order; empty where they cannot be read now."""

    def sample(self) -> Sample:
        """The least that a sampler needs, read as cheaply as can be."""

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Everything that has a context on one of the server's cards; None where that cannot be read now."""

    def details(self) -> tuple[CardDetails, ...]:
        """What the server's cards are, in index order; empty where they cannot be read now."""

    def attach(self, running: Running) -> None:
        """From now on read where this server runs; only probes inside containers care."""


class NoProbe:
    """There are no cards to read."""

    source = "none"
    interval_s = 1.0
    process_interval_s = 1.0
    host_pids = True

    def read(self) -> tuple[CardMemory, ...]:
        """Nothing."""
        return ()

    def sample(self) -> Sample:
        """Nothing."""
        return Sample()

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Not readable."""
        return None

    def details(self) -> tuple[CardDetails, ...]:
        """Nothing."""
        return ()

    def attach(self, running: Running) -> None:
        """Nothing to do."""


def is_wanted(index: int, gpus: Gpus) -> bool:
    """Whether a card is one of the server's."""
    return gpus == "all" or index in gpus


def program(name: str) -> str:
    """A process's name without its folder, which may hold a user's name; empty where the driver knows none."""
    short = name.strip().rpartition("/")[2]
    return "" if short.startswith("[") else short[:80]


def arrived_since(baseline: Iterable[CardMemory], now: Iterable[GpuProcess] | None) -> frozenset[int]:
    """The pids that were on none of these cards before a start: those of its server, as long as nobody else came."""
    before = {pid for card in baseline for pid, _ in card.processes}
    return frozenset(process.pid for process in now or () if process.pid not in before)
