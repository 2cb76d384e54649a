"""salvage: bytes of a file's earlier life, and messages of a store with the appended CRC off."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from rmqctl.damage.survey.survey import Survey
from rmqctl.damage.survey.surveyor import Surveyor
from rmqctl.formats.local import append_crc
from rmqctl.formats.local.message import decode
from rmqctl.repair.salvage.salvage import salvage
from rmqctl.store.store import Store
from tests.adversary.writer import EPOCH, Layout, Writer
from tests.conftest import GoldenFolder
from tests.repair import salvaging
from tests.repair.test_salvage import BASIC, Case
from tests.support.cli import run


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
        raw(case, place) for place in case.places[at:at + 3])) < room)
    case.change(end, stale)
    with Store.open(case.root) as store:
        salvaged = salvage(store)
    assert [action.action for action in salvaged.actions] == ["zero"]
    assert (salvaged.lost, salvaged.notes, salvaged.restored, salvaged.log_end) == ((), (), 0, end)
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
            salvaged = salvage(store)
        assert (salvaged.lost, salvaged.restored, salvaged.log_end) == ((), 0, end)
    case.check()


def test_a_stale_record_with_the_next_queue_offset_gets_no_row(case: Case) -> None:
    """Cut off long ago, when the log was longer: its place tells that it is not this one."""
    last = case.whole.records[case.places[-1]]
    case.change(end_of(case), moved(raw(case, case.places[-1]), end_of(case) + 5000,
                                    last.queue_offset + 1))
    with Store.open(case.root) as store:
        salvaged = salvage(store)
    assert (salvaged.lost, salvaged.restored, salvaged.log_end) == ((), 0, end_of(case))
    case.check()


def test_a_stale_copy_over_messages_in_the_middle_is_none_of_them(case: Case) -> None:
    at = next(number for number in range(60, len(case.places))
              if case.whole.records[case.places[number]].body
              and case.places[number] % case.whole.file_size > 5000)
    place = case.places[at]
    copy = raw(case, case.places[at - 20])
    case.change(place, copy)
    with Store.open(case.root) as store:
        salvaged = salvage(store)
    assert place in {message.physical_offset for message in salvaged.lost}
    there = salvaging.records(salvaged.parts)
    assert decode(there[place]).body != decode(copy).body
    case.check()


def test_a_turned_bit_of_the_last_ones_place_is_still_set_right(case: Case) -> None:
    place = next(position for position in reversed(case.places)
                 if case.whole.records[position].body)
    for path in (case.root / "consumequeue").rglob("*"):
        if path.is_file():
            path.unlink()
    data = bytearray(raw(case, place))
    data[35] ^= 4
    case.change(place, bytes(data))
    with Store.open(case.root) as store:
        salvaged = salvage(store)
    assert salvaging.records(salvaged.parts)[place] == raw(case, place)


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
        salvaged = salvage(store)
    assert (salvaged.steps, salvaged.lost) == ((), ())
    note, = salvaged.notes
    assert f"physical offset {place}:" in note
    assert "forceVerifyPropCRC" in note


def test_a_wrong_appended_crc_still_proves_damage(sealed: Case) -> None:
    place = sealed.places[len(sealed.places) // 2]
    record = sealed.whole.records[place]
    at = place + record.total_size - append_crc.SIZE - 3
    sealed.change(at, bytes([raw(sealed, place)[at - place] ^ 1]))
    with Store.open(sealed.root) as store:
        salvaged = salvage(store)
    assert salvaged.steps
    sealed.check()


def test_the_track_record_s_store_needs_nothing(sealed: Case, rmqctl, tmp_path: Path) -> None:
    """apache/rocketmq#9852: the name of the property alone."""
    place = sealed.places[len(sealed.places) // 2]
    sealed.change(place + sealed.whole.records[place].total_size - append_crc.SIZE, b"__OLDCRC")
    answer = rmqctl("recover", sealed.root, "-o", "json").recovered()
    assert answer["actions"] == answer["messages_lost"] == []
    assert len(answer["notes"]) == 1


# -- where nothing is left to tell ----------------------------------------------------------------


SIZES = ("--consumequeue-file-size", "2000", "--index-slots", "100", "--index-max", "400")


def life(topic: str, clock: int, count: int = 60, length: int = 15) -> Writer:
    """Messages of one size, so that those of two lives of one ``length`` lie at the same places."""
    writer = Writer(Layout(log_file_size=max(32, count) << 10, queue_file_units=100,
                           index_slots=100, index_entries=400), clock=clock)
    for number in range(count):
        writer.put(topic, f"{clock} {number:3}".encode() * length, keys=f"{topic}{number}")
    return writer


def with_page_of(root: Path, older: Path, at: int, size: int) -> None:
    log, = (root / "commitlog").iterdir()
    raw = bytearray(log.read_bytes())
    raw[at:at + size] = next((older / "commitlog").iterdir()).read_bytes()[at:at + size]
    log.write_bytes(raw)


def said_of(root: Path) -> list[tuple[int, int, bool]]:
    """What `verify` says of an earlier life: where, how many; whether `preflight` does, too."""
    noted = " ".join(run("preflight", root, *SIZES, "-o", "json").json()["notes"])
    findings = run("verify", root, *SIZES, "-o", "json").json()["findings"]
    return [(finding["offset"], finding["count"], "stale record" in noted)
            for finding in findings if finding["category"] == "ambiguous"]


@pytest.mark.parametrize(("at", "size"), [(2048, 1024), (4096, 4096)])
@pytest.mark.parametrize(("topic", "derived"), [("old", True), ("old", False), ("new", False)])
def test_a_page_of_an_earlier_life_is_never_published(tmp_path: Path, rmqctl, at: int, size: int,
                                                      topic: str, derived: bool) -> None:
    """Its records lie between the same borders; only the time when they were stored tells."""
    older = life(topic, EPOCH)
    life("new", EPOCH + 3_600_000).write(tmp_path / "store")
    older.write(tmp_path / "older")
    with_page_of(tmp_path / "store", tmp_path / "older", at, size)
    if not derived:
        shutil.rmtree(tmp_path / "store" / "consumequeue")
        shutil.rmtree(tmp_path / "store" / "index")
    recover = ("recover", tmp_path / "store", *SIZES, "-o", "json")
    plan = rmqctl(*recover).expect(1).json()
    of_page = {put.physical for put in older.puts if at <= put.physical and put.end <= at + size}
    decisions = said_of(tmp_path / "store")
    if not derived:
        assert decisions == [(min(of_page), len(of_page), True)]
        assert plan["ambiguous"] == len(of_page)
        assert not of_page & {message["physical_offset"] for message in plan["messages_lost"]}, [
            message for message in plan["messages_lost"] if message["physical_offset"] in of_page]
        assert any("stale, or stored while" in note for note in plan["notes"])
    if plan["messages_undecided"]:
        rmqctl(*recover, "--apply").expect(6)
    rmqctl(*recover, "--apply", "--ambiguous", "leave-out").recovered()
    left = rmqctl("read", tmp_path / "store", "-o", "jsonl").expect(0).jsonl()
    assert {message["topic"] for message in left} <= {"new", "RMQCTL_FILLER"}
    assert not {put.body.decode() for put in older.puts} & {message["body"] for message in left}


@pytest.mark.parametrize("size", [2048, 4096])
def test_no_reader_shows_a_page_that_entries_contradict(tmp_path: Path, rmqctl, size: int) -> None:
    """The page begins with the file, as its records do; after it one record is torn."""
    older, newer = life("old", EPOCH, length=9), life("new", EPOCH + 3_600_000)
    root = newer.write(tmp_path / "store")
    older.write(tmp_path / "older")
    with_page_of(root, tmp_path / "older", 0, size)
    read = rmqctl("read", root, "-o", "jsonl").expect(1)
    bodies = [row["body"] for row in read.jsonl()]
    assert bodies
    assert {*bodies} <= {put.body.decode() for put in newer.puts}
    assert "stale records" in read.err
    shown = len(bodies)
    # They are damage, and no command counts them as undecided.
    answer = rmqctl("verify", root, "-o", "json").expect(1).json()
    assert [finding["category"] for finding in answer["findings"]
            if "stale records" in finding["detail"]] == [
                "record-damaged"]
    assert not answer["coverage"]["messages_undecided"]
    for command in ("preflight", "doctor", "recover"):
        document = rmqctl(command, root, *SIZES, "-o", "json").expect(1).json()
        assert not document["messages_undecided"], command
    assert rmqctl("stats", root, "-o", "json").expect(1).json()["total"]["messages"] == shown
    rows = rmqctl("sql", root, "select count(*) n from messages", "-o", "jsonl").jsonl()
    assert rows == [{"n": shown}]
    exported = tmp_path / "exported"
    rmqctl("export", root, "--out", exported, "--format", "jsonl")
    lines = [line for file in exported.rglob("part-*.json") for line in file.open()]
    assert len(lines) == shown
    rmqctl("recover", root, *SIZES, "-o", "json", "--apply", "--ambiguous",
           "leave-out").recovered()
    assert {*bodies} <= {row["body"] for row in rmqctl("read", root, "-o", "jsonl").jsonl()}


@pytest.mark.parametrize("gap", [1, 35, 90])
def test_no_reader_shows_old_records_behind_the_end(gap: int, tmp_path: Path, rmqctl) -> None:
    """The log was cut off and written again; it ends before the old records, within one of them."""
    newer = life("orders", EPOCH + 3_600_000)
    end = newer.puts[-1].end
    older = life("orders", EPOCH, 30)
    older.put("orders", b"x" * (end + gap - older.end - 200))
    older.put("orders", b"y" * (end + gap - older.end - 135), unique_key="", properties_raw=b"")
    for number in range(8):
        older.put("orders", b"old %d" % number, keys=f"old{number}")
    root = newer.write(tmp_path / "store")
    older.write(tmp_path / "older")
    with_page_of(root, tmp_path / "older", end, 4096)
    rows = rmqctl("read", root, "-o", "jsonl").jsonl()
    assert {row["physical_offset"] for row in rows} <= {put.physical for put in newer.puts}


def test_records_of_an_earlier_life_are_counted_once(tmp_path: Path, rmqctl) -> None:
    """A log file is that of the life before; entries lead to places between its records, too."""
    lives = [Writer(Layout(8 << 10, 40, 64, 400, clock_step=1)) for _ in range(2)]
    luck = random.Random(0)
    for number in range(90):
        own, other = luck.choice((3, 100, 400, 1500)), luck.choice((3, 100, 400, 1500))
        lives[0].put("orders", b"o" * own, unique_key=f"O{number}")
        lives[1].put("orders", b"n" * (own if number < 25 else other), unique_key=f"N{number}")
    root, older = lives[1].write(tmp_path / "store"), lives[0].write(tmp_path / "older")
    name = f"commitlog/{24 << 10:020d}"
    shutil.copy(older / name, root / name)
    plan = rmqctl("recover", root, "-o", "json").expect(1).json()
    answer = rmqctl("verify", root, "-o", "json").expect(1).json()
    assert answer["coverage"]["messages_undecided"] == plan["messages_undecided"] > 0


def test_a_page_of_an_earlier_life_behind_very_many_messages(tmp_path: Path, rmqctl) -> None:
    older = life("old", EPOCH, 1500)
    life("new", EPOCH + 3_600_000, 1500).write(tmp_path / "store")
    older.write(tmp_path / "older")
    at = next(at for at in range(100 * 4096, older.end, 4096) if all(any(
        put.body_at < border < put.body_at + len(put.body) for put in older.puts)
        for border in (at, at + 4096)))
    with_page_of(tmp_path / "store", tmp_path / "older", at, 4096)
    for derived in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / "store" / derived)
    plan = rmqctl("recover", tmp_path / "store", *SIZES, "-o", "json").expect(1).json()
    (_, decisions, noted), = said_of(tmp_path / "store")
    assert noted
    assert plan["ambiguous"] == decisions == sum(
        at <= put.physical and put.end <= at + 4096 for put in older.puts) > 0


