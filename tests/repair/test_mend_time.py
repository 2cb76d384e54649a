"""Store times and places of half messages that cannot be: mended as far as anything proves them."""

from __future__ import annotations

import shutil
import struct
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rmqctl.parse_values import time_text
from tests.adversary.writer import COMMIT, EPOCH, PREPARED, ROLLBACK, Header, Layout, Writer
from tests.conftest import GoldenFolder
from tests.repair import damage
from tests.support.cli import run
from tests.support.share import sample

SIZES = ("--index-slots", "16", "--index-max", "64")
JSON = ("-o", "json")
TIME_AT, PREPARED_AT = 56, 76
YEAR = 365 * 24 * 3600 * 1000
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


def filled(keyed: bool = True, *, times: dict[int, int] | None = None, count: int = 30) -> Writer:
    """Messages of two queues, with keys or (but for one) without; ``times``: stored at other times
    than by the clock.
    """
    writer = Writer(Layout(), seed=6)
    for number in range(count):
        header = Header(store_timestamp=(times or {}).get(number))
        has_keys = keyed or number == 5
        writer.put("orders", b"body %d" % number, queue_id=number % 2, header=header,
                   keys=f"k{number}" if has_keys else "", unique_key=None if has_keys else "",
                   indexed=has_keys)
    return writer


def retimed(writer: Writer, number: int, time: int) -> None:
    writer.patch(writer.puts[number].physical + TIME_AT, struct.pack(">q", time))


def categories(store: Path, *options: str) -> set[str]:
    return {finding["category"] for finding in run("verify", store, *options, *JSON).json()[
        "findings"]}


def mended(store: Path, *options: str) -> list[dict[str, Any]]:
    """What `recover` does, its actions; it is done then, and a second one has nothing to do."""
    plan = run("recover", store, *options, *JSON).expect(0).json()
    done = run("recover", store, *options, "--apply", "--yes", *JSON).expect(0).json()
    assert done["actions"] == plan["actions"]
    assert run("recover", store, *options, *JSON).expect(0).json()["actions"] == []
    actions: list[dict[str, Any]] = plan["actions"]
    return actions


def same(store: Path, whole: Path) -> None:
    """Every file but those of the repair is what it was before the damage."""
    for path in sorted(whole.rglob("*")):
        if path.is_file():
            assert (store / path.relative_to(whole)).read_bytes() == path.read_bytes(), path


def checked(tmp_path: Path, writer: Writer, *, exact: bool = True) -> list[dict[str, Any]]:
    """Writes the store with its patches, mends it, and undoes that; the actions."""
    patches, writer._patches = writer._patches, []
    whole = writer.write(tmp_path / "whole")
    writer._patches = patches
    store = writer.write(tmp_path / "s")
    damaged = tmp_path / "damaged"
    shutil.copytree(store, damaged)
    actions = mended(store, *SIZES)
    assert categories(store, *SIZES) == set()
    if exact:
        same(store, whole)
    run("undo", store, "--yes").expect(0)
    same(store, damaged)
    run("recover", store, *SIZES, "--apply", "--yes").expect(0)
    return actions


# -- store times ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [True, False], ids=["indexed", "alone"])
@pytest.mark.parametrize("bit", [63, 44, 40, 37, 33])
def test_one_turned_bit(tmp_path: Path, bit: int, keyed: bool) -> None:
    writer = filled(keyed)
    put = writer.puts[17]
    retimed(writer, 17, put.time ^ 1 << bit if bit < 63 else put.time - (1 << 63))
    action, = checked(tmp_path, writer)
    assert action["action"] == "mend record"
    assert action["offset"] == put.physical
    assert "(one flipped bit)" in action["reason"]


@pytest.mark.parametrize(("number", "time"), sample(product(
    [0, 17, 29], [0, 5, -1, EPOCH + 9 * YEAR + 12345, 1 << 62]), 6, "times the index tells"))
