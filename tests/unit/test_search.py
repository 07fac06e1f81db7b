"""The search over known worlds: exact without noise, honest with skips, never a build it has not bracketed."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebisect.domain import Floor, Status, TargetRole, Verdict
from imagebisect.evidence import Evidence, Observation
from imagebisect.scenario import MetricKind
from imagebisect.search import stand, starts_left
from search_world import ask, step_values, target, upto, walk, with_skips


def one(count, answer, **kwargs):
    """Walk a single target; its result and the walk."""
    target_ = kwargs.pop("target", target())
    found = walk(ask(count, [Evidence(target=target_, server="s")], **kwargs), {target_.name: answer})
    return found.standings[0].result, found


@pytest.mark.parametrize("count", [2, 3, 5, 8, 16, 33, 128])
def test_every_position_is_found_exactly(count):
    """Without noise the first bad build is named, adjacent to the last good one, three starts over a bare search."""
    for first_bad in range(1, count):
        result, found = one(count, step_values(first_bad))

        assert result.status is Status.CONFIRMED
        assert (result.last_good, result.first_bad) == (first_bad - 1, first_bad)
        assert len(found.probes) <= 2 + math.ceil(math.log2(max(count - 1, 1))) + 3


@pytest.mark.parametrize(("bad", "order"), [(755.0, [0, 15]), (1340.0, [0, 15, 15])])
def test_anchors_are_measured_first_and_as_often_as_the_effect_asks_for(bad, order):
    """One start of each end where they are far apart; where they are not, the order is A Z Z A."""
    small = replace(target(), floor=Floor(value=0.03, relative=True))
    _, found = one(16, step_values(9, bad=bad), target=small)

    purposes = [probe.purpose for probe in found.probes]
    assert [probe.build for probe in found.probes[: len(order)]] == order
    assert purposes == sorted(purposes, key=["anchor", "search", "confirm"].index)
    assert purposes.count("anchor") == len(order)


def test_the_final_pair_is_measured_again_in_fresh_starts():
    """The last two starts are the last good and the first bad build, and are marked as their confirmation."""
    result, found = one(16, step_values(9))

    assert [probe.build for probe in found.probes[-2:]] == [8, 9]
    assert all(probe.confirms == {"long-prefill": (8, 9)} for probe in found.probes[-2:])
    assert all(len(result.builds[build].values) >= 2 for build in (8, 9))
    assert result.confidence > 0.98


@pytest.mark.parametrize("count", range(2, 8))
def test_exhaustive_small_worlds_with_every_skip_pattern(count):
    """For N <= 7, any first bad build and any untestable ones: suspects hold the truth and are minimal."""
    for first_bad in range(1, count):
        for pattern in itertools.product((False, True), repeat=count - 2):
            skips = [index + 1 for index, skipped in enumerate(pattern) if skipped]
            result, found = one(count, with_skips(step_values(first_bad), skips))

            testable = [build for build in range(count) if build not in skips]
            last_good = max(build for build in testable if build < first_bad)
            first_seen = min(build for build in testable if build >= first_bad)
            assert (result.last_good, result.first_bad) == (last_good, first_seen)
            assert first_bad in result.suspects
            assert result.suspects == tuple(range(last_good + 1, first_seen + 1))
            if first_seen - last_good == 1:
                assert result.status is Status.CONFIRMED
            else:
                assert (result.status, result.reason) == (Status.NARROWED, "untestable")
                assert result.untestable == tuple(b for b in result.suspects if b in skips)
            tried = [probe.build for probe in found.probes]
            assert all(tried.count(build) <= 1 for build in skips)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_monotone_truth_any_skips_any_mix_of_targets(data):
    """Two servers, three targets, skips: each target ends at its own truth, over shared starts."""
    count = data.draw(st.integers(3, 40))
    skips = data.draw(st.sets(st.integers(1, count - 2), max_size=count // 2))
    truths = [data.draw(st.integers(1, count - 1)) for _ in range(3)]
    targets = [
        target("long", scenario="long"),
        target("memory", kind=MetricKind.LEVEL, scenario="idle"),
        target("oom", kind=MetricKind.EVENT, scenario="oom"),
    ]
    answers = {
        "long": with_skips(step_values(truths[0]), sorted(skips)),
        "memory": with_skips(step_values(truths[1], good=3000, bad=4178), sorted(skips)),
        "oom": with_skips(step_values(truths[2], good=1, bad=0), sorted(skips)),
    }
    servers = {"long": "bt4096", "memory": "bt4096", "oom": "bt8192"}
    evidence = [Evidence(target=t, server=servers[t.name]) for t in targets]
    found = walk(ask(count, evidence), answers)

    for truth, standing in zip(truths, found.standings, strict=True):
        assert standing.result.status in (Status.CONFIRMED, Status.NARROWED)
        assert truth in standing.result.suspects
        assert standing.result.last_good < truth <= standing.result.first_bad


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_arbitrary_answers_end_and_never_claim_an_unbracketed_build(data):
    """Whatever the servers answer, the search ends, and a confirmed pair was measured on both sides."""
    count = data.draw(st.integers(2, 12))
    kinds = st.sampled_from(["good", "bad", "middle", "flag", "crash"])
    script = data.draw(st.lists(kinds, min_size=1, max_size=60))
    seen = itertools.count()

    def answer(_build, _seen):
        match script[next(seen) % len(script)]:
            case "good":
                return Observation(value=1415.0)
            case "bad":
                return Observation(value=755.0)
            case "middle":
                return Observation(value=1090.0)
            case "flag":
                return Observation(value=None, cause="unknown_flag")
        return Observation(value=None, cause="crash")

    result, _ = one(count, answer)

    assert result.status is not None
    if result.status is Status.CONFIRMED:
        assert result.first_bad == result.last_good + 1
        low, high = result.builds[result.last_good], result.builds[result.first_bad]
        assert min(len(low.values), len(high.values)) >= 2
        assert low.value > high.value


def test_two_targets_share_the_starts_of_their_server():
    """Memory and long prefill with one first bad build cost no more starts than one of them."""
    pair = [target("long"), target("memory", kind=MetricKind.LEVEL, scenario="idle")]
    evidence = [Evidence(target=t, server="s") for t in pair]
    answers = {"long": step_values(9), "memory": step_values(9, good=3000, bad=4178)}
    shared = walk(ask(16, evidence), answers)
    _, alone = one(16, step_values(9))

    assert len(shared.probes) == len(alone.probes)
    assert all(probe.scenarios == ("long", "idle") for probe in shared.probes)


def test_closed_targets_are_not_measured_again():
    """A target whose ends do not differ costs three starts of each and nothing more."""
    pair = [target("long"), target("flat", scenario="short")]
    evidence = [Evidence(target=t, server="s") for t in pair]
    found = walk(ask(16, evidence), {"long": step_values(9), "flat": lambda _b, _s: Observation(value=2000.0)})

    assert sum("short" in probe.scenarios for probe in found.probes) == 6
    flat = found.standings[1].result
    assert (flat.status, flat.reason) == (Status.NOT_REPRODUCED, None)
    assert "excluded" in flat.sentence


def test_watch_targets_cost_no_start_and_are_not_repeated():
    """A watch target rides along: at most twice at the anchors, once elsewhere."""
    pair = [target("long"), target("short", scenario="short", role=TargetRole.WATCH)]
    evidence = [Evidence(target=t, server="s") for t in pair]
    found = walk(ask(16, evidence), {"long": step_values(9), "short": step_values(5)})
    _, alone = one(16, step_values(9))

    assert len(found.probes) == len(alone.probes)
    counts = {b: sum("short" in p.scenarios for p in found.probes if p.build == b) for b in range(16)}
    assert counts[0] == counts[15] == 1
    assert max(counts.values()) == 1


def test_an_anchor_that_cannot_be_tested_is_named_with_its_cause():
    """An unknown flag at the bad end ends this target at once; a crash is tried twice."""
    flag, found = one(8, with_skips(step_values(4), [7]))
    crash, found_crash = one(8, with_skips(step_values(4), [7], cause="crash"))

    assert (flag.status, flag.reason) == (Status.UNTESTABLE_ANCHOR, "unknown_flag")
    assert (crash.status, crash.reason) == (Status.UNTESTABLE_ANCHOR, "crash")
    assert [probe.build for probe in found.probes].count(7) == 1
    assert [probe.build for probe in found_crash.probes].count(7) == 2


def test_the_bad_end_being_better_is_said():
    """An improvement is not searched; it takes three starts of each end to say so."""
    result, found = one(8, step_values(4, good=755, bad=1415))

    assert result.status is Status.IMPROVED
    assert len(found.probes) == 6


def test_an_off_line_anchor_cannot_put_the_blame_on_its_neighbour():
    """The first build after a branch image differs from it by two histories."""
    result, _ = one(8, step_values(1), lines={0: "off-main"})
    inside, _ = one(8, step_values(5), lines={0: "off-main"})

    assert (result.status, result.reason) == (Status.NARROWED, "off_line")
    assert inside.status is Status.CONFIRMED


def test_a_verdict_by_hand_moves_the_bracket_but_never_confirms():
    """`mark` is believed, and said."""
    question = ask(4, [Evidence(target=target(), server="s", marks={1: Verdict.GOOD, 2: Verdict.BAD})])
    found = walk(question, {"long-prefill": step_values(3)})
    result = found.standings[0].result

    assert (result.status, result.reason) == (Status.NARROWED, "marked")
    assert (result.last_good, result.first_bad) == (1, 2)


def test_a_middle_level_makes_two_steps():
    """1415 -> 1100 -> 755: the first step is named, the second listed, and together they are all of it."""

    def answer(build, _seen):
        return Observation(value=1415.0 if build < 3 else 1100.0 if build == 3 else 755.0)

    result, _ = one(7, answer)

    assert (result.status, result.last_good, result.first_bad) == (Status.CONFIRMED, 2, 3)
    assert [(step.last, step.first) for step in result.steps] == [(2, 3), (3, 4)]
    assert result.builds[3].verdict is Verdict.OTHER
    assert "elsewhere" not in result.sentence


def test_one_odd_start_does_not_name_the_wrong_build():
    """A good build that booted slowly once is measured again and outvoted."""

    def answer(build, seen):
        slow = build == 8 and seen == 0
        return Observation(value=755.0 if build >= 12 or slow else 1415.0)

    result, _ = one(16, answer)

    assert result.status is not Status.CONFIRMED or result.first_bad == 12
    assert 12 in result.suspects


def test_good_after_bad_is_inconsistent_and_every_step_is_listed():
    """Break, fix, break again: the contradiction is said, not averaged away."""

    def broken(build, _seen):
        return Observation(value=755.0 if build in (7, 8) or build >= 12 else 1415.0)

    question = ask(16, [Evidence(target=target(), server="s")])
    found = walk(question, {"long-prefill": broken})
    forced = walk(
        ask(
            16,
            [
                Evidence(
                    target=target(),
                    server="s",
                    observations={7: (Observation(value=755.0),), 11: (Observation(value=1415.0),)},
                )
            ],
        ),
        {"long-prefill": broken},
    )

    assert found.standings[0].result.status is not None
    result = forced.standings[0].result
    assert result.status is Status.INCONSISTENT
    assert len(result.steps) == 3


def test_flaky_oom_needs_more_survivals():
    """A bad end that dies in two of three starts makes one survival weak evidence."""

    def answer(build, seen):
        return Observation(value=1.0 if build < 9 or seen % 3 == 1 else 0.0)

    result, found = one(16, answer, target=target("oom", kind=MetricKind.EVENT))

    assert (result.last_good, result.first_bad) == (8, 9)
    assert [probe.build for probe in found.probes].count(15) == 3
    assert len(result.builds[8].values) >= 4
    assert (result.good_rate, result.good_value, result.change_percent) == (1.0, None, None)


def test_an_odd_anchor_start_does_not_cost_the_answer():
    """The good anchor's only start was slow: it is started again as soon as other builds speak against it."""

    def answer(build, seen):
        return Observation(value=755.0 if build >= 9 else 900.0 if (build, seen) == (0, 0) else 1415.0)

    result, found = one(16, answer)

    assert (result.status, result.first_bad) == (Status.CONFIRMED, 9)
    assert [probe.build for probe in found.probes].count(0) >= 2
    assert len(found.probes) <= 15


