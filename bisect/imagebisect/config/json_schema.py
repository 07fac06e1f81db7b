"""The JSON Schemas of the two files, for editors: `python -m imagebisect.config.json_schema FOLDER` writes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from imagebisect.config.schema import BuildsFile, SuiteFile

FILES: dict[str, type[BaseModel]] = {"images.schema.json": BuildsFile, "suite.schema.json": SuiteFile}


def schema(model: type[BaseModel], name: str) -> dict[str, Any]:
    """One file's schema. YAML merge keys (`<<`) and anchors are the parser's, so they need no word here."""
    found = model.model_json_schema(by_alias=True)
    found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    found["title"] = name.removesuffix(".schema.json")
    return found


def text(name: str) -> str:
    """One schema file as it stands in the repository."""
    return json.dumps(schema(FILES[name], name), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write both files."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