# -- amid undamaged bytes -------------------------------------------------------------------------


SMALL = ("--consumequeue-file-size", "2000", "--index-slots", "100", "--index-max", "400",
         "--commitlog-file-size", "8192")


def way(topic: str, body: int) -> Writer:
    """Messages in files of 8 KiB, from the 22nd on those of this way."""
    writer = Writer(Layout(log_file_size=8 << 10, queue_file_units=100, index_slots=100,
                           index_entries=400))
    for number in range(90):
        other = number >= 22
        writer.put(topic if other else "new", bytes([number]) * (body if other else 150),
                   queue_id=number % 3, keys=f"{topic if other else 'new'}{number}")
    return writer


def with_old_page(folder: Path, topic: str = "old") -> tuple[Path, Path, list[int]]:
    """(store, the store as it was, places of the records of its page of an earlier life)."""
    older, parted = way(topic, 90), 22
    way("new", 210).write(folder / "store")
    shutil.copytree(folder / "store", folder / "whole")
    older.write(folder / "older")
    path = Path("commitlog", f"{0:020d}")
    raw = (folder / "store" / path).read_bytes()
    page = (folder / "older" / path).read_bytes()[4096:]
    (folder / "store" / path).write_bytes(raw[:4096] + page)
    first = older.puts[parted].physical
    return folder / "store", folder / "whole", [
        put.physical for put in older.puts if first <= put.physical < 8192]


