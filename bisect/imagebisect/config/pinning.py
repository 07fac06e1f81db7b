"""Writing digests into a builds file without losing a comment."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path

from ruamel.yaml import YAML

from imagebisect.config.yaml import read_text


def pin(path: Path, digests: Mapping[str, str]) -> None:
    """Set the digest of each named build; comments, order and all other keys stay. Atomic."""
    text = read_text(path)
    editor = YAML(typ="rt", pure=True)
    editor.preserve_quotes = True
    editor.width = 4096
    offset = 2 if "\n  - " in text else 0
    editor.indent(mapping=2, sequence=offset + 2, offset=offset)
    data = editor.load(text)
    for entry in data["builds"]:
        digest = digests.get(entry.get("name"))
        if digest is not None:
            position = list(entry).index("tag") + 1 if "tag" in entry else 1
            if "digest" in entry:
                entry["digest"] = digest
            else:
                entry.insert(position, "digest", digest)
    buffer = io.StringIO()
    editor.dump(data, buffer)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as sink:
            sink.write(buffer.getvalue())
            sink.flush()
            os.fsync(sink.fileno())
        partial.chmod(path.stat().st_mode & 0o777)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
