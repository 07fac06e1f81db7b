"""Prefill throughput by `bisect`'s measuring code and by `vllm bench serve`, in turn, on one running server.

Exit 0: the median ratio is within 3 %. 1: it is not. 2: bad usage. 3 or 20: it could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import servers

from imagebisect import measure
from imagebisect.errors import BisectError, EnvironmentFault, ExitCode
from imagebisect.scenario import Prefill
from imagebisect.vllm import metrics
from imagebisect.vllm.transport import get_text

LIMIT = 0.03
"""How far the median ratio may be from 1."""

CALL_S = 600.0
"""One call of `vllm bench serve` may take this long; importing vLLM takes most of it."""

EXPLANATION = """\
Like with like: both columns are the median over a side's requests of prompt tokens (as the server counted them) over
the client's seconds from sending to the first token, concurrency 1, no prefix cache, after one request that is not
counted. With one output token vLLM's TTFT and E2EL are one number. `bench serve` sends text over a kept connection
and stops its clock at the first streamed token; bisect sends token ids over a new connection and stops at the whole
answer. `headline` is bench's own total_input_tokens / duration: it also holds the gaps between requests.
`server` is prompt tokens over vllm:request_prefill_time_seconds of either side: the server's own clock."""


class NotComparableError(BisectError):
    """One of the two sides gave no figure that may be compared."""

    exit_code = ExitCode.NOT_MEASURABLE
    reason = "not_comparable"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a pair, in tok/s: median of its requests, their range, by the server's clock, and its own headline."""

    tok_s: float
    least: float
    most: float
    server_tok_s: float | None
    headline: float


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both sides, measured one after the other."""

    first: str
    bisect: Side
    bench: Side

    @property
    def ratio(self) -> float:
        """What `bisect` says over what `bench serve` says."""
        return self.bisect.tok_s / self.bench.tok_s


def side(
    requests: Sequence[tuple[int, float]], counted: metrics.Snapshot, *, sent: int, headline: float | None = None
) -> Side:
    """A side from its requests (prompt tokens, seconds) and what the server counted meanwhile.

    Raises NotComparableError when the server says that prompts came from the prefix cache, or that of `sent` requests
    more or fewer ended.
    """
    if counted.prefix_hits:
        raise NotComparableError(
            f"{counted.prefix_hits:.0f} prompt tokens came from the prefix cache",
            next_step="this vLLM ignores --no-enable-prefix-caching; compare another one",
        )
    if counted.succeeded is None or counted.succeeded != sent:
        raise NotComparableError(
            f"the server counted {counted.succeeded} requests where {sent} were sent",
            next_step="let nobody else use the server; run it again",
        )
    rates = [tokens / took for tokens, took in requests]
    by_server = counted.prompt_tokens / counted.prefill_s if counted.prompt_tokens and counted.prefill_s else None
    middle = statistics.median(rates)
    return Side(
        tok_s=middle,
        least=min(rates),
        most=max(rates),
        server_tok_s=by_server,
        headline=middle if headline is None else headline,
    )


def scrape(context: measure.Context) -> metrics.Snapshot:
    """The server's counters. Raises NotComparableError when it shows none."""
    text = get_text(f"{context.url}/metrics", timeout_s=30.0)
    if text is None:
        raise NotComparableError("the server shows no /metrics", where=context.url)
    return metrics.parse(text)


def by_bisect(context: measure.Context, *, number: int, prompt_tokens: int, requests: int) -> Side:
    """Measure as `bisect probe` does."""
    before = scrape(context)
    found = measure.run(
        Prefill(name=f"pair-{number}", on=context.server.name, prompt_tokens=prompt_tokens, reps=requests), context
    )
    if found.failure is not None:
        raise NotComparableError(f"bisect measured nothing: {found.failure.message}", where=str(context.log))
    counted = [rep for rep in found.reps if not rep.warmup and rep.invalid is None]
    made = [(rep.usage_prompt_tokens[0] or rep.prompt_tokens, rep.seconds) for rep in counted]
    return side(
        made,
        metrics.delta(before, scrape(context)),
        sent=len(found.reps),
        headline=found.metrics["c1.prefill_tok_s"],
    )