def salvaged_places(root: Path) -> list[tuple[int, int]]:
    findings = run("verify", root, *SMALL, "-o", "json").json()["findings"]
    return [(finding["offset"], finding["count"]) for finding in findings
            if finding["category"] == "ambiguous"]


def test_a_page_that_leaves_no_damage_is_not_believed(tmp_path: Path, rmqctl) -> None:
    """Rows and index know other messages there: nothing is made anew of what the page holds."""
    root, whole, stale = with_old_page(tmp_path)
    assert salvaged_places(root) == [(stale[0], len(stale))]
    assert salvaged_places(whole) == []
    recover = ("recover", root, *SMALL, "-o", "json")
    plan = rmqctl(*recover).expect(1).json()
    assert plan["ambiguous"] == len(stale)
    assert any(f"{len(stale)} intact records from physical offset {stale[0]} on, between undamaged"
               in note for note in plan["notes"])
    lost = {message["physical_offset"] for message in plan["messages_lost"]}
    assert lost == {put.physical for put in way("new", 210).puts if stale[0] <= put.physical < 8192}
    if plan["messages_undecided"]:
        rmqctl(*recover, "--apply").expect(6)
    rmqctl(*recover, "--apply", "--ambiguous", "leave-out").recovered()
    left = rmqctl("read", root, "-o", "jsonl").expect(0).jsonl()
    assert {message["topic"] for message in left} <= {"new", "RMQCTL_FILLER"}
    rmqctl("verify", root, *SMALL).expect(0)


