"""Hostile bodies: what stands in a well-framed request."""

import gzip
import json
import random

from tests.processes.attack import ENGINE_REFUSES, METERED_KEY, Attack, post, rubbish, valid, value


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
    packed = gzip.compress(valid(), mtime=0)
    encoding, body, allowed = rng.choice(
        [
            ("gzip", rubbish(rng), {400}),
            ("gzip", packed[: len(packed) // 2], {400}),
            ("gzip", gzip.compress(b" " * 20_000_000, mtime=0), {413}),
            ("deflate", rubbish(rng), {400}),
            ("br", rubbish(rng), {400}),
            ("zstd", rubbish(rng), {400}),
            ("rot13", valid(), {200, 400, 415}),
            ("gzip, gzip", gzip.compress(packed, mtime=0), {400}),
        ]
    )
    return Attack("compression", post(body, f"content-encoding: {encoding}"), frozenset(allowed))
