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
from imagebisect.endings import in_plan_order
from imagebisect.evidence import Evidence, Observation, sentinels
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
    """The last starts are of the last good and the first bad build, and are marked as their confirmation."""
    result, found = one(16, step_values(9))

    fresh = [probe.build for probe in found.probes if probe.confirms]
    assert {*fresh} == {8, 9}
    assert [probe.build for probe in found.probes[-len(fresh) :]] == fresh
    assert all(probe.confirms == {"long-prefill": (8, 9)} for probe in found.probes if probe.confirms)
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


def test_what_one_target_found_tells_the_others_where_to_look_first():
    """A second server whose complaint begins with the same build is searched in fewer starts than a bare halving."""
    targets = [target("long", scenario="long"), target("oom", kind=MetricKind.EVENT, scenario="oom")]
    servers = {"long": "bt4096", "oom": "bt8192"}
    answers = {"long": step_values(21), "oom": step_values(21, good=1, bad=0)}
    found = walk(ask(33, [Evidence(target=t, server=servers[t.name]) for t in targets]), answers)
    alone = walk(ask(33, [Evidence(target=targets[1], server="bt8192")]), {"oom": answers["oom"]})

    assert all(standing.result.first_bad == 21 for standing in found.standings)
    assert sum(probe.server == "bt8192" for probe in found.probes) < len(alone.probes)


# ------------------------------------------------------------- fixes, scans and budgets


def fixed_values(first_good, *, good=1415.0, bad=755.0):
    """Noiseless, by place in the plan: bad before `first_good`, good from it on."""
    return lambda build, _seen: Observation(value=good if build >= first_good else bad)


@pytest.mark.parametrize("count", [2, 3, 8, 17])
def test_the_first_good_build_after_a_bad_one_is_found(count):
    """Where a fix is looked for, the same search names the last bad and the first good build, in the plan's order."""
    for first_good in range(1, count):
        question = replace(ask(count, [Evidence(target=target(), server="s")]), find="fix")
        question = replace(question, names=question.names[::-1])
        found = walk(question, {"long-prefill": fixed_values(first_good)})
        result = in_plan_order(found.standings[0].result, found.question)

        assert result.status is Status.CONFIRMED
        assert (result.first_bad, result.last_good) == (first_good - 1, first_good)
        assert result.suspects == (first_good,)
        assert (result.find, result.builds[first_good].verdict) == ("fix", Verdict.GOOD)
        assert f"b{first_good - 1} is the last bad build and b{first_good} the first good one" in result.sentence
        (step,) = result.steps
        assert (step.last, step.first, step.before, step.after) == (
            first_good - 1,
            first_good,
            Verdict.BAD,
            Verdict.GOOD,
        )
        assert step.change_percent == pytest.approx((1415 / 755 - 1) * 100)


def broken_between(*bad, good=1415.0, low=755.0):
    """Noiseless: only these builds are bad."""
    return lambda build, _seen: Observation(value=low if build in bad else good)


def test_a_scan_finds_what_broke_and_was_mended_between_ends_that_are_alike():
    """Good ends and a bad stretch between: without a scan not reproduced, with it every step and where to go on."""
    bad = range(6, 11)
    plain, _ = one(17, broken_between(*bad))
    question = replace(ask(17, [Evidence(target=target(), server="s")]), scan=sentinels(0, 16, 3))
    found = walk(question, {"long-prefill": broken_between(*bad)})
    result = found.standings[0].result

    assert plain.status is Status.NOT_REPRODUCED
    assert result.status is Status.INCONSISTENT
    assert [(step.last, step.first) for step in result.steps] == [(4, 8), (8, 12)]
    assert "b8 between them is bad (-46.6 %): it broke and was mended; search with --bad b8" in result.sentence
    assert len(found.probes) <= 6 + 3 + 1


def test_a_scan_of_equal_builds_changes_nothing_but_what_was_looked_at():
    """Sentinels that agree with the ends leave the end as it is, one start each."""
    question = replace(ask(17, [Evidence(target=target(), server="s")]), scan=sentinels(0, 16, 3))
    found = walk(question, {"long-prefill": broken_between()})

    assert found.standings[0].result.status is Status.NOT_REPRODUCED
    assert sorted({probe.build for probe in found.probes}) == [0, 4, 8, 12, 16]


def test_sentinels_are_looked_at_although_the_search_would_not():
    """With a scan, an early break that was mended is not missed beside a later one."""
    question = replace(ask(33, [Evidence(target=target(), server="s")]), scan=sentinels(0, 32, 7))
    found = walk(question, {"long-prefill": broken_between(3, 4, 5, *range(28, 33))})
    result = found.standings[0].result

    assert result.status is Status.INCONSISTENT
    assert any(step.last < 3 <= step.first for step in result.steps)
    assert any(step.last < 28 <= step.first for step in result.steps)


def test_an_untestable_sentinel_is_replaced_by_its_neighbour():
    """A scan goes on beside a build that cannot be tested."""
    question = replace(ask(17, [Evidence(target=target(), server="s")]), scan=(8,))
    found = walk(question, {"long-prefill": with_skips(broken_between(), [8])})

    assert 7 in {probe.build for probe in found.probes}


@pytest.mark.parametrize("starts", range(1, 9))
def test_a_spent_budget_ends_with_the_bracket_so_far(starts):
    """Whenever it is spent, the target ends: narrowed to what holds the truth, or inconclusive before the ends are known."""
    _, found = one(32, step_values(21))
    cut = replace(upto(found, starts), spent=True)
    standing = stand(cut, cut.evidence[0])

    assert standing.wish is None
    assert standing.result.reason == "budget"
    if starts < 2:
        assert standing.result.status is Status.INCONCLUSIVE
    else:
        assert standing.result.status is Status.NARROWED
        assert 21 in standing.result.suspects
        assert "the budget is spent: the first bad build lies after" in standing.result.sentence


def test_what_was_claimed_is_said_to_be_excluded_or_not():
    """A complaint that does not reproduce says what became of the claim."""
    claimed = replace(target(), claimed=Floor(value=0.47, relative=True))
    result, _ = one(8, step_values(8), target=claimed)

    assert result.status is Status.NOT_REPRODUCED
    assert "the claimed change of 47 % is excluded" in result.sentence


def test_a_confirmed_step_has_its_interval():
    """The change of the final pair with its 95 % interval, as measured."""
    result, _ = one(16, step_values(9))

    low, high = result.interval_percent
    assert low < result.change_percent < high
    assert -50 < low < high < -44