def test_the_index_tells_it(tmp_path: Path, number: int, time: int) -> None:
    writer = filled()
    retimed(writer, number, time)
    action, = checked(tmp_path, writer, exact=False)
    assert ("in the index entry's second" if number == 17 else
            "from the header of its index file") in action["reason"]
    times = [put.time for put in writer.puts]
    if number == 17:
        times[number] = EPOCH + (times[number] - EPOCH) // 1000 * 1000
    assert_times(tmp_path / "s", times)


@pytest.mark.parametrize("time", [0, EPOCH + 9 * YEAR + 12345, EPOCH + 29 * 1700 ^ 1 << 50])
def test_the_checkpoint_tells_the_last_one(tmp_path: Path, time: int) -> None:
    writer = filled(keyed=False)
    retimed(writer, 29, time)
    action, = checked(tmp_path, writer)
    assert "from the checkpoint" in action["reason"]


@pytest.mark.parametrize("time", [0, -1, 946_684_800_001, EPOCH + 9 * YEAR + 12345])
def test_what_nothing_proves_becomes_the_neighbours(tmp_path: Path, time: int) -> None:
    writer = filled(keyed=False)
    retimed(writer, 17, time)
    action, = checked(tmp_path, writer, exact=False)
    assert action["reason"] == (
        f"invalid store time {time_text(time)}: original unknown, set to its neighbour's time, "
        f"{time_text(writer.puts[16].time)}")
    times = [put.time for put in writer.puts]
    assert_times(tmp_path / "s", [*times[:17], times[16], *times[18:]])


def assert_times(store: Path, times: list[int]) -> None:
    """The times of all messages, and that searches by time find them by these."""
    assert sorted(times) == times
    read = run("read", store, "--fields", "store_timestamp,queue_id,queue_offset", "--tz", "UTC",
               "-o", "jsonl").expect(0).jsonl()
    assert len(read) == len(times)
    for number in (0, 1, 14, 15, 16, 17, 18, 19, 28, 29):
        message = read[number]
        answer = run("query", "time", store, "--topic", "orders", "--queue",
                     str(message["queue_id"]), "--time", str(times[number]), *JSON).expect(0).json()
        assert answer["queue_offset"] == message["queue_offset"], number


def test_times_that_a_clock_gives_stay(tmp_path: Path) -> None:
    """Set back for a while or for one message, forward by less than years, never set at all."""
    hour = 3600 * 1000
    for name, times in (
            ("one back", {17: EPOCH - 9 * hour}), ("one long back", {17: EPOCH - 5 * YEAR}),
            ("one ahead", {17: EPOCH + 40 * hour}), ("first", {0: EPOCH + 400 * hour}),
            ("last", {29: EPOCH + 4000 * hour}),
            ("some back", {number: EPOCH - YEAR + number for number in range(10, 15)}),
            ("never set", {number: number * 1000 for number in range(30)}),
            ("set late", {number: number * 1000 for number in range(20)}),
            ("not set in between", {number: number for number in range(15, 20)})):
        for keyed in (True, False):
            store = filled(keyed, times=times).write(tmp_path / f"{name}{keyed}")
            assert run("recover", store, *SIZES, *JSON).expect(0).json()["actions"] == [], name


@pytest.mark.parametrize("back", [3_000, 60_000, 5 * 3600 * 1000])
@pytest.mark.parametrize("keyed", [True, False], ids=["indexed", "alone"])
def test_a_clock_set_back_just_before_the_last_message(tmp_path: Path, keyed: bool, back: int
                                                       ) -> None:
    """The checkpoint is of the message before."""
    before = filled(keyed).puts[28].time
    writer = filled(keyed, times={29: before - back})
    writer.checkpoint = {"physic": before, "logics": before}
    store = writer.write(tmp_path / "s")
    assert run("recover", store, *SIZES, *JSON).expect(0).json()["actions"] == []


