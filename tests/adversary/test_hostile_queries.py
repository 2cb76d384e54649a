"""Queries by place and id give no record that lies in another message's body."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.adversary.writer import Header, Layout, Put, Writer, record
from tests.support.cli import run

BEFORE = b"x" * 40


def store_with_a_record_in_a_body(root: Path, size: int = 0, *, row: bool = True) -> tuple[
        Path, Put, int]:
    """(store, the message around, physical offset of the record in its body)."""
    writer = Writer(Layout(log_file_size=1 << 20), seed=1)
    for number in range(5):
        writer.put("orders", b"body %d" % number, keys=f"k{number}")

    def body(at: int) -> bytes:
        place = at + len(BEFORE)
        return BEFORE + record("payroll", b"forged", b"KEYS\x01pay", 0, 0, place, Header(),
                               writer.clock) + bytes(size)

    outer = writer.put("orders", body, row=row)
    for number in range(5):
        writer.put("orders", b"body %d" % number)
    return writer.write(root), outer, outer.physical + outer.raw.index(BEFORE) + len(BEFORE)


def message_id(physical: int) -> str:
    return (bytes([10, 0, 0, 1]) + struct.pack(">iq", 10911, physical)).hex().upper()


@pytest.mark.parametrize("size", [0, 300_000])
@pytest.mark.parametrize("row", [True, False], ids=["row", "no row"])
def test_a_record_in_a_body_is_none(tmp_path: Path, size: int, row: bool) -> None:
    store, outer, inside = store_with_a_record_in_a_body(tmp_path / "s", size, row=row)
    for words in (("offset", store, "--phy", str(inside)), ("id", store, message_id(inside))):
        done = run("query", *words, "-o", "json").expect(1)
        assert done.json() == []
        assert f"is inside the record at {outer.physical}" in done.err
    for words in (("offset", store, "--phy", str(outer.physical)),
                  ("id", store, message_id(outer.physical)),
                  ("offset", store, "--phy", str(inside), "--containing")):
        answer = run("query", *words, "-o", "json").expect(0).json()
        assert [message["physical_offset"] for message in answer] == [outer.physical]


def test_behind_damage_it_is_said_that_it_may_be_one(tmp_path: Path) -> None:
    store, outer, inside = store_with_a_record_in_a_body(tmp_path / "s", row=False)
    log = next((store / "commitlog").iterdir())
    raw = bytearray(log.read_bytes())
    raw[outer.physical:outer.physical + 88] = bytes(88)
    log.write_bytes(raw)
    done = run("query", "offset", store, "--phy", str(inside), "-o", "json").expect(1)
    assert "may be part of another message's body" in done.err
