"""Timer files damaged: the log, the wheel, the checkpoint (the tiny store has none: golden)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.support import damage, subject

UNIT = struct.Struct(">iqiqiqiiq")
SLOT = struct.Struct(">qqqii")
LOG = "timerlog/00000000000000000000"
LAST_LOG = "timerlog/00000000000000003584"
FIELDS = {"size": (0, 4), "previous": (4, 12), "magic": (12, 16), "written": (16, 24),
          "delay": (24, 28), "offset": (28, 36), "message size": (36, 40), "topic": (40, 44),
          "reserved": (44, 52)}
MUST = ("size", "offset", "message size")
"""What contradicts the commitlog or the frame of the unit, whatever else is in the wheel."""


@pytest.fixture
def root(golden_copy: GoldenFolder) -> Path:
    return golden_copy("5.3.3/timer/store")


def verify(root: Path) -> subject.Report:
    return subject.verify(root, only="timer")


def first_slot(root: Path) -> tuple[int, tuple[int, ...]]:
    """(position in the wheel, fields) of the first used slot with a chain of several units."""
    data = (root / "timerwheel").read_bytes()
    empty = len(data) - len(data.lstrip(b"\x00"))
    for at in range(empty - empty % SLOT.size, len(data), SLOT.size):
        fields = SLOT.unpack_from(data, at)
        if fields[0] and fields[1] != fields[2]:
            return at, fields
    raise AssertionError("no such slot")


def test_the_untouched_files_have_no_finding(root: Path) -> None:
    assert verify(root).findings == (), verify(root).text()


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", FIELDS)
def test_one_bit_of_a_unit(name: str, step: int, root: Path) -> None:
    wrong = []
    start, end = FIELDS[name]
    bits = [(at, bit) for unit in (0, 3) for at in range(unit * UNIT.size + start,
                                                         unit * UNIT.size + end)
            for bit in range(8)]
    for at, bit in bits[::step]:
        done = damage.flip_bit(root, LOG, at, bit)
        report = verify(root)
        damage.undo(root, done)
        if name in MUST and not report.findings:
            wrong.append(f"{at} bit {bit}")
    assert not wrong, f"not found: {wrong}"


@pytest.mark.long
@pytest.mark.parametrize("step", [53, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("file", [LAST_LOG, "config/timercheck"])
def test_cut_at_every_length(file: str, step: int, root: Path) -> None:
    whole = (root / file).read_bytes()
    for size in range(0, len(whole), step):
        damage.truncate(root, file, size)
        verify(root)
        (root / file).write_bytes(whole)


def test_a_unit_that_leads_past_the_end_of_the_log(root: Path) -> None:
    damage.write(root, LOG, FIELDS["offset"][0], struct.pack(">q", 1 << 40))
    findings = [finding for finding in verify(root).findings if finding.file == LOG]
    assert any(finding.touches(LOG, (0, UNIT.size)) for finding in findings), verify(root).text()


@pytest.mark.parametrize("field", ["first", "last"])
def test_a_slot_that_leads_to_no_unit(field: str, root: Path) -> None:
    at, _ = first_slot(root)
    damage.write(root, "timerwheel", at + (8 if field == "first" else 16),
                 struct.pack(">q", 1 << 40))
    assert any(finding.file == "timerwheel"
               for finding in verify(root).findings), verify(root).text()


def test_a_chain_that_goes_round(root: Path) -> None:
    """The first unit of a slot's chain leads back to the last one."""
    _, (_, first, last, *_) = first_slot(root)
    damage.write(root, LOG, first + 4, struct.pack(">q", last))
    assert verify(root).findings


@pytest.mark.parametrize("change", [lambda root: damage.truncate(root, "timerwheel", 1000),
                                    lambda root: damage.change_length(root, "timerwheel", -32)],
                         ids=["short", "one slot less"])
def test_files_of_the_wrong_length(change: object, root: Path) -> None:
    assert callable(change)
    change(root)
    assert verify(root).findings


@pytest.mark.parametrize("number", range(3))
def test_random_bytes(number: int, root: Path, seed: int) -> None:
    for file in (LOG, "config/timercheck"):
        damage.random_bytes(root, file, seed + number)
    at, _ = first_slot(root)
    damage.garbage_tail(root, "timerwheel", at, seed + number, 64 * SLOT.size)
    assert verify(root).findings
