"""Request bodies, and the prefix cache over them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebisect.simulator import prompts
from imagebisect.simulator.cache import PrefixCache


def body(prompt, **fields) -> bytes:
    """A completions request."""
    return json.dumps({"model": "m", "max_tokens": 1, **fields, "prompt": prompt}).encode()


@pytest.mark.parametrize("count", [1, 3, 5000])
def test_ids_are_counted_exactly_however_long_the_body(count):
    """Short bodies are parsed, long ones counted; both give the same."""
    (prompt,) = prompts.completion(body(list(range(count)))).prompts

    assert prompt.tokens == count
    assert prompt.ids == b"".join(b"%d," % number for number in range(count))


def test_a_long_body_keeps_its_other_fields():
    """Whatever stands before and after the ids."""
    raw = (
        b'{"prompt" : [' + b", ".join([b"7"] * 4000) + b'], "max_tokens": 9, "stream": true, "cache_salt": "s",'
        b' "stream_options": {"include_usage": true}}'
    )
    request = prompts.completion(raw)

    assert (request.max_tokens, request.stream, request.salt, request.include_usage) == (9, True, "s", True)
    assert request.prompts[0].tokens == 4000


def test_the_word_prompt_inside_a_text_misleads_nobody():
    """A body that only looks like ids is parsed in full."""
    text = '"prompt":[1,2,3]' * 400
    request = prompts.completion(json.dumps({"user": text, "prompt": [5, 6]}).encode())

    assert request.prompts[0].tokens == 2


def test_texts_and_lists_are_prompts_too():
    """A text, texts, lists of ids."""
    assert prompts.completion(body("one two, three")).prompts[0].tokens == 4
    assert [p.tokens for p in prompts.completion(body(["a", "b c"])).prompts] == [1, 2]
    assert [p.tokens for p in prompts.completion(body([[1, 2], [3]])).prompts] == [2, 1]
    assert len(prompts.tokenize(json.dumps({"prompt": "one two"}).encode())) == 2


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[]",
        body([]),
        body([1, "x"]),
        body([-1]),
        body([1], max_tokens=0),
        body([1], cache_salt=""),
        body(list(range(3000)))[:-9] + b",]}",
        b'{"prompt": [' + b"1,," * 3000 + b"1]}",
        b"{}",
    ],
)
def test_what_is_no_request_is_refused(raw):
    """400, never a crash."""
    with pytest.raises(prompts.BadRequest):
        prompts.completion(raw)


def compact(ids) -> bytes:
    """Ids as the cache takes them."""
    return "".join(f"{number}," for number in ids).encode()


def test_a_repeated_prompt_is_cached_but_for_its_last_block():
    """Whole blocks of 16, and one token is always computed."""
    cache = PrefixCache(100000)
    ids = compact(range(64))

    assert cache.lookup("", ids, 64) == 0
    assert cache.lookup("", ids, 64) == 48
    assert cache.lookup("", compact([*range(40), 999, *range(41, 80)]), 79) == 32
    assert cache.lookup("salted", ids, 64) == 0
    assert cache.lookup("", compact([999, *range(1, 64)]), 64) == 0


def test_old_prompts_are_forgotten_when_the_pool_is_full():
    """A pool of 100 tokens does not remember 200."""
    cache = PrefixCache(100)
    cache.lookup("", compact(range(80)), 80)
    cache.lookup("", compact(range(500, 580)), 80)

    assert cache.lookup("", compact(range(80)), 80) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=70), min_size=1, max_size=5))
def test_hits_are_the_longest_common_beginning_in_whole_blocks(sequences):
    """Against the plain definition."""
    cache = PrefixCache(10**6)
    for position, ids in enumerate(sequences):
        common = 0
        for earlier in sequences[:position]:
            same = 0
            while same < min(len(ids), len(earlier)) and ids[same] == earlier[same]:
                same += 1
            common = max(common, same)
        assert cache.lookup("", compact(ids), len(ids)) == max(0, min(common, len(ids) - 1) // 16 * 16)
