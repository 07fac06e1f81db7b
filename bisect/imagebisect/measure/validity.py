"""The evidence for or against counting a rep: instruments only, never the value. Pure.

Sources: wrong counts and cache hits (vllm #10847, #54227), two clocks (docs/design/metrics.md of vLLM),
clock event reasons (NVML: the software power cap 0x4 is normal under load).
"""

from __future__ import annotations

from dataclasses import dataclass

from imagebisect.measure.gpu import Lowest
from imagebisect.measure.load import Round
from imagebisect.outcome import Cause
from imagebisect.vllm.metrics import Snapshot

CLOCK_SHARE = 0.03
"""The client's and the server's clock may differ by this share of a round."""

CLOCK_REQUEST_S = 0.03
"""And by this much for each request: connecting, reading and parsing a body happen before the server's clock starts."""

CLOCK_TOKEN_S = 1e-6
"""And by this much for each prompt token: a server parses 176,425 ids in about 50 ms."""

MOST_REPEATS = 2
"""Times an invalid rep is taken again."""

WEDGED = "the GPU driver did not answer meanwhile"
"""Then nobody knows what the cards went through."""

NO_METRICS = "the server's metrics could not be read, so nothing vouches for it"
"""A server that had metrics when it was ready and does not give them now."""

FOREIGN = "another process on GPU"
"""How the reason begins when somebody else came onto the cards."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a round sends: `concurrency` requests of `prompt_tokens` ids each, `output_tokens` wanted from each."""

    concurrency: int
    prompt_tokens: int
    output_tokens: int


def cache_hits(done: Round, counted: Snapshot) -> int | None:
    """Prompt tokens from a prefix cache, the server's own or one it shares: by its counters, else by its answers.

    None where neither says.
    """
    if counted.prefix_hits is not None:
        return round(counted.prefix_hits + (counted.external_hits or 0.0))
    said = [answer.cached_tokens for answer in done.answers if answer.cached_tokens is not None]
    return sum(said) if said else None


def clocks_disagree(done: Round, shape: Shape, counted: Snapshot) -> str | None:
    """Both clocks in words when they tell of different rounds; None when they agree or the server has none.

    The server's requests together cannot last longer than ours did, and a round cannot last longer than the server's
    requests one after the other: above C=1 a busy frontend may let them in one by one, and that is the server's doing.
    Its end-to-end time is on its wall clock, queue plus prefill plus decode on its monotonic one: whichever is nearer
    to ours speaks for it.
    """
    ours, makespan = sum(answer.seconds for answer in done.answers), done.seconds
    theirs = []
    if counted.e2e_s is not None and counted.e2es == shape.concurrency:
        theirs.append(counted.e2e_s)
    if counted.prefill_s is not None and counted.prefills == shape.concurrency and counted.queue_s is not None:
        theirs.append(counted.prefill_s + counted.queue_s + (counted.decode_s or 0.0))
    if not theirs:
        return None
    server = min(theirs, key=lambda seconds: abs(seconds - ours))
    # requests of one round are parsed one after the other, so the n-th waits for n parsings
    waits = shape.concurrency * (shape.concurrency + 1) / 2
    allowed = CLOCK_SHARE * server + waits * (CLOCK_REQUEST_S + CLOCK_TOKEN_S * shape.prompt_tokens)
    if makespan <= server + allowed and server <= ours + allowed:
        return None
    if shape.concurrency == 1:
        return f"the clocks disagree: {makespan:.3f} s here, {server:.3f} s on the server"
    return (
        f"the clocks disagree: {makespan:.3f} s here ({ours:.3f} s in {shape.concurrency} requests), "
        f"{server:.3f} s in them on the server"
    )


def wrong_counts(done: Round, shape: Shape, *, exact: bool) -> list[str]:
    """What the server's usage says against what was asked; `exact` where the prompt's length is known (token ids)."""
    found = []
    for answer in done.answers:
        if exact and answer.prompt_tokens != shape.prompt_tokens:
            counted = "nothing" if answer.prompt_tokens is None else answer.prompt_tokens
            found.append(f"asked {shape.prompt_tokens} prompt tokens, the server counted {counted}")
            break
    for answer in done.answers:
        if answer.completion_tokens not in {None, shape.output_tokens}:
            found.append(f"asked {shape.output_tokens} output tokens, got {answer.completion_tokens}")
            break
    return found


def foreign_processes(lowest: Lowest) -> list[str]:
    """Processes that came onto the server's cards, or that were there and grew, while it was timed."""
    found = [
        f"{FOREIGN} {process.index}: pid {process.pid}, {process.used_mib:.0f} MiB"
        for process in lowest.new_processes.values()
    ]
    found += [f"{FOREIGN} {index}: pid {pid} grew by {mib:.0f} MiB" for (index, pid), mib in lowest.grown.items()]
    return sorted(found)


def cards_evidence(lowest: Lowest, *, timed: bool = True) -> list[str]:
    """What the cards say against counting what ran meanwhile; slowed clocks only matter to what is `timed`."""
    found = foreign_processes(lowest)
    if lowest.slowdowns and timed:
        found.append("the clocks were slowed: " + ", ".join(sorted(lowest.slowdowns)))
    if lowest.wedged:
        found.append(WEDGED)
    return found


def evidence(
    done: Round, shape: Shape, counted: Snapshot, lowest: Lowest, *, idle: bool, exact: bool
) -> tuple[str, ...]:
    """Why a complete round must not count; empty when nothing speaks against it.

    Args:
        done: the answers on the client's clock.
        shape: what was sent.
        counted: what the server's counters gained over the round; what it does not have is None and says nothing.
        lowest: what the cards showed meanwhile.
        idle: whether no request was running when the round began.
        exact: whether the prompt's length in tokens was ours to choose.
    """
    found = wrong_counts(done, shape, exact=exact)
    hits = cache_hits(done, counted)
    if hits:
        found.append(f"{hits} prompt tokens came from the prefix cache")
    if not idle:
        found.append("another request was running before it began")
    if counted.succeeded is not None and counted.succeeded > shape.concurrency:
        found.append(f"{counted.succeeded:.0f} requests ended, {shape.concurrency} were ours")
    elif (counted.running or 0) + (counted.waiting or 0) > 0:
        found.append("another request was running when it ended")
    clocks = clocks_disagree(done, shape, counted)
    if clocks:
        found.append(clocks)
    found += cards_evidence(lowest)
    return tuple(found)


def cause_of(reasons: list[str]) -> Cause:
    """What it means that no attempt was valid: somebody else on the cards, a driver that hangs, or neither."""
    if is_foreign_load(reasons):
        return Cause.GPU_BUSY
    if reasons and all(WEDGED in reason for reason in reasons):
        return Cause.DRIVER
    return Cause.INVALID_MEASUREMENT


def is_foreign_load(reasons: list[str]) -> bool:
    """Whether somebody else on the cards is why no attempt of a rep was valid."""
    return bool(reasons) and all(FOREIGN in reason for reason in reasons)
