"""Two builds compared: the word each metric gets, and the order of the starts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import run_events
from imagebisect import abba
from imagebisect.comparison import (
    Asked,
    Side,
    Word,
    asked_by_default,
    compare,
    compare_all,
    default_worse,
    difference,
    fisher,
    holm,
    possible_rate,
)
from imagebisect.domain import Failure, Floor, Measurement, Phase, Worse
from imagebisect.errors import ExitCode
from imagebisect.outcome import Cause
from imagebisect.quantiles import student_quantile
from imagebisect.report import comparing
from imagebisect.scenario import (
    Command,
    Decode,
    Growth,
    IdleMemory,
    Ladder,
    Metric,
    MetricKind,
    OomProbe,
    Prefill,
    Startup,
)
from imagebisect.state import CompareSpec, HostBlamed, Measured, PullEnded, Resumed, RunFinished, fold

RATIO = Metric(name="c1.prefill_tok_s", unit="tok/s", kind=MetricKind.RATIO)
LEVEL = Metric(name="non_kv_memory_mib", unit="MiB", kind=MetricKind.LEVEL)
EVENT = Metric(name="survived", unit="", kind=MetricKind.EVENT)
SHARE = Metric(name="accuracy", unit="%", kind=MetricKind.LEVEL)


def asked(metric=RATIO, worse=Worse.LOWER, floor=None):
    """A metric with a floor of 10 %, or 256 MiB."""
    usual = Floor(value=256, relative=False) if metric is LEVEL else Floor(value=0.1, relative=True)
    return Asked(scenario="s", metric=metric, worse=worse, floor=floor or usual, target="t")


def word(a, b, **how):
    """The word for the values of two sides."""
    return compare(asked(**how), Side(values=tuple(a)), Side(values=tuple(b))).word


@pytest.mark.parametrize(
    ("p", "df", "t"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.975, 3, 3.18245),
        (0.975, 10, 2.22814),
        (0.995, 4, 4.60409),
        (0.8, 4, 0.940965),
        (0.975, 1e6, 1.95997),
        (0.975, 2.5, 3.57465),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_are_those_of_the_tables(p, df, t):
    """Intervals rest on the t that any textbook prints; fractions of a degree of freedom too."""
    assert student_quantile(p, df) == pytest.approx(t, rel=2e-4, abs=1e-9)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((1415, 1410, 1418), (755, 757, 752), Word.REPRODUCED),
        ((1415,), (755,), Word.CANNOT_TELL),  # nothing is known of the spread between starts
        ((1415, 755), (755,), Word.CANNOT_TELL),
        ((1415, 1410), (755, 757), Word.REPRODUCED),
        ((755, 757), (1415, 1410), Word.IMPROVED),
        ((1415, 1410), (1230, 1226), Word.CANNOT_TELL),  # 13 %, and two starts claim nothing below twice the floor
        ((1415, 1000), (999, 755), Word.CANNOT_TELL),
        ((755, 757, 752), (1415, 1410, 1418), Word.IMPROVED),
        ((1415, 1410, 1418), (1412, 1409, 1415), Word.NOT_REPRODUCED),
        ((1415, 1410, 1418), (1360, 1362, 1355), Word.NOT_REPRODUCED),  # 4 % slower for certain, and 10 % matters
        ((1415, 1410), (1412, 1409), Word.CANNOT_TELL),  # equal, but two starts a side exclude nothing
        ((1415,), (1412,), Word.CANNOT_TELL),
        ((1415, 1100, 1300), (1250, 1400, 1000), Word.CANNOT_TELL),
        ((1415, 1410, 1418), (1274, 1280, 1272), Word.CANNOT_TELL),  # 10 % is inside the interval, just not reached
        ((), (755,), Word.CANNOT_TELL),
        ((0.0, 1.0, 1.0), (1.0, 1.0, 1.0), Word.CANNOT_TELL),
    ],
)
def test_words_of_a_throughput(a, b, expected):
    """The word needs the interval and the floor; equality needs three starts a side."""
    assert word(a, b) is expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((2000, 2000, 2000), (3178, 3178, 3178), Word.REPRODUCED),
        ((2000,), (3178,), Word.CANNOT_TELL),
        ((2000, 2000), (3178, 3178), Word.REPRODUCED),
        ((2000, 2000), (2500, 2500), Word.CANNOT_TELL),
        ((3178, 3178), (2000, 2002), Word.IMPROVED),
        ((2000, 2002, 2000), (2000, 2000, 2002), Word.NOT_REPRODUCED),
        ((2000, 2002, 2000), (2128, 2128, 2130), Word.NOT_REPRODUCED),
        ((2000, 2300, 1900), (2100, 2400, 1800), Word.CANNOT_TELL),
    ],
)
def test_words_of_a_memory_level(a, b, expected):
    """Memory is compared in MiB, more of it being worse."""
    assert word(a, b, metric=LEVEL, worse=Worse.HIGHER) is expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((1, 1, 1), (0, 0, 0), Word.REPRODUCED),
        ((1, 1), (0, 0), Word.CANNOT_TELL),  # p = 1/6
        ((1,), (0,), Word.CANNOT_TELL),
        ((1, 1, 1), (0, 1, 1), Word.CANNOT_TELL),
        ((1,) * 8, (0,) * 4 + (1,) * 4, Word.REPRODUCED),  # Fisher: p = 0.038
        ((1, 1, 1), (1, 1, 1), Word.NOT_REPRODUCED),
        ((1, 1), (1, 1), Word.CANNOT_TELL),
        ((0, 0, 0), (1, 1, 1), Word.IMPROVED),
        ((0, 1, 1), (1, 1, 1), Word.NOT_REPRODUCED),
        ((0, 0, 0), (0, 0, 0), Word.CANNOT_TELL),
    ],
)
def test_words_of_a_survival(a, b, expected):
    """Deaths are counted start by start."""
    assert word(a, b, metric=EVENT, floor=Floor(value=0, relative=False)) is expected


def test_a_start_without_a_value_leaves_it_open():
    """However clear the others are, a skip on either side makes it `cannot tell`."""
    found = compare(asked(), Side(values=(1415.0, 1411.0)), Side(values=(755.0, 757.0), causes=("crash",)))

    assert found.word is Word.CANNOT_TELL
    assert found.change == pytest.approx(-0.465, abs=0.001)


@pytest.mark.parametrize(
    ("one", "of_one", "other", "of_other", "p"),
    [(0, 3, 3, 3, 0.05), (0, 4, 4, 4, 1 / 70), (0, 3, 0, 3, 1.0), (2, 4, 2, 4, 53 / 70), (0, 3, 2, 3, 0.2)],
)
def test_fishers_exact_test(one, of_one, other, of_other, p):
    """The one-sided p of a table of two by two."""
    assert fisher(one, of_one, other, of_other) == pytest.approx(p)


def test_how_often_it_may_still_die():
    """Three survivals exclude little: 63 %; the rule of three holds for many."""
    assert possible_rate(3) == pytest.approx(0.632, abs=0.001)
    assert possible_rate(300) == pytest.approx(3 / 300, rel=0.01)


SCENARIOS = (
    IdleMemory(name="idle", on="s"),
    Startup(name="boot", on="s"),
    Prefill(name="long", on="s", prompt_tokens=4096),
    Ladder(name="rungs", on="s", prompt_tokens=(100, 200)),
    Decode(name="decode", on="s"),
    Growth(name="growth", on="s"),
    OomProbe(name="oom", on="s", ladder=((8000, 1),)),
    Command(name="check", on="s", run=("true",)),
)


def test_which_way_is_worse_without_a_target():
    """The kind of a scenario decides: times, memory used and growth get worse upwards, all else downwards."""
    upwards = {
        f"{scenario.name}.{metric.name}"
        for scenario in SCENARIOS
        for metric in scenario.metrics()
        if default_worse(scenario, metric) is Worse.HIGHER
    }

    assert upwards == {
        "idle.non_kv_memory_mib",
        "boot.ready_s",
        "boot.load_s",
        "boot.compile_s",
        "boot.graph_s",
        "boot.init_engine_s",
        "decode.c1.output_token_s",
        "growth.growth_mib",
    }


@pytest.mark.parametrize("name", ["accuracy", "free_tok_s", "output_token_s"])
def test_nobody_guesses_which_way_a_users_number_is_worse(name):
    """Whatever it is called: without a target it has a direction only where the suite says so."""
    printed = Metric(name=name, unit="", kind=MetricKind.RATIO)
    command = Command(name="check", on="s", run=("true",), prints=printed)

    assert default_worse(command, printed) is None
    assert default_worse(replace(command, worse="lower"), printed) is Worse.LOWER


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0.80, 0.801, 0.799), (0.60, 0.601, 0.599), Word.DIFFERS),
        ((0.60, 0.601, 0.599), (0.80, 0.801, 0.799), Word.DIFFERS),
        ((0.80, 0.801, 0.799), (0.80, 0.802, 0.799), Word.NO_DIFFERENCE),
        ((0.80, 0.9, 0.7), (0.75, 0.95, 0.72), Word.CANNOT_TELL),
        ((0.80, 0.801), (0.60, 0.601), Word.DIFFERS),
        ((0.80, 0.801), (0.80, 0.801), Word.CANNOT_TELL),
        ((0.80,), (0.60,), Word.CANNOT_TELL),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), Word.NO_DIFFERENCE),
    ],
)
@pytest.mark.parametrize("metric", [SHARE, RATIO])
def test_a_number_without_a_direction_only_differs(metric, a, b, expected):
    """An accuracy from 0.80 to 0.60 never reads `improved`."""
    if metric is RATIO and 0.0 in a:
        expected = Word.CANNOT_TELL
    assert word(a, b, metric=metric, worse=None, floor=Floor(value=0.03, relative=True)) is expected


def test_nothing_against_nothing_is_not_reproduced():
    """A level of 0 in every start: a floor that is a share of it excludes nothing, but no value differs either."""
    share = Floor(value=0.1, relative=True)

    assert word((0, 0, 0), (0, 0, 0), metric=LEVEL, worse=Worse.HIGHER, floor=share) is Word.NOT_REPRODUCED
    assert word((0, 0, 0), (0, 1, 0), metric=LEVEL, worse=Worse.HIGHER, floor=share) is Word.CANNOT_TELL
    assert word((0, 0, 0), (90, 91, 90), metric=LEVEL, worse=Worse.HIGHER, floor=share) is Word.REPRODUCED


def test_floors_without_a_target():
    """3 % of a ratio or of a level in another unit, 64 MiB of memory."""
    idle = SCENARIOS[0]
    assert asked_by_default(SCENARIOS[2], RATIO).floor == Floor(value=0.03, relative=True)
    assert asked_by_default(idle, LEVEL).floor == Floor(value=64, relative=False)
    blocks = Metric(name="kv_pool_blocks", unit="", kind=MetricKind.LEVEL)
    assert asked_by_default(idle, blocks).floor == Floor(value=0.03, relative=True)


def test_holms_correction():
    """The smallest p counts as many times as there are, the next once less, and none falls below one before it."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx((0.06, 0.03, 0.06))
    assert holm([]) == ()


