"""How every Redis client of Forebay is made: no retries, short time limits, raw bytes."""

from typing import Any

import redis.asyncio as redis_asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import HiredisRespSerializer

from bus.errors import BusUnavailable


def connect(url: str, *, timeout_s: float) -> redis_asyncio.Redis:
    """Client for `url` whose every command ends within about `timeout_s` seconds; connects on first use.

    The library's own defaults (ten retries with backoff, 5 s each) would hold a request for over 20 s when the server
    is dead; here a fault is reported at once and the caller decides. Raises BusUnavailable for a URL it cannot read.
    """
    try:
        client = redis_asyncio.Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            health_check_interval=0,
        )
    except ValueError:
        # neither the URL nor what the library says of it: a part of a password may be taken for a port, and shown
        raise BusUnavailable("redis URL: expected redis://[USER:PASSWORD@]HOST:PORT[/DATABASE]") from None
    pool = client.connection_pool
    pool.connection_class = type(f"Packing{pool.connection_class.__name__}", (_Packing, pool.connection_class), {})
    return client


class _Packing:
    """Connection that packs commands in C, as the library's blocking ones do: a view asks for hundreds of keys."""

    def pack_command(self, *args: Any) -> list[bytes]:  # noqa: ANN401 - as the library has it
        """Bytes of one command."""
        packed: list[bytes] = _pack(*args)
        return packed


_pack = HiredisRespSerializer().pack
