"""`bisect simulate`: how often would these settings name the right build, and what would it cost?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from imagebisect.cli import common
from imagebisect.errors import UsageError

if TYPE_CHECKING:
    from imagebisect.rehearsal import Settings

MOST_BUILDS = 4096


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def share(option: str, text: str | None, *, most: float = 1.0) -> float:
    """`10%` or `0.1` as a fraction. UsageError for anything else, or above `most`."""
    if text is None:
        return 0.0
    try:
        value = float(text.removesuffix("%").strip()) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise UsageError(
            f"{option} {text}: expected a share between 0 and {most:.0%}",
            next_step=f"such as {option} 10% or {option} 0.1",
        )
    return value


def simulate(
    *,
    builds: Annotated[
        int, typer.Option("--builds", "-n", min=2, max=MOST_BUILDS, help="Builds, both ends counted.")
    ] = 32,
    effect: Annotated[
        str, typer.Option("--effect", help="How much longer a rep takes from the first bad build on.")
    ] = "10%",
    noise: Annotated[
        str, typer.Option("--noise", help="Standard deviation of one rep of one start, half of it between starts.")
    ] = "1%",
    skip: Annotated[str, typer.Option("--skip", help="Share of builds that cannot be tested, in stretches.")] = "0%",
    outliers: Annotated[
        str, typer.Option("--outliers", help="Share of reps that are slow by 10 to 60 %; half as many starts are.")
    ] = "0%",
    floor: Annotated[str, typer.Option("--floor", help="The target's floor.")] = "3%",
    event: Annotated[
        str | None, typer.Option("--event", help="A failure instead: bad builds die in this share.")
    ] = None,
    slow_mode: Annotated[str, typer.Option("--slow-mode", help="Share of starts in a slow mode.")] = "0%",
    slow_depth: Annotated[str, typer.Option("--slow-depth", help="How much slower that mode is.")] = "20%",
    drift: Annotated[str, typer.Option("--drift", help="How much slower each start is than the one before.")] = "0%",
    scan: Annotated[int, typer.Option("--scan", min=0, help="As in `bisect run`.")] = 0,
    budgets: common.Budgets = None,
    profiled: Annotated[
        bool, typer.Option("--profiled", help="The host's noise was profiled before (`bisect profile`).")
    ] = False,
    pull: Annotated[float, typer.Option("--pull", min=0, help="Minutes to pull an image.")] = 8.0,
    boot: Annotated[float, typer.Option("--boot", min=0, help="Minutes to boot a server.")] = 4.0,
    rep: Annotated[float, typer.Option("--rep", min=0, help="Minutes of a rep on a good build.")] = 2.0,
    runs: Annotated[int, typer.Option("--runs", min=1, max=100_000, help="Searches to simulate.")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same table.")] = 1,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """How often would my settings name the right build, and what would it cost?

    The real search against dice: one step at a random build, with your noise. --effect 0 asks what it says where nothing
    regressed. No server is started.
    """
    with common.handled(as_json=as_json):
        from imagebisect import budget
        from imagebisect.rehearsal import Settings, advice, rehearse

        limit = budget.parse(budgets or ())
        if limit.hours is not None or limit.gpu_hours is not None:
            raise UsageError("a simulated search has a budget of starts only", next_step="such as --budget '12 starts'")
        settings = Settings(
            builds=builds,
            effect=share("--effect", effect, most=100.0),
            noise=share("--noise", noise),
            skip=share("--skip", skip, most=0.9),
            outliers=share("--outliers", outliers, most=0.5),
            floor=share("--floor", floor) or 1e-6,
            event=share("--event", event) if event is not None else None,
            slow_mode=share("--slow-mode", slow_mode, most=0.9),
            slow_depth=share("--slow-depth", slow_depth, most=0.9),
            drift=share("--drift", drift, most=0.1),
            scan=scan,
            budget=limit.starts,
            profiled=profiled,
            minutes=(pull, boot, rep),
        )
        watched = sys.stderr.isatty() and not quiet

        def tick(done: int) -> None:
            if watched and done % 10 == 0:
                sys.stderr.write(f"\r{done} of {runs} searches")
                sys.stderr.flush()

        found = rehearse(settings, runs=runs, seed=seed, tick=tick)
        plain = rehearse(settings, runs=runs, seed=seed, naive=True)
        if watched:
            sys.stderr.write("\r\033[K")
        document = {
            "schema": 1,
            "exit_code": 0,
            "reason": "simulated",
            "simulated": True,
            "settings": vars(settings),
            "bisect": found.figures(),
            "naive": plain.figures(),
            "advice": advice(settings, found),
        }
        if as_json:
            common.print_json(document)
            return
        common.say(_text(settings, document))


def _rate(figures: dict[str, Any], name: str) -> str:
    one = figures[name]
    return f"{one['percent']:.1f} % ({one['low']:.1f} to {one['high']:.1f})"


def _text(settings: Settings, document: dict[str, Any]) -> str:
    ours, naive = document["bisect"], document["naive"]
    nothing = settings.event is None and not settings.effect
    what = (
        f"dying in {settings.event:.0%} of the starts"
        if settings.event is not None
        else "nothing regressed"
        if nothing
        else f"{settings.effect:.3g} of a rep slower"
    )
    if settings.event is None and not nothing:
        what = f"{settings.effect * 100:.3g} % slower"
    head = (
        f"{ours['runs']} simulated searches of {settings.builds} builds, {what}"
        + (f", noise {settings.noise * 100:.3g} %" if settings.event is None else "")
        + (f", {settings.skip:.0%} untestable" if settings.skip else "")
        + (f", {settings.outliers:.0%} outliers" if settings.outliers else "")
    )
    rows = [("", "this search", "naive binary search, 1 rep")]
    if not nothing:
        rows.append(("right build, as near as can be", _rate(ours, "exact"), _rate(naive, "exact")))
    rows += [
        ("a wrong build named", _rate(ours, "wrong"), _rate(naive, "wrong")),
        ("no build named", _rate(ours, "no_claim"), _rate(naive, "no_claim")),
        *(
            (label, f"{ours[key]['mean']} (9 in 10 within {ours[key]['p90']})", f"{naive[key]['mean']}")
            for label, key in (("starts", "starts"), ("hours", "hours"))
        ),
        ("reps", str(ours["reps"]), str(naive["reps"])),
        ("images pulled", str(ours["images"]), str(naive["images"])),
    ]
    if ours["interval_covers_percent"] is not None:
        rows.append(("its 95 % interval held the effect", f"{ours['interval_covers_percent']:.0f} %", ""))
    width = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [head, "dice, not a measurement: real hosts have noise of other shapes", ""]
    lines += [f"{a:<{width[0]}}  {b:<{width[1]}}  {c}".rstrip() for a, b, c in rows]
    ends = ", ".join(f"{end.replace(':', ' (') + (')' if ':' in end else '')} {n}" for end, n in ours["ends"].items())
    lines += ["", f"ends: {ends}"]
    lines += [f"note: {text}" for text in document["advice"]]
    return "\n".join(lines)
