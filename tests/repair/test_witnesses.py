"""Every record that a plan mends, and every message that it fills in for, names its witnesses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqctl.formats.local import append_crc
from rmqctl.formats.local.message import decode
from tests.support import tiny
from tests.support.cli import run

SPECS = [tiny.Spec("orders", number % 2, b"tea and sugar, order %d" % number,
                   {"UNIQ_KEY": f"0A{number:04X}", "KEYS": f"k{number}"}) for number in range(6)]
OPTIONS = ("--index-slots", "8", "--index-max", "32", "-o", "json")


def plan_of(root: Path, *options: str) -> list[dict[str, Any]]:
    actions: list[dict[str, Any]] = run("recover", root, *OPTIONS, *options).json()["actions"]
    return [action for action in actions if action["target"].startswith("commitlog")]


def change(built: tiny.Tiny, physical: int, value: bytes) -> None:
    name, position = built.place(physical)
    content = bytearray((built.root / name).read_bytes())
    content[position:position + len(value)] = value
    (built.root / name).write_bytes(content)


@pytest.mark.parametrize(("at", "xor", "fields", "witnesses"), [
    (15, 1, ["queue_id"], {"its consume queue entry", "the body's CRC", "the index"}),
    (27, 8, ["queue_offset"], {"its consume queue entry", "the body's CRC", "the index"}),
    (3, 4, ["total_size"], {"its consume queue entry", "the sum of its lengths",
                            "the message after it"}),
    (35, 16, ["physical_offset"], {"its consume queue entry", "the body's CRC"}),
    (11, 1, ["body_crc"], {"its consume queue entry", "the body's CRC except for one bit"}),
])
def test_a_mended_record(at: int, xor: int, fields: list[str], witnesses: set[str],
                         tmp_path: Path) -> None:
    built = tiny.build(tmp_path / "store", SPECS)
    placed = built.messages[2]
    change(built, placed.start + at, bytes([placed.raw[at] ^ xor]))
    actions = plan_of(built.root)
    assert [action["action"] for action in actions] == ["mend record"]
    proof = actions[0]["proof"]
    assert proof["fields"] == fields
    assert witnesses <= {*proof["witnesses"]}
    for name in proof["witnesses"]:
        assert name in actions[0]["reason"]


def test_the_records_own_crc_is_a_witness(tmp_path: Path) -> None:
    built = tiny.build(tmp_path / "store", SPECS, append_crc=True)
    placed = built.messages[2]
    assert append_crc.verify(placed.raw)
    change(built, placed.start + 3, bytes([placed.raw[3] ^ 4]))
    (action,) = plan_of(built.root)
    assert "the record's CRC" in action["proof"]["witnesses"]


def test_a_field_that_no_row_has(tmp_path: Path) -> None:
    """A port is told by what else has it: the reason says what."""
    built = tiny.build(tmp_path / "store", SPECS)
    placed = built.messages[2]
    at = placed.raw.index(decode(placed.raw).store_host[1].to_bytes(4, "big"), 56)
    change(built, placed.start + at, b"\x01")
    (action,) = plan_of(built.root)
    assert action["proof"]["fields"] == ["store_host"]
    assert action["proof"]["by"] == [action["reason"]]
    assert "neighbours" in action["reason"]


def test_a_filler_says_who_knows_of_the_message(tmp_path: Path) -> None:
    built = tiny.build(tmp_path / "store", SPECS)
    placed = built.messages[2]
    change(built, placed.start, bytes(len(placed.raw)))
    (action,) = plan_of(built.root)
    assert (action["action"], action["proof"]) == ("fill", {"known_by": {"consumequeue": 1}})


def test_pages_that_are_put_back(tmp_path: Path) -> None:
    specs = [tiny.Spec("orders", 0, b"%d " % number * 60, {"UNIQ_KEY": f"0A{number:04X}"})
             for number in range(60)]
    built = tiny.build(tmp_path / "store", specs, commitlog_file_size=64 << 10, index_max=128)
    name, position = built.place(8192)
    log = built.root / name
    content = bytearray(log.read_bytes())
    first, other = slice(position, position + 4096), slice(position + 4096, position + 8192)
    content[first], content[other] = content[other], content[first]
    log.write_bytes(content)
    moved = [action for action in plan_of(built.root, "--index-max", "128")
             if action["action"] == "put back"]
    assert moved
    for action in moved:
        assert any("entries" in name for name in action["proof"]["witnesses"])


def test_a_damaged_message_that_is_kept(tmp_path: Path) -> None:
    built = tiny.build(tmp_path / "store", SPECS)
    placed = built.messages[2]
    at = placed.raw.index(b"order 2")
    change(built, placed.start + at, b"xyz")
    (action,) = plan_of(built.root, "--keep-damaged")
    assert action["action"] == "keep damaged"
    assert {"its consume queue entry", "the index"} <= {*action["proof"]["witnesses"]}
    assert "the body's CRC" not in action["proof"]["witnesses"]
