"""The stand-in server as a process: vLLM's surface, its timing, its memory, and every way it fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import imagebisect
from imagebisect.simulator import cards

QUIET = {"noise": 0, "start_noise": 0, "first_request_penalty_s": 0, "boot_s": 0.1}
PIN = "--kv-cache-memory-bytes=4294967296"
FLAGS = ["--served-model-name=m", "--tensor-parallel-size=2", "--max-num-batched-tokens=4096", PIN]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class StandIn:
    """A started server."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    state: Path
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=20, trust_env=False))

    def ready(self) -> StandIn:
        """Wait for /health."""
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.text()
            try:
                if self.client.get(f"{self.url}/health").status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.02)
        raise AssertionError(self.text())

    def text(self) -> str:
        """The log so far."""
        return self.log.read_text(encoding="utf-8")

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        """POST /v1/completions with one output token unless said."""
        body = {"model": "m", "prompt": prompt, "max_tokens": 1, **fields}
        return self.client.post(f"{self.url}/v1/completions", json=body)

    def timed(self, prompt: Any, **fields: Any) -> float:
        """Seconds of a request that must succeed."""
        began = time.monotonic()
        answer = self.complete(prompt, **fields)
        assert answer.status_code == 200, answer.text
        return time.monotonic() - began

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name."""
        text = self.client.get(f"{self.url}/metrics").text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def at_once(self, bodies: list[Any]) -> tuple[float, list[int]]:
        """Makespan and status codes of requests sent together; 0 for a broken connection."""
        codes = [0] * len(bodies)

        def send(index: int) -> None:
            with httpx.Client(timeout=20, trust_env=False) as client:
                body = {"model": "m", "prompt": bodies[index], "max_tokens": 1}
                try:
                    codes[index] = client.post(f"{self.url}/v1/completions", json=body).status_code
                except httpx.TransportError:
                    codes[index] = 0

        threads = [threading.Thread(target=send, args=(index,)) for index in range(len(bodies))]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic() - began, codes

    def end(self) -> int:
        """Its exit code, within 10 s."""
        return self.process.wait(timeout=10)


Start = Callable[..., StandIn]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start servers; all their process groups are gone afterwards."""
    started: list[StandIn] = []

    def begin(*flags: str, env: dict[str, str] | None = None, state: str = "state", **profile: Any) -> StandIn:
        port = free_port()
        log = tmp_path / f"server{len(started)}.log"
        argv = [sys.executable, "-m", "imagebisect.simulator", "serve", "--profile-json", json.dumps(QUIET | profile)]
        argv += ["--state-dir", str(tmp_path / state), "--host", "127.0.0.1", "--port", str(port)]
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*argv, *(flags or FLAGS)],
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        server = StandIn(process, f"http://127.0.0.1:{port}", log, tmp_path / state)
        started.append(server)
        return server

    yield begin
    for server in started:
        server.client.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def ids(count: int, first: int = 0) -> list[int]:
    """Prompts of different numbers share no block."""
    return list(range(first, first + count))


# ------------------------------------------------------------------------ surface