def test_ends_that_stay_noisy_are_inconclusive_for_noise():
    """Starts of each end that never agree are the end of it, and what the host could show is said."""
    noise = [1415.0, 700.0, 1100.0, 400.0, 1300.0, 900.0, 1250.0, 500.0]
    result, found = one(16, lambda build, seen: Observation(value=noise[seen] * (0.8 if build else 1)))

    assert (result.status, result.reason) == (Status.INCONCLUSIVE, "noise")
    assert 12 <= len(found.probes) <= 16
    assert "smallest effect this host can show" in result.sentence


def test_starts_left_is_close_on_a_clean_search():
    """The number shown to the user is within two of the truth at every step, without skips or doubts."""
    question = ask(33, [Evidence(target=target(), server="s")])
    found = walk(question, {"long-prefill": step_values(21)})

    for done in range(len(found.probes)):
        left = starts_left(upto(found, done))
        assert abs(left - (len(found.probes) - done)) <= 2
    assert starts_left(found.question) == 0


def test_numbers_of_the_final_pair_are_signed_as_measured():
    """change_percent is bad / good - 1."""
    result, _ = one(8, step_values(4))

    assert result.change_percent == pytest.approx((755 / 1415 - 1) * 100)
    assert result.spread_percent == 0
    assert result.threshold == pytest.approx(math.sqrt(1415 * 755), rel=0.001)
    assert result.steps[0].change_percent == pytest.approx(result.change_percent)


