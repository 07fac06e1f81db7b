"""The stand-in's nvidia-smi and cards: what they are, and what is planted on them from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from imagebisect.measure import gpu
from imagebisect.measure.smi import _CARD_FIELDS, _DETAIL_FIELDS, _SAMPLE_FIELDS
from imagebisect.simulator import cards, events
from imagebisect.simulator.profile import Profile
from imagebisect.simulator.smi import main as nvidia_smi


@pytest.fixture
def ask(tmp_path, capsys):
    """Run the stand-in's nvidia-smi on the folder's cards; its output."""

    def asked(*arguments):
        assert nvidia_smi(["--state-dir", str(tmp_path), *arguments]) == 0
        return capsys.readouterr().out

    return asked


def server(folder, pid=None, mib=1000.0):
    """A server's memory on both cards."""
    registration = cards.Registration(folder, profile=Profile(), pid=pid or os.getpid(), cards=(0, 1))
    registration.hold(mib)
    return registration


def free(folder):
    """Free MiB of each card."""
    return [round(card.total_mib - card.used_mib) for card in cards.read(folder)]


def test_it_answers_every_field_that_the_probes_ask_for(ask):
    """Those of a look, of a card, of what a card is."""
    for fields in (_CARD_FIELDS, _SAMPLE_FIELDS, tuple(_DETAIL_FIELDS.values())):
        rows = ask(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits").splitlines()
        assert [len(row.split(", ")) for row in rows] == [len(fields)] * 2


def test_units_stand_in_the_header_and_not_beside_what_is_not_there(ask):
    """As the real one prints them."""
    text = ask("--query-gpu=power.limit,clocks.max.sm,clocks.applications.graphics", "--format=csv", "-i", "0")

    assert (
        text == "power.limit [W], clocks.max.sm [MHz], clocks.applications.graphics [MHz]\n300.00 W, 3135 MHz, [N/A]\n"
    )


def test_the_overview_names_the_versions(ask):
    """Nobody can query the CUDA version by a field."""
    assert "Driver Version: 580.65.06 " in ask()
    assert "CUDA Version: 13.0 " in ask()


def test_the_links_generation_falls_while_nothing_runs(tmp_path, ask):
    """So a fingerprint must not hold it."""
    query = ("--query-gpu=pcie.link.gen.current,pcie.link.gen.max", "--format=csv,noheader", "-i", "0")
    assert ask(*query) == "1, 5\n"

    with_server = server(tmp_path)

    assert ask(*query) == "5, 5\n"
    with_server.close()


def test_a_foreign_process_comes_grows_and_goes(tmp_path):
    """Its memory is missing, its name and pid are listed, until it is taken back."""
    probe = gpu.SmiProbe("all", argv=gpu.standin_argv(tmp_path))
    folder = tmp_path / "standin"
    came = events.plant(folder, foreign={1: 500}, pid=4321, name="trainer")
    assert [(p.index, p.pid, p.used_mib, p.name) for p in probe.processes() or ()] == [(1, 4321, 500.0, "trainer")]
    assert free(folder) == [15270, 14770]
    grew = events.plant(folder, foreign={1: 900}, pid=4321, name="trainer")

    assert free(folder) == [15270, 14370]

    events.clear(folder, came, grew)
    assert probe.processes() == ()
    assert free(folder) == [15270, 15270]


def test_an_event_begins_and_ends_at_its_time(tmp_path):
    """A test plants it before a run and it happens in the middle."""
    planted = time.monotonic()
    events.plant(tmp_path, foreign={0: 100}, after_s=0.5, for_s=0.5)
    seen = []
    while time.monotonic() < planted + 1.3:
        seen.append((time.monotonic() - planted, free(tmp_path)[0]))
        time.sleep(0.02)

    held = [at for at, size in seen if size == 15170]
    assert held
    assert min(held) >= 0.48
    assert max(held) <= 1.02
    assert seen[-1][1] == 15270


def test_a_slowdown_shows_in_bits_clock_and_temperature(tmp_path, ask):
    """On the card that it is planted on; on all cards where none is named."""
    query = (
        "--query-gpu=clocks_event_reasons.active,clocks.sm,temperature.gpu,clocks_event_reasons.hw_thermal_slowdown",
    )
    planted = events.plant(tmp_path, slowdown_bits={1: 0x44})
    rows = ask(*query, "--format=csv,noheader,nounits").splitlines()
    assert rows == ["0x0000000000000001, 210, 38, Not Active", "0x0000000000000044, 1185, 92, Active"]
    events.clear(tmp_path, planted)
    events.plant(tmp_path, slowdown_bits=0x80)

    rows = ask(*query, "--format=csv,noheader,nounits").splitlines()

    assert rows == ["0x0000000000000080, 1185, 38, Not Active"] * 2


def test_a_changed_power_limit_is_a_changed_card(tmp_path):
    """Somebody set it while a run was stopped."""
    probe = gpu.SmiProbe("all", argv=gpu.standin_argv(tmp_path))
    events.plant(tmp_path / "standin", power_limit_w=250)

    assert [(card.power_limit_w, card.power_default_w) for card in probe.details()] == [(250.0, 300.0)] * 2


@pytest.mark.parametrize("killed", [False, True])
def test_a_card_may_not_come_back(tmp_path, killed):
    """After a clean end or a kill the memory stays held by a pid that is dead, until that is taken back."""
    events.plant(tmp_path, leftover=True)
    if killed:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        server(tmp_path, process.pid)
        process.kill()
        process.wait()
        pid = process.pid
    else:
        server(tmp_path).close()
        pid = os.getpid()

    assert [card.processes for card in cards.read(tmp_path)] == [((pid, 1000.0),)] * 2

    events.clear(tmp_path)
    assert free(tmp_path) == [15270, 15270]


def test_a_wedged_nvidia_smi_says_nothing(tmp_path):
    """A probe with a deadline of its own goes on without it."""
    events.plant(tmp_path / "standin", wedged_s=60)
    probe = gpu.SmiProbe("all", argv=gpu.standin_argv(tmp_path), command=lambda argv: gpu.run_here(argv, timeout_s=1.0))
    began = time.monotonic()

    assert probe.processes() is None

    assert time.monotonic() - began < 10
