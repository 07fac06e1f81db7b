"""Prompts: the same for every build, different from each other from the first token on."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from imagebisect.domain import ModelSpec
from imagebisect.measure import prompts, vocab_size
from imagebisect.measure.prompts import Place, Prompts


def place(ordinal=0, slot=0, rep=0, purpose="rep"):
    """A request's place."""
    return Place(purpose=purpose, concurrency=4, rep=rep, attempt=0, slot=slot, ordinal=ordinal)


def test_a_prompt_depends_on_seed_scenario_and_place_only():
    """Two builds get byte-identical requests; another seed or scenario gets others."""
    ids = Prompts(seed=1, scenario="long", vocab_size=32000).ids(place(), 500)

    assert ids == Prompts(seed=1, scenario="long", vocab_size=32000).ids(place(), 500)
    assert ids != Prompts(seed=2, scenario="long", vocab_size=32000).ids(place(), 500)
    assert ids != Prompts(seed=1, scenario="short", vocab_size=32000).ids(place(), 500)
    assert len(ids) == 500


@settings(max_examples=30)
@given(st.integers(min_value=1024, max_value=200_000), st.integers())
def test_first_tokens_differ_and_ids_are_ordinary(vocab, seed):
    """No two of 300 requests share a first token, and no id is a special one or outside the vocabulary."""
    made = Prompts(seed=seed, scenario="s", vocab_size=vocab)
    firsts = []
    for ordinal in range(300):
        ids = made.ids(place(ordinal=ordinal, rep=ordinal), 20)
        firsts.append(ids[0])
        assert all(100 <= number < vocab * 0.9 for number in ids)

    assert len(set(firsts)) == 300


def test_slots_of_one_round_share_no_block():
    """Four prompts at once have nothing in common that a cache could use."""
    made = Prompts(seed=1, scenario="s", vocab_size=1024)
    blocks = {tuple(made.ids(place(ordinal=slot, slot=slot), 64)[:16]) for slot in range(4)}

    assert len(blocks) == 4


def test_the_body_is_a_plain_completion_request():
    """Exactly the ids, one fixed order of keys, no sampling."""
    sent = prompts.body("m", [5, 6], max_tokens=1)

    assert sent == b'{"model":"m","prompt":[5,6],"max_tokens":1,"temperature":0,"ignore_eos":true}'


def test_a_chat_body_has_words_and_a_salt_of_its_own():
    """Chat takes no ids; its prompts all begin with the template, so the cache is kept apart by salt."""
    first, second = (json.loads(prompts.body("m", [a, 6, 7], max_tokens=1, endpoint="chat")) for a in (5, 8))

    assert len(first["messages"][0]["content"].split()) == 3
    assert first["cache_salt"] != second["cache_salt"]


def test_the_vocabulary_is_read_from_the_model(tmp_path):
    """From config.json or its text part, in a plain folder or a Hugging Face cache; else 32,000."""
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "config.json").write_text('{"vocab_size": 1024}')
    nested = tmp_path / "nested"
    nested.mkdir()
    (nested / "config.json").write_text('{"text_config": {"vocab_size": 248320}}')
    cached = tmp_path / "models--org--name" / "snapshots" / "abc"
    cached.mkdir(parents=True)
    (cached / "config.json").write_text('{"vocab_size": 5000}')
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")

    assert vocab_size(ModelSpec(path=str(plain), at="/m")) == 1024
    assert vocab_size(ModelSpec(path=str(nested), at="/m")) == 248320
    assert vocab_size(ModelSpec(path=str(tmp_path), at="/m", repo="org/name", revision="abc")) == 5000
    assert vocab_size(ModelSpec(path=str(broken), at="/m")) == prompts.DEFAULT_VOCAB_SIZE
    assert vocab_size(ModelSpec(path=str(tmp_path / "none"), at="/m")) == prompts.DEFAULT_VOCAB_SIZE
    assert vocab_size(None) == prompts.DEFAULT_VOCAB_SIZE
