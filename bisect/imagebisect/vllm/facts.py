"""Facts that a server's log states about itself; a wording nobody knows is a missing fact, never a wrong one.

Wordings of vLLM 0.19 to 0.33, on GPUs and on CPUs. Of workers that disagree, the worst counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from imagebisect.domain import JsonValue
from imagebisect.vllm import loglines

LONGEST_TEXT = 4000
"""Characters kept of a fact that is text."""

_GIB = 1024.0


def _text(value: str) -> JsonValue:
    return value.strip()[:LONGEST_TEXT]


def _whole(value: str) -> JsonValue:
    return int(value.replace(",", ""))


def _number(value: str) -> JsonValue:
    return float(value)


def _gib_as_mib(value: str) -> JsonValue:
    return round(float(value) * _GIB, 2)


def _gib_as_bytes(value: str) -> JsonValue:
    return round(float(value) * _GIB**3)


def _bytes_as_mib(value: str) -> JsonValue:
    return round(int(value) / _GIB**2, 2)


def _bool(value: str) -> JsonValue:
    return value == "True"


def _yes(_value: str) -> JsonValue:
    return True


def _first(old: JsonValue, _new: JsonValue) -> JsonValue:
    return old


def _smallest(old: JsonValue, new: JsonValue) -> JsonValue:
    return min(old, new)


def _largest(old: JsonValue, new: JsonValue) -> JsonValue:
    return max(old, new)


@dataclass(frozen=True, kw_only=True)
class _Wording:
    """How one fact is worded. `merge` decides when several processes state it."""

    fact: str
    pattern: re.Pattern[str]
    convert: Callable[[str], JsonValue]
    merge: Callable[[JsonValue, JsonValue], JsonValue] = _first


def _wording(
    fact: str,
    pattern: str,
    convert: Callable[[str], JsonValue],
    merge: Callable[[JsonValue, JsonValue], JsonValue] = _first,
) -> _Wording:
    return _Wording(fact=fact, pattern=re.compile(pattern), convert=convert, merge=merge)


_WORDINGS = (
    _wording("version", r"Initializing a V\d LLM engine \(v([^\s)]{1,80})\)", _text),
    _wording("version", r"▄.* version ([0-9][^\s]{1,80})", _text),
    _wording("version", r"vLLM (?:API )?server version ([0-9][^\s,]{1,80})", _text),
    _wording("non_default_args", r"non-default args: (\{.*)", _text),
    _wording("architecture", r"Resolved architecture: (\w{1,100})", _text),
    _wording("attention_backend", r"Using (\w{1,60}) attention backend", _text),
    _wording("attention_backend", r"KV cache layout for (\w{1,60}) backend", _text),
    _wording("gdn_prefill_kernel", r"Using ([\w./ -]{1,60}?) GDN prefill kernel", _text),
    _wording("model_runner", r"using the ([vV]1) [mM]odel [rR]unner instead", str.upper),
    _wording("model_runner", r"Using (V\d) Model Runner", _text),
    _wording("block_size", r"Setting attention block size to ([\d,]{1,20}) tokens", _whole),
    _wording("weights_mib", r"Model loading took ([\d.]{1,20}) GiB", _gib_as_mib, _largest),
    _wording("load_weights_s", r"Loading weights took ([\d.]{1,20}) seconds", _number, _largest),
    _wording("dynamo_s", r"Dynamo bytecode transform time: ([\d.]{1,20}) s", _number, _largest),
    _wording(
        "compile_s",
        r"torch\.compile (?:and initial profiling/warmup run together )?took ([\d.]{1,20}) s",
        _number,
        _largest,
    ),
    _wording("compile_s", r"init engine \([^)]{1,200}\) took .{1,60}\(compilation: ([\d.]{1,20}) s", _number, _largest),
    _wording("compile_cached", r"(Directly load AOT compilation from path)", _yes),
    _wording("profile_run_s", r"Initial profiling/warmup run took ([\d.]{1,20}) s", _number, _largest),
    _wording("initial_free_mib", r"Initial free memory ([\d.]{1,20}) GiB, reserved", _gib_as_mib, _smallest),
    _wording("kv_cache_bytes", r"reserved ([\d.]{1,20}) GiB memory for KV Cache as specified", _gib_as_bytes, _largest),
    _wording("skipped_memory_profiling", r"and (skipped memory profiling)", _yes),
    _wording("available_kv_mib", r"Available KV cache memory: (-?[\d.]{1,20}) GiB", _gib_as_mib, _smallest),
    _wording("available_kv_mib", r"Available KV cache memory: (\d{1,20}) bytes", _bytes_as_mib, _smallest),
    _wording(
        "kv_cache_tokens", r"(?:GPU|CPU|GPU \+ host|\w{2,12}) KV cache size: ([\d,]{1,30}) tokens", _whole, _smallest
    ),
    _wording(
        "max_concurrency", r"Maximum concurrency for [\d,]{1,30} tokens per request: ([\d.]{1,20})x", _number, _smallest
    ),
    _wording("max_model_len", r"Maximum concurrency for ([\d,]{1,30}) tokens per request", _whole, _smallest),
    _wording(
        "kv_cache_blocks",
        r"cache_config_info with initialization after num_gpu_blocks is: (\d{1,12})",
        _whole,
        _smallest,
    ),
    _wording("nccl", r"vLLM is using nccl==([\d.]{1,20})", _text),
    _wording("tensor_parallel_size", r"LLM engine \(v.{1,4000}?\btensor_parallel_size=(\d{1,4})", _whole),
    _wording("prefix_caching", r"LLM engine \(v.{1,6000}?\benable_prefix_caching=(True|False)", _bool),
    _wording("enforce_eager", r"LLM engine \(v.{1,4000}?\benforce_eager=(True|False)", _bool),
    _wording("mamba_page_padding_percent", r"Padding mamba page size by ([\d.]{1,20})%", _number),
    _wording("graph_capture_s", r"Graph capturing finished in ([\d.]{1,20}) secs?", _number, _largest),
    _wording("graph_mib", r"CUDA graph pool memory: ([\d.]{1,20}) GiB \(actual\)", _gib_as_mib, _largest),
    _wording(
        "graph_mib", r"Graph capturing finished in [\d.]{1,20} secs?, took (-?[\d.]{1,20}) GiB", _gib_as_mib, _largest
    ),
    _wording("graph_estimate_mib", r"Estimated CUDA graph memory: (-?[\d.]{1,20}) GiB", _gib_as_mib, _largest),
    _wording("init_engine_s", r"init engine \([^)]{1,200}\) took ([\d.]{1,20}) s", _number, _largest),
    _wording("max_num_batched_tokens", r"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,12})", _whole),
)
_WANTED = tuple(
    word.encode()
    for word in (
        "version ",
        "LLM engine",
        "non-default args",
        "Resolved architecture",
        " backend",
        "prefill kernel",
        "odel runner",
        "odel Runner",
        "block size to",
        "oading ",
        "transform time",
        "torch.compile",
        "init engine",
        "AOT compilation",
        "warmup run",
        "memory",
        "KV cache size",
        "Maximum concurrency",
        "num_gpu_blocks",
        "using nccl",
        "mamba page",
        "Graph capturing",
        "CUDA graph",
        "Chunked prefill",
    )
)
"""A line without any of these states no fact: looking for a word is ten times as fast as trying every wording."""

_PINNED_BYTES = re.compile(r"'kv_cache_memory_bytes': (\d{1,20})")
_BATCHED_TOKENS = re.compile(r"'max_num_batched_tokens': (\d{1,12})")
_COMMIT = re.compile(r"\+g([0-9a-f]{7,40})")


_COUNTED = {
    "autotuner_fallbacks": re.compile(r"No tuned config covers "),
    "jit_warnings": re.compile(r"JIT compilation during inference"),
    "hang_warnings": re.compile(r"No available shared memory broadcast block found"),
}


_WORTH_COUNTING = (b"No tuned config", b"JIT compilation", b"shared memory broadcast")


def count_warnings(log: Path) -> dict[str, int]:
    """How often the whole log warns of each thing worth counting (vllm.md 3.5). A missing log warns of nothing."""
    counts = dict.fromkeys(_COUNTED, 0)
    for line in loglines.read(log, wanted=_WORTH_COUNTING):
        for name, pattern in _COUNTED.items():
            if pattern.search(line.text):
                counts[name] += 1
    return counts


def read(log: Path) -> dict[str, JsonValue]:
    """Every fact the log states; times in s, memory in MiB or bytes as the names say. A missing log has none."""
    found: dict[str, JsonValue] = {}
    for line in loglines.read(log, wanted=_WANTED):
        if line.level in {"ERROR", "CRITICAL"}:
            continue
        for wording in _WORDINGS:
            hit = wording.pattern.search(line.text)
            if not hit:
                continue
            try:
                value = wording.convert(hit[1])
            except ValueError:
                continue
            old = found.get(wording.fact)
            found[wording.fact] = value if old is None else wording.merge(old, value)
    _derive(found)
    return found


def _derive(found: dict[str, JsonValue]) -> None:
    """Facts inside other facts: the commit in a version, exact bytes and chunk length in the arguments."""
    commit = _COMMIT.search(str(found.get("version", "")))
    if commit:
        found["commit"] = commit[1]
    arguments = str(found.get("non_default_args", ""))
    pinned = _PINNED_BYTES.search(arguments)
    if pinned and "kv_cache_bytes" in found:
        said = int(pinned[1])
        # The log rounds to 0.01 GiB; the argument is exact unless the build reserved something else.
        if abs(said - int(found["kv_cache_bytes"])) <= 0.01 * _GIB**3:
            found["kv_cache_bytes"] = said
    batched = _BATCHED_TOKENS.search(arguments)
    if batched:
        found["max_num_batched_tokens"] = int(batched[1])