def test_a_page_that_leaves_no_damage_comes_from_a_replica(tmp_path: Path, rmqctl) -> None:
    root, whole, _ = with_old_page(tmp_path)
    plan = rmqctl("recover", root, "--from", whole, *SMALL, "--apply", "-o", "json").recovered()
    assert "ambiguous" not in plan
    for part in ("commitlog", "consumequeue", "index"):
        for path in (whole / part).rglob("*"):
            if path.is_file():
                assert path.read_bytes() == (root / path.relative_to(whole)).read_bytes()


def test_the_user_may_believe_the_page(tmp_path: Path, rmqctl) -> None:
    root, _, stale = with_old_page(tmp_path)
    rmqctl("recover", root, *SMALL, "--ambiguous", "keep", "--apply", "-o", "json").recovered()
    left = rmqctl("read", root, "-o", "jsonl").expect(0).jsonl()
    assert {message["physical_offset"] for message in left
            if message["topic"] == "old"} >= {*stale[1:]}


@pytest.mark.parametrize(("gone", "is_told"), [("index", True), ("consumequeue", False)])
def test_two_structures_have_to_contradict(tmp_path: Path, rmqctl, gone: str,
                                           is_told: bool) -> None:
    """Rows of several queues do without the index, but not the index without rows."""
    root, _, stale = with_old_page(tmp_path, "new")
    shutil.rmtree(root / gone)
    assert salvaged_places(root) == [(stale[0], len(stale))] * is_told
    plan = rmqctl("recover", root, *SMALL, "-o", "json").json()
    assert plan.get("ambiguous", 0) == len(stale) * is_told


def test_a_log_that_parts_from_its_rows_up_to_its_end_is_believed(tmp_path: Path, rmqctl) -> None:
    """As where somebody has put another log, or an older one, beside these rows."""
    way("old", 90).write(tmp_path / "store")
    way("new", 210).write(tmp_path / "other")
    for part in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / "store" / part)
        shutil.copytree(tmp_path / "other" / part, tmp_path / "store" / part)
    assert salvaged_places(tmp_path / "store") == []
    plan = rmqctl("recover", tmp_path / "store", *SMALL, "-o", "json").json()
    assert "ambiguous" not in plan


