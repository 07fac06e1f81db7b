"""Reading GPU memory: a recorded nvidia-smi, stand-in commands, and hosts without any GPU."""

from __future__ import annotations

import contextlib
import os
import stat
import time

import pytest

from imagebisect.domain import Server
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
    run, _ = command({"clocks_event": "0, 1000, 0x0000000000000044\n1, 2000, 0x0000000000000004\n"})

    seen = gpu.SmiProbe("all", command=run).sample()

    assert seen.free_mib == {0: 1000.0, 1: 2000.0}
    assert seen.slowdowns == ("GPU 0: hardware thermal slowdown",)


def test_a_driver_without_the_clock_field_still_gives_memory():
    """The field is asked for once and then left out."""
    run, asked = command({"memory.free": "0, 1000\n"})

    def old(argv):
        return (2, "not a valid field") if "clocks_event" in argv[1] else run(argv)

    probe = gpu.SmiProbe("all", command=old)

    assert probe.sample().free_mib == {0: 1000.0}
    assert probe.sample().free_mib == {0: 1000.0}
    assert len(asked) == 2


def test_no_gpus_asked_for_means_none_read(tmp_path):
    """`gpus: none`, or a suite that asks for no probe."""
    assert gpu.choose(server("none"), "venv", "auto", tmp_path).source == "none"
    assert gpu.choose(server((0,)), "venv", "none", tmp_path).source == "none"


def test_a_simulated_build_has_the_runs_own_cards(tmp_path):
    """The stand-in's nvidia-smi answers before any server was started."""
    probe = gpu.choose(server((0, 1)), "simulated", "auto", tmp_path)

    assert probe.source == "nvidia-smi"
    assert isinstance(probe, gpu.SmiProbe)
    assert str(tmp_path / "standin") in probe.argv


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this host has a GPU")  # noqa: PTH110
def test_a_host_without_gpus_reads_inside_the_container(tmp_path):
    """No NVML, no nvidia-smi: an image is asked by exec once it runs, a process not at all."""
    image = gpu.choose(server("all"), "image", "auto", tmp_path)

    assert (image.source, image.read()) == ("exec", ())
    assert gpu.choose(server("all"), "venv", "auto", tmp_path).source == "none"
    for asked in ("nvml", "nvidia-smi"):
        with pytest.raises(EnvironmentFault) as caught:
            gpu.choose(server("all"), "image", asked, tmp_path)
        assert caught.value.cause == "no_gpu"
        assert caught.value.next_step


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this host has a GPU")  # noqa: PTH110
def test_the_hosts_nvidia_smi_is_used_where_nvml_is_not(tmp_path, on_path):
    """A real command on PATH, asked for the fields that every driver knows."""
    on_path(f'case "$1" in --query-gpu=index,uuid*) printf "{CARDS.replace(chr(10), chr(92) + "n")}";; esac')

    probe = gpu.choose(server((1,)), "image", "auto", tmp_path)

    assert probe.source == "nvidia-smi"
    assert [card.uuid for card in probe.read()] == [UUIDS[1]]


def test_a_missing_or_failing_command_reads_nothing(on_path):
    """A wedged driver is no reason to fail a measurement."""
    assert gpu.run_here(("no-such-command-anywhere",)) == (127, "")
    on_path("exit 9")
    assert gpu.SmiProbe("all").read() == ()
    assert gpu.SmiProbe("all").sample().free_mib == {}


def test_the_least_free_memory_is_kept_and_the_sampler_ends():
    """What dipped while the block ran is seen; the thread is gone after it, also after an error."""
    sizes = iter([1000, 400, 900])
    probe = gpu.SmiProbe("all", command=lambda _: (0, f"0, {next(sizes, 950)}, 0x0\n"), interval_s=0.01)

    with contextlib.suppress(ZeroDivisionError), gpu.sampling(probe) as lowest:
        time.sleep(0.2)
        _ = 1 / 0

    assert lowest.worst_mib == 400.0
    reads = lowest.reads
    time.sleep(0.05)
    assert lowest.reads == reads
