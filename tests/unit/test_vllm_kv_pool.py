"""The KV pool, normalised over the change of what `KV cache size` means."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from imagebisect.vllm import facts, kv_pool, metrics

RECORDED = Path(__file__).parent.parent / "fixtures"


def test_the_recorded_gpu_boot():
    """Pinned bytes exactly, blocks and tokens from the metrics of the same server."""
    folder = RECORDED / "vllm-0.26.0-h200"
    seen = metrics.parse((folder / "metrics-after-prefill.prom").read_text())
    found = kv_pool.pool(facts.read(folder / "boot-and-prefill-ok.log"), seen.cache_config)

    assert found["kv_pool_bytes"] == 17179869184
    assert (found["kv_pool_blocks"], found["kv_pool_block_tokens"]) == (2621, 800)
    assert found["kv_pool_tokens"] == 2037881
    assert found["kv_cache_tokens_meaning"] == kv_pool.CAPACITY


def test_the_old_meaning_of_a_hybrid_model_is_told_by_its_arithmetic():
    """55,000 tokens at 2.79x of 188,160: the number is blocks, the capacity is the product (vllm #43308)."""
    old = {"version": "0.20.0", "kv_cache_tokens": 55_000, "max_concurrency": 2.79, "max_model_len": 188_160}
    new = {**old, "version": "0.21.0", "kv_cache_tokens": 524_966}

    before, after = kv_pool.pool(old, {}), kv_pool.pool(new, {})
    assert before["kv_cache_tokens_meaning"] == kv_pool.BLOCKS
    assert before["kv_pool_tokens"] == round(2.79 * 188_160)
    assert after["kv_cache_tokens_meaning"] == kv_pool.CAPACITY
    assert abs(before["kv_pool_tokens"] / after["kv_pool_tokens"] - 1) < 0.01


def test_a_version_that_orders_nothing_leaves_the_meaning_open():
    """`0.1.devN` was built where no tag was found: agreeing arithmetic says that both meanings agree, no more."""
    said = {
        "version": "0.1.dev19754+g3a0914114",
        "kv_cache_tokens": 193_602,
        "max_concurrency": 1.03,
        "max_model_len": 188_160,
    }

    assert kv_pool.log_meaning(said) == kv_pool.EITHER


def test_sources_of_bytes_in_the_order_of_their_stability():
    """Pinned, then the metrics' label, then what the log found available; nothing is made up."""
    assert (
        kv_pool.pool({"kv_cache_bytes": 5, "available_kv_mib": 1.0}, {"kv_cache_memory_bytes": 7})["kv_pool_bytes"] == 5
    )
    assert kv_pool.pool({"available_kv_mib": 1.0}, {"kv_cache_memory_bytes": 7})["kv_pool_bytes"] == 7
    assert kv_pool.pool({"available_kv_mib": 1.5}, {})["kv_pool_bytes"] == 1572864
    assert kv_pool.pool({}, {}) == {}


_FACT = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())


@given(
    st.dictionaries(
        st.sampled_from(
            ["version", "kv_cache_tokens", "max_concurrency", "max_model_len", "kv_cache_bytes", "available_kv_mib"]
        ),
        _FACT,
    )
)
def test_odd_facts_never_break_it(said):
    """Whatever a log made of a fact: no crash, and every value is a number or a text."""
    for value in kv_pool.pool(said, {}).values():
        assert isinstance(value, int | str)
