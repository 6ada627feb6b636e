"""Exact prompt lengths where a tokenizer.json is configured."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from proxy.tokenizer import IN_THREAD_BYTES, LONGEST_BYTES, Tokenizers, TokenizerUnusable


@pytest.fixture
def file(tmp_path) -> str:
    """A tokenizer.json that knows one word a token."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="?"))  # noqa: S106 - no secret
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(["a b c d ?"], trainers.WordLevelTrainer(special_tokens=["?"]))
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "a b c"}, 3),
        ({"prompt": ["a b", "c"]}, 3),
        ({"messages": [{"role": "user", "content": "a b"}, {"role": "user", "content": [{"text": "c d"}]}]}, 4),
        ({"input": "a"}, 1),
        ({"input": "a", "instructions": "b c"}, 3),
        ({"messages": [{"role": "user", "content": "a"}], "system": [{"type": "text", "text": "b c d"}]}, 4),
        ({"messages": [{"content": None, "tool_calls": [{"a": "b"}]}]}, 5),
        ({"messages": [{"content": "a"}], "tools": [{"a": "b"}]}, 7),
        ({"prompt": "a " * IN_THREAD_BYTES}, IN_THREAD_BYTES),
        ({"temperature": 1}, None),
        ([], None),
    ],
)
async def test_the_text_of_a_prompt_is_counted_exactly(file, body, tokens):
    """Given a tokenizer for a model, all that a template puts into a prompt counts as it counts it."""
    assert await Tokenizers([f"tiny={file}"]).count("tiny", json.dumps(body).encode()) == tokens


async def test_a_prompt_nested_without_end_is_left_to_the_estimate(file):
    """As deep as the decoder reads."""
    for depth in (500, 900, 990, 10_000):
        body = b'{"prompt":' + b"[" * depth + b"]" * depth + b"}"
        assert await Tokenizers([f"tiny={file}"]).count("tiny", body) is None


async def test_other_models_and_endless_prompts_are_left_to_the_estimate(file):
    """Without a tokenizer, or where counting would take too long, nothing is said."""
    tokenizers = Tokenizers([f"tiny={file}"])
    assert await tokenizers.count("other", b'{"prompt":"a"}') is None
    assert await tokenizers.count(None, b'{"prompt":"a"}') is None
    assert await tokenizers.count("tiny", b'{"prompt":"' + b"a" * LONGEST_BYTES + b'"}') is None


@pytest.mark.parametrize("configured", ["tiny", "=x", "tiny=", "tiny=/nowhere/tokenizer.json"])
def test_a_tokenizer_that_cannot_be_loaded_is_one_clear_error(configured):
    """The message names what was configured."""
    with pytest.raises(TokenizerUnusable, match="tokenizer"):
        Tokenizers([configured])
