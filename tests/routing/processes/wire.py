"""The requests of the benchmark as bytes: prompts like those of `forebay replay`, and a length that no gateway reads.

A real client does not know how long an answer will be, and the all-knowing router is told no more than the mean. So
the trace's length does not go into `max_tokens`, from which Forebay would learn it, but into `metadata`, which only
the engines of this benchmark look at.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from deploy.engine.config import EngineConfig
from deploy.engine.intake import Api, Asked
from deploy.replay.prompts import PromptMaker
from deploy.replay.traces import TraceRow

MODEL: Final = "sim"
CHAT: Final = "/v1/chat/completions"

Parse = Callable[..., Asked]


class Lengths(msgspec.Struct):
    """What a request is, in tokens."""

    prompt_tokens: int
    answer_tokens: int


class _Body(msgspec.Struct):
    metadata: Lengths


_decode: Final = msgspec.json.Decoder(_Body).decode


class Bodies:
    """Makes the body of every request; equal seeds make equal bodies."""

    def __init__(self, seed: int) -> None:
        self._prompts = PromptMaker(MODEL, seed=seed)

    def body(self, number: int, prompt_tokens: int, answer_tokens: int) -> bytes:
        """JSON of request `number`; what its answer will be stands first, so that the engines find it soon."""
        prompt = self._prompts.prompt(number, TraceRow(0.0, prompt_tokens, answer_tokens))
        return (
            b'{"model":"%b","metadata":{"prompt_tokens":%d,"answer_tokens":%d},"stream":true,'
            b'"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"%b"}]}'
        ) % (MODEL.encode(), prompt_tokens, answer_tokens, prompt)


def lengths(body: bytes) -> Lengths:
    """Lengths of a request of this benchmark.

    >>> lengths(Bodies(0).body(7, 20, 3)).answer_tokens
    3
    """
    return _decode(body).metadata


def traced(parse: Parse) -> Parse:
    """Wrap an engine's reading of requests: the answer ends by itself after the trace's length."""

    def read(body: bytes, content_type: str, api: Api, config: EngineConfig, *, is_checked: bool) -> Asked:
        asked = parse(body, content_type, api, config, is_checked=is_checked)
        return msgspec.structs.replace(asked, max_tokens=lengths(body).answer_tokens)

    return read
