"""What the server counts, in vLLM's names and in Prometheus' text form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_PER_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_LENGTH = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)

HISTOGRAMS: Mapping[str, tuple[str, Sequence[float]]] = {
    "vllm:time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT),
    "vllm:e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LATENCY),
    "vllm:request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _LATENCY),
    "vllm:request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", _LATENCY),
    "vllm:request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", _LATENCY),
    "vllm:request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", _LATENCY),
    "vllm:request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        _PER_TOKEN,
    ),
    "vllm:inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _PER_TOKEN),
    "vllm:request_prompt_tokens": ("Number of prefill tokens processed.", _LENGTH),
    "vllm:request_generation_tokens": ("Number of generation tokens processed.", _LENGTH),
    "vllm:request_prefill_kv_computed_tokens": ("Histogram of new KV tokens computed during prefill.", _LENGTH),
    "vllm:request_params_max_tokens": ("Histogram of the max_tokens request parameter.", _LENGTH),
    "vllm:iteration_tokens_total": (
        "Histogram of number of tokens per engine_step.",
        (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    ),
}

COUNTERS: Mapping[str, tuple[str, str | None, Sequence[str]]] = {
    "vllm:prefix_cache_queries": ("Prefix cache queries, in terms of number of queried tokens.", None, ()),
    "vllm:prefix_cache_hits": ("Prefix cache hits, in terms of number of cached tokens.", None, ()),
    "vllm:num_preemptions": ("Cumulative number of preemption from the engine.", None, ()),
    "vllm:prompt_tokens": ("Number of prefill tokens processed.", None, ()),
    "vllm:prompt_tokens_by_source": (
        "Number of prompt tokens by source.",
        "source",
        ("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    "vllm:prompt_tokens_cached": ("Number of cached prompt tokens (local + external).", None, ()),
    "vllm:generation_tokens": ("Number of generation tokens processed.", None, ()),
    "vllm:request_success": (
        "Count of successfully processed requests.",
        "finished_reason",
        ("stop", "length", "abort", "error", "repetition"),
    ),
}


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Counters:
    """Not thread-safe: the engine holds its lock around every use."""

    def __init__(self, model: str) -> None:
        self._labels = f'engine="0",model_name="{_escaped(model)}"'
        self._histograms = {name: _Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}
        self._counters: dict[tuple[str, str], float] = {}
        for name, (_, _, values) in COUNTERS.items():
            for value in values or ("",):
                self._counters[name, value] = 0.0

    def add(self, name: str, amount: float, label: str = "") -> None:
        """Count up."""
        self._counters[name, label] += amount

    def observe(self, name: str, value: float) -> None:
        """One more value of a histogram."""
        self._histograms[name].observe(value)

    def value(self, name: str, label: str = "") -> float:
        """A counter as it stands."""
        return self._counters[name, label]

    def text(self, gauges: Mapping[str, tuple[str, float]], cache_config: Mapping[str, str]) -> str:
        """The scrape: gauges are name -> (help, value)."""
        lines: list[str] = []
        for name, (says, number) in gauges.items():
            lines += [f"# HELP {name} {says}", f"# TYPE {name} gauge", f"{name}{{{self._labels}}} {float(number)}"]
        for name, (says, label, values) in COUNTERS.items():
            lines += [f"# HELP {name}_total {says}", f"# TYPE {name}_total counter"]
            for value in values or ("",):
                extra = f',{label}="{value}"' if label else ""
                lines.append(f"{name}_total{{{self._labels}{extra}}} {self._counters[name, value]}")
        for name, (says, _) in HISTOGRAMS.items():
            lines += [f"# HELP {name} {says}", f"# TYPE {name} histogram"]
            histogram, total = self._histograms[name], 0
            for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
                total += count
                edge = "+Inf" if bound == float("inf") else str(float(bound))
                lines.append(f'{name}_bucket{{{self._labels},le="{edge}"}} {float(total)}')
            lines.append(f"{name}_count{{{self._labels}}} {float(total)}")
            lines.append(f"{name}_sum{{{self._labels}}} {histogram.sum}")
        labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in cache_config.items())
        lines += [
            "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
            "# TYPE vllm:cache_config_info gauge",
        ]
        lines.append(f'vllm:cache_config_info{{{labels},engine="0"}} 1.0')
        return "\n".join(lines) + "\n"
