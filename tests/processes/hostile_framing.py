"""Hostile framing: lines, headers, lengths and ends that are none."""

import random

from tests.processes.attack import CHAT, KEY, Attack, head, post, rubbish, valid


def wrong_length(rng: random.Random) -> Attack:
    """A length that is not the body's."""
    body = valid()
    length, ends, allowed = rng.choice(
        [
            (len(body) - rng.randrange(1, len(body)), "waits", {400}),
            (len(body) + 50, "half_closes", {0, 400}),
            (len(body) + 50, "leaves", {0}),
        ]
    )
    return Attack("a wrong length", head("POST", CHAT, f"content-length: {length}") + body, frozenset(allowed), ends)


def absurd_length(rng: random.Random) -> Attack:
    """A length that is no length."""
    length, allowed = rng.choice(
        [
            ("-1", {400}),
            ("abc", {400}),
            ("1e3", {400}),
            ("0x10", {400}),
            ("+5", {400}),
            ("5 5", {400}),
            ("99999999999999999999999999", {400, 413}),
            (str(10**12), {413}),
            ("7\r\ncontent-length: 9", {400}),
        ]
    )
    return Attack("an absurd length", head("POST", CHAT, f"content-length: {length}") + b"{}", frozenset(allowed))


def chunked(rng: random.Random) -> Attack:
    """Chunks that are none, or that two readers might read in two ways."""
    lines, body = rng.choice(
        [
            (["transfer-encoding: chunked", "content-length: 4"], b"0\r\n\r\n"),
            (["transfer-encoding: chunked"], b"zz\r\n{}\r\n0\r\n\r\n"),
            (["transfer-encoding: chunked"], b"FFFFFFFFFFFFFFFFFF\r\n{}"),
            (["transfer-encoding: chunked"], b"-2\r\n{}\r\n0\r\n\r\n"),
            (["transfer-encoding: chunked"], b"2\r\n{}0\r\n\r\n"),
            (["transfer-encoding: chunked"], b"2;" + b"x" * 20_000 + b"\r\n{}\r\n0\r\n\r\n"),
            (["transfer-encoding: chunked"], b"2\r\n{}\r\n0\r\n" + b"t: x\r\n" * 5_000 + b"\r\n"),
            (["transfer-encoding: xchunked"], b"2\r\n{}\r\n0\r\n\r\n"),
            (["transfer-encoding: chunked, identity"], b"2\r\n{}\r\n0\r\n\r\n"),
            (["transfer-encoding: identity, chunked"], b"2\r\n{}\r\n0\r\n\r\n"),
            (["transfer-encoding:\x0bchunked"], b"2\r\n{}\r\n0\r\n\r\n"),
            (["transfer-encoding: chunked"], b"2\n{}\n0\n\n"),
            (["transfer-encoding: chunked"], rubbish(rng)),
            (["transfer-encoding: chunked", "transfer-encoding: chunked"], b"2\r\n{}\r\n0\r\n\r\n"),
        ]
    )
    # 404 and 200: well-formed after all, a body without a model
    return Attack("chunked trickery", head("POST", CHAT, *lines) + body, frozenset({200, 400, 408, 422, 431}))


def pipelined(rng: random.Random) -> Attack:
    """A good request with rubbish behind it."""
    first = head("GET", "/v1/models")
    after = rng.choice([rubbish(rng), first * rng.randrange(1, 60) + rubbish(rng), b"\r\n" * 500, post(b"{") * 20])
    return Attack("pipelined rubbish", first + after, frozenset({200, 400}))


def bad_line(rng: random.Random) -> Attack:
    """No request line."""
    line = rng.choice(
        [
            rubbish(rng),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rubbish(rng),
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /\r\n\r\n",
            b"get / HTTP/1.1\r\n\r\n",
            b"GET  /  HTTP/1.1\r\n\r\n",
            b"GET\t/\tHTTP/1.1\r\n\r\n",
            b"G\x00T / HTTP/1.1\r\n\r\n",
            b"\r\n\r\n\r\nGET / HTT",
            b"HELO mail\r\n",
            b"A" * 100_000,
        ]
    )
    return Attack("no request line", line, frozenset({400, 401, 404, 408, 431}))


