"""What `/metrics` says, summed over engines, and what changed between two looks.

Counters grow when a request ends; `_sum` and `_count` of histograms are exact, buckets are not needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

_CACHE_LABELS = ("num_gpu_blocks", "block_size", "kv_cache_memory_bytes", "kv_cache_size_tokens")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One look. Tokens and requests are counts, times are seconds; what a build does not have is None.

    `cache_config` holds the whole numbers among num_gpu_blocks, block_size (tokens),
    kv_cache_memory_bytes and kv_cache_size_tokens.
    """

    prefix_hits: float | None = None
    external_hits: float | None = None
    prefix_queries: float | None = None
    prompt_tokens: float | None = None
    computed_tokens: float | None = None
    generation_tokens: float | None = None
    succeeded: float | None = None
    preemptions: float | None = None
    prefill_s: float | None = None
    prefills: float | None = None
    queue_s: float | None = None
    queued: float | None = None
    ttft_s: float | None = None
    ttfts: float | None = None
    e2e_s: float | None = None
    e2es: float | None = None
    decode_s: float | None = None
    steps: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    cache_config: Mapping[str, int] = field(default_factory=dict)


_NAMES: Mapping[str, tuple[str, ...]] = {
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "external_hits": ("vllm:external_prefix_cache_hits_total",),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "succeeded": ("vllm:request_success_total",),
    "preemptions": ("vllm:num_preemptions_total",),
    "prefill_s": ("vllm:request_prefill_time_seconds_sum",),
    "prefills": ("vllm:request_prefill_time_seconds_count",),
    "queue_s": ("vllm:request_queue_time_seconds_sum",),
    "queued": ("vllm:request_queue_time_seconds_count",),
    "ttft_s": ("vllm:time_to_first_token_seconds_sum",),
    "ttfts": ("vllm:time_to_first_token_seconds_count",),
    "e2e_s": ("vllm:e2e_request_latency_seconds_sum",),
    "e2es": ("vllm:e2e_request_latency_seconds_count",),
    "decode_s": ("vllm:request_decode_time_seconds_sum",),
    "steps": ("vllm:iteration_tokens_total_count",),
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
}
"""What each value is called, the newest name first. Names of vLLM 0.19 to 0.33, and what came before them."""

_KEYS = {name: key for key, names in _NAMES.items() for name in names}
_LEVELS = frozenset({"running", "waiting", "kv_usage", "cache_config"})
"""What says how things are now; everything else counts up."""


def _useful(lines: Iterable[str]) -> str:
    """Only the lines of the samples above: a scrape has a thousand more, and any of them may be odd."""
    kept = []
    for line in lines:
        name = line.partition("{")[0].partition(" ")[0]
        if name in _KEYS or name in {"vllm:prompt_tokens_by_source_total", "vllm:cache_config_info"}:
            kept.append(line)
    return "\n".join(kept) + "\n"


def parse(text: str) -> Snapshot:
    """Read a scrape; a text that is none (torn, binary) gives what could be read before the fault."""
    from prometheus_client.parser import text_string_to_metric_families

    named: dict[str, float] = {}
    cache: dict[str, int] = {}
    for line in _useful(text.splitlines()).splitlines():
        try:
            samples = [sample for family in text_string_to_metric_families(line + "\n") for sample in family.samples]
        except (ValueError, KeyError, IndexError, TypeError):
            continue
        for sample in samples:
            if not math.isfinite(sample.value):
                continue
            if sample.name == "vllm:cache_config_info":
                for label in _CACHE_LABELS:
                    value = sample.labels.get(label, "")
                    if value.isascii() and value.isdigit():
                        cache[label] = int(value)
            elif sample.name == "vllm:prompt_tokens_by_source_total":
                if sample.labels.get("source") == "local_compute":
                    named["computed_tokens"] = named.get("computed_tokens", 0.0) + sample.value
            elif sample.name in _KEYS:
                named[sample.name] = named.get(sample.name, 0.0) + sample.value
    totals = {key: _first_of(named, names) for key, names in _NAMES.items()}
    return Snapshot(**totals, computed_tokens=named.get("computed_tokens"), cache_config=cache)


def _first_of(named: Mapping[str, float], names: Iterable[str]) -> float | None:
    """A build that has a value under two names means the same by both: the newest name's counts."""
    return next((named[name] for name in names if name in named), None)


def delta(before: Snapshot | None, after: Snapshot | None) -> Snapshot:
    """What was counted between two looks; levels (running, waiting, kv_usage, cache_config) are those of the second.

    A counter that one of them lacks is None, and so is one that ran backwards (the server was restarted).
    """
    if before is None or after is None:
        return Snapshot()
    changes: dict[str, float | None] = {}
    for entry in fields(Snapshot):
        if entry.name in _LEVELS:
            continue
        old, new = getattr(before, entry.name), getattr(after, entry.name)
        changes[entry.name] = None if old is None or new is None or new < old else new - old
    return Snapshot(
        **changes,
        running=after.running,
        waiting=after.waiting,
        kv_usage=after.kv_usage,
        cache_config=after.cache_config,
    )
