"""Reading GPU memory: a recorded nvidia-smi, stand-in commands, and hosts without any GPU."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from imagebisect.domain import ImageSource, Server, SimulatedSource, VenvSource
from imagebisect.errors import EnvironmentFault
from imagebisect.measure import gpu

UUIDS = ("GPU-01bdf941-0a7a-585e-b49a-c7876b6b20c1", "GPU-5b7c4991-d3e1-173f-ce96-7e4e99d57cf8")
CARDS = f"0, {UUIDS[0]}, NVIDIA H200, 143771, 143156\n1, {UUIDS[1]}, NVIDIA H200, 143771, 111210\n"
APPS = f"{UUIDS[1]}, 4711, 31930\n{UUIDS[1]}, 4712, [N/A]\n"


def server(gpus):
    """A server on these cards."""
    return Server(name="s", gpus=gpus)


def command(answers):
    """Answers each query by its first words; keeps what was asked."""
    asked = []

    def run(argv):
        asked.append(argv)
        for words, text in answers.items():
            if any(words in part for part in argv):
                return 0, text
        return 9, "error"

    return run, asked


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Puts a real executable called nvidia-smi first on PATH."""

    def put(script: str) -> None:
        path = tmp_path / "bin" / "nvidia-smi"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")

    return put


def test_cards_and_their_processes_are_read():
    """Free memory, and who is on the card; a size that the driver hides counts as 0."""
    cards = gpu.parse_smi(CARDS, APPS)

    assert [(card.index, card.free_mib, card.total_mib) for card in cards] == [(0, 143156, 143771), (1, 111210, 143771)]
    assert cards[1].processes == ((4711, 31930.0), (4712, 0.0))


def test_messages_between_the_rows_are_passed_over():
    """A lost card, a warning, a torn last row."""
    text = f"Unable to determine the device handle for GPU 0000:01:00.0\n{CARDS}2, GPU-x, NVIDIA, [N/A], [N/A]\n1, GPU"

    assert len(gpu.parse_smi(text)) == 2


@pytest.mark.parametrize(("gpus", "indices"), [("all", [0, 1]), ((1,), [1]), ((0, 1), [0, 1]), ((5,), [])])
def test_only_the_servers_cards_count(gpus, indices):
    """A busy neighbour card is nobody's business."""
    run, _ = command({"--query-gpu": CARDS, "--query-compute-apps": APPS})

    assert [card.index for card in gpu.SmiProbe(gpus, command=run).read()] == indices


def test_slowed_clocks_are_seen_and_the_power_cap_is_not():
    """0x40 is thermal; 0x4 is the ordinary power cap under load."""
    run, _ = command(
        {
            "clocks_event": "0, 1000, 0x0000000000000044, 1185, 91, 290.10\n1, 2000, 0x0000000000000004, 1905, 60, 300.0\n"
        }
    )

    seen = gpu.SmiProbe("all", command=run).sample()

    assert seen.free_mib == {0: 1000.0, 1: 2000.0}
    assert seen.slowdowns == ("GPU 0: hardware thermal slowdown",)


def driver(known, row):
    """An nvidia-smi of a driver that knows these fields and answers one card's `row`; keeps what was asked."""
    asked = []

    def run(argv):
        fields = argv[1].partition("=")[2].split(",")
        asked.append(fields)
        unknown = next((field for field in fields if field not in known), None)
        if unknown:
            return 2, f'Field "{unknown}" is not a valid field to query.\n\n'
        return 0, ", ".join(row[field] for field in fields) + "\n"

    return run, asked


def test_what_an_old_driver_does_not_know_is_left_out():
    """The reasons by their old name, no power: the rest still comes, and the second look asks once."""
    row = {
        "index": "0",
        "memory.free": "1000",
        "clocks_throttle_reasons.active": "0x0000000000000040",
        "clocks.sm": "1185",
        "temperature.gpu": "91",
    }
    run, asked = driver(set(row), row)
    probe = gpu.SmiProbe("all", command=run)

    first = probe.sample()
    tries = len(asked)

    assert (first.free_mib, first.slowdowns) == ({0: 1000.0}, ("GPU 0: hardware thermal slowdown",))
    assert (first.sm_clock_mhz, first.temperature_c, first.power_w) == ({0: 1185.0}, {0: 91.0}, {})
    assert probe.sample() == first
    assert len(asked) == tries + 1