def bad_header(rng: random.Random) -> Attack:
    """Headers that are too long, too many, or none."""
    line, allowed = rng.choice(
        [
            (b"x" * 9_000 + b": 1", {431}),
            (b"x: " + b"y" * 9_000, {431}),
            (b"x: " + b"y" * 1_000_000, {431}),
            (b"x : 1", {400}),
            (b": 1", {400}),
            (b"no colon", {400}),
            (b"x\x00: 1", {400}),
            (b"x: \x00", {400}),
            (b"x: a\nb: c", {400, 200}),
            (b"x: a\rb: c", {400}),
            (b" folded: 1", {400, 200}),
            (b"x(y): 1", {400}),
            (b"x: \xff\xfe\x80", {200, 400}),
            (b"\r\n".join(b"h%d: v" % number for number in range(1_000)), {400, 431}),
            (b"host: y", {400, 200}),
            (b"expect: tea", {200, 400, 417}),
            (b"upgrade: h2c\r\nconnection: upgrade", {200, 400, 501}),
            (b"upgrade: websocket\r\nconnection: upgrade", {501}),
            (b"x-request-id: \x01", {200, 400}),
            (b"x-request-id: " + b"z" * 5_000, {200}),
            (b"x-forebay-reservation: r;tokens=99999999999999", {200}),
            (b"connection: authorization, content-length, host", {200}),
            (b"accept-encoding: *;q=nan", {200}),
            (b"range: bytes=99-1", {200}),
            (b"cookie: " + b"a=b; " * 1_000, {200}),
        ]
    )
    request = head("GET", "/v1/models", line)
    return Attack("strange headers", request, frozenset(allowed))


def bad_target(rng: random.Random) -> Attack:
    """Targets that mean something else to somebody else."""
    target, allowed = rng.choice(
        [
            (b"/v1/../metrics", {400, 404}),
            (b"/v1/%2e%2e/metrics", {400, 404}),
            (b"/v1/..%2fmetrics", {400, 404}),
            (b"/v1/./models", {400, 404}),
            (b"//evil.example/v1/models", {400, 404}),
            (b"http://evil.example/v1/models", {200, 400}),
            (b"http://[::1/v1/models", {400}),
            (b"*", {400, 404}),
            (b"evil.example:443", {400, 404}),
            (b"/v1/models/%00", {404}),
            (b"/v1/models/%ff%fe", {400, 404}),
            (b"/v1/models/\xff", {400, 404}),
            (b"/v1/models/%0d%0ax-evil:%201", {404}),
            (b"/v1/models/%zz%", {400, 404}),
            (b"/v1/models/" + b"a/" * 2_000, {404}),
            (b"/v1/models/" + b"a" * 20_000, {400, 431}),
            (b"/v1/models?" + b"a=b&" * 1_900, {200}),
            (b"/" + rng.randbytes(30).replace(b" ", b"").replace(b"\r", b"").replace(b"\n", b""), {400, 404}),
            (b"/debug/selections?limit=99999999999999999999", {404}),
            (b"/metrics", {404}),
            (b"/v1", {404}),
        ]
    )
    return Attack("strange targets", head("GET", target, "connection: close"), frozenset(allowed))


def no_key(rng: random.Random) -> Attack:
    """Keys that are not quite right."""
    key = rng.choice(["", "x", KEY[:-1], KEY + "x", KEY.upper(), "\u00e9", "a" * 5_000])
    return Attack("without a right key", post(valid(), key=key), frozenset({401}))


def leaves(rng: random.Random) -> Attack:
    """A client that leaves before it has said all."""
    whole = post(valid(stream=True, max_tokens=500))
    return Attack("leaves half-way", whole[: rng.randrange(1, len(whole) + 1)], frozenset({0}), "leaves")


def method(rng: random.Random) -> Attack:
    """Methods that nobody serves."""
    name, allowed = rng.choice(
        [
            ("PUT", {400, 404, 405, 200}),
            ("DELETE", {404, 405, 200}),
            ("OPTIONS", {404, 405, 200}),
            ("TRACE", {400, 404, 405, 200}),
            ("PATCH", {404, 405, 200, 400}),
            ("CONNECT", {400, 404, 405}),
            ("HEAD", {404, 405, 200}),
        ]
    )
    return Attack(f"method {name}", head(name, CHAT, "connection: close"), frozenset(allowed))
