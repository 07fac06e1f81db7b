"""GPU memory by arithmetic: what is left on a card, what a batch needs, and whether that fits."""

from __future__ import annotations

from dataclasses import dataclass

from imagebisect.simulator.flags import Flags
from imagebisect.simulator.profile import Profile

MIB = 1 << 20
BLOCK_TOKENS = 16

_HEADS, _HEAD_DIM, _BYTES = 48, 128, 2
"""The model's linear-attention heads; its output buffer is the piece in which a batch asks for memory."""


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """An allocation that failed. All in MiB; `gpu` as the process counts its cards."""

    asked_mib: float
    free_mib: float
    gpu: int
    total_mib: float
    process_mib: float
    allocated_mib: float
    reserved_mib: float
    graphs_mib: float

    def words(self) -> dict[str, object]:
        """The numbers as PyTorch prints them."""
        return {
            "asked": _size(self.asked_mib),
            "free": _size(self.free_mib),
            "gpu": self.gpu,
            "total_gib": f"{self.total_mib / 1024:.2f}",
            "process_gib": f"{self.process_mib / 1024:.2f}",
            "allocated_gib": f"{self.allocated_mib / 1024:.2f}",
            "graphs_mib": f"{self.graphs_mib:.2f}",
            "reserved": _size(self.reserved_mib),
        }


def _size(mib: float) -> str:
    if mib >= 1024:
        return f"{mib / 1024:.2f} GiB"
    if mib >= 1:
        return f"{mib:.2f} MiB"
    return f"{mib * 1024:.2f} KiB" if mib >= 1 / 1024 else f"{int(mib * MIB)} bytes"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """One card of a server. All cards of a server are alike; the last one runs out first."""

    profile: Profile
    flags: Flags

    @property
    def initial_free_mib(self) -> float:
        """Free before the server takes anything."""
        return self.profile.card_total_mib - self.profile.baseline_mib

    @property
    def kv_mib(self) -> float:
        """The KV pool: as pinned, or what the utilization leaves. May be negative then."""
        if self.flags.kv_cache_memory_bytes is not None:
            return self.flags.kv_cache_memory_bytes / MIB
        peak = self.activation_mib(self.flags.max_num_batched_tokens, 1)
        wanted = self.profile.card_total_mib * self.flags.gpu_memory_utilization
        return wanted - self.profile.weights_mib - self.profile.overhead_mib - self.profile.graphs_mib - peak

    @property
    def kv_blocks(self) -> int:
        """Blocks of 16 tokens in the pool."""
        return max(0, int(self.kv_mib * MIB) // (BLOCK_TOKENS * self.profile.kv_bytes_per_token))

    @property
    def kv_tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.kv_blocks * BLOCK_TOKENS

    @property
    def idle_mib(self) -> float:
        """What the booted server holds on each card."""
        return self.profile.weights_mib + self.profile.overhead_mib + self.profile.graphs_mib + max(0.0, self.kv_mib)

    @property
    def free_mib(self) -> float:
        """Free on each card once booted."""
        return self.initial_free_mib - self.idle_mib

    def activation_mib(self, tokens: int, requests: int) -> float:
        """What a batch needs for a moment: of `tokens` at most --max-num-batched-tokens run together."""
        batch = min(tokens, self.flags.max_num_batched_tokens)
        return (
            batch * self.profile.activation_mib_per_batched_token + requests * self.profile.activation_mib_per_request
        )

    def shortage(self, tokens: int, requests: int, *, forced: bool = False) -> Shortage | None:
        """The allocation that such a batch fails at; None when it fits."""
        need = self.activation_mib(tokens, requests)
        if need <= self.free_mib and not forced:
            return None
        batch = max(1, min(tokens, self.flags.max_num_batched_tokens))
        heads = max(1, _HEADS // self.flags.tensor_parallel_size)
        asked = round(max(2.0, batch * heads * _HEAD_DIM * _BYTES / MIB), 2)
        # A batch takes its memory in pieces of this size: what remains when the last one fails is less than one.
        left = self.free_mib % asked if self.free_mib > 0 else 0.31
        left = min(round(left, 2), asked - 0.01)
        used = self.initial_free_mib - left
        reserved = min(37.92, used / 100)
        return Shortage(
            asked_mib=asked,
            free_mib=left,
            gpu=self.flags.tensor_parallel_size - 1,
            total_mib=self.profile.card_total_mib,
            process_mib=used,
            allocated_mib=max(0.0, used - reserved - 480.0),
            reserved_mib=reserved,
            graphs_mib=self.profile.graphs_mib,
        )

    def shortage_at_start(self) -> Shortage | None:
        """The allocation that the warm-up fails at: what a start holds does not fit, or only just."""
        if self.profile.oom_at_start:
            return self.shortage(self.flags.max_num_batched_tokens, 1, forced=True)
        return self.shortage(1, 1) if self.free_mib < 0 else None