def bench_argv(
    environment: Path, *, url: str, model: str, prompt_tokens: int, requests: int, seed: int, result: Path
) -> list[str]:
    """The command line of one call. Its ready check (which would send a prompt once more) is off."""
    return [
        str(environment / "bin" / "vllm"),
        "bench",
        "serve",
        "--backend=vllm",
        f"--base-url={url}",
        f"--model={model}",
        "--dataset-name=random",
        f"--random-input-len={prompt_tokens}",
        "--random-output-len=1",
        "--random-range-ratio=0",
        f"--num-prompts={requests}",
        "--max-concurrency=1",
        "--num-warmups=1",
        "--ready-check-timeout-sec=0",
        "--temperature=0",
        f"--seed={seed}",
        "--disable-tqdm",
        "--save-result",
        "--save-detailed",
        f"--result-dir={result.parent}",
        f"--result-filename={result.name}",
    ]


def requests_of(result: Any, *, requests: int) -> tuple[list[tuple[int, float]], float]:
    """The requests (prompt tokens, seconds to the first token) and the headline in a result file of `bench serve`.

    Raises NotComparableError when not all requests were answered with one token each.
    """
    try:
        errors = [text for text in result["errors"] if text]
        tokens, took = result["input_lens"], result["ttfts"]
        outputs, headline = set(result["output_lens"]), result["total_input_tokens"] / result["duration"]
        whole = len(tokens) == len(took) == requests
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise NotComparableError(
            f"the result of `bench serve` lacks {error}", next_step="this vLLM is too old or too new for the comparison"
        ) from error
    if errors or not whole or outputs != {1}:
        raise NotComparableError(
            f"`bench serve` got {len(took)} of {requests} answers, output tokens {sorted(outputs)}"
            + (f": {errors[0][-300:]}" if errors else "")
        )
    return list(zip(tokens, took, strict=True)), headline


def by_bench(
    context: measure.Context, environment: Path, *, number: int, prompt_tokens: int, requests: int, folder: Path
) -> Side:
    """Measure with one call of `vllm bench serve`; its prompts have a seed of their own."""
    result = folder / f"bench-{number}.json"
    argv = bench_argv(
        environment,
        url=context.url,
        model=context.model_id,
        prompt_tokens=prompt_tokens,
        requests=requests,
        seed=1000 + number,
        result=result,
    )
    before = scrape(context)
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, **servers.CPU_ENV},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CALL_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise NotComparableError(f"`bench serve` took more than {CALL_S:.0f} s", where=" ".join(argv)) from error
    except OSError as error:
        raise EnvironmentFault(f"`bench serve` cannot be started: {error.strerror}", where=argv[0]) from error
    if done.returncode != 0 or not result.is_file():
        said = (done.stdout + done.stderr).strip()[-1500:]
        raise NotComparableError(f"`bench serve` ended with exit code {done.returncode}: {said}", where=" ".join(argv))
    made, headline = requests_of(json.loads(result.read_text(encoding="utf-8")), requests=requests)
    return side(made, metrics.delta(before, scrape(context)), sent=requests + 1, headline=headline)


# --------------------------------------------------------------------------------- result


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """The verdict and all that it rests on, for JSON."""
    ratios = [pair.ratio for pair in pairs]
    by_server = [
        pair.bisect.server_tok_s / pair.bench.server_tok_s
        for pair in pairs
        if pair.bisect.server_tok_s and pair.bench.server_tok_s
    ]
    middle = statistics.median(ratios)
    return {
        "pairs": [{**asdict(pair), "ratio": pair.ratio} for pair in pairs],
        "median_ratio": middle,
        "least_ratio": min(ratios),
        "most_ratio": max(ratios),
        "median_server_ratio": statistics.median(by_server) if by_server else None,
        "limit": LIMIT,
        "agree": abs(middle - 1) <= LIMIT,
    }


