"""Index files of a tier: the pages and vectors of tiered.md §5 and §20, both readers, any bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats.local import javahash
from rmqctl.formats.tiered import index as fmt

# (key, raw hash, slot of 5,000,000, masked) of topic TopicA, tiered.md §20.2
HASHES = [("same", 642092343, 2092343), ("k0", -1903240650, 3240650),
          ("zz", -1903240111, 3240111), ("", 525393233, 393233), ("订单1", 1163990957, 3990957),
          ("\U0001f600", -1901471116, 1471116)]


# -- hashes ---------------------------------------------------------------------------------------

@pytest.mark.parametrize(("key", "raw", "slot"), HASHES)
def test_hashes_of_the_spec(key, raw, slot):
    assert fmt.key_hash("TopicA", key) == abs(raw)
    assert fmt.key_hash("TopicA", key) % fmt.DEFAULT_SLOTS == slot
    assert fmt.masked_hash("TopicA", key) == raw & 0x7FFFFFFF
    assert fmt.both_hashes("TopicA", key) == (
        (raw,) if raw >= 0 else (-raw, raw & 0x7FFFFFFF))


def test_masked_hashes_of_the_spec():
    assert fmt.masked_hash("TopicA", "k0") == 244242998
    assert fmt.masked_hash("TopicA", "zz") == 244243537


def test_the_one_hash_that_stays_negative():
    assert javahash.string_hash("TopicA#W0EU1NaJ") == -(1 << 31)
    assert fmt.key_hash("TopicA", "W0EU1NaJ") == -(1 << 31)
    assert fmt.both_hashes("TopicA", "W0EU1NaJ") == (-(1 << 31), 0)


@given(st.text(), st.text())
def test_any_key_has_hashes(topic, key):
    for value in fmt.both_hashes(topic, key):
        assert -(1 << 31) <= value < 1 << 31
    assert fmt.masked_hash(topic, key) >= 0


# -- whole files ----------------------------------------------------------------------------------

BEGIN = 1795228436874
OPEN = fmt.TieredIndexShape(5, 10)
HEADER = "000001a1fbf4098a000001a1fbf415420000000400000008"
SLOTS = "00000001000000000000000000000000000000070000000000000008000000000000000300000000"
ITEMS = [(0x717125CA, 1000, 500, -1, 0), (0x26458D37, 1000, 500, -1, 0),
         (0x717125C9, 1001, 501, 0, 0), (0x26458D37, 1001, 501, 0, 2),
         (0x717125C8, 1002, 502, 1, 4), (0x26458D37, 1002, 502, 1, 5),
         (0x717125C7, 1003, 503, 3, 0), (0x26458D37, 1003, 503, 3, 6)]
"""(hash, offset, size, difference, previous) of tiered.md §20.4"""
COMPACTED = "bcc50285" + HEADER + "".join(
    f"{position:08x}{length:08x}" for position, length in (
        (0x44, 0x1C), (0x60, 0), (0x60, 0x1C), (0x7C, 0x8C), (0x108, 0x1C)))
ORDER = (1, 7, 8, 6, 5, 4, 2, 3)


def open_file() -> bytes:
    """The 388 bytes of the spec, put together from its words."""
    items = b"".join(struct.pack(">iiiqiii", hashed, 7, 3, offset, size, diff, previous)
                     for hashed, offset, size, diff, previous in ITEMS)
    return bytes.fromhex("bcc50289" + HEADER + SLOTS) + bytes(32) + items + bytes(32)


def test_the_open_file_of_the_spec():
    raw = open_file()
    assert len(raw) == 388 == OPEN.open_size
    header = fmt.HEADER.decode(raw)
    assert header == (fmt.BEGIN_MAGIC, BEGIN, BEGIN + 3000, 4, 8)
    assert fmt.open_shape(len(raw), slots=5) == fmt.open_shape(len(raw), max_items=10) == OPEN
    hashes = {}
    for slot in range(OPEN.slots):
        number = fmt.SLOT.decode(raw, OPEN.slot_position(slot)).item
        while number:
            item = fmt.ITEM.decode(raw, OPEN.item_position(number))
            assert item.key_hash % OPEN.slots == slot
            assert item.previous < number
            hashes[number] = item.key_hash
            number = item.previous
    assert len(hashes) == header.item_count
    for number in range(4):
        assert hashes[2 * number + 1] == fmt.key_hash("TopicA", f"k{number}")
        assert hashes[2 * number + 2] == fmt.key_hash("TopicA", "same")


def test_the_compacted_file_of_the_spec():
    raw = bytes.fromhex(COMPACTED) + b"".join(
        fmt.COMPACTED_ITEM.build(fmt.CompactedItemRecord(
            ITEMS[number - 1][0], 7, 3, *ITEMS[number - 1][1:4])) for number in ORDER)
    header = fmt.HEADER.decode(raw)
    assert len(raw) == 292 == OPEN.compacted_size(8)
    shape = fmt.compacted_shape(header, len(raw))
    assert (shape.slots, shape.old, shape.items_at) == (5, False, 0x44)
    at = shape.items_at
    for number in range(5):
        slot = fmt.COMPACTED_SLOT.decode(raw, shape.slot_position(number))
        assert slot.position == at
        assert slot.length % fmt.COMPACTED_ITEM.size == 0
        for item in fmt.COMPACTED_ITEM.decode_all(raw[at:at + slot.length]):
            assert item.key_hash % 5 == number
        at += slot.length
    assert at == len(raw)


def test_sizes_of_the_defaults():
    assert fmt.DEFAULT_SHAPE.open_size == 680_000_028
    assert fmt.DEFAULT_SHAPE.compacted_size(19_999_999) == 600_000_000
    assert fmt.open_shape(680_000_028) == fmt.DEFAULT_SHAPE
    assert fmt.DEFAULT_SHAPE.compacted_size(0) == 0


@given(st.integers(1, 1 << 23), st.integers(1, 1 << 25), st.booleans())
def test_shapes_come_back(slots, items, old):
    shape = fmt.TieredIndexShape(slots, items, old)
    header = fmt.HeaderRecord(fmt.END_MAGIC, 1, 2, slots if old else 1, items)
    tiered_index_shape = fmt.compacted_shape(header, shape.compacted_size(items))
    # A file of 5.1 has four bytes more: never a whole number of slots of the other form.
    assert (tiered_index_shape.slots, tiered_index_shape.old) == (slots, old)
    given_slots = fmt.open_shape(shape.open_size, slots=slots)
    assert given_slots.open_size == shape.open_size
    assert given_slots.slots == slots
    both = fmt.open_shape(shape.open_size, slots, given_slots.max_items)
    assert both == given_slots


@given(st.integers(-10, 1 << 40), st.integers(-(1 << 31), (1 << 31) - 1),
       st.integers(-(1 << 31), (1 << 31) - 1), st.none() | st.integers(1, 1 << 31),
       st.none() | st.integers(1, 1 << 31))
def test_any_size(size, slot_count, items, slots, most):
    header = fmt.HeaderRecord(fmt.END_MAGIC, 1, 2, slot_count, items)
    for tell in (lambda: fmt.compacted_shape(header, size, slots),
                 lambda: fmt.open_shape(size, slots, most)):
        try:
            shape = tell()
        except FormatError as error:
            assert error.path == "size"
        else:
            assert shape.slots > 0
            assert shape.max_items > 0
            tail = fmt.TAIL_SIZE if shape.old else 0
            assert size in (shape.open_size, shape.items_at + max(items, 0) * 28 + tail)
