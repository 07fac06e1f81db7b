"""What the scrubber takes out, and what it must leave alone."""

from __future__ import annotations

import pytest

from imagebisect.report.scrub import Scrubber


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf_abcdefghijklmnop", "***"),
        ("Authorization: Bearer abcdefghij.klm", "Authorization: Bearer ***"),
        ("https://me:pass@registry.example/v2/", "https://***@registry.example/v2/"),
        ("/home/jane/models/m:/models/m:ro", "~/models/m:/models/m:ro"),
        ("/home/jane2/models", "~/models"),
        ("/Users/jane", "~"),
        ("my-own-secret stays out", "*** stays out"),
    ],
)
def test_it_takes_out(text, expected):
    """Tokens by shape, credentials in URLs, home folders of anybody, secrets of this process by value."""
    assert Scrubber(environ={"HOME": "/home/jane", "THE_SECRET": "my-own-secret"}).text(text) == expected


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("TOKENIZERS_PARALLELISM", "false-ish", "--enable false-ish"),
        ("MAX_TOKENS", "176425", "prompt of 176425"),
        ("X_TOKEN", "0", "rep 0 of 10"),
    ],
)
def test_it_leaves_ordinary_words(name, value, text):
    """A variable that merely sounds like a secret does not blank out numbers and words of the report."""
    assert Scrubber(environ={"HOME": "/home/jane", name: value}).text(text) == text


def test_a_containers_root_home_stays():
    """With /root as home, paths inside containers keep their meaning."""
    assert Scrubber(environ={"HOME": "/root"}).text("vol:/root/.cache") == "vol:/root/.cache"


def test_keys_and_nested_values_are_cleaned_too():
    """Mappings and lists at any depth, keys included; numbers stay numbers."""
    scrubber = Scrubber(environ={"HOME": "/home/jane"})
    assert scrubber.value({"/home/jane/x": ["/home/jane/y", 3]}) == {"~/x": ["~/y", 3]}
