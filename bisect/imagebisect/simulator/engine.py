"""The engine: when each request would be done, what is counted, and what the engine dies of.

Prefills run one after the other, as chunked prefill serves them first come first served, so that C prompts
of N tokens take C*N/rate in all. Every time is settled when a request is admitted; handlers only sleep to it.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from imagebisect.simulator.cache import PrefixCache
from imagebisect.simulator.cards import Registration
from imagebisect.simulator.counters import Counters
from imagebisect.simulator.flags import Flags
from imagebisect.simulator.logs import Log
from imagebisect.simulator.memory import BLOCK_TOKENS, Memory, Shortage
from imagebisect.simulator.noise import Noise
from imagebisect.simulator.profile import Profile
from imagebisect.simulator.prompts import BadRequest, Prompt

FOREVER = float("inf")

_FIRST_KERNELS = ("_compute_slot_mapping_kernel", "batch_memcpy_kernel")
_SHAPE_KERNEL = "chunk_gated_delta_rule_fwd_kernel_h_blockdim64"


class EngineDead(Exception):
    """The engine died before the request was done."""


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """An admitted request. Times are on the monotonic clock, in seconds; FOREVER where none will come."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    arrived: float
    started: float
    first_token: float
    end: float

    @property
    def token_s(self) -> float:
        """Seconds from one output token to the next."""
        return (self.end - self.first_token) / (self.max_tokens - 1) if self.max_tokens > 1 else 0.0

    def share_prefilled(self, now: float) -> float:
        """How much of the prompt is in the KV cache, 0 to 1; it stays 0 where no answer will ever come."""
        if self.first_token == FOREVER or now <= self.started:
            return 0.0
        return min(1.0, (now - self.started) / max(1e-9, self.first_token - self.started))


def matches(from_tokens: int | None, tokens: int) -> bool:
    """Whether a failure that is on from so many tokens on hits a prompt of `tokens`."""
    return from_tokens is not None and tokens >= from_tokens


