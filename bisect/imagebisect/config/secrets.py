"""Names that hold secrets: their values may not stand in a file that is copied into ledgers and reports."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = re.compile(r"(?:^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)$", re.IGNORECASE)


def secret_names(names: Iterable[str]) -> list[str]:
    """Those of the names that are by custom a secret's, such as HF_TOKEN."""
    return [name for name in names if _NAME.search(name)]
