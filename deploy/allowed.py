"""What a type of a configuration struct allows, in words for people. Knows types only: no options, no commands."""

import re
from collections.abc import Sequence

from msgspec import inspect as introspect

LONGEST_SHOWN_VALUE = 80
"""Characters of a wrong value that a message repeats; the rest says nothing more."""

LOG_LEVELS = ("debug", "info", "warning", "error")

PASSWORD = re.compile(r":[^:@/\s]+@")
"""The password of a URL, which no message may repeat."""


def bare(kind: introspect.Type) -> introspect.Type:
    """Return a type without the metadata around it."""
    while isinstance(kind, introspect.Metadata):
        kind = kind.type
    return kind


def range_text(kind: introspect.Type) -> str:
    """Return the range of a type, or nothing where every value of the type will do.

    >>> range_text(introspect.IntType(ge=0, le=65535))
    '0 to 65535'
    >>> range_text(introspect.FloatType(gt=0, le=60.0))
    'above 0, up to 60'
    """
    match bare(kind):
        case introspect.IntType() | introspect.FloatType() as number:
            return number_range(number)
        case introspect.StrType(pattern=str() as pattern):
            return f"matching {pattern}"
        case introspect.LiteralType(values=values):
            return "one of " + ", ".join(str(value) for value in values)
        case introspect.VarTupleType(item_type=item):
            return range_text(item)
        case _:
            return ""


def number_range(kind: introspect.IntType | introspect.FloatType) -> str:
    """Return the bounds of a number.

    >>> number_range(introspect.IntType(ge=1))
    '1 or more'
    """
    if kind.ge is not None and kind.le is not None:
        return f"{kind.ge:.12g} to {kind.le:.12g}"
    parts = []
    if kind.gt is not None:
        parts.append(f"above {kind.gt:.12g}")
    if kind.ge is not None:
        parts.append(f"{kind.ge:.12g} or more")
    if kind.lt is not None:
        parts.append(f"below {kind.lt:.12g}")
    if kind.le is not None:
        parts.append(f"up to {kind.le:.12g}")
    return ", ".join(parts)


def allowed_values(kind: introspect.Type) -> str:
    """Return what may stand where a wrong value stood.

    >>> allowed_values(introspect.IntType(ge=0, le=65535))
    'a whole number, 0 to 65535'
    >>> allowed_values(introspect.LiteralType(values=("auto", "vllm")))
    'one of auto, vllm'
    """
    bounds = range_text(kind)
    match bare(kind):
        case introspect.BoolType():
            return "true or false"
        case introspect.IntType():
            noun = "a whole number"
        case introspect.FloatType():
            noun = "a number"
        case introspect.StrType():
            noun = "text"
        case introspect.VarTupleType(item_type=item, min_length=least):
            return f"{allowed_values(item)}, repeatable" + (f", at least {least}" if least else "")
        case _:
            return bounds
    return f"{noun}, {bounds}" if bounds else noun


def shown_value(value: object) -> str:
    """Return a value as a message repeats it: on one line, not too long, lists item by item.

    >>> shown_value(("a", "b"))
    "'a', 'b'"
    >>> shown_value("redis://user:secret@host")
    "'redis://user:***@host'"
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        text = ", ".join(repr(item) for item in value) or "an empty list"
    else:
        text = repr(value)
    text = PASSWORD.sub(":***@", text)
    return text if len(text) <= LONGEST_SHOWN_VALUE else text[:LONGEST_SHOWN_VALUE] + "…"
