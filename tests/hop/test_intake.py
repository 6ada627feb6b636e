"""Connections of clients that say nothing, or leave in the very turn in which they are answered."""

import asyncio
import logging

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
