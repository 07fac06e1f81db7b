"""The scenario kinds beside prefill, decode, idle memory and the OOM probe, against the stand-in server."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

import started
import worlds
from imagebisect import measure
from imagebisect.errors import Interrupted
from imagebisect.interrupt import StopFlag
from imagebisect.outcome import Cause
from imagebisect.scenario import Command, Growth, IdleMemory, Ladder, Metric, MetricKind, Startup


@pytest.mark.alone
def test_a_ladder_shows_an_effect_that_grows_with_length(tmp_path):
    """A build that is slow from 12,000 tokens on: short lengths keep their speed, the longest loses half."""
    ladder = Ladder(name="l", on="s", prompt_tokens=(4000, 8000, 16000), reps=2)
    with started.context(tmp_path, {"noise": 0, "long_from_tokens": 12000, "long_slowdown": 2.0}) as context:
        found = measure.run(ladder, context)

    assert found.failure is None
    assert found.metrics["t4000.prefill_tok_s"] == pytest.approx(40000, rel=0.15)
    assert found.metrics["t16000.prefill_tok_s"] == pytest.approx(20000, rel=0.1)
    assert found.metrics["long_over_short"] == pytest.approx(0.5, rel=0.2)
    assert found.metrics["min_free_mib"] > 0
    assert all(rep.cache_hit_tokens == 0 for rep in found.reps)


@pytest.mark.alone
def test_a_ladder_that_dies_keeps_its_lower_rungs(tmp_path):
    """Memory runs out at 16,000 tokens: the lengths before it are measured, the failure is named."""
    ladder = Ladder(name="l", on="s", prompt_tokens=(4000, 16000), reps=1)
    with started.context(tmp_path, {"oom_at_request_from_tokens": 16000}, batched=8192) as context:
        found = measure.run(ladder, context)

    assert "t4000.prefill_tok_s" in found.metrics
    assert "long_over_short" not in found.metrics
    assert found.failure.cause == Cause.OOM_AT_REQUEST


def test_startup_has_our_clock_and_the_servers_parts(tmp_path):
    """`ready_s` is what we waited; load, compile and graphs are what the log says; what it does not say is named."""
    with started.context(tmp_path, {"boot_s": 1.0}) as context:
        found = measure.run(Startup(name="u", on="s"), context)

    assert 1.0 <= found.metrics["ready_s"] < 10
    for name in ("load_s", "compile_s", "graph_s", "init_engine_s"):
        assert (name in found.metrics) != (name in found.samples.get("missing", ""))
    assert "init_engine_s" in found.metrics


@pytest.mark.alone
def test_growth_is_what_load_leaves_behind(tmp_path):
    """6 requests that each leave 40 MiB behind: 240 MiB; a build that leaves nothing grows by nothing."""
    growth = Growth(name="g", on="s", prompt_tokens=1000, output_tokens=2, rounds=6, samples=2, interval_s=0.05)
    with started.context(tmp_path / "leaks", {"leak_mib_per_request": 40}) as context:
        leaking = measure.run(growth, context)
    with started.context(tmp_path / "not") as context:
        sound = measure.run(growth, context)

    assert leaking.metrics["growth_mib"] == pytest.approx(240, abs=2)
    assert sound.metrics["growth_mib"] == pytest.approx(0, abs=1)
    assert leaking.metrics["free_after_mib"] < sound.metrics["free_after_mib"]


def test_the_pool_is_known_in_bytes_blocks_and_tokens(tmp_path):
    """The pinned bytes are exact, blocks and tokens come from the metrics, and the record says from where."""
    with started.context(tmp_path) as context:
        found = measure.run(IdleMemory(name="i", on="s", samples=1), context)

    assert found.metrics["kv_pool_mib"] == 4096
    assert found.metrics["kv_pool_blocks"] > 0
    assert found.metrics["kv_pool_tokens"] == context.facts["kv_pool_tokens"]
    assert found.samples["kv_pool_bytes_source"] == "pinned by kv_cache_memory_bytes"
    assert found.samples["kv_pool_tokens_source"] == "kv_cache_size_tokens in the metrics"


def command(script, **how):
    """A scenario that runs a line of shell."""
    return Command(name="c", on="s", run=("sh", "-c", script), **how)


SCORE = Metric(name="score", unit="%", kind=MetricKind.LEVEL)


@pytest.mark.parametrize(
    ("script", "prints", "metrics", "cause"),
    [
        ("exit 0", None, {"passed": 1.0}, None),
        ("exit 3", None, {"passed": 0.0}, None),
        ("exit 125", None, {}, Cause.COMMAND_FAILED),
        ("kill -SEGV $$", None, {}, Cause.COMMAND_FAILED),
        ("exit 126", None, {}, Cause.COMMAND_BROKEN),
        ("no-such-program-at-all", None, {}, Cause.COMMAND_BROKEN),
        ("echo loading; echo score: 61.5%", SCORE, {"score": 61.5}, None),
        ("echo 1,234.5; echo", SCORE, {"score": 1234.5}, None),
        ("echo well; exit 0", SCORE, {}, Cause.COMMAND_FAILED),
        ("echo nan", SCORE, {}, Cause.COMMAND_FAILED),
        ("echo 5; exit 1", SCORE, {}, Cause.COMMAND_FAILED),
        ("echo 0,85", SCORE, {}, Cause.COMMAND_FAILED),
        ("echo 2.5e3", SCORE, {"score": 2500.0}, None),
        ("exit 255", None, {"passed": 0.0}, None),
    ],
)
def test_a_commands_end_is_read_as_git_bisect_reads_it(tmp_path, script, prints, metrics, cause):
    """0 passed, 125 cannot tell, others failed, 126 and 127 are the suite's fault; a printed number is the metric."""
    with started.context(tmp_path) as context:
        found = measure.run(command(script, prints=prints), context)

    assert found.metrics == metrics
    assert (found.failure.cause if found.failure else None) == cause


