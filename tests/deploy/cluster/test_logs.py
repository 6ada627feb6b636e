from deploy.cluster.logs import LogFile


def test_the_last_lines_are_those_that_hold_something(tmp_path):
    """Empty lines say nothing, and half a character does not break the reading."""
    log = LogFile(tmp_path / "part.log")
    assert log.last_lines(3) == []
    log.path.write_bytes(b"one\n\ntwo \nthree\n\xff four\n\n")
    assert log.last_lines(2) == ["three", "\N{REPLACEMENT CHARACTER} four"]


def test_an_overlong_log_keeps_its_end_beside_it_and_begins_anew(tmp_path):
    """The bound holds while the process goes on writing through the same descriptor."""
    log = LogFile(tmp_path / "part.log")
    with log.open() as file:
        file.write(b"x" * 100 + b"\nend\n")
        file.flush()
        assert not log.cut(longest_bytes=1000)
        assert log.cut(longest_bytes=100)
        file.write(b"new\n")
        file.flush()
        assert log.path.read_bytes() == b"new\n"
    assert (tmp_path / "part.old").read_bytes().endswith(b"\nend\n")


def test_a_vanished_log_stops_nothing(tmp_path):
    """Somebody may tidy up while the cluster runs."""
    assert not LogFile(tmp_path / "gone" / "part.log").cut()
