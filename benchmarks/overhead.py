"""The time that `bisect` adds outside server and requests, against a bare httpx loop on the same server.

Per rep: a counted rep from making its prompt to its record, minus a bare POST of a prebuilt body of the same length.
Per start: from the first look at the cards to the last of one whole start, minus the same command started bare.
Exit 0: below 1 % of a rep and below 1 s a start. 1: not. 2: bad usage. 3 or 20: it could not be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import servers
from stopwatch import Stopwatch, replaced, watched

from imagebisect import config, measure, session
from imagebisect.domain import SimulatedSource, VenvSource
from imagebisect.errors import BisectError, ExitCode
from imagebisect.interrupt import StopFlag
from imagebisect.measure import prompts
from imagebisect.progress import Silent
from imagebisect.runtime import groups, process
from imagebisect.scenario import Prefill
from imagebisect.vllm.readiness import FIRST_TOKEN_IDS

REP_SHARE = 0.01
START_S = 1.0
STAND_IN_TOKENS = 16_000
LONGEST_PROMPT = 200_000
TINY_TOKENS = 64

STAND_IN_ARGS = (
    "--tensor-parallel-size=2",
    "--max-model-len=65536",
    "--max-num-seqs=4",
    "--max-num-batched-tokens=1024",
    "--kv-cache-memory-bytes=4294967296",
    servers.NO_PREFIX_CACHE,
)

REP_PARTS = (
    ("prompt made", "imagebisect.measure.rounds", "Rounds._bodies"),
    ("counters before", "imagebisect.measure.rounds", "Rounds._scrape_idle"),
    ("client around the request", "imagebisect.measure.load", "send"),
    ("counters after", "imagebisect.measure.rounds", "Rounds._scrape_after"),
    ("wait for the log", "imagebisect.interrupt", "StopFlag.wait"),
    ("log read", "imagebisect.measure.rounds", "Rounds._guard"),
    ("judged", "imagebisect.measure.validity", "evidence"),
    ("rep made", "imagebisect.measure.rounds", "Rounds._rep"),
    ("recorded", "imagebisect.measure.rounds", "Rounds._record"),
)
"""(what a reader calls it, module, name). What none of them covers is `the rest`."""

REP_BLOCKS = (("cards' sampler", "imagebisect.measure.rounds", "sampling"),)
"""Blocks of which entering and leaving is timed."""

START_PARTS = (
    ("rendered", "imagebisect.runtime.process", "ProcessRuntime.render"),
    ("host looked at", "imagebisect.start", "host_now"),
    ("cards before", "imagebisect.start", "settled_cards"),
    ("created", "imagebisect.runtime.process", "ProcessRuntime.start"),
    ("boot awaited", "imagebisect.vllm.readiness", "wait_ready"),
    ("facts gathered", "imagebisect.start", "gather_facts"),
    ("scenario around its requests", "imagebisect.measure", "run"),
    ("events written", "imagebisect.ledger", "RunFolder.append"),
    ("stopped", "imagebisect.runtime.process", "RunningProcess.stop"),
    ("cards after", "imagebisect.start", "_cards_after"),
    ("log compressed", "imagebisect.start", "compress_log"),
)

WHOLE_REP = ("imagebisect.measure.rounds", "Rounds.take")
WHOLE_START = ("imagebisect.session", "run_start")


class NotMeasuredError(BisectError):
    """A start or a rep of the benchmark did not go well, so there is nothing to compare."""

    exit_code = ExitCode.NOT_MEASURABLE
    reason = "not_measured"


# --------------------------------------------------------------------------------- numbers


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One of ours and the bare one beside it, in seconds.

    `server_s` of `bisect_s` was the server's: its requests, and in a start the waits for its boot and its end.
    """

    bisect_s: float
    bare_s: float
    server_s: float
    parts: dict[str, float]

    @property
    def added_s(self) -> float:
        """Against the bare one."""
        return self.bisect_s - self.bare_s

    @property
    def outside_s(self) -> float:
        """By our own clock, outside server and requests: exact, but blind to what is slow inside those."""
        return self.bisect_s - self.server_s

    @property
    def rest_s(self) -> float:
        """Of our time, what no part covers."""
        return self.bisect_s - sum(self.parts.values())


