"""A suite's targets: what is complained about, which way is worse, and what change matters."""

from __future__ import annotations

import re

from imagebisect.config.problems import Problems
from imagebisect.config.schema import KINDS, TargetEntry
from imagebisect.config.yaml import PathIn
from imagebisect.domain import Floor, Target
from imagebisect.scenario import Command, Decode, Ladder, MetricKind, Prefill, Scenario

_SHAPED_BY: dict[type, str] = {
    Prefill: "concurrency",
    Decode: "concurrency",
    Ladder: "prompt_tokens",
    Command: "prints",
}
"""The key of a scenario that its metrics depend on."""

_FLOOR = re.compile(r"(\d+(?:\.\d+)?)\s*(%?)")


def read_target(
    name: str, entry: TargetEntry, problems: Problems, scenarios: tuple[Scenario, ...], written: tuple[str, ...]
) -> Target | None:
    """One target; None when it cannot be measured, which is noted. `written` are all scenarios' names in the file."""
    place: PathIn = ("targets", name)
    scenario_name, _, metric_name = entry.metric.partition(".")
    scenario = next((s for s in scenarios if s.name == scenario_name), None)
    metrics = {metric.name: metric for metric in scenario.metrics()} if scenario is not None else {}
    metric = metrics.get(metric_name)
    if written and scenario_name not in written:
        known = ", ".join(written)
        problems.add(
            (*place, "metric"), f"expected <scenario>.<metric> with a scenario of {known}; found {entry.metric!r}"
        )
    elif scenario is not None and metric is None and _metrics_known(scenario, problems):
        known = ", ".join(f"{scenario_name}.{metric}" for metric in metrics)
        problems.add(
            (*place, "metric"), f"{scenario_name} has no such metric; expected one of {known}; found {entry.metric!r}"
        )
    floor = _floor(entry.floor, metric.kind if metric is not None else None, place, problems)
    claimed = _claimed(entry.claimed, metric.kind if metric is not None else None, place, problems)
    if metric is None or floor is None:
        return None
    return Target(
        name=name,
        scenario=scenario_name,
        metric=metric,
        worse=entry.worse,
        floor=floor,
        role=entry.role,
        claimed=claimed,
    )


def _metrics_known(scenario: Scenario, problems: Problems) -> bool:
    """Whether nothing is wrong with the scenario that decides which metrics it has."""
    spoilt = problems.spoilt_keys(("scenarios", scenario.name))
    known = set(KINDS[scenario.kind].model_fields) - {_SHAPED_BY.get(type(scenario), "")}
    return spoilt <= known


def _claimed(text: str | None, kind: MetricKind | None, place: PathIn, problems: Problems) -> Floor | None:
    """How large somebody says the change is, so that the answer can say whether that is excluded."""
    if text is None:
        return None
    if kind is MetricKind.EVENT:
        problems.add((*place, "claimed"), "an event either happens or not: remove the claim")
        return None
    return _amount(text, (*place, "claimed"), problems)


def _floor(text: str | None, kind: MetricKind | None, place: PathIn, problems: Problems) -> Floor | None:
    """The floor; `kind` None where the metric is not known, so that only its form can be looked at."""
    at = (*place, "floor")
    if kind is MetricKind.EVENT:
        if text is not None:
            problems.add(at, "an event either happens or not: remove the floor")
        return Floor(value=0.0, relative=False)
    if text is None:
        if kind is not None:
            example = "256 (MiB)" if kind is MetricKind.LEVEL else "10%"
            problems.add(at, f"is missing: the smallest change that matters, such as {example}")
        return None
    return _amount(text, at, problems)


def _amount(text: str, at: PathIn, problems: Problems) -> Floor | None:
    """A share (`10%`) or an amount in the metric's unit (`256`)."""
    match = _FLOOR.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        problems.add(at, f"expected a share such as 10% or an amount such as 256, found {text!r}")
        return None
    if not match[2]:
        return Floor(value=float(match[1]), relative=False)
    share = float(match[1]) / 100
    if share >= 1:
        problems.add(
            at, f"expected a share below 100%, found {text!r}; an amount in the metric's own unit has no % behind it"
        )
        return None
    return Floor(value=share, relative=True)
