"""What every test has: a record of runs of its own, so that tests side by side do not tidy up after each other."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def _records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, itertools.count[int]]:
    """A folder of this worker's, and numbers for the folders in it."""
    return tmp_path_factory.mktemp("state"), itertools.count()


@pytest.fixture(autouse=True)
def own_record(_records: tuple[Path, itertools.count[int]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The host's locks and process groups are on record here while the test runs; the commands it starts look here too."""
    folder, numbers = _records
    own = folder / str(next(numbers))
    own.mkdir()
    monkeypatch.setenv("IMAGEBISECT_STATE_DIR", str(own))
    return own
