"""Carries faults out: what `faults.py` names, done to a connection. No scheduling, no parsing."""

import asyncio
import socket
import struct
from typing import Final, NoReturn, cast

from aiohttp import web

from deploy.engine.errors import ENGINE_DEAD
from deploy.engine.exchange import StreamExchange
from deploy.engine.faults import FAULTS, Canned, FaultOrder
from deploy.engine.wording import DONE, event

HEADERS: Final = {"server": "uvicorn", "vary": "Origin"}
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_NOT_HTTP: Final = b"\x15\x03\x03\x00\x02\x02\x46 this is not HTTP\r\n\r\n"


async def until_client_leaves() -> NoReturn:
    """Wait for the cancellation that the end of the connection brings."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody sets this future")


def transport_of(request: web.Request) -> asyncio.Transport:
    """The connection's transport. Raises ConnectionResetError when the client has left."""
    if request.transport is None:
        raise ConnectionResetError("the client has left")
    return request.transport


def reset(transport: asyncio.BaseTransport) -> None:
    """End a connection with RST, as a process that is killed with unread data does; `abort` alone sends FIN."""
    if (connection := transport.get_extra_info("socket")) is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    # Not isinstance: uvloop's transports are no subclasses of asyncio's.
    cast(asyncio.Transport, transport).abort()


def canned_response(answer: Canned) -> web.Response:
    """An answer from the table."""
    headers = {**HEADERS, "content-type": answer.content_type, **dict(answer.headers)}
    return web.Response(status=answer.status, body=answer.body, headers=headers)


async def on_arrival(request: web.Request, order: FaultOrder) -> web.Response | None:
    """A fault in place of an answer; None if the answer may follow."""
    if order.fault.answer is not None:
        return canned_response(order.fault.answer)
    match order.kind:
        case "close":
            reset(transport_of(request))
        case "garbage_bytes":
            transport = transport_of(request)
            transport.write(_NOT_HTTP)
            transport.close()
        case "slow_metrics":
            await asyncio.sleep(order.delay_s)
            return None
        case _:  # hang, hang_work, hang_pages
            pass
    return await until_client_leaves()


async def in_stream(transport: asyncio.Transport, exchange: StreamExchange, kind: str) -> None:
    """Break a stream that has begun; returns if the body shall still end as HTTP wants it."""
    match kind:
        case "reset_mid_stream":
            reset(transport)
        case "close_mid_stream":
            transport.close()
        case "silent_mid_stream":
            pass
        case "garbage_mid_stream":
            exchange.write(b'data: {"id":"chatcm\xff\n\n')
            return
        case "cut_mid_stream":
            return
        case _:  # error_mid_stream, and an engine that stops
            exchange.write(event(ENGINE_DEAD) + DONE)
            return
    await until_client_leaves()


async def in_plain(transport: asyncio.Transport, kind: str) -> web.Response:
    """Break a plain request that the engine was working on."""
    match kind:
        case "reset_mid_stream":
            reset(transport)
        case "close_mid_stream":
            transport.close()
        case "silent_mid_stream":
            pass
        case "garbage_mid_stream" | "cut_mid_stream":
            answer = FAULTS["garbage_json"].answer
            assert answer is not None  # noqa: S101 - a row of the table
            return canned_response(answer)
        case _:
            return canned_response(Canned(500, ENGINE_DEAD))
    return await until_client_leaves()