def test_damaged_rows_of_one_queue_are_no_earlier_life(tmp_path: Path, rmqctl) -> None:
    root = way("new", 210).write(tmp_path / "store")
    path, = (root / "consumequeue" / "new" / "1").iterdir()
    rows = bytearray(path.read_bytes())
    for number in range(8, 12):
        rows[20 * number:20 * number + 8] = (40_000 + 8 * number).to_bytes(8, "big")
    path.write_bytes(rows)
    assert salvaged_places(root) == []
    plan = rmqctl("recover", root, *SMALL, "-o", "json").json()
    assert "ambiguous" not in plan


@pytest.mark.parametrize("step", [0, 400_000])
def test_a_clock_that_was_set_back_and_passes_is_no_earlier_life(step: int, tmp_path: Path,
                                                                 rmqctl) -> None:
    """Damage all over a log without rows: what comes in order behind other messages is theirs."""
    writer = Writer(Layout(log_file_size=32 << 10, clock_step=20_000), clock=EPOCH + 3_600_000)
    for number in range(60):
        if number == 20:
            writer.clock -= step
        writer.put("new", bytes([number]) * 100)
    root = writer.write(tmp_path / "store")
    with next((root / "commitlog").iterdir()).open("r+b") as file:
        for number in (19, 22, 26, 31, 36, 41, 50):
            file.seek(writer.puts[number].body_at)
            file.write(b"xx")
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    plan = rmqctl("recover", root, *SIZES, "-o", "json").expect(1).json()
    assert "ambiguous" not in plan
    assert said_of(root) == []


def test_a_clock_that_was_set_back_is_no_earlier_life(tmp_path: Path, rmqctl) -> None:
    """It stays back: what is behind the second damage is older, too."""
    writer = Writer(Layout(log_file_size=16 << 10), clock=EPOCH + 3_600_000)
    for number in range(60):
        if number == 30:
            writer.clock = EPOCH
        writer.put("new", bytes([number]) * 100)
    root = writer.write(tmp_path / "store")
    for number in (29, 40):
        with next((root / "commitlog").iterdir()).open("r+b") as file:
            file.seek(writer.puts[number].body_at)
            file.write(b"xx")
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    plan = rmqctl("recover", root, *SIZES, "-o", "json").expect(1).json()
    assert "ambiguous" not in plan
    assert said_of(root) == []