def lines(found: dict[str, Any]) -> Iterable[str]:
    """The same as a table."""
    yield "pair  first    bisect tok/s   bench tok/s    ratio   headline  server bisect  server bench"
    for number, pair in enumerate(found["pairs"], start=1):
        ours, theirs = pair["bisect"], pair["bench"]
        clocks = [f"{s['server_tok_s']:>13,.0f}" if s["server_tok_s"] else f"{'-':>13}" for s in (ours, theirs)]
        yield (
            f"{number:>4}  {pair['first']:<7}{ours['tok_s']:>14,.0f}{theirs['tok_s']:>14,.0f}{pair['ratio']:>9.4f}"
            f"{theirs['headline']:>11,.0f}  {clocks[0]} {clocks[1]}"
        )
    server = found["median_server_ratio"]
    yield (
        f"median ratio {found['median_ratio']:.4f}, range {found['least_ratio']:.4f} to {found['most_ratio']:.4f}"
        + (f"; by the server's clock {server:.4f}" if server else "")
    )
    yield f"agree within {found['limit']:.0%}: {'yes' if found['agree'] else 'NO'}"


def compare(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start the server and take the pairs: bisect first, bench first, and so on."""
    machine = servers.host()
    size = {"prompt_tokens": arguments.prompt_tokens, "requests": arguments.requests}
    pairs = []
    with servers.ready(servers.real(arguments.vllm, arguments.model), folder / "run") as context:
        version = context.facts.get("version")
        for number in range(arguments.pairs):
            turn = ("bisect", "bench") if number % 2 == 0 else ("bench", "bisect")
            sides = {
                who: by_bisect(context, number=number, **size)
                if who == "bisect"
                else by_bench(context, arguments.vllm, number=number, folder=folder, **size)
                for who in turn
            }
            pairs.append(Pair(first=turn[0], **sides))
            sys.stderr.write(f"pair {number + 1} of {arguments.pairs}: {pairs[-1].ratio:.4f}\n")
    return {"schema": 1, "vllm": version, "host": machine, **size, **summary(pairs)}


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--vllm", type=servers.environment, required=True, help="a folder with its own bin/vllm")
    made.add_argument("--model", type=servers.model_folder, help="a model's folder (default: models/tiny beside it)")
    made.add_argument("--prompt-tokens", type=servers.positive, default=4000, help="tokens a prompt (default: 4000)")
    made.add_argument("--pairs", type=servers.positive, default=5, help="pairs taken in turn (default: 5)")
    made.add_argument("--requests", type=servers.positive, default=25, help="requests a side and pair (default: 25)")
    made.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return made


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a call; exits 2 for bad ones."""
    made = parser()
    arguments = made.parse_args(argv)
    if arguments.model is None:
        try:
            arguments.model = servers.model_folder(str(arguments.vllm.parent / "models" / "tiny"))
        except argparse.ArgumentTypeError as error:
            made.error(f"--model is needed: {error}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print, and say by the exit code whether they agree."""
    arguments = parse(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="bisect-benchmark-") as folder:
            found = compare(arguments, Path(folder))
    except BisectError as error:
        sys.stderr.write(f"error: {error.what}\n")
        sys.stderr.write("".join(f"  {k}: {v}\n" for k, v in (("at", error.where), ("next", error.next_step)) if v))
        return int(error.exit_code)
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write(f"vLLM {found['vllm']}, {found['prompt_tokens']} tokens, {servers.host_line(found['host'])}\n")
        sys.stdout.write("\n".join(lines(found)) + f"\n\n{EXPLANATION}\n")
    return 0 if found["agree"] else 1


if __name__ == "__main__":
    sys.exit(main())
