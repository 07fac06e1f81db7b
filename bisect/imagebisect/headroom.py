"""Does what a pinned KV cache leaves free cover what the first real request needs for a moment? Pure.

With `--kv-cache-memory-bytes` vLLM skips memory profiling, boots healthy, and may die on the first request. The buffer
that killed the first reported case is the output of a linear-attention (GDN) layer:
`max_num_batched_tokens x value heads / TP x value head dim x bytes of a number` (vllm #53787, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imagebisect.domain import JsonValue, LinearAttention, Server

_MIB = 2.0**20
EXACT_MIB = 0.01
"""An allocation is the buffer when their sizes differ by less: PyTorch prints hundredths of a MiB."""


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """The transient buffer of one card, and how its size comes about."""

    tokens: int
    heads: int
    tensor_parallel_size: int
    width: int
    dtype_bytes: int

    @property
    def mib(self) -> float:
        """Its size in MiB."""
        return self.tokens * (self.heads // self.tensor_parallel_size) * self.width * self.dtype_bytes / _MIB

    @property
    def arithmetic(self) -> str:
        """E.g. `8192 tokens x 48/2 heads x 128 x 2 bytes = 48.00 MiB`."""
        return (
            f"{self.tokens} tokens x {self.heads}/{self.tensor_parallel_size} heads x {self.width} x {self.dtype_bytes}"
            f" bytes = {self.mib:.2f} MiB"
        )


def buffer(
    model: LinearAttention | None, server: Server, facts: Mapping[str, JsonValue] | None = None
) -> Buffer | None:
    """The buffer that a full batch needs on each card of a server; None where the sizes or the batch are not known.

    Args:
        model: the sizes of the model's linear-attention layers, None where it has none or nobody knows.
        server: its args give the tensor-parallel size and --max-num-batched-tokens.
        facts: of a start; what the server says of its batch comes before the args.
    """
    if model is None:
        return None
    said = (facts or {}).get("max_num_batched_tokens")
    tokens = said if isinstance(said, int) and said > 0 else server.whole_number("--max-num-batched-tokens")
    parallel = server.tensor_parallel_size
    if tokens is None or model.value_heads % parallel:
        return None
    return Buffer(
        tokens=tokens,
        heads=model.value_heads,
        tensor_parallel_size=parallel,
        width=model.value_head_dim,
        dtype_bytes=model.dtype_bytes,
    )


def is_the_buffer(asked_mib: float, found: Buffer) -> bool:
    """Whether an allocation that failed is exactly this buffer."""
    return abs(asked_mib - found.mib) < EXACT_MIB


def in_plan(found: Buffer | None, server: Server) -> str | None:
    """What `plan` says of a server before anything was started; None where nothing is known."""
    if found is None:
        return None
    pinned = server.value_of("--kv-cache-memory-bytes") is not None
    warning = "; the KV cache is pinned, so vLLM will not check at boot that this is left free" if pinned else ""
    return f"a full batch needs {found.mib:.2f} MiB a card for a moment ({found.arithmetic}){warning}"


def in_report(found: Buffer | None, *, free_idle_mib: float | None, asked_mib: float | None) -> str | None:
    """What the report says of a start: the buffer against what was free, and whether an OOM was just that."""
    if found is None:
        return None
    words = []
    if free_idle_mib is not None:
        left = free_idle_mib - found.mib
        short = "too little" if left < 0 else "enough for that alone"
        words.append(
            f"{free_idle_mib:,.0f} MiB was free when idle, a full batch needs {found.mib:.2f} MiB for a moment: {short}"
        )
    if asked_mib is not None and is_the_buffer(asked_mib, found):
        words.append(f"the {asked_mib:.2f} MiB that were refused are exactly this buffer ({found.arithmetic})")
    return "; ".join(words) or None
