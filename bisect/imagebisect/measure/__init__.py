"""Do scenarios to a started server and bring back measurements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import assert_never

from imagebisect.domain import Measurement
from imagebisect.measure import command, decode, growth, idle_memory, ladder, oom_probe, prefill, startup
from imagebisect.measure.context import Context
from imagebisect.measure.prompts import vocab_size
from imagebisect.scenario import Command, Decode, Growth, IdleMemory, Ladder, OomProbe, Prefill, Scenario, Startup

__all__ = ["Context", "run", "vocab_size"]


def run(scenario: Scenario, ctx: Context) -> Measurement:
    """Do one scenario to a ready server.

    A failure comes back beside what was measured before it. Raises Interrupted when a stop is asked for.
    """
    match scenario:
        case IdleMemory():
            found = idle_memory.measure(scenario, ctx)
        case Startup():
            found = startup.measure(scenario, ctx)
        case Prefill():
            found = prefill.measure(scenario, ctx)
        case Ladder():
            found = ladder.measure(scenario, ctx)
        case Decode():
            found = decode.measure(scenario, ctx)
        case Growth():
            found = growth.measure(scenario, ctx)
        case Command():
            found = command.measure(scenario, ctx)
        case OomProbe():
            found = oom_probe.measure(scenario, ctx)
        case _:
            assert_never(scenario)
    # what is no number (a NaN out of a build's metrics) must reach neither a verdict nor the ledger
    return replace(found, metrics={name: value for name, value in found.metrics.items() if math.isfinite(value)})
