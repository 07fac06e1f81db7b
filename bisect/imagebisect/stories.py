"""The story of a search, in values for a reader: its starts, what stood to choose from, its ends. Pure.

`why.explain` tells it; `report.why_text` prints it. Builds and targets are names, moments are numbers of starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imagebisect.grounds import Belief, Grounds, Test


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A start that open targets asked for. `gain` in bits, by target; `cost_s` None before any start was measured.

    `estimated`: the gain is what the posterior expects; else the start is asked for as such (an end, a build again, a
    proof) and counts as one bit, or half a one where it is not its turn. `score` is gain over cost.
    """

    build: str
    server: str
    gain: Mapping[str, float]
    estimated: bool
    cost_s: float | None
    score: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What stood to choose from, best first, and why the winner won. `differs`: what this version would choose."""

    candidates: tuple[Candidate, ...]
    count: int
    because: str
    differs: str | None = None


@dataclass(frozen=True, kw_only=True)
class Served:
    """What one start did for one target.

    `then` is the belief right after it about the part of the range that was looked into before it, and `was` the
    chance that the likeliest pair of `then` had before. `after` is where the target stands after it.
    `purpose` is what the target asked for (`along` where it asked for nothing); `weight` is the natural logarithm of
    the odds for good; `together`: of all the build's starts, not of this one.
    """

    target: str
    purpose: str
    unit: str
    event: bool
    asked: str | None
    confirms: tuple[str, str] | None
    reps_rule: str
    before: Grounds
    after: Grounds | None = None
    value: float | None = None
    reps: int = 0
    cause: str | None = None
    says_nothing: bool = False
    weight: float | None = None
    together: bool = False
    weight_words: str | None = None
    then: Belief | None = None
    was: float | None = None


@dataclass(frozen=True, kw_only=True)
class StartStory:
    """One start: what it was for, what stood to choose from, how it ended. `attempt` counts transient failures before."""

    number: int
    start_id: str
    build: str
    server: str
    purpose: str
    why: str
    choice: Choice | None
    attempt: int
    outcome: str
    cause: str | None
    message: str | None
    seconds: float
    targets: tuple[Served, ...]


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something other than a start that happened after so many starts."""

    after: int
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class EndStory:
    """Where a target stands, what settled it, and the conditions of that with what there was."""

    target: str
    role: str
    status: str | None
    reason: str | None
    sentence: str
    settled_after: int | None
    settled_by: str | None
    tests: tuple[Test, ...]
    grounds: Grounds


@dataclass(frozen=True, kw_only=True)
class BuildStart:
    """One start's word on a target: its number, the value or the cause, its weight as all starts say now.

    Starts of an event target have no weight of their own: the build's rule says what they tell together.
    """

    number: int
    value: float | None
    cause: str | None
    weight: float | None
    weight_words: str | None
    confirms: tuple[str, str] | None


@dataclass(frozen=True, kw_only=True)
class BuildStory:
    """One build and one target: its starts, what they say together, the verdict and its rule."""

    build: str
    target: str
    unit: str
    verdict: str
    marked: bool
    rule: str
    starts: tuple[BuildStart, ...]


@dataclass(frozen=True, kw_only=True)
class NextStart:
    """What comes next and why."""

    build: str
    server: str
    purpose: str
    why: str
    choice: Choice | None
    starts_left: int
    seconds_left: float | None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A search from its first event to its last. `budget_given` and `budget_used` in words."""

    run: str
    find: str
    good: str
    bad: str
    scan: tuple[str, ...]
    budget_given: str
    budget_used: str
    starts: tuple[StartStory, ...]
    notes: tuple[Note, ...]
    ends: tuple[EndStory, ...]
    builds: tuple[BuildStory, ...]
    next: NextStart | None
