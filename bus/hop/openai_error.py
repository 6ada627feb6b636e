"""Errors in OpenAI's shape, as a body and as an event of a stream. No I/O."""

from typing import Final

import msgspec

from bus.hop.sse import is_json

#: Bytes of an engine's plain text that a client is told.
LONGEST_TOLD: Final = 1000


def error_body(message: str, *, kind: str, code: str | int | None = None, param: str | None = None) -> bytes:
    """JSON body of an error.

    >>> error_body("no such model", kind="invalid_request_error", code="model_not_found", param="model")
    b'{"error":{"message":"no such model","type":"invalid_request_error","param":"model","code":"model_not_found"}}'
    """
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_in_shape(status: int, content_type: str, body: bytes) -> bytes | None:
    """An engine's error that is no JSON, told in OpenAI's shape; None where it is JSON and stays as it is.

    >>> error_in_shape(500, "text/plain; charset=utf-8", b"Internal Server Error")
    b'{"error":{"message":"Internal Server Error","type":"upstream_error","param":null,"code":"engine_error"}}'
    >>> error_in_shape(422, "application/json", b'{"detail":[]}') is None
    True
    """
    if is_json(body):
        return None
    is_plain = content_type.partition(";")[0].strip().lower() == "text/plain"
    text = body[:LONGEST_TOLD].decode("utf-8", "replace").strip() if is_plain else ""
    kind = "invalid_request_error" if status < 500 else "upstream_error"
    return error_body(text or f"the engine answered {status}", kind=kind, code="engine_error")


def error_event(message: str, *, kind: str, code: str | int | None = None) -> bytes:
    """Event that tells a client that its stream broke; after it the stream ends, without `[DONE]`.

    >>> error_event("engine went away", kind="upstream_error", code="engine_broke")
    b'data: {"error":{"message":"engine went away","type":"upstream_error","param":null,"code":"engine_broke"}}\\n\\n'
    """
    return b"data: " + error_body(message, kind=kind, code=code) + b"\n\n"