def test_of_many_metrics_without_a_target_one_that_stands_out_by_chance_is_no_claim():
    """What a target would call reproduced is not, among twenty others that nobody asked for; a clear change still is."""
    middling, clear = (Side(values=(950.0, 961.0, 970.0)), Side(values=(500.0, 503.0, 499.0)))
    steady = Side(values=(1000.0, 1010.0, 1001.0))
    plain = replace(asked(floor=Floor(value=0.03, relative=True)), target=None)
    quiet = [(plain, steady, Side(values=(1004.0, 999.0, 1008.0)))] * 18

    found = compare_all([(replace(plain, target="t"), steady, middling), (plain, steady, middling), *quiet])
    many = compare_all([(plain, steady, clear), *quiet])

    assert [one.word for one in found[:2]] == [Word.REPRODUCED, Word.CANNOT_TELL]
    assert found[1].by_chance
    assert found[1].interval == found[0].interval
    assert many[0].word is Word.REPRODUCED
    assert not many[0].by_chance


def test_two_equal_starts_a_side_have_the_interval_of_the_assumption():
    """An sd of 0.7 % with 3 of the 5 degrees of freedom, as two starts that agree may do so by chance."""
    found = difference([math.log(1000)] * 2, [math.log(1000)] * 2, prior=0.007, resolution=0.0005)

    assert found.high == pytest.approx(2.57058 * 0.007 * math.sqrt(3 / 5), rel=1e-4)
    assert found.detectable == pytest.approx((4.03214 + 0.91954) * 0.007 * math.sqrt(3 / 5), rel=1e-4)
    assert found.p == pytest.approx(1.0)


