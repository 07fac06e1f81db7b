"""The driver's own library on this host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from imagebisect.domain import CardMemory
from imagebisect.measure.cards import (
    IDLE_BIT,
    CardDetails,
    GpuProcess,
    Gpus,
    Sample,
    is_wanted,
    program,
    slowdown_words,
)
from imagebisect.measure.patience import Patience
from imagebisect.runtime.base import Running

Value = TypeVar("Value")

_MIB = 2.0**20
_ANSWER_S = 10.0
"""A wedged driver never answers; then the cards count as unreadable."""


def _or_none(ask: Callable[..., Value], *what: object) -> Value | None:
    """The driver's answer, None where this card or this driver has none."""
    import pynvml

    try:
        return ask(*what)
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _mhz(ask: Callable[..., int], *what: object) -> float | None:
    found = _or_none(ask, *what)
    return None if found is None else float(found)


def _enabled(mode: int | None) -> bool | None:
    return None if mode is None else bool(mode)


def _cuda(version: int | None) -> str | None:
    """`13.0` of the driver's 13000."""
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _temperature(handle: Any) -> float | None:
    import pynvml

    # the old call goes with CUDA 14, and old drivers do not have the new one
    found = _or_none(pynvml.nvmlDeviceGetTemperatureV, handle, pynvml.NVML_TEMPERATURE_GPU)
    return found if found is not None else _or_none(pynvml.nvmlDeviceGetTemperature, handle, 0)


