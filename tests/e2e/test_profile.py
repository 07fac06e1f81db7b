"""`bisect profile` over real processes, and the search that starts from it."""

from __future__ import annotations

import json

import worlds
from imagebisect.ledger import RunFolder

SUITE = """
schema: 1
base: {gpus: none, args: [--max-model-len=32768, --max-num-seqs=4]}
deadlines: {boot: 5s, request: 10s, stop: 10s}
servers: {s: {}}
scenarios:
  long: {on: s, kind: prefill, prompt_tokens: 12000, reps: 3}
targets:
  long-prefill: {metric: long.c1.prefill_tok_s, worse: lower, floor: 10%}
"""


def test_a_profile_is_kept_for_its_host_and_a_search_starts_from_it(tmp_path):
    """Six starts, a table, a file by fingerprint; the next run's first event holds its noise. No start is repeated."""
    images, suite = worlds.write(tmp_path, [worlds.profile(seed=n, cards=1) for n in range(2)], SUITE)
    files = ("--images", str(images), "--suite", str(suite))

    done = worlds.bisect("profile", "b00", *files, "--name", "p", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (metric,) = [one for one in report["profile"]["metrics"] if one["metric"] == "long.c1.prefill_tok_s"]
    assert len(metric["values"]) == report["profile"]["starts"] == 6
    assert 0 < metric["between"] < 0.2
    (kept,) = (tmp_path / "results" / "hosts").glob("*.json")
    assert kept.stem == report["run"]["host"]["fingerprint"]
    text = worlds.bisect("report", "p", cwd=tmp_path).stdout
    assert "6 starts of one build, what this host's noise is" in text
    assert "searches on this host" in text

    searched = worlds.bisect("run", *files, "--name", "r", "--json", cwd=tmp_path)

    assert searched.returncode == 0, searched.stderr
    noise = RunFolder(tmp_path / "results" / "r").load().created.noise["long-prefill"]
    assert vars(noise) == metric["assumed_from_now_on"]
