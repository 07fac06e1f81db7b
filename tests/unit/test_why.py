"""Why each start was made and each end was said, found again from a run's events."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

import report_runs
import run_events
from imagebisect.domain import Failure, Phase, TargetRole, Verdict
from imagebisect.report import why_text
from imagebisect.scenario import Metric, MetricKind
from imagebisect.state import (
    Budget,
    HostBlamed,
    Marked,
    Measured,
    PullEnded,
    Resumed,
    RunFinished,
    RunStopped,
    SearchOptions,
    StartEnded,
)
from imagebisect.stories import Explanation
from imagebisect.why import explain
from search_world import target


def noisy(truth, spread=0.005, seed=1):
    """A truth with noise between starts."""
    rng = random.Random(seed)
    return lambda build: truth(build) * (1 + rng.gauss(0, spread))


def told(events):
    """An explanation as a renderer gets it."""
    return TypeAdapter(Explanation).dump_python(explain(events), mode="json")


@pytest.fixture(scope="module")
def searched():
    """The events of a search over 24 builds that broke at b13; b14 cannot be tested."""
    truth = noisy(lambda build: 1415.0 if build < 13 else 755.0)
    return report_runs.searched(lambda b: "unknown_flag" if b == 14 else truth(b), run_events.plan(24))


@pytest.fixture(scope="module")
def explained(searched):
    """Their explanation."""
    return explain(searched)


def test_every_start_has_its_purpose_and_what_it_was_chosen_from(explained):
    """Ends, search, proof in this order; what is chosen now from the same events is what was started then."""
    purposes = [start.purpose for start in explained.starts]

    assert list(dict.fromkeys(purposes)) == ["anchor", "search", "confirm"]
    assert [start.number for start in explained.starts] == list(range(1, len(purposes) + 1))
    assert all(start.choice.differs is None for start in explained.starts)
    assert all(start.targets[0].purpose == start.purpose for start in explained.starts)


def test_the_winner_tells_most_for_its_cost(explained):
    """The build that was started stands first, with bits and cost, and nothing scores higher."""
    for start in explained.starts:
        winner, *others = start.choice.candidates
        assert (winner.build, winner.server) == (start.build, start.server)
        assert all(other.score <= winner.score * (1 + 1e-9) for other in others)
        assert winner.estimated == (start.purpose == "search")
    search = next(start for start in explained.starts if start.purpose == "search")
    assert 0.5 < search.choice.candidates[0].gain["long-prefill"] <= 1
    assert search.choice.candidates[0].cost_s == pytest.approx(8.0)
    assert search.choice.count == 22


def test_what_a_start_told_is_the_move_from_before_to_after(explained):
    """Levels and noise before, the value with its odds, and how far the answer came closer."""
    search = [start for start in explained.starts if start.purpose == "search" and start.outcome == "measured"]

    for start in search:
        served = start.targets[0]
        assert served.then.bits < served.before.belief.bits
        assert served.weight_words.startswith("good" if served.value > 1000 else "bad")
        assert served.before.belief.good_level == pytest.approx(1415, rel=0.02)
        assert served.before.belief.between.endswith("%")
        assert served.reps_rule.startswith("one rep of 1,")
    last = explained.starts[-1].targets[0]
    assert last.then.pairs[0].chance > last.was
    assert (last.then.pairs[0].good, last.then.pairs[0].bad) == last.confirms == ("b12", "b13")


def test_a_confirmed_end_shows_each_condition(explained):
    """The start that settled it, the sentence, and every condition with what it needed and what there was."""
    end = explained.ends[0]

    assert (end.status, end.settled_after) == ("confirmed", len(explained.starts))
    assert end.settled_by.startswith(f"start {len(explained.starts)} of b1")
    assert "b12 is the last good build and b13 the first bad one" in end.sentence
    assert all(test.passed for test in end.tests)
    chance = next(test for test in end.tests if test.what == "chance of the pair")
    assert f"chance of this pair {chance.got}" in end.sentence
    assert {test.what for test in end.tests} >= {"its t", "fresh starts, made for the pair", "line of history"}


def test_one_builds_whole_story(searched, explained):
    """Its starts with their odds, its verdict and the rule; an untestable one says what it died of."""
    stories = {story.build: story for story in explained.builds}

    assert stories["b13"].verdict == "bad"
    assert [one.confirms for one in stories["b13"].starts] == [None, ("b12", "b13")]
    assert all(one.weight < 0 for one in stories["b13"].starts)
    assert "19:1 makes a verdict" in stories["b13"].rule
    assert stories["b14"].rule == "it cannot be tested: unknown_flag"
    assert stories["b0"].rule == "it is the good end"
    text = why_text.render_build(told(searched), "b13")
    assert text.startswith("b13 for long-prefill: BAD - its starts together: bad ")
    assert "chosen from" in text
    assert "never started" in why_text.render_build(told(searched), "b20")


def test_the_text_is_narrow_and_in_order(searched):
    """A line or two a start, in their order; a block for the end; nothing wider than a terminal."""
    text = why_text.render(told(searched))
    long = why_text.render(told(searched), verbose=True)

    assert all(len(line) <= 105 for line in (text + long).splitlines())
    assert text.index("#1 ") < text.index("#9 ") < text.index("=> long-prefill: CONFIRMED")
    assert "failed (unknown_flag: unknown_flag)" in text
    assert "  ok  chance of the pair" in text
    assert "bits in 8 s" not in text
    assert "bits in 8 s" in long
    assert "noise (sd)" in long


def test_any_instant_of_a_run_can_be_explained(searched):
    """Killed between any two events, a run still says why it did what it did, and what comes next."""
    for count in range(1, len(searched)):
        found = explain(searched[:count])
        assert found.ends[0].target == "long-prefill"
        assert why_text.render(told(searched[:count]))
        assert (found.next is None) == (found.ends[0].status is not None)


def test_a_run_in_progress_says_what_comes_next_and_how_long_it_takes(searched):
    """The next start with its reason, the starts and the time left; a start under way may change that."""
    events = searched[: next(n for n, event in enumerate(searched) if getattr(event, "start_id", "") == "0006")]
    found = explain(events)

    assert found.next.purpose == "search"
    assert found.next.choice.candidates[0].build == found.next.build
    assert found.next.starts_left >= 3
    assert found.next.seconds_left == pytest.approx(5.0 * found.next.starts_left)
    assert "expected: " in why_text.render(told(events))
    running = searched[: len(events) + 2]
    assert "unless start 6 says otherwise, next: " in why_text.render(told(running))


def test_the_end_of_a_budget_says_what_is_lacking():
    """The start that spent it is named, and the conditions that were not reached are shown as such."""
    options = SearchOptions(budget=Budget(starts=5))
    events = report_runs.searched(report_runs.step(13), run_events.plan(24), options)
    found = explain(events)

    assert (found.ends[0].status, found.ends[0].reason) == ("narrowed", "budget")
    assert found.ends[0].settled_by.endswith("which spent the budget")
    assert found.budget_given == "5 starts"
    assert not all(test.passed for test in found.ends[0].tests)
    assert "  NO  fresh starts" in why_text.render(told(events))


def test_an_absent_regression_shows_what_excluded_it():
    """Not reproduced: three starts an end, and the largest change still possible."""
    found = explain(report_runs.searched(noisy(lambda _: 1415.0), run_events.plan(24)))

    end = found.ends[0]
    assert end.status == "not_reproduced"
    assert [(test.what, test.passed) for test in end.tests] == [
        ("starts of each end", True),
        ("largest change still possible (95 %)", True),
    ]
    assert "10 % would matter" in found.starts[2].targets[0].before.ends.says


def test_a_second_step_is_told_by_its_own_part_of_the_range():
    """Between two levels of their own the belief, the bits and the odds are those of that part."""
    truth = noisy(lambda b: 1415.0 if b < 7 else 1100.0 if b < 16 else 755.0, 0.003)
    found = explain(report_runs.searched(truth, run_events.plan(24)))

    parts = {(s.targets[0].then.low, s.targets[0].then.high) for s in found.starts if s.targets[0].then}
    assert len(parts) >= 3
    assert found.ends[0].status == "confirmed"
    confirming = [start for start in found.starts if start.purpose == "confirm"]
    assert all(start.targets[0].then.bits < 0.5 for start in confirming)


def test_looking_for_a_fix_keeps_the_names():
    """The newer end is the good one; pairs and builds have the names of the file."""
    plan = replace(run_events.plan(24), good=23, bad=0)
    truth = noisy(lambda b: 755.0 if b < 9 else 1415.0)
    events = report_runs.searched(truth, plan, SearchOptions(find="fix", scan=3))
    found = explain(events)

    assert (found.find, found.good, found.bad) == ("fix", "b23", "b0")
    assert found.scan == ("b6", "b11", "b17")
    assert {start.purpose for start in found.starts} == {"anchor", "scan", "search", "confirm"}
    assert all(start.choice.differs is None for start in found.starts)
    last = found.starts[-1].targets[0]
    assert (last.then.pairs[0].good, last.then.pairs[0].bad) == ("b9", "b8")
    assert "b8 is the last bad build and b9 the first good one" in found.ends[0].sentence
    assert {story.build: story.verdict for story in found.builds}["b8"] == "bad"
    assert "looking for the fix" in why_text.render(told(events))


def test_flaky_deaths_are_told_in_odds_of_the_build():
    """An event target has no levels: what a build's starts say together, and how often a bad one dies."""
    plan = run_events.plan(12, targets=(_event(),))
    rng = random.Random(4)
    events = report_runs.searched(lambda b: 1.0 if b < 5 or rng.random() > 0.6 else 0.0, plan)
    found = explain(events)

    search = next(start for start in found.starts if start.purpose == "search")
    assert search.targets[0].together
    assert 0 < search.targets[0].before.belief.death_rate < 1
    assert "died" in why_text.render(told(events), verbose=True)


