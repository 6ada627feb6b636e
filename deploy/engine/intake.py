"""From a request body to the work it asks for, or the error vLLM gives. Pure: no HTTP objects, no clock, no queue."""

import json
from enum import Enum
from typing import Any, Final

import msgspec

from deploy.engine import prompt as prompts
from deploy.engine.config import EngineConfig
from deploy.engine.errors import WRONG_MEDIA_TYPE, Refused, bad_request, invalid, unknown_model
from deploy.engine.prompt import Prompt
from deploy.engine.text import digest, draw_output_tokens

COMPLETION_DEFAULT_TOKENS: Final = 16  # /v1/completions without max_tokens, as in OpenAI's API and in vLLM
_decode = msgspec.json.Decoder().decode

#: Answers to one prompt: vLLM's VLLM_MAX_N_SEQUENCES.
MOST_SEQUENCES = 16384


class Api(Enum):
    """An endpoint that runs the engine, and the prefix of its ids."""

    CHAT = "chatcmpl-"
    COMPLETION = "cmpl-"
    RESPONSE = "resp_"
    EMBEDDING = "embd-"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks the engine to do: each prompt is answered `n` times, each answer has `max_tokens` tokens."""

    api: Api
    model: str
    prompts: list[Prompt]
    offsets: list[int]  # per prompt, where in the ring of tokens its first answer begins
    n: int
    max_tokens: int
    limit: int | None  # what the client set, None if the length was drawn
    is_stream: bool
    has_usage_chunk: bool
    has_usage_everywhere: bool
    is_base64: bool = False

    @property
    def finish_reason(self) -> str:
        """`length` for an answer that a limit ended, `stop` for one that ended by itself."""
        return "stop" if self.limit is None else "length"

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(prompt.tokens for prompt in self.prompts)


def parse(body: bytes, content_type: str, api: Api, config: EngineConfig, *, is_checked: bool = True) -> Asked:
    """Read a request. Raises Refused with vLLM's answer.

    With `is_checked` false any model stands for the first one, and a limit of no tokens is one token.
    """
    fields = _read_object(body, content_type)
    model = _model(fields, config, is_checked=is_checked)
    asked_prompts = _prompts(fields, api)
    limit = _limit(fields, api, config, least=1 if is_checked else 0)
    _check_sampling(fields)
    stream = fields.get("stream") is True and api is not Api.EMBEDDING
    options = _stream_options(fields, is_stream=stream)
    room = _room(asked_prompts, config)
    first_offset = digest(config.seed, asked_prompts[0].data)
    wanted = draw_output_tokens(config.mean_output_tokens, first_offset) if limit is None else limit
    return Asked(
        api=api,
        model=model,
        prompts=asked_prompts,
        offsets=[first_offset, *(digest(config.seed, prompt.data) for prompt in asked_prompts[1:])],
        n=_choices(fields),
        max_tokens=1 if api is Api.EMBEDDING else min(wanted, room),
        limit=limit,
        is_stream=stream,
        has_usage_chunk=options.get("include_usage") is True,
        has_usage_everywhere=options.get("continuous_usage_stats") is True and options.get("include_usage") is True,
        is_base64=fields.get("encoding_format") == "base64",
    )


def _read_object(body: bytes, content_type: str) -> dict[str, Any]:
    if content_type != "application/json":
        raise Refused(400, WRONG_MEDIA_TYPE)
    if not body:
        raise invalid("missing", "body", "Field required", None)
    try:
        fields = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _why_not_json(body) from None
    if not isinstance(fields, dict):
        raise invalid(
            "model_attributes_type",
            "body",
            "Input should be a valid dictionary or object to extract fields from",
            fields,
        )
    return fields


def _why_not_json(body: bytes) -> Refused:
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        return invalid("json_invalid", f"body.{error.pos}", "JSON decode error", {}, error.msg)
    except UnicodeDecodeError:
        return Refused(400, b'{"detail":"There was an error parsing the body"}')
    # JSON, but with a lone surrogate: the tokenizer is what refuses it.
    return bad_request("TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]")


def _model(fields: dict[str, Any], config: EngineConfig, *, is_checked: bool) -> str:
    model = fields.get("model")
    if model is None or model == "":
        return config.models[0]
    if not isinstance(model, str):
        raise invalid("string_type", "body.model", "Input should be a valid string", model)
    if model in config.models:
        return model
    if is_checked:
        raise unknown_model(model, config.models)
    return config.models[0]


def _prompts(fields: dict[str, Any], api: Api) -> list[Prompt]:
    match api:
        case Api.CHAT:
            return [_chat_prompt(fields)]
        case Api.COMPLETION:
            name = "prompt"
        case Api.RESPONSE | Api.EMBEDDING:
            name = "input"
    value = fields.get(name)
    if value is None:
        raise invalid("missing", f"body.{name}", "Field required", fields)
    if api is Api.RESPONSE and isinstance(value, list):
        return [prompts.from_messages(value)]
    found = prompts.from_input(value)
    if not found:
        raise invalid("string_type", f"body.{name}", "Input should be a valid string", value)
    return found


def _chat_prompt(fields: dict[str, Any]) -> Prompt:
    messages = fields.get("messages")
    if messages is None:
        raise invalid("missing", "body.messages", "Field required", fields)
    if not isinstance(messages, list):
        raise invalid("list_type", "body.messages", "Input should be a valid list", messages)
    if not messages:
        raise bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return prompts.from_messages(messages)


def _limit(fields: dict[str, Any], api: Api, config: EngineConfig, *, least: int) -> int | None:
    match api:
        case Api.EMBEDDING:
            return None
        case Api.RESPONSE:
            names = ["max_output_tokens"]
        case Api.CHAT:
            names = ["max_completion_tokens", "max_tokens"]
        case Api.COMPLETION:
            names = ["max_tokens"]
    name = next((name for name in names if fields.get(name) is not None), None)
    if name is None:
        return COMPLETION_DEFAULT_TOKENS if api is Api.COMPLETION else None
    value = _integer(fields[name], name)
    if value < least:
        raise bad_request(f"max_tokens must be at least 1, got {value}.", "max_tokens", value=value)
    longest = config.batching.max_model_len
    if value > longest:
        raise bad_request(
            f"max_tokens={value} cannot be greater than max_model_len={longest}. Please request fewer output tokens.",
            "max_tokens",
            value=value,
        )
    return max(1, value)


def _integer(value: object, name: str) -> int:
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        if isinstance(value, str):
            return int(value)
    except ValueError:
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise invalid("int_parsing", f"body.{name}", message, value) from None
    raise invalid("int_type", f"body.{name}", "Input should be a valid integer", value)


def _check_sampling(fields: dict[str, Any]) -> None:
    temperature = fields.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        shown = float(temperature)
        raise bad_request(f"temperature must be non-negative, got {shown}.", "temperature", value=shown)
    top_p = fields.get("top_p")
    if isinstance(top_p, int | float) and not 0 < top_p <= 1:
        shown = float(top_p)
        raise bad_request(f"top_p must be in (0, 1], got {shown}.", "top_p", value=shown)


def _choices(fields: dict[str, Any]) -> int:
    n = fields.get("n")
    n = 1 if n is None else _integer(n, "n")
    if n > MOST_SEQUENCES:
        raise bad_request(f"n must be at most {MOST_SEQUENCES}, got {n}.", "n", value=n)
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}.")
    return n


def _stream_options(fields: dict[str, Any], *, is_stream: bool) -> dict[str, Any]:
    options = fields.get("stream_options")
    if options is None:
        return {}
    if not is_stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    return options if isinstance(options, dict) else {}


def _room(asked_prompts: list[Prompt], config: EngineConfig) -> int:
    """Tokens an answer may have: what the longest prompt leaves of the context. vLLM cuts a larger limit to it."""
    longest = max(prompt.tokens for prompt in asked_prompts)
    context = config.batching.max_model_len
    if longest >= context:
        # vLLM stops counting once the prompt is too long, so it names one token more than the context.
        raise bad_request(
            f"This model's maximum context length is {context} tokens. However, your prompt contains at least "
            f"{context + 1} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
            value=context + 1,
        )
    return context - longest
