"""Hostile requests, made from a seed: what each class of them looks like on the wire, and what may be answered to it.

Owns the generator only: no sockets, no processes. Every class names the statuses that are right for it; 0 stands for
a connection that ends without an answer, which is right only where the client itself has broken off.
"""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

KEY = "fb-hostile-test-key"
METERED_KEY = "fb-hostile-metered-key"
CHAT = "/v1/chat/completions"
ENGINE_REFUSES = frozenset({400, 422})


class Attack(NamedTuple):
    """One connection's worth of bytes."""

    kind: str
    data: bytes
    allowed: frozenset[int]
    ends: str = "waits"
    """What the client does when it has sent all: waits for the answer, half_closes, or leaves."""


def head(method: str, target: str | bytes, *lines: str | bytes, version: str = "HTTP/1.1", key: str = KEY) -> bytes:
    """Head of a request, of whatever bytes."""
    raw = target if isinstance(target, bytes) else target.encode()
    fixed = [
        method.encode() + b" " + raw + b" " + version.encode(),
        b"host: x",
        b"authorization: Bearer " + key.encode(),
    ]
    rest = [line if isinstance(line, bytes) else line.encode("utf-8", "surrogateescape") for line in lines]
    return b"\r\n".join([*fixed, *rest]) + b"\r\n\r\n"


def post(body: bytes, *lines: str | bytes, path: str | bytes = CHAT, key: str = KEY) -> bytes:
    """A whole request, well framed, its connection closed after it."""
    framing = ("content-type: application/json", f"content-length: {len(body)}", "connection: close")
    named = {(line if isinstance(line, str) else line.decode("latin-1")).split(":")[0].lower() for line in lines}
    kept = [line for line in framing if line.split(":")[0] not in named]
    return head("POST", path, *kept, *lines, key=key) + body


def valid(**fields: object) -> bytes:
    """Body of a chat request."""
    body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    return json.dumps({**body, **fields}).encode()


def rubbish(rng: random.Random, most: int = 400) -> bytes:
    """Bytes of any kind."""
    return rng.randbytes(rng.randrange(1, most))


def value(rng: random.Random, depth: int = 0) -> object:
    """Any JSON value."""
    kind = rng.randrange(9 if depth < 4 else 7)
    plain: list[Callable[[], object]] = [
        lambda: None,
        lambda: rng.choice([True, False]),
        lambda: rng.choice([0, -1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30]),
        lambda: rng.choice([0.5, -0.0, 1e308, 5e-324]),
        lambda: "".join(chr(rng.choice([0, 10, 65, 233, 0x4E2D, 0x1F600])) for _ in range(rng.randrange(20))),
        lambda: rng.choice(["", "sim", "system", "\u202e", "a" * 5_000]),
        dict,
        lambda: [value(rng, depth + 1) for _ in range(rng.randrange(4))],
        lambda: {rng.choice(["model", "x", "role", "content", ""]): value(rng, depth + 1) for _ in range(3)},
    ]
    return plain[kind]()


# --- bodies


def broken_json(rng: random.Random) -> Attack:
    """JSON that ends too soon, goes on too long, or is none."""
    whole = valid()
    cut = rng.randrange(len(whole))
    body = rng.choice([whole[:cut], whole[:cut] + rubbish(rng), rubbish(rng), b"", whole + b"}", b"{" + whole])
    return Attack("broken JSON", post(body), frozenset({400}))


def no_object(rng: random.Random) -> Attack:
    """JSON of another kind."""
    body = json.dumps(rng.choice([[], 1, "x", None, True, [value(rng)]])).encode()
    return Attack("JSON that is no object", post(body), frozenset({400}))


def any_fields(rng: random.Random) -> Attack:
    """Fields with values of any type."""
    names = ["messages", "stream_options", "n", "tools", "temperature", "stop", "prompt", "input", "documents", "user"]
    fields = {name: value(rng) for name in rng.sample(names, 3)}
    return Attack("fields of any type", post(valid(**fields), key=METERED_KEY), frozenset({200}) | ENGINE_REFUSES)


def bad_model(rng: random.Random) -> Attack:
    """A model that is no name."""
    model = rng.choice([1, True, [], {}, ["sim"], "x" * 2_000, 1e9])
    return Attack("a model that is no name", post(valid(model=model)), frozenset({400}))


def unknown_model(rng: random.Random) -> Attack:
    """A name that nobody serves."""
    name = rng.choice(["", "SIM", "sim ", "sim\x00", "../sim", "\u0441im", "%73im", "x" * 500, "'; DROP TABLE models"])
    return Attack("an unknown model", post(valid(model=name)), frozenset({404}))