def test_one_turned_bit_proves_nothing_where_messages_are_far_between(tmp_path: Path) -> None:
    """A clock that was 40 s slow for one message of every 100 s: 65 s more would fit, too."""
    writer = Writer(Layout(with_index=False, clock_step=100_000))
    for number in range(20):
        slow = 140_000 * (number == 10)
        writer.put("orders", b"x", unique_key="",
                   header=Header(store_timestamp=writer.clock - slow))
    store = writer.write(tmp_path / "s")
    actions = run("recover", store, "--only", "commitlog", *JSON).expect(0).json()["actions"]
    assert actions == []


def test_a_time_years_ahead_goes_even_where_the_index_has_it(tmp_path: Path) -> None:
    """An earlier repair may have made the index from it."""
    writer = filled(times={17: EPOCH + 9 * YEAR})
    store = writer.write(tmp_path / "s")
    actions = mended(store, *SIZES)
    assert {action["action"] for action in actions} == {"mend record", "rebuild"}
    assert categories(store, *SIZES) == {"header-born-time"}  # the writer made it of that time
    assert_times(store, [*(put.time for put in writer.puts[:17]), writer.puts[16].time,
                         *(put.time for put in writer.puts[18:])])


def test_two_of_them_side_by_side(tmp_path: Path) -> None:
    writer = filled(keyed=False)
    for number, time in ((17, EPOCH + 30 * YEAR), (18, EPOCH + 60 * YEAR)):
        retimed(writer, number, time)
    checked(tmp_path, writer, exact=False)


@pytest.mark.parametrize("value", sample([77, 1_718_000_000_000 + 6 * YEAR], 1, "times"))
@pytest.mark.parametrize(("name", "by"), [
    ("4.9.3/cqext", "consumequeue_ext"), ("5.3.3/cqext", "consumequeue_ext"),
    ("4.9.3/delay", "deliver time"), ("5.3.3/delay", "deliver time"),
    ("5.3.3/batchcq", "batch queue")])
def test_who_has_it_to_the_millisecond(golden: GoldenFolder, golden_copy: GoldenFolder, name: str,
                                       by: str, value: int) -> None:
    whole, store = golden(name) / "store", golden_copy(f"{name}/store")
    records = damage.remember(store).records
    folder = {"consumequeue_ext": "consumequeue_ext", "batch queue": "batchconsumequeue"}.get(by)
    topics = ({path.name for path in (store / folder).iterdir()} if folder
              else {"SCHEDULE_TOPIC_XXXX"})
    place, record = [(place, record) for place, record in sorted(records.items())
                     if record.topic.decode() in topics][5]
    moved = 12 * bool(record.sys_flag & 0x10)
    base = place - place % damage.remember(store).file_size
    with (store / "commitlog" / f"{base:020d}").open("r+b") as opened:
        opened.seek(place - base + TIME_AT + moved)
        opened.write(struct.pack(">q", value))
    assert "header-store-time" in categories(store)
    actions = mended(store)
    assert len(actions) == 1
    assert by in actions[0]["reason"]
    assert categories(store) == set()
    same(store, whole)


# -- half messages --------------------------------------------------------------------------------


def transactions(*, old: bool, keyed: bool = True) -> Writer:
    """Half messages 3 to 5 and what ends them, 12 to 14, as 4.0 to 4.2 and as later brokers."""
    writer = Writer(Layout(), seed=8)
    halves = {}
    for number in range(30):
        key = f"KEY{number % 9}" if keyed else ""
        if number in (3, 4, 5):
            header = Header(sys_flag=PREPARED if old else 0)
            properties = {} if old else {"REAL_TOPIC": "orders", "REAL_QID": "1"}
            halves[number] = writer.put("orders" if old else HALF, b"half %d" % number,
                                        queue_id=int(old), unique_key=key, header=header,
                                        properties=properties, indexed=keyed)
        elif number in (12, 13, 14):
            writer.put("orders", b"half %d" % (number - 9), queue_id=1, unique_key=key,
                       indexed=keyed, header=Header(
                           sys_flag=ROLLBACK if number == 13 and old else COMMIT,
                           prepared_transaction_offset=halves[number - 9].physical))
        else:
            writer.put("orders", b"%d" % number, queue_id=number % 2, unique_key="",
                       keys="first" if number == 0 else "", indexed=number == 0)
    return writer


