"""The bodies of plain answers, with vLLM's keys in vLLM's order. Pure: no HTTP objects, no clock."""

import base64
import random
import struct
from typing import Any, Final

from deploy.engine.intake import Api, Asked
from deploy.engine.responses import whole_response
from deploy.engine.wording import FINGERPRINT, json_text

EMBEDDING_SIZE: Final = 64


def plain_body(asked: Asked, answer_id: str, created_s: int, texts: list[str]) -> bytes:
    """The JSON of a whole answer; `texts` holds one text per answer."""
    match asked.api:
        case Api.CHAT:
            return json_text(_chat(asked, answer_id, created_s, texts))
        case Api.COMPLETION:
            return json_text(_completion(asked, answer_id, created_s, texts))
        case Api.RESPONSE:
            message_id = "msg_" + answer_id.removeprefix(Api.RESPONSE.value)
            return json_text(whole_response(asked, answer_id, created_s, message_id, texts[0]))
        case Api.EMBEDDING:
            return json_text(_embedding(asked, answer_id, created_s))


def _usage(asked: Asked) -> dict[str, Any]:
    output = 0 if asked.api is Api.EMBEDDING else asked.max_tokens * asked.n * len(asked.prompts)
    return {
        "prompt_tokens": asked.prompt_tokens,
        "total_tokens": asked.prompt_tokens + output,
        "completion_tokens": output,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def _chat(asked: Asked, answer_id: str, created_s: int, texts: list[str]) -> dict[str, Any]:
    return {
        "id": answer_id,
        "object": "chat.completion",
        "created": created_s,
        "model": asked.model,
        "choices": [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": text,
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": asked.finish_reason,
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
            for index, text in enumerate(texts)
        ],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": _usage(asked),
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _completion(asked: Asked, answer_id: str, created_s: int, texts: list[str]) -> dict[str, Any]:
    return {
        "id": answer_id,
        "object": "text_completion",
        "created": created_s,
        "model": asked.model,
        "choices": [
            {
                "index": index,
                "text": text,
                "logprobs": None,
                "finish_reason": asked.finish_reason,
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
            for index, text in enumerate(texts)
        ],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": _usage(asked),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _embedding(asked: Asked, answer_id: str, created_s: int) -> dict[str, Any]:
    # The one shape that is not from a recording: the recorded engine served a text model only.
    usage = _usage(asked)
    del usage["completion_tokens_details"]
    return {
        "id": answer_id,
        "object": "list",
        "created": created_s,
        "model": asked.model,
        "data": [
            {"index": index, "object": "embedding", "embedding": _vector(offset, is_base64=asked.is_base64)}
            for index, offset in enumerate(asked.offsets)
        ],
        "usage": usage,
    }


def _vector(offset: int, *, is_base64: bool) -> list[float] | str:
    draw = random.Random(offset)
    vector = [round(draw.uniform(-1, 1), 6) for _ in range(EMBEDDING_SIZE)]
    return base64.b64encode(struct.pack(f"<{EMBEDDING_SIZE}f", *vector)).decode() if is_base64 else vector


def models_body(models: tuple[str, ...], created_s: int, max_model_len: int) -> bytes:
    """The list of models."""
    permission = {
        "object": "model_permission",
        "created": created_s,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    data = [
        {
            "id": name,
            "object": "model",
            "created": created_s,
            "owned_by": "vllm",
            "root": models[0],
            "parent": None,
            "max_model_len": max_model_len,
            "permission": [{"id": f"modelperm-{index:016x}", **permission}],
        }
        for index, name in enumerate(models)
    ]
    return json_text({"object": "list", "data": data})
