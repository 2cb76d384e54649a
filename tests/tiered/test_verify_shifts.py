"""Verifying tiers with units that lead to before their messages: where the log is displaced, and
where only a unit is damaged. A broker that writes a cut block again moves everything behind it.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rmqctl.formats.local import message
from tests.support.share import every
from tests.tiered import tiers
from tests.tiered.tiers import T0, Queue
from tests.tiered.verifying import VerifyResult, verified


def found_in(queue: Queue, home: Path) -> VerifyResult:
    queue.write(home / "tieredstore")
    tiers.write_metadata(home, {tiers.TOPIC: 0}, [queue])
    return verified(home)


def lead(queue: Queue, number: int, before: int) -> None:
    """The unit of a queue offset leads to so many bytes before its message."""
    units = queue.units[0][1]
    units[number * 20:number * 20 + 8] = struct.pack(
        ">q", queue.records[number].physical_offset - before)


def several(count: int) -> Queue:
    queue = Queue()
    for number in range(count):
        queue.put(b"message %d" % number)
    return queue


def shifts(verify_result: VerifyResult) -> list[tuple[int | None, int | None]]:
    return [(finding.queue_offset, finding.count) for finding in verify_result.findings
            if finding.category == "tiered-shifted"]


def wrong_units(verify_result: VerifyResult) -> list[int | None]:
    return [finding.queue_offset for finding in verify_result.findings
            if finding.category == "tiered-cq-unit"]


def test_a_turned_bit_of_a_unit_is_no_shift(tmp_path: Path) -> None:
    """Whichever it is: the log lies where it should."""
    for number in every(3, range(1, 6), "units"):
        for bit in every(7, range(13), "bits of a place"):
            place = several(6).records[number].physical_offset
            queue = several(6)
            lead(queue, number, place - (place ^ 1 << bit))
            verify_result = found_in(queue, tmp_path / f"{number}-{bit}")
            assert shifts(verify_result) == []
            assert {"tiered-cq-unit", "tiered-cq-ahead"} & {
                finding.category for finding in verify_result.findings
                if finding.queue_offset == number}
            assert verify_result.coverage.orphans == 1
            note, = [finding for finding in verify_result.findings
                     if finding.category == "tiered-orphans"]
            assert "0 written again later" in note.detail


@pytest.mark.parametrize("numbers", [(2,), (2, 3), (2, 4), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("before", [1, 16, 64])
def test_units_that_agree_on_a_distance_are_no_shift(numbers: tuple[int, ...], before: int,
                                                     tmp_path: Path) -> None:
    """They do not lead on from the unit before them, which is right."""
    queue = several(6)
    for number in numbers:
        lead(queue, number, before)
    verify_result = found_in(queue, tmp_path)
    assert shifts(verify_result) == []
    assert wrong_units(verify_result) == list(numbers)


@pytest.mark.parametrize("wrong", [4, 6])
def test_a_unit_that_leads_to_the_start_of_its_segment(wrong: int, tmp_path: Path) -> None:
    """The first message of a segment is where it should be, so no other belongs there."""
    queue = several(3)
    queue.roll_log()
    for number in range(3, 7):
        queue.put(b"message %d" % number)
    lead(queue, wrong, queue.records[wrong].physical_offset - queue.logs[1][0])
    verify_result = found_in(queue, tmp_path)
    assert shifts(verify_result) == []
    assert wrong_units(verify_result) == [wrong]


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("lost", [None, 0, 1])
def test_a_message_of_the_block_proves_a_shift(first: int, lost: int | None,
                                               tmp_path: Path) -> None:
    """A full segment: whole messages, a block of two that lies a part of itself behind, two more
    messages of a later block; then the broker starts anew, and places are right again. A unit of
    the block may be ``lost``.
    """
    queue, part = several(first), 50
    start = queue.log_end
    queue.put(b"block one")
    queue.put(b"block two")
    log = queue.logs[0][1]
    block = bytes(log[start:])
    log[start:] = block[:part] + block
    for number in range(first + 2, first + 4):
        at = queue.log_end
        record = tiers.record(number, at, body=b"later", when=T0 + 1000 * number)
        log.extend(message.build(record))
        queue.units[0][1].extend(struct.pack(">qiq", at - part, record.total_size, 0))
    queue.roll_log()
    queue.put(b"in the next one")
    if lost is not None:
        queue.units[0][1][(first + lost) * 20:(first + lost + 1) * 20] = bytes(20)
    verify_result = found_in(queue, tmp_path)
    assert shifts(verify_result) == [(first + (lost == 0), 4 - (lost is not None))]
    assert wrong_units(verify_result) == ([] if lost is None else [first + lost])


def test_a_copy_in_a_body_is_no_shift(tmp_path: Path) -> None:
    """Of a message that lies where it says. Bytes of no message elsewhere are still told."""
    queue = several(2)
    copy = message.build(queue.records[1])
    around = queue.put(b"lead" + copy + b"rest")
    queue.put(b"behind")
    queue.orphan()
    queue.put(b"last")
    queue.logs[0][1][around.physical_offset + 4] ^= 1  # its magic
    verify_result = found_in(queue, tmp_path)
    assert shifts(verify_result) == []
    note, = [finding for finding in verify_result.findings if finding.category == "tiered-orphans"]
    assert "77 bytes without a message" in note.detail