def test_a_command_is_told_where_the_server_is(tmp_path):
    """URL, model id, build and folders are in its environment; its output is kept beside the server's log."""
    script = 'echo "$BISECT_URL|$BISECT_MODEL_ID|$BISECT_BUILD|$BISECT_SERVER|$BISECT_RUN_FOLDER"; pwd'
    with started.context(tmp_path) as context:
        found = measure.run(command(script, folder=str(tmp_path)), context)
        kept = context.running.spec.start_folder / "c.output.log"

        told, where = kept.read_text().splitlines()
        assert told == f"{context.url}|{context.model_id}|b|s|{tmp_path}"
    assert where == str(tmp_path)
    assert found.metrics == {"passed": 1.0}


def test_a_command_without_end_is_ended_with_its_children(tmp_path):
    """The deadline ends the program and what it started; that is no verdict."""
    with started.context(tmp_path) as context:
        begun = time.monotonic()
        found = measure.run(command("sleep 600 & sleep 600", deadline_s=0.5), context)

    assert found.failure.cause == Cause.COMMAND_FAILED
    assert "did not end within" in found.failure.message
    assert time.monotonic() - begun < 20


def test_a_server_that_dies_under_a_command_is_what_failed(tmp_path):
    """The program's own exit code says nothing once the server ran out of memory under it."""
    ask = (
        "python3 -c \"import json,os,urllib.request as u; u.urlopen(u.Request(os.environ['BISECT_URL']+'/v1/completions',"
        "json.dumps({'model':os.environ['BISECT_MODEL_ID'],'prompt':[7]*9000,'max_tokens':1}).encode(),"
        "{'content-type':'application/json'}))\"; sleep 3; exit 0"
    )
    with started.context(tmp_path, {"oom_at_request_from_tokens": 8000}, batched=8192) as context:
        found = measure.run(command(ask), context)

    assert found.failure.cause == Cause.OOM_AT_REQUEST
    assert found.metrics == {}


def test_a_stop_ends_a_command_at_once(tmp_path):
    """Ctrl-C while a program runs: Interrupted, and the program is gone."""
    stop = StopFlag()
    with started.context(tmp_path, stop=stop) as context:
        threading.Timer(0.5, stop.set).start()
        begun = time.monotonic()
        with pytest.raises(Interrupted):
            measure.run(command("sleep 600"), context)
        assert time.monotonic() - begun < 8


@pytest.mark.alone
def test_a_blind_host_still_measures_what_it_can(tmp_path):
    """`gpus: none`: growth has no number and says why; the load itself was done."""
    growth = Growth(name="g", on="s", prompt_tokens=500, output_tokens=2, rounds=2, samples=1, interval_s=0.05)
    with started.context(tmp_path, gpus="none") as context:
        found = measure.run(growth, context)

    assert "growth_mib" not in found.metrics
    assert "no card" in found.samples["missing"]
    assert len(found.reps) == 3


def test_the_longest_length_is_the_same_prompt_for_every_build(tmp_path):
    """Two starts of a ladder send the same ids: usage and order agree, and a variant's copy sends them too."""
    from imagebisect.measure.rounds import Rounds
    from imagebisect.measure.validity import Shape

    with started.context(tmp_path) as context:
        made = []
        for name in ("l", "l@relaxed"):
            rounds = Rounds(
                context=dataclasses.replace(context),
                scenario=name,
                shapes=((4000, 1), (8000, 1)),
                reps_wanted=1,
                unit="",
                value=lambda *_: 0.0,
            )
            shape = Shape(concurrency=1, prompt_tokens=8000, output_tokens=1)
            number = rounds._round_number(shape, purpose="rep", rep=0, attempt=0)
            made.append(rounds._bodies(number, shape, purpose="rep", rep=0, attempt=0))

    assert made[0] == made[1]


def test_a_child_that_left_the_group_is_ended_too(tmp_path):
    """A program that daemonises something: when it is over, that is gone as well."""
    with started.context(tmp_path) as context:
        found = measure.run(command("setsid sleep 987 >/dev/null 2>&1 & echo ok"), context)

    assert found.metrics == {"passed": 1.0}
    assert worlds.group_members("sleep 987") == []


def test_a_program_that_ignores_the_request_to_end_is_killed(tmp_path):
    """SIGTERM is asked first; after five seconds it is killed."""
    with started.context(tmp_path) as context:
        begun = time.monotonic()
        found = measure.run(command("trap '' TERM; sleep 988 & wait; sleep 988", deadline_s=0.5), context)

    assert found.failure.cause == Cause.COMMAND_FAILED
    assert time.monotonic() - begun < 25
    assert worlds.group_members("sleep 988") == []


def test_secrets_do_not_get_into_the_record(tmp_path):
    """A program prints a token it was given: the record has none of it, wherever its output was cut."""
    secret = "hf_" + "S3cr3t" * 6
    script = f"printf '%s' '{secret}'; head -c 985 /dev/zero | tr '\\0' x; echo; exit 3"
    with started.context(tmp_path) as context:
        found = measure.run(command(script), dataclasses.replace(context, secrets=(secret,)))

    assert "S3cr3t" not in str(found)
