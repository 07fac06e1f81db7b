"""Growth: what load leaves behind on the cards (vllm #17243, #15294)."""

from __future__ import annotations

from imagebisect.domain import Failure, Measurement
from imagebisect.measure import memory
from imagebisect.measure.context import Context
from imagebisect.measure.prefill import prompt_tok_s
from imagebisect.measure.rounds import RoundFailedError, Rounds
from imagebisect.measure.validity import Shape
from imagebisect.scenario import Growth


def _settled(scenario: Growth, context: Context) -> memory.Quiet:
    return memory.read_until_settled(
        context, samples=scenario.samples, interval_s=scenario.interval_s, deadline_s=scenario.deadline_s
    )


def measure(scenario: Growth, context: Context) -> Measurement:
    """One round to warm up, settle, `rounds` rounds, settle again; the card that lost most counts."""
    rounds = Rounds(
        context=context,
        scenario=scenario.name,
        shapes=((scenario.prompt_tokens, scenario.concurrency),),
        reps_wanted=scenario.rounds,
        unit="tok/s",
        value=prompt_tok_s,
    )
    shape = Shape(
        concurrency=scenario.concurrency, prompt_tokens=scenario.prompt_tokens, output_tokens=scenario.output_tokens
    )
    found: dict[str, float] = {}
    failure: Failure | None = None
    try:
        # what the first request takes for good (kernels, workspaces) is no growth
        rounds.take(shape, purpose="warmup", rep=0)
        before = _settled(scenario, context)
        for number in range(scenario.rounds):
            rounds.take_valid(shape, rep=number)
        after = _settled(scenario, context)
        failure = before.failure or after.failure
        free_before, free_after = memory.medians(before.reads), memory.medians(after.reads)
        cards = free_before.keys() & free_after.keys()
        if failure is None and cards:
            found["growth_mib"] = max(free_before[uuid] - free_after[uuid] for uuid in cards)
            found["free_after_mib"] = min(free_after[uuid] for uuid in cards)
            rounds.samples["settled"] = before.settled and after.settled
            rounds.samples["before"] = memory.in_order(before.reads, free_before)
            rounds.samples["after"] = memory.in_order(after.reads, free_after)
        elif failure is None:
            rounds.samples["missing"] = "no card of this server can be read on this host"
    except RoundFailedError as failed:
        failure = failed.failure
    if rounds.lowest_free_mib is not None:
        found["min_free_mib"] = rounds.lowest_free_mib
    return rounds.measurement(found, failure)