def led_to(writer: Writer, number: int, place: int) -> None:
    writer.patch(writer.puts[number].physical + PREPARED_AT, struct.pack(">q", place))


@pytest.mark.parametrize("old", [True, False], ids=["4.0", "later"])
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "alone"])
@pytest.mark.parametrize("bit", [13, 20, 62])
def test_the_half_message_without_one_turned_bit(tmp_path: Path, bit: int, old: bool,
                                                 keyed: bool) -> None:
    writer = transactions(old=old, keyed=keyed)
    place = writer.puts[4].physical
    led_to(writer, 13, place ^ 1 << bit)
    action, = checked(tmp_path, writer)
    assert f"corrected to {place} (one flipped bit)" in action["reason"]


@pytest.mark.parametrize("old", [True, False], ids=["4.0", "later"])
@pytest.mark.parametrize("value", [-1, 1 << 40, 123_456_789])
def test_the_half_message_of_the_same_unique_key(tmp_path: Path, value: int, old: bool) -> None:
    writer = transactions(old=old)
    led_to(writer, 13, value)
    action, = checked(tmp_path, writer)
    assert f"corrected to {writer.puts[4].physical}, by its unique key" in action["reason"]


def test_a_half_message_that_nothing_leads_to(tmp_path: Path) -> None:
    writer = transactions(old=False, keyed=False)
    led_to(writer, 13, 123_456_789)
    action, = checked(tmp_path, writer, exact=False)
    assert "original unknown, set to 0" in action["reason"]


def test_a_message_that_ends_no_half_message(tmp_path: Path) -> None:
    writer = transactions(old=False)
    led_to(writer, 20, 123_456_789)
    action, = checked(tmp_path, writer)
    assert "set to 0, as in every message that does not end a transaction" in action["reason"]


def test_several_fields_of_one_head(tmp_path: Path) -> None:
    writer = transactions(old=False)
    led_to(writer, 13, 1 << 41)
    retimed(writer, 13, 1)
    writer.patch(writer.puts[13].physical + 68, struct.pack(">i", 10911 | 1 << 20))
    action, = checked(tmp_path, writer, exact=False)
    assert len(action["reason"].split("; ")) >= 3


HOURS_AHEAD = 400 * 3600 * 1000


def with_a_clock_set_back(folder: Path) -> tuple[Path, list[Path]]:
    """A store whose first index file is named by a clock that went wrong before the second."""
    store = filled(times={0: EPOCH + HOURS_AHEAD}, count=40).write(folder / "s")
    files = sorted((store / "index").iterdir())
    first, last = (int.from_bytes(file.read_bytes()[16:24], "big") for file in files)
    assert first > last
    return store, files


def test_index_files_out_of_order_by_name_are_right(tmp_path: Path) -> None:
    store, _ = with_a_clock_set_back(tmp_path)
    assert categories(store, *SIZES) == set()
    assert mended(store, *SIZES) == []


@pytest.mark.parametrize("number", [0, 1])
def test_of_index_files_out_of_order_the_damaged_one_is_made_anew(tmp_path: Path,
                                                                  number: int) -> None:
    store, files = with_a_clock_set_back(tmp_path)
    damage = bytearray(files[number].read_bytes())
    damage[40 + 16 * 4 + 20 + 6] ^= 1
    files[number].write_bytes(damage)
    assert mended(store, *SIZES)
    assert categories(store, *SIZES) == set()
