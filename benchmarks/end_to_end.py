"""Does the whole tool name the right build? `bisect run` on simulated builds: real processes, real HTTP, real clocks.

    python benchmarks/end_to_end.py                   # 20 worlds of 24 builds, a 10 % effect
    python benchmarks/end_to_end.py --aa              # the same build at both ends
    python benchmarks/end_to_end.py --others          # flaky OOM, two steps, break-fix-break, drift

A world follows from its seed; the clock's own noise does not. Exit code 1 when a goal is missed, 2 when a run did not end.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from imagebisect import worlds
from imagebisect.domain import Status
from imagebisect.ledger import RunFolder
from imagebisect.search import results
from imagebisect.worlds import World

NEEDED_EXACT = 0.95
"""Share of the worlds with one step whose step must be named exactly."""

AA_STARTS = 8
"""Starts in which equal ends must be found to be equal."""

LONGEST_S = 400.0
"""Seconds after which a run is given up."""

TOKENS = 16000
REP_S = 0.4
"""Seconds of a rep at the good speed: long beside the host's own jitter, short beside a lunch."""

HOST = {
    "boot_s": 0.2,
    "prefill_tok_s": TOKENS / REP_S,
    "first_request_penalty_s": 0.02,
    "noise": 0.005,
    "start_noise": 0.005,
}
"""What all builds have: half a percent in a start and between starts."""

OUTLIERS = {"slow_start_share": 0.05, "slow_start_factor": 1.4, "slow_rep_share": 0.05, "slow_rep_factor": 1.6}

SUITE = """\
schema: 1
base:
  gpus: [0]
  args: [--max-model-len=32768, --max-num-seqs=4, --max-num-batched-tokens=4096, --kv-cache-memory-bytes=1073741824]
deadlines: {boot: 10s, request: 10s, stop: 10s}
servers: {plain: {}}
scenarios:
"""

SPEED = f"""\
  long: {{on: plain, kind: prefill, prompt_tokens: {TOKENS}, reps: 3}}
targets:
  it: {{metric: long.c1.prefill_tok_s, worse: lower, floor: 5%, role: bisect}}
"""

