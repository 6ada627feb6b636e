"""The one error root of the project, and what can go wrong on the bus."""


class ForebayError(Exception):
    """Root of every error that Forebay raises on purpose."""


class BusUnavailable(ForebayError):
    """The bus did not answer in time, or answered that it cannot serve."""

    def __init__(self, message: str, *, is_late: bool = False) -> None:
        super().__init__(message)
        self.is_late = is_late
        """No answer came in time: what was asked may have been done."""


class BusUnfit(ForebayError):
    """The server answers, and cannot do what the bus needs of it."""


class InvalidName(ForebayError):
    """A pool or instance name that cannot be part of a Redis key."""