class NvmlProbe:
    """Reads through NVML. Raises OSError at construction where there is none, or where it does not answer."""

    source = "nvml"
    interval_s = 0.2
    process_interval_s = 0.0
    host_pids = True

    def __init__(self, gpus: Gpus) -> None:
        import pynvml

        self.gpus = gpus
        self._patience = Patience(_ANSWER_S)
        try:
            begun = self._patience.ask(lambda: pynvml.nvmlInit() is None, otherwise=False)
        except pynvml.NVMLError as error:
            raise OSError(str(error)) from error
        if not begun:
            raise OSError(f"the driver does not answer within {_ANSWER_S:.0f} s")

    def _handles(self) -> Iterator[tuple[int, Any]]:
        """The server's cards; one that is lost is left out."""
        import pynvml

        for index in range(_or_none(pynvml.nvmlDeviceGetCount) or 0):
            handle = _or_none(pynvml.nvmlDeviceGetHandleByIndex, index) if is_wanted(index, self.gpus) else None
            if handle is not None:
                yield index, handle

    def read(self) -> tuple[CardMemory, ...]:
        """See GpuProbe; a card that cannot be read (MIG, lost) is left out."""
        return self._patience.ask(self._read, ())

    def _read(self) -> tuple[CardMemory, ...]:
        import pynvml

        cards = []
        for index, handle in self._handles():
            memory = _or_none(pynvml.nvmlDeviceGetMemoryInfo, handle)
            uuid = _text(_or_none(pynvml.nvmlDeviceGetUUID, handle))
            if memory is None or uuid is None:
                continue
            listed = _listed(handle) or {}
            cards.append(
                CardMemory(
                    index=index,
                    uuid=uuid,
                    name=_text(_or_none(pynvml.nvmlDeviceGetName, handle)) or "unknown",
                    total_mib=memory.total / _MIB,
                    free_mib=memory.free / _MIB,
                    processes=tuple(sorted(listed.items())),
                )
            )
        return tuple(cards)

    def sample(self) -> Sample:
        """See GpuProbe."""
        return self._patience.ask(self._sample, Sample())

    def _sample(self) -> Sample:
        import pynvml

        free: dict[int, float] = {}
        slow: list[str] = []
        clocks: dict[int, float] = {}
        temperatures: dict[int, float] = {}
        power: dict[int, float] = {}
        for index, handle in self._handles():
            memory = _or_none(pynvml.nvmlDeviceGetMemoryInfo, handle)
            if memory is not None:
                free[index] = memory.free / _MIB
            bits = _or_none(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
            slow += slowdown_words(index, bits or 0)
            clock = _or_none(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)
            if clock is not None and bits is not None and not bits & IDLE_BIT:
                clocks[index] = clock
            temperature = _temperature(handle)
            if temperature is not None:
                temperatures[index] = temperature
            watts = _watts(_or_none(pynvml.nvmlDeviceGetPowerUsage, handle))
            if watts is not None:
                power[index] = watts
        return Sample(
            free_mib=free, slowdowns=tuple(slow), sm_clock_mhz=clocks, temperature_c=temperatures, power_w=power
        )

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """See GpuProbe: what computes and what draws. None when one of the cards does not say."""
        return self._patience.ask(self._processes, None)

    def _processes(self) -> tuple[GpuProcess, ...] | None:
        import pynvml

        found: list[GpuProcess] = []
        cards = 0
        for index, handle in self._handles():
            cards += 1
            listed = _listed(handle)
            if listed is None:
                return None
            found += [
                GpuProcess(
                    index=index,
                    pid=pid,
                    used_mib=used,
                    name=program(_text(_or_none(pynvml.nvmlSystemGetProcessName, pid)) or ""),
                )
                for pid, used in sorted(listed.items())
            ]
        return tuple(found) if cards else None

    def details(self) -> tuple[CardDetails, ...]:
        """See GpuProbe."""
        return self._patience.ask(self._details, ())

    def _details(self) -> tuple[CardDetails, ...]:
        import pynvml as nv

        driver = _text(_or_none(nv.nvmlSystemGetDriverVersion))
        cuda = _cuda(_or_none(nv.nvmlSystemGetCudaDriverVersion_v2))
        cards = []
        for index, handle in self._handles():
            uuid = _text(_or_none(nv.nvmlDeviceGetUUID, handle))
            if uuid is None:
                continue
            memory = _or_none(nv.nvmlDeviceGetMemoryInfo, handle)
            capability = _or_none(nv.nvmlDeviceGetCudaComputeCapability, handle)
            mig = _or_none(nv.nvmlDeviceGetMigMode, handle)
            cards.append(
                CardDetails(
                    index=index,
                    uuid=uuid,
                    name=_text(_or_none(nv.nvmlDeviceGetName, handle)) or "unknown",
                    total_mib=None if memory is None else float(round(memory.total / _MIB)),
                    driver_version=driver,
                    cuda_driver_version=cuda,
                    vbios_version=_text(_or_none(nv.nvmlDeviceGetVbiosVersion, handle)),
                    compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
                    power_limit_w=_watts(_or_none(nv.nvmlDeviceGetPowerManagementLimit, handle)),
                    power_default_w=_watts(_or_none(nv.nvmlDeviceGetPowerManagementDefaultLimit, handle)),
                    max_sm_clock_mhz=_mhz(nv.nvmlDeviceGetMaxClockInfo, handle, nv.NVML_CLOCK_SM),
                    max_memory_clock_mhz=_mhz(nv.nvmlDeviceGetMaxClockInfo, handle, nv.NVML_CLOCK_MEM),
                    # nvidia-smi's `clocks.applications.graphics`: the SM clock follows the graphics clock
                    application_sm_clock_mhz=_mhz(nv.nvmlDeviceGetApplicationsClock, handle, nv.NVML_CLOCK_GRAPHICS),
                    application_memory_clock_mhz=_mhz(nv.nvmlDeviceGetApplicationsClock, handle, nv.NVML_CLOCK_MEM),
                    persistence_mode=_enabled(_or_none(nv.nvmlDeviceGetPersistenceMode, handle)),
                    ecc=_enabled(_or_none(nv.nvmlDeviceGetCurrentEccMode, handle)),
                    mig=None if mig is None else bool(mig[0]),
                    pcie_generation_max=_or_none(nv.nvmlDeviceGetMaxPcieLinkGeneration, handle),
                    pcie_width_max=_or_none(nv.nvmlDeviceGetMaxPcieLinkWidth, handle),
                    pcie_generation_now=_or_none(nv.nvmlDeviceGetCurrPcieLinkGeneration, handle),
                    pcie_width_now=_or_none(nv.nvmlDeviceGetCurrPcieLinkWidth, handle),
                )
            )
        return tuple(cards)

    def attach(self, running: Running) -> None:
        """Nothing to do: the driver sees every process of the host."""


def _listed(handle: Any) -> dict[int, float] | None:
    """MiB by pid of what computes and what draws on a card (0 where hidden); None where neither can be listed."""
    import pynvml

    lists = [
        _or_none(pynvml.nvmlDeviceGetComputeRunningProcesses, handle),
        _or_none(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle),
    ]
    if lists == [None, None]:
        return None
    found: dict[int, float] = {}
    for process in (process for listed in lists for process in listed or ()):
        # a program that does both is in both lists, each time with all it holds
        found[process.pid] = max(found.get(process.pid, 0.0), (process.usedGpuMemory or 0) / _MIB)
    return found
