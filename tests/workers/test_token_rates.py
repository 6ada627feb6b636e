"""Token estimates: what a worker learns of a tokenizer from the usage that its engine returns."""

import argparse
import difflib
import heapq
import inspect
import json
import random
import string
import textwrap
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bus.tokens import TokenRates, count_text
from workers.token_rates import LearnedTokenRates

DATA = Path(__file__).parents[1] / "data" / "texts"
ROOT = Path(__file__).parents[2]


def english() -> list[str]:
    """Paragraphs of the licence and the standard library's long docstrings."""
    licence = (ROOT / "LICENSE").read_text()
    docstrings = [inspect.getdoc(module) or "" for module in (argparse, difflib, string, heapq, random)]
    return [part for text in (licence, *docstrings) for part in text.split("\n\n") if len(part) > 200]


def code() -> list[str]:
    """Functions of the standard library."""
    functions = [f for module in (difflib, heapq, random, textwrap) for _, f in inspect.getmembers(module, callable)]
    found = []
    for function in functions:
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):
            continue
        if len(source) > 300:
            found.append(source[:4000])
    return found


def chinese() -> list[str]:
    """Sentences written for these tests."""
    return [line for line in (DATA / "chinese.txt").read_text(encoding="utf-8").splitlines() if line]


TEXTS = {"english": english, "code": code, "chinese": chinese}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A byte-level BPE, as Llama's and Qwen's are, trained on all three kinds of text."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=6000, min_frequency=3, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    trained.train_from_iterator([text for kind in TEXTS.values() for text in kind()], trainer)
    return trained


def prompts(kind: str, rng: random.Random) -> Iterator[str]:
    """Prompts of one kind of text without end, of very different lengths."""
    texts = TEXTS[kind]()
    while True:
        yield "\n".join(rng.choices(texts, k=rng.randint(1, 8)))


def body(prompt: str, *, is_ascii: bool) -> bytes:
    """Messages of a request, as clients write them: some escape what is beyond ASCII, some do not."""
    return json.dumps([{"role": "user", "content": prompt}], ensure_ascii=is_ascii).encode()


def errors_after(learned: LearnedTokenRates, kind: str, tokenizer: Tokenizer, *, is_ascii: bool) -> list[float]:
    """Relative errors of the estimate on 100 further prompts."""
    rng = random.Random(2)
    found = []
    for _, prompt in zip(range(100), prompts(kind, rng), strict=False):
        real = len(tokenizer.encode(prompt).ids)
        found.append(abs(learned.rates.tokens(count_text(body(prompt, is_ascii=is_ascii))) - real) / real)
    return found


@pytest.mark.parametrize("is_ascii", [False, True], ids=["utf-8", "escaped"])
@pytest.mark.parametrize("kind", list(TEXTS))
def test_after_a_hundred_requests_of_one_kind_the_estimate_is_within_15_percent(kind, is_ascii, tokenizer):
    """Given a worker that has seen a hundred prompts of one kind of text, the median error of its estimate is small."""
    learned, rng = LearnedTokenRates(), random.Random(1)
    for _, prompt in zip(range(100), prompts(kind, rng), strict=False):
        learned.learn(count_text(body(prompt, is_ascii=is_ascii)), len(tokenizer.encode(prompt).ids))
    assert median(errors_after(learned, kind, tokenizer, is_ascii=is_ascii)) <= 0.15


@pytest.mark.parametrize("kind", list(TEXTS))
def test_after_a_hundred_requests_of_all_kinds_each_kind_is_within_15_percent(kind, tokenizer):
    """One ratio of bytes to tokens would fail here: the kinds differ by a factor, and come mixed."""
    learned, rng = LearnedTokenRates(), random.Random(1)
    streams = [prompts(each, rng) for each in TEXTS]
    for number in range(100):
        prompt = next(streams[number % 3])
        learned.learn(count_text(body(prompt, is_ascii=False)), len(tokenizer.encode(prompt).ids))
    assert median(errors_after(learned, kind, tokenizer, is_ascii=False)) <= 0.15


def test_bytes_of_a_token_really_differ_between_the_kinds(tokenizer):
    """The test above means something: English and Chinese differ by a factor of two or more in bytes a token."""
    ratio = {}
    for kind, texts in TEXTS.items():
        text = "\n".join(texts())
        ratio[kind] = len(text.encode()) / len(tokenizer.encode(text).ids)
    assert max(ratio.values()) / min(ratio.values()) >= 1.5, ratio


def test_media_and_nonsense_teach_nothing_absurd():
    """A prompt of no bytes, and a usage of no tokens, leave the rates where they were."""
    learned = LearnedTokenRates()
    learned.learn(count_text(b""), 0)
    assert learned.rates == TokenRates()


def test_one_absurd_usage_moves_the_rates_by_a_bounded_amount(tokenizer):
    """Given settled rates, a usage a thousand times too large is clipped."""
    learned, rng = LearnedTokenRates(), random.Random(1)
    for _, prompt in zip(range(100), prompts("english", rng), strict=False):
        learned.learn(count_text(body(prompt, is_ascii=False)), len(tokenizer.encode(prompt).ids))
    before = learned.rates.letters
    learned.learn(count_text(b"a" * 4000), 1_000_000)
    assert before / 2 <= learned.rates.letters <= before * 2