def summary(turns: Sequence[Turn], *, limit_s: float) -> dict[str, Any]:
    """Medians in seconds, the parts from the largest down, and whether it stays below the limit.

    Where the bare ones alone scatter by more than the limit, a difference between two walls says nothing about it, and
    the time outside server and requests by our own clock decides.
    """
    labels = {label for turn in turns for label in turn.parts}
    parts = {label: statistics.median(turn.parts.get(label, 0.0) for turn in turns) for label in labels}
    parts["the rest"] = statistics.median(turn.rest_s for turn in turns)
    added = [turn.added_s for turn in turns]
    scatter = max(turn.bare_s for turn in turns) - min(turn.bare_s for turn in turns)
    outside = statistics.median(turn.outside_s for turn in turns)
    quiet = scatter <= limit_s
    return {
        "turns": len(turns),
        "bisect_s": statistics.median(turn.bisect_s for turn in turns),
        "bare_s": statistics.median(turn.bare_s for turn in turns),
        "server_s": statistics.median(turn.server_s for turn in turns),
        "added_s": statistics.median(added),
        "least_added_s": min(added),
        "most_added_s": max(added),
        "bare_scatter_s": scatter,
        "outside_s": outside,
        "decided_by": "bare loop" if quiet else "own clock",
        "parts_s": dict(sorted(parts.items(), key=lambda part: -part[1])),
        "limit_s": limit_s,
        "below": (statistics.median(added) if quiet else outside) < limit_s,
    }


def lines(found: dict[str, Any]) -> Iterable[str]:
    """Both tables and the verdict."""
    for what, key in (("a rep", "rep"), ("a start", "start")):
        one = found[key]
        yield f"{what}, {one['turns']} of each in turn: bisect {one['bisect_s']:.3f} s, bare {one['bare_s']:.3f} s"
        yield (
            f"  added {one['added_s'] * 1000:.0f} ms ({one['least_added_s'] * 1000:.0f} to "
            f"{one['most_added_s'] * 1000:.0f}; the bare ones scatter by {one['bare_scatter_s'] * 1000:.0f} ms)"
        )
        yield f"  outside server and requests, by our own clock: {one['outside_s'] * 1000:.0f} ms"
        verdict = "below" if one["below"] else "NOT below"
        yield f"  limit {one['limit_s'] * 1000:.0f} ms: {verdict} (decided by the {one['decided_by']})"
        yield from (f"    {label:<30}{took * 1000:>9.1f} ms" for label, took in one["parts_s"].items())
        yield ""


# --------------------------------------------------------------------------------- per rep


def bare_client(url: str) -> httpx.Client:
    """A client whose every request has a connection of its own, as the server would close a kept one between reps."""
    return httpx.Client(
        base_url=url, timeout=servers.BOOT_S, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
    )


def body(context: measure.Context, prompt_tokens: int, number: int) -> bytes:
    """A request that is not one of the reps': a prompt sent twice would come from a prefix cache."""
    made = prompts.Prompts(seed=context.seed, scenario="bare", vocab_size=context.vocab_size)
    place = prompts.Place(purpose="bare", concurrency=1, rep=number, attempt=0, slot=0, ordinal=number)
    return prompts.body(context.model_id, made.ids(place, prompt_tokens), max_tokens=1)


def post(client: httpx.Client, request: bytes) -> float:
    """Seconds of one bare request. Raises NotMeasuredError for any answer but 200."""
    began = time.perf_counter()
    answer = client.post("/v1/completions", content=request, headers={"content-type": "application/json"})
    took = time.perf_counter() - began
    if answer.status_code != httpx.codes.OK:
        raise NotMeasuredError(f"a bare request was answered HTTP {answer.status_code}: {answer.text[:300]}")
    return took


