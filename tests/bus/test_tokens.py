"""Counting a prompt's bytes by class, and its token ids."""

import base64
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.tokens import TextBytes, TokenRates, _without_media, count_text, count_token_ids
from tests.costs import Calls, peak_bytes


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


LONG = st.builds(
    bytes.__mul__,
    st.sampled_from([b"x", b"x ", b"\\n", b"\xc3\xa4", b"1,", b'"']),
    st.sampled_from([1, 511, 512, 1023, 1024]),
)


@given(st.lists(LONG | st.sampled_from([b'"', b'","', b"x"]), max_size=12).map(b"".join))
def test_media_are_found_wherever_they_stand(raw):
    """As if every string were looked at: long ones without a space, an escape or a letter beyond ASCII are gone."""
    kept = (b"" if re.fullmatch(rb"[^ \\\x80-\xff]{1024,}", string) else string for string in raw.split(b'"'))
    assert _without_media(raw) == b'"'.join(kept)


@pytest.mark.parametrize("shift", range(8))
def test_an_escape_counts_once_wherever_a_text_is_cut(shift):
    """Long texts are counted in pieces."""
    text = b" " * shift + rb"\u4e16" * 50_000
    assert count_text(text) == TextBytes(letters=shift, wide=150_000)


@pytest.mark.parametrize("piece", [b'"",', b"[],", b"1,", b"[1],", b"\\u4e16", b"x", b"x ", b'"' + b"x" * 1024 + b'",'])
def test_a_count_holds_no_more_memory_than_its_body(piece):
    """And makes a few calls for each KiB, whatever the body is made of."""
    raw = b"[" + piece * (1_000_000 // len(piece)) + b'"' + b"x" * 2000 + b'"]'
    ids = raw[: raw.index(b'"')] + b"1]" if b'"' not in piece else raw
    assert peak_bytes(count_text, raw) < 2.1 * len(raw)
    assert peak_bytes(count_token_ids, ids) < 2.1 * len(ids)
    assert Calls.of(count_text, raw) + Calls.of(count_token_ids, ids) < 20_000


@given(st.lists(st.integers() | st.lists(st.integers(), max_size=3), max_size=5), st.sampled_from([None, 1]))
def test_token_ids_are_counted_however_they_are_written(ids, indent):
    """In one line or in many, in empty lists and full ones."""
    tokens = sum(len(item) if isinstance(item, list) else 1 for item in ids)
    assert count_token_ids(json.dumps(ids, indent=indent).encode()) == tokens


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
        (b"[[1,[2]]]", None),
        (b"[{}]", None),
        (b"[1][2]", None),
        (b"[1 2]", None),
        (b"[1,]", None),
        (b"[[],[],[ ]]", 0),
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