class Engine:
    """Thread-safe. `dead` is set when it dies, after the log says of what."""

    def __init__(
        self, *, profile: Profile, flags: Flags, memory: Memory, noise: Noise, log: Log, registration: Registration
    ) -> None:
        self.dead = threading.Event()
        self.counters = Counters(flags.served_model_name)
        self._profile = profile
        self._flags = flags
        self._memory = memory
        self._noise = noise
        self._log = log
        self._registration = registration
        self._lock = threading.Lock()
        self._cache = PrefixCache(max(BLOCK_TOKENS, memory.kv_tokens))
        self._free_at = 0.0
        self._slots: list[float] = []
        self._live: dict[str, Ticket] = {}
        self._admitted = 0
        self._seen: Counter[str] = Counter()
        self._lengths: set[int] = set()
        self._held = 0.0

    def _key(self, prompt: Prompt, max_tokens: int) -> str:
        """The request by content and by how often it came, so that the order of arrival changes nothing."""
        digest = hashlib.sha256(prompt.ids).hexdigest()
        name = f"{digest}|{max_tokens}"
        self._seen[name] += 1
        return f"{name}|{self._seen[name]}"

    # -------------------------------------------------------------- admission

    def admit(self, prompt: Prompt, *, max_tokens: int, salt: str, arrived: float, prefix: str) -> Ticket:
        """Settle when this request is done. Raises BadRequest (400) and EngineDead (500)."""
        self._refuse(prompt, max_tokens)
        with self._lock:
            if self.dead.is_set():
                raise EngineDead
            key = self._key(prompt, max_tokens)
            request_id = f"{prefix}-{hashlib.sha256(f'{self._noise.nonce}|{key}'.encode()).hexdigest()[:16]}"
            self._fail(prompt, request_id, key)
            ticket = self._schedule(prompt, max_tokens, salt, arrived, request_id, key)
            self._live[request_id] = ticket
            self._admitted += 1
            self._hold()
            return ticket

    def _refuse(self, prompt: Prompt, max_tokens: int) -> None:
        limit = self._flags.max_model_len
        refuse = self._profile.refuse_from_tokens
        if refuse is not None and matches(refuse, prompt.tokens):
            limit = min(limit, refuse)
        if matches(refuse, prompt.tokens) or prompt.tokens + max_tokens > limit:
            raise BadRequest(
                f"This model's maximum context length is {limit} tokens. However, you requested {max_tokens} output"
                f" tokens and your prompt contains at least {prompt.tokens} input tokens, for a total of at least"
                f" {prompt.tokens + max_tokens} tokens. Please reduce the length of the input prompt or the number"
                " of requested output tokens."
            )

    def _fail(self, prompt: Prompt, request_id: str, key: str) -> None:
        """Whatever this request is the end of."""
        profile = self._profile
        if matches(profile.killed_at_request_from_tokens, prompt.tokens):
            os.kill(os.getpid(), signal.SIGKILL)
            os._exit(137)  # process 1 of a container cannot be killed from inside
        if matches(profile.crash_at_request_from_tokens, prompt.tokens):
            self._log.write("fatal_crash")
            self._die()
        if profile.dies_after_requests is not None and self._admitted >= profile.dies_after_requests:
            self._die()
        shortage = self._shortage(prompt, key)
        if shortage is not None:
            self._run_out(shortage, request_id)

    def _shortage(self, prompt: Prompt, key: str) -> Shortage | None:
        now = time.monotonic()
        prefilling = sum(ticket.prompt_tokens for ticket in self._live.values() if ticket.first_token > now)
        requests = len(self._live) + 1
        profile = self._profile
        forced = (
            matches(profile.oom_at_request_from_tokens, prompt.tokens)
            and self._flags.max_num_batched_tokens >= profile.oom_from_batched_tokens
            and requests >= profile.oom_from_concurrency
            and self._noise.dice(f"oom|{key}").random() < profile.oom_probability
        )
        return self._memory.shortage(prompt.tokens + prefilling, requests, forced=forced)

    def _schedule(
        self, prompt: Prompt, max_tokens: int, salt: str, arrived: float, request_id: str, key: str
    ) -> Ticket:
        profile = self._profile
        if matches(profile.stuck_from_tokens, prompt.tokens):
            started = max(arrived, self._free_at)
            self._free_at = FOREVER
            return Ticket(
                request_id=request_id, prompt_tokens=prompt.tokens, cached_tokens=0, max_tokens=max_tokens,
                arrived=arrived, started=started, first_token=FOREVER, end=FOREVER,
            )  # fmt: skip
        cached = self._cache.lookup(salt, prompt.ids, prompt.tokens) if self._flags.prefix_caching else 0
        if self._flags.prefix_caching:
            self.counters.add("vllm:prefix_cache_queries", prompt.tokens)
            self.counters.add("vllm:prefix_cache_hits", cached)
        factor = self._noise.request_factor(key)
        is_long = matches(profile.long_from_tokens, prompt.tokens)
        slowdown = profile.long_slowdown if is_long else profile.short_slowdown
        work = (prompt.tokens - cached) / profile.prefill_tok_s * slowdown * factor + self._compile(prompt.tokens)
        token_s = profile.decode_slowdown * factor / profile.decode_tok_s
        started = max(arrived, self._free_at)
        if len(self._slots) >= self._flags.max_num_seqs:
            started = max(started, heapq.heappop(self._slots))
        first = started + work
        self._free_at = first
        end = first + (max_tokens - 1) * token_s
        heapq.heappush(self._slots, end)
        return Ticket(
            request_id=request_id, prompt_tokens=prompt.tokens, cached_tokens=cached, max_tokens=max_tokens,
            arrived=arrived, started=started, first_token=first, end=end,
        )  # fmt: skip

    def _compile(self, tokens: int) -> float:
        """Seconds that kernels compile for this request, and the lines that say so."""
        seconds = 0.0
        if self._admitted == 0 and self._profile.first_request_penalty_s > 0:
            seconds += self._profile.first_request_penalty_s
            for kernel in _FIRST_KERNELS:
                self._log.write("jit", kernel=kernel)
        if tokens not in self._lengths and self._profile.jit_penalty_s > 0:
            seconds += self._profile.jit_penalty_s
            self._log.write("jit", kernel=_SHAPE_KERNEL)
        self._lengths.add(tokens)
        return seconds

    # -------------------------------------------------------------------- end

    def _run_out(self, shortage: Shortage, request_id: str) -> None:
        """A worker runs out of memory, and the engine dies of it in one of the ways that builds do."""
        self._registration.hold(self._memory.initial_free_mib - shortage.free_mib)
        words = shortage.words()
        single = self._flags.tensor_parallel_size == 1
        mask = self._profile.oom_mask
        if not (single and mask == "none"):
            worker = self._log.values["last_worker"]
            self._log.write("oom_worker", worker=worker, **words)
        match mask:
            case "none":
                self._log.write("fatal_oom", request_id=request_id, **words)
            case "keyerror":
                self._log.write("fatal_keyerror", request_id=request_id)
            case "runtimeerror":
                self._log.write("fatal_runtimeerror", **words)
            case "enginedead":
                pass
        self._die()

    def _die(self) -> None:
        self._log.write("engine_dead")
        self.dead.set()
        raise EngineDead

    def process_died(self) -> None:
        """The engine's process is gone."""
        with self._lock:
            if not self.dead.is_set():
                self._log.write("engine_process_died")
                self._log.write("engine_dead")
                self.dead.set()

    def wait(self, until: float, *, gone: Callable[[], bool] | None = None) -> None:
        """Sleep to a moment of the monotonic clock. Raises EngineDead; `gone` ends an endless wait."""
        while True:
            left = until - time.monotonic()
            if left <= 0 and not self.dead.is_set():
                return
            if self.dead.wait(min(left, 0.25) if gone else left):
                raise EngineDead
            if gone and gone():
                raise ConnectionResetError

    def finish(self, ticket: Ticket, reason: str) -> None:
        """Count a request that is over: `length` and `stop` when answered, `abort` when its client has gone."""
        with self._lock:
            if self._live.pop(ticket.request_id, None) is None:
                return
            self._hold()
            self.counters.add("vllm:request_success", 1, reason)
            if reason == "abort":
                return
            computed = ticket.prompt_tokens - ticket.cached_tokens
            add, observe = self.counters.add, self.counters.observe
            add("vllm:prompt_tokens", ticket.prompt_tokens)
            add("vllm:prompt_tokens_by_source", computed, "local_compute")
            add("vllm:prompt_tokens_by_source", ticket.cached_tokens, "local_cache_hit")
            add("vllm:prompt_tokens_cached", ticket.cached_tokens)
            add("vllm:generation_tokens", ticket.max_tokens)
            observe("vllm:time_to_first_token_seconds", ticket.first_token - ticket.arrived)
            observe("vllm:e2e_request_latency_seconds", ticket.end - ticket.arrived)
            observe("vllm:request_queue_time_seconds", ticket.started - ticket.arrived)
            observe("vllm:request_inference_time_seconds", ticket.end - ticket.started)
            observe("vllm:request_prefill_time_seconds", ticket.first_token - ticket.started)
            observe("vllm:request_decode_time_seconds", ticket.end - ticket.first_token)
            observe("vllm:request_prompt_tokens", ticket.prompt_tokens)
            observe("vllm:request_generation_tokens", ticket.max_tokens)
            observe("vllm:request_prefill_kv_computed_tokens", computed)
            observe("vllm:request_params_max_tokens", ticket.max_tokens)
            observe("vllm:iteration_tokens_total", min(computed, self._flags.max_num_batched_tokens))
            if ticket.max_tokens > 1:
                observe("vllm:request_time_per_output_token_seconds", ticket.token_s)
                observe("vllm:inter_token_latency_seconds", ticket.token_s)

    def _hold(self) -> None:
        """Tell the cards what is held now; a batch's memory is held while its requests run."""
        tokens = sum(ticket.prompt_tokens for ticket in self._live.values())
        moment = self._memory.activation_mib(tokens, len(self._live)) if self._live else 0.0
        held = self._memory.idle_mib + moment + self._profile.leak_mib_per_request * self._admitted
        if held != self._held:
            self._held = held
            self._registration.hold(held)

    # ---------------------------------------------------------------- reading

    def load(self) -> int:
        """Requests under way."""
        return len(self._live)

    def metrics(self) -> str:
        """The text of `/metrics`."""
        with self._lock:
            now = time.monotonic()
            running = sum(1 for ticket in self._live.values() if ticket.started <= now)
            tokens = sum(ticket.prompt_tokens * ticket.share_prefilled(now) for ticket in self._live.values())
            usage = min(1.0, tokens / self._memory.kv_tokens) if self._memory.kv_tokens else 0.0
            gauges = {
                "vllm:num_requests_running": ("Number of requests in model execution batches.", float(running)),
                "vllm:num_requests_waiting": (
                    "Number of requests waiting to be processed.",
                    float(len(self._live) - running),
                ),
                "vllm:kv_cache_usage_perc": ("KV-cache usage. 1 means 100 percent usage.", usage),
            }
            return self.counters.text(gauges, self._cache_config())

    def _cache_config(self) -> dict[str, str]:
        pinned = self._flags.kv_cache_memory_bytes
        return {
            "block_size": str(BLOCK_TOKENS),
            "cache_dtype": str(self._flags.given.get("kv_cache_dtype", "auto")),
            "enable_prefix_caching": str(self._flags.prefix_caching),
            "gpu_memory_utilization": str(self._flags.gpu_memory_utilization),
            "kv_cache_max_concurrency": str(self._memory.kv_tokens / self._flags.max_model_len),
            "kv_cache_memory_bytes": str(pinned),
            "kv_cache_size_tokens": str(self._memory.kv_tokens),
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(self._memory.kv_blocks),
            "num_gpu_blocks_override": "None",
            "prefix_caching_hash_algo": "sha256",
        }
