"""The benchmarks' arguments, their arithmetic, and that they time what is still there. No times are judged here."""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from imagebisect import config
from imagebisect.domain import SimulatedSource
from imagebisect.vllm.metrics import Snapshot

FOLDER = Path(__file__).parents[2] / "benchmarks"

COUNTED = Snapshot(prefix_hits=0.0, succeeded=4.0, prompt_tokens=12000.0, prefill_s=0.25)


@pytest.fixture
def bench(monkeypatch):
    """The module `against_vllm_bench`."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("against_vllm_bench")


@pytest.fixture
def overhead(monkeypatch):
    """The module `overhead`."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("overhead")


@pytest.fixture
def stopwatch(monkeypatch):
    """The module `stopwatch`."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("stopwatch")


@pytest.fixture
def environment(tmp_path):
    """A folder with a bin/vllm that is no vLLM, and a model's folder."""
    program = tmp_path / "env" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho it was called: $1 >&2\nexit 3\n")
    program.chmod(0o755)
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    return program.parents[1]


def call(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark as a user does."""
    return subprocess.run(
        [sys.executable, str(FOLDER / script), *arguments], capture_output=True, text=True, check=False, timeout=60
    )


# ------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("script", "arguments", "says"),
    [
        ("bench", (), "--vllm"),
        ("bench", ("--vllm", "/nowhere"), "holds no bin/vllm"),
        ("bench", ("--vllm", "{env}", "--pairs", "0"), "no whole number above 0"),
        ("bench", ("--vllm", "{env}", "--model", "/nowhere"), "holds no config.json"),
        ("overhead", ("--vllm", "{env}"), "go together"),
        ("overhead", ("--seconds-per-rep", "soon"), "no time from 0.1 to 600 s"),
    ],
)
def test_bad_arguments_exit_2_and_say_what_is_wrong(script, arguments, says, environment, request, capsys):
    """Whatever is wrong with the call, nothing is started and the exit code is 2."""
    with pytest.raises(SystemExit) as ended:
        request.getfixturevalue(script).main([text.format(env=environment) for text in arguments])

    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_model_beside_the_environment_is_the_default(bench, environment):
    """`--vllm ENV` alone takes models/tiny from the folder that ENV is in."""
    arguments = bench.parse(["--vllm", str(environment)])

    assert arguments.model == environment.parent / "models" / "tiny"
    assert (arguments.prompt_tokens, arguments.pairs) == (4000, 5)


def test_a_server_that_does_not_start_is_no_verdict(environment):
    """A vLLM that fails at once ends with exit code 3 and its own words, not with "they disagree"."""
    done = call("against_vllm_bench.py", "--vllm", str(environment), "--pairs", "1")

    assert done.returncode == 3, done.stderr
    assert "error:" in done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------ against vllm bench


def test_both_sides_are_the_median_of_tokens_over_seconds(bench):
    """A slow first request moves neither side; the server's clock stands beside."""
    made = bench.side([(4000, 0.2), (4000, 0.1), (4002, 0.1)], COUNTED, sent=4, headline=29000.0)

    assert made.tok_s == 40000
    assert (made.least, made.most) == (20000, 40020)
    assert made.server_tok_s == 48000
    assert made.headline == 29000


@pytest.mark.parametrize(
    ("counted", "says"),
    [
        (Snapshot(prefix_hits=128.0, succeeded=4.0), "128 prompt tokens came from the prefix cache"),
        (Snapshot(prefix_hits=0.0, succeeded=5.0), "counted 5.0 requests where 4 were sent"),
        (Snapshot(), "counted None requests"),
    ],
)
def test_cache_hits_and_foreign_requests_are_not_compared(bench, counted, says):
    """A side whose prompts came from a cache, or that was not alone, gives no figure."""
    with pytest.raises(bench.NotComparableError, match=says):
        bench.side([(4000, 0.1)], counted, sent=4)


RESULT = {
    "errors": ["", ""],
    "input_lens": [4000, 4002],
    "ttfts": [0.1, 0.08],
    "output_lens": [1, 1],
    "total_input_tokens": 8002,
    "duration": 0.2,
}


def test_a_result_file_gives_each_request_with_the_servers_token_count(bench):
    """Tokens are what the server counted, times are those to the first token; the headline is over the whole call."""
    requests, headline = bench.requests_of(RESULT, requests=2)

    assert requests == [(4000, 0.1), (4002, 0.08)]
    assert headline == pytest.approx(40010)


@pytest.mark.parametrize(
    "change",
    [{"errors": ["", "boom"]}, {"ttfts": [0.1]}, {"output_lens": [1, 2]}, {"ttfts": None}, {"duration": 0}],
)
def test_a_result_file_that_is_not_whole_is_refused(bench, change):
    """Failed requests, missing times and second output tokens are no basis for a comparison."""
    with pytest.raises(bench.NotComparableError):
        bench.requests_of({**RESULT, **change}, requests=2)


def test_bench_serve_is_told_to_send_no_prompt_twice_but_its_warm_up(bench, tmp_path):
    """The ready check is off, lengths are exact, and each call has a seed of its own."""
    argv = bench.bench_argv(
        tmp_path, url="http://u", model="m", prompt_tokens=4000, requests=5, seed=7, result=tmp_path / "r.json"
    )

    assert {"--ready-check-timeout-sec=0", "--random-range-ratio=0", "--random-output-len=1", "--seed=7"} <= set(argv)


@pytest.mark.parametrize(("rate", "agree"), [(102.9, True), (97.1, True), (103.2, False), (96.0, False)])
def test_they_agree_when_the_median_ratio_is_within_3_percent(bench, rate, agree):
    """One pair far off does not decide; the middle one does."""

    def side(tok_s):
        return bench.Side(tok_s=tok_s, least=tok_s, most=tok_s, server_tok_s=None, headline=tok_s)

    pairs = [bench.Pair(first="bisect", bisect=side(r), bench=side(100.0)) for r in (150.0, rate, 50.0)]

    found = bench.summary(pairs)

    assert found["agree"] is agree
    assert found["median_ratio"] == pytest.approx(rate / 100)
    assert "agree within 3%: " + ("yes" if agree else "NO") in list(bench.lines(json.loads(json.dumps(found))))


# -------------------------------------------------------------------------------- overhead


def test_everything_that_is_timed_by_name_is_there(overhead, stopwatch):
    """A function that was renamed would silently move into "the rest"."""
    timed = [(module, name) for _, module, name in (*overhead.REP_PARTS, *overhead.REP_BLOCKS, *overhead.START_PARTS)]

    for module, name in (*timed, overhead.WHOLE_REP, overhead.WHOLE_START):
        owner, last = stopwatch.resolve(module, name)
        assert callable(getattr(owner, last))


def test_of_nested_calls_only_the_outermost_is_counted(stopwatch):
    """A wait inside a scrape is the scrape's, and another thread's calls are nobody's; so parts add up."""
    watch = stopwatch.Stopwatch()
    inner = watch.around("inner", lambda: None)
    outer = watch.around("outer", inner)

    outer()
    other = threading.Thread(target=inner)
    other.start()
    other.join()

    assert set(watch.take()) == {"outer"}
    assert watch.take() == {}


def test_a_timed_block_still_enters_leaves_and_sees_errors(stopwatch):
    """Timing a context manager changes nothing of what it does."""
    seen = []

    @contextlib.contextmanager
    def block(value):
        try:
            yield value
        except ValueError:
            seen.append("error")
            raise
        finally:
            seen.append("left")

    watch = stopwatch.Stopwatch()
    timed = watch.around_block("block", block)

    with timed(3) as value:
        assert value == 3
    with pytest.raises(ValueError, match="inside"), timed(4):
        raise ValueError("inside")

    assert seen == ["left", "error", "left"]
    assert set(watch.take()) == {"block"}


def test_functions_are_put_back_after_timing(overhead, stopwatch):
    """A benchmark that fails half-way leaves the program as it was."""
    owner, last = stopwatch.resolve(*overhead.WHOLE_REP)
    before = getattr(owner, last)

    with pytest.raises(RuntimeError), stopwatch.watched([("x", *overhead.WHOLE_REP)]):
        raise RuntimeError

    assert getattr(owner, last) is before


def test_what_is_added_is_the_median_difference_and_the_parts_add_up(overhead):
    """Of a rep of 5.04 s, 40 ms were added: 30 ms in one part, the rest unnamed."""
    turns = [
        overhead.Turn(bisect_s=b, bare_s=5.0, server_s=5.0, parts={"the request": 5.0, "wait": 0.03})
        for b in (5.04, 5.9, 5.035)
    ]

    found = overhead.summary(turns, limit_s=0.05)

    assert found["added_s"] == pytest.approx(0.04)
    assert found["parts_s"]["the rest"] == pytest.approx(0.01)
    assert list(found["parts_s"]) == ["the request", "wait", "the rest"]
    assert found["below"]
    assert not overhead.summary(turns, limit_s=0.02)["below"]


def test_where_bare_ones_scatter_more_than_the_limit_our_own_clock_decides(overhead):
    """A noisy server makes a difference of two walls worthless; it is printed, and does not decide."""
    turns = [
        overhead.Turn(bisect_s=server + 0.03, bare_s=bare, server_s=server, parts={})
        for server, bare in ((5.4, 5.0), (5.2, 5.6), (5.5, 5.1))
    ]

    found = overhead.summary(turns, limit_s=0.05)

    assert found["added_s"] > 0.05
    assert found["decided_by"] == "own clock"
    assert found["below"]
    assert "outside server and requests, by our own clock: 30 ms" in "\n".join(
        overhead.lines({"rep": found, "start": found})
    )


def test_the_stand_ins_plan_is_what_a_user_would_write(overhead, tmp_path):
    """Starts are measured through the two files and the program's own loader."""
    made = overhead.plan(overhead.tiny_stand_in(), tmp_path)

    config.require_startable(made)
    assert isinstance(made.builds[0].source, SimulatedSource)
    assert made.suite.server("s").args == overhead.STAND_IN_ARGS


def test_a_bare_server_that_ends_is_reported_and_leaves_nothing(overhead, tmp_path):
    """A command that gives no token is an error with its exit code, not a fast start."""
    argv = (sys.executable, "-c", "raise SystemExit(7)", "8000")

    with pytest.raises(overhead.NotMeasuredError, match="exit code 7"):
        overhead.bare_start(argv, tmp_path / "bare")


def test_overhead_measures_the_stand_in_end_to_end():
    """A short run prints both overheads with their parts as one JSON document, whatever the verdict."""
    done = call("overhead.py", "--json", "--seconds-per-rep", "0.3", "--reps", "1", "--starts", "1")

    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["server"] == "stand-in"
    assert found["below"] is (done.returncode == 0)
    for one in (found["rep"], found["start"]):
        assert one["bisect_s"] == pytest.approx(sum(one["parts_s"].values()))
        assert one["turns"] == 1
    assert found["rep"]["parts_s"]["cards' sampler"] > 0
    assert found["rep"]["server_s"] == pytest.approx(0.3, abs=0.2)


def test_the_search_benchmark_gives_one_seeded_document():
    """Twice the same arguments, twice the same table; the exit code says whether a target was missed."""
    program = [sys.executable, str(FOLDER / "search_quality.py"), "--runs", "2", "--only", "bimodal 5%", "--json"]
    done = [subprocess.run(program, capture_output=True, text=True, check=False) for _ in range(2)]
    first, second = (json.loads(one.stdout) for one in done)

    assert done[0].returncode == first["exit_code"] == (0 if first["reason"] == "met" else 1)
    assert first["cells"] == second["cells"]
    assert {cell["search"] for cell in first["cells"]} == {"bisect", "naive1", "median3", "git-skip"}
    assert all({"what", "got", "target", "met"} <= set(row) for row in first["targets"])
