"""One line of `forebay check`: what was looked at, whether it is right, and what to do if not."""

from typing import Literal

import msgspec

Verdict = Literal["right", "note", "wrong"]


class Finding(msgspec.Struct, frozen=True):
    """The outcome of one look; `advice` says what to do."""

    verdict: Verdict
    subject: str
    text: str
    advice: str = ""

    def __str__(self) -> str:
        arrow = f" → {self.advice}" if self.advice else ""
        return f"{self.verdict:5}  {self.subject}: {' '.join(self.text.split())}{arrow}"


def right(subject: str, text: str) -> Finding:
    """Return that all is well.

    >>> print(right("port 8000", "free"))
    right  port 8000: free
    """
    return Finding("right", subject, text)


def note(subject: str, text: str, advice: str = "") -> Finding:
    """Return something worth knowing that stops nothing."""
    return Finding("note", subject, text, advice)


def wrong(subject: str, text: str, advice: str) -> Finding:
    """Return something that will not work, and what to do about it."""
    return Finding("wrong", subject, text, advice)
