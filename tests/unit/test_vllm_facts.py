"""What a log states about its server, in the words of every version."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebisect.vllm import facts

RECORDED = Path(__file__).parent.parent / "fixtures"


def of(folder, *lines):
    """The facts of a log with these lines."""
    path = folder / "server.log"
    path.write_text("\n".join(lines) + "\n")
    return facts.read(path)


def test_the_recorded_gpu_boot_gives_its_facts():
    """VLLM 0.26 on an H200, with a pinned KV cache and a cold compile cache."""
    found = facts.read(RECORDED / "vllm-0.26.0-h200" / "boot-and-prefill-ok.log")

    assert "--" not in found["non_default_args"]
    assert found["non_default_args"].startswith("{'model_tag': '/models/m'")
    del found["non_default_args"]
    assert found == {
        "version": "0.26.0",
        "architecture": "Qwen3_5ForConditionalGeneration",
        "attention_backend": "FLASH_ATTN",
        "gdn_prefill_kernel": "Triton/FLA",
        "block_size": 800,
        "weights_mib": 14643.2,
        "compile_s": 20.46,
        "initial_free_mib": 142632.96,
        "kv_cache_bytes": 17179869184,
        "skipped_memory_profiling": True,
        "kv_cache_tokens": 2037881,
        "max_concurrency": 10.83,
        "graph_mib": 51.2,
        "init_engine_s": 97.31,
        "max_num_batched_tokens": 4096,
        "max_model_len": 188160,
        "tensor_parallel_size": 1,
        "prefix_caching": True,
        "enforce_eager": False,
        "mamba_page_padding_percent": 0.25,
        "dynamo_s": 2.72,
        "profile_run_s": 70.67,
        "graph_capture_s": 1.0,
    }


@pytest.mark.parametrize(
    ("folder", "version", "backend"), [("vllm-0.27.1-cpu", "0.27.1", "CPU_ATTN"), ("vllm-0.32.0-cpu", "0.32.0", None)]
)
def test_the_recorded_cpu_boots_give_version_and_pool(folder, version, backend):
    """CPU builds word the pool differently: two lines in 0.27, one in 0.32."""
    found = facts.read(RECORDED / folder / "boot-and-prefill-ok.log")

    assert (found["version"], found["kv_cache_tokens"], found["max_concurrency"]) == (version, 2097152, 64.0)
    assert found["model_runner"] == "V1"
    assert found.get("attention_backend") == backend
    assert "kv_cache_bytes" not in found


def test_the_commit_is_read_from_a_nightlys_version(tmp_path):
    """Nightlies say their commit after `+g`."""
    found = of(
        tmp_path,
        "INFO 11-30 23:25:05 [core.py:116] Initializing a V1 LLM engine (v0.26.1rc1.dev1177+ga9a17e709) with config: model='/m'",
    )

    assert (found["version"], found["commit"]) == ("0.26.1rc1.dev1177+ga9a17e709", "a9a17e709")


@pytest.mark.parametrize(
    ("line", "fact", "value"),
    [
        ("Using FlashInfer GDN prefill kernel", "gdn_prefill_kernel", "FlashInfer"),
        ("Using Triton/FLA GDN prefill kernel (head_k_dim=128).", "gdn_prefill_kernel", "Triton/FLA"),
        ("Using V2 Model Runner", "model_runner", "V2"),
        ("Model runner v2 does not yet support X; using the v1 model runner instead.", "model_runner", "V1"),
        ("init engine (profile, create kv cache, warmup model) took 45.12 seconds", "init_engine_s", 45.12),
        ("init engine (profile, create kv cache, warmup model) took 45.12 s (compilation: 20.10 s)", "init_engine_s", 45.12),
        ("GPU + host KV cache size: 193,602 tokens, Maximum concurrency for 188,160 tokens per request: 1.03x", "kv_cache_tokens", 193602),
        ("GPU + host KV cache size: 193,602 tokens, Maximum concurrency for 188,160 tokens per request: 1.03x", "max_concurrency", 1.03),
        ("[decoder] torch.compile and initial profiling/warmup run together took 33.10 s in total", "compile_s", 33.1),
        ("Available KV cache memory: 5.18 GiB", "available_kv_mib", 5304.32),
        ("Model loading took 8.03 GiB and 12.345678 seconds", "weights_mib", 8222.72),
        ("CUDA graph pool memory: 0.31 GiB (actual), 0.40 GiB (estimated), difference: 0.09 GiB", "graph_mib", 317.44),
        ("vLLM API server version 0.9.1", "version", "0.9.1"),
    ],
)  # fmt: skip
def test_each_wording_is_read(tmp_path, line, fact, value):
    """One fact, one line, in the words of one version or another."""
    assert of(tmp_path, f"(EngineCore pid=5) INFO 11-30 23:25:05 [a.py:1] {line}")[fact] == value


def test_of_two_workers_the_worse_one_counts(tmp_path):
    """Under TP=2 each worker reports; the card with less memory decides what fits."""
    found = of(
        tmp_path,
        "(Worker_TP0 pid=5) INFO 11-30 23:25:05 [a.py:1] Initial free memory 14.91 GiB, reserved 3.04 GiB memory for KV Cache as"
        " specified by kv_cache_memory_bytes config and skipped memory profiling.",
        "(Worker_TP1 pid=6) INFO 11-30 23:25:05 [a.py:1] Initial free memory 14.51 GiB, reserved 3.04 GiB memory for KV Cache as"
        " specified by kv_cache_memory_bytes config and skipped memory profiling.",
    )

    assert found["initial_free_mib"] == round(14.51 * 1024, 2)


def test_unknown_words_are_missing_facts(tmp_path):
    """A later version that words everything anew gives nothing, not nonsense."""
    assert of(tmp_path, "INFO 11-30 23:25:05 [a.py:1] KV cache now holds lots of tokens") == {}
    assert facts.read(tmp_path / "none.log") == {}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=200)))
def test_any_bytes_can_be_read(tmp_path_factory, pieces):
    """Torn and binary logs raise nothing."""
    path = tmp_path_factory.mktemp("log") / "server.log"
    path.write_bytes(b"\n".join([*pieces, b"GPU KV cache size: 193,"]))

    assert "kv_cache_tokens" not in facts.read(path)


@pytest.mark.parametrize("log", sorted(RECORDED.glob("*/*.log")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_passing_over_lines_loses_no_fact(log, monkeypatch):
    """Only lines with a wanted word are read; a recorded log has the same facts when every line is."""
    quick = facts.read(log)
    monkeypatch.setattr(facts, "_WANTED", None)

    assert facts.read(log) == quick
