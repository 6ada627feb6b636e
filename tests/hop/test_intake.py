"""Connections of clients that say nothing, or leave in the very turn in which they are answered."""

import asyncio
import logging
import socket

import pytest
from aiohttp import web

from bus.hop import intake
from bus.hop.errors import ClientLeft
from bus.hop.server import Listener
from tests.hop.scripted import Caller


@pytest.fixture
async def listen():
    """Listen with a handler; each listener is closed with the test."""
    listeners: list[Listener] = []

    async def make(handler, **more) -> str:
        one = Listener.of_handler(handler, "127.0.0.1", 0, body_limit=10**6, **more)
        listeners.append(one)
        await one.start()
        return f"http://127.0.0.1:{one.port}"

    yield make
    for one in listeners:
        await one.stop()


async def hello(_: web.BaseRequest) -> web.Response:
    """Answer well."""
    return web.Response(text="hello")


async def test_a_connection_on_which_nothing_comes_is_closed(listen, monkeypatch):
    """In order and without a word; one that has asked is kept by another rule."""
    monkeypatch.setattr(intake, "FIRST_BYTE_S", 0.05)
    url = await listen(hello)
    idle, asks = await Caller.dial(url), await Caller.ask(url, "/", method="GET")
    assert await asks.answer() == (200, b"hello")
    await idle.ended()
    idle.leave()
    asks.say(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert await asks.answer() == (200, b"hello")
    asks.leave()


async def test_a_client_that_leaves_as_its_answer_begins_is_no_fault_and_counted_once(listen, caplog):
    """Nobody is there to be told, and the log has no line for it."""
    left = asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        left.set()
        raise ClientLeft("before its answer began")

    unusable: list[int] = []
    url = await listen(handle, on_unusable=unusable.append)
    caller = await Caller.ask(url, "/", method="GET")
    await left.wait()
    await caller.ended()
    caller.leave()
    assert unusable == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked", 501),
        ("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: identity, chunked", 501),
        ("POST / HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\ntransfer-encoding: chunked", 400),
        ("POST / HTTP/1.1\r\nhost: a b/c\r\ntransfer-encoding: chunked", 400),
        ("POST / HTTP/1.1\r\nhost: \r\ntransfer-encoding: Chunked", 200),
        ("POST / HTTP/1.1\r\nhost: [fd00::1]:8000\r\ntransfer-encoding: chunked", 200),
        ("POST / HTTP/1.0\r\ncontent-length: 0", 200),
    ],
)
async def test_what_another_server_might_read_otherwise_is_refused_and_its_connection_ends(listen, head, status):
    """A request that two see two ways hides another one."""
    unusable: list[int] = []
    caller = await Caller.dial(await listen(hello, on_unusable=unusable.append))
    end = "\r\n\r\n0\r\n\r\n" if "chunked" in head.lower() else "\r\n\r\n"
    caller.say((head + end).encode())
    assert (await caller.answer())[0] == status
    if status != 200:
        assert unusable == [status]
        await caller.ended()
    caller.leave()


async def test_a_listener_that_leaves_takes_who_was_connected_already(caplog):
    """The kernel has made connections that nobody has accepted, with requests on them: each is answered."""
    listener = Listener.of_handler(hello, "127.0.0.1", 0, body_limit=10**6)
    await listener.start()
    clients = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(20)]  # without a turn of the loop
    for client in clients:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        client.setblocking(False)
    leaving = asyncio.create_task(listener.leave(linger_s=0.5))
    async with asyncio.timeout(10):
        for client in clients:
            answer = await asyncio.get_running_loop().sock_recv(client, 10_000)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert b"Connection: close" in answer
    await leaving
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listener.port))
    await listener.stop()
    for client in clients:
        client.close()
