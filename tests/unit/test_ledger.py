"""The ledger: whatever kills a run, what was finished stands."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebisect.errors import UsageError
from imagebisect.ledger import RunFolder, create, find, runs
from imagebisect.state import RunStopped, fold
from run_events import created, plan, start

EVENTS = [created(), *start(1, 0, 1415.0), *start(2, 7, 755.0), *start(3, 4, "unknown_flag")]


def fill(path) -> RunFolder:
    """A run folder that holds EVENTS."""
    folder = RunFolder(path)
    path.mkdir()
    for event in EVENTS:
        folder.append(event)
    return folder


def test_events_come_back_as_they_were_written(tmp_path):
    """The state read from disk is the fold of what was appended."""
    assert fold(EVENTS) == fill(tmp_path / "r1").load()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.binary(max_size=40))
def test_cut_at_any_byte_loses_only_the_torn_event(tmp_path_factory, position, junk):
    """A ledger cut anywhere, with junk for a tail, loads its whole events and can be appended to."""
    folder = fill(tmp_path_factory.mktemp("cut") / "r1")
    data = folder.events_path.read_bytes()
    first = data.index(b"\n") + 1
    cut = first + position % (len(data) - first + 1)
    whole = data[:cut].count(b"\n")
    folder.events_path.write_bytes(data[:cut] + junk.replace(b"\n", b"?"))

    assert list(folder.events()) == EVENTS[:whole]
    stopped = RunStopped(at="now", exit_code=130, reason="interrupted", message="x")
    folder.append(stopped)
    assert list(folder.events()) == [*EVENTS[:whole], stopped]


def test_a_broken_line_in_the_middle_is_named_with_its_place(tmp_path):
    """Half a ledger is not silently taken for a whole one."""
    folder = fill(tmp_path / "r1")
    lines = folder.events_path.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"event": "no such"}\n'
    folder.events_path.write_bytes(b"".join(lines))

    with pytest.raises(UsageError) as caught:
        folder.load()
    assert caught.value.where.endswith("events.jsonl:3")


@pytest.mark.parametrize("content", [b"", b'{"event": "run_crea'])
def test_a_run_killed_before_its_first_event_says_so(tmp_path, content):
    """An empty ledger is an error a person understands."""
    folder = RunFolder(tmp_path / "r1")
    folder.path.mkdir()
    folder.events_path.write_bytes(content)

    with pytest.raises(UsageError, match="no beginning"):
        folder.load()


def test_names_and_newest(tmp_path):
    """Runs are found by name or as the newest; a taken or odd name is refused."""
    first = create(tmp_path, plan(), host={}, model_fingerprint="x", tool_version="0", name="one")
    time.sleep(0.01)
    second = create(tmp_path, plan(), host={}, model_fingerprint="x", tool_version="0", name="two")

    assert {first.run_id, second.run_id} == {folder.run_id for folder in runs(tmp_path)}
    assert find(tmp_path, "one").run_id == "one"
    first.append(RunStopped(at="now", exit_code=130, reason="interrupted", message="x"))
    assert find(tmp_path, None).run_id == "two"
    assert find(tmp_path, str(first.path)).run_id == "one"
    for name in ("one", "../evil", "Caps", ""):
        with pytest.raises(UsageError):
            create(tmp_path, plan(), host={}, model_fingerprint="x", tool_version="0", name=name)
    with pytest.raises(UsageError, match="no run"):
        find(tmp_path, "three")
    with pytest.raises(UsageError, match="no run"):
        find(tmp_path / "empty", None)


HOLDER = """
import sys, time
from pathlib import Path
from imagebisect.ledger import RunFolder
with RunFolder(Path(sys.argv[1])).lock(("GPU-test-lock",)):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_and_a_dead_one_blocks_nobody(tmp_path):
    """The lock holds against another process and goes with it, even by kill -9."""
    folder = fill(tmp_path / "r1")
    other = fill(tmp_path / "elsewhere")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="another run"), folder.lock():
            pass
        with pytest.raises(UsageError, match="GPU-test-lock"), RunFolder(tmp_path / "x" / "r").lock(("GPU-test-lock",)):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with other.lock(("GPU-test-lock",)):
        pass