def prompt_length(context: measure.Context, client: httpx.Client, wanted_s: float) -> int:
    """How long a prompt takes about `wanted_s` here, found by trying; at most LONGEST_PROMPT tokens."""
    tokens = 2000
    for number in range(12):
        took = post(client, body(context, tokens, 1000 + number))
        if took >= 0.85 * wanted_s or tokens == LONGEST_PROMPT:
            break
        tokens = min(LONGEST_PROMPT, int(tokens * min(4.0, max(1.05, (wanted_s / took) ** 0.5))))
    return tokens


def rep_of(context: measure.Context, watch: Stopwatch, *, number: int, prompt_tokens: int) -> Turn:
    """One counted rep, taken as a scenario of one rep; `bare_s` is for the caller to fill in."""
    seen: list[Turn] = []

    def around(take: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(take)
        def timed(*args: Any, **kwargs: Any) -> Any:
            watch.take()
            began = time.perf_counter()
            taken = take(*args, **kwargs)
            wall = time.perf_counter() - began
            if kwargs.get("purpose") == "rep" and taken.rep.invalid is None:
                parts = watch.take()
                parts["client around the request"] -= taken.rep.seconds
                parts["the request"] = taken.rep.seconds
                seen.append(Turn(bisect_s=wall, bare_s=0.0, server_s=taken.rep.seconds, parts=parts))
            return taken

        return timed

    with replaced(*WHOLE_REP, around):
        found = measure.run(
            Prefill(name=f"turn-{number}", on=context.server.name, prompt_tokens=prompt_tokens, reps=1), context
        )
    if found.failure is not None or not seen:
        raise NotMeasuredError(f"no rep was measured: {found.failure.message if found.failure else 'none was valid'}")
    return seen[-1]


def reps(subject: servers.Subject, folder: Path, *, turns: int, seconds_per_rep: float) -> tuple[list[Turn], int]:
    """The turns of one server, bare first, bisect first, and so on; and how long the prompts are."""
    found = []
    with (
        servers.ready(subject, folder) as context,
        bare_client(context.url) as client,
        watched(REP_PARTS, REP_BLOCKS) as watch,
    ):
        simulated = isinstance(subject.source, SimulatedSource)
        tokens = STAND_IN_TOKENS if simulated else prompt_length(context, client, seconds_per_rep)
        for number in range(turns):
            request = body(context, tokens, number)
            bare = post(client, request) if number % 2 == 0 else 0.0
            ours = rep_of(context, watch, number=number, prompt_tokens=tokens)
            bare = bare or post(client, request)
            found.append(Turn(bisect_s=ours.bisect_s, bare_s=bare, server_s=ours.server_s, parts=ours.parts))
            sys.stderr.write(f"rep {number + 1} of {turns}: added {found[-1].added_s * 1000:.0f} ms\n")
    return found, tokens


# ------------------------------------------------------------------------------- per start


def plan(subject: servers.Subject, folder: Path) -> Any:
    """The subject as the two files that a user would write: one server, one tiny scenario."""
    match subject.source:
        case SimulatedSource(profile=profile):
            source: dict[str, Any] = {"simulated": dict(profile)}
        case VenvSource(path=path):
            source = {"venv": path}
        case _:
            raise AssertionError(subject.source)
    images = {"schema": 1, "builds": [{"name": "one", **source}, {"name": "two", "same_as": "one"}]}
    suite: dict[str, Any] = {
        "schema": 1,
        "base": {"gpus": subject.gpus, "env": dict(subject.env), "args": list(subject.args)},
        "servers": {"s": {}},
        "scenarios": {"tiny": {"on": "s", "kind": "prefill", "prompt_tokens": TINY_TOKENS, "reps": 1}},
        "targets": {"t": {"metric": "tiny.c1.prefill_tok_s", "worse": "lower", "floor": "10%", "role": "bisect"}},
    }
    if subject.model is not None:
        suite["model"] = {"path": str(subject.model), "at": "/models/m"}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("images.yaml", images), ("suite.yaml", suite)):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return config.load_plan(folder / "images.yaml", folder / "suite.yaml")


