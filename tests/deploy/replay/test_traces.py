from pathlib import Path

import pytest

from deploy.replay.traces import TraceError, TraceRow, count_rows, read_trace, trace_path

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
DATA = Path(__file__).parents[2] / "data" / "traces"


@pytest.fixture
def trace(tmp_path):
    """A function that writes a trace and returns its path."""

    def write(text: str | bytes) -> Path:
        path = tmp_path / "trace"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_azure_rows_keep_their_gaps_below_a_microsecond(trace):
    """The 100 ns digits of the wall clock survive as far as a float carries them, with either kind of line end."""
    path = trace(AZURE + "2023-11-16 23:59:59.9999997,374,44\r\n2023-11-17 00:00:00.0000003,396,109")
    first, second = read_trace(path)
    assert (first.prompt_tokens, first.output_tokens) == (374, 44)
    assert second.at_s - first.at_s == pytest.approx(0.6e-6, abs=0.3e-6)


def test_mooncake_rows_carry_their_prefix_ids(trace):
    """Milliseconds become seconds, and hash ids are kept as they are."""
    path = trace('{"timestamp": 1500, "input_length": 6758, "output_length": 500, "hash_ids": [0, 14]}\n')
    assert list(read_trace(path)) == [TraceRow(1.5, 6758, 500, (0, 14))]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (AZURE + "2023-11-16 18:15:46.1,1,1\nyesterday,1,1\n", "row 2: TIMESTAMP is not"),
        (AZURE + "2023-11-16 18:15:46.1x,1,1\n", "row 1: TIMESTAMP has a bad fraction"),
        (AZURE + "2023-11-16 18:15:46,1\n", "row 1: needs 3 columns, has 2"),
        (AZURE + "2023-11-16 18:15:46,-5,1\n", "row 1: ContextTokens is not"),
        (AZURE + "2023-11-16 18:15:46,1,nan\n", "row 1: GeneratedTokens is not"),
        (AZURE + "2023-11-16 18:15:46,1," + "9" * 5000 + "\n", "row 1: "),
        (AZURE + "2023-11-16 18:15:46,1,1\n\n2023-11-16 18:15:45,1,1\n", "row 3: its time is before"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{"timestamp": 0}\n', "row 2: "),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1}\n', "row 1: "),
        ('{"timestamp": 0, "input_length": true, "output_length": 1}\n', "row 1: "),
        ("a,b,c\n", "it begins with a,b,c"),
        ("", "an empty file"),
        (b"\xff\xfe\x00", "not a text file"),
    ],
)
def test_bad_rows_are_named_on_one_line(trace, text, complaint):
    """Whatever is wrong with a trace, the message is one line with the file and, where there is one, the row."""
    path = trace(text)
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert complaint in message
    assert "\n" not in message


def test_rows_before_a_bad_one_are_read(trace):
    """Reading is streaming: the rows above a bad one arrive first."""
    rows = read_trace(trace(AZURE + "2023-11-16 18:15:46,5,6\nbad\n"))
    assert next(rows).prompt_tokens == 5
    with pytest.raises(TraceError):
        next(rows)


def test_missing_file_is_one_line(tmp_path):
    """A path that leads nowhere is an error that names it."""
    with pytest.raises(TraceError, match=r"nowhere\.csv: cannot be read"):
        list(read_trace(tmp_path / "nowhere.csv"))


def test_sample_is_the_beginning_of_the_conversation_trace():
    """The packaged sample is the first 2,000 requests of the whole trace, unchanged."""
    sample = list(read_trace(trace_path("conv-sample")))
    whole = list(read_trace(DATA / "AzureLLMInferenceTrace_conv.csv"))
    assert len(sample) == 2000
    assert sample == whole[:2000]
    assert len(whole) == 19_366 == count_rows(DATA / "AzureLLMInferenceTrace_conv.csv")


def test_code_trace_is_whole():
    """All requests of the code trace can be read."""
    assert sum(1 for _ in read_trace(DATA / "AzureLLMInferenceTrace_code.csv")) == 8819
