"""Answers that refuse, in the shapes vLLM 0.32.0 was recorded with. Pure: status and bytes, no HTTP objects."""

from typing import Final

import msgspec


class Refused(Exception):
    """A request that is answered with an error; `status` and `body` (JSON bytes) are the answer."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


def error_body(message: str, kind: str, code: int, param: str | None = None) -> bytes:
    """VLLM's error object; the code is a number and repeats the status."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def bad_request(message: str, param: str | None = None, *, value: object = msgspec.UNSET) -> Refused:
    """A request the engine understood and will not run; with a parameter, vLLM repeats it in the message."""
    if param is not None:
        shown = "" if value is msgspec.UNSET else f", value={value}"
        message = f"{message} (parameter={param}{shown})"
    return Refused(400, error_body(message, "BadRequestError", 400, param))


def invalid(kind: str, location: str, message: str, value: object, context: str | None = None) -> Refused:
    """A body that does not validate; the message shows the validator's record as vLLM prints it."""
    extra = f", 'ctx': {{'error': {context!r}}}" if context is not None else ""
    shown = f"'type': {kind!r}, 'loc': {location!r}, 'msg': {message!r}, 'input': {_shown(value)!r}{extra}"
    return Refused(400, error_body(f"1 validation error:\n  {{{shown}}}", "Bad Request", 400, location))


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return f"<dict of {len(value)} items>"
    if isinstance(value, list):
        return f"<list of {len(value)} items>"
    return str(value)


def unknown_model(name: str, models: tuple[str, ...]) -> Refused:
    """No such model here."""
    message = f"The model `{name}` does not exist. Valid aliases: {', '.join(models)}."
    return Refused(404, error_body(message, "NotFoundError", 404, "model"))


WRONG_MEDIA_TYPE: Final = error_body(
    "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", "Bad Request", 400
)
QUEUE_FULL: Final = error_body(
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
    "Service Unavailable",
    503,
)
# Status, code and the words of SHUT_DOWN were observed; type and the words of ENGINE_DEAD are not from a recording.
ENGINE_DEAD: Final = error_body(
    "EngineCore encountered an issue. See stack trace (above) for the root cause.", "InternalServerError", 500
)
SHUT_DOWN: Final = error_body("cannot schedule new futures after shutdown", "InternalServerError", 500)
UNAUTHORIZED: Final = b'{"error":"Unauthorized"}'
NOT_FOUND: Final = b'{"detail":"Not Found"}'
NOT_ALLOWED: Final = b'{"detail":"Method Not Allowed"}'
