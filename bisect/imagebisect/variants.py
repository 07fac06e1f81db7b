"""Variants of servers beside the servers themselves: what each of them moves on one build. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from imagebisect.domain import Suite
from imagebisect.scenario import VARIANT_MARK, MetricKind


def spread(suite: Suite, servers: tuple[str, ...]) -> tuple[Suite, tuple[str, ...]]:
    """The suite with the variants of these servers as servers of their own, and all servers in the order to start them.

    A variant does every scenario of the server it is of; the copies are called `<scenario>@<variant>`.
    """
    chosen = [variant for variant in suite.variants if variant.of in servers]
    copies = [
        replace(scenario, name=f"{scenario.name}{VARIANT_MARK}{variant.server.name}", on=variant.server.name)
        for variant in chosen
        for scenario in suite.scenarios
        if scenario.on == variant.of
    ]
    order = []
    for name in servers:
        order += [name, *(variant.server.name for variant in chosen if variant.of == name)]
    made = replace(
        suite,
        servers=(*suite.servers, *(variant.server for variant in chosen)),
        scenarios=(*suite.scenarios, *copies),
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


def _failures(report: Mapping[str, Any], server: str) -> list[str]:
    return [
        start["cause"]
        for build in report["builds"]
        for start in build["starts"]
        if start["server"] == server and start["cause"]
    ]


def _rows(
    plain: Mapping[str, float], changed: Mapping[str, float], kinds: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys((*plain, *changed)):
        was, now = plain.get(name), changed.get(name)
        ratio = kinds.get(name) == MetricKind.RATIO.value
        row: dict[str, Any] = {
            "metric": name,
            "value": was,
            "with_variant": now,
            "change": None,
            "change_percent": None,
        }
        if was is not None and now is not None:
            row["change"] = now - was
            if ratio and was:
                row["change_percent"] = 100 * (now / was - 1)
        yield row


def moved(report: Mapping[str, Any], suite: Suite) -> list[dict[str, Any]]:
    """For each variant that was started: what it changes, why it failed if it did, and every metric beside the server's."""
    kinds = {
        f"{scenario.name}.{metric.name}": metric.kind.value
        for scenario in suite.scenarios
        for metric in scenario.metrics()
    }
    started = {start["server"] for build in report["builds"] for start in build["starts"]}
    return [
        {
            "name": variant.server.name,
            "of": variant.of,
            "changes": list(variant.changes),
            "failures": _failures(report, variant.server.name),
            "metrics": list(_rows(_metrics(report, variant.of), _metrics(report, variant.server.name), kinds)),
        }
        for variant in suite.variants
        if variant.server.name in started
    ]
