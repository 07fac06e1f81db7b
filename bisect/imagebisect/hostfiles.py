"""Where hosts' noise is kept: results/hosts/<fingerprint>.json, the newest of each measurement key first."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from imagebisect import hostprofile
from imagebisect.domain import Plan
from imagebisect.errors import EnvironmentFault, UsageError
from imagebisect.noise import Noise
from imagebisect.state import RunState

SCHEMA = 1
FOLDER = "hosts"


def path_of(results: Path, fingerprint: str) -> Path:
    """The file of one host."""
    return results / FOLDER / f"{fingerprint}.json"


def _read(path: Path) -> dict[str, Any]:
    """The file's content; an empty one where there is none. UsageError for what this version cannot read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"schema": SCHEMA, "profiles": {}}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"this host's profile cannot be read: {error}", where=str(path), next_step="remove it and profile again"
        ) from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("profiles"), dict):
        raise UsageError(
            "this host's profile is none that this version can read",
            where=str(path),
            next_step="remove it and profile again",
        )
    return found


def save(results: Path, state: RunState) -> Path:
    """Keep what a profile learnt; the file is whole at every moment. EnvironmentFault when it cannot be written."""
    path = path_of(results, str(state.created.host["fingerprint"]))
    whole = _read(path)
    for key, one in hostprofile.record(state).items():
        older = [entry for entry in whole["profiles"].get(key, []) if entry["run"] != one["run"]]
        whole["profiles"][key] = [one, *older]
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as sink:
            json.dump(whole, sink, indent=1)
            sink.flush()
            os.fsync(sink.fileno())
        partial.replace(path)
    except OSError as error:
        raise EnvironmentFault(
            f"this host's profile cannot be kept: {error.strerror}", where=str(path), next_step="free disk space"
        ) from error
    return path


def noise_for(plan: Plan, results: Path, fingerprint: str, model_fingerprint: str) -> dict[str, Noise]:
    """What this host was profiled with for the plan's targets; empty where it was not."""
    kept = {key: entries[0] for key, entries in _read(path_of(results, fingerprint))["profiles"].items() if entries}
    return hostprofile.noise_of(plan, kept, model_fingerprint)
