"""What a search may cost, and what it has cost so far. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from imagebisect.domain import Plan
from imagebisect.errors import UsageError
from imagebisect.state import Budget, RunState, StartRecord

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z-]+)")
_STARTS = ("start", "starts")
_HOURS = {"h": 1.0, "hour": 1.0, "hours": 1.0, "m": 1 / 60, "min": 1 / 60, "minutes": 1 / 60}
_GPU_HOURS = ("gpuh", "gpu-h", "gpu-hour", "gpu-hours")


@dataclass(frozen=True, kw_only=True)
class Used:
    """What a run has cost: starts (interrupted ones too), hours in pulls and starts, GPU hours of starts times cards."""

    starts: int
    hours: float
    gpu_hours: float


def parse(given: Iterable[str]) -> Budget:
    """`12 starts`, `2h`, `90m` or `4 gpu-hours`, each at most once. UsageError for anything else."""
    budget = Budget()
    for text in given:
        match = _AMOUNT.fullmatch(text.strip().lower())
        amount, unit = (float(match[1]), match[2]) if match else (0.0, "")
        if unit in _STARTS and amount.is_integer() and amount >= 1 and budget.starts is None:
            budget = replace(budget, starts=int(amount))
        elif unit in _HOURS and amount > 0 and budget.hours is None:
            budget = replace(budget, hours=amount * _HOURS[unit])
        elif unit in _GPU_HOURS and amount > 0 and budget.gpu_hours is None:
            budget = replace(budget, gpu_hours=amount)
        else:
            raise UsageError(
                f"--budget {text}: expected a number of starts, hours or GPU hours, each at most once",
                next_step="such as --budget '12 starts', --budget 2h, --budget 90m, --budget '4 gpu-hours'",
            )
    return budget


def _cards(plan: Plan, start: StartRecord) -> int:
    gpus = plan.suite.server(start.intended.server).gpus
    if gpus == "none":
        return len(start.intended.baseline)
    return len(start.intended.baseline) if gpus == "all" else len(gpus)


def used(state: RunState) -> Used:
    """What the run has cost so far."""
    seconds = sum(start.seconds for start in state.starts)
    pulls = sum(state.pull_seconds.values())
    cards = sum(start.seconds * _cards(state.plan, start) for start in state.starts)
    return Used(starts=len(state.starts), hours=(seconds + pulls) / 3600, gpu_hours=cards / 3600)


def spent(state: RunState) -> bool:
    """Whether one of the budget's limits is reached."""
    budget, so_far = state.budget, used(state)
    limits = (
        (budget.starts, so_far.starts),
        (budget.hours, so_far.hours),
        (budget.gpu_hours, so_far.gpu_hours),
    )
    return any(limit is not None and amount >= limit for limit, amount in limits)


def words(budget: Budget) -> str:
    """A budget as people say it; empty where there is none."""
    parts = []
    if budget.starts is not None:
        parts.append(f"{budget.starts} start{'' if budget.starts == 1 else 's'}")
    if budget.hours is not None:
        parts.append(f"{budget.hours:.3g} h")
    if budget.gpu_hours is not None:
        parts.append(f"{budget.gpu_hours:.3g} GPU hours")
    return ", ".join(parts)
