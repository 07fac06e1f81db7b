"""The transient buffer of a linear-attention layer against what a pinned KV cache leaves free."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebisect import headroom
from imagebisect.config import model_sizes
from imagebisect.domain import LinearAttention, ModelSpec, Server

GDN = LinearAttention(value_heads=48, value_head_dim=128)


def server(*args):
    """A server with these arguments."""
    return Server(name="s", args=args)


@pytest.mark.parametrize(
    ("tokens", "parallel", "mib"), [(8192, 2, 48.0), (4096, 2, 24.0), (8192, 1, 96.0), (16384, 4, 48.0)]
)
def test_the_reports_arithmetic(tokens, parallel, mib):
    """8,192 tokens x 48/2 heads x 128 x 2 bytes are the 48.00 MiB that the bug's log asks for; 96 MiB at TP=1."""
    found = headroom.buffer(GDN, server(f"--tensor-parallel-size={parallel}", f"--max-num-batched-tokens={tokens}"))

    assert found.mib == mib
    assert f"= {mib:.2f} MiB" in found.arithmetic


def test_an_oom_of_that_size_is_named_as_that_buffer():
    """31 MiB free, 48 needed: too little, and the refused allocation is the buffer; another size is not."""
    found = headroom.buffer(GDN, server("--tensor-parallel-size=2", "--max-num-batched-tokens=8192"))

    said = headroom.in_report(found, free_idle_mib=31.0, asked_mib=48.0)
    assert "too little" in said
    assert "exactly this buffer" in said
    assert "exactly" not in headroom.in_report(found, free_idle_mib=31.0, asked_mib=48.5)
    assert "enough" in headroom.in_report(found, free_idle_mib=330.0, asked_mib=None)


def test_what_is_not_known_is_not_said():
    """No sizes, no batch, heads that do not divide: no buffer, no sentence."""
    assert headroom.buffer(None, server("--max-num-batched-tokens=8192")) is None
    assert headroom.buffer(GDN, server()) is None
    assert headroom.buffer(GDN, server("--max-num-batched-tokens=8192", "-tp", "5")) is None
    assert headroom.in_plan(None, server()) is None
    assert headroom.in_report(None, free_idle_mib=1.0, asked_mib=1.0) is None


def test_the_server_itself_knows_its_batch_best():
    """A fact of the start comes before the argument; a pin is warned of in the plan."""
    pinned = server("--max-num-batched-tokens=8192", "--kv-cache-memory-bytes=1")

    assert headroom.buffer(GDN, pinned, {"max_num_batched_tokens": 4096}).tokens == 4096
    assert "pinned" in headroom.in_plan(headroom.buffer(GDN, pinned), pinned)


@given(st.integers(1, 1 << 20), st.sampled_from([1, 2, 4, 8, 16]))
def test_the_buffer_grows_with_the_batch_and_shrinks_with_the_cards(tokens, parallel):
    """Twice the batch is twice the buffer; all cards together hold one."""
    one = headroom.buffer(GDN, server(f"--max-num-batched-tokens={tokens}"))
    split = headroom.buffer(GDN, server(f"--max-num-batched-tokens={2 * tokens}", f"-tp={parallel}"))

    assert split.mib * parallel == pytest.approx(2 * one.mib)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"text_config": {"linear_num_value_heads": 48, "linear_value_head_dim": 128}, "dtype": "bfloat16"}, (48, 2)),
        ({"linear_num_value_heads": 32, "linear_value_head_dim": 128, "torch_dtype": "torch.float32"}, (32, 4)),
        ({"num_attention_heads": 8}, None),
        ({"text_config": {"linear_num_value_heads": True, "linear_value_head_dim": 128}}, None),
        ([1], None),
    ],
)
def test_sizes_come_from_config_json(tmp_path: Path, config, found):
    """The text part first; a dense model has none; nonsense has none."""
    (tmp_path / "config.json").write_text(json.dumps(config))

    seen = model_sizes.linear_attention(ModelSpec(path=str(tmp_path), at="/m"))
    assert (seen and (seen.value_heads, seen.dtype_bytes)) == found