def test_one_start_a_side_has_numbers_and_no_interval():
    """An interval would rest on an assumption alone."""
    found = compare(asked(), Side(values=(1415.0,)), Side(values=(755.0,)))

    assert found.change == pytest.approx(-0.466, abs=0.001)
    assert (found.interval, found.detectable, found.p) == (None, None, None)


def test_three_starts_a_side_are_welchs_interval():
    """Against a worked example: means 3.0 and 3.0, variances 1 and 4, df = 2.94."""
    found = difference([2.0, 3.0, 4.0], [1.0, 3.0, 5.0], prior=9.0, resolution=0.0)

    assert found.high == pytest.approx(student_quantile(0.975, 50 / 17) * math.sqrt(5 / 3))


sides = st.lists(st.floats(min_value=500, max_value=2000), min_size=1, max_size=6)


@given(a=sides, b=sides, unit=st.sampled_from([0.001, 60.0]))
def test_the_unit_does_not_matter_to_a_ratio(a, b, unit):
    """Tokens per second or per minute: the same change, the same word."""
    plain = compare(asked(), Side(values=tuple(a)), Side(values=tuple(b)))
    scaled = compare(asked(), Side(values=tuple(v * unit for v in a)), Side(values=tuple(v * unit for v in b)))

    assert scaled.change == pytest.approx(plain.change, abs=1e-9)
    assert scaled.word is plain.word
    if plain.interval is not None:
        assert scaled.interval == pytest.approx(plain.interval, abs=1e-9)


