"""Hostile framing: lines, headers, lengths and ends that are none."""

import random

from tests.processes.attack import CHAT, KEY, Attack, head, post, rubbish, valid

CHUNKED = "transfer-encoding: chunked"


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


#: Chunked bodies by RFC 9112, each around the same good request, which is answered 200 where its framing is believed.
#: What the grammar allows, the list of codings that ends in `chunked` too: the length is certain for every reader.
LEGAL_CHUNKS: list[tuple[list[str], bytes]] = [
    ([CHUNKED], b"%(size)x\r\n%(body)b\r\n0\r\n\r\n"),
    ([CHUNKED], b"%(size)X\r\n%(body)b\r\n0\r\n\r\n"),
    ([CHUNKED], b"000%(size)x\r\n%(body)b\r\n000\r\n\r\n"),
    ([CHUNKED], b'%(size)x;a=b;c="d"\r\n%(body)b\r\n0;e\r\n\r\n'),
    ([CHUNKED], b"%(size)x\r\n%(body)b\r\n0\r\nt: x\r\n\r\n"),
    (["transfer-encoding: CHUNKED"], b"%(size)x\r\n%(body)b\r\n0\r\n\r\n"),
]

#: Legal, and refused by whoever sets itself a limit, or does not know a coding (7.1.1, 6.1).
REFUSABLE_CHUNKS: list[tuple[list[str], bytes]] = [
    ([CHUNKED], b"%(size)x;" + b"x" * 20_000 + b"\r\n%(body)b\r\n0\r\n\r\n"),
    ([CHUNKED], b"%(size)x\r\n%(body)b\r\n0\r\n" + b"t: x\r\n" * 5_000 + b"\r\n"),
    (["transfer-encoding: identity, chunked"], b"%(size)x\r\n%(body)b\r\n0\r\n\r\n"),
    (["transfer-encoding: gzip, chunked"], b"%(size)x\r\n%(body)b\r\n0\r\n\r\n"),
]

#: Not legal, or read in two ways by two readers: whoever believes it can be made to take a body for a request.
ILLEGAL_CHUNKS: list[tuple[list[str], bytes]] = [
    ([CHUNKED, "content-length: 4"], b"%(size)x\r\n%(body)b\r\n0\r\n\r\n"),
    (["content-length: %(size)d", CHUNKED], b"%(body)b"),
    ([CHUNKED], b"zz\r\n%(body)b\r\n0\r\n\r\n"),
    ([CHUNKED], b"FFFFFFFFFFFFFFFFFF\r\n%(body)b"),
    ([CHUNKED], b"-%(size)x\r\n%(body)b\r\n0\r\n\r\n"),
    ([CHUNKED], b"+%(size)x\r\n%(body)b\r\n0\r\n\r\n"),
    ([CHUNKED], b"0x%(size)x\r\n%(body)b\r\n0\r\n\r\n"),
    ([CHUNKED], b" %(size)x\r\n%(body)b\r\n0\r\n\r\n"),
    ([CHUNKED], b"%(size)x \r\n%(body)b\r\n0\r\n\r\n"),
    ([CHUNKED], b"\r\n%(body)b\r\n0\r\n\r\n"),
    ([CHUNKED], b"%(size)x\r\n%(body)b0\r\n\r\n"),
    ([CHUNKED], b"%(size)x\r\n%(body)bx\r\n0\r\n\r\n"),
    ([CHUNKED], b"%(size)x;\na\r\n%(body)b\r\n0\r\n\r\n"),
    ([CHUNKED], b"%(size)x\n%(body)b\n0\n\n"),
    ([CHUNKED], b"%(size)x\r\n%(body)b\n0\r\n\r\n"),
    ([CHUNKED], b"%(size)x\r\n%(body)b\r\n0\r\nno colon\r\n\r\n"),
    (["transfer-encoding: xchunked"], b"%(size)x\r\n%(body)b\r\n0\r\n\r\n"),
    (["transfer-encoding: chunked, identity"], b"%(size)x\r\n%(body)b\r\n0\r\n\r\n"),
    (["transfer-encoding: identity"], b"%(body)b"),
    (["transfer-encoding:"], b"%(body)b"),
    (["transfer-encoding:\x0bchunked"], b"%(size)x\r\n%(body)b\r\n0\r\n\r\n"),
    ([CHUNKED, CHUNKED], b"%(size)x\r\n%(body)b\r\n0\r\n\r\n"),
]


def chunked(rng: random.Random) -> Attack:
    """Chunks that are none, that two readers might read in two ways, or that look odd and are in order."""
    kinds = [
        (LEGAL_CHUNKS, {200}),
        (REFUSABLE_CHUNKS, {200, 400, 431, 501}),
        (ILLEGAL_CHUNKS, {0, 400, 501}),
        ([([CHUNKED], rubbish(rng).replace(b"%", b""))], {400, 408}),  # 408: what had come might have gone on
    ]
    shapes, allowed = rng.choices(kinds, weights=[3, 2, 12, 1])[0]
    lines, shape = rng.choice(shapes)
    body = valid()
    facts = {"size": len(body), "body": body}
    data = shape % {name.encode(): value for name, value in facts.items()}
    framing = [line % facts for line in lines]
    request = head("POST", CHAT, "content-type: application/json", "connection: close", *framing) + data
    return Attack("chunked trickery", request, frozenset(allowed))


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
            (b"host: y", {400}),
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
