"""The `model` field of a multipart body, as audio uploads carry it. Of the rest only the delimiters are looked for."""

import re
from typing import Final

from aiohttp.helpers import parse_mimetype

#: A model name is short; a longer field is not one.
LONGEST_MODEL: Final = 1024

#: An upload has a handful of parts, and each a few lines before its content.
MOST_PARTS: Final = 64
LONGEST_HEAD: Final = 8 * 1024

#: Of RFC 2046.
_LONGEST_BOUNDARY: Final = 70

#: From the end of a delimiter: fields with a name and a colon.
_HEAD: Final = re.compile(rb"[ \t]*+(?:\r\n[^\s:]++:[^\r\n]*+)*+")
_IS_MODEL: Final = re.compile(
    rb'\n(?i:content-disposition):[^;\r\n"]*+'
    rb'(?:;[ \t]*+(?!(?i:name)=)(?:[^;\r\n"]|"(?:[^"\\\r\n]|\\.)*+")*+)*+'  # parameters before the name
    rb';[ \t]*+(?i:name)=(?:"model"|model)[ \t]*+(?:;|\r|\Z)'
)
_IS_ENCODED: Final = re.compile(rb"\ncontent-transfer-encoding:", re.IGNORECASE)


def model_of_multipart(content_type: str, body: bytes) -> str | None:
    r"""Value of the part named `model`; None if there is none. Raises ValueError for a body that is not multipart.

    >>> part = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--x--\r\n'
    >>> model_of_multipart("multipart/form-data; boundary=x", part)
    'whisper'
    """
    boundary = parse_mimetype(content_type).parameters.get("boundary", "").encode("utf-8", "surrogateescape")
    if not 1 <= len(boundary) <= _LONGEST_BOUNDARY:
        raise ValueError(f"its content type has no boundary of 1 to {_LONGEST_BOUNDARY} characters")
    delimiter = b"\r\n--" + boundary
    start = -2 if body.startswith(delimiter[2:]) else body.find(delimiter)
    if start == -1:
        raise ValueError("its boundary is not in it")
    for _ in range(MOST_PARTS):
        start += len(delimiter)
        if body.startswith(b"--", start):
            return None
        end = body.find(b"\r\n\r\n", start, start + LONGEST_HEAD)
        head = body[start:end] if end >= 0 else b"?"
        if _HEAD.fullmatch(head) is None:
            raise ValueError("the head of a part cannot be read")
        content, start = end + 4, body.find(delimiter, end + 2)
        if start < 0:
            raise ValueError("its last part has no end")
        if _IS_MODEL.search(head) is not None:
            value = body[content : min(start, content + LONGEST_MODEL)]
            return None if _IS_ENCODED.search(head) else value.decode("utf-8", "replace").strip() or None
    raise ValueError(f"it has more than {MOST_PARTS} parts")