@given(a=sides, b=sides)
def test_the_claim_never_leaves_its_evidence(a, b):
    """The estimate lies in its interval; a claim has the interval on its side; swapping the builds swaps it."""
    found = compare(asked(), Side(values=tuple(a)), Side(values=tuple(b)))
    back = compare(asked(), Side(values=tuple(b)), Side(values=tuple(a)))

    if min(len(a), len(b)) == 1:
        assert found.interval is None
        assert found.word is Word.CANNOT_TELL
        return
    low, high = found.interval
    assert low <= found.change <= high
    assert found.detectable > 0
    assert math.log1p(found.change) == pytest.approx(-math.log1p(back.change), abs=1e-9)
    if found.word is Word.REPRODUCED:
        assert high < 0
        assert found.change <= -0.1 + 1e-9
    if found.word is Word.NOT_REPRODUCED:
        assert min(len(a), len(b)) >= 3
        assert low > -0.1
    if back.word is Word.REPRODUCED:
        assert found.word is Word.IMPROVED


@given(side=sides, shift=st.floats(min_value=1.0, max_value=1.5))
def test_an_equal_pair_is_never_a_difference(side, shift):
    """A build against its own values is neither reproduced nor improved, whatever the floor."""
    tiny = asked(floor=Floor(value=1e-9, relative=True))
    same = Side(values=tuple(value * shift for value in side))

    assert compare(tiny, same, same).word in (Word.CANNOT_TELL, Word.NOT_REPRODUCED)


# --------------------------------------------------------------- the order of the starts


def created(starts=3):
    """The first event of a comparison of b0 and b1."""
    plan = run_events.plan(2)
    return replace(run_events.created(plan), purpose="compare", compare=CompareSpec(a=0, b=1, starts=starts))


def done(outcomes, starts=3):
    """The state after starts in their order: values, or causes."""
    events = [created(starts)]
    for number, outcome in enumerate(outcomes, start=1):
        probe = abba.next_start(fold(events))
        events += run_events.start(number, probe.build, outcome)
    return fold(events), events


def builds_of(state):
    """The builds in the order they were started."""
    return [start.intended.build for start in state.starts]


@pytest.mark.parametrize(("starts", "order"), [(1, "AB"), (2, "ABBA"), (3, "ABBAAB"), (4, "ABBAABBA")])
def test_starts_alternate_so_that_a_drift_falls_on_both(starts, order):
    """A B B A A B ..., as many of each."""
    assert abba.order(starts) == order
    state, _ = done([1000.0] * 2 * starts, starts)
    assert builds_of(state) == ["AB".index(side) for side in order]
    assert abba.next_start(state) is None


def test_a_start_cut_short_is_done_again_in_its_place():
    """Killed in the third start with its measurement done: the third start is next, and that measurement is dropped."""
    state, events = done([1000.0, 500.0])
    torn = run_events.start(3, 1, 999.0)[:3]

    state = fold([*events, *torn, Resumed(at="2026-12-01T00:00:00Z")])
    probe = abba.next_start(state)

    assert probe.build == 1
    assert probe.why.startswith("B, start 3 of 6")
    (one, *_), _ = abba.compared(state)
    assert one.b_side.values == (500.0,)


