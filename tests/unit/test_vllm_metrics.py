"""Counters out of /metrics: recorded scrapes, engines summed, changes between two looks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebisect.vllm import metrics

RECORDED = Path(__file__).parent.parent / "fixtures"


def test_the_recorded_gpu_scrape_is_read():
    """15 requests, 715,275 prompt tokens, no cache hit; the pool as vLLM configured it."""
    seen = metrics.parse((RECORDED / "vllm-0.26.0-h200" / "metrics-after-prefill.prom").read_text())

    assert (seen.succeeded, seen.prompt_tokens, seen.computed_tokens, seen.prefix_hits) == (15, 715275, 715275, 0)
    assert (seen.running, seen.waiting, seen.generation_tokens) == (0, 0, 15)
    assert seen.prefill_s == pytest.approx(28.203195)
    assert seen.cache_config == {
        "num_gpu_blocks": 2621,
        "block_size": 800,
        "kv_cache_memory_bytes": 17179869184,
        "kv_cache_size_tokens": 2037881,
    }


@pytest.mark.parametrize("folder", ["vllm-0.27.1-cpu", "vllm-0.32.0-cpu"])
def test_the_recorded_cpu_scrapes_are_read(folder):
    """The same names on CPU builds."""
    seen = metrics.parse((RECORDED / folder / "metrics-after-prefill.prom").read_text())

    assert (seen.succeeded, seen.prompt_tokens, seen.prefix_queries) == (4, 24000, 24000)
    assert seen.cache_config["num_gpu_blocks"] == 16384


def test_engines_are_summed():
    """Data-parallel servers have one series an engine."""
    text = 'vllm:prompt_tokens_total{engine="0"} 10.0\nvllm:prompt_tokens_total{engine="1"} 5.0\n'

    assert metrics.parse(text).prompt_tokens == 15


def test_what_a_build_lacks_is_none():
    """No counter is not a counter of zero."""
    seen = metrics.parse("vllm:num_requests_running 1.0\n")

    assert seen.running == 1
    assert seen.prefix_hits is None


def test_a_value_that_was_renamed_is_found_under_either_name():
    """Older builds say gpu_cache_usage_perc and gpu_prefix_cache_*; of both names the newer one counts."""
    old = "vllm:gpu_cache_usage_perc 0.5\nvllm:gpu_prefix_cache_hits_total 16.0\n"
    both = old + "vllm:kv_cache_usage_perc 0.25\nvllm:prefix_cache_hits_total 0.0\n"

    assert (metrics.parse(old).kv_usage, metrics.parse(old).prefix_hits) == (0.5, 16)
    assert (metrics.parse(both).kv_usage, metrics.parse(both).prefix_hits) == (0.25, 0)


def test_a_change_is_what_happened_between_two_looks():
    """Counters subtract, levels stay; a counter that one look lacks, or that ran backwards, is unknown."""
    before = metrics.Snapshot(prompt_tokens=100, prefill_s=1.0, succeeded=5, running=1)
    after = metrics.Snapshot(prompt_tokens=4100, prefill_s=3.5, succeeded=0, queue_s=2.0, running=0)

    change = metrics.delta(before, after)

    assert (change.prompt_tokens, change.prefill_s, change.running) == (4000, 2.5, 0)
    assert change.succeeded is None
    assert change.queue_s is None
    assert metrics.delta(None, after) == metrics.Snapshot()


@settings(max_examples=100, deadline=None)
@given(st.text(), st.integers(min_value=0, max_value=46000))
def test_torn_and_strange_scrapes_give_what_they_hold(noise, cut):
    """A scrape cut anywhere, with anything behind it, raises nothing."""
    whole = (RECORDED / "vllm-0.26.0-h200" / "metrics-after-prefill.prom").read_text()

    metrics.parse(whole[:cut] + noise)
    metrics.parse("vllm:prompt_tokens_total" + noise)
