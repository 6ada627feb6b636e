"""The seams: the ticket that travels with a request, and which headers may cross a hop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.hop.headers import HOP_BY_HOP, PRIORITIES, PRIVATE, Ticket, forwardable, header, read_ticket, write_ticket
from bus.tokens import TextBytes

COUNT = st.integers(0, 10**12)
TICKETS = st.builds(
    Ticket,
    reservation=st.text(st.characters(codec="ascii", categories=["L", "N", "P"], exclude_characters=";"), min_size=1),
    tokens=st.integers(1, 10**12),
    text=st.none() | st.builds(TextBytes, COUNT, COUNT, COUNT),
    sequences=st.integers(1, 1000),
    output=st.none() | COUNT,
    is_stream=st.booleans(),
    strips_usage=st.booleans(),
    priority=st.sampled_from(PRIORITIES),
    left_ms=st.none() | COUNT,
)


@given(TICKETS)
def test_a_ticket_survives_its_header(ticket):
    """What a proxy writes is what a worker reads."""
    assert read_ticket(write_ticket(ticket)) == ticket


@given(st.text())
def test_no_header_value_raises(value):
    """Whatever a header holds it is a ticket or it is none."""
    ticket = read_ticket(value)
    assert ticket is None or (ticket.tokens >= 1 and ticket.reservation)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "r1",
        ";tokens=3",
        "r1;tokens=0",
        "r1;tokens=-3",
        "r1;tokens=1.5",
        "r1;tokens=NaN",
        "r1;tokens=\u0663",
        "r1;tokens=1000000000001",
        "r1;tokens=3;text=-1.2.3",
        "r1;tokens=3;output=x",
        "r1;tokens=3;left=-1",
        "r1;tokens=3;output=" + "9" * 5000,
    ],
)
def test_what_is_no_ticket_is_none(value):
    """No amount, no reservation, or a number that is none."""
    assert read_ticket(value) is None


def test_parameters_of_the_future_are_skipped():
    """A newer proxy may say more to an older worker."""
    assert read_ticket("r1;tokens=3;colour=blue;flag") == Ticket(reservation="r1", tokens=3)


def test_hop_by_hop_headers_end_here():
    """Each of them, however it is written, and those that `connection` names."""
    kept = [(b"Accept", b"*/*"), (b"X-Custom", b"1"), (b"X-Custom", b"2")]
    dropped = [(name.title(), b"x") for name in HOP_BY_HOP] + [
        (b"Connection", b"X-One, x-two"),
        (b"connection", b"x-three"),
        (b"x-ONE", b""),
        (b"X-Two", b""),
        (b"X-Three", b""),
    ]
    assert forwardable([*dropped, *kept]) == kept


def test_a_clients_own_forebay_headers_end_here():
    """Nobody outside may speak for a proxy."""
    assert forwardable([(b"X-Forebay-Reservation", b"r;tokens=1"), (b"x-forebay-verdict", b"refused")]) == []


def test_private_headers_are_dropped_where_it_is_asked():
    """Credentials for the gateway are none for an engine."""
    headers = [(b"Authorization", b"Bearer k"), (b"Cookie", b"a=1"), (b"User-Agent", b"x")]
    assert forwardable(headers, drop=PRIVATE) == [(b"User-Agent", b"x")]
    assert forwardable(headers) == headers


def test_the_first_value_of_a_header_is_found_whatever_its_case():
    """None where there is none."""
    headers = [(b"X-A", b"1"), (b"x-a", b"2")]
    assert header(headers, b"x-a") == b"1"
    assert header(headers, b"x-b") is None
