"""What a session concludes from its events: the host in doubt, the exit code, what a start says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagebisect.domain import Failure, Phase, Status, TargetRole, Verdict
from imagebisect.errors import ExitCode
from imagebisect.evidence import question
from imagebisect.outcome import POLICY, Cause, Effect, effect
from imagebisect.scenario import MetricKind
from imagebisect.search import decide, results
from imagebisect.session import exit_code, exit_code_of, host_check, scenarios_of
from imagebisect.start import request_deadline_s
from imagebisect.state import HostBlamed, HostCleared, Marked, PullEnded, Resumed, StartIntended, fold
from run_events import created, plan, start
from search_world import target

ANCHORS = [created(), *start(1, 0, 1415.0), *start(2, 7, 755.0), *start(3, 7, 756.0), *start(4, 0, 1416.0)]


def test_two_odd_failures_in_a_row_put_the_host_in_doubt():
    """After two crashes the last good build is started again; its scenarios are the failed ones."""
    one = fold([*ANCHORS, *start(5, 4, "crash")])
    two = fold([*ANCHORS, *start(5, 4, "crash"), *start(6, 5, "ready_timeout")])

    assert host_check(one) is None
    probe = host_check(two)
    assert (probe.build, probe.server, probe.purpose, probe.scenarios) == (0, "s", "host_check", ("long",))


@pytest.mark.parametrize("cause", ["unknown_flag", "import_error", "oom_at_start", "pull_failed"])
def test_failures_that_are_the_builds_own_do_not_doubt_the_host(cause):
    """Ten builds that refuse a flag are ten skips."""
    events = list(ANCHORS)
    for number in range(5, 15):
        events += start(number, 4, cause)

    assert host_check(fold(events)) is None


def test_a_cleared_host_is_not_checked_again_for_the_same_failures():
    """The check is paid for once."""
    events = [*ANCHORS, *start(5, 4, "crash"), *start(6, 5, "crash"), *start(7, 0, 1415.0), HostCleared()]

    assert host_check(fold(events)) is None
    assert host_check(fold([*events, *start(8, 3, "crash")])) is None


def test_a_blamed_host_takes_the_skips_back():
    """Builds that failed while the host was at fault are asked for again."""
    events = [*ANCHORS, *start(5, 4, "crash"), *start(6, 3, "crash"), *start(7, 0, "crash")]
    before = results(fold(events))[0]
    after_state = fold([*events, HostBlamed(void_start_ids=("0005", "0006", "0007"), message="x")])
    probe = decide(question(after_state), scenarios_of(after_state.plan))

    assert before.builds[4].verdict is Verdict.SKIP
    assert results(after_state)[0].builds[4].verdict is Verdict.UNCLEAR
    assert probe.build == 3  # the middle of 0..7, as if nothing had happened
    assert host_check(after_state) is None


def test_a_start_cut_short_keeps_its_finished_measurements_and_is_asked_for_again_for_the_rest():
    """A kill between two scenarios repeats only the second."""
    both = (target("memory", kind=MetricKind.LEVEL, scenario="idle"), target("long-prefill"))
    whole = start(1, 0, 1415.0)
    intended = StartIntended(
        **{**{f: getattr(whole[0], f) for f in whole[0].__dataclass_fields__}, "scenarios": ("idle", "long")}
    )
    state = fold([created(plan(targets=both)), intended, *whole[1:3], Resumed(at="later")])
    ask = question(state)

    assert state.starts[0].outcome == "interrupted"
    assert ask.evidence[1].values(0) == (1415.0,)
    assert ask.evidence[0].observations == {}


def test_a_build_that_cannot_be_pulled_is_a_skip_for_every_target():
    """The registry forgot it: not bad, and not asked for again."""
    failure = Failure(cause=Cause.PULL_FAILED, phase=Phase.PULL, message="manifest unknown")
    state = fold([*ANCHORS, PullEnded(build=3, failure=failure)])
    probe = decide(question(state), scenarios_of(state.plan))

    assert results(state)[0].builds[3].verdict is Verdict.SKIP
    assert probe.build == 5  # not the one beside it: what cannot be had comes in stretches


def test_every_cause_has_a_rule_and_only_memory_is_ever_bad():
    """A start failure never counts as slow, and nothing but OOM as not surviving."""
    assert set(Cause) == set(POLICY)
    bad = {cause for cause in Cause if effect(cause, MetricKind.EVENT) is Effect.BAD}
    assert bad == {Cause.OOM_AT_START, Cause.OOM_AT_REQUEST}
    for kind in (MetricKind.RATIO, MetricKind.LEVEL):
        assert not [cause for cause in Cause if effect(cause, kind) is Effect.BAD]


def test_marks_change_the_question_and_can_be_taken_back():
    """`mark` reopens a run; undo leaves no trace in the state."""
    marked = fold([*ANCHORS, Marked(build=4, target="long-prefill", verdict=Verdict.BAD)])
    undone = fold(
        [
            *ANCHORS,
            Marked(build=4, target="long-prefill", verdict=Verdict.BAD),
            Marked(build=4, target="long-prefill", verdict=None),
        ]
    )

    assert results(marked)[0].first_bad == 4
    assert undone.marks == {}


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([Status.CONFIRMED, Status.INCONCLUSIVE], ExitCode.CONFIRMED),
        ([Status.NARROWED, Status.UNTESTABLE_ANCHOR], ExitCode.NARROWED),
        ([Status.INCONSISTENT], ExitCode.INCONCLUSIVE),
        ([Status.INCONCLUSIVE, Status.UNTESTABLE_ANCHOR], ExitCode.INCONCLUSIVE),
        ([Status.UNTESTABLE_ANCHOR, Status.NOT_REPRODUCED], ExitCode.UNTESTABLE_ANCHOR),
        ([Status.IMPROVED, Status.NOT_REPRODUCED], ExitCode.NOTHING_REGRESSED),
    ],
)
def test_exit_codes_first_that_applies(statuses, expected):
    """Over the bisect targets only."""
    base = results(fold(ANCHORS))[0]
    found = tuple(replace(base, target=f"t{n}", status=status) for n, status in enumerate(statuses))
    watched = replace(base, target="w", status=Status.CONFIRMED)
    roles = {result.target: TargetRole.BISECT for result in found} | {"w": TargetRole.WATCH}

    assert exit_code_of((*found, watched), roles)[0] is expected


def test_an_unfinished_run_is_not_a_success():
    """Exit 0 means finished and nothing regressed."""
    assert exit_code(fold(ANCHORS)) == (ExitCode.INCONCLUSIVE, "unfinished")


def rounds(number: int, build: int, seconds: float, *, cause: str | None = None):
    """A start whose long prefill took so long, or died after so long."""
    from imagebisect.domain import Measurement, Rep

    rep = Rep(
        index=0, concurrency=1, warmup=False, prompt_tokens=9, output_tokens=1, seconds=seconds, request_s=(seconds,)
    )
    failure = Failure(cause=cause, phase=Phase.REQUEST, message="x") if cause else None
    events = start(number, build, 1.0)
    events[2] = replace(events[2], measurement=Measurement(scenario="long", metrics={}, reps=(rep,), failure=failure))
    return events


def test_a_request_deadline_is_learnt_from_whole_rounds_only():
    """A bad end that dies in half a second does not give a slow good build ten."""
    died = fold([created(), *rounds(1, 0, 120.0), *rounds(2, 7, 0.5, cause="oom_at_request")])
    slow = fold([created(), *rounds(1, 0, 120.0), *rounds(2, 7, 230.0)])

    assert request_deadline_s(died, "long") == 1800.0
    assert request_deadline_s(slow, "long") == 690.0


def test_a_deadline_in_the_suite_is_kept():
    """What the user wrote is never cut short by what was learnt."""
    said = plan()
    scenarios = tuple(replace(s, deadline_s=1200.0) if s.name == "long" else s for s in said.suite.scenarios)
    said = replace(said, suite=replace(said.suite, scenarios=scenarios))
    state = fold([created(said), *rounds(1, 0, 1.0), *rounds(2, 7, 2.0)])

    assert request_deadline_s(state, "long") == 1200.0