SURVIVAL = """\
  oom: {on: plain, kind: oom-probe, ladder: [[2000, 1]]}
targets:
  it: {metric: oom.survived, worse: lower, role: bisect}
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One world to search: what is true, what the host adds (keys of a profile), and how it is seeded."""

    row: str
    seed: int
    world: World
    host: Mapping[str, object] = field(default_factory=dict)
    same_ends: bool = False

    @property
    def count(self) -> int:
        """How many builds there are."""
        return len(self.world.levels or self.world.deaths)

    @property
    def falls(self) -> list[int]:
        """Builds that are worse than the one before them."""
        values = self.world.deaths or self.world.levels
        return [build for build in self.world.steps if values[build] > values[build - 1]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run said about a case. `kind`: exact, loose, wrong, none (no claim) or broken (the run did not end).

    `end` is the status with its reason, `bound` 2 + log2(N - 1) starts, `holds` whether the suspects hold a step.
    """

    row: str
    seed: int
    kind: str
    end: str
    exit_code: int
    said: tuple[str, str] | None
    truth: tuple[tuple[str, str], ...]
    confidence: float | None
    holds: bool
    false_steps: int
    missed_steps: int
    starts: int
    bound: float
    reps: int
    seconds: float
    sentence: str

    @property
    def wrong(self) -> bool:
        """Whether something is claimed that is not so."""
        return self.kind == "wrong" or self.false_steps > 0


# ------------------------------------------------------------------------------- worlds


def one_step(seed: int, count: int = 24) -> Case:
    """A 10 % effect at a random build, a fifth of the builds untestable, slow starts and slow reps."""
    dice = random.Random(f"{seed}/step/{count}")
    world = worlds.one_step(count, 0.1, dice, skip=0.2)
    return Case(row="step", seed=seed, world=world, host=OUTLIERS)


def same_ends(seed: int, count: int = 12) -> Case:
    """Nothing but ordinary noise, and one build at both ends."""
    return Case(row="aa", seed=seed, world=World(levels=(0.0,) * count), same_ends=True)


def same_ends_odd(seed: int) -> Case:
    """The same with slow starts and slow reps."""
    return replace(same_ends(seed), row="aa-odd", host=OUTLIERS)


def flaky(seed: int, count: int = 24) -> Case:
    """From a random build on, 5 of 16 starts run out of memory."""
    dice = random.Random(f"{seed}/flaky")
    first = dice.randrange(1, count)
    deaths = tuple(0.0 if build < first else 5 / 16 for build in range(count))
    return Case(row="flaky", seed=seed, world=World(levels=(), deaths=deaths, skips=worlds.skips_of(count, 0.1, dice)))


def two_steps(seed: int, count: int = 24) -> Case:
    """10 % at one build and 15 % more at a later one."""
    dice = random.Random(f"{seed}/two")
    one, two = sorted(dice.sample(range(1, count), 2))
    drops = math.log1p(0.1), math.log1p(0.15)
    levels = tuple(0.0 if build < one else drops[0] if build < two else sum(drops) for build in range(count))
    return Case(row="two-steps", seed=seed, world=World(levels=levels), host=OUTLIERS)


def break_fix_break(seed: int, count: int = 24) -> Case:
    """20 % slower, well again, slower again."""
    dice = random.Random(f"{seed}/broken")
    one, two, three = sorted(dice.sample(range(1, count), 3))
    drop = math.log1p(0.2)
    levels = tuple(drop if one <= build < two or build >= three else 0.0 for build in range(count))
    return Case(row="break-fix-break", seed=seed, world=World(levels=levels), host=OUTLIERS)


def drifting(seed: int, count: int = 24) -> Case:
    """Each start half a percent slower than the one before, and a 10 % effect."""
    dice = random.Random(f"{seed}/drift")
    return Case(row="drift", seed=seed, world=worlds.one_step(count, 0.1, dice), host={"start_drift": 0.005})


ROWS: dict[str, Callable[[int], Case]] = {
    "step": one_step,
    "aa": same_ends,
    "aa-odd": same_ends_odd,
    "flaky": flaky,
    "two-steps": two_steps,
    "break-fix-break": break_fix_break,
    "drift": drifting,
}


def profiles(case: Case) -> list[dict[str, object]]:
    """What each build is like."""
    found = []
    for build in range(case.count):
        profile: dict[str, object] = {**HOST, **case.host, "version": f"0.26.1rc1.dev{1100 + build}"}
        profile["seed"] = random.Random(f"{case.row}/{case.seed}/{build}").randrange(1 << 31)
        if case.world.levels:
            profile["short_slowdown"] = math.exp(case.world.levels[build])
        elif case.world.deaths[build]:
            profile |= {"oom_at_request_from_tokens": 0, "oom_from_batched_tokens": 0}
            profile["oom_probability"] = case.world.deaths[build]
        if build in case.world.skips:
            odd = build % 2
            profile |= {"unknown_flags": ["--max-num-seqs"]} if odd else {"import_error": "libcudart.so.13: not found"}
        found.append(profile)
    return found


def write(case: Case, folder: Path) -> None:
    """The builds file and the suite of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["schema: 1", "builds:"]
    for build, profile in enumerate(profiles(case)):
        if case.same_ends and build == case.count - 1:
            lines.append(f"  - {{name: {_name(build)}, same_as: {_name(0)}}}")
        else:
            lines.append(f"  - {{name: {_name(build)}, simulated: {json.dumps(profile)}}}")
    (folder / "images.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "suite.yaml").write_text(SUITE + (SPEED if case.world.levels else SURVIVAL), encoding="utf-8")


def _name(build: int) -> str:
    return f"b{build:02d}"


# ------------------------------------------------------------------------------ running


def run(case: Case, folder: Path) -> Outcome:
    """Search a case by a `bisect run` of its own; its ledger is in `folder`/results/run afterwards."""
    write(case, folder)
    command = [sys.executable, "-m", "imagebisect", "run", "--name", "run", "--json", "--quiet"]
    command += ["--images", "images.yaml", "--suite", "suite.yaml"]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return _broken(case, -1, time.monotonic() - began, f"not over after {LONGEST_S:.0f} s")
    seconds = time.monotonic() - began
    if done.returncode not in {0, 10, 11, 12, 13}:
        return _broken(case, done.returncode, seconds, done.stderr.strip()[-300:])
    return judge(case, folder / "results" / "run", exit_code=done.returncode, seconds=seconds)


def _broken(case: Case, exit_code: int, seconds: float, why: str) -> Outcome:
    return Outcome(
        row=case.row, seed=case.seed, kind="broken", end="broken", exit_code=exit_code, said=None, truth=(),
        confidence=None, holds=False, false_steps=0, missed_steps=0, starts=0, bound=_bound(case), reps=0,
        seconds=seconds, sentence=why,
    )  # fmt: skip


def _bound(case: Case) -> float:
    return 2 + math.log2(case.count - 1)


def judge(case: Case, ledger: Path, *, exit_code: int, seconds: float) -> Outcome:
    """What a finished run said, against what is true."""
    state = RunFolder(ledger).load()
    (result,) = results(state)
    claims = result.status is Status.CONFIRMED or (
        result.status is Status.NARROWED and result.reason in {"untestable", "off_line"}
    )
    truth = [worlds.tightest(case.world, build) for build in case.falls]
    pair = None
    if result.last_good is not None and result.first_bad is not None and result.status in {*_LOCATED}:
        pair = (result.last_good, result.first_bad)
    real = bool(pair) and any(pair[0] < build <= pair[1] for build in case.falls)
    kind = "none"
    if claims:
        kind = "wrong" if not real else "exact" if pair in truth else "loose"
    listed = [(step.last, step.first) for step in result.steps] if claims else []
    return Outcome(
        row=case.row,
        seed=case.seed,
        kind=kind,
        end=f"{result.status}:{result.reason}" if result.reason else str(result.status),
        exit_code=exit_code,
        said=(_name(pair[0]), _name(pair[1])) if pair else None,
        truth=tuple((_name(last), _name(first)) for last, first in truth),
        confidence=result.confidence,
        holds=real,
        false_steps=sum(not any(last < build <= first for build in case.world.steps) for last, first in listed),
        missed_steps=sum(not any(last < build <= first for last, first in listed) for build in case.world.steps),
        starts=len(state.starts),
        bound=_bound(case),
        reps=sum(
            not rep.warmup for start in state.starts for measurement in start.measurements for rep in measurement.reps
        ),
        seconds=round(seconds, 1),
        sentence=result.sentence,
    )


_LOCATED = (Status.CONFIRMED, Status.NARROWED, Status.INCONSISTENT)


# -------------------------------------------------------------------------------- rows


def summary(row: str, found: list[Outcome]) -> dict[str, Any]:
    """The figures of a row, and whether its goal is met; rows without a goal must only claim nothing wrong."""
    count = len(found)
    kinds = {kind: sum(one.kind == kind for one in found) for kind in ("exact", "loose", "wrong", "none", "broken")}
    ends: dict[str, int] = {}
    for one in found:
        ends[one.end] = ends.get(one.end, 0) + 1
    wrong = sum(one.wrong for one in found)
    if row == "aa":
        goal = f"all not_reproduced, exit code 0, within {AA_STARTS} starts"
        met = all(one.end == "not_reproduced" and one.exit_code == 0 and one.starts <= AA_STARTS for one in found)
    elif row == "step":
        needed = count - math.floor((1 - NEEDED_EXACT) * count + 1e-9)
        goal = f"none wrong, at least {needed} of {count} exact"
        met = wrong == 0 and kinds["exact"] >= needed
    else:
        goal, met = "none wrong", wrong == 0
    return {
        "row": row,
        "worlds": count,
        **kinds,
        "false_steps": sum(one.false_steps > 0 for one in found),
        "missed_steps": sum(one.missed_steps > 0 for one in found),
        "no_claim_without_step": sum(one.kind == "none" and one.said is not None and not one.holds for one in found),
        "ends": dict(sorted(ends.items())),
        "starts": round(sum(one.starts for one in found) / count, 1),
        "most_starts": max(one.starts for one in found),
        "starts_over_bound": round(sum(one.starts for one in found) / sum(one.bound for one in found), 2),
        "reps": round(sum(one.reps for one in found) / count, 1),
        "seconds": round(sum(one.seconds for one in found) / count, 1),
        "goal": goal,
        "met": met and not kinds["broken"],
    }


def _line(one: Outcome) -> str:
    pair = "..".join(one.said) if one.said else "-"
    truth = ", ".join("..".join(pair) for pair in one.truth) or "-"
    sure = f"{one.confidence:.4f}" if one.confidence is not None else "-"
    odd = f"  FALSE STEPS {one.false_steps}" if one.false_steps else ""
    text = f"{one.row:16}{one.seed:4}  {one.kind:7}{one.end:24}{pair:10} of {truth:22}{sure:8}"
    text += f"{one.starts:4} starts {one.reps:4} reps {one.seconds:6.1f} s{odd}"
    return text if one.kind in {"exact", "loose"} and not odd else f"{text}\n    {one.sentence}"


def search_all(cases: list[Case], folder: Path, *, jobs: int, keep: bool, say: Callable[[str], None]) -> list[Outcome]:
    """Run all cases, so many at a time; their folders are removed unless they are to be kept."""

    def one(case: Case) -> Outcome:
        place = folder / f"{case.row}-{case.seed:03d}"
        found = run(case, place)
        if not keep:
            shutil.rmtree(place, ignore_errors=True)
        say(_line(found))
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, cases))


