"""DLedger framing: the head by the page of the spec, detection, the place of the inner record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats import dledger
from rmqctl.formats.dledger import EntryHeadRecord
from rmqctl.formats.local import message
from tests.formats.test_message import SMALL

HEAD = bytes.fromhex("00000001 00000099 0000000000000007 0000000000000002 0000000000010000"
                     "00000000 00000000 1234abcd 00000069")


def test_golden_bytes() -> None:
    head = dledger.parse(HEAD)
    assert head == EntryHeadRecord(1, 0x99, 7, 2, 65536, 0, 0, 0x1234ABCD, 105)
    assert dledger.build(head) == HEAD
    assert dledger.build_end(16) == bytes.fromhex("ffffffff00000010")


def test_framing_is_distinguished() -> None:
    blank = message.Blank.build({"total_size": 99, "magic": message.MAGIC_BLANK})
    assert dledger.detect(HEAD + SMALL) == dledger.FRAMED
    assert dledger.detect(SMALL) == dledger.PLAIN
    assert dledger.detect(blank) == dledger.PLAIN
    assert dledger.detect(dledger.build_end(5)) == dledger.END_OF_FILE
    assert dledger.detect(bytes(48)) is None
    assert dledger.detect(HEAD[:7]) is None
    assert dledger.detect(b"junk" + HEAD, 4) == dledger.FRAMED
    assert dledger.detect(HEAD + SMALL, 48) == dledger.PLAIN


@pytest.mark.parametrize(("at", "value", "path"), [
    (0, 4, "magic"), (4, 0x98, "size"), (44, 0x68, "size"), (44, 0xFFFFFFFF, "body_length")])
def test_refusals(at: int, value: int, path: str) -> None:
    raw = HEAD[:at] + value.to_bytes(4) + HEAD[at + 4:]
    with pytest.raises(FormatError) as caught:
        dledger.parse(raw, 0, 300)
    assert (caught.value.offset, caught.value.path) == (300, path)


@given(st.binary(max_size=80))
def test_any_bytes(raw: bytes) -> None:
    dledger.detect(raw)
    try:
        head = dledger.parse(raw)
    except FormatError as error:
        assert error.path
    else:
        assert dledger.build(head) == raw[:48]


def test_an_empty_entry_is_sound() -> None:
    head = EntryHeadRecord(1, 48, 0, 0, 0, 0, 0, 0, 0)
    assert dledger.parse(dledger.build(head)) == head


def test_index_units() -> None:
    unit = dledger.IndexUnitRecord(1, 0, 153, 7, 2)
    assert unit.is_valid
    for change in ({"magic": 0}, {"pos": -1}, {"size": 48}):
        assert not unit._replace(**change).is_valid