def test_a_client_sees_what_vllm_shows(start):
    """Version, models, load, tokenizer, unknown routes and models, as vLLM answers them."""
    server = start(version="0.26.1rc1.dev7+gabc").ready()
    get, post = server.client.get, server.client.post

    assert get(f"{server.url}/version").json() == {"version": "0.26.1rc1.dev7+gabc"}
    (model,) = get(f"{server.url}/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("m", 32768)
    assert get(f"{server.url}/ping").status_code == 200
    assert get(f"{server.url}/load").json() == {"server_load": 0}
    assert post(f"{server.url}/tokenize", json={"model": "m", "prompt": "two words"}).json()["count"] == 2
    assert get(f"{server.url}/nowhere").status_code == 404
    assert get(f"{server.url}/v1/completions").status_code == 405
    missing = server.complete(ids(4), model="other")
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == "The model `other` does not exist."
    too_long = server.complete(ids(40000))
    assert too_long.status_code == 400
    assert "maximum context length is 32768 tokens" in too_long.json()["error"]["message"]
    broken = post(f"{server.url}/v1/completions", content=b"{", headers={"content-type": "application/json"})
    assert broken.status_code == 400


def test_answers_carry_exact_counts_with_and_without_streaming(start):
    """Usage of a plain answer, of a stream, of a chat."""
    server = start(decode_tok_s=2000).ready()

    plain = server.complete(ids(700), max_tokens=5, ignore_eos=True).json()
    assert plain["usage"]["prompt_tokens"] == 700
    assert plain["usage"]["completion_tokens"] == 5
    assert plain["usage"]["total_tokens"] == 705
    assert plain["choices"][0]["finish_reason"] == "length"
    stream = server.complete(ids(700, 5000), max_tokens=5, stream=True, stream_options={"include_usage": True})
    events = [line.removeprefix("data: ") for line in stream.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    parts = [json.loads(event) for event in events[:-1]]
    assert [part["choices"][0]["finish_reason"] for part in parts[:-1]] == [None] * 4 + ["length"]
    assert parts[-1]["usage"]["completion_tokens"] == 5
    assert "".join(part["choices"][0]["text"] for part in parts[:-1]) == plain["choices"][0]["text"]
    chat = server.client.post(
        f"{server.url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    ).json()
    assert chat["choices"][0]["message"]["content"]
    assert chat["usage"]["completion_tokens"] == 3


def test_metrics_are_real_counters_that_prometheus_parses(start):
    """What was asked is what is counted, by source, and the KV pool is there."""
    server = start().ready()
    server.complete(ids(4000))
    server.complete(ids(400, 9000), max_tokens=3)

    assert server.metric("vllm:prompt_tokens_total") == 4400
    assert server.metric("vllm:prompt_tokens_by_source_total", source="local_compute") == 4400
    assert server.metric("vllm:generation_tokens_total") == 4
    assert server.metric("vllm:request_success_total", finished_reason="length") == 2
    assert server.metric("vllm:request_prefill_time_seconds_count") == 2
    assert server.metric("vllm:request_prefill_time_seconds_sum") == pytest.approx(0.11, abs=1e-3)
    assert server.metric("vllm:request_queue_time_seconds_sum") == 0
    assert server.metric("vllm:time_to_first_token_seconds_bucket", le="+Inf") == 2
    assert server.metric("vllm:num_requests_running") == 0
    text = server.client.get(f"{server.url}/metrics").text
    (info,) = [line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")]
    assert 'kv_cache_memory_bytes="4294967296"' in info
    assert 'num_gpu_blocks="32768"' in info


@pytest.mark.alone
def test_a_repeated_prompt_is_really_faster_and_counted_as_a_hit(start):
    """A real prefix cache; `cache_salt` keeps users apart; it can be switched off."""
    server = start().ready()

    first = server.timed(ids(12000))
    assert server.timed(ids(12000)) < first / 3
    assert server.metric("vllm:prefix_cache_hits_total") == 11984
    assert server.metric("vllm:prefix_cache_queries_total") == 24000
    assert server.timed(ids(12000), cache_salt="other") > first / 2
    without = start(*FLAGS, "--no-enable-prefix-caching").ready()
    without.complete(ids(12000))
    assert without.timed(ids(12000)) > first / 2
    assert without.metric("vllm:prefix_cache_hits_total") == 0


# ------------------------------------------------------------------------- timing


@pytest.mark.alone
def test_requests_take_the_time_their_profile_says(start):
    """Prefill at its rate, slower from a length on, C at once in C times the time, decode at its own rate."""
    server = start(long_from_tokens=16000, long_slowdown=1.87, decode_tok_s=100).ready()

    assert server.timed(ids(12000)) == pytest.approx(0.3, abs=0.06)
    assert server.timed(ids(16000, 20000)) == pytest.approx(0.748, abs=0.06)
    seconds, codes = server.at_once([ids(4000, 100000 + 10000 * n) for n in range(4)])
    assert codes == [200] * 4
    assert seconds == pytest.approx(0.4, abs=0.1)
    assert server.timed(ids(400, 300000), max_tokens=41) == pytest.approx(0.41, abs=0.06)


@pytest.mark.alone
def test_a_full_length_prompt_is_answered_on_time(start):
    """176,425 ids are a megabyte to read; the clock runs from the first byte."""
    server = start(*FLAGS, "--max-model-len=188160", prefill_tok_s=441062.5).ready()
    server.timed(ids(100))

    late = [server.timed(ids(176425, 200000 * n)) - 0.4 for n in range(1, 4)]
    # The client's own encoding of the body is in there, before the first byte.
    assert min(late) < 0.12
    assert server.metric("vllm:request_prefill_time_seconds_sum") == pytest.approx(1.2, abs=0.01)


@pytest.mark.alone
def test_the_first_request_of_a_process_is_slower_and_says_why(start):
    """Kernels compile on it, and on the first of a length where the profile says so; the log has vLLM's line."""
    server = start(first_request_penalty_s=0.3, jit_penalty_s=0.2).ready()

    assert "JIT compilation during inference" not in server.text()
    assert server.timed(ids(400)) > 0.45
    seen = server.text().count("JIT compilation during inference")
    assert seen == 3
    assert server.timed(ids(400, 1000)) < 0.15
    assert server.timed(ids(800, 5000)) > 0.2
    assert server.text().count("JIT compilation during inference") == seen + 1


def durations(server: StandIn) -> list[float]:
    """Prefill seconds of five requests by the server's own clock, without the client's jitter."""
    found, before = [], 0.0
    for number in range(5):
        server.complete(ids(2000, 10000 * number))
        now = server.metric("vllm:request_prefill_time_seconds_sum")
        found.append(round(now - before, 9))
        before = now
    return found


def test_the_same_requests_take_the_same_time_in_every_replay(start):
    """Noise is drawn from the seed, the arguments and the count of such starts; nothing else."""
    noisy = {"noise": 0.02, "start_noise": 0.02}
    first = durations(start(state="a", **noisy).ready())
    replay = durations(start(state="b", **noisy).ready())
    second_start = durations(start(state="a", **noisy).ready())
    other_build = durations(start(state="c", **noisy, seed=1).ready())
    named = [durations(start(state="a", env={"BISECT_STANDIN_NONCE": "7"}, **noisy).ready()) for _ in range(2)]

    assert first == replay
    assert named[0] == named[1]
    assert len({tuple(found) for found in (first, second_start, other_build, named[0])}) == 4
    assert all(0.9 * 0.05 < value < 1.1 * 0.05 for value in first)


# ------------------------------------------------------------------------- memory


@pytest.mark.alone
def test_a_live_server_shows_on_its_cards_and_more_while_it_works(start):
    """nvidia-smi sees idle memory, a batch's memory while a request runs, and nothing after the end."""
    server = start(*FLAGS, env={"CUDA_VISIBLE_DEVICES": "1,0"}).ready()

    def used() -> float:
        return cards.read(server.state)[0].used_mib

    idle = used()
    assert idle == 612 + 8220 + 1000 + 54 + 4096
    thread = threading.Thread(target=server.at_once, args=([ids(20000)],))
    thread.start()
    time.sleep(0.25)
    assert used() - idle == 4096 * 0.125 + 8
    assert server.metric("vllm:num_requests_running") == 1
    thread.join()
    assert used() == idle
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert used() == 612
    assert "[shutdown] API server: shutdown triggered" in server.text()


def test_the_boot_log_has_the_facts_of_a_real_one(start):
    """Version, arguments, weights, pool and readiness, from each process that says them."""
    server = start(version="0.26.1rc1.dev7+gabc").ready()
    server.complete(ids(8))
    text = server.text()

    for words in (
        "version 0.26.1rc1.dev7+gabc",
        "Initializing a V1 LLM engine (v0.26.1rc1.dev7+gabc)",
        "'kv_cache_memory_bytes': 4294967296",
        "Model loading took 8.03 GiB memory",
        "Initial free memory 14.91 GiB, reserved 4.00 GiB memory for KV Cache",
        "skipped memory profiling",
        "GPU KV cache size: 524,288 tokens",
        "Maximum concurrency for 32,768 tokens per request: 16.00x",
        "(Worker_TP1 pid=",
        "init engine (profile, create kv cache, warmup model) took",
        "Application startup complete.",
        '"POST /v1/completions HTTP/1.1" 200 OK',
    ):
        assert words in text
    assert "$" not in text


# --------------------------------------------------------------- failures at start


@pytest.mark.parametrize(
    ("profile", "flags", "code", "words"),
    [
        (
            {"unknown_flags": ["--max-num-batched-tokens"]},
            FLAGS,
            2,
            "unrecognized arguments: --max-num-batched-tokens=4096",
        ),
        ({"import_error": "cannot import name 'X'"}, FLAGS, 1, "ImportError: cannot import name 'X'"),
        ({"unsupported_architecture": "NewLM"}, FLAGS, 1, "Model architectures ['NewLM'] are not supported for now"),
        ({"oom_at_start": True}, FLAGS, 1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 24.00 MiB"),
        ({"overhead_mib": 4000}, FLAGS, 1, "of which 317.44 KiB is free"),
        ({"port_in_use": True}, FLAGS, 1, "OSError: [Errno 98] Address already in use"),
        ({"boot_exit_code": 3}, FLAGS, 3, "Starting to load model"),
        ({"cards": 1}, FLAGS, 1, "World size (2) is larger than the number of available GPUs (1)"),
        ({}, ["--gpu-memory-utilization=0.5"], 1, "No available memory for the cache blocks"),
        ({"kv_bytes_per_token": 262144}, FLAGS, 1, "max seq len (32768), (8.00 GiB KV cache is needed"),
        ({"nois": 1}, FLAGS, 2, "did you mean 'noise'"),
    ],
)
def test_a_start_fails_with_vllms_words_and_exit_code(start, profile, flags, code, words):
    """Nothing is left on the cards either."""
    server = start(*flags, **profile)

    assert server.end() == code
    assert words in server.text()
    assert "Application startup complete" not in server.text()
    assert not list(server.state.glob("server-*"))


def test_a_port_that_is_really_taken_is_the_same_failure(start):
    """As vLLM does, before the engine boots."""
    first = start().ready()
    port = first.url.rpartition(":")[2]
    second = start(*FLAGS, "--port", port)

    assert second.end() == 1
    assert "Address already in use" in second.text()
    assert first.complete(ids(4)).status_code == 200


def test_a_server_that_never_gets_ready_can_be_stopped(start):
    """It keeps refusing connections while it boots for ever, and ends on SIGTERM."""
    server = start(never_ready=True)
    time.sleep(0.8)

    assert server.process.poll() is None
    assert "Model loading took" in server.text()
    with pytest.raises(httpx.ConnectError):
        server.client.get(f"{server.url}/health")
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0


# ------------------------------------------------------------- failures at requests

HUNGRY = [*FLAGS[:2], "--max-num-batched-tokens=8192", PIN]


@pytest.mark.parametrize(
    ("mask", "wrapped_in"),
    [
        ("none", "EngineCore encountered a fatal error."),
        ("keyerror", "KeyError: 'cmpl-"),
        ("runtimeerror", "RuntimeError: Worker failed with error 'CUDA out of memory."),
        ("enginedead", "EngineDeadError: EngineCore encountered an issue."),
    ],
)
def test_memory_that_runs_out_kills_the_engine_behind_its_mask(start, mask, wrapped_in):
    """bt=8192 on the hungry build: 500 to the client, the root in the log, the server gone soon after."""
    server = start(*HUNGRY, overhead_mib=2178, oom_mask=mask).ready()
    assert server.complete(ids(400)).status_code == 200

    answer = server.complete(ids(8000, 1000))

    assert answer.status_code == 500
    assert answer.json()["error"]["message"].startswith("EngineCore encountered an issue")
    assert server.end() == 0
    text = server.text()
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 46.88 MiB." in text
    assert "GPU 1 has a total capacity of 15.51 GiB of which" in text
    assert wrapped_in in text
    assert text.index("OutOfMemoryError") < text.index("EngineDeadError")


@pytest.mark.alone
def test_the_same_build_lives_with_the_smaller_batch(start):
    """bt=4096 survives what bt=8192 does not, even four at a time; so does the older build at bt=8192."""
    hungry = start(overhead_mib=2178).ready()
    older = start(*HUNGRY).ready()

    for server in (hungry, older):
        assert server.at_once([ids(8000, 10000 * n) for n in range(4)])[1] == [200] * 4


@pytest.mark.alone
def test_a_forced_oom_keeps_to_its_conditions(start):
    """Only from a length, a batch size and a concurrency on; sometimes, where that is said."""
    server = start(*HUNGRY, oom_at_request_from_tokens=4000, oom_from_concurrency=2, death_exit_code=1).ready()
    assert server.complete(ids(8000)).status_code == 200
    assert set(server.at_once([ids(8000, 10000), ids(8000, 20000)])[1]) == {500}
    assert server.end() == 1
    assert start(*FLAGS, oom_at_request_from_tokens=10).ready().complete(ids(8000)).status_code == 200
    sometimes = {"oom_at_request_from_tokens": 10, "oom_from_batched_tokens": 0, "oom_probability": 0.5}
    codes = [start(*FLAGS, **sometimes, seed=n).ready().complete(ids(100)).status_code for n in range(6)]
    assert set(codes) == {200, 500}


def test_a_crash_that_is_no_oom_says_so(start):
    """A missing kernel: the engine dies without a word about memory."""
    server = start(crash_at_request_from_tokens=0).ready()

    assert server.complete(ids(4)).status_code == 500
    server.end()
    assert "NotImplementedError: SM90 GDN prefill DSL kernel is unavailable" in server.text()
    assert "CUDA out of memory" not in server.text()


def test_an_engine_may_die_after_so_many_answers(start):
    """The next one gets 500, and nothing in the log says why."""
    server = start(dies_after_requests=2).ready()

    assert [server.complete(ids(4, 100 * n)).status_code for n in range(3)] == [200, 200, 500]
    server.end()
    assert "EngineDeadError" in server.text()
    assert "fatal error" not in server.text()


def test_a_server_may_be_killed_under_way(start):
    """Signal 9: the client sees a broken connection."""
    server = start(killed_at_request_from_tokens=1000).ready()
    assert server.complete(ids(999)).status_code == 200

    with pytest.raises(httpx.TransportError):
        server.complete(ids(1000))
    assert server.end() == -signal.SIGKILL
    assert [card.used_mib for card in cards.read(server.state)] == [612, 612]


def test_a_stuck_server_stays_healthy_and_never_answers(start):
    """/health is 200 while a request runs for ever; a client that hangs up is let go."""
    server = start(stuck_from_tokens=5000).ready()

    with pytest.raises(httpx.ReadTimeout):
        server.client.post(f"{server.url}/v1/completions", json={"prompt": ids(5000), "max_tokens": 1}, timeout=0.3)
    assert server.client.get(f"{server.url}/health").status_code == 200
    deadline = time.monotonic() + 5
    while server.metric("vllm:request_success_total", finished_reason="abort") == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0


def test_a_length_may_be_refused_and_usage_may_lie(start):
    """400 from a length on; counts that are off by what the profile says."""
    server = start(refuse_from_tokens=2000, wrong_usage=-3).ready()

    assert server.complete(ids(1999)).json()["usage"]["prompt_tokens"] == 1996
    refused = server.complete(ids(2000))
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "BadRequestError"


# ---------------------------------------------------------------------- processes


def alive_in_group(group: int) -> set[int]:
    """Living processes of a process group."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if after[0] != "Z" and int(after[2]) == group:
                found.add(int(entry.name))
    return found


def test_an_engine_process_survives_its_killed_parent_and_keeps_its_memory(start):
    """As EngineCore does: who kills only the API server leaves the card full."""
    server = start(engine_process=True).ready()
    pid = server.process.pid
    assert server.complete(ids(40)).status_code == 200
    (child,) = alive_in_group(pid) - {pid}
    assert f"(EngineCore pid={child})" in server.text()
    server.process.kill()
    server.process.wait()

    assert alive_in_group(pid) == {child}
    assert cards.read(server.state)[0].processes[0][0] == child
    with pytest.raises(httpx.ConnectError):
        server.client.get(f"{server.url}/health")
    os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while alive_in_group(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert cards.read(server.state)[0].processes == ()


def test_a_dead_engine_process_ends_the_server(start):
    """And SIGTERM to the server ends its engine."""
    server = start(engine_process=True).ready()
    (child,) = alive_in_group(server.process.pid) - {server.process.pid}
    os.kill(child, signal.SIGKILL)
    assert server.end() == 0
    assert "died unexpectedly, shutting down client" in server.text()
    other = start(engine_process=True).ready()
    other.process.send_signal(signal.SIGTERM)
    assert other.end() == 0
    assert alive_in_group(other.process.pid) == set()


def test_it_runs_where_only_the_interpreter_and_its_library_are():
    """No site-packages, no environment: as inside an image that holds nothing else."""
    root = str(Path(imagebisect.__file__).parents[1])
    code = (
        f"import sys; sys.path.insert(0, {root!r}); import runpy, threading, os, signal;"
        "import imagebisect.simulator.boot, imagebisect.simulator.smi, imagebisect.simulator.__main__;"
        "imagebisect.simulator.planted();"
        "print(sorted({m.split('.')[0] for m in sys.modules if 'site-packages' in (getattr(sys.modules[m], '__file__', '') or '')}));"
        "sys.argv = ['x', 'serve', '--no-such-flag']; runpy.run_module('imagebisect.simulator', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 2, done.stderr
    assert done.stdout == "[]\n"
    assert done.stderr.endswith("vllm: error: unrecognized arguments: --no-such-flag\n")
