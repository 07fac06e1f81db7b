"""One start: where its cards should be, and what it gathers of its build."""

from __future__ import annotations

import dataclasses

import pytest

import run_events
from imagebisect import start
from imagebisect.domain import CardMemory, Identity
from imagebisect.errors import EnvironmentFault
from imagebisect.interrupt import StopFlag
from imagebisect.outcome import Cause
from imagebisect.state import StartReady, fold


def card(free_mib, index=0, processes=()):
    """A card with so much free."""
    return CardMemory(
        index=index, uuid=f"GPU-{index}", name="x", total_mib=16000, free_mib=free_mib, processes=processes
    )


class Reads:
    """A probe that answers what it was given, the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def read(self):
        """The next answer."""
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_cards_are_compared_with_the_runs_first_look_whatever_server_it_was_for():
    """A start of another server left memory held: the next server's start knows what was free before."""
    intended, *rest = run_events.start(1, 0, 100.0)
    later = dataclasses.replace(intended, start_id="0002", server="other", baseline=(card(2000),))
    first = dataclasses.replace(intended, baseline=(card(15000), card(14000, 1)))
    state = fold([run_events.created(), first, *rest, later])

    assert start.first_seen(state) == (card(15000), card(14000, 1))


def test_a_card_below_its_baseline_is_named_with_who_is_on_it():
    """It does not come back: the host is at fault, with card, sizes and pids; a card that comes back is waited for."""
    held = card(2000, processes=((77, 13000.0),))
    with pytest.raises(EnvironmentFault) as caught:
        start.settled_cards(Reads((held,)), (card(15000),), StopFlag(), settle_s=0.1)
    assert caught.value.cause == Cause.GPU_BUSY
    assert "GPU 0 has 2000 MiB free, 13000 MiB less" in caught.value.what
    assert "pid 77 13000 MiB" in caught.value.what

    back = start.settled_cards(Reads((held,), (held,), (card(14990),)), (card(15000),), StopFlag(), settle_s=5)
    assert back == (card(14990),)


class Server:
    """A running server that is asked nothing but its packages."""

    url = "http://127.0.0.1:1"

    def __init__(self, folder, version):
        self.spec = type("Spec", (), {"log_path": folder / "server.log"})()
        self.spec.log_path.write_text(
            f"INFO 11-30 23:57:09 [core.py:1] Initializing a V1 LLM engine (v{version}) with config: x\n"
        )
        self.asked = 0

    def run_python(self, _code, _timeout_s):
        """Two packages."""
        self.asked += 1
        return 0, 'IMAGEBISECT {"packages": {"torch": "2.13.0", "vllm": "0.26.0"}, "torch_cuda": "13.0"}'


def test_packages_are_asked_once_a_build(tmp_path):
    """They do not change between starts of one build, so the second start takes them from the record."""
    server = Server(tmp_path, "0.26.0")
    state = fold([run_events.created()])
    found = start.gather_facts(state, 0, server, said_version=None)
    assert (found["torch"], found["cuda"], server.asked) == ("2.13.0", "13.0", 1)

    intended, _ready, *rest = run_events.start(1, 0, 100.0)
    state = fold([run_events.created(), intended, StartReady(start_id="0001", boot_s=1.0, facts=found), *rest])
    again = start.gather_facts(state, 0, server, said_version=None)
    other = start.gather_facts(state, 1, server, said_version=None)

    assert again["packages"] == found["packages"]
    assert other["torch"] == "2.13.0"
    assert server.asked == 2


def test_a_label_and_a_version_that_contradict_each_other_are_both_told(tmp_path):
    """The image's label is the commit; a version that names another one is said."""
    right, wrong = "a9a17e709" + "0" * 31, "b" * 40
    server = Server(tmp_path, "0.26.1rc1.dev1177+ga9a17e709")
    state = fold([run_events.created()])

    for label, contradiction in ((right, False), (wrong, True)):
        known = dataclasses.replace(state, identities={0: Identity(id="sha256:x", revision=label)})
        found = start.gather_facts(known, 0, server, said_version=None)
        assert found["commit"] == label
        assert ("commit_contradiction" in found) == contradiction
    assert start.gather_facts(state, 0, server, said_version=None)["commit"] == "a9a17e709"
