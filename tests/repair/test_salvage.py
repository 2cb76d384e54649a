"""salvage: damage of every kind, one at a time, and what must come out."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from rmqctl.errors import RefusedError
from rmqctl.formats.local.message import decode
from rmqctl.repair.plan import Create, Patch
from rmqctl.repair.salvage.salvage import salvage
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.store.store import Sizes, Store
from tests.conftest import GoldenFolder
from tests.repair import damage, salvaging
from tests.support.golden import GoldenStore, clean_stores
from tests.support.replay import settings_of

BASIC = ["4.9.3/basic", "5.3.3/basic"]


class Case:
    """A copy of a golden store with what is needed to damage and check it."""

    def __init__(self, golden: GoldenFolder, golden_copy: GoldenFolder, name: str) -> None:
        self.root = golden_copy(f"{name}/store")
        self.settings = settings_of(golden(name), name.partition("/")[0], lmq=True,
                                    multi_dispatch=True)
        self.whole = damage.remember(self.root)
        self.rows = salvaging.rows_of(self.root)
        self.log = sorted((self.root / "commitlog").iterdir())
        self.places = sorted(self.whole.records)

    def change(self, physical: int, data: bytes) -> None:
        base = physical - physical % self.whole.file_size
        with (self.root / "commitlog" / f"{base:020d}").open("r+b") as opened:
            opened.seek(physical - base)
            opened.write(data)

    def check(self, **options: str) -> salvaging.Outcome:
        return salvaging.check(self.root, self.whole, self.rows, self.settings, **options)


@pytest.fixture(params=BASIC)
def case(request: pytest.FixtureRequest, golden: GoldenFolder,
         golden_copy: GoldenFolder) -> Case:
    return Case(golden, golden_copy, request.param)


@pytest.mark.parametrize("store", clean_stores(), ids=lambda golden_store: golden_store.id)
def test_a_store_without_damage_needs_nothing(store: GoldenStore,
                                              golden: GoldenFolder) -> None:
    root = golden(store.id)
    folders = [] if store.commitlog_dirs == ("commitlog",) else store.commitlog_dirs
    with Store.open(root, folders) as opened:
        salvaged = salvage(opened)
    assert salvaged.empty
    assert (salvaged.steps, salvaged.actions, salvaged.lost, salvaged.notes) == ((), (), (), ())


def test_a_wrong_body_becomes_a_filler_with_the_same_row(case: Case) -> None:
    place = next(position for position in case.places[-30:]
                 if any(case.whole.records[position].body))
    record = case.whole.records[place]
    case.change(place + 88, bytes(len(record.body)))
    with Store.open(case.root) as store:
        salvaged = salvage(store)
    lost, = salvaged.lost
    assert (lost.physical_offset, lost.size, lost.by) == (place, record.total_size,
                                                          "consumequeue")
    assert (lost.topic, lost.queue_id, lost.queue_offset) == (
        record.topic.decode(), record.queue_id, record.queue_offset)
    assert lost.time_from is not None
    assert lost.time_to is not None
    assert lost.time_from <= record.store_timestamp <= lost.time_to
    step, = salvaged.steps
    assert isinstance(step, Patch)
    assert [(piece.at, piece.size) for piece in step.pieces] == [
        (place % case.whole.file_size, record.total_size)]
    outcome = case.check()
    assert outcome.kept == len(case.places) - 1
    assert outcome.broker < outcome.kept


@pytest.mark.parametrize("field", [
    (0, 4, "total_size"), (4, 4, "magic"), (8, 4, "body_crc"), (12, 4, "queue_id"),
    (20, 8, "queue_offset"), (28, 8, "physical_offset"), (36, 1, "sys_flag"),
    (56, 8, "store_timestamp"), (84, 4, "body_length")], ids=lambda pair: pair[2])
def test_a_bit_of_the_head_is_set_right_again(case: Case, field: tuple[int, int, str]) -> None:
    place = next(position for position in case.places[100:]
                 if len(case.whole.records[position].body) > 20)
    raw = bytearray(case.whole.raw(place, case.whole.records[place].total_size))
    at, width, name = field
    if name == "sys_flag":
        at, bit = 39, 2  # PREPARED: no broker gives it a row
    else:
        at, bit = at + width - 1, 4
    case.change(place + at, bytes([raw[at] ^ 1 << bit]))
    if name == "store_timestamp":
        case.change(place + 58, bytes([raw[58] ^ 1]))
        case.change(place + at, bytes([raw[at]]))
    outcome = case.check()
    assert (outcome.restored, outcome.lost) == (1, 0)


def test_a_bit_of_the_topic_is_set_right_again(case: Case) -> None:
    place = case.places[50]
    record = case.whole.records[place]
    case.change(place + 88 + len(record.body) + 3, bytes([record.topic[2] ^ 1]))
    outcome = case.check()
    assert (outcome.restored, outcome.lost) == (1, 0)


def test_swapped_pages_are_put_back(case: Case) -> None:
    path = case.log[1]
    data = bytearray(path.read_bytes())
    data[4096:8192], data[20480:24576] = data[20480:24576], data[4096:8192]
    path.write_bytes(data)
    outcome = case.check()
    assert (outcome.kept + outcome.restored, outcome.lost) == (len(case.places), 0)


@pytest.mark.parametrize("choice", ["fillers", "blank"])
def test_a_missing_file_between_others(case: Case, choice: str) -> None:
    path = case.log[2]
    before = case.log[1].stat().st_mtime_ns
    path.unlink()
    with Store.open(case.root) as store:
        salvaged = salvage(store, missing_file=choice)  # type: ignore[arg-type]
    step, = salvaged.steps
    assert isinstance(step, Create)
    assert isinstance(step.content, OverlayPiece)
    assert (step.target, step.content.size, step.mtime_ns) == (
        f"commitlog/{path.name}", case.whole.file_size, before)
    inside = [place for place in case.places if place // case.whole.file_size == 2]
    assert [message.physical_offset for message in salvaged.lost] == inside
    assert any(message.key_hashes for message in salvaged.lost)
    if choice == "blank":
        assert salvaging.content(step.content)[:8] == struct.pack(
            ">iI", case.whole.file_size, 0xCBD43194)
        assert "gaps" in salvaged.notes[0]
        assert set(salvaging.records(salvaged.parts)) == set(case.places) - set(inside)
    else:
        assert case.check().kept == len(case.places) - len(inside)


def test_a_missing_file_of_which_nothing_is_known_is_one_blank(case: Case) -> None:
    case.log[2].unlink()
    for folder in ("consumequeue", "index"):
        shutil.rmtree(case.root / folder)
    with Store.open(case.root) as store:
        salvaged = salvage(store)
    # The gaps in the queues' offsets still tell that there were messages.
    assert {message.by for message in salvaged.lost} == {"gap"}
    inside = [record for place, record in case.whole.records.items()
              if place // case.whole.file_size == 2]
    assert {(message.topic, message.queue_id, message.queue_offset)
            for message in salvaged.lost} == {
                (record.topic.decode(), record.queue_id, record.queue_offset) for record in inside}
    case.check()


def test_a_short_file_gets_its_size_back(case: Case) -> None:
    path = case.log[1]
    with path.open("r+b") as opened:
        opened.truncate(30_001)
    with Store.open(case.root) as store:
        salvaged = salvage(store)
    step, = salvaged.steps
    assert isinstance(step, Patch)
    assert step.pieces[-1].end == case.whole.file_size
    case.check()


def test_a_torn_tail_keeps_the_rows_it_had(case: Case) -> None:
    place = case.places[-3]
    case.change(place + 30, bytes(case.whole.file_size - (place + 30) % case.whole.file_size))
    with Store.open(case.root) as store:
        salvaged = salvage(store)
    assert [message.physical_offset for message in salvaged.lost] == case.places[-3:]
    last = case.whole.records[case.places[-1]]
    assert salvaged.log_end == last.physical_offset + last.total_size
    case.check()


def test_a_tail_of_which_nothing_is_known_is_zeroed(case: Case) -> None:
    end = max(place + case.whole.records[place].total_size for place in case.places)
    case.change(end, b"garbage" * 40)
    with Store.open(case.root) as store:
        salvaged = salvage(store)
    assert salvaged.log_end == end
    assert not salvaged.lost
    step, = salvaged.steps
    assert isinstance(step, Patch)
    assert not any(salvaging.content(step.pieces[0]))
    assert [action.action for action in salvaged.actions] == ["zero"]
    case.check()


def test_gaps_alone_tell_of_lost_messages(case: Case) -> None:
    for folder in ("consumequeue", "index"):
        shutil.rmtree(case.root / folder)
    case.change(case.places[40] + 2, bytes(3000))
    gone = {(record.topic.decode(), record.queue_id, record.queue_offset)
            for place in damage.intact(case.whole, case.root) ^ set(case.places)
            for record in [case.whole.records[place]]}
    with Store.open(case.root) as store:
        salvaged = salvage(store, ambiguous="keep")
    assert {(message.topic, message.queue_id, message.queue_offset)
            for message in salvaged.lost} <= gone
    assert salvaged.lost
    case.check(ambiguous="keep")


def test_sizes_no_broker_can_have_written_are_refused(case: Case) -> None:
    with case.log[-1].open("ab") as opened:  # no file follows in which these bytes are
        opened.write(b"x" * 100)
    with Store.open(case.root, sizes=Sizes(commitlog_file=case.whole.file_size)) as store, \
            pytest.raises(RefusedError, match="are not zeros"):
        salvage(store)


def test_odd_bytes_go_to_the_message_before_them(tmp_path: Path, case: Case) -> None:
    """Too few for any record: a size in between that no broker writes."""
    first, second = case.places[0], case.places[1]
    record = case.whole.records[first]
    raw = bytearray(case.whole.raw(first, record.total_size))
    text = record.properties
    short = 40
    if len(text) < short:
        pytest.skip("its properties are too short to cut")
    data = bytes(raw[:len(raw) - short])
    data = (len(data)).to_bytes(4, "big") + data[4:]
    at = len(data) - (len(text) - short) - 2
    data = data[:at] + (len(text) - short).to_bytes(2, "big") + data[at + 2:]
    case.change(first, data + bytes(short))
    assert decode(data).total_size == record.total_size - short
    for folder in ("consumequeue", "index"):
        shutil.rmtree(case.root / folder)
    with Store.open(case.root) as store:
        salvaged = salvage(store)
    there = salvaging.records(salvaged.parts)
    assert len(there[first]) == record.total_size
    assert decode(there[first]).body == record.body
    assert decode(there[first]).properties == text[:-short] + b"\2" * short
    assert second in there
    assert tmp_path.exists()
