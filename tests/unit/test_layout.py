"""The source tree hides nobody else's packages."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_standard_librarys_bisect_is_not_hidden():
    """`import random, bisect` works from the repository root: `random` needs the real `bisect`."""
    program = "import random, bisect; print(bisect.__file__); bisect.bisect_left([1], 1); import imagebisect"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert not Path(done.stdout.strip()).is_relative_to(ROOT / "bisect")


def test_no_package_marker_where_it_would_hide_a_library():
    """No `__init__.py` under bisect/ itself nor anywhere under tests/ (tests/docker would hide docker)."""
    assert not (ROOT / "bisect" / "__init__.py").exists()
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_importing_the_package_imports_nothing_else():
    """The stand-in server runs where only an interpreter is: `import imagebisect` pulls in no library."""
    program = (
        "import sys; before = set(sys.modules); import imagebisect; "
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('imagebisect')))"
    )

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert set(done.stdout.strip("[]\n").replace("'", "").split(", ")) <= {"", "__future__"}


def test_no_module_has_grown_beyond_a_sitting():
    """No module is above 600 lines."""
    long = [path for path in (ROOT / "bisect").rglob("*.py") if len(path.read_text().splitlines()) > 600]
    assert long == []


def test_the_lock_has_every_dependency_with_hashes_and_names_no_host():
    """`make test` on a fresh machine installs everything from the lock, from whatever index that machine uses."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    lock = (ROOT / "requirements.lock").read_text()
    pinned = set(re.findall(r"^([a-z0-9.-]+)==", lock, re.MULTILINE))

    names = {
        re.split(r"[<>=!~\[; ]", text, maxsplit=1)[0].lower().replace("_", "-").replace(".", "-") for text in wanted
    }

    assert names <= pinned
    assert "://" not in lock
    for entry in re.split(r"\n(?=[a-z])", lock.strip()):
        assert "--hash=sha256:" in entry
