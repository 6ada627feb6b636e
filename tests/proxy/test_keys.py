"""API keys: what a file of them may say, whose key is shown, and one replica's own counts."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.hop.headers import PRIORITIES
from bus.key_limits import Limits
from proxy.key_file import KeyFile
from proxy.keys import ApiKey, KeysUnusable, OwnCounts, digest_of, find_key, line_of, parse_keys

HASH = "sha256:" + "ab" * 32


@given(
    st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    st.text(min_size=1),
    st.integers(0, 10**12),
    st.sampled_from(PRIORITIES),
)
def test_a_line_that_was_made_reads_back(name, secret, limit, priority):
    """What `forebay key new` prints is what a replica reads."""
    [key] = parse_keys(line_of(name, secret, Limits(limit, limit), priority))
    assert key == ApiKey(name, digest_of(secret), Limits(limit, limit), priority)


def test_comments_and_empty_lines_are_no_keys():
    """People keep notes in such files."""
    [key] = parse_keys(f"# who\n\n  a {HASH} inflight=3 # since May\n")
    assert (key.name, key.limits) == ("a", Limits(inflight=3))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a", "line 1"),
        (f"a {HASH[:-1]}", "line 1"),
        (f"a {HASH.upper()}", "line 1"),
        (f"b {HASH}\na/b {HASH}", "line 2"),
        (f"a {HASH} inflight=0", "inflight=N"),
        (f"a {HASH} inflight=-1", "inflight=N"),
        (f"a {HASH} inflight=٣", "inflight=N"),
        (f"a {HASH} inflight=1 inflight=2", "each once"),
        (f"a {HASH} speed=1", "limits are"),
        (f"a {HASH} priority=urgent", "high, normal, low"),
        (f"a {HASH} priority=low priority=low", "each once"),
        (f"a {HASH} priority", "limits are"),
        (f"a {HASH} inflight=9999999999999999999999", "limits are"),
        (f"a {HASH}\na sha256:{'1' * 64}", "name"),
        (f"a {HASH}\nb {HASH}", "key"),
    ],
)
def test_a_line_that_is_none_is_refused_by_its_number(text, says):
    """Where and why, and never what stands there."""
    with pytest.raises(KeysUnusable, match=says) as refused:
        parse_keys(text)
    assert "abab" not in str(refused.value)


def test_a_key_is_found_by_what_it_is_not_by_what_it_begins_with():
    """Only the whole key is the key."""
    keys = parse_keys("\n".join(line_of(name, f"secret-{name}", Limits()) for name in "abc"))
    found = find_key(keys, "secret-b")
    assert found is not None
    assert found.name == "b"
    for wrong in ("", "secret-", "secret-bb", "secret-B", "b", "\udcff", HASH):
        assert find_key(keys, wrong) is None


def test_own_counts_keep_both_limits():
    """Alone, a replica lets in what the limits allow, and again as time passes."""
    key, counts = ApiKey("a", b"", Limits(inflight=2, tokens_per_minute=600)), OwnCounts()
    for _ in range(2):
        assert counts.judge(key, 300, 0.0).is_let_in
        counts.take(key, 300, 0.0)
    assert counts.judge(key, 0, 0.0).limit == "inflight"
    counts.settle(key, 0, 0.0)
    verdict = counts.judge(key, 100, 0.0)
    assert (verdict.limit, verdict.retry_after_s) == ("tokens_per_minute", 10.0)
    assert counts.judge(key, 100, 10.0).is_let_in


def test_own_counts_forget_who_has_nothing_left():
    """A key that rests costs no memory."""
    key, counts = ApiKey("a", b"", Limits(inflight=2, tokens_per_minute=600)), OwnCounts()
    counts.take(key, 300, 0.0)
    counts.settle(key, -300, 0.0)
    assert (counts._spent, counts._inflight) == ({}, {})


def look_twice(file: KeyFile) -> None:
    """Until a change has been taken in."""
    file.refresh()
    file.refresh()


class TestFile:
    def test_a_changed_file_is_read_again(self, tmp_path):
        """Also where another file was moved over it."""
        path = tmp_path / "keys"
        path.write_text(line_of("a", "1", Limits()))
        file = KeyFile(str(path))
        (tmp_path / "new").write_text(line_of("b", "2", Limits()))
        (tmp_path / "new").replace(path)
        look_twice(file)
        assert [key.name for key in file.keys] == ["b"]

    def test_a_file_that_is_being_written_is_not_read(self, tmp_path):
        """Editors cut a file to nothing before they write it: at no time is a client shut out who is in both."""
        path, line = tmp_path / "keys", line_of("a", "1", Limits())
        path.write_text(line)
        file = KeyFile(str(path))
        for step in ("", line[:40], f"{line}\n{line_of('b', '2', Limits())}"):
            path.write_text(step)
            file.refresh()
            assert [key.name for key in file.keys] == ["a"]
        file.refresh()
        assert [key.name for key in file.keys] == ["a", "b"]

    def test_a_broken_file_keeps_the_keys_and_says_so_once(self, tmp_path, caplog):
        """Until it can be read again."""
        path = tmp_path / "keys"
        path.write_text(line_of("a", "1", Limits()))
        file = KeyFile(str(path))
        with caplog.at_level(logging.INFO, "forebay.proxy"):
            for text in ("rubbish secret-of-a-client\n", "rubbish again and again\n"):
                path.write_text(text)
                look_twice(file)
                look_twice(file)
            path.unlink()
            look_twice(file)
            assert [key.name for key in file.keys] == ["a"]
            path.write_text(line_of("c", "3", Limits()))
            look_twice(file)
        assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
        assert "secret-of-a-client" not in caplog.text
        assert [key.name for key in file.keys] == ["c"]

    def test_a_file_without_a_key_revokes_them_all(self, tmp_path, caplog):
        """It can be read, so it is meant; the log says what that does."""
        path = tmp_path / "keys"
        path.write_text(line_of("a", "1", Limits()))
        file = KeyFile(str(path))
        for text in ("", "# a has left\n"):
            path.write_text(line_of("b", "2", Limits()))
            look_twice(file)
            path.write_text(text)
            look_twice(file)
            assert file.keys == ()
        assert "nobody is let in" in caplog.text

    @pytest.mark.parametrize("content", [None, b"", b"# no key\n", b"\xff\xfe", b"rubbish"])
    def test_a_replica_does_not_start_without_keys_that_it_was_told_of(self, tmp_path, content):
        """An open door by a slip of the pen is worse than none."""
        if content is not None:
            (tmp_path / "keys").write_bytes(content)
        with pytest.raises(KeysUnusable, match="keys"):
            KeyFile(str(tmp_path / "keys"))
