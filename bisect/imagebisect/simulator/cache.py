"""A prefix cache over blocks of 16 tokens: what an earlier prompt began with need not be computed again."""

from __future__ import annotations

from collections import OrderedDict

from imagebisect.simulator.memory import BLOCK_TOKENS


def _shared(one: bytes, other: bytes) -> int:
    """Length of the common beginning, found by halving: slices compare at memory speed."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


class PrefixCache:
    """Remembers prompts (their ids as text, `1,2,3,`) until more tokens than the pool holds were seen since.

    Not thread-safe: the engine calls it under its lock.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._prompts: OrderedDict[tuple[str, bytes], tuple[bytes, int]] = OrderedDict()
        self._held = 0

    def lookup(self, salt: str, ids: bytes, tokens: int) -> int:
        """How many of the prompt's tokens are cached: whole blocks, and never its last token. Then keeps the prompt.

        `ids` are comma-terminated decimal ids; `salt` separates users as `cache_salt` does.
        """
        best = 0
        first = b",".join(ids.split(b",", BLOCK_TOKENS)[:BLOCK_TOKENS])
        for (other_salt, _), (other, _) in self._candidates(salt, first):
            assert other_salt == salt
            common = ids[: _shared(ids, other)].count(b",")
            best = max(best, common)
        hit = min(best, tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        self._keep(salt, ids, tokens)
        return max(0, hit)

    def _candidates(self, salt: str, first: bytes) -> list[tuple[tuple[str, bytes], tuple[bytes, int]]]:
        return [entry for entry in self._prompts.items() if entry[0][0] == salt and entry[1][0].startswith(first)]

    def _keep(self, salt: str, ids: bytes, tokens: int) -> None:
        key = (salt, ids)
        if key in self._prompts:
            self._prompts.move_to_end(key)
            return
        self._prompts[key] = (ids, tokens)
        self._held += tokens
        while self._held > self._capacity and self._prompts:
            _, (_, dropped) = self._prompts.popitem(last=False)
            self._held -= dropped