def test_what_becomes_undecided_during_the_repair_is_kept_too(
        tmp_path: Path, rmqctl, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is brought back may tell that others may lie in a body."""
    writer = life("orders", EPOCH)
    root = writer.write(tmp_path / "store")
    log, = (root / "commitlog").iterdir()
    raw = bytearray(log.read_bytes())
    raw[writer.puts[3].body_at] ^= 1
    log.write_bytes(raw)
    doubtful, surveyed, seen = writer.puts[9], Surveyor.run, list[tuple[Any, dict[int, int]]]()

    def survey(self: Surveyor, parts: Any, condemned: Any, confirmed: dict[int, int]) -> Any:
        seen.append((surveyed(self, parts, condemned, confirmed), dict(confirmed)))
        return seen[-1][0]

    def unclear(self: Survey) -> list[tuple[int, int]]:
        later = any(undecided is self and doubtful.physical not in confirmed
                    for undecided, confirmed in seen[1:])
        return [(doubtful.physical, len(doubtful.raw))] if later else []

    monkeypatch.setattr(Surveyor, "run", survey)
    monkeypatch.setattr(Survey, "unclear", property(unclear))
    plan = rmqctl("recover", root, *SIZES, "-o", "json", "--ambiguous", "keep").expect(0, 1).json()
    assert "correct" in {action["action"] for action in plan["actions"]}
    assert seen[-1][1][doubtful.physical] == len(doubtful.raw)


@pytest.mark.parametrize(("back", "offset", "rows"), [
    (3_600_000, 0, False), (3_600_000, 5, True), (0, 5, True)],
    ids=["clock-back-topic-anew", "clock-back-offsets-twice", "offsets-twice"])
def test_the_queue_offset_of_another_is_no_proof(tmp_path: Path, rmqctl, back: int, offset: int,
                                                 rows: bool) -> None:
    """Brokers give queue offsets twice (apache/rocketmq#7689), and a topic that is made anew begins
    at 0: beside damage, such messages are undecided, and kept at the user's word.
    """
    writer = Writer(Layout(log_file_size=8 << 10, with_queues=rows, with_index=False))
    for number in range(30):
        writer.put("orders", b"message " * 10, queue_id=number % 2)
    writer.roll()
    writer.clock -= back
    writer.next_offset = dict.fromkeys(writer.next_offset, offset)
    for number in range(40):
        writer.put("orders", b"another " * 10, queue_id=number % 2,
                   row=number >= 2 * (15 - offset))
    hit = writer.puts[35]
    writer.patch(hit.physical, bytes(88))
    root = writer.write(tmp_path / "store")
    plan = rmqctl("recover", root, "-o", "json").json()
    doctor = rmqctl("doctor", root, "-o", "json").expect(1).json()
    assert doctor["messages_undecided"] == plan["messages_undecided"] > 0
    others = {put.physical for put in writer.puts} - {hit.physical}
    assert not others & {message["physical_offset"] for message in plan["messages_lost"]}
    rmqctl("recover", root, "--apply", "--yes").expect(6)
    rmqctl("recover", root, "--apply", "--yes", "--ambiguous", "keep").expect(1)
    log = b"".join(file.read_bytes() for file in sorted((root / "commitlog").iterdir()))
    # Right behind the damage an older one is refuted by its entry, which leads to the newer.
    refuted = {hit.physical, hit.end} if back and rows else {hit.physical}
    assert all(log[put.physical:put.end] == put.raw for put in writer.puts
               if put.physical not in refuted)


def test_a_frame_in_the_message_of_an_entry_behind_a_page_is_none(tmp_path: Path, rmqctl) -> None:
    """A page of an older log covers the head of a message; a frame in its body begins right behind
    the page. Right before it lies a record that is too short to hold it, and the frame's own queue
    offset is free: only the message's entry tells.
    """
    older = Writer(Layout(log_file_size=16 << 10, with_index=False), clock=EPOCH - 3_600_000)
    writer = Writer(Layout(log_file_size=16 << 10, with_index=False))
    for log_writer in (older, writer):
        for number in range(20):
            log_writer.put("orders", b"message " * 10, keys=f"k{number}")
        log_writer.roll()
    page = older.put("orders", b"older " * 645), older.put("orders", b"older " * 20)
    forged, behind = older.put("orders", b"forged " * 8).raw, page[0].physical + 4096
    assert 0 < behind - page[1].physical < 88
    hit = writer.put("orders", lambda at: (
        bytes(behind - at) + moved(forged, behind, 99) + b"y" * 2000))
    assert hit.physical == page[0].physical
    for number in range(20):
        writer.put("orders", b"message " * 10, keys=f"n{number}")
    writer.patch(hit.physical, (page[0].raw + page[1].raw)[:4096])
    root = writer.write(tmp_path / "store")
    read = {message["physical_offset"]
            for message in rmqctl("read", root, "-o", "json").json()}
    assert read == {put.physical for put in writer.puts} - {hit.physical}
    output = rmqctl("recover", root, "--explain", str(behind)).out
    assert "an entry points to a message" in output


def test_times_of_the_checkpoint_are_evidence(tmp_path: Path, rmqctl) -> None:
    """They are shown for undecided records, and change nothing."""
    root, _, stale = with_old_page(tmp_path)
    recover = ("recover", root, *SMALL, "-o", "json")
    sound = rmqctl(*recover).expect(1).json()
    note, = [note for note in sound["notes"] if note.startswith("checkpoint: ")]
    assert f"): 0 of {len(stale)}, after logicsMsgTimestamp (" in note
    explained = rmqctl(*recover, "--explain", str(stale[0])).expect(0).json()
    detail, = [item["detail"] for item in explained["evidence"]
               if item["source"] == "checkpoint"]
    assert "is not after physicMsgTimestamp" in detail
    # An early time, and a damaged one.
    checkpoint = root / "checkpoint"
    page = checkpoint.read_bytes()
    for time, text in ((1, f"): {len(stale)} of {len(stale)}, after"), (1 << 60, "")):
        checkpoint.write_bytes(struct.pack(">q", time) + page[8:])
        plan = rmqctl(*recover).expect(1).json()
        notes = [note for note in plan["notes"] if note.startswith("checkpoint: ")]
        assert len(notes) == bool(text)
        assert all(text in note for note in notes)
        assert plan["ambiguous"] == sound["ambiguous"]