def token_limits(rng: random.Random) -> Attack:
    """Limits that no engine can keep."""
    limit = rng.choice([0, -1, -(2**63), 2**31, 2**53, 2**63, 2**64, 10**40, 1.5, "7", [], 1e308])
    field = rng.choice(["max_tokens", "max_completion_tokens", "max_output_tokens"])
    fields = {"max_tokens": 2, field: limit}
    return Attack("max_tokens out of range", post(valid(**fields)), frozenset({200}) | ENGINE_REFUSES)


def deep(rng: random.Random) -> Attack:
    """Brackets in brackets."""
    depth = rng.choice([100, 1_000, 20_000, 200_000])
    opening = rng.choice([b"[", b'{"a":'])
    body = b'{"model":"sim","messages":' + opening * depth
    if rng.random() < 0.5:
        body += b"1" + (b"]" if opening == b"[" else b"}") * depth + b"}"
    return Attack("deep nesting", post(body), ENGINE_REFUSES | {200})


def bad_utf8(rng: random.Random) -> Attack:
    """Bytes that are no UTF-8."""
    bad = rng.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\x80", b"\xe2\x82"])
    place = rng.choice(
        [b'"model":"sim%b"', b'"model":"sim","messages":[{"role":"user","content":"%b"}]', b'"%b":1,"model":"sim"']
    )
    return Attack("invalid UTF-8", post(b"{" + place.replace(b"%b", bad) + b"}"), ENGINE_REFUSES | {404})


def null_bytes(rng: random.Random) -> Attack:
    """Null bytes somewhere in a body."""
    whole = valid()
    cut = rng.randrange(len(whole))
    return Attack(
        "null bytes in a body", post(whole[:cut] + b"\x00" * rng.randrange(1, 99) + whole[cut:]), ENGINE_REFUSES | {404}
    )


def surrogates(rng: random.Random) -> Attack:
    """Escapes of half a character."""
    escape = rng.choice(["\\ud800", "\\udfff\\ud800", "\\u0000", "\\uD83D"])
    body = valid(model="@").replace(b"@", escape.encode())
    return Attack("lone surrogates", post(body), frozenset({400, 404}))


def multipart(rng: random.Random) -> Attack:
    """Multipart bodies that are none."""
    kind = rng.choice(
        [
            "multipart/form-data",
            "multipart/form-data; boundary=x",
            "multipart/;boundary=",
            'multipart/x; boundary="',
            "multipart/form-data; boundary=" + "y" * 300,
        ]
    )
    body = rng.choice(
        [
            rubbish(rng),
            b"--x\r\n",
            b"--x\r\n\r\n--x--",
            b"--x\r\nContent-Disposition: form-data; name=model\r\n\r\n" + rubbish(rng) + b"\r\n--x--\r\n",
            b"--x\r\n" + b"a: b\r\n" * 5_000,
        ]
    )
    return Attack(
        "multipart rubbish", post(body, f"content-type: {kind}", path="/v1/audio/transcriptions"), frozenset({400, 404})
    )


def compressed(rng: random.Random) -> Attack:
    """Bodies that are not compressed as they say, or much too well."""
    packed = gzip.compress(valid())
    encoding, body, allowed = rng.choice(
        [
            ("gzip", rubbish(rng), {400}),
            ("gzip", packed[: len(packed) // 2], {400}),
            ("gzip", gzip.compress(b" " * 20_000_000), {413}),
            ("deflate", rubbish(rng), {400}),
            ("br", rubbish(rng), {400}),
            ("zstd", rubbish(rng), {400}),
            ("rot13", valid(), {200, 400, 415}),
            ("gzip, gzip", gzip.compress(packed), {400}),
        ]
    )
    return Attack("compression", post(body, f"content-encoding: {encoding}"), frozenset(allowed))


# --- framing


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


#: How often each class comes, of a hundred.
CLASSES: dict[Callable[[random.Random], Attack], int] = {
    broken_json: 8,
    no_object: 4,
    any_fields: 10,
    bad_model: 3,
    unknown_model: 4,
    token_limits: 6,
    deep: 3,
    bad_utf8: 4,
    null_bytes: 4,
    surrogates: 2,
    multipart: 4,
    compressed: 4,
    wrong_length: 5,
    absurd_length: 4,
    chunked: 7,
    pipelined: 4,
    bad_line: 5,
    bad_header: 8,
    bad_target: 6,
    no_key: 3,
    leaves: 3,
    method: 2,
}


def attacks(seed: int, count: int) -> Iterator[Attack]:
    """Make `count` of them; the same seed makes the same."""
    rng = random.Random(seed)
    for make in rng.choices(list(CLASSES), weights=list(CLASSES.values()), k=count):
        yield make(rng)
