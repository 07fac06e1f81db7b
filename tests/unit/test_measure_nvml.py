"""The driver's library, which no host without a card has: its functions answer what an H200 answered."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pynvml
import pytest

from imagebisect.measure import nvml
from imagebisect.measure.nvml import NvmlProbe

MIB = 1 << 20


def refuse(*_):
    """What a driver says of a card that has no such thing."""
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def driver(monkeypatch):
    """Two H200 whose answers a test may change, by the function's name."""
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlSystemGetDriverVersion": lambda: "580.159.04",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=143771 * MIB, free=143155 * MIB),
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": lambda _: "NVIDIA H200",
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [],
        "nvmlDeviceGetGraphicsRunningProcesses": lambda _: [],
        "nvmlSystemGetProcessName": lambda _: "/home/ann/env/bin/python3",
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x0,
        "nvmlDeviceGetClockInfo": lambda *_: 1980,
        "nvmlDeviceGetMaxClockInfo": lambda _, kind: 3201 if kind == pynvml.NVML_CLOCK_MEM else 1980,
        "nvmlDeviceGetApplicationsClock": refuse,
        "nvmlDeviceGetTemperatureV": lambda *_: 57,
        "nvmlDeviceGetTemperature": lambda *_: 57,
        "nvmlDeviceGetPowerUsage": lambda _: 606414,
        "nvmlDeviceGetPowerManagementLimit": lambda _: 700000,
        "nvmlDeviceGetPowerManagementDefaultLimit": lambda _: 700000,
        "nvmlDeviceGetVbiosVersion": lambda _: "96.00.A5.00.1A",
        "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
        "nvmlDeviceGetMigMode": lambda _: [0, 0],
        "nvmlDeviceGetPersistenceMode": lambda _: 1,
        "nvmlDeviceGetCurrentEccMode": lambda _: 1,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 5,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda _: 16,
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 5,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda _: 16,
    }

    def put(**changed):
        for name, answer in {**answers, **changed}.items():
            monkeypatch.setattr(pynvml, name, answer)

    put()
    return put


def process(pid, mib):
    """A process as the library gives it."""
    return SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB)


def test_what_computes_and_what_draws_is_listed_once(driver):
    """A program that does both counts once; a hidden size is 0; the name comes without its folder."""
    driver(
        nvmlDeviceGetComputeRunningProcesses=lambda card: [process(7, 900), process(8, None)] if card == 1 else [],
        nvmlDeviceGetGraphicsRunningProcesses=lambda card: [process(7, 900), process(9, 60)] if card == 1 else refuse(),
    )

    found = NvmlProbe("all").processes() or ()

    assert [(p.index, p.pid, p.used_mib, p.name) for p in found] == [
        (1, 7, 900.0, "python3"),
        (1, 8, 0.0, "python3"),
        (1, 9, 60.0, "python3"),
    ]
    assert NvmlProbe((0,)).processes() == ()
    assert NvmlProbe("all").read()[1].processes == ((7, 900.0), (8, 0.0), (9, 60.0))


def test_a_card_that_lists_no_processes_makes_the_list_unknown(driver):
    """Half a list would make the other half look new later."""
    driver(
        nvmlDeviceGetComputeRunningProcesses=lambda card: refuse() if card == 1 else [],
        nvmlDeviceGetGraphicsRunningProcesses=lambda card: refuse() if card == 1 else [],
    )

    assert NvmlProbe("all").processes() is None
    assert NvmlProbe((0,)).processes() == ()
    assert len(NvmlProbe("all").read()) == 2


def test_a_look_has_what_the_card_says(driver):
    """The clock counts while the card is busy; what one card refuses costs no other value."""
    driver(
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda card: 0x41 if card == 1 else 0x4,
        nvmlDeviceGetPowerUsage=lambda card: refuse() if card == 1 else 606414,
        nvmlDeviceGetTemperatureV=refuse,
    )

    seen = NvmlProbe("all").sample()

    assert seen.free_mib == {0: 143155.0, 1: 143155.0}
    assert seen.slowdowns == ("GPU 1: hardware thermal slowdown",)
    assert (seen.sm_clock_mhz, seen.temperature_c, seen.power_w) == ({0: 1980.0}, {0: 57.0, 1: 57.0}, {0: 606.414})


def test_what_a_card_is(driver):
    """In the same words and units as nvidia-smi; what is not supported is unknown."""
    driver(nvmlDeviceGetMigMode=refuse, nvmlDeviceGetCurrentEccMode=refuse)

    card = NvmlProbe((1,)).details()[0]

    assert (card.index, card.uuid, card.total_mib) == (1, "GPU-1", 143771.0)
    assert (card.driver_version, card.cuda_driver_version, card.compute_capability) == ("580.159.04", "13.0", "9.0")
    assert (card.power_limit_w, card.max_sm_clock_mhz, card.max_memory_clock_mhz) == (700.0, 1980.0, 3201.0)
    assert (card.ecc, card.mig, card.application_sm_clock_mhz) == (None, None, None)
    assert (card.pcie_generation_max, card.pcie_width_max, card.persistence_mode) == (5, 16, True)


def test_a_card_that_fell_off_the_bus_is_left_out(driver):
    """The others are still read."""
    driver(nvmlDeviceGetHandleByIndex=lambda index: refuse() if index == 0 else index)

    assert [card.index for card in NvmlProbe("all").read()] == [1]
    assert [card.index for card in NvmlProbe("all").details()] == [1]


def test_a_driver_that_hangs_hangs_nobody(driver, monkeypatch):
    """The cards count as unreadable, and are asked again once it answers."""
    monkeypatch.setattr(nvml, "_ANSWER_S", 0.2)
    go = threading.Event()

    def hang(_):
        go.wait(30)
        return SimpleNamespace(total=MIB, free=MIB)

    probe = NvmlProbe("all")
    driver(nvmlDeviceGetMemoryInfo=hang)
    began = time.monotonic()

    assert (probe.read(), probe.sample().free_mib, probe.processes(), probe.details()) == ((), {}, None, ())
    assert time.monotonic() - began < 1
    go.set()
    time.sleep(0.1)
    assert len(probe.read()) == 2


def test_a_driver_that_hangs_at_once_is_no_driver(driver, monkeypatch):
    """Nobody waits for ever before anything was started."""
    monkeypatch.setattr(nvml, "_ANSWER_S", 0.1)
    go = threading.Event()
    driver(nvmlInit=lambda: go.wait(30) and None)

    with pytest.raises(OSError, match="does not answer"):
        NvmlProbe("all")
    go.set()
