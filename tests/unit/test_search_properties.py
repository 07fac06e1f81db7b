"""What must hold of every search: any truth, any skips, any order of answers."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebisect.domain import Floor, Status, Verdict
from imagebisect.evidence import Evidence, Observation
from imagebisect.scenario import MetricKind
from imagebisect.search import decide, standings
from search_world import ask, step_values, target, walk, with_skips

KINDS = {
    MetricKind.RATIO: {"good": 1415.0, "bad": 755.0},
    MetricKind.LEVEL: {"good": 3000.0, "bad": 4178.0},
    MetricKind.EVENT: {"good": 1.0, "bad": 0.0},
}


def bound(count, skipped):
    """Starts of a noiseless search: both ends, the halvings, three more, and one for each build that failed."""
    return 2 + math.ceil(math.log2(max(count - 1, 1))) + 3 + skipped


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_without_noise_the_answer_is_exact_and_costs_three_starts_more_than_a_bare_search(data):
    """Any kind of target, any truth, any untestable builds: the tightest pair that can be tested."""
    count = data.draw(st.integers(2, 64))
    first_bad = data.draw(st.integers(1, count - 1))
    skips = data.draw(st.sets(st.integers(1, count - 2), max_size=count // 3)) if count > 2 else set()
    kind = data.draw(st.sampled_from(list(KINDS)))
    complaint = target("t", kind=kind)
    answer = with_skips(step_values(first_bad, **KINDS[kind]), sorted(skips))
    found = walk(ask(count, [Evidence(target=complaint, server="s")]), {"t": answer})
    result = found.standings[0].result

    able = [build for build in range(count) if build not in skips]
    assert result.last_good == max(build for build in able if build < first_bad)
    assert result.first_bad == min(build for build in able if build >= first_bad)
    assert first_bad in result.suspects
    skipped = sum(probe.build in skips for probe in found.probes)
    more = 2 if kind is MetricKind.EVENT else 0  # an always that is seen twice, and what a survival is worth
    widest = math.ceil(math.log2(len(skips) + 1))
    assert len(found.probes) <= bound(count, skipped) + more + widest


@pytest.mark.parametrize("count", [2, 5, 16, 64])
def test_small_effects_cost_one_start_more(count):
    """5 % against an assumed noise of 0.9 % takes a second start of an end."""
    complaint = replace(target("t"), floor=Floor(value=0.03, relative=True))
    for first_bad in range(1, count):
        answer = step_values(first_bad, good=1415, bad=1415 / 1.05)
        found = walk(ask(count, [Evidence(target=complaint, server="s")]), {"t": answer})

        assert (found.standings[0].result.status, found.standings[0].result.first_bad) == (Status.CONFIRMED, first_bad)
        assert len(found.probes) <= bound(count, 0) + 1


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_order_of_answers_holds_the_truth_and_claims_nothing_unbracketed(data):
    """Builds measured in any order, by whoever asked: suspects hold the truth, a claim was measured on both sides."""
    count = data.draw(st.integers(2, 24))
    first_bad = data.draw(st.integers(1, count - 1))
    order = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=30))
    observations: dict[int, tuple[Observation, ...]] = {}
    for at, build in enumerate(order, start=1):
        fresh = Observation(value=755.0 if build >= first_bad else 1415.0, at=at)
        observations[build] = (*observations.get(build, ()), fresh)
    question = ask(count, [Evidence(target=target("t"), server="s", observations=observations)])
    early = standings(question)[0].result
    found = walk(question, {"t": step_values(first_bad)})

    assert early.status is not Status.CONFIRMED
    assert not early.suspects or first_bad in early.suspects
    assert (found.standings[0].result.status, found.standings[0].result.first_bad) == (Status.CONFIRMED, first_bad)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 24), st.integers(0, 2**32), st.sampled_from([0.0, 0.01, 0.05, 0.3]))
def test_whatever_is_answered_the_search_ends_and_a_claim_has_fresh_starts_on_both_sides(count, seed, noise):
    """Random builds, odd starts, failures: no endless search, and a confirmed pair was confirmed."""
    dice = random.Random(seed)

    def answer(build, _seen):
        if dice.random() < 0.1:
            return Observation(value=None, cause=dice.choice(["crash", "unknown_flag"]))
        return Observation(value=1415 * math.exp(dice.gauss(-0.3 if build > count / 2 else 0, noise)))

    found = walk(ask(count, [Evidence(target=target("t"), server="s")]), {"t": answer}, limit=150)
    result = found.standings[0].result

    assert result.status is not None
    assert result.sentence
    if result.status is Status.CONFIRMED:
        pair = (result.last_good, result.first_bad)
        assert pair[1] == pair[0] + 1
        seen = found.question.evidence[0].observations
        assert all(any(o.confirming == pair and o.value is not None for o in seen[build]) for build in pair)
        assert result.builds[pair[0]].value > result.builds[pair[1]].value


def test_the_same_starts_lead_to_the_same_next_start():
    """Decisions are functions of the starts: asked twice, or with builds in another order, the answer is one."""
    found = walk(ask(32, [Evidence(target=target("t"), server="s")]), {"t": step_values(21)})
    evidence = found.question.evidence[0]
    early = {b: seen for b, seen in evidence.observations.items() if seen[0].at <= 5}
    turned = dict(reversed(early.items()))
    scenarios = {"s": ("long",)}
    asked = [ask(32, [replace(evidence, observations=o)]) for o in (early, early, turned)]

    assert len({repr(decide(question, scenarios)) for question in asked}) == 1


def test_a_spent_budget_ends_with_the_bracket_so_far():
    """Before the ends are told apart: inconclusive; after: narrowed, and the truth is among the suspects."""
    found = walk(ask(32, [Evidence(target=target("t"), server="s")]), {"t": step_values(21)})
    evidence = found.question.evidence[0]
    for starts in range(len(found.probes)):
        cut = {b: tuple(o for o in seen if o.at <= starts) for b, seen in evidence.observations.items()}
        question = replace(ask(32, [replace(evidence, observations=cut)]), spent=True)
        result = standings(question)[0].result

        assert decide(question, {"s": ("long",)}) is None
        assert result.reason == "budget"
        assert result.status is (Status.INCONCLUSIVE if starts < 2 else Status.NARROWED)
        assert starts < 2 or 21 in result.suspects


def test_equal_ends_are_not_reproduced_in_at_most_eight_starts():
    """The same build at both ends, of any kind of target."""
    for kind in KINDS:
        found = walk(
            ask(8, [Evidence(target=target("t", kind=kind), server="s")]),
            {"t": lambda _b, _s, kind=kind: Observation(value=KINDS[kind]["good"])},
        )

        assert found.standings[0].result.status is Status.NOT_REPRODUCED
        assert len(found.probes) <= 8


def test_cheaper_builds_are_preferred_where_they_tell_as_much():
    """Of two builds beside the middle the one that is here already is started."""
    question = ask(32, [Evidence(target=target("t"), server="s")])
    found = walk(question, {"t": step_values(21)})
    evidence = found.question.evidence[0]
    cut = {b: seen for b, seen in evidence.observations.items() if seen[0].at <= 2}
    here = replace(
        ask(32, [replace(evidence, observations=cut)]),
        pulls=tuple(0.0 if build == 18 else 600.0 for build in range(32)),
        runs={"s": 300.0},
    )

    assert decide(here, {"s": ("long",)}).build == 18


def test_a_mark_counts_as_a_verdict_and_a_skip_mark_as_untestable():
    """What a person says is believed on its own build, and never more than narrowed."""
    marks = {3: Verdict.SKIP, 2: Verdict.GOOD}
    question = ask(6, [Evidence(target=target("t"), server="s", marks=marks)])
    found = walk(question, {"t": step_values(3)})
    result = found.standings[0].result

    assert (result.status, result.last_good, result.first_bad) == (Status.NARROWED, 2, 4)
    assert not {probe.build for probe in found.probes} & set(marks)
