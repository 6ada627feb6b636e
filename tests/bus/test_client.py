import time

import pytest

from bus.client import connect
from bus.errors import BusUnavailable
from bus.scripts import BUS_FAULTS


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost:6379", "redis://user:se/cret@host:6379/0"])
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url):
    """The message says what a URL looks like and repeats no part of this one."""
    with pytest.raises(BusUnavailable, match=r"expected redis://") as refused:
        connect(url, timeout_s=1)

    assert not any(part in str(refused.value) for part in ("se/", "cret", "localhost"))
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


async def test_a_command_to_a_silent_server_ends_within_the_limit(real_bus):
    """No retry, no back-off: about one time limit, on an old connection as on a new one."""
    client = real_bus.connect(0.1)
    await client.execute_command("PING")
    real_bus.fall_silent()

    for _ in range(3):
        began_s = time.monotonic()
        with pytest.raises(BUS_FAULTS):
            await client.execute_command("PING")
        assert time.monotonic() - began_s < 0.5


async def test_a_command_to_a_port_where_nobody_listens_fails_at_once():
    """A refused connection is a fault now, not after ten tries."""
    client = connect("redis://127.0.0.1:1/0", timeout_s=5)

    began_s = time.monotonic()
    with pytest.raises(BUS_FAULTS):
        await client.execute_command("PING")

    assert time.monotonic() - began_s < 1
    await client.aclose()
