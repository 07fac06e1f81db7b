"""Prompts as token ids, the same for every build and different for every request from the first token on.

Ids come from a stream that the run's seed, the scenario and the request's place name; nothing of a build goes in.
They lie in a range that ordinary words have: above the control tokens at the low end of a vocabulary, below
the special and multimodal tokens at its high end.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebisect.domain import ModelSpec

DEFAULT_VOCAB_SIZE = 32_000
"""Taken where the model's config.json is not at hand: no larger than that of any model served in earnest."""

_LOWEST_ID = 1000
_SMALL_LOWEST_ID = 100
_USED_SHARE = 0.85
"""Special and multimodal tokens sit in the last few percent of a vocabulary."""

_WORDS_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power"
)


def config_files(model: ModelSpec) -> list[Path]:
    """Where the model's config.json may be, the likeliest first."""
    root = Path(model.path)
    if model.repo is None:
        return [root / "config.json"]
    name = "models--" + model.repo.replace("/", "--")
    snapshots = [base / name / "snapshots" for base in (root, root / "hub")]
    wanted = model.revision or "*"
    return [path for folder in snapshots for path in sorted(folder.glob(f"{wanted}/config.json"))]


def vocab_size(model: ModelSpec | None) -> int:
    """Token ids the model knows, from its config.json (`vocab_size`, or the text part's), else 32,000."""
    for path in config_files(model) if model is not None else ():
        try:
            config: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(config, dict):
            continue
        text = config.get("text_config")
        for part in (config, text if isinstance(text, dict) else {}):
            size = part.get("vocab_size")
            if isinstance(size, int) and size > 0:
                return size
    return DEFAULT_VOCAB_SIZE


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which request of a scenario it is. `attempt` counts repeats of an invalid rep, `ordinal` all requests there may be."""

    purpose: str
    concurrency: int
    rep: int
    attempt: int
    slot: int
    ordinal: int


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Makes the prompts of one scenario."""

    seed: int
    scenario: str
    vocab_size: int

    @property
    def id_range(self) -> range:
        """The ids that prompts are made of."""
        low = _LOWEST_ID if self.vocab_size >= 4 * _LOWEST_ID else min(_SMALL_LOWEST_ID, self.vocab_size // 2)
        return range(low, max(low + 1, int(self.vocab_size * _USED_SHARE)))

    def _number(self, text: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{self.scenario}/{text}".encode()).digest()[:8], "big")

    def ids(self, place: Place, count: int) -> list[int]:
        """`count` token ids, the same for the same place.

        First ids follow each other in the order of `ordinal`, so two requests of a scenario share one only where it
        has more requests than the range has ids; what follows is random, so even then their first blocks differ.
        """
        usable = self.id_range
        first = usable[(self._number("first") + place.ordinal) % len(usable)]
        key = f"{place.purpose}/{place.concurrency}/{place.rep}/{place.attempt}/{place.slot}/{place.ordinal}"
        rest = random.Random(self._number(key)).choices(usable, k=count - 1)  # noqa: S311
        return [first, *rest]


def body(model_id: str, ids: list[int], *, max_tokens: int, endpoint: str = "completions") -> bytes:
    """A request's bytes, made before the clock starts: encoding 176,425 ids takes 40 ms.

    Chat takes no ids: it gets about as many everyday words, and a salt of its own, since all chat prompts share
    the template's head. Its true token count is what the server says.
    """
    request: dict[str, Any] = {"model": model_id}
    if endpoint == "chat":
        known = _WORDS_TEXT.split()
        words = " ".join(known[number % len(known)] for number in ids)
        salt = hashlib.sha256(words.encode()).hexdigest()[:32]
        request |= {"messages": [{"role": "user", "content": words}], "cache_salt": salt}
    else:
        request["prompt"] = ids
    request |= {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return json.dumps(request, separators=(",", ":")).encode()
