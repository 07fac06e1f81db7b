"""The plots and the full table of the docs, from a table that `search_quality.py --json` wrote.

python benchmarks/search_quality.py --json > table.json
python benchmarks/plots.py table.json            # writes docs/search-quality.md and docs/plots/*.svg
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

mpl.rcParams["svg.hashsalt"] = "search-quality"  # the same table gives the same file

DOCS = Path(__file__).resolve().parents[1] / "docs"
NAMES = {
    "bisect": "bisect",
    "naive1": "binary search, one rep",
    "median3": "binary search, median of 3",
    "git-skip": "git bisect's way with skips",
}
RIGHT, WRONG, NONE = "#2b7a4b", "#b3362b", "#b9b9b9"
WORLDS = (
    ("clean", "clean: no untestable build, no outlier"),
    ("messy", "messy: 2 % noise, 20 % effect, skips, outliers"),
    ("large", "large: 87 % effect, any noise"),
    ("hard", "hard: 2 % noise, 5 % effect"),
    ("hopeless", "hopeless: 5 % noise, 5 % effect"),
    ("nothing", "nothing regressed"),
    ("bimodal 30%", "3 of 10 starts slow, host profiled"),
    ("drift", "the host drifts by 0.5 % a start"),
    ("flaky", "failures: in every start, or in 5 of 16"),
)


def _rows(table: dict[str, Any], row: str, search: str) -> list[dict[str, Any]]:
    exact = [c for c in table["cells"] if c["search"] == search and c["row"] == row]
    return exact or [c for c in table["cells"] if c["search"] == search and c["row"].startswith(row)]


def _mean(cells: list[dict[str, Any]], key: str) -> float:
    return float(sum(cell[key] for cell in cells) / len(cells)) if cells else math.nan


def answers(table: dict[str, Any], path: Path) -> None:
    """Right, wrong and no answer by world, this search beside the usual one."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 4.2), sharey=True)
    for axis, search in zip(axes, ("bisect", "naive1", "median3"), strict=True):
        for place, (row, _) in enumerate(WORLDS):
            cells = _rows(table, row, search)
            left = 0.0
            for key, colour in (("exact_percent", RIGHT), ("wrong_percent", WRONG)):
                width = _mean(cells, key)
                axis.barh(place, width, left=left, color=colour, height=0.7)
                left += width
            axis.barh(place, 100 - left, left=left, color=NONE, height=0.7)
        axis.set_title(NAMES[search], fontsize=10)
        axis.set_xlim(0, 100)
        axis.set_xlabel("% of searches", fontsize=9)
        axis.tick_params(labelsize=8)
    axes[0].set_yticks(range(len(WORLDS)), [label for _, label in WORLDS])
    axes[0].invert_yaxis()
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in (RIGHT, WRONG, NONE)]
    figure.legend(handles, ["right build", "wrong build", "no build named"], ncol=3, loc="lower right", fontsize=9)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def cost(table: dict[str, Any], path: Path) -> None:
    """Starts by the number of builds, beside the bound of a noiseless search between two ends."""
    figure, axis = plt.subplots(figsize=(6.4, 3.6))
    sizes = sorted({cell["builds"] for cell in table["cells"] if cell["row"] == "clean"})
    axis.plot(sizes, [2 + math.log2(n - 1) for n in sizes], "k--", label="two ends and a noiseless halving")
    for row, label in (("clean", "clean"), ("messy", "messy"), ("hard", "hard")):
        means = [_mean([c for c in _rows(table, row, "bisect") if c["builds"] == n], "starts") for n in sizes]
        axis.plot(sizes, means, "o-", label=f"bisect, {label}")
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(n) for n in sizes])
    axis.set_xlabel("builds")
    axis.set_ylabel("starts")
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def page(table: dict[str, Any]) -> str:
    """The full table and the targets, as Markdown."""
    lines = [
        "# The search against simulated worlds: the full table",
        "",
        (
            f"Written by `benchmarks/plots.py` from `benchmarks/search_quality.py --json`: {table['runs']} searches a cell, seed "
            f"{table['seed']}, {table['seconds'] / 60:.0f} minutes. Dice, no server. `bound` is 2 + log2(N - 1)."
        ),
        "",
        "## Targets",
        "",
        "| row | what | got | target | |",
        "|---|---|---|---|---|",
    ]
    for check in table["targets"]:
        sign = ">=" if check["at_least"] else "<="
        verdict = "met" if check["met"] else f"missed by {abs(check['got'] - check['target']):.3g}"
        lines.append(
            f"| {check['row']} | {check['what']} | {check['got']:.2f} | {sign} {check['target']:g} | {verdict} |"
        )
    lines += [
        "",
        "## Cells",
        "",
        "| N | world | search | exact % | wrong % | no claim % | starts | starts / bound | most | reps | images | minutes |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in table["cells"]:
        figures = (
            f"{cell['exact_percent']:.1f} | {cell['wrong_percent']:.1f} | {cell['no_claim_percent']:.1f} | "
            f"{cell['starts']:.1f} | {cell['starts_over_bound']:.2f} | {cell['most_starts']} | {cell['reps']:.1f} | "
            f"{cell['images']:.1f} | {cell['minutes']:.0f}"
        )
        lines.append(f"| {cell['builds']} | {cell['row']}: {cell['cell']} | {cell['search']} | {figures} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page and the plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="what `search_quality.py --json` printed")
    parser.add_argument("--docs", type=Path, default=DOCS)
    asked = parser.parse_args()
    table = json.loads(asked.table.read_text())
    plots = asked.docs / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    answers(table, plots / "answers.svg")
    cost(table, plots / "cost.svg")
    (asked.docs / "search-quality.md").write_text(page(table))
    print(f"wrote {asked.docs / 'search-quality.md'} and two plots in {plots}")


if __name__ == "__main__":
    main()
