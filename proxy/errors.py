"""From what went wrong to what a client is told: one table, OpenAI's shape."""

import math
from typing import Final

import msgspec
from aiohttp import web

from bus.hop.errors import AnswerTooSlow, CannotConnect, HopFailed, RequestUnusable
from bus.hop.openai_error import error_body
from proxy.admission import FleetFull
from proxy.door import KeyRefused
from proxy.facts import BadRequest
from proxy.limiter import RateLimited
from proxy.selection import NothingAlive, UnknownModel
from proxy.waiting import DeadlineExceeded


class Problem(msgspec.Struct, frozen=True):
    """Status, type and code of an error answer."""

    status: int
    kind: str
    code: str | None = None


#: First match wins, so the special comes before the general.
PROBLEMS: Final[tuple[tuple[type[BaseException], Problem], ...]] = (
    (BadRequest, Problem(400, "invalid_request_error")),
    (UnknownModel, Problem(404, "invalid_request_error", "model_not_found")),
    (NothingAlive, Problem(503, "service_unavailable", "no_live_instance")),
    (FleetFull, Problem(429, "rate_limit_error", "all_queues_full")),
    (DeadlineExceeded, Problem(504, "timeout_error", "deadline_exceeded")),
    (CannotConnect, Problem(502, "upstream_error", "worker_unreachable")),
    (AnswerTooSlow, Problem(504, "upstream_error", "worker_timeout")),
    (HopFailed, Problem(502, "upstream_error", "worker_broke_off")),
    (KeyRefused, Problem(401, "invalid_request_error", "invalid_api_key")),
    (RateLimited, Problem(429, "rate_limit_error", "rate_limit_exceeded")),
)


def problem_of(fault: BaseException) -> Problem | None:
    """Row of the table for `fault`; None for what is a bug of ours."""
    if isinstance(fault, RequestUnusable):
        return Problem(fault.status, "invalid_request_error", fault.code)
    return next((problem for kind, problem in PROBLEMS if isinstance(fault, kind)), None)


def error_response(
    status: int, message: str, *, kind: str = "invalid_request_error", code: str | None = None, param: str | None = None
) -> web.Response:
    """Error answer in OpenAI's shape."""
    body = error_body(message, kind=kind, code=code, param=param)
    return web.Response(status=status, body=body, content_type="application/json")


def response_of(fault: BaseException, problem: Problem) -> web.Response:
    """Answer that tells a client of `fault`."""
    message: str
    param: str | None
    if isinstance(fault, UnknownModel):
        message, param = f"The model `{fault}` does not exist.", "model"
    else:
        message, param = str(fault), fault.param if isinstance(fault, BadRequest) else None
    if problem.status == 500:
        message = "the gateway failed; its log says why"  # what a bug says is not for clients
    response = error_response(problem.status, message, kind=problem.kind, code=problem.code, param=param)
    if isinstance(fault, FleetFull):
        response.headers["Retry-After"] = str(max(1, math.ceil(fault.retry_after_s)))
    elif problem.status == 503:
        response.headers["Retry-After"] = "1"
    if isinstance(fault, KeyRefused):
        response.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(fault, RateLimited):
        response.headers["Retry-After"] = str(max(1, math.ceil(fault.retry_after_s)))
    return response
