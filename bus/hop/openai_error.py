"""Errors in OpenAI's shape, as a body and as an event of a stream. No I/O."""

import msgspec


def error_body(message: str, *, kind: str, code: str | int | None = None, param: str | None = None) -> bytes:
    """JSON body of an error.

    >>> error_body("no such model", kind="invalid_request_error", code="model_not_found", param="model")
    b'{"error":{"message":"no such model","type":"invalid_request_error","param":"model","code":"model_not_found"}}'
    """
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_event(message: str, *, kind: str, code: str | int | None = None) -> bytes:
    """Event that tells a client that its stream broke; after it the stream ends, without `[DONE]`.

    >>> error_event("engine went away", kind="upstream_error", code="engine_broke")
    b'data: {"error":{"message":"engine went away","type":"upstream_error","param":null,"code":"engine_broke"}}\\n\\n'
    """
    return b"data: " + error_body(message, kind=kind, code=code) + b"\n\n"
