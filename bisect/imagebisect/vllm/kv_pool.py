"""The KV pool in bytes, blocks and tokens, from whatever says it in the most stable way. Pure.

`GPU KV cache size: N tokens` changed its meaning in vLLM #41069 (first release 0.21): before, blocks over groups times
the smallest block; since then what fits of requests of the longest length. For hybrid models the two differ tenfold at
the same bytes (#43308), so tokens are normalised to the newer meaning and the line is never compared as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping

from imagebisect.domain import JsonValue

_MIB = 2**20
_ROUNDING = 0.005
"""`Maximum concurrency` is printed with two decimals."""


_MOST = 2**60
"""No count or size of a real pool comes near."""


def _number(value: JsonValue) -> float | None:
    """A fact as a number that counts something; None for anything else."""
    sane = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST
    return float(value) if sane else None


def pool(facts: Mapping[str, JsonValue], cache_config: Mapping[str, int]) -> dict[str, JsonValue]:
    """Facts of the pool on one card: `kv_pool_bytes`, `_blocks`, `_block_tokens`, `_tokens`, and where they are from.

    Args:
        facts: what the log says (`vllm.facts`).
        cache_config: the whole numbers of `vllm:cache_config_info` (`vllm.metrics`).
    """
    found: dict[str, JsonValue] = {}
    size, size_source = _bytes(facts, cache_config)
    if size is not None:
        found |= {"kv_pool_bytes": size, "kv_pool_bytes_source": size_source}
    blocks = cache_config.get("num_gpu_blocks") or facts.get("kv_cache_blocks")
    if isinstance(blocks, int) and blocks > 0:
        found["kv_pool_blocks"] = blocks
        if cache_config.get("block_size"):
            found["kv_pool_block_tokens"] = cache_config["block_size"]
    tokens, tokens_source = _tokens(facts, cache_config)
    if tokens is not None:
        found |= {"kv_pool_tokens": tokens, "kv_pool_tokens_source": tokens_source}
    meaning = log_meaning(facts)
    if meaning is not None:
        found["kv_cache_tokens_meaning"] = meaning
    return found


def _bytes(facts: Mapping[str, JsonValue], cache_config: Mapping[str, int]) -> tuple[int | None, str]:
    pinned = _number(facts.get("kv_cache_bytes"))
    if pinned is not None:
        return round(pinned), "pinned by kv_cache_memory_bytes"
    if cache_config.get("kv_cache_memory_bytes"):
        return cache_config["kv_cache_memory_bytes"], "kv_cache_memory_bytes in the metrics"
    available = _number(facts.get("available_kv_mib"))
    if available is not None:
        return round(available * _MIB), "available KV cache memory in the log"
    return None, ""


def _tokens(facts: Mapping[str, JsonValue], cache_config: Mapping[str, int]) -> tuple[int | None, str]:
    if cache_config.get("kv_cache_size_tokens"):
        return cache_config["kv_cache_size_tokens"], "kv_cache_size_tokens in the metrics"
    said = _number(facts.get("kv_cache_tokens"))
    if said is not None and log_meaning(facts) in {CAPACITY, EITHER}:
        return round(said), "KV cache size in the log"
    times, longest = _number(facts.get("max_concurrency")), _number(facts.get("max_model_len"))
    if times is not None and longest is not None:
        return round(times * longest), "maximum concurrency x longest request in the log"
    return None, ""


CAPACITY = "capacity for requests of the longest length"
BLOCKS = "blocks x smallest block"
EITHER = "both meanings agree"


def log_meaning(facts: Mapping[str, JsonValue]) -> str | None:
    """What the log's `KV cache size` counts here, told by its own arithmetic; None where the log does not say enough.

    Under the newer meaning the number is concurrency x longest request, to the rounding of the concurrency. A number
    that is not, is of the older meaning. One that is may be of either, unless the build's version tells.
    """
    said, times = _number(facts.get("kv_cache_tokens")), _number(facts.get("max_concurrency"))
    longest = _number(facts.get("max_model_len"))
    if said is None or times is None or longest is None:
        return None
    if abs(said - times * longest) > _ROUNDING * longest + 1:
        return BLOCKS
    return CAPACITY if _is_since_021(facts) else EITHER


def _is_since_021(facts: Mapping[str, JsonValue]) -> bool:
    """Whether the version is 0.21 or newer; `0.1.devN` (no tag was found at build time) says nothing."""
    parts = str(facts.get("version", "")).split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return False
    return (int(parts[0]), int(parts[1])) >= (0, 21)
