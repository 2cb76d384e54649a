"""salvage: bytes of a file's earlier life, and messages of a store with the appended CRC off."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.formats.local import append_crc
from rmqctl.formats.local.message import decode
from rmqctl.repair.salvage.salvage import salvage
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.repair import salvaging
from tests.repair.test_salvage import BASIC, Case


@pytest.fixture(params=BASIC)
def case(request: pytest.FixtureRequest, golden: GoldenFolder,
         golden_copy: GoldenFolder) -> Case:
    return Case(golden, golden_copy, request.param)


def end_of(case: Case) -> int:
    last = case.places[-1]
    return last + case.whole.records[last].total_size


def raw(case: Case, place: int) -> bytes:
    return case.whole.raw(place, case.whole.records[place].total_size)


def moved(record: bytes, place: int, queue_offset: int | None = None) -> bytes:
    """The record as it stands at another place, at another offset of its queue."""
    if queue_offset is not None:
        record = record[:20] + queue_offset.to_bytes(8, "big") + record[28:]
    return record[:28] + place.to_bytes(8, "big") + record[36:]


@pytest.mark.parametrize("after", [0, 40])
def test_stale_records_behind_the_end_are_zeroed(case: Case, after: int) -> None:
    end = end_of(case)
    room = -end % case.whole.file_size
    stale = next(some for at in range(after, len(case.places)) if len(some := b"".join(
        raw(case, one) for one in case.places[at:at + 3])) < room)
    case.change(end, stale)
    with Store.open(case.root) as store:
        found = salvage(store)
    assert [one.action for one in found.actions] == ["zero"]
    assert (found.lost, found.notes, found.restored, found.log_end) == ((), (), 0, end)
    case.check()


def test_stale_records_of_a_whole_file_before_are_zeroed(case: Case) -> None:
    """A file that is used again: its records lie just some files' sizes before their place."""
    end = end_of(case)
    size = case.whole.file_size
    last = case.whole.records[case.places[-1]]
    for power in (1, 2):
        case.change(end, moved(raw(case, case.places[-1]), end ^ (size << power),
                               last.queue_offset + 1))
        with Store.open(case.root) as store:
            found = salvage(store)
        assert (found.lost, found.restored, found.log_end) == ((), 0, end)
    case.check()


def test_a_stale_record_with_the_next_queue_offset_gets_no_row(case: Case) -> None:
    """Cut off long ago, when the log was longer: its place tells that it is not this one."""
    last = case.whole.records[case.places[-1]]
    case.change(end_of(case), moved(raw(case, case.places[-1]), end_of(case) + 5000,
                                    last.queue_offset + 1))
    with Store.open(case.root) as store:
        found = salvage(store)
    assert (found.lost, found.restored, found.log_end) == ((), 0, end_of(case))
    case.check()


def test_a_stale_copy_over_messages_in_the_middle_is_none_of_them(case: Case) -> None:
    at = next(number for number in range(60, len(case.places))
              if case.whole.records[case.places[number]].body
              and case.places[number] % case.whole.file_size > 5000)
    place = case.places[at]
    copy = raw(case, case.places[at - 20])
    case.change(place, copy)
    with Store.open(case.root) as store:
        found = salvage(store)
    assert place in {one.physical_offset for one in found.lost}
    there = salvaging.records(found.parts)
    assert decode(there[place]).body != decode(copy).body
    case.check()


def test_a_turned_bit_of_the_last_ones_place_is_still_set_right(case: Case) -> None:
    place = next(one for one in reversed(case.places) if case.whole.records[one].body)
    for path in (case.root / "consumequeue").rglob("*"):
        if path.is_file():
            path.unlink()
    data = bytearray(raw(case, place))
    data[35] ^= 4
    case.change(place, bytes(data))
    with Store.open(case.root) as store:
        found = salvage(store)
    assert salvaging.records(found.parts)[place] == raw(case, place)


# -- appended CRCs --------------------------------------------------------------------------------


@pytest.fixture
def sealed(golden: GoldenFolder, golden_copy: GoldenFolder) -> Case:
    return Case(golden, golden_copy, "5.3.3/appendcrc")


def unseal(case: Case, place: int) -> None:
    """The message as a broker writes it that does not append CRCs: one property of its own."""
    size = case.whole.records[place].total_size
    case.change(place + size - append_crc.SIZE,
                b"written\1" + b"with it off"[:append_crc.SIZE - 9] + b"\2")


def test_a_message_without_the_appended_crc_is_kept(sealed: Case) -> None:
    place = sealed.places[len(sealed.places) // 2]
    unseal(sealed, place)
    with Store.open(sealed.root) as store:
        found = salvage(store)
    assert (found.steps, found.lost) == ((), ())
    note, = found.notes
    assert f"physical offset {place}:" in note
    assert "forceVerifyPropCRC" in note


def test_a_wrong_appended_crc_still_proves_damage(sealed: Case) -> None:
    place = sealed.places[len(sealed.places) // 2]
    record = sealed.whole.records[place]
    at = place + record.total_size - append_crc.SIZE - 3
    sealed.change(at, bytes([raw(sealed, place)[at - place] ^ 1]))
    with Store.open(sealed.root) as store:
        found = salvage(store)
    assert found.steps
    sealed.check()


def test_the_track_record_s_store_needs_nothing(sealed: Case, rmqctl, tmp_path: Path) -> None:
    """apache/rocketmq#9852: the name of the property alone."""
    place = sealed.places[len(sealed.places) // 2]
    sealed.change(place + sealed.whole.records[place].total_size - append_crc.SIZE, b"__OLDCRC")
    found = rmqctl("recover", sealed.root, "-o", "json").recovered()
    assert found["actions"] == found["messages_lost"] == []
    assert len(found["notes"]) == 1
