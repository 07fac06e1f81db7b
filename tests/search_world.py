"""A world to search in: known truth, values on request, and the loop that a session runs, without effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from imagebisect.domain import Floor, Target, TargetRole, Worse
from imagebisect.evidence import Evidence, Observation, Question
from imagebisect.scenario import Metric, MetricKind
from imagebisect.search import Probe, Standing, decide, standings

Answer = Callable[[int, int], Observation]
"""(build, how many observations it has) -> the next one."""


def target(
    name: str = "long-prefill",
    *,
    kind: MetricKind = MetricKind.RATIO,
    role: TargetRole = TargetRole.BISECT,
    scenario: str = "long",
) -> Target:
    """A target of a kind, with a floor that fits it."""
    metric = {
        MetricKind.RATIO: Metric(name="c1.prefill_tok_s", unit="tok/s", kind=kind),
        MetricKind.LEVEL: Metric(name="non_kv_memory_mib", unit="MiB", kind=kind),
        MetricKind.EVENT: Metric(name="survived", unit="", kind=kind),
    }[kind]
    return Target(
        name=name,
        scenario=scenario,
        metric=metric,
        worse=Worse.HIGHER if kind is MetricKind.LEVEL else Worse.LOWER,
        floor=Floor(value=256, relative=False) if kind is MetricKind.LEVEL else Floor(value=0.1, relative=True),
        role=role,
    )


def ask(
    count: int, evidence: Sequence[Evidence], *, lines: Mapping[int, str] | None = None, bad: int | None = None
) -> Question:
    """A question over `count` builds called b0, b1, ..."""
    return Question(
        names=tuple(f"b{index}" for index in range(count)),
        lines=tuple((lines or {}).get(index, "main") for index in range(count)),
        good=0,
        bad=count - 1 if bad is None else bad,
        evidence=tuple(evidence),
    )


def step_values(first_bad: int, *, good: float = 1415.0, bad: float = 755.0) -> Answer:
    """Noiseless: `good` before `first_bad`, `bad` from it on."""
    return lambda build, _seen: Observation(value=good if build < first_bad else bad)


def with_skips(answer: Answer, skips: Sequence[int], cause: str = "unknown_flag") -> Answer:
    """The same, but some builds cannot be tested."""
    return lambda build, seen: Observation(value=None, cause=cause) if build in skips else answer(build, seen)


@dataclass(frozen=True)
class Walk:
    """What a search did."""

    question: Question
    standings: tuple[Standing, ...]
    probes: tuple[Probe, ...]


def walk(question: Question, answers: Mapping[str, Answer], *, limit: int = 500) -> Walk:
    """Ask `decide` and answer it until it is done. AssertionError when it does not end within `limit` starts."""
    servers: dict[str, tuple[str, ...]] = {}
    for evidence in question.evidence:
        names = servers.get(evidence.server, ())
        if evidence.target.scenario not in names:
            servers[evidence.server] = (*names, evidence.target.scenario)
    probes: list[Probe] = []
    while (probe := decide(question, servers)) is not None:
        assert len(probes) < limit, f"no end after {limit} starts: {probe}"
        assert probe.scenarios, probe
        probes.append(probe)
        question = replace(
            question,
            evidence=tuple(
                _observed(question, evidence, probe, answers[evidence.target.name], len(probes))
                if evidence.server == probe.server and evidence.target.scenario in probe.scenarios
                else evidence
                for evidence in question.evidence
            ),
        )
    return Walk(question, standings(question), tuple(probes))


def upto(found: Walk, starts: int) -> Question:
    """The question as it was after so many starts of a walk."""
    cut = tuple(
        replace(
            evidence,
            observations={
                build: tuple(o for o in seen if o.at <= starts) for build, seen in evidence.observations.items()
            },
        )
        for evidence in found.question.evidence
    )
    return replace(found.question, evidence=cut)


def _observed(question: Question, evidence: Evidence, probe: Probe, answer: Answer, number: int) -> Evidence:
    place = question.plan_index(probe.build)
    seen = evidence.observations.get(place, ())
    pair = probe.confirms.get(evidence.target.name)
    confirming = (question.plan_index(pair[0]), question.plan_index(pair[1])) if pair else None
    fresh = replace(answer(probe.build, len(seen)), at=number, confirming=confirming)
    return replace(evidence, observations={**evidence.observations, place: (*seen, fresh)})