def test_an_untouched_target_is_open():
    """Before any start a target has no status and asks for the good anchor."""
    evidence = Evidence(target=target(), server="s")
    standing = stand(ask(8, [evidence]), evidence)

    assert standing.result.status is None
    assert standing.need == 0


@pytest.mark.parametrize("survival", [0.8, 0.7, 0.6])
def test_equal_builds_with_a_flaky_oom_are_seldom_accused(survival):
    """Eight equal builds that die now and then: a build is named in at most 15 % of runs (45 % with two survivals)."""
    dice = random.Random(7)
    oom = target("oom", kind=MetricKind.EVENT)
    ends = []
    for _ in range(300):
        result, _ = one(8, lambda _b, _s: Observation(value=float(dice.random() < survival)), target=oom)
        ends.append(result.status)

    assert ends.count(Status.CONFIRMED) + ends.count(Status.IMPROVED) <= 45


def test_two_steps_are_not_sold_as_one():
    """-15 % at b2 and -38 % at b5: the first is named, both are listed."""

    def answer(build, _seen):
        return Observation(value=40000.0 if build < 2 else 34000.0 if build < 5 else 21000.0)

    result, _ = one(8, answer)

    assert (result.status, result.first_bad) == (Status.CONFIRMED, 2)
    assert [(step.last, step.first) for step in result.steps] == [(1, 2), (4, 5)]
    assert "more steps: b4 to b5" in result.sentence


def test_a_build_that_is_gone_when_it_is_to_be_confirmed_ends_the_target():
    """The registry forgot the first bad build after it was measured: narrowed, not asked for for ever."""

    def answer(build, seen):
        gone = build == 5 and seen > 0
        return Observation(value=None, cause="pull_failed") if gone else step_values(5)(build, seen)

    result, _ = one(8, answer)

    assert (result.status, result.reason) == (Status.NARROWED, "untestable")
    assert (result.last_good, result.first_bad) == (4, 5)
