"""The index file: shapes, keys, the engine's own files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats.local import index_file, sysflag
from rmqctl.formats.local import index_file as index
from rmqctl.formats.local import properties as props
from tests.conftest import GoldenFolder
from tests.support import engine

SETS = ("4.9.3/basic", "5.3.3/basic", "4.9.3/crash-base", "5.3.3/cqext", "5.3.3/transaction")


def index_files(folder: Path) -> Iterator[tuple[Path, index.HeaderRecord]]:
    for file in sorted(folder.glob("*/index/*")):
        header = index.parse_header(file.read_bytes())
        if header.entries:
            yield file, header


def test_default_size() -> None:
    assert index.DEFAULT_SHAPE.file_size == 420_000_040
    assert index.shape_of(420_000_040) == (5_000_000, 20_000_000)
    assert index.DEFAULT_SHAPE.capacity == 19_999_999
    assert index.DEFAULT_SHAPE.slot_position(0) == 40
    assert index.DEFAULT_SHAPE.entry_position(0) == 40 + 20_000_000
    assert index.DEFAULT_SHAPE.entry_position(1) == 40 + 20_000_000 + 20


@given(st.integers(1, 1000), st.integers(2, 5000))
def test_a_shape_follows_from_size_and_slots(slots: int, entries: int) -> None:
    shape = index.IndexShape(slots, entries)
    assert index.shape_of(shape.file_size, slots) == shape
    assert shape in list(index_file.candidates(shape.file_size))
    if entries == 4 * slots:
        assert index.shape_of(shape.file_size) == shape


@pytest.mark.parametrize("size", [0, 39, 40, 41, 4440, 8441, 420_000_041])
def test_sizes_of_no_default_shape(size: int) -> None:
    with pytest.raises(FormatError, match="number of hash slots must be given"):
        index.shape_of(size)


@pytest.mark.parametrize(("size", "slots"), [(8440, 101), (8440, 0), (8440, -5), (8440, 2100),
                                             (8440, 5000)])
def test_slots_that_do_not_fit_the_size(size: int, slots: int) -> None:
    with pytest.raises(FormatError):
        index.shape_of(size, slots)


@given(st.integers(-100, 2_000_000_000))
def test_candidates_are_bounded_and_fit(size: int) -> None:
    for shape in itertools.islice(index_file.candidates(size), 50):
        assert shape.file_size == size


@pytest.mark.parametrize("name", SETS)
def test_entries_are_the_keys_of_the_stored_messages(name: str, golden: GoldenFolder) -> None:
    """Walking every file in order gives exactly the keys a broker indexes, in its order."""
    folder = golden(name)
    expect = engine.load(folder / "expect.json")
    shape = index.IndexShape(expect.index_slots, expect.index_max)
    values = []
    for file, header in index_files(folder):
        data = file.read_bytes()
        heads = [entry.entry for entry in index.SLOT.decode_all(
            data[shape.slot_position(0):shape.entry_position(0)])]
        chained = set()
        for number in range(1, header.index_count):
            entry = index.parse_entry(data, shape.entry_position(number))
            assert entry.previous < number
            assert shape.slot_of(entry.key_hash) < shape.slots
            assert abs(index.entry_time(header, entry) - header.begin_timestamp) < 1 << 40
            values.append((entry.key_hash, entry.physical_offset))
            chained.add(entry.previous)
        assert set(filter(None, heads)) | (chained - {0}) == set(range(1, header.index_count))
        assert sum(map(bool, heads)) == header.hash_slot_count
    wanted = []
    for put in engine.puts(folder / "input.jsonl"):
        for message in put.stored:
            if sysflag.is_indexed(message.sys_flag):
                wanted += [(index.key_hash(message.topic, key), message.physical_offset)
                           for key in index.keys_of(props.parse(message.properties))]
    assert values == wanted


def test_keys_of_a_message() -> None:
    assert index.keys_of({"UNIQ_KEY": "u", "KEYS": "a  b a"}) == ["u", "a", "b", "a"]
    assert index.keys_of({"UNIQ_KEY": "", "KEYS": ""}) == [""]
    assert index.keys_of({}) == []
    assert index.key_text("T", "k") == "T#k"
    assert index.key_hash("", "olygenelubricants") == index.key_hash("", "olygenelubricants")


def test_an_empty_file_claims_no_entries() -> None:
    assert index.parse_header(bytes(40)).entries == 0
    assert index.parse_header(bytes(40))._replace(index_count=1).entries == 0
    assert index.parse_header(bytes(40))._replace(index_count=2).entries == 1