def test_a_driver_that_names_no_field_still_gives_memory():
    """Whatever it is that it does not know, it is asked for the least from then on."""

    def old(argv):
        return (0, "0, 1000\n") if argv[1] == "--query-gpu=index,memory.free" else (2, "not a valid field")

    probe = gpu.SmiProbe("all", command=old)

    assert probe.sample().free_mib == {0: 1000.0}


def test_one_failure_forgets_no_field():
    """A driver that is away for a moment is asked for everything again."""
    answers = iter([(127, ""), (0, "0, 1000, 0x0000000000000008, 1185, 91, 290.10\n")])
    probe = gpu.SmiProbe("all", command=lambda _: next(answers))

    assert probe.sample().free_mib == {}
    assert probe.sample().slowdowns == ("GPU 0: hardware slowdown",)


def test_what_a_card_does_not_say_is_left_out_of_a_look():
    """[N/A] is no number; an idle card's clock says nothing of a load."""
    run, _ = command(
        {"memory.free": "0, [N/A], [N/A], 210, [N/A], 18.1\n1, 2000, 0x0000000000000001, 210, 38, [N/A]\n"}
    )

    seen = gpu.SmiProbe("all", command=run).sample()

    assert (seen.free_mib, seen.slowdowns, seen.sm_clock_mhz) == ({1: 2000.0}, (), {})
    assert (seen.temperature_c, seen.power_w) == ({1: 38.0}, {0: 18.1})


def test_processes_are_named_without_their_folder():
    """A folder may hold a user's name; a program's name may hold a comma."""
    apps = f"{UUIDS[1]}, 4711, 31930, /home/ann/env/bin/python3\n{UUIDS[0]}, 12, [N/A], VLLM::Worker, TP0\n"
    run, _ = command({"compute-apps": apps, "--query-gpu=index,uuid": f"0, {UUIDS[0]}\n1, {UUIDS[1]}\n"})

    assert gpu.SmiProbe("all", command=run).processes() == (
        gpu.GpuProcess(index=0, pid=12, used_mib=0.0, name="VLLM::Worker, TP0"),
        gpu.GpuProcess(index=1, pid=4711, used_mib=31930.0, name="python3"),
    )
    assert [process.pid for process in gpu.SmiProbe((1,), command=run).processes() or ()] == [4711]


def test_no_processes_is_not_the_same_as_no_answer():
    """An idle card lists nothing; a driver that fails says nothing."""
    assert gpu.SmiProbe("all", command=lambda _: (0, "")).processes() == ()
    assert gpu.SmiProbe("all", command=lambda _: (9, "")).processes() is None
    assert gpu.NoProbe().processes() is None


def test_what_a_real_card_is():
    """An H200's own answer (driver 580.159.04)."""
    row = (
        f"0, {UUIDS[0]}, NVIDIA H200, 143771, 580.159.04, 96.00.A5.00.1A, 9.0, 700.00, 700.00, 1980, 3201, 1980, 3201, "
        "Enabled, Enabled, Disabled, 5, 16, 5, 16\n"
    )
    overview = "| NVIDIA-SMI 580.159.04             Driver Version: 580.159.04     CUDA Version: 13.0     |\n"

    def run(argv):
        return 0, row if len(argv) > 1 else overview

    assert gpu.SmiProbe("all", command=run).details() == (
        gpu.CardDetails(
            index=0,
            uuid=UUIDS[0],
            name="NVIDIA H200",
            total_mib=143771.0,
            driver_version="580.159.04",
            cuda_driver_version="13.0",
            vbios_version="96.00.A5.00.1A",
            compute_capability="9.0",
            power_limit_w=700.0,
            power_default_w=700.0,
            max_sm_clock_mhz=1980.0,
            max_memory_clock_mhz=3201.0,
            application_sm_clock_mhz=1980.0,
            application_memory_clock_mhz=3201.0,
            persistence_mode=True,
            ecc=True,
            mig=False,
            pcie_generation_max=5,
            pcie_width_max=16,
            pcie_generation_now=5,
            pcie_width_now=16,
        ),
    )


