"""A stand-in vLLM server: real HTTP, vLLM's surface and log, failures on demand. Standard library only.

It proves the harness; it never stands in for a result.
"""

from __future__ import annotations

from pathlib import Path

DEMO_FOLDER = Path(__file__).parent / "demo"
"""Holds the builds file `images.yaml` and the `suite.yaml` of `bisect demo`."""


def planted() -> dict[str, str]:
    """What the demo's builds hide: target name -> first bad build."""
    import json

    found = json.loads((DEMO_FOLDER / "planted.json").read_text(encoding="utf-8"))
    return {str(target): str(build) for target, build in found["first_bad"].items()}


def untestable() -> dict[str, str]:
    """The demo's builds that cannot be tested: build name -> cause."""
    import json

    found = json.loads((DEMO_FOLDER / "planted.json").read_text(encoding="utf-8"))
    return {str(build): str(cause) for build, cause in found["untestable"].items()}
