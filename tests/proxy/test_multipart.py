"""The model of an upload: found wherever it stands, and at no cost where a body is hostile."""

import pytest

from proxy.multipart import LONGEST_HEAD, LONGEST_MODEL, MOST_PARTS, model_of_multipart
from tests.costs import Calls, peak_bytes


def form(*parts: tuple[str, bytes], boundary: bytes = b"xyz") -> bytes:
    """A multipart body; a name may carry a file name."""
    lines = []
    for name, value in parts:
        lines += [b"--" + boundary, b'Content-Disposition: form-data; name="%b"' % name.encode(), b"", value]
    return b"\r\n".join([*lines, b"--" + boundary + b"--", b""])


KIND = "multipart/form-data; boundary=xyz"


def test_the_model_of_a_multipart_body_is_found_wherever_it_stands():
    """Before or after a large file."""
    file = ('file"; filename="a.wav', b"\x00\xff\r\n" * 200_000)
    for parts in ([("model", b"whisper"), file], [file, ("language", b"en"), ("model", b"whisper")]):
        assert model_of_multipart(KIND, form(*parts)) == "whisper"


def test_a_multipart_body_without_a_model_has_none():
    """An empty one is none, too."""
    assert model_of_multipart(KIND, form(("file", b"x"))) is None
    assert model_of_multipart(KIND, form(("model", b""))) is None


BAD_FORMS = [
    (KIND, b""),
    (KIND, b"rubbish"),
    (KIND, b"--xyz\r\n"),
    (KIND, b"--xyz\r\nno colon\r\n\r\nx\r\n--xyz--\r\n"),
    (KIND, form(("model", b"m"))[:-20]),
    (KIND, b"--xyz\r\n" + b"x: " + b"y" * 100_000),
    (KIND, form(("model", b"m")).replace(b"form-data;", b"form-data; \x00;")),
    ("multipart/form-data", form(("model", b"m"))),
    ("multipart/form-data; boundary=" + "b" * 100, form(("model", b"m"))),
    ("multipart/mixed; boundary=xyz", b"--xyz\r\nContent-Type: multipart/mixed\r\n\r\nx\r\n--xyz--\r\n"),
    (KIND, b"--xyz\r\nContent-Length: abc\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--xyz--\r\n"),
    (KIND, b"--xyz\r\nContent-Length: 5\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--xyz--\r\n"),
]


@pytest.mark.parametrize(("kind", "body"), BAD_FORMS)
def test_a_malformed_multipart_body_raises_nothing_but_value_error(kind, body):
    """Which becomes a 400; or there is no model in it."""
    try:
        model = model_of_multipart(kind, body)
    except ValueError:
        return
    assert model is None or isinstance(model, str)


def one_part(*head: bytes, value: bytes = b"whisper") -> bytes:
    """A body of one part with a head of these lines."""
    return b"\r\n".join([b"--xyz", *head, b"", value, b"--xyz--", b""])


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Disposition: form-data; name=model",
        b'content-disposition:form-data;NAME="model"',
        b'Content-Disposition: form-data; filename="a; name=x"; name="model" ; x=y',
        b'Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name="model"',
    ],
)
def test_a_name_is_read_however_a_client_writes_it(head):
    """With quotes or without, alone or beside others."""
    assert model_of_multipart(KIND, one_part(head)) == "whisper"
    assert model_of_multipart('Multipart/Form-Data; charset=utf-8; Boundary="xyz"', one_part(head)) == "whisper"


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Disposition: form-data; name="file"; filename="model"',
        b'Content-Disposition: form-data; filename="; name=model; "',
        b'Content-Disposition: form-data; name="models"',
        b'Content-Disposition: form-data; name="file"; name="model"',
        b'X-Content-Disposition: form-data; name="model"',
        b'Content-Disposition: form-data; name="model"\r\nContent-Transfer-Encoding: base64',
    ],
)
def test_what_only_looks_like_the_model_is_none(head):
    """Names of files, parts of names, and what would have to be decoded first."""
    assert model_of_multipart(KIND, one_part(head)) is None


def test_a_body_may_begin_with_words_that_nobody_reads():
    """As RFC 2046 allows; a space behind a delimiter, too."""
    body = b"words\r\n" + form(("file", b"--xy"), ("model", b" m\xff ")).replace(b"--xyz\r\n", b"--xyz \t\r\n")
    assert model_of_multipart(KIND, body) == "m\ufffd"


def test_a_value_is_read_as_far_as_a_name_goes():
    """What is longer is none of the models that there are."""
    assert model_of_multipart(KIND, form(("model", b"m" * 100_000))) == "m" * LONGEST_MODEL


@pytest.mark.parametrize("length", [0, 71])
def test_a_boundary_has_one_to_seventy_characters(length):
    """Others are none."""
    with pytest.raises(ValueError, match="no boundary"):
        model_of_multipart(f"multipart/form-data; boundary={'b' * length}", form(boundary=b"b" * length))


@pytest.mark.parametrize(
    "body",
    [
        form(("model", b"m"))[:-9],
        form(*[("x", b"")] * MOST_PARTS, ("model", b"m")),
        one_part(b"x: " + b"y" * LONGEST_HEAD),
        one_part(b"no colon"),
    ],
)
def test_a_body_that_no_client_sends_is_refused(body):
    """Without an end, of parts without number, or with a head that is none."""
    with pytest.raises(ValueError, match="part"):
        model_of_multipart(KIND, body)


@pytest.mark.parametrize("piece", [b"--xyz\r\n\r\n\r\n", b"\r\n", b"\r\n--xy", b"--xyz\r\na:\r\n"])
def test_a_hostile_body_costs_no_calls_and_no_memory(piece):
    """Whatever it repeats a hundred thousand times."""
    body = b"--xyz\r\n\r\n" + piece * 100_000 + b"\r\n--xyz--\r\n"

    def read() -> None:
        try:
            model_of_multipart(KIND, body)
        except ValueError:
            return

    assert Calls.of(read) < 20 * MOST_PARTS
    assert peak_bytes(read) < len(body) / 2
