"""Startup: how long this start took, and its parts as the log states them."""

from __future__ import annotations

from imagebisect.domain import Measurement
from imagebisect.measure.context import Context
from imagebisect.scenario import Startup

_PARTS = {
    "load_s": "load_weights_s",
    "compile_s": "compile_s",
    "graph_s": "graph_capture_s",
    "init_engine_s": "init_engine_s",
}


def measure(scenario: Startup, context: Context) -> Measurement:
    """`ready_s` from the start to the first token on our clock; a part that the log does not state is left out."""
    found = {"ready_s": context.ready_s}
    for name, fact in _PARTS.items():
        value = context.facts.get(fact)
        if isinstance(value, int | float):
            found[name] = float(value)
    missing = [name for name in _PARTS if name not in found]
    samples = {"missing": f"the log does not state {', '.join(missing)}"} if missing else {}
    return Measurement(scenario=scenario.name, metrics=found, samples=samples)
