"""The keys of a simulated build as a document's tables: `python -m imagebisect.config.profile_keys docs/simulated.md`."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from imagebisect.simulator import profile

BEGIN, END = "<!-- keys: begin -->\n", "<!-- keys: end -->\n"
_FIRST = "identity"


def _default(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _choices(key: str) -> str:
    """The words that a key can be, where they are few."""
    hint = get_type_hints(profile.Profile)[key]
    return f" One of {', '.join(f'`{word}`' for word in get_args(hint))}." if get_origin(hint) is Literal else ""


def tables() -> str:
    """One table for each part of the profile, from its source: key, default, what is said of it there."""
    source = inspect.getsource(profile.Profile)
    lines = source.splitlines()
    defaults = {field.name: field.default for field in fields(profile.Profile)}
    found: list[str] = []
    title, shown = _FIRST, ""
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    last = body.body[0].end_lineno or 0
    for node, after in zip(body.body, body.body[1:], strict=False):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        for line in lines[last : node.lineno]:
            if line.strip().startswith("# "):
                title = line.strip().removeprefix("# ")
        if title != shown:
            found += ["", f"### {title[0].upper()}{title[1:]}", "", "| key | default | meaning |", "|---|---|---|"]
            shown = title
        assert isinstance(after, ast.Expr), node.target.id
        assert isinstance(after.value, ast.Constant), node.target.id
        meaning = " ".join(str(after.value.value).split()).replace("|", "\\|") + _choices(node.target.id)
        found.append(f"| `{node.target.id}` | `{_default(defaults[node.target.id])}` | {meaning} |")
        last = after.end_lineno or last
    return "\n".join(found) + "\n\n"


def renewed(document: str) -> str:
    """The document with the tables between its marks written anew."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + tables() + END + after


def main() -> None:
    """Write the tables into the document."""
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