def main() -> int:
    """Run the rows and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="worlds of each row (20)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--aa", action="store_true", help="the same build at both ends, without and with odd starts")
    parser.add_argument("--others", action="store_true", help="the rows that this was not built for")
    parser.add_argument("--row", action="append", choices=ROWS, default=[], help="this row; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2); more than cores are noise")
    parser.add_argument("--keep", type=Path, help="an empty folder for the runs, which are removed otherwise")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    asked = parser.parse_args()
    if asked.seeds < 1 or asked.jobs < 1:
        parser.error("--seeds and --jobs are at least 1")
    if asked.keep and asked.keep.exists() and any(asked.keep.iterdir()):
        parser.error(f"{asked.keep} is not empty")
    rows = [*asked.row, *(("aa", "aa-odd") if asked.aa else ()), *(tuple(ROWS)[3:] if asked.others else ())] or ["step"]
    cases = [ROWS[row](seed) for row in dict.fromkeys(rows) for seed in range(asked.first, asked.first + asked.seeds)]
    began = time.monotonic()
    say: Callable[[str], None] = (lambda _: None) if asked.json else (lambda text: print(text, flush=True))
    with tempfile.TemporaryDirectory(prefix="bisect-end-to-end-") as temporary:
        found = search_all(cases, asked.keep or Path(temporary), jobs=asked.jobs, keep=bool(asked.keep), say=say)
    table = [summary(row, [one for one in found if one.row == row]) for row in dict.fromkeys(rows)]
    broken = any(one.kind == "broken" for one in found)
    code = 2 if broken else 0 if all(row["met"] for row in table) else 1
    seconds = round(time.monotonic() - began, 1)
    if asked.json:
        reason = {0: "met", 1: "missed", 2: "broken"}[code]
        runs = [{**asdict(one), "wrong": one.wrong} for one in found]
        print(
            json.dumps(
                {"schema": 1, "exit_code": code, "reason": reason, "rows": table, "runs": runs, "seconds": seconds},
                indent=1,
            )
        )
        return code
    for row in table:
        shown = " ".join(f"{key}={value}" for key, value in row.items() if key not in {"row", "goal", "met"})
        print(f"\n{row['row']}: {shown}\n  goal: {row['goal']}: {'met' if row['met'] else 'MISSED'}")
    print(f"{seconds:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
