"""What an engine's error says of a request: declined before it was looked at, broken on it, or the client's own fault.

Statuses and words of engines only. No I/O.
"""

from typing import Final

from bus.hop.headers import BROKE, REFUSED
from bus.hop.sse import error_code

#: Statuses with which an engine refuses a request that another may take.
REFUSALS: Final = frozenset({429, 500, 502, 503, 504})

#: The same where the key that the engine was shown is ours: a wrong one is no fault of the client's.
KEY_REFUSALS: Final = frozenset({401, 403})

#: Of those the ones that an engine gives before it looks at a request: full, its model not loaded, a key that is none.
DECLINED: Final = frozenset({401, 403, 429, 503})

#: What vLLM says with a 500 while it ends what runs and takes nothing new; its /health is 200 meanwhile.
_SHUTS_DOWN: Final = b"cannot schedule new futures after shutdown"

#: A longer error is no such sentence.
_SENTENCE_BYTES: Final = 4096


def meaning(status: int, error: bytes) -> int:
    """The status that fits what an engine's error says: its own, but 503 where a 500 says that it shuts down.

    >>> meaning(500, b'{"error":{"message":"cannot schedule new futures after shutdown","code":500}}')
    503
    >>> meaning(500, b"Internal Server Error"), meaning(200, b"cannot schedule new futures after shutdown")
    (500, 200)
    """
    return 503 if status == 500 and _SHUTS_DOWN in error[:_SENTENCE_BYTES] else status


def meaning_of_event(event: bytes | None) -> int | None:
    """The same for an event of a stream; None for one that is no error.

    >>> meaning_of_event(b'data: {"error":{"code":429}}'), meaning_of_event(b"data: {}")
    (429, None)
    """
    code = error_code(event) if event is not None else None
    return None if code is None or event is None else meaning(code, event)


def verdict_on(status: int) -> str:
    """What an error of this meaning is: the engine declined before it looked at the request, or it broke on it.

    >>> verdict_on(503), verdict_on(500)
    ('refused', 'broke')
    """
    return REFUSED if status in DECLINED else BROKE
