"""Builds files and suites over the stand-in server, small enough to search in seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FAST = {"boot_s": 0.1, "prefill_tok_s": 40000, "decode_tok_s": 400, "noise": 0.002, "first_request_penalty_s": 0.05}
"""What every build of the small worlds has: two 16 GB cards, a quick boot."""

SUITE = """
schema: 1
base:
  gpus: [0, 1]
  args: [--tensor-parallel-size=2, --max-model-len=32768, --max-num-seqs=4, --enable-prefix-caching]
deadlines: {boot: 5s, request: 10s, stop: 10s}
servers:
  bt4096: {args+: [--max-num-batched-tokens=4096, --kv-cache-memory-bytes=4294967296]}
  bt8192: {args+: [--max-num-batched-tokens=8192, --kv-cache-memory-bytes=4294967296]}
scenarios:
  idle:  {on: bt4096, kind: idle-memory, samples: 2, interval: 50ms}
  short: {on: bt4096, kind: prefill, prompt_tokens: 4000, concurrency: [1, 2], reps: 1}
  long:  {on: bt4096, kind: prefill, prompt_tokens: 16000, reps: 1}
  oom:   {on: bt8192, kind: oom-probe, ladder: [[8000, 1], [8000, 2]]}
targets:
  long-prefill:  {metric: long.c1.prefill_tok_s, worse: lower, floor: 10%, role: bisect}
  memory:        {metric: idle.non_kv_memory_mib, worse: higher, floor: 256, role: bisect}
  survives-8192: {metric: oom.survived, worse: lower, role: bisect}
  short-prefill: {metric: short.c1.prefill_tok_s, worse: lower, floor: 5%, role: watch}
"""

ONE_TARGET = "\n".join(
    line for line in SUITE.splitlines() if line.split(":")[0].strip() not in {"memory", "survives-8192"}
)
"""For tests of a run's life and not of its answer: without the two targets whose equal ends would take eight starts."""


def profile(**changes: Any) -> dict[str, Any]:
    """A build's profile: FAST with changes."""
    return {**FAST, **changes}


def planted(
    count: int, *, slow_from: int, hungry_from: int, special: Mapping[int, Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """`count` profiles: long prefill 1.87x slower from one build on, 1,178 MiB more (and the OOM) from another."""
    found = []
    for index in range(count):
        changes: dict[str, Any] = {"version": f"0.26.1rc1.dev{1100 + index}", "seed": index}
        if index >= slow_from:
            changes |= {"long_from_tokens": 12000, "long_slowdown": 1.87}
        if index >= hungry_from:
            changes |= {"overhead_mib": FAST.get("overhead_mib", 1000) + 1178, "oom_at_request_from_tokens": 8000}
        found.append(profile(**changes, **(special or {}).get(index, {})))
    return found


def write(folder: Path, profiles: Sequence[Mapping[str, Any]], suite: str = SUITE) -> tuple[Path, Path]:
    """An images.yaml of simulated builds b00, b01, ... and a suite beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["schema: 1", "builds:"]
    lines += [f"  - {{name: b{n:02d}, simulated: {json.dumps(p)}}}" for n, p in enumerate(profiles)]
    images = folder / "images.yaml"
    images.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = folder / "suite.yaml"
    path.write_text(textwrap.dedent(suite), encoding="utf-8")
    return images, path


def bisect(*args: str, cwd: Path, timeout: float = 280, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does; never raises for its exit code."""
    return subprocess.run(
        [sys.executable, "-m", "imagebisect", *args],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", **env},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def wait_for_member(marker: str, *, limit_s: float = 30.0) -> None:
    """Until a process with `marker` lives. AssertionError when none does in time."""
    deadline = time.monotonic() + limit_s
    while not group_members(marker):
        assert time.monotonic() < deadline, f"nothing of {marker} lives after {limit_s:.0f} s"
        time.sleep(0.05)


def group_members(marker: str) -> list[str]:
    """Command lines of living processes that carry `marker` (a run's folder, say)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if marker in line:
                found.append(line)
    return found
