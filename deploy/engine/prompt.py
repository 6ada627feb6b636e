"""How many tokens a prompt has: about four bytes a token, at least one; lists of token ids count exactly.

Pure. Knows the shapes in which the OpenAI API carries text, and nothing of HTTP, models or limits.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from deploy.engine.text import TOKEN_BYTES


class Prompt(msgspec.Struct, frozen=True):
    """What an answer depends on: the length in tokens, and the bytes that seed its text."""

    tokens: int
    data: bytes


def from_text(text: str) -> Prompt:
    """Count a text.

    >>> from_text("What is a forebay?").tokens, from_text("").tokens
    (5, 1)
    """
    data = text.encode()
    return Prompt(max(1, -(-len(data) // TOKEN_BYTES)), data)


def from_messages(messages: list[Any]) -> Prompt:
    """Count the texts of chat messages, or of the items of a Responses input; roles and names cost nothing.

    >>> from_messages([{"role": "user", "content": [{"type": "text", "text": "eight by"}]}]).tokens
    2
    """
    return from_text("\n".join(_texts(messages)) if len(messages) > 1 else "".join(_texts(messages)))


def from_input(value: object) -> list[Prompt]:
    """Prompts of a completion or an embedding: a text, token ids, or a list of either; empty if it is none of these.

    >>> [prompt.tokens for prompt in from_input([[1, 2, 3], [4]])], from_input([5, 6])[0].tokens, from_input(None)
    ([3, 1], 2, [])
    """
    if isinstance(value, str):
        return [from_text(value)]
    if not isinstance(value, list) or not value:
        return []
    if all(type(item) is int for item in value):
        return [_from_ids(value)]
    prompts = [_from_item(item) for item in value]
    return [] if None in prompts else [prompt for prompt in prompts if prompt is not None]


def _from_item(item: object) -> Prompt | None:
    if isinstance(item, str):
        return from_text(item)
    if isinstance(item, list) and item and all(type(token) is int for token in item):
        return _from_ids(item)
    return None


def _from_ids(ids: list[int]) -> Prompt:
    return Prompt(len(ids), msgspec.json.encode(ids))


def _texts(messages: list[Any]) -> Iterator[str]:
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            for part in content:
                if isinstance(part, dict) and isinstance(text := part.get("text"), str):
                    yield text
