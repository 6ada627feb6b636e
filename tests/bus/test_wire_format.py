"""deploy/docs/wire-format.md against the code: its dumps decode, its tables are complete, its steps publish."""

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from bus.keys import instances_key, pressure_key, reserved_key
from bus.reader import Reader
from bus.record import PressureRecord, State, decode_record, encode_record
from bus.registration import Registration, decode_entry
from bus.scripts import lua_source

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy/docs/wire-format.md").read_text(encoding="utf-8")


def dump(name: str) -> list[tuple[bytes, str]]:
    """Bytes and words of each line of a dump."""
    block = re.search(rf"^```{name}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert block
    lines = [re.fullmatch(r"((?:[0-9a-f]{2} ?)+)(?: +(\S.*))?", line) for line in block[1].splitlines()]
    return [(bytes.fromhex(line[1]), line[2] or "") for line in lines]


def rows(first_heading: str) -> list[list[str]]:
    """Cells of the table whose head begins with a heading."""
    table = re.search(rf"^\| {re.escape(first_heading)} \|.*\n\|[- |]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert table
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[1].splitlines()]


RECORD = b"".join(part for part, _ in dump("record"))
PAYLOAD = b"".join(part for part, _ in dump("registration"))


def test_the_record_dump_decodes_to_the_values_written_beside_it():
    """Each line is one field: its name, and its value or that it is unknown."""
    record = decode_record(RECORD).record
    (head, _), *fields = dump("record")
    written = {name: value for name, _, value in (words.partition(" = ") for _, words in fields)}

    assert head == bytes([0xDC, 0, len(PressureRecord.__struct_fields__)])
    assert list(written) == list(PressureRecord.__struct_fields__)
    assert {
        name: "unknown" if value is None else str(value) for name, value in msgspec.structs.asdict(record).items()
    } == (written)


def test_the_record_dump_is_what_our_encoder_makes_byte_by_byte():
    """The bytes of each line are those of its field alone, and the size is the one that is told."""
    record = decode_record(RECORD).record

    assert encode_record(record) == RECORD
    assert f"{len(RECORD)} bytes:" in TEXT
    for part, words in dump("record")[1:]:
        assert part == msgspec.msgpack.encode(getattr(record, words.partition(" = ")[0]))


def test_the_table_of_the_record_names_every_field_at_its_place():
    """A field that is added must be told, with its type."""
    table = rows("#")
    hints = {name: str(hint) for name, hint in PressureRecord.__annotations__.items()}

    assert [(int(number), name.strip("`")) for number, name, *_ in table] == list(
        enumerate(PressureRecord.__struct_fields__)
    )
    for _, name, kind, what in table:
        hint = hints[name.strip("`")]
        assert kind.startswith("integer") == any(word in hint for word in ("Count", "Millis", "int")), name
        assert what
    (states,) = [what for _, name, _, what in table if name == "`state_code`"]
    assert all(f"{code} {state}" in states for code, state in enumerate(get_args(State)))


def test_the_registration_dump_and_table_are_those_of_the_code():
    """The map of the dump, and each key in the table."""
    entry = decode_entry(b"7;1500;" + PAYLOAD)

    assert entry.registration == Registration(
        worker_url="http://10.0.0.5:8001",
        engine_url="http://127.0.0.1:8000",
        models=("my-model",),
        kind="custom",
        slots=64,
        queue_limit=256,
        context_tokens=8192,
    )
    named = re.findall(r"^\| `(\w+)` \| (?:string|array|integer)", TEXT, re.MULTILINE)
    assert [name for name in named if name in Registration.__struct_fields__] == list(Registration.__struct_fields__)
    (_, *lines) = [words for _, words in dump("registration") if words]
    assert [msgspec.json.decode(words) for words in lines[::2]] == list(Registration.__struct_fields__)


@pytest.mark.parametrize("row", rows("script"), ids=lambda row: row[0].strip("`"))
def test_the_arguments_of_each_script_are_those_of_its_header(row):
    """Names and order of ARGV, as the script itself explains them."""
    name, _, argv, _ = (cell.strip("`") for cell in row)
    header = (ROOT / f"bus/lua/{name}.lua").read_text().split("\nlocal ")[0]
    told = argv.partition(", then ")[0].split(", ")

    if name == "read_pool":
        assert len(told) == len(re.findall(r"^-- ARGV\[", header, re.MULTILINE))
    else:
        assert told == re.findall(r"^-- ARGV\[\d+\] +(\w+)", header, re.MULTILINE)


async def run(bus: Any, name: str, keys: list[str], args: list[str | bytes | int]) -> Any:
    """What any client does: EVAL of the prelude, a line feed and the script."""
    folder = ROOT / "bus/lua"
    source = (folder / "prelude.lua").read_text() + "\n" + (folder / f"{name}.lua").read_text()
    assert source == lua_source(name)
    return await bus.client.eval(source, len(keys), *keys, *args)


async def test_what_is_written_there_is_enough_to_publish(bus):
    """The steps with the dumps of the document; a replica then sees that record, and its reservation settled."""
    pool, instance = "default", "foreign-1"
    instances, pressure = instances_key(pool), pressure_key(pool, instance)
    reserved = reserved_key(pool, instance)
    record = decode_record(RECORD).record

    is_stored, epoch = await run(bus, "register", [instances, pressure], [instance, 0, 30_000, 600_000, PAYLOAD])
    assert is_stored
    seconds, microseconds = await bus.client.time()
    now_us = seconds * 1_000_000 + microseconds
    chosen = await run(bus, "reserve", [reserved], ["5f0c9a1b7e22-1a", 120, 2000, now_us, 250_000, "0", "0", "0", 0, 0])
    assert chosen[0] == 1
    lease = (await bus.client.hget(reserved, "r:5f0c9a1b7e22-1a")).decode()
    assert re.fullmatch(r"120;\d{16}", lease)

    of_this_epoch = encode_record(msgspec.structs.replace(record, epoch=int(epoch)))
    told = await run(
        bus,
        "publish",
        [pressure, instances, reserved],
        [of_this_epoch, int(epoch), 42, 1500, instance, "5f0c9a1b7e22-1a"],
    )
    assert told == [1, 1, 1]
    assert set(await bus.client.hkeys(pressure)) == {b"record", b"epoch", b"sequence", b"published_us"}

    reader = Reader(bus.client, pool, budget_s=30.0)
    seen = (await reader.view()).readings[instance]
    assert seen.record == msgspec.structs.replace(record, epoch=int(epoch))
    assert seen.entry.registration.models == ("my-model",)
    assert (seen.in_transit_tokens, seen.in_transit_requests) == (0, 0)
