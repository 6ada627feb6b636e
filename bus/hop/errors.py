"""What can go wrong on a hop, seen from the sending side."""

from bus.errors import ForebayError


class HopFailed(ForebayError):
    """The other side did not answer as HTTP promises."""


class CannotConnect(HopFailed):
    """No connection: nothing was sent, so sending it elsewhere is safe."""


class AnswerBroke(HopFailed):
    """The connection ended, or spoke no HTTP, before the answer was complete."""


class AnswerTooSlow(HopFailed):
    """A time limit ran out: for the head of the answer, or between two of its bytes."""


class AnswerTooLarge(HopFailed):
    """More bytes than whoever collects them is ready to hold."""


class ClientLeft(ForebayError):
    """Whoever asked has gone before the answer could begin: nobody's fault, and nobody to be told."""


class RequestUnusable(ForebayError):
    """A request of a client that cannot be taken, seen from the receiving side; `status` and `code` of its answer."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class BodyTooLarge(RequestUnusable):
    """More bytes than the limit, announced or sent."""

    def __init__(self) -> None:
        super().__init__("the request body is too large", 413, "request_too_large")


class BodyTooSlow(RequestUnusable):
    """The body was not complete in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"the request body was not complete within {timeout_s:g} s", 408, "request_timeout")


class BodyUnreadable(RequestUnusable):
    """Framing or compression of the body that is none."""

    def __init__(self) -> None:
        super().__init__("the request body cannot be read: broken framing or compression", 400, "bad_request")
