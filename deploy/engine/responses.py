"""The Responses API as vLLM 0.32.0 speaks it: the response object, and the named events of its stream. Pure."""

from typing import Any

from deploy.engine.intake import Asked
from deploy.engine.wording import json_text


def response_object(asked: Asked, answer_id: str, created_s: int, status: str) -> dict[str, Any]:
    """A response as it stands: nothing said and nothing counted yet."""
    return {
        "id": answer_id,
        "created_at": created_s,
        "incomplete_details": None,
        "instructions": None,
        "metadata": None,
        "model": asked.model,
        "object": "response",
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "none",
        "tools": [],
        "top_p": 1.0,
        "background": False,
        "max_output_tokens": asked.max_tokens,
        "max_tool_calls": None,
        "previous_response_id": None,
        "prompt": None,
        "reasoning": None,
        "service_tier": "auto",
        "status": status,
        "text": None,
        "top_logprobs": None,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }


def whole_response(asked: Asked, answer_id: str, created_s: int, message_id: str, text: str) -> dict[str, Any]:
    """A response that has ended; one that a limit ended is incomplete."""
    is_cut = asked.limit is not None
    response = response_object(asked, answer_id, created_s, "incomplete" if is_cut else "completed")
    response["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
    response["output"] = [_message(message_id, "completed", [_part(text, None)])]
    response["usage"] = {
        "input_tokens": asked.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": asked.max_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": asked.prompt_tokens + asked.max_tokens,
    }
    return response


def _message(message_id: str, status: str, content: list[Any]) -> dict[str, Any]:
    return {
        "id": message_id,
        "content": content,
        "role": "assistant",
        "status": status,
        "type": "message",
        "phase": None,
    }


def _part(text: str, logprobs: list[Any] | None) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


class ResponseWording:
    """The events of a streamed response; it is whole with `response.completed`, there is no [DONE]."""

    done = b""

    def __init__(self, asked: Asked, answer_id: str, created_s: int, message_id: str) -> None:
        self._asked = asked
        self._answer_id = answer_id
        self._created_s = created_s
        self._message_id = message_id
        self._text = b""
        self._number = 0
        item = json_text(message_id)
        self._delta_tail = b'","item_id":' + item + b',"logprobs":[],"output_index":0,"sequence_number":%d'

    def start(self) -> bytes:
        """Created and in progress: both before the engine has taken the request."""
        response = response_object(self._asked, self._answer_id, self._created_s, "in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def opening(self) -> bytes:
        """The item and its part that the tokens go into."""
        return self._event(
            "response.output_item.added", item=_message(self._message_id, "in_progress", []), output_index=0
        ) + self._event(
            "response.content_part.added",
            content_index=0,
            item_id=self._message_id,
            output_index=0,
            part=_part("", []),
        )

    def delta(self, index: int, text: bytes, told: int) -> bytes:
        """Some text more."""
        del index, told
        self._text += text
        number = self._number
        self._number += 1
        return (
            b'event: response.output_text.delta\ndata: {"content_index":0,"delta":"'
            + text
            + self._delta_tail % number
            + b',"type":"response.output_text.delta"}\n\n'
        )

    def last(self, index: int, text: bytes, told: int) -> bytes:
        """The last text; that it is the last shows in the events after it."""
        return self.delta(index, text, told)

    def closing(self, output_tokens: int) -> bytes:
        """Text, part, item and response are complete."""
        del output_tokens
        text = self._text.decode()
        item = {"content_index": 0, "item_id": self._message_id}
        response = whole_response(self._asked, self._answer_id, self._created_s, self._message_id, text)
        return b"".join(
            (
                self._event("response.output_text.done", **item, logprobs=[], output_index=0, text=text),
                self._event("response.content_part.done", **item, output_index=0, part=_part(text, None)),
                self._event(
                    "response.output_item.done",
                    item=_message(self._message_id, "completed", [_part(text, None)]),
                    output_index=0,
                ),
                self._event("response.completed", response=response),
            )
        )

    def _event(self, name: str, **fields: object) -> bytes:
        # vLLM sends the fields of an event in alphabetical order.
        numbered = dict(sorted({**fields, "sequence_number": self._number, "type": name}.items()))
        self._number += 1
        return b"event: " + name.encode() + b"\ndata: " + json_text(numbered) + b"\n\n"
