"""The sizes of a model's linear-attention layers, from its config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from imagebisect.domain import LinearAttention, ModelSpec
from imagebisect.measure.prompts import config_files

_DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
_USUAL_BYTES = 2


def _config(model: ModelSpec) -> dict[str, Any]:
    for path in config_files(model):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def _whole(part: Mapping[str, Any], key: str) -> int | None:
    value = part.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def linear_attention(model: ModelSpec) -> LinearAttention | None:
    """What config.json says (its text part first); None where there is no such file or no such layer."""
    config = _config(model)
    text = config.get("text_config")
    for part in (text if isinstance(text, dict) else {}, config):
        heads, width = _whole(part, "linear_num_value_heads"), _whole(part, "linear_value_head_dim")
        if heads is not None and width is not None:
            named = part.get("dtype") or part.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
            size = _DTYPE_BYTES.get(str(named).rpartition(".")[2], _USUAL_BYTES)
            return LinearAttention(value_heads=heads, value_head_dim=width, dtype_bytes=size)
    return None
