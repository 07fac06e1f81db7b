"""What counts as a secret: by its name, and by being long enough to be one. Shared by config, ledger and report."""

from __future__ import annotations

import re
from collections.abc import Iterable

WORDS = r"(?:^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)"
"""The words that tell a secret's name; what may follow them is for whoever asks."""

SHORTEST = 6
"""A shorter value, as in `VLLM_X_TOKEN=0`, is a switch: hiding it would blank out ordinary words."""

_NAME = re.compile(WORDS + "$", re.IGNORECASE)


def secret_names(names: Iterable[str]) -> list[str]:
    """Those of the names that are by custom a secret's, such as HF_TOKEN."""
    return [name for name in names if _NAME.search(name)]