def _event():
    """A target on the long scenario that lives or dies."""
    plain = target("survives", kind=MetricKind.EVENT)
    return replace(plain, metric=Metric(name="c1.prefill_tok_s", unit="", kind=MetricKind.EVENT))


class TestHonesty:
    """What says nothing is shown as saying nothing."""

    @pytest.fixture
    def events(self):
        """A search that was finished but for its last word."""
        return report_runs.searched(report_runs.step(5, b4="unknown_flag"))[:-1]

    def test_a_verdict_by_hand_is_named_and_bars_the_proof(self, events):
        """The mark stands between the starts, and as the reason why nothing is confirmed."""
        found = explain([*events, Marked(build=3, target="long-prefill", verdict=Verdict.GOOD)])

        assert found.notes[-1].text == "the verdict of b3 for long-prefill was set to good by hand"
        story = next(story for story in found.builds if story.build == "b3")
        assert (story.marked, story.rule) == (True, "set by hand")
        by_hand = next(test for test in found.ends[0].tests if test.what == "verdicts by hand")
        assert (by_hand.got, by_hand.passed) == ("b3", False)

    def test_a_mark_that_settles_a_target_is_said_to(self, events):
        """Where a verdict by hand, not a start, gave a target its status."""
        found = explain([*events, Marked(build=4, target="long-prefill", verdict=Verdict.BAD)])

        assert found.ends[0].settled_by == "the verdict of b4 for long-prefill was set to bad by hand"
        undone = explain(
            [
                *events,
                Marked(build=4, target="long-prefill", verdict=Verdict.BAD),
                Marked(build=4, target="long-prefill", verdict=None),
            ]
        )
        assert undone.ends[0].settled_by == "the verdict of b4 for long-prefill was taken back"

    def test_a_start_that_the_host_is_blamed_for_says_nothing(self, events):
        """It is called void, without its value, and the target stands as if it had not been."""
        blamed = [
            *events,
            HostBlamed(void_start_ids=("0004",), message="it is the host"),
            RunStopped(at="t", exit_code=20, reason="environment", message="it is the host"),
        ]
        found = explain(blamed)

        start = found.starts[3]
        assert (start.outcome, start.targets[0].says_nothing, start.targets[0].value) == ("void", True, None)
        assert found.ends[0].status is None
        assert "VOID: the host is blamed for it" in why_text.render(told(blamed))
        assert [note.kind for note in found.notes] == ["host_blamed", "stopped"]

    def test_a_start_that_was_cut_short_says_what_it_had_measured(self):
        """Killed before its measurement it says nothing; after it, the measurement stands."""
        head = [run_events.created(), *run_events.start(1, 0, 1415.0)]
        second = run_events.start(2, 7, 755.0)
        measured = next(n for n, event in enumerate(second) if isinstance(event, Measured))

        before = explain([*head, *second[:measured], Resumed(at="t")])
        after = explain([*head, *second[: measured + 1], Resumed(at="t")])

        assert [found.starts[1].outcome for found in (before, after)] == ["interrupted"] * 2
        assert before.starts[1].targets[0].says_nothing
        assert after.starts[1].targets[0].value == 755.0
        assert "cut short: start 0002" in before.notes[0].text

    def test_transient_failures_are_counted(self):
        """A port that was taken is no word on the build; the next start is its second try."""
        events = [run_events.created(), *run_events.start(1, 0, "port"), *run_events.start(2, 0, 1415.0)]
        found = explain(events)

        assert [start.attempt for start in found.starts] == [0, 1]
        assert found.starts[0].targets[0].says_nothing
        assert "try 2 after a transient failure" in why_text.render(told(events))

    def test_an_image_that_is_gone_has_no_start(self):
        """What cannot be pulled is noted between the starts, and the build's story says why."""
        gone = Failure(cause="pull_failed", phase=Phase.PULL, message="404")
        events = [
            run_events.created(),
            *run_events.start(1, 0, 1415.0),
            *run_events.start(2, 7, 755.0),
            PullEnded(build=3, failure=gone),
        ]
        found = explain(events)

        assert found.notes[0].text == "b3 cannot be had: 404"
        assert next(story for story in found.builds if story.build == "b3").rule.endswith("pull_failed")
        assert "  pull      pull_failed" in why_text.render_build(told(events), "b3")

    def test_a_start_that_this_version_would_not_make_is_said_so(self):
        """A ledger of another version of the rule is not explained away."""
        events = [
            run_events.created(),
            *run_events.start(1, 0, 1415.0),
            *run_events.start(2, 7, 755.0),
            *run_events.start(3, 6, 755.0),
        ]
        found = explain(events)

        assert found.starts[2].choice.differs == "this version of bisect would start b3 on s (search)"

    def test_a_watched_target_is_not_said_to_be_settled(self):
        """It is listed with what it saw; no start was made for it."""
        watched = target("watched", role=TargetRole.WATCH)
        plan = run_events.plan(targets=(target("long-prefill"), watched))
        events = report_runs.searched(report_runs.step(5), plan)
        found = explain(events)

        end = next(end for end in found.ends if end.target == "watched")
        assert (end.settled_by, end.tests) == (None, ())
        assert found.starts[0].targets[1].purpose == "watch"
        assert "watched: watched 1,415" in why_text.render(told(events))

    def test_a_run_that_decides_nothing_has_no_reasons(self):
        """A probe is refused."""
        with pytest.raises(ValueError, match="decides nothing"):
            explain([replace(run_events.created(), purpose="probe")])

    def test_a_run_that_has_only_begun(self):
        """Before the first start there is a next one and nothing else."""
        found = explain([run_events.created()])

        assert found.starts == ()
        assert (found.next.purpose, found.next.seconds_left) == ("anchor", None)
        assert "no value of the good and the bad end yet" in why_text.render(told([run_events.created()]))


def test_the_end_of_a_run_is_noted(searched, explained):
    """The last event is told, and that nothing comes next."""
    assert isinstance(searched[-1], RunFinished)
    assert isinstance(searched[-2], StartEnded)
    assert explained.notes[-1].kind == "finished"
    assert explained.next is None
