"""vLLM's command line as the stand-in reads it."""

from __future__ import annotations

import pytest

from imagebisect.simulator.flags import parse

SEED = [
    "--model=/models/m",
    "--tensor-parallel-size=2",
    "--kv-cache-dtype=fp8",
    "--max-model-len=188160",
    "--gpu-memory-utilization=0.95",
    "--kv-cache-memory-bytes=3264175144",
    "--max-num-seqs=4",
    "--max-num-batched-tokens=4096",
    "--mamba-cache-dtype=bfloat16",
    "--mamba-ssm-cache-dtype=bfloat16",
    '--compilation-config={"cudagraph_mode":"PIECEWISE","cudagraph_capture_sizes":[1,2,4]}',
    "--enable-prefix-caching",
    "--language-model-only",
    "--trust-remote-code",
]


def test_the_flags_of_a_real_report_are_all_known():
    """What the bug was filed with is read exactly."""
    found = parse(SEED)

    assert found.model == found.served_model_name == "/models/m"
    assert (found.tensor_parallel_size, found.max_model_len, found.max_num_batched_tokens) == (2, 188160, 4096)
    assert (found.kv_cache_memory_bytes, found.max_num_seqs, found.prefix_caching) == (3264175144, 4, True)
    assert found.given["compilation_config"]["cudagraph_capture_sizes"] == [1, 2, 4]
    assert found.model_as_option


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "/m", "--max-num-seqs", "4", "--port=9"],
        ["/m", "--max_num_seqs=4", "--port", "9"],
        ["--model", "/m", "--max-num-seqs=4", "--port", "9", "--compilation-config.mode=3", "-cc.level", "2"],
    ],
)
def test_spellings_that_vllm_takes_are_the_same_to_it(arguments):
    """`serve` or not, the model by position or option, = or blank, _ or -."""
    found = parse(arguments)

    assert (found.model, found.max_num_seqs, found.port) == ("/m", 4, 9)


def test_switches_can_be_turned_off_and_sizes_have_endings():
    """`--no-` forms and 4k, 1K."""
    found = parse(["--no-enable-prefix-caching", "--max-model-len=4k", "--max-num-batched-tokens=1K", "-tp", "2"])

    assert (found.prefix_caching, found.max_model_len, found.max_num_batched_tokens) == (False, 4000, 1024)
    assert found.tensor_parallel_size == 2


@pytest.mark.parametrize(
    ("arguments", "unknown", "last"),
    [
        (["--model", "m", "--no-such-flag", "1"], (), "vllm: error: unrecognized arguments: --no-such-flag 1"),
        (["--max-num-seqs=4"], ("--max-num-seqs",), "vllm: error: unrecognized arguments: --max-num-seqs=4"),
        (["--max-num-seq=4"], (), "vllm: error: unrecognized arguments: --max-num-seq=4"),
        (["--port", "x"], (), "vllm serve: error: argument --port: invalid int value: 'x'"),
        (["--port"], (), "vllm serve: error: argument --port: expected one argument"),
    ],
)
def test_what_a_build_does_not_know_it_refuses_as_argparse_does(arguments, unknown, last, capsys):
    """Usage on stderr, exit code 2."""
    with pytest.raises(SystemExit) as caught:
        parse(arguments, unknown)

    assert caught.value.code == 2
    written = capsys.readouterr().err.splitlines()
    assert written[0].startswith("usage: vllm")
    assert written[-1] == last
