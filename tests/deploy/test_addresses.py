import pytest

from deploy.addresses import parsed_engine, repeated
from workers.config import InstanceConfig


@pytest.mark.parametrize(
    ("text", "identity", "url"),
    [
        ("http://10.0.0.5:8000", "10.0.0.5-8000", "http://10.0.0.5:8000"),
        ("http://host/", "host-80", "http://host"),
        ("https://host", "host-443", "https://host"),
        ("http://host:8000/v1/", "host-8000", "http://host:8000"),
        ("http://host:8000/v1", "host-8000", "http://host:8000"),
        ("big=http://host:1/base/", "big", "http://host:1/base"),
        ("http://host:1/a=b", "host-1", "http://host:1/a=b"),
        ("http://[::1]:8000", "--1-8000", "http://[::1]:8000"),
    ],
)
def test_an_engine_is_named_by_its_id_or_its_host_and_port(text, identity, url):
    """An id before `=` is taken, else one is made of host and port."""
    assert parsed_engine(text) == InstanceConfig(id=identity, engine_url=url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host:8000",
        "ftp://h",
        "http://",
        "http://h:0",
        "http://h:99999",
        "=http://h",
        "a b=http://h",
        "x" * 65 + "=http://h",
        "http://h/?q",
        "http://h h",
        "http://user:pw@h",
    ],
)
def test_what_is_no_engine_is_refused(text):
    """A text that names no engine raises a ValueError that says what is allowed."""
    with pytest.raises(ValueError, match="ID=]URL"):
        parsed_engine(text)


def test_ids_that_two_engines_share_are_found():
    """Two engines of one id would share one queue."""
    one, other = InstanceConfig(id="a", engine_url="http://x"), InstanceConfig(id="b", engine_url="http://y")
    assert repeated((one, other)) == ""
    assert repeated((one, other, one)) == "a"
