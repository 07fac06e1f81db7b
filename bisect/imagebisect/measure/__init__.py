"""Do scenarios to a started server and bring back measurements."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import assert_never

from imagebisect.domain import Decode, IdleMemory, Measurement, OomProbe, Prefill, Scenario
from imagebisect.measure import decode, idle_memory, oom_probe, prefill
from imagebisect.measure.context import Context
from imagebisect.measure.prompts import vocab_size

__all__ = ["Context", "run", "vocab_size"]


def run(scenario: Scenario, context: Context) -> Measurement:
    """Do one scenario. A failure comes back in the measurement, beside what was measured before it.

    Raises Interrupted when the user asks to stop.
    """
    began = time.monotonic()
    match scenario:
        case IdleMemory():
            found = idle_memory.measure(scenario, context)
        case Prefill():
            found = prefill.measure(scenario, context)
        case Decode():
            found = decode.measure(scenario, context)
        case OomProbe():
            found = oom_probe.measure(scenario, context)
        case _:
            assert_never(scenario)
    return replace(found, seconds=time.monotonic() - began)
