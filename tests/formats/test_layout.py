"""What `layout` derives from declarations: offsets, widths, refusals."""

from __future__ import annotations

import pytest
from construct import (
    Bytes,
    Const,
    GreedyBytes,
    Int8sb,
    Int16ub,
    Int32sb,
    Int32sl,
    Int64sb,
    Struct,
    this,
)

from rmqctl.formats import layout
from rmqctl.formats.local.message import MAGIC_V1, MAGIC_V2, Message

Open = Struct("a" / Int32sb, "n" / Int16ub, "body" / Bytes(this.n), "z" / Int8sb)
Closed = Struct("a" / Int32sb, "host" / Struct("ip" / Bytes(4), "port" / Int16ub),
                "end" / Const(b"xy"))

# bornHost, storeTimestamp, storeHost, reconsumeTimes, prepared, bodyLen: commitlog.md §2.1, §2.2
PLACES = {
    (0x00, MAGIC_V1): (48, 56, 64, 72, 76, 84, 88, 91),
    (0x10, MAGIC_V1): (48, 68, 76, 84, 88, 96, 100, 103),
    (0x20, MAGIC_V1): (48, 56, 64, 84, 88, 96, 100, 103),
    (0x30, MAGIC_V1): (48, 68, 76, 96, 100, 108, 112, 115),
    (0x00, MAGIC_V2): (48, 56, 64, 72, 76, 84, 88, 92),
    (0x30, MAGIC_V2): (48, 68, 76, 96, 100, 108, 112, 116),
}


@pytest.mark.parametrize(("bits", "magic"), PLACES)
def test_message_fields_lie_where_the_spec_says(bits: int, magic: int) -> None:
    context = {"sys_flag": bits, "magic": magic}
    *places, head, fixed = PLACES[bits, magic]
    names = ("born_host.address", "store_timestamp", "store_host.address", "reconsume_times",
             "prepared_transaction_offset", "body_length")
    assert [layout.field(Message, name, **context).offset for name in names] == places
    assert layout.prefix_size(Message, **context) == head
    assert layout.fixed_total(Message, **context) == fixed
    assert layout.width_of(Message, "topic_length", **context)[0] == (2 if magic == MAGIC_V2 else 1)


def test_the_prefix_ends_at_the_first_field_that_depends_on_data() -> None:
    assert [field.name for field in layout.prefix(Open)] == ["a", "n"]
    assert layout.prefix_size(Open) == 6
    with pytest.raises(layout.LayoutError):
        layout.fields(Open)
    with pytest.raises(layout.LayoutError):
        layout.field(Open, "body")
    assert layout.fixed_total(Open) == 7


def test_nested_structs_and_constants_have_places() -> None:
    assert [(f.name, f.offset, f.size, f.numpy_format) for f in layout.fields(Closed)] == [
        ("a", 0, 4, ">i4"), ("host.ip", 4, 4, "V4"), ("host.port", 8, 2, ">u2"),
        ("end", 10, 2, "V2")]
    assert layout.size_of(Closed) == 12
    assert layout.dtype(Closed).itemsize == 12
    some = layout.dtype(Closed, "host.port", "end")
    assert (some.names, some.itemsize) == (("host.port", "end"), 12)
    assert layout.reader(Closed, "host.port").unpack_from(bytes(8) + b"\1\2") == (0x102,)


def test_only_big_endian_is_taken() -> None:
    with pytest.raises(layout.LayoutError):
        layout.fields(Struct("a" / Int32sl))


def test_a_reader_wants_its_fields_in_order() -> None:
    with pytest.raises(layout.LayoutError):
        layout.reader(Closed, "end", "a")
    pair = Struct("a" / Int32sb, "b" / Int64sb, "c" / Int32sb)
    assert layout.reader(pair, "a", "c").unpack(bytes(12) + b"\0\0\0\7") == (0, 7)


def test_bytes_of_a_length_that_no_one_knows_end_the_prefix() -> None:
    declaration = Struct("a" / Int32sb, "rest" / GreedyBytes, "b" / Int32sb)
    assert layout.prefix_size(declaration) == 4


def test_a_width_that_is_not_fixed_is_refused() -> None:
    with pytest.raises(layout.LayoutError):
        layout.width_of(Open, "body")