def test_transient_failures_and_starts_blamed_on_the_host_do_not_count():
    """A start that says nothing about the build keeps its place in the order."""
    state, events = done([1000.0, 500.0])
    transient = fold([*events, *run_events.start(3, 1, "daemon")])
    blamed = fold([*events, *run_events.start(3, 1, "crash"), HostBlamed(void_start_ids=("0003",), message="x")])

    assert [abba.next_start(s).why for s in (state, transient, blamed)] == ["B, start 3 of 6"] * 3


def test_a_build_that_does_not_know_a_flag_is_not_started_six_times():
    """What fails alike each time ends the server's starts; the metric stays open and says why."""
    state, _ = done([1000.0, "unknown_flag"])

    assert abba.next_start(state) is None
    assert abba.exit_code(replace(state, finished=RunFinished(at="", exit_code=3))) == (
        ExitCode.NOT_MEASURABLE,
        "not_measurable",
    )
    (one, *_), _ = abba.compared(state)
    assert one.b_side.causes == ("unknown_flag",)


def test_an_image_that_is_gone_ends_the_comparison():
    """A pull that fails for good leaves nothing to compare."""
    gone = PullEnded(build=1, failure=Failure(cause=Cause.PULL_FAILED, phase=Phase.PULL, message="404"))
    state, events = done([1000.0])

    state = fold([*events, gone])

    assert abba.next_start(state) is None
    assert abba.compared(state)[0][0].word is Word.CANNOT_TELL


def test_memory_that_runs_out_at_start_goes_on():
    """An OOM is what a comparison may be about: all its starts are done."""
    state, _ = done([1000.0, "oom_at_start", "oom_at_start"])

    assert abba.next_start(state).build == 0


def test_both_builds_failing_after_one_worked_is_the_hosts_fault():
    """Three failures in a row on both sides that are no build's own: the host is doubted, not the builds."""
    state, _ = done([1000.0, "crash", "crash"])
    assert abba.host_doubt(state) == ()  # only B: it may well be B
    both, events = done([1000.0, "crash", "crash", "crash"])

    assert abba.host_doubt(both) == ("0002", "0003", "0004")
    after = fold([*events, HostBlamed(void_start_ids=abba.host_doubt(both), message="x")])
    assert abba.host_doubt(after) == ()
    assert abba.next_start(after).why.startswith("B, start 2 of 6")


# ------------------------------------------------------------------------- the claim


def sentence(outcomes, starts=3):
    """The claim on the long prefill after these starts."""
    state, _ = done(outcomes, starts)
    return comparing.build(state)["comparison"]["metrics"][0]["sentence"]


def test_the_claim_reads_like_a_careful_persons():
    """The word, the change, its interval, the starts, in one line; their order is said once for all, not here."""
    text = sentence([1415.0, 755.0, 757.0, 1411.0, 1418.0, 752.0])

    assert text.startswith("long-prefill: reproduced, -46.7 %, 95 % interval -47.")
    assert text.endswith(", 3 starts a side")


def test_what_is_excluded_and_what_could_have_been_shown_is_said():
    """`not reproduced` names the floor and what it leaves open, `cannot tell` what the host could show."""
    same = sentence([1415.0, 1412.0, 1409.0, 1411.0, 1418.0, 1415.0])
    assert "a loss of 10 % is excluded, an effect that comes in only some starts (up to 63 % of them)" in same
    two = sentence([1415.0, 1412.0, 1409.0, 1411.0], starts=2)
    assert "cannot tell, -0.2 %, 95 % interval" in two
    assert "the smallest change these starts could show is 19.0 %, `not reproduced` needs 3 starts a side" in two
    assert sentence([1415.0, 755.0], starts=1) == (
        "long-prefill: cannot tell, -46.6 %, one start a side shows nothing of this host's spread between starts, "
        "1 start a side"
    )
    assert "1 start of B without a value (crash)" in sentence([1415.0, "crash"])


def said(metric, a, b, *, worse=Worse.LOWER, floor=None, target="t"):
    """The claim on a metric of which the starts gave these values."""
    question = Asked(
        scenario="s", metric=metric, worse=worse, floor=floor or Floor(value=0.03, relative=True), target=target
    )
    found = compare(question, Side(values=a), Side(values=b))
    state, _ = done([])
    state = replace(state, created=replace(state.created, plan=run_plan(metric)))
    entry = comparing._metric(state, found)
    return entry, comparing.sentence(entry, {"same_build": False})


