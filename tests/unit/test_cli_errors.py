"""Bad input, as a new user would give it: an error that says what to do, the right code, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import worlds

BAD_CALLS = [
    pytest.param(("run",), 2, "images.yaml", id="no files"),
    pytest.param(("run", "--images", "none.yaml", "--suite", "suite.yaml"), 2, "none.yaml", id="no such file"),
    pytest.param(("run", "--set", "NAME"), 2, "--set NAME", id="set without value"),
    pytest.param(
        ("run", "--images", "images.yaml", "--suite", "suite.yaml", "--good", "zzz"), 2, "b00", id="no such good"
    ),
    pytest.param(
        ("run", "--images", "images.yaml", "--suite", "suite.yaml", "--good", "b02", "--bad", "b00"),
        2,
        "before",
        id="bad first",
    ),
    pytest.param(
        ("run", "--images", "images.yaml", "--suite", "suite.yaml", "--name", "A B"), 2, "A B", id="bad run name"
    ),
    pytest.param(("probe", "zzz", "--images", "images.yaml", "--suite", "suite.yaml"), 2, "b00", id="no such build"),
    pytest.param(
        ("probe", "b00", "--images", "images.yaml", "--suite", "suite.yaml", "--server", "x"),
        2,
        "bt4096",
        id="no such server",
    ),
    pytest.param(("status",), 2, "no run", id="status of nothing"),
    pytest.param(("resume", "nothing"), 2, "nothing", id="resume nothing"),
    pytest.param(("report", "--format", "pdf"), 2, "pdf", id="unknown format"),
    pytest.param(("mark", "b01", "great", "--target", "t"), 2, "great", id="unknown verdict"),
    pytest.param(("mark", "b01", "--target", "t"), 2, "--undo", id="mark nothing"),
    pytest.param(("frobnicate",), 2, "frobnicate", id="unknown command"),
    pytest.param(("run", "--nope"), 2, "--nope", id="unknown option"),
]


@pytest.mark.parametrize(("call", "code", "named"), BAD_CALLS)
def test_a_stranger_understands(tmp_path, call, code, named):
    """The error names the culprit on stderr; stdout stays empty; there is no traceback."""
    worlds.write(tmp_path, worlds.planted(3, slow_from=1, hungry_from=9))
    if call == ("run",):
        (tmp_path / "images.yaml").unlink()

    done = worlds.bisect(*call, cwd=tmp_path)

    assert done.returncode == code, done.stdout + done.stderr
    assert named in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "call", [("run", "--json"), ("run", "--json", "--nope"), ("status", "--json"), ("resume", "--json")]
)
def test_json_answers_failures_with_one_document(tmp_path, call):
    """With --json a failure is one document on stdout too, with its exit code and reason."""
    done = worlds.bisect(*call, cwd=tmp_path)

    document = json.loads(done.stdout)
    assert (document["exit_code"], document["reason"]) == (2, "usage")
    assert done.returncode == 2
    assert document["message"]


def test_all_problems_of_a_file_come_at_once_with_their_place(tmp_path):
    """file:line:column for each problem, in one go."""
    images, suite = worlds.write(tmp_path, worlds.planted(3, slow_from=1, hungry_from=9))
    images.write_text(images.read_text() + "  - {name: w, taste: 1}\n  - {name: x, colour: red}\n")

    done = worlds.bisect("plan", "--images", images.name, "--suite", suite.name, cwd=tmp_path)

    assert done.returncode == 2
    assert "images.yaml:6:" in done.stderr
    assert "images.yaml:7:" in done.stderr
    assert "colour" in done.stderr


def test_resume_if_unfinished_is_quiet_when_there_is_nothing(tmp_path):
    """At boot, with no unfinished run, it exits 0."""
    done = worlds.bisect("resume", "--if-unfinished", cwd=tmp_path)

    assert (done.returncode, done.stdout) == (0, "")


def test_a_reader_that_goes_away_is_no_bug(tmp_path):
    """`bisect plan --explain | head -0` neither shows a traceback nor blames us."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "imagebisect", "plan", "--explain"],
            stdout=write,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            text=True,
            check=False,
        )
    finally:
        os.close(write)

    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_the_hosts_fault(tmp_path):
    """An answer that cannot be written ends with exit 20 and says why."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "imagebisect", "plan", "--explain"],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            text=True,
            check=False,
        )

    assert done.returncode == 20
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
