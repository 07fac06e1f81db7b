"""Real vLLM on the CPU: BISECT_TEST_VLLM names an environment with its own bin/vllm, BISECT_TEST_MODEL a model folder."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import pytest

import worlds

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(3000),
    pytest.mark.skipif("BISECT_TEST_VLLM" not in os.environ, reason="BISECT_TEST_VLLM names no vLLM environment"),
]

SUITE = """
schema: 1
vars: {MODEL: {env: BISECT_TEST_MODEL, required: true}}
model: {path: "${MODEL}", at: /models/m}
base:
  gpus: none
  env: {VLLM_CPU_KVCACHE_SPACE: "1", VLLM_NO_USAGE_STATS: "1", HF_HUB_OFFLINE: "1"}
  args: ["--model=${model}", --enforce-eager, --max-num-seqs=4, --max-model-len=32768]
deadlines: {boot: 10m, request: 2m}
servers:
  cpu: {}
scenarios:
  prefill: {on: cpu, kind: prefill, prompt_tokens: 4000, concurrency: [1, 2], reps: 3}
targets:
  prefill: {metric: prefill.c1.prefill_tok_s, worse: lower, floor: 20%, role: bisect}
"""


def write(folder: Path) -> tuple[Path, Path]:
    """Four entries of one environment, the last two with a handicap: prefill in chunks of 64 tokens."""
    env = os.environ["BISECT_TEST_VLLM"]
    handicap = "overrides: {args: [--max-num-batched-tokens=64]}"
    images = folder / "images.yaml"
    images.write_text(
        textwrap.dedent(
            f"""
            schema: 1
            builds:
              - {{name: plain, venv: {env}}}
              - {{name: again, same_as: plain}}
              - {{name: slow, same_as: plain, {handicap}}}
              - {{name: slow-again, same_as: plain, {handicap}}}
            """
        )
    )
    suite = folder / "suite.yaml"
    suite.write_text(SUITE)
    return images, suite


def test_probe_measures_exact_token_counts_without_cache_hits(tmp_path):
    """One build, 4,000 tokens at C=1 and C=2: counts are exact, nothing came from the prefix cache."""
    images, suite = write(tmp_path)

    done = worlds.bisect(
        "probe", "plain", "--images", str(images), "--suite", str(suite), "--json", cwd=tmp_path, timeout=900
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (start,) = next(build for build in report["builds"] if build["name"] == "plain")["starts"]
    (measurement,) = start["measurements"]
    reps = [rep for rep in measurement["reps"] if not rep["warmup"]]
    assert {rep["concurrency"] for rep in reps} == {1, 2}
    for rep in reps:
        assert set(rep["usage_prompt_tokens"]) == {4000}
        assert rep["cache_hit_tokens"] == 0
        assert rep["invalid"] is None
    assert start["facts"]["version"].startswith("0.")
    assert start["facts"]["kv_cache_tokens"] > 32768


def test_run_finds_the_first_handicapped_entry(tmp_path):
    """Four entries of one real environment: the first slow one is named."""
    images, suite = write(tmp_path)

    done = worlds.bisect("run", "--images", str(images), "--suite", str(suite), "--json", cwd=tmp_path, timeout=2900)

    report = json.loads(done.stdout)
    (target,) = report["targets"]
    assert target["first_bad"]["name"] == "slow", done.stderr
    assert target["last_good"]["name"] == "again"
    assert done.returncode == 10, done.stderr
