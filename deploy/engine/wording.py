"""The events of a stream, byte for byte as vLLM 0.32.0 sends them. Pure: texts in, SSE bytes out.

Whatever does not change during a stream is rendered once at its beginning; an event is then a concatenation of bytes.
Texts are JSON-safe by construction (`text.py`), so nothing is escaped on the way.
"""

from typing import Final, Protocol

import msgspec

from deploy.engine.intake import Api, Asked

FINGERPRINT: Final = "vllm-0.32.0-5111a7ed"
DONE: Final = b"data: [DONE]\n\n"


def event(body: bytes) -> bytes:
    """An unnamed SSE event."""
    return b"data: " + body + b"\n\n"


def json_text(value: object) -> bytes:
    """A value as JSON."""
    return msgspec.json.encode(value)


class Wording(Protocol):
    """How an API tells the tokens of a request; `index` counts the answers of the request from 0."""

    def start(self) -> bytes:
        """Events before the request is admitted."""

    def opening(self) -> bytes:
        """Events before the first token."""

    def delta(self, index: int, text: bytes, told: int) -> bytes:
        """Some tokens more; `told` is how many of this answer have then been sent."""

    def last(self, index: int, text: bytes, told: int) -> bytes:
        """The last tokens of an answer."""

    def closing(self, output_tokens: int) -> bytes:
        """Events after the last answer, [DONE] not among them."""

    @property
    def done(self) -> bytes:
        """What says that the stream is whole."""


class ChunkWording:
    """Chunks of chat completions and of completions."""

    done = DONE

    def __init__(self, asked: Asked, answer_id: str, created_s: int) -> None:
        self._prompt_tokens = asked.prompt_tokens
        self._answers = asked.n * len(asked.prompts)
        self._is_chat = asked.api is Api.CHAT
        self._has_usage_chunk = asked.has_usage_chunk
        self._has_usage_everywhere = asked.has_usage_everywhere
        kind = b'"chat.completion.chunk"' if self._is_chat else b'"text_completion"'
        self._head = b'data: {"id":%b,"object":%b,"created":%d,"model":%b,"choices":[' % (
            json_text(answer_id),
            kind,
            created_s,
            json_text(asked.model),
        )
        before_text = b'{"index":%d,"delta":{"content":"' if self._is_chat else b'{"index":%d,"text":"'
        self._heads = [self._head + before_text % index for index in range(self._answers)]
        close, rest = (b'"}', b"") if self._is_chat else (b'"', b',"stop_reason":null,"prompt_token_ids":null')
        reason = json_text(asked.finish_reason)
        stop = b',"stop_reason":null' if self._is_chat else b""
        self._tail = close + b',"logprobs":null,"finish_reason":null' + rest + b',"token_ids":null}]'
        self._last_tail = close + b',"logprobs":null,"finish_reason":' + reason + stop + rest + b',"token_ids":null}]'
        # vLLM puts the fingerprint into the last event that carries JSON.
        self._fingerprint = b',"system_fingerprint":' + json_text(FINGERPRINT)
        self._last_end = (b"" if asked.has_usage_chunk else self._fingerprint) + b"}\n\n"
        if not self._has_usage_everywhere:
            self._tail += b"}\n\n"
            self._last_tail += self._last_end

    def start(self) -> bytes:
        """Nothing: a stream of chunks begins with its first token."""
        return b""

    def opening(self) -> bytes:
        """The role of each answer; completions have none."""
        if not self._is_chat:
            return b""
        role = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        end = self._usage(0) + b',"prompt_token_ids":null,"prompt_text":null}\n\n'
        return b"".join(self._head + role % index + end for index in range(self._answers))

    def delta(self, index: int, text: bytes, told: int) -> bytes:
        """A chunk of content."""
        if self._has_usage_everywhere:
            return self._heads[index] + text + self._tail + self._usage(told) + b"}\n\n"
        return self._heads[index] + text + self._tail

    def last(self, index: int, text: bytes, told: int) -> bytes:
        """A chunk of content that says why the answer ends."""
        if self._has_usage_everywhere:
            return self._heads[index] + text + self._last_tail + self._usage(told) + self._last_end
        return self._heads[index] + text + self._last_tail

    def closing(self, output_tokens: int) -> bytes:
        """The chunk without choices that counts the tokens, if it was asked for."""
        if not self._has_usage_chunk:
            return b""
        total = self._prompt_tokens + output_tokens
        usage = b'],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}'
        return self._head + usage % (self._prompt_tokens, total, output_tokens) + self._fingerprint + b"}\n\n"

    def _usage(self, told: int) -> bytes:
        if not self._has_usage_everywhere:
            return b""
        usage = (
            b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}'
        )
        return usage % (self._prompt_tokens, self._prompt_tokens + told, told)
