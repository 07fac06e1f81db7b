"""`status`, `report` and `mark` over a run on disk."""

from __future__ import annotations

import json

import pytest

import report_runs
import run_events
import worlds
from imagebisect import ledger
from imagebisect.state import RunFinished


@pytest.fixture
def stopped(tmp_path):
    """A run in tmp_path/results that stopped before its answer; its folder."""
    plan = run_events.plan()
    folder = ledger.create(
        tmp_path / "results", plan, host={"cpus": 2}, model_fingerprint="none", tool_version="0", name="r1"
    )
    for number, (build, value) in enumerate(((0, 1415.0), (7, 755.0), (7, 755.0), (0, 1415.0)), start=1):
        for event in run_events.start(number, build, value):
            folder.append(event)
    return folder


@pytest.fixture
def finished(tmp_path):
    """A run with an answer: b3 last good, b4 untestable, b5 first bad."""
    truth = report_runs.step(5, b4="unknown_flag")
    plan = run_events.plan()
    folder = ledger.create(
        tmp_path / "results", plan, host={"cpus": 2}, model_fingerprint="none", tool_version="0", name="r2"
    )
    for start in report_runs.finished(truth, plan).starts:
        number, build = int(start.intended.start_id), start.intended.build
        for event in run_events.start(number, build, truth(build), confirms=start.intended.confirms):
            folder.append(event)
    folder.append(RunFinished(at=ledger.utc_now(), exit_code=11))
    return folder


@pytest.mark.usefixtures("stopped")
def test_status_says_where_it_stands_and_how_to_go_on(tmp_path):
    """The bracket so far, what comes next and why, and the command to type."""
    done = worlds.bisect("status", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "long-prefill: OPEN" in done.stdout
    assert "next: b3 on s" in done.stdout or "next: b4 on s" in done.stdout
    assert "to go on: bisect resume r1\n" in done.stdout


@pytest.mark.usefixtures("stopped")
def test_status_in_json_names_the_next_start(tmp_path):
    """A script can tell what would be started next."""
    done = worlds.bisect("status", "--json", cwd=tmp_path)

    document = json.loads(done.stdout)
    assert document["next"]["server"] == "s"
    assert document["starts_left"] >= 3


@pytest.mark.usefixtures("finished")
def test_status_says_why(tmp_path):
    """Every start with its reason, the end with its conditions; --verbose adds what was chosen from."""
    short = worlds.bisect("status", "--why", cwd=tmp_path)
    long = worlds.bisect("status", "r2", "--why", "--verbose", cwd=tmp_path)

    assert short.returncode == long.returncode == 0, short.stderr + long.stderr
    assert "=> long-prefill: NARROWED (untestable)" in short.stdout
    assert "NO  builds between" in short.stdout
    assert "chosen from" not in short.stdout
    assert "chosen from" in long.stdout


@pytest.mark.usefixtures("finished")
def test_status_tells_one_builds_story(tmp_path):
    """By --build, or by its name alone; a build that is not there is a usage error that lists those that are."""
    named = worlds.bisect("status", "r2", "--why", "--build", "b5", cwd=tmp_path)
    alone = worlds.bisect("status", "--why", "b5", cwd=tmp_path)
    wrong = worlds.bisect("status", "--build", "b99", cwd=tmp_path)

    assert named.returncode == alone.returncode == 0, named.stderr + alone.stderr
    assert named.stdout == alone.stdout
    assert named.stdout.startswith("b5 for long-prefill: BAD - ")
    assert wrong.returncode == 2
    assert "b0, b1" in wrong.stderr


@pytest.mark.usefixtures("stopped")
def test_the_reasons_are_one_json_document(tmp_path):
    """A script gets all of it: starts, candidates, conditions, what comes next."""
    done = worlds.bisect("status", "--why", "--json", cwd=tmp_path)

    document = json.loads(done.stdout)
    assert (document["schema"], document["reason"]) == (1, "unfinished")
    told = document["why"]
    assert [start["build"] for start in told["starts"]] == ["b0", "b7", "b7", "b0"]
    assert told["next"]["choice"]["candidates"][0]["gain"]["long-prefill"] > 0.5


def test_a_probe_has_no_reasons(tmp_path, stopped):
    """Nothing is decided in a probe; its status is named instead."""
    events = stopped.events_path
    events.write_text(events.read_text().replace('"purpose":"search"', '"purpose":"probe"', 1))

    done = worlds.bisect("status", "--why", cwd=tmp_path)

    assert done.returncode == 2
    assert "bisect status r1" in done.stderr


@pytest.mark.parametrize(
    ("form", "needed"),
    [
        ("terminal", "NARROWED"),
        ("markdown", "| last good | b3 |"),
        ("csv", "build,digest,start"),
        ("json", '"first_bad"'),
    ],
)
@pytest.mark.usefixtures("finished")
def test_every_format(tmp_path, form, needed):
    """Each format goes to stdout, or to a file when one is named."""
    printed = worlds.bisect("report", "r2", "--format", form, cwd=tmp_path)
    written = worlds.bisect("report", "r2", "--format", form, "--output", "out", cwd=tmp_path)

    assert printed.returncode == written.returncode == 0, printed.stderr + written.stderr
    assert needed in printed.stdout
    assert (tmp_path / "out").read_text() == printed.stdout
    assert written.stdout == ""


@pytest.mark.parametrize(
    ("name", "begins"), [("x.json", "{"), ("x.MD", "**Simulated"), ("x.csv", "build,"), ("x.txt", "Simulated")]
)
@pytest.mark.usefixtures("finished")
def test_a_files_ending_chooses_the_format(tmp_path, name, begins):
    """`-o x.json` is JSON without `-f json`; a named format counts more than the ending."""
    done = worlds.bisect("report", "r2", "-o", name, cwd=tmp_path)
    named = worlds.bisect("report", "r2", "-o", name, "-f", "csv", cwd=tmp_path)

    assert done.returncode == named.returncode == 0, done.stderr
    assert (tmp_path / name).read_text().startswith("build,")
    worlds.bisect("report", "r2", "-o", name, cwd=tmp_path)
    assert (tmp_path / name).read_text().startswith(begins)


@pytest.mark.parametrize(("run", "said"), [("stopped", "bisect resume r1"), ("finished", "bisect report r2")])
def test_a_name_that_is_taken_says_what_can_be_done_with_it(tmp_path, request, run, said):
    """Only what can go on is said to go on."""
    taken = request.getfixturevalue(run)
    files = worlds.write(tmp_path, worlds.planted(2, slow_from=1, hungry_from=9))

    done = worlds.bisect("run", "-i", str(files[0]), "-s", str(files[1]), "--name", taken.run_id, cwd=tmp_path)

    assert done.returncode == 2
    assert said in done.stderr
    assert ("bisect resume" in done.stderr) == (run == "stopped")


@pytest.mark.usefixtures("finished")
def test_a_verdict_by_hand_is_taken_and_taken_back(tmp_path):
    """`mark` moves the bracket, `--undo` moves it back, with the run named or not."""
    before = worlds.bisect("status", "--json", cwd=tmp_path).stdout
    marked = worlds.bisect("mark", "b4", "good", "--target", "long-prefill", cwd=tmp_path)
    after = json.loads(worlds.bisect("status", "--json", cwd=tmp_path).stdout)
    undone = worlds.bisect("mark", "b4", "--undo", "r2", "--target", "long-prefill", cwd=tmp_path)

    assert marked.returncode == undone.returncode == 0, marked.stderr + undone.stderr
    assert after["builds"][4]["verdicts"]["long-prefill"] == "good"
    assert after["targets"][0]["status"] != "confirmed"
    again = json.loads(worlds.bisect("status", "--json", cwd=tmp_path).stdout)
    assert again["targets"][0]["last_good"] == json.loads(before)["targets"][0]["last_good"]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (("mark", "zzz", "good", "--target", "long-prefill"), "b0, b1"),
        (("mark", "b4", "good", "--target", "zzz"), "long-prefill"),
        (("mark", "b0", "bad", "--target", "long-prefill"), "anchor"),
        (("mark", "b3", "--undo", "--target", "long-prefill"), "nothing to undo"),
    ],
)
@pytest.mark.usefixtures("finished")
def test_marks_that_make_no_sense(tmp_path, call, named):
    """Unknown builds and targets, anchors, and undoing what was not done are usage errors."""
    done = worlds.bisect(*call, cwd=tmp_path)

    assert done.returncode == 2
    assert named in done.stderr