def our_start(made: Any, results: Path, *, number: int) -> tuple[Turn, float, tuple[str, ...]]:
    """One `bisect probe`: its last start, the seconds of the call outside starts, and the start's command line.

    The stand-in's cards are there only once a server of the run has been up, so there the second start counts.
    """
    walls: list[float] = []

    def whole(run_start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run_start)
        def timed(*args: Any, **kwargs: Any) -> Any:
            watch.take()
            began = time.perf_counter()
            ended = run_start(*args, **kwargs)
            walls.append(time.perf_counter() - began)
            return ended

        return timed

    names = ("s", "s") if isinstance(made.builds[0].source, SimulatedSource) else ("s",)
    began = time.perf_counter()
    with watched(START_PARTS) as watch, replaced(*WHOLE_START, whole):
        state = session.probe(made, 0, names, results, stop=StopFlag(), progress=Silent(), name=f"start-{number}")
        call = time.perf_counter() - began
    start = state.starts[-1]
    if start.failure is not None or start.measurements[0].failure is not None:
        failure = start.failure or start.measurements[0].failure
        raise NotMeasuredError(f"the start was not measured: {failure.message if failure else ''}")
    parts = watch.take()
    requests = sum(rep.seconds for measurement in start.measurements for rep in measurement.reps)
    parts["scenario around its requests"] -= requests
    parts["the requests"] = requests
    server = requests + parts.get("boot awaited", 0.0) + parts.get("stopped", 0.0)
    turn = Turn(bisect_s=walls[-1], bare_s=0.0, server_s=server, parts=parts)
    return turn, call - sum(walls), start.intended.rendered.argv


