"""The report as one JSON value (design: section 5); every renderer reads this and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from imagebisect import budget, headroom, variants
from imagebisect.domain import (
    Build,
    Failure,
    ImageSource,
    Measurement,
    Plan,
    SimulatedSource,
    Target,
    TargetResult,
    VenvSource,
    Verdict,
)
from imagebisect.evidence import observe, question
from imagebisect.outcome import Cause
from imagebisect.report import probing
from imagebisect.report.scrub import Scrubber
from imagebisect.scenario import MetricKind
from imagebisect.search import results
from imagebisect.session import exit_code
from imagebisect.state import RunState, StartRecord

SCHEMA = 1

_measurement = TypeAdapter(Measurement)


def _source(build: Build) -> dict[str, Any]:
    match build.source:
        case ImageSource() as image:
            return {"image": f"{image.repository}@{image.digest or image.digest_prefix or image.tag}"}
        case VenvSource() as venv:
            return {"venv": venv.path}
        case SimulatedSource():
            return {"simulated": True}


def _build_reference(state: RunState, index: int | None) -> dict[str, Any] | None:
    if index is None:
        return None
    build = state.plan.builds[index]
    identity = state.identities.get(index)
    digest = build.source.digest if isinstance(build.source, ImageSource) else None
    return {
        "name": build.name,
        "index": index,
        "digest": digest or (identity.digest if identity else None),
        "index_digest": identity.index_digest if identity else None,
        "config_digest": identity.id if identity else None,
        "revision": (identity.revision if identity else None) or build.commit,
        "version": _version(state, index),
        "line": build.line,
    }


def _version(state: RunState, index: int) -> str | None:
    for start in state.starts:
        if start.intended.build == index and isinstance(start.facts.get("version"), str):
            return str(start.facts["version"])
    identity = state.identities.get(index)
    return identity.version if identity else None


def _headroom(plan: Plan, start: StartRecord, failure: Failure | None) -> str | None:
    """What a full batch needs for a moment against what was free, for models with a linear-attention layer."""
    server = plan.suite.server(start.intended.server)
    model = plan.suite.model
    found = headroom.buffer(model.linear_attention if model else None, server, start.facts)
    idle = [m.metrics["free_idle_mib"] for m in start.measurements if "free_idle_mib" in m.metrics]
    asked = failure.details.get("asked_mib") if failure else None
    return headroom.in_report(
        found, free_idle_mib=idle[0] if idle else None, asked_mib=asked if isinstance(asked, float) else None
    )


def _start(plan: Plan, start: StartRecord) -> dict[str, Any]:
    failure = start.failure or next((m.failure for m in start.measurements if m.failure is not None), None)
    return {
        "id": start.intended.start_id,
        "server": start.intended.server,
        "purpose": start.intended.purpose,
        "why": start.intended.why,
        "scenarios": list(start.intended.scenarios),
        "outcome": "void" if start.void else start.outcome or "running",
        "cause": failure.cause if failure else None,
        "message": failure.message if failure else None,
        "masked_by": failure.masked_by if failure else None,
        "details": dict(failure.details) if failure else {},
        "headroom": _headroom(plan, start, failure),
        "boot_s": start.boot_s,
        "seconds": start.seconds,
        "facts": dict(start.facts),
        "command": list(start.intended.rendered.argv),
        "canonical_sha256": start.intended.rendered.canonical_sha256,
        "measurements": [_measurement.dump_python(m, mode="json") for m in start.measurements],
    }


def probed(plan: Plan, found: TargetResult) -> tuple[int, int, int]:
    """(builds with a verdict, builds in range, longest stretch without one) of one target."""
    oldest, newest = sorted((plan.good, plan.bad))
    verdicts = {summary.build for summary in found.builds if summary.values}
    verdicts |= {plan.good, plan.bad}
    longest = stretch = 0
    for build in range(oldest, newest + 1):
        stretch = 0 if build in verdicts else stretch + 1
        longest = max(longest, stretch)
    return len([b for b in verdicts if oldest <= b <= newest]), newest - oldest + 1, longest


def _fresh_starts(state: RunState, target: Target, found: TargetResult) -> dict[str, int] | None:
    """How many starts of each side of a target's pair were made to prove it; None where there is no pair."""
    if found.last_good is None or found.first_bad is None:
        return None
    good, bad = found.last_good, found.first_bad
    counts = {good: 0, bad: 0}
    for start in state.starts:
        pair = start.intended.confirms.get(target.name)
        build = start.intended.build
        if pair is not None and set(pair) == {good, bad} and build in counts:
            seen = observe(start, target)
            counts[build] += seen is not None and seen.value is not None
    return {"good": counts[good], "bad": counts[bad]}


