"""Taking secrets out of texts and streams, wherever they were cut."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebisect import secrets

SECRET = "hf_SECRETsecret0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (f"a {SECRET} b", "a *** b"),
        (f"the token is {SECRET[:-3]}", "the token is ***"),
        (f"{SECRET[4:]} was the token", "*** was the token"),
        ("an ordinary line", "an ordinary line"),
        (SECRET[:5], SECRET[:5]),
    ],
)
def test_what_a_cut_left_of_a_secret_is_hidden_too(text, hidden):
    """A message is cut at some length: the first or the last part of a token must not get through."""
    assert secrets.hide(text, (SECRET,)) == hidden


@given(st.lists(st.binary(max_size=60), max_size=6), st.integers(1, 97))
def test_a_secret_across_two_pieces_is_found(parts, piece):
    """However a stream is read, no whole secret is copied, and everything else is."""
    import unittest.mock

    wanted = SECRET.encode()
    whole = wanted.join(parts)
    sink = io.BytesIO()
    with unittest.mock.patch.object(secrets, "PIECE_BYTES", piece):
        secrets.copy_without(io.BytesIO(whole), sink.write, (SECRET,))

    assert wanted not in sink.getvalue()
    assert sink.getvalue() == whole.replace(wanted, b"***")


def test_without_secrets_a_stream_is_copied_as_it_is():
    """Nothing to hide, nothing changed."""
    sink = io.BytesIO()
    secrets.copy_without(io.BytesIO(b"abc\n" * 1000), sink.write, ())

    assert sink.getvalue() == b"abc\n" * 1000