def bare_start(argv: Sequence[str], folder: Path) -> dict[str, float]:
    """Seconds until the first token and until the end of the same command, started by hand.

    `argv` is as a start shows it; its last word, the port, is replaced. Raises NotMeasuredError past a deadline.
    """
    folder.mkdir(parents=True)
    port = process.free_port()
    env = {name: os.environ[name] for name in process.BASE_ENV if name in os.environ}
    env |= {name: str(folder / "cache") for name in ("XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR")}
    env["PYTHONUNBUFFERED"] = "1"
    began = time.perf_counter()
    with (folder / "server.log").open("wb") as log:
        started = subprocess.Popen(
            [*argv[:-1], str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
    group = groups.Group(
        run_id="", start_id="", pgid=started.pid, ticks=groups.start_ticks(started.pid) or 0, boot=groups.boot_id(),
        owner="", cache="",
    )  # fmt: skip
    try:
        with bare_client(f"http://127.0.0.1:{port}") as client:
            first_token(client, started, deadline=began + servers.BOOT_S)
        ready = time.perf_counter()
        os.killpg(started.pid, signal.SIGTERM)
        deadline = ready + servers.STOP_S
        started.wait(servers.STOP_S)
        while group.members() and time.perf_counter() < deadline:
            time.sleep(0.005)
    except subprocess.TimeoutExpired as error:
        raise NotMeasuredError("the bare server did not end when told to", where=str(folder)) from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(servers.STOP_S)
    return {"boot_s": ready - began, "whole_s": time.perf_counter() - began}


def first_token(client: httpx.Client, started: subprocess.Popen[bytes], *, deadline: float) -> None:
    """Ask until the server is healthy, then for one token."""
    while time.perf_counter() < deadline and started.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if client.get("/health", timeout=5.0).status_code == httpx.codes.OK:
                model = client.get("/v1/models").json()["data"][0]["id"]
                post(client, prompts.body(model, list(FIRST_TOKEN_IDS), max_tokens=1))
                return
        time.sleep(0.05)
    raise NotMeasuredError(f"the bare server gave no token (exit code {started.poll()})")


def starts(subject: servers.Subject, folder: Path, *, turns: int) -> tuple[list[Turn], dict[str, float]]:
    """The turns, and medians that are no part of them. One start before them warms the disk's cache."""
    made = plan(subject, folder / "files")
    _, _, argv = our_start(made, folder / "results", number=0)
    found, outside, boots, stops = [], [], [], []
    for number in range(1, turns + 1):
        bare: dict[str, float] | None = None
        if number % 2 == 1:
            bare = bare_start(argv, folder / f"bare-{number}")
        ours, around, argv = our_start(made, folder / "results", number=number)
        bare = bare or bare_start(argv, folder / f"bare-{number}")
        # Requests are the server's time, and the bare start makes none of the scenario's.
        bare_s = bare["whole_s"] + ours.parts["the requests"]
        found.append(Turn(bisect_s=ours.bisect_s, bare_s=bare_s, server_s=ours.server_s, parts=ours.parts))
        outside.append(around)
        boots.append(bare["boot_s"])
        stops.append(bare["whole_s"] - bare["boot_s"])
        sys.stderr.write(f"start {number} of {turns}: added {found[-1].added_s * 1000:.0f} ms\n")
    medians = {"bare_boot_s": boots, "bare_stop_s": stops, "call_outside_starts_s": outside}
    more = {name: statistics.median(values) for name, values in medians.items()}
    return found, more


# ------------------------------------------------------------------------------------ call


def stand_in(seconds_per_rep: float) -> servers.Subject:
    """A simulated build on two cards whose rep takes exactly so long."""
    profile = {"prefill_tok_s": STAND_IN_TOKENS / seconds_per_rep, "noise": 0.0, "start_noise": 0.0}
    return servers.Subject(source=SimulatedSource(profile=profile), args=STAND_IN_ARGS, gpus=(0, 1))


def tiny_stand_in() -> servers.Subject:
    """The same with short requests, for starts."""
    return stand_in(0.2)


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--vllm", type=servers.environment, help="a folder with its own bin/vllm (default: the stand-in)")
    made.add_argument("--model", type=servers.model_folder, help="a model's folder; needed with --vllm")
    made.add_argument("--seconds-per-rep", type=servers.seconds, default=5.0, help="how long a rep takes (default: 5)")
    made.add_argument("--reps", type=servers.positive, default=5, help="reps of each kind (default: 5)")
    made.add_argument("--starts", type=servers.positive, default=3, help="starts of each kind (default: 3)")
    made.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return made


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a call; exits 2 for bad ones."""
    made = parser()
    arguments = made.parse_args(argv)
    if (arguments.vllm is None) != (arguments.model is None):
        made.error("--vllm and --model go together")
    return arguments


def measured(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both overheads as one value, for JSON."""
    machine = servers.host()
    seconds_per_rep = arguments.seconds_per_rep
    real = servers.real(arguments.vllm, arguments.model) if arguments.vllm else None
    rep_turns, tokens = reps(
        real or stand_in(seconds_per_rep), folder / "reps", turns=arguments.reps, seconds_per_rep=seconds_per_rep
    )
    start_turns, more = starts(real or tiny_stand_in(), folder / "starts", turns=arguments.starts)
    rep = summary(rep_turns, limit_s=REP_SHARE * seconds_per_rep)
    start = {**summary(start_turns, limit_s=START_S), **more}
    return {
        "schema": 1,
        "server": real.name if real else "stand-in",
        "host": machine,
        "prompt_tokens": tokens,
        "rep": rep,
        "start": start,
        "below": rep["below"] and start["below"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether it stays below the limits."""
    arguments = parse(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="bisect-benchmark-") as folder:
            found = measured(arguments, Path(folder))
    except BisectError as error:
        sys.stderr.write(f"error: {error.what}\n")
        sys.stderr.write("".join(f"  {k}: {v}\n" for k, v in (("at", error.where), ("next", error.next_step)) if v))
        return int(error.exit_code)
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        start = found["start"]
        sys.stdout.write(
            f"{found['server']}, {found['prompt_tokens']} tokens a rep, {servers.host_line(found['host'])}\n\n"
        )
        sys.stdout.write("\n".join(lines(found)))
        sys.stdout.write(
            f"bare: boot {start['bare_boot_s']:.3f} s, stop {start['bare_stop_s']:.3f} s; "
            f"of the call outside its starts: {start['call_outside_starts_s'] * 1000:.0f} ms\n"
        )
    return 0 if found["below"] else 1


if __name__ == "__main__":
    sys.exit(main())
