"""Request traces: when requests came, how long their prompts and answers were, which prefixes they shared.

Two formats, told apart by the first line: the Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens; wall clock with
100 ns digits) and the Mooncake JSONL (timestamp in ms, input_length, output_length, hash_ids). Read row by row.
No clock, no network, no prompt text.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from bus.errors import ForebayError

SAMPLES: Final = {"conv-sample": Path(__file__).with_name("azure_conv_sample.csv")}
"""Traces that come with Forebay, by the name they may be given by."""

PREFIX_BLOCK_TOKENS: Final = 512
"""Tokens that one id of a Mooncake row stands for (Qin et al., FAST 2025)."""

_AZURE_HEADER: Final = "TIMESTAMP,ContextTokens,GeneratedTokens"
_MAX_TOKENS: Final = 10_000_000  # no context window is longer; a larger number is a damaged row


class TraceError(ForebayError):
    """A trace that cannot be read; the message is one line that names file and row."""


class TraceRow(msgspec.Struct, frozen=True):
    """One request of a trace."""

    at_s: float
    """Arrival in seconds on the trace's own clock; only differences mean something."""
    prompt_tokens: int
    """Tokens of the prompt, ≥ 1."""
    output_tokens: int
    """Tokens of the answer, ≥ 1."""
    prefix_ids: tuple[int, ...] = ()
    """One id per 512-token block of the prompt; equal ids mean equal text. Empty: nothing is known of the prefix."""


class _MooncakeRow(msgspec.Struct):
    timestamp: Annotated[float, Meta(ge=0)]
    input_length: Annotated[int, Meta(ge=0, le=_MAX_TOKENS)]
    output_length: Annotated[int, Meta(ge=0, le=_MAX_TOKENS)]
    hash_ids: tuple[int, ...] = ()


_decode_mooncake: Final = msgspec.json.Decoder(_MooncakeRow).decode


def trace_path(name: str) -> Path:
    """The file meant by a sample's name or a path.

    >>> trace_path("conv-sample").name
    'azure_conv_sample.csv'
    """
    return SAMPLES.get(name, Path(name))


def read_trace(path: Path) -> Iterator[TraceRow]:
    """Rows of a trace in the order of the file, whose times must not go back.

    Raises:
        TraceError: the file cannot be opened, is of neither format, or has a bad row. Rows before it were yielded.

    """
    try:
        with path.open(encoding="utf-8", newline=None) as lines:
            yield from _rows(str(path), lines)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is not a text file") from error


def count_rows(path: Path) -> int:
    """Requests in a trace without decoding them: its lines but the blank ones and the CSV header; 0 if unreadable.

    >>> count_rows(trace_path("conv-sample"))
    2000
    """
    try:
        with path.open("rb") as lines:
            return sum(1 for line in lines if line.strip() and not line.startswith(_AZURE_HEADER.encode()))
    except OSError:
        return 0


def _rows(name: str, lines: Iterator[str]) -> Iterator[TraceRow]:
    header = next(lines, "").removeprefix("\ufeff").strip()
    if header == _AZURE_HEADER:
        yield from _checked(name, lines, _azure_row, first_number=1)
    elif header.startswith("{"):
        yield from _checked(name, _chain(header, lines), _mooncake_row, first_number=1)
    else:
        found = header[:60] or "an empty file"
        raise TraceError(f"{name}: neither an Azure CSV ({_AZURE_HEADER}) nor Mooncake JSONL: it begins with {found}")


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _checked(
    name: str, lines: Iterator[str], parse: Callable[[str], TraceRow], *, first_number: int
) -> Iterator[TraceRow]:
    before_s = float("-inf")
    for number, line in enumerate(lines, first_number):
        text = line.strip()
        if not text:
            continue
        try:
            row = parse(text)
        except (ValueError, msgspec.MsgspecError) as error:
            raise TraceError(f"{name}: row {number}: {error}: {text[:80]}") from error
        if row.at_s < before_s:
            raise TraceError(f"{name}: row {number}: its time is before that of the row above: {text[:80]}")
        before_s = row.at_s
        yield row


def _azure_row(text: str) -> TraceRow:
    fields = text.split(",")
    if len(fields) != 3:
        raise ValueError(f"needs 3 columns, has {len(fields)}")
    return TraceRow(
        _wall_clock_s(fields[0]), _tokens(fields[1], "ContextTokens"), _tokens(fields[2], "GeneratedTokens")
    )


def _wall_clock_s(text: str) -> float:
    """Seconds of `YYYY-MM-DD HH:MM:SS[.digits]`, the digits beyond microseconds included.

    >>> round(_wall_clock_s("2023-11-16 18:15:46.6805900") - _wall_clock_s("2023-11-16 18:15:46"), 6)
    0.68059
    """
    whole, _, digits = text.strip().partition(".")
    if digits and not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"TIMESTAMP has a bad fraction of a second ({digits[:20]})")
    try:
        second = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        raise ValueError("TIMESTAMP is not YYYY-MM-DD HH:MM:SS.digits") from None
    return second.timestamp() + (int(digits) / 10 ** len(digits) if digits else 0.0)


def _tokens(text: str, column: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit()) or int(text) > _MAX_TOKENS:
        raise ValueError(f"{column} is not a number of tokens in [0, {_MAX_TOKENS}]")
    return max(1, int(text))


def _mooncake_row(text: str) -> TraceRow:
    row = _decode_mooncake(text)
    return TraceRow(row.timestamp / 1000, max(1, row.input_length), max(1, row.output_length), row.hash_ids)
