"""The command line: parse, call, print, exit code. Everything heavy is imported in the command that needs it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from imagebisect import __version__
from imagebisect.cli import clean, common, compare, demo, doctor, images, look, plan, probe, profile, run, simulate
from imagebisect.errors import ExitCode

_EPILOG = """\b
First steps:
  bisect demo                                   see a whole search on simulated builds, no GPU
  bisect doctor --suite SUITE --images FILE     is this host ready?
  bisect plan --suite SUITE --images FILE       what would be started, how often
  bisect run --suite SUITE --images FILE        find the first bad build of every target

\b
Exit codes, over the targets that are bisected, first that applies:
  130  interrupted (Ctrl-C or SIGTERM); `bisect resume` goes on
    1  a bug in bisect
    2  usage, or a bad file
   20  environment: docker, GPU, registry, disk
   10  a regression is located (confirmed)
   11  narrowed to suspects
   12  inconclusive or inconsistent
   13  an anchor cannot be tested
    0  finished, nothing regressed
  `probe`: 0 measured, 3 not measurable, 20.
  `compare`: 0 compared, whatever the words; 3 no metric could be compared; 20; 130; 2.
  `demo`: 0 if and only if it found what was planted.

\b
stdout carries the answer, stderr the progress; --json puts exactly one JSON document on stdout.
"""

app = typer.Typer(
    name="bisect",
    help="Find the first vLLM container image that breaks throughput or memory.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        typer.echo(f"bisect {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Find the first vLLM container image that breaks throughput or memory."""


run.register(app)
plan.register(app)
probe.register(app)
compare.register(app)
profile.register(app)
simulate.register(app)
look.register(app)
doctor.register(app)
clean.register(app)
demo.register(app)
images.register(app)


def main() -> None:
    """Run the command line and exit with its code; bad usage answers in JSON too where --json was asked for."""
    try:
        code = app(prog_name="bisect", standalone_mode=False)
    except typer.Abort:
        code = ExitCode.INTERRUPTED
    except Exception as error:
        # the parser's own errors; their class is private to typer, what they can do is not
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        error.show()  # type: ignore[attr-defined]
        code = ExitCode.USAGE
        if "--json" in sys.argv:
            common.print_json({"schema": 1, "exit_code": int(code), "reason": "usage", "message": explain()})
    sys.exit(int(code or 0))