def run_plan(metric):
    """A plan whose command `s` prints a metric."""
    plan = run_events.plan(2)
    return replace(
        plan, suite=replace(plan.suite, scenarios=(Command(name="s", on="s", run=("true",), prints=metric),))
    )


def test_percentages_differ_by_points():
    """From 0.80 % to 0.60 % is 0.2 points and a quarter; `-0.2 %` would say neither."""
    entry, text = said(SHARE, (0.80, 0.801, 0.799), (0.60, 0.601, 0.599))

    assert text.startswith("t: reproduced, -0.2 points (-25.0 %), 95 % interval -0.202 .. -0.198")
    assert comparing.floor(entry) == "3 % of A"
    assert comparing.floor(said(SHARE, (80.0,), (60.0,), floor=Floor(value=2, relative=False))[0]) == "2 points"


def test_a_value_of_nothing_has_no_ratio_and_the_report_says_whose():
    """Printed as a ratio, a 0 can be compared with nothing: the sentence names the side and the way out."""
    assert (
        "2 starts of B with a value of 0 or less, and those have no ratio (a `command` can say `compare: level`)"
        in said(RATIO, (10.0, 10.0, 10.0), (0.0, 0.0, 9.0))[1]
    )


def test_a_floor_that_is_a_share_of_nothing_is_named():
    """It can neither be reached nor excluded."""
    assert "a floor of 3 % is nothing where A is 0" in said(LEVEL, (0.0, 0.0, 0.0), (0.0, 1.0, 0.0))[1]


def test_survivals_are_worded_for_a_stranger():
    """Three survivals, two against two deaths: what would look the same, and how likely it is by chance."""
    assert "a build that dies in up to 63 % of its starts would look the same" in said(EVENT, (1.0,) * 3, (1.0,) * 3)[1]
    few = said(EVENT, (1.0, 1.0), (0.0, 0.0))[1]
    assert few.startswith("t: cannot tell, survived in 2 of 2 starts of A and 0 of 2 of B")
    assert "so many differ by chance with p = 0.17" in few


def test_an_aa_says_what_the_host_does_by_itself():
    """How many metrics moved although nothing changed, and which; two builds get no such line."""
    state, _ = done([1415.0, 1300.0, 1302.0, 1411.0, 1418.0, 1301.0])
    comparison = comparing.build(state)["comparison"]

    assert comparing.noise(comparison) == ""
    comparison["same_build"] = True
    assert comparing.noise(comparison) == (
        "A/A: 1 of 1 metrics moved (95 % interval without 0), which is this host's noise: long-prefill (-8.0 %)"
    )
    assert comparing.sentence({**comparison["metrics"][0], "word": "reproduced"}, comparison).endswith(
        "but both sides are the same build, so this is the host's noise, 3 starts a side"
    )


def checked(samples, failure=None):
    """The report's list of commands that did not pass, one start of B having had this."""
    measurement = Measurement(scenario="s", metrics={}, samples=samples, failure=failure)
    plan = run_plan(RATIO)
    first, *rest = [created(), *run_events.start(1, 0, 1.0, scenario="s"), *run_events.start(2, 1, 1.0, scenario="s")]
    events = [
        replace(event, measurement=measurement) if isinstance(event, Measured) and event.start_id == "0002" else event
        for event in rest
    ]
    plan = replace(plan, suite=replace(plan.suite, targets=()))
    return comparing.build(fold([replace(first, plan=plan), *events]))["comparison"]["commands"]


def test_why_a_command_failed_is_told():
    """Its exit code, the last line it printed, and the file with the rest; a success is not listed."""
    samples = {"exit_code": 1, "tail": "Traceback\nValueError: 3 wrong answers\n\n", "output": "s.output.log"}
    (one,) = checked(samples)
    assert one["why"] == "s: exit code 1; its last line: 'ValueError: 3 wrong answers'"
    assert (one["build"], one["starts"], one["outputs"]) == ("b1", ["0002"], ["starts/0002/s.output.log"])

    late = Failure(cause=Cause.COMMAND_FAILED, phase=Phase.REQUEST, message="s: it did not end within 600 s")
    assert [entry["why"] for entry in checked({"exit_code": -15}, late)] == ["s: it did not end within 600 s"]
    assert checked({"exit_code": 0, "tail": "1.0"}) == []
    assert checked({"exit_code": 3, "tail": ""})[0]["why"] == "s: exit code 3; it printed nothing"