def test_what_a_card_does_not_tell_is_unknown():
    """A consumer card has no ECC, no MIG, no application clocks; an old driver has no compute capability."""
    row = {
        "index": "0", "uuid": UUIDS[0], "name": "NVIDIA GeForce RTX 3090", "memory.total": "24576",
        "driver_version": "470.82.01", "vbios_version": "94.02", "power.limit": "350.00",
        "power.default_limit": "[Not Supported]", "clocks.max.sm": "2100", "clocks.max.memory": "9751",
        "clocks.applications.graphics": "[N/A]", "clocks.applications.memory": "[N/A]", "persistence_mode": "Disabled",
        "ecc.mode.current": "[N/A]", "mig.mode.current": "[N/A]", "pcie.link.gen.max": "4", "pcie.link.width.max": "16",
        "pcie.link.gen.current": "1", "pcie.link.width.current": "8",
    }  # fmt: skip
    run, _ = driver(set(row), row)

    (card,) = gpu.SmiProbe("all", command=lambda argv: run(argv) if len(argv) > 1 else (9, "")).details()

    assert (card.ecc, card.mig, card.application_sm_clock_mhz, card.power_default_w) == (None, None, None, None)
    assert (card.compute_capability, card.cuda_driver_version) == (None, None)
    assert (card.power_limit_w, card.persistence_mode, card.pcie_generation_max, card.pcie_width_now) == (
        350.0,
        False,
        4,
        8,
    )


def test_a_command_that_hangs_is_ended_with_all_it_started(on_path, tmp_path):
    """A wrapper script around a wedged nvidia-smi leaves nothing running."""
    on_path(f"sleep 60 & echo $! > {tmp_path}/child; wait")
    began = time.monotonic()

    assert gpu.run_here(("nvidia-smi",), timeout_s=0.3) == (127, "")

    assert time.monotonic() - began < 5
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child)


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_no_gpus_asked_for_means_none_read(tmp_path):
    """`gpus: none`, or a suite that asks for no probe."""
    assert gpu.choose(server("none"), VenvSource(path="/x"), "auto", tmp_path).source == "none"
    assert gpu.choose(server((0,)), VenvSource(path="/x"), "none", tmp_path).source == "none"


def test_a_simulated_build_has_the_runs_own_cards(tmp_path):
    """The stand-in's nvidia-smi answers before any server was started."""
    probe = gpu.choose(server((0, 1)), SimulatedSource(profile={}), "auto", tmp_path)

    assert probe.source == "nvidia-smi"
    assert isinstance(probe, gpu.SmiProbe)
    assert str(tmp_path / "standin") in probe.argv


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this host has a GPU")  # noqa: PTH110
def test_a_host_without_gpus_reads_inside_the_container(tmp_path):
    """No NVML, no nvidia-smi: an image is asked by exec once it runs, a process not at all."""
    image = gpu.choose(server("all"), ImageSource(repository="r"), "auto", tmp_path)

    assert (image.source, image.read()) == ("exec", ())
    assert gpu.choose(server("all"), VenvSource(path="/x"), "auto", tmp_path).source == "none"
    for asked in ("nvml", "nvidia-smi"):
        with pytest.raises(EnvironmentFault) as caught:
            gpu.choose(server("all"), ImageSource(repository="r"), asked, tmp_path)
        assert caught.value.cause == "no_gpu"
        assert caught.value.next_step


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this host has a GPU")  # noqa: PTH110
def test_the_hosts_nvidia_smi_is_used_where_nvml_is_not(tmp_path, on_path):
    """A real command on PATH, asked for the fields that every driver knows."""
    on_path(f'case "$1" in --query-gpu=index,uuid*) printf "{CARDS.replace(chr(10), chr(92) + "n")}";; esac')

    probe = gpu.choose(server((1,)), ImageSource(repository="r"), "auto", tmp_path)

    assert probe.source == "nvidia-smi"
    assert [card.uuid for card in probe.read()] == [UUIDS[1]]


def test_a_missing_or_failing_command_reads_nothing(on_path):
    """A wedged driver is no reason to fail a measurement."""
    assert gpu.run_here(("no-such-command-anywhere",)) == (127, "")
    on_path("exit 9")
    assert gpu.SmiProbe("all").read() == ()
    assert gpu.SmiProbe("all").sample().free_mib == {}