def _sides(state: RunState, found: TargetResult) -> dict[str, Any]:
    """The two builds of a target's step, under the names that say which of them is the older one."""
    good, bad = _build_reference(state, found.last_good), _build_reference(state, found.first_bad)
    fix = found.find == "fix"
    return {
        "find": found.find,
        "last_good": None if fix else good,
        "first_bad": None if fix else bad,
        "last_bad": bad if fix else None,
        "first_good": good if fix else None,
    }


def _target(state: RunState, target: Target, found: TargetResult) -> dict[str, Any]:
    names = [build.name for build in state.plan.builds]
    seen, count, longest = probed(state.plan, found)
    oldest, newest = sorted((state.plan.good, state.plan.bad))
    untested = [s for s in found.builds if s.verdict is Verdict.SKIP and oldest <= s.build <= newest]
    low, high = found.interval_percent or (None, None)
    return {
        "name": target.name,
        "role": target.role.value,
        "status": found.status.value if found.status else None,
        "reason": found.reason,
        "confidence": found.confidence,
        "sentence": found.sentence,
        "metric": target.metric_path,
        "kind": target.metric.kind.value,
        "unit": target.metric.unit,
        "worse": target.worse.value,
        "floor": target.floor.value,
        "floor_relative": target.floor.relative,
        "server": state.plan.suite.server_of(target),
        "good_value": found.good_value,
        "bad_value": found.bad_value,
        "change_percent": found.change_percent,
        "change_low_percent": low,
        "change_high_percent": high,
        "spread_percent": found.spread_percent,
        "fresh_starts": _fresh_starts(state, target, found),
        "good_rate": found.good_rate,
        "bad_rate": found.bad_rate,
        "anchors": {
            "good": {"name": names[state.plan.good], "value": found.anchor_good},
            "bad": {"name": names[state.plan.bad], "value": found.anchor_bad},
        },
        "threshold": found.threshold,
        **_sides(state, found),
        "suspects": [_build_reference(state, build) for build in found.suspects],
        "untestable": [{"name": names[s.build], "causes": list(s.causes)} for s in untested],
        "probed": seen,
        "in_range": count,
        "longest_unprobed": longest,
        "steps": [
            {
                "last": names[step.last],
                "first": names[step.first],
                "before": step.before.value,
                "after": step.after.value,
                "suspects": [names[build] for build in step.suspects],
                "change_percent": step.change_percent,
            }
            for step in found.steps
        ],
        "marked": [names[s.build] for s in found.builds if s.marked],
        "values": {names[s.build]: list(s.values) for s in found.builds if s.values},
    }


def _build(state: RunState, index: int, found: tuple[TargetResult, ...]) -> dict[str, Any]:
    build = state.plan.builds[index]
    reference = _build_reference(state, index)
    assert reference is not None
    pull = state.pull_failures.get(index)
    return {
        **reference,
        **_source(build),
        "same_as": build.same_as,
        "rewrites": [{"from": r.from_arg, "to": r.to_arg, "why": r.why} for r in build.rewrites],
        "overrides": {"env": dict(build.overrides.env), "args": list(build.overrides.args)}
        if build.overrides
        else None,
        "pull_failure": pull.message if pull else None,
        "starts": [_start(state.plan, start) for start in state.starts if start.intended.build == index],
        "verdicts": {result.target: _verdict(state.plan, result, index) for result in found},
    }


def _verdict(plan: Plan, result: TargetResult, index: int) -> str | None:
    """The verdict that a reader of the table expects: an anchor's is its role once the ends are told apart."""
    summary = result.builds[index]
    if summary.marked:
        return summary.verdict.value
    if not summary.values and not summary.causes:
        return None
    if result.threshold is None and result.first_bad is None:
        return Verdict.SKIP.value if summary.verdict is Verdict.SKIP else Verdict.UNCLEAR.value
    if summary.values and index == plan.good:
        return Verdict.GOOD.value
    if summary.values and index == plan.bad:
        return Verdict.BAD.value
    return summary.verdict.value


def _spoiled(measurement: Measurement) -> int:
    """Timed reps that instrument evidence spoiled; those of a server that died are failures, not invalid."""
    if measurement.failure is not None and measurement.failure.cause != Cause.INVALID_MEASUREMENT:
        return 0
    return sum(rep.invalid is not None and not rep.warmup for rep in measurement.reps)