def test_a_probe_is_not_resumed(tmp_path, stopped):
    """An interrupted probe does not become a search, neither by name nor at boot."""
    ledger = stopped.events_path
    ledger.write_text(ledger.read_text().replace('"purpose":"search"', '"purpose":"probe"', 1))
    stopped.path.rename(tmp_path / "results" / "probe-1")

    named = worlds.bisect("resume", "probe-1", cwd=tmp_path)
    at_boot = worlds.bisect("resume", "--if-unfinished", cwd=tmp_path)

    assert named.returncode == 2
    assert "bisect probe" in named.stderr
    assert (at_boot.returncode, at_boot.stdout) == (0, "")


def test_a_broken_ledger_keeps_no_other_run_from_going_on(tmp_path):
    """At boot, a folder that cannot be read is named and passed over."""
    broken = tmp_path / "results" / "broken"
    broken.mkdir(parents=True)
    (broken / "events.jsonl").write_text("not an event\nnor this\n")

    done = worlds.bisect("resume", "--if-unfinished", cwd=tmp_path)

    assert done.returncode == 0
    assert "broken" in done.stderr


@pytest.mark.usefixtures("finished")
def test_resuming_a_finished_run_repeats_its_answer(tmp_path):
    """Nothing is started; the answer and its exit code are the same."""
    done = worlds.bisect("resume", "r2", cwd=tmp_path)

    assert done.returncode == 11, done.stderr
    assert "first bad  b5" in done.stdout
