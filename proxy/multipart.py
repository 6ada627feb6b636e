"""The `model` field of a multipart body, as audio uploads carry it; the parsing is aiohttp's."""

import asyncio
from typing import Final

import aiohttp
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError

#: A model name is short; a longer field is not one.
LONGEST_MODEL: Final = 1024


async def model_of_multipart(content_type: str, body: bytes) -> str | None:
    """Value of the part named `model`; None if there is none. Raises ValueError for a body that is not multipart."""
    loop = asyncio.get_running_loop()
    stream = aiohttp.StreamReader(BaseProtocol(loop), limit=max(len(body), 1), loop=loop)  # it is all there already
    stream.feed_data(body)
    stream.feed_eof()
    try:
        reader = aiohttp.MultipartReader({"Content-Type": content_type}, stream)
        while (part := await reader.next()) is not None:
            if isinstance(part, aiohttp.BodyPartReader) and part.name == "model":
                value = await part.read_chunk(LONGEST_MODEL)
                return value.decode("utf-8", "replace").strip() or None
    except (HttpProcessingError, AssertionError, Warning, RecursionError) as fault:  # aiohttp's ways to give up
        raise ValueError(str(fault) or "cannot be read") from fault
    return None
