"""Units of the consumequeue extension: by address, and the chain they make in each file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rmqctl.checks.verify.queue.ext_units import ExtReader
from rmqctl.formats.local import consume_queue_ext as ext
from rmqctl.store import Store
from tests.checks.small_checks import Changed, one_of
from tests.conftest import GoldenFolder
from tests.support import snapshot

SETS = ("4.9.3/cqext/store", "5.3.3/cqext/store")
UNITS = [f"consumequeue_ext/TP_order_Topic/0/{base:020d}" for base in (0, 2048)]


@pytest.fixture(scope="module")
def units(golden: GoldenFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One copy for all tests that put back what they change."""
    return snapshot.copy_tree(golden(SETS[0]), tmp_path_factory.mktemp("ext") / "store")


@pytest.fixture
def changed(units: Path) -> Changed:
    return Changed("extras", units)


def steps(root: Path, file: str) -> list[ext.ExtStep]:
    return [step for step in ext.walk((root / file).read_bytes()) if step.unit]


def test_the_golden_extension_is_long_enough(units: Path) -> None:
    assert len(steps(units, UNITS[0])) > 50
    assert ext.END_MARK in (units / UNITS[0]).read_bytes()
    assert len({step.size for step in steps(units, UNITS[0])}) > 1


@pytest.mark.parametrize("name", SETS)
def test_units_by_address(name: str, golden: GoldenFolder) -> None:
    """Every row of every queue leads to the unit which a plain walk of the files finds there."""
    root = golden(name)
    asked = 0
    with Store.open(root) as store:
        for (topic, queue_id), queue in store.queues.by_key.items():
            walked = {int(file.name) + step.at: step.unit
                      for file in (root / f"consumequeue_ext/{topic}/{queue_id}").iterdir()
                      for step in ext.walk(file.read_bytes()) if step.unit}
            with ExtReader(store, topic, queue_id) as reader:
                for number in range(queue.first_index, queue.written):
                    row = queue.unit(number)
                    assert row is not None
                    unit = reader.unit(row.tags_code)
                    assert unit == walked[ext.byte_offset(row.tags_code)]
                    asked += 1
                for address in (0, 77, -5, ext.address(1 << 40), ext.address(3), -(1 << 63) - 1):
                    assert reader.unit(address) is None, address
    assert asked > 100


def test_pages_of_units(tmp_path: Path) -> None:
    """Units of the largest size, asked in any order over several pages."""
    folder = tmp_path / "consumequeue_ext/t/0"
    folder.mkdir(parents=True)
    (tmp_path / "commitlog").mkdir()
    units = [ext.make(number, 5, bytes([number % 251]) * (number * 977 % 32_700))
             for number in range(40)]
    data, places = b"", []
    for unit in units:
        places.append(len(data))
        data += ext.build(unit)
    (folder / f"{4096:020d}").write_bytes(data + bytes(100))
    with Store.open(tmp_path) as store, ExtReader(store, "t", 0) as reader:
        for number in [*range(40), *range(39, -1, -3), 7, 31, 7]:
            assert reader.unit(ext.address(4096 + places[number])) == units[number]
        assert reader.unit(ext.address(4095)) is None
    with Store.open(tmp_path) as store, ExtReader(store, "nobody", 0) as reader:
        assert reader.unit(ext.address(0)) is None


@pytest.mark.parametrize("field", ["size", "bit_map_size"])
@pytest.mark.parametrize("value", [21, 33, 400, 2500, -1, -7, 0, 19])
@pytest.mark.parametrize("number", [0, 7, 50])
def test_a_wrong_size_is_one_unit(number: int, value: int, field: str, units: Path,
                                  changed: Changed) -> None:
    step = steps(units, UNITS[0])[number]
    assert step.unit is not None
    at = step.at + (0 if field == "size" else 18)
    if (field, value) in (("size", -1), ("bit_map_size", len(step.unit.bit_map))):
        return  # an end mark, or what it is anyway
    finding, what = one_of(changed((UNITS[0], at, struct.pack(">h", value))), units)
    assert what == ("cq-ext", UNITS[0], step.at)
    assert (finding.topic, finding.queue_id, finding.structure) == (
        "TP_order_Topic", 0, "consumequeue_ext")


def test_zeros_among_units(units: Path, changed: Changed) -> None:
    step = steps(units, UNITS[0])[9]
    finding, what = one_of(changed((UNITS[0], step.at, bytes(step.size))), units)
    assert what == ("cq-ext", UNITS[0], step.at)
    assert finding.length == step.size + 1, "the next unit begins with a zero byte"


def test_the_end_mark_of_a_file_that_another_one_follows(units: Path,
                                                         changed: Changed) -> None:
    last = steps(units, UNITS[0])[-1]
    _, what = one_of(changed((UNITS[0], last.at + last.size, b"\0\0")), units)
    assert what == ("cq-ext", UNITS[0], last.at + last.size)


def test_the_last_file_ends_before_the_rows_do(units: Path, changed: Changed) -> None:
    last = steps(units, UNITS[1])[-1]
    _, what = one_of(changed((UNITS[1], last.at, bytes(last.size))), units)
    assert what == ("cq-ext", UNITS[1], last.at)


def test_what_a_recovery_cut_off_is_legal(units: Path, changed: Changed) -> None:
    """Stale bytes behind the last unit a row leads to."""
    last = steps(units, UNITS[1])[-1]
    stale = b"\x00\x05" + b"\x77" * 60
    assert changed((UNITS[1], last.at + last.size, stale)) == []


