"""Finding the shape of an index file: of the engine's own ones, and at what cost."""

from __future__ import annotations

import pytest

from rmqctl.formats.local import index_file
from rmqctl.formats.local.index_file import DEFAULT_SHAPE, HeaderRecord, IndexShape, build_header
from rmqctl.store.index.shape import Decided, UnknownShapeError, decide
from tests.conftest import GoldenFolder
from tests.support import engine


@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/basic", "4.9.3/crash-base", "5.3.3/cqext",
                                  "5.3.3/transaction"])
def test_the_shape_is_found_from_the_content(name: str, golden: GoldenFolder) -> None:
    expect = engine.load(golden(name) / "expect.json")
    wanted = IndexShape(expect.index_slots, expect.index_max)
    count = 0
    for file in sorted(golden(name).glob("*/index/*")):
        data = file.read_bytes()
        if index_file.parse_header(data).entries:
            assert wanted.file_size == len(data)
            assert decide(len(data), lambda at, length, data=data: data[at:at + length]) == Decided(
                wanted)
            count += 1
    assert count


def test_a_damaged_header_costs_little_and_gives_the_default() -> None:
    reads = 0
    header = build_header(HeaderRecord(1, 2, 3, 4, 5, 6))

    def read(at: int, length: int) -> bytes:
        nonlocal reads
        reads += 1
        return header if at == 0 else bytes(length)

    assert decide(420_000_040, read) == Decided(DEFAULT_SHAPE)
    assert reads < 4 * sum(1 for _ in index_file.candidates(420_000_040)) < 600_000
    with pytest.raises(UnknownShapeError) as error:
        decide(4440, lambda at, length: (header + bytes(4400))[at:at + length])
    assert not error.value.sound


def test_a_file_without_entries_has_the_shape_that_is_said() -> None:
    def read(_at: int, length: int) -> bytes:
        return bytes(length)

    assert decide(8440, read) == Decided(IndexShape(100, 400), sure=False)
    assert decide(8440, read, [IndexShape(600, 300)]) == Decided(IndexShape(600, 300))
    assert decide(8440, read, [IndexShape(37, 1000)]) == Decided(IndexShape(100, 400), sure=False)
    assert decide(420_000_040, read) == Decided(DEFAULT_SHAPE)
    with pytest.raises(UnknownShapeError) as error:
        decide(20188, read)
    assert error.value.sound
