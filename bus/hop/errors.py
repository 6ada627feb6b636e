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