def _host(host: Mapping[str, Any]) -> dict[str, Any]:
    """Hardware and versions; serial numbers of cards stay in the ledger."""
    kept = dict(host)
    if "gpus" in kept:
        kept["gpus"] = [{key: value for key, value in card.items() if key != "uuid"} for card in kept["gpus"]]
    return kept


def _suite(plan: Plan) -> dict[str, Any]:
    return {
        "name": plan.suite.name,
        "seed": plan.suite.seed,
        "model": (plan.suite.model.repo or plan.suite.model.path) if plan.suite.model else None,
        "servers": {s.name: {"args": list(s.args), "env": dict(s.env), "gpus": s.gpus} for s in plan.suite.servers},
        "scenarios": {
            s.name: {"kind": s.kind, "on": s.on, "units": {metric.name: metric.unit for metric in s.metrics()}}
            for s in plan.suite.scenarios
        },
    }


def _search(state: RunState) -> dict[str, Any]:
    """How the search was done, and what it was allowed to cost and did."""
    ask, used, given = question(state), budget.used(state), state.budget
    started = {start.intended.build for start in state.starts}
    return {
        "find": ask.find,
        "scan": [
            {"name": ask.names[build], "started": ask.plan_index(build) in started}
            for build in sorted(ask.scan, key=ask.plan_index)
        ],
        "budget": {
            "given": {"starts": given.starts, "hours": given.hours, "gpu_hours": given.gpu_hours},
            "used": {"starts": used.starts, "hours": used.hours, "gpu_hours": used.gpu_hours},
            "spent": budget.spent(state),
            "words": budget.words(given),
        },
    }


def scrubber_of(plan: Plan) -> Scrubber:
    """What takes secrets and personal names out of whatever is said about a run."""
    pass_env = {name for server in plan.suite.servers for name in server.pass_env}
    written: dict[str, str] = {}
    for env in (*(s.env for s in plan.suite.servers), *(b.overrides.env for b in plan.builds if b.overrides)):
        written |= env
    places = {sys.prefix: "<env>"}
    if plan.suite.model is not None:
        places[plan.suite.model.path] = "<model>"
    return Scrubber(pass_env, written=written, places=places)


def build_report(state: RunState) -> dict[str, Any]:
    """The whole report of a run as it stands, scrubbed, JSON-ready."""
    found = results(state)
    code, reason = exit_code(state)
    plan = state.plan
    by_name = {result.target: result for result in found}
    judged = state.created.purpose != "probe"
    builds = [_build(state, index, found if judged else ()) for index in range(len(plan.builds))]
    if not judged:  # the other builds of the file were never asked about
        builds = [build for build in builds if build["starts"] or build["pull_failure"]]
    over = [start for start in state.starts if start.outcome is not None]
    reps = [rep for start in over for measurement in start.measurements for rep in measurement.reps]
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "exit_code": int(code),
        "reason": reason,
        "simulated": any(isinstance(build.source, SimulatedSource) for build in plan.builds),
        "run": {
            "id": state.created.run_id,
            "suite": _suite(plan),
            "started": state.created.started,
            "purpose": state.created.purpose,
            "finished": state.finished.at if state.finished else None,
            "stopped": f"{state.stopped.at}: {state.stopped.message}" if state.stopped and not state.finished else None,
            "tool_version": state.created.tool_version,
            "model_fingerprint": state.created.model_fingerprint,
            "host": _host(state.created.host),
            "deltas": list(plan.suite.deltas),
            "starts": len(over),
            "reps": sum(not rep.warmup for rep in reps),
            "warmup_reps": sum(rep.warmup for rep in reps),
            "invalid_reps": sum(_spoiled(measurement) for start in over for measurement in start.measurements),
            "images": len({state.identities[b].id for b in state.identities}),
            "builds_started": len({start.intended.build for start in over}),
            "pulled_bytes": sum(identity.pulled_bytes for identity in state.identities.values()),
            "start_seconds": sum(start.seconds for start in over),
            "resumed": len(state.resumed),
            "good": plan.builds[plan.good].name,
            "bad": plan.builds[plan.bad].name,
            "search": _search(state) if state.created.purpose == "search" else None,
        },
        "targets": [_target(state, t, by_name[t.name]) for t in plan.suite.targets] if judged else [],
        "builds": builds,
    }
    report["variants"] = variants.moved(report, plan.suite)
    if not judged:
        code, reason = probing.answer(state, report)
        report["exit_code"], report["reason"] = int(code), reason
    scrubbed: dict[str, Any] = scrubber_of(plan).value(report)
    return scrubbed


def is_event(entry: dict[str, Any]) -> bool:
    """Whether a target of the report is an event (it has rates instead of values)."""
    return bool(entry["kind"] == MetricKind.EVENT.value)
