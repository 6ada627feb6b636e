"""Counting a prompt's bytes by class, and its token ids."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.tokens import TextBytes, TokenRates, count_text, count_token_ids


@given(st.text())
def test_every_byte_is_in_exactly_one_class(text):
    """Letters, symbols and wide bytes of unescaped text add up to all its bytes."""
    raw = text.replace("\\", "/").encode("utf-8", "replace")
    counted = count_text(raw)
    assert len(counted) == len(raw)
    assert counted.wide == sum(byte >= 128 for byte in raw)


@given(st.binary(max_size=4000))
def test_any_bytes_can_be_counted(raw):
    """What is no JSON and no UTF-8 is counted too: the engine will refuse it, not we."""
    counted = count_text(raw)
    assert min(counted.letters, counted.symbols, counted.wide) >= 0


@given(st.text(alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), max_size=200))
def test_escaped_text_counts_as_the_same_text_unescaped(text):
    """Clients that escape what is beyond ASCII are no different from those that do not."""
    assert count_text(json.dumps(text).encode()) == count_text(json.dumps(text, ensure_ascii=False).encode())


def test_media_in_base64_do_not_count_as_text():
    """A megabyte of picture in a message leaves the count of its text alone."""
    picture = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 4000).decode()
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": picture}}]
    counted = count_text(json.dumps([{"role": "user", "content": parts}]).encode())
    assert len(counted) < 200


def test_a_long_text_without_spaces_is_text_where_it_is_not_ascii():
    """Chinese has no spaces and is no picture."""
    assert count_text(json.dumps("水" * 2000, ensure_ascii=False).encode()).wide == 6000


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        (b"[1,2,3]", 3),
        (b"[[1,2],[3,4,5]]", 5),
        (b"[]", 0),
        (b'["a","b"]', None),
        (b'"text"', None),
        (b"", None),
        (b"[1,", None),
        (b"[1.5]", None),
        (b"[[[1]]]", None),
    ],
)
def test_prompts_of_token_ids_count_exactly(raw, tokens):
    """One list or several of whole numbers are tokens; anything else is not."""
    assert count_token_ids(raw) == tokens


def test_an_estimate_is_the_sum_of_its_classes_and_at_least_one():
    """100 × 0.2 + 20 × 0.5 + 10 × 0.3 = 33, and nothing is 1."""
    rates = TokenRates(letters=0.2, symbols=0.5, wide=0.3)
    assert rates.tokens(TextBytes(letters=100, symbols=20, wide=10)) == 33
    assert rates.tokens(TextBytes()) == 1
