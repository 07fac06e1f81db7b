"""Variants of servers beside the servers themselves: what each of them moves on one build. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from imagebisect.domain import Suite
from imagebisect.scenario import VARIANT_MARK, Metric, MetricKind


def spread(
    suite: Suite, servers: tuple[str, ...], names: Collection[str] | None = None
) -> tuple[Suite, tuple[str, ...]]:
    """The suite with nothing but these servers and their variants as servers of their own, and the order to start them.

    A variant does every scenario of the server it is of; the copies are called `<scenario>@<variant>`.
    `names` are the variants wanted; None for all of these servers.
    """
    chosen = [v for v in suite.variants if v.of in servers and (names is None or v.server.name in names)]
    copies = [
        replace(scenario, name=f"{scenario.name}{VARIANT_MARK}{variant.server.name}", on=variant.server.name)
        for variant in chosen
        for scenario in suite.scenarios
        if scenario.on == variant.of
    ]
    order: list[str] = []
    for name in servers:
        order += [name, *(variant.server.name for variant in chosen if variant.of == name)]
    kept = tuple(scenario for scenario in suite.scenarios if scenario.on in servers)
    made = replace(
        suite,
        servers=(*(s for s in suite.servers if s.name in servers), *(variant.server for variant in chosen)),
        scenarios=(*kept, *copies),
        targets=tuple(target for target in suite.targets if target.scenario in {s.name for s in kept}),
        variants=tuple(chosen),
    )
    return made, tuple(order)


def _metrics(report: Mapping[str, Any], server: str) -> dict[str, float]:
    """`scenario.metric` of the last start of a server, by the scenario's own name."""
    found: dict[str, float] = {}
    for build in report["builds"]:
        for start in build["starts"]:
            if start["server"] != server:
                continue
            for measurement in start["measurements"]:
                scenario = measurement["scenario"].partition(VARIANT_MARK)[0]
                found |= {f"{scenario}.{name}": value for name, value in measurement["metrics"].items()}
    return found


def _failures(report: Mapping[str, Any], server: str) -> list[tuple[str, str]]:
    """(cause, what it was in a sentence) of all that failed in the last start of a server."""
    starts = [start for build in report["builds"] for start in build["starts"] if start["server"] == server]
    if not starts:
        return []
    last = starts[-1]
    found, told = [], []
    for measurement in last["measurements"]:
        failure = measurement["failure"]
        if failure is None:
            continue
        scenario = measurement["scenario"].partition(VARIANT_MARK)[0]
        how = "did not survive" if "survived" in measurement["metrics"] else "could not be measured"
        found.append((failure["cause"], f"{scenario} {how}: {failure['cause']}: {failure['message']}"))
        told.append(failure["message"])
    if last["cause"] is not None and last["message"] not in told:
        found.insert(0, (last["cause"], f"could not be measured: {last['cause']}: {last['message']}"))
    return found


def _rows(
    plain: Mapping[str, float], changed: Mapping[str, float], metrics: Mapping[str, Metric]
) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys((*plain, *changed)):
        was, now = plain.get(name), changed.get(name)
        metric = metrics.get(name)
        row: dict[str, Any] = {
            "metric": name,
            "unit": metric.unit if metric else "",
            "value": was,
            "with_variant": now,
            "change": None,
            "change_percent": None,
        }
        if was is not None and now is not None:
            row["change"] = now - was
            if was and metric is not None and metric.kind is MetricKind.RATIO:
                row["change_percent"] = 100 * (now / was - 1)
        yield row


def moved(report: Mapping[str, Any], suite: Suite) -> list[dict[str, Any]]:
    """For each variant that was started: what it changes, why it failed if it did, and every metric beside the server's."""
    metrics = {
        f"{scenario.name}.{metric.name}": metric for scenario in suite.scenarios for metric in scenario.metrics()
    }
    started = {start["server"] for build in report["builds"] for start in build["starts"]}
    found = []
    for variant in suite.variants:
        name = variant.server.name
        if name not in started:
            continue
        failures = _failures(report, name)
        found.append(
            {
                "name": name,
                "of": variant.of,
                "changes": list(variant.changes),
                "failures": [cause for cause, _ in failures],
                "messages": [message for _, message in failures],
                "metrics": list(_rows(_metrics(report, variant.of), _metrics(report, name), metrics)),
            }
        )
    return found
