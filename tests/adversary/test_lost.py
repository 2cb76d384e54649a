"""What preflight says of messages that are gone already, on stores made from the format pages."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.damage.index_keys import turned_place
from tests.adversary.writer import UNIT, Header, Layout, Put, Writer
from tests.support.cli import run
from tests.support.holder import held

SIZES = ("--index-slots", "16", "--index-max", "64")
JSON = ("-o", "json")
FEW_UNITS = Layout(queue_file_units=20)
SMALL = Layout(log_file_size=16 << 10, queue_file_units=20)


def filled(layout: Layout = FEW_UNITS, count: int = 120) -> Writer:
    """Two topics over four queues each, every message with keys."""
    writer = Writer(layout, seed=1)
    for number in range(count):
        writer.put("orders" if number % 3 else "pays", b"body %d" % number, queue_id=number % 4,
                   keys=f"k{number}", lmq=["%LMQ%a"] if number % 10 == 0 else [])
    return writer


def by_topic(puts: list[Put]) -> dict[str, int]:
    topics = [put.topic for put in puts]
    return {topic: topics.count(topic) for topic in sorted(set(topics))}


def preflight(store: Path, code: int = 1, *more: str) -> dict[str, Any]:
    answer: dict[str, Any] = run("preflight", store, *SIZES, *JSON, *more).expect(code).json()
    return answer


def torn(writer: Writer, at: int) -> list[Put]:
    """Zeros from the midst of message ``at`` on; the messages that are lost by it."""
    for base in writer.log:
        if base + writer.layout.log_file_size > writer.puts[at].physical:
            start = max(base, writer.puts[at].physical + 30)
            writer.patch(start, bytes(base + writer.layout.log_file_size - start))
    return writer.puts[at:]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("abort", [True, False])
@pytest.mark.parametrize("quick", [(), ("--quick",)], ids=["full", "quick"])
def test_a_torn_tail(tmp_path: Path, version: int, abort: bool, quick: tuple[str, ...]) -> None:
    writer = filled(Layout(queue_file_units=20, version=version, abort=abort, spare_file=abort))
    writer.offsets["orders", "billing"] = {0: writer.next_offset["orders", 0], 1: 2}
    lost = torn(writer, 70)
    prediction = preflight(writer.write(tmp_path / "s"), 1, *quick)
    assert prediction["messages_lost"] == 0
    assert prediction["messages_already_lost"] == len(lost) == 50
    assert prediction["already_lost_by_topic"] == by_topic(lost)
    kept = [put for put in writer.puts[:70] if (put.topic, put.queue_id) == ("orders", 0)]
    assert prediction["offsets_beyond_end"] == [
        {"group": "billing", "topic": "orders", "queue_id": 0,
         "offset": writer.next_offset["orders", 0], "max_offset": len(kept)}]
    assert prediction["already_lost_from"] == writer.puts[69].time
    assert prediction["already_lost_to"] // 1000 == writer.puts[-1].time // 1000


def test_the_headline_names_the_counts(tmp_path: Path) -> None:
    writer = filled()
    writer.offsets["orders", "billing"] = {0: writer.next_offset["orders", 0]}
    torn(writer, 110)
    done = run("preflight", writer.write(tmp_path / "s"), *SIZES).expect(1)
    first = done.out.splitlines()[0]
    assert first == ("10 messages are already lost (orders 7, pays 3); a 5.3.3 broker would start "
                     "and delete the entries that prove this loss; "
                     "offsets of 1 group would be beyond the end of a queue")


def test_what_a_start_loses_and_what_is_lost_are_two_things(tmp_path: Path) -> None:
    writer = filled()
    bad = writer.puts[80]
    writer.flip(bad.body_at)
    store = writer.write(tmp_path / "s")
    prediction = preflight(store)
    assert prediction["messages_already_lost"] == 1
    assert prediction["already_lost_by_topic"] == {bad.topic: 1}
    assert prediction["messages_lost"] == 39
    assert (prediction["already_lost_from"], prediction["already_lost_to"]) == (
        writer.puts[79].time, writer.puts[81].time)
    assert prediction["offsets_beyond_end"] == []
    # Salvage keeps the 39 and gives the one a filler: then nothing is missing any more.
    run("recover", store, *SIZES, "--correct", "off", "--apply", "--yes", *JSON).expect(1)
    after = preflight(store, 0)
    assert after["messages_already_lost"] == after["messages_lost"] == 0


def test_a_missing_file_in_the_middle(tmp_path: Path) -> None:
    writer = filled(SMALL, 300)
    store = writer.write(tmp_path / "s")
    (store / "commitlog" / f"{16 << 10:020d}").unlink()
    lost = [put for put in writer.puts if 16 << 10 <= put.physical < 32 << 10]
    prediction = preflight(store)
    assert prediction["messages_already_lost"] == len(lost) > 0
    assert prediction["already_lost_by_topic"] == by_topic(lost)
    assert any("--commitlog-dir" in note for note in prediction["notes"])


def test_a_quick_look_says_nothing_of_what_it_does_not_look_at(tmp_path: Path) -> None:
    """A clean start of 5.3.3 begins with the file that the consumequeues reach into."""
    writer = filled(SMALL, 300)
    writer.flip(writer.puts[20].body_at)
    store = writer.write(tmp_path / "s")
    assert preflight(store)["messages_already_lost"] == 1
    assert preflight(store, 0, "--quick")["messages_already_lost"] == 0


def test_what_has_expired_is_not_lost(tmp_path: Path) -> None:
    writer = filled(SMALL, 300)
    store = writer.write(tmp_path / "s")
    (store / "commitlog" / f"{0:020d}").unlink()
    assert preflight(store, 0)["messages_already_lost"] == 0


@pytest.mark.parametrize("place", [0, 5, -1], ids=["first", "middle", "last"])
def test_a_damaged_row_is_no_lost_message(tmp_path: Path, place: int) -> None:
    writer = filled()
    units = writer.rows["orders", 1]
    at = sorted(units)[place]
    physical, size, code = struct.unpack(">qiq", units[at])
    units[at] = struct.pack(">qiq", physical | 1 << 40, size, code)
    prediction = preflight(writer.write(tmp_path / "s"), 1)
    assert prediction["messages_already_lost"] == 0


@pytest.mark.parametrize("place", [5, -1], ids=["middle", "last"])
def test_a_damaged_entry_is_no_lost_message(tmp_path: Path, place: int) -> None:
    writer = filled()
    entries = writer.index[-1].entry
    key, physical, seconds, before = entries[place]
    entries[place] = key, physical | 1 << 40, seconds, before
    assert preflight(writer.write(tmp_path / "s"), 0)["messages_already_lost"] == 0


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("bit", [16, 20, 43])
def test_a_turned_bit_in_a_last_row_makes_no_second_message(tmp_path: Path, lost: int,
                                                            bit: int) -> None:
    """The row leads behind the last file, the index to where the message was: it counts once."""
    writer = filled()
    gone = torn(writer, 120 - lost)
    units = writer.rows[gone[-1].topic, gone[-1].queue_id]
    physical, size, code = struct.unpack(">qiq", units[gone[-1].queue_offset])
    units[gone[-1].queue_offset] = struct.pack(">qiq", physical ^ 1 << bit, size, code)
    store = writer.write(tmp_path / "s")
    prediction = preflight(store)
    assert prediction["messages_already_lost"] == lost
    assert prediction["already_lost_by_topic"] == by_topic(gone)
    listed = run("recover", store, *SIZES, *JSON).expect(1).json()["messages_lost"]
    assert [difference["physical_offset"] for difference in listed] == [put.physical
                                                                        for put in gone]
    assert {difference["topic"] for difference in listed} == set(by_topic(gone))


@pytest.mark.parametrize(("rows", "keyed", "turned"), [
    ([5000, 1 << 30 | 7000], [5000, 7000], (1 << 30 | 7000, 7000)),
    ([5000, 1 << 24 | 7000], [5000, 7000], (1 << 24 | 7000, 7000)),
    ([5000, 1 << 23 | 7000], [5000, 7000], None),  # a message may reach so far
    ([5000, 1 << 30 | 7004], [5000, 7000], None),
    ([5000, 1 << 30 | 4000], [4000, 5000], None),  # a newer one is known
    ([5000, 1 << 30 | 7000], [7000, 1 << 30 | 7000], None),  # both have keys
    ([1 << 30 | 3000], [3000], None),  # that is intact
    ([], [7000], None), ([1 << 30 | 7000], [], None)])
def test_when_a_bit_was_turned(rows: list[int], keyed: list[int],
                               turned: tuple[int, int] | None) -> None:
    assert turned_place(np.array(rows, np.int64), np.array(keyed, np.int64), 4000,
                        1 << 26) == turned


def test_the_index_alone_proves_them_where_no_queue_is_left(tmp_path: Path) -> None:
    writer = filled(Layout(log_file_size=16 << 10, queue_file_units=20, with_queues=False,
                           abort=True))
    lost = torn(writer, 100)
    prediction = preflight(writer.write(tmp_path / "s"))
    assert prediction["messages_already_lost"] == len(lost)
    assert prediction["already_lost_by_topic"] == {}


@pytest.mark.parametrize("indexed", [True, False])
def test_offsets_of_groups_prove_what_no_row_knows_and_count_once(tmp_path: Path,
                                                                 indexed: bool) -> None:
    """No row is there; two groups had come as far as the old end or less."""
    writer = filled(Layout(log_file_size=16 << 10, queue_file_units=20, with_queues=False,
                           with_index=indexed, abort=True))
    keys = [(topic, queue) for topic in ("orders", "pays") for queue in range(4)]
    for topic, queue in keys:
        writer.offsets.setdefault((topic, "all"), {})[queue] = writer.next_offset[topic, queue]
        writer.offsets.setdefault((topic, "some"), {})[queue] = (
            writer.next_offset[topic, queue] - 1)
    lost = torn(writer, 100)
    prediction = preflight(writer.write(tmp_path / "s"))
    assert prediction["messages_already_lost"] == len(lost) == 20
    assert prediction["already_lost_by_topic"] == by_topic(lost)
    beyond = prediction["offsets_beyond_end"]
    assert {offset["group"] for offset in beyond} == {"all", "some"}
    assert all(offset["offset"] > offset["max_offset"] for offset in beyond)


def test_offsets_of_a_deleted_topic_or_one_that_was_made_again_prove_nothing(
        tmp_path: Path) -> None:
    writer = filled(SMALL)
    store = writer.write(tmp_path / "s")
    path = store / "config" / "consumerOffset.json"
    path.write_text(json.dumps({"offsetTable": {"gone@g": {"0": 4711}}}))
    prediction = preflight(store, 0)
    assert (prediction["messages_already_lost"], prediction["offsets_beyond_end"]) == (0, [])
    # A log that has expired since, and a queue that begins with 0 in it.
    fresh = Writer(Layout(log_file_size=16 << 10, queue_file_units=20, first_file=64 << 10))
    fresh.put("pays", b"the first of the new topic")
    fresh.offsets["pays", "g"] = {0: 900}
    again = preflight(fresh.write(tmp_path / "t"), 1)
    assert again["messages_already_lost"] == 0
    assert len(again["offsets_beyond_end"]) == 1


@pytest.mark.parametrize("torn_off", [True, False])
def test_offsets_alone_prove_nothing_unless_the_store_once_had_more(tmp_path: Path,
                                                                   torn_off: bool) -> None:
    """They may have been set by hand. A log that was torn has a checkpoint behind its end."""
    writer = filled(Layout(queue_file_units=20, with_index=False))
    end = writer.next_offset["orders", 0]
    writer.offsets["orders", "g"] = {0: end + 1000 * (not torn_off)}
    if torn_off:
        writer.tear(writer.puts[60].physical, rows=False)
    prediction = preflight(writer.write(tmp_path / "s"))
    lost = [put for put in writer.puts[60:] if (put.topic, put.queue_id) == ("orders", 0)]
    assert prediction["messages_already_lost"] == (len(lost) if torn_off else 0)
    assert len(prediction["offsets_beyond_end"]) == 1
    nothing_else = any("nothing else shows more messages" in note for note in prediction["notes"])
    assert torn_off is not nothing_else


def crashed(count: int = 120) -> Writer:
    """Torn, with neither rows nor entries of what is gone, nor a checkpoint as late as that."""
    writer = filled(Layout(log_file_size=64 << 10, queue_file_units=20, with_index=False,
                           abort=True), count)
    writer.tear(writer.puts[count - 20].physical, rows=False)
    writer.checkpoint = dict.fromkeys(("physic", "logics"), writer.puts[count - 21].time)
    return writer


def messages(impact: dict[str, Any]) -> list[str]:
    return [note for note in impact["notes"] if "the offset of" in note or "offsets" in note]


@pytest.mark.parametrize("far", [2_000, 65_536, 10**9, 10**15, 2**62, 2**63 - 1])
def test_a_position_beyond_what_the_log_can_have_held_cannot_be_told(tmp_path: Path,
                                                                    far: int) -> None:
    """Whether somebody set it, a bit flipped or it is another cluster's. A group that stands where
    there was room for messages counts all the same.
    """
    writer = crashed()
    end = writer.next_offset["orders", 1]
    writer.offsets["orders", "absurd"] = {1: far}
    alone = preflight(writer.write(tmp_path / "alone"))
    assert alone["messages_already_lost"] == 0
    kept = alone["offsets_beyond_end"][0]["max_offset"]
    assert alone["positions_unclear"] == alone["offsets_beyond_end"] == [
        {"group": "absurd", "topic": "orders", "queue_id": 1, "offset": far, "max_offset": kept}]
    [note] = messages(alone)
    assert f"offset of absurd at {far} in orders/1, which ends at {kept}: at most " in note
    for command in ("impact", "recover", "doctor"):
        done = run(command, tmp_path / "alone", *SIZES).expect(0, 1)
        assert f"absurd at {far}" in done.out + done.err

    writer.offsets["orders", "billing"] = {1: end}
    both = preflight(writer.write(tmp_path / "both"))
    assert both["messages_already_lost"] == end - kept > 0
    assert [group["group"] for group in both["positions_unclear"]] == ["absurd"]
    assert any(f"billing at {end}" in note and "set by hand" in note for note in both["notes"])


def test_positions_that_have_no_room_together_cannot_be_told(tmp_path: Path) -> None:
    """Each for itself might be: those of another cluster, for all queues."""
    writer = crashed()
    for queue in range(4):
        writer.offsets["orders", f"g{queue}"] = {queue: 400}
    prediction = preflight(writer.write(tmp_path / "s"))
    assert prediction["messages_already_lost"] == 0
    assert len(prediction["positions_unclear"]) == 4
    [note] = messages(prediction)
    assert note.count(" at 400 in orders/") == 3
    assert "; and 1 more: at most " in note
    writer.offsets = {("orders", "g0"): {0: 400}}
    assert preflight(writer.write(tmp_path / "one"))["messages_already_lost"] > 300


@pytest.mark.parametrize("value", [
    "-1", str(-2**63), str(2**63), str(2**64 + 7), str(-2**63 - 1), pytest.param(
        "1" + "0" * 400, id="400"), pytest.param("1" + "0" * 5000, id="5000"), "1e18", '"far"'])
def test_numbers_that_are_no_positions(tmp_path: Path, value: str) -> None:
    store = crashed().write(tmp_path / "s")
    path = store / "config" / "consumerOffset.json"
    path.write_text(f'{{"offsetTable": {{"orders@g": {{"1": {value}}}}}}}')
    prediction = preflight(store, 1 if len(value) > 1000 else 0)  # no broker loads such a number
    assert prediction["messages_already_lost"] == 0
    assert prediction["offsets_beyond_end"] == prediction["positions_unclear"] == []
    for command in ("impact", "recover", "doctor"):
        run(command, store, *SIZES).expect(0, 1)
    run("offsets", store).expect(0, 1)
    result = run("config", store, "offsets").expect(0, 1)
    assert (result.code == 1) == ("consumerOffset.json" in result.err) == (
        value not in ("-1", str(-2**63)))


def test_what_an_earlier_recovery_cut_off_is_lost_already(tmp_path: Path) -> None:
    """A broker's recovery leaves the index, and the bytes of rows, beyond the end."""
    writer = filled()
    writer.tear(writer.puts[100].physical, rows=False)
    store = writer.write(tmp_path / "index")
    assert preflight(store)["messages_already_lost"] == 20
    plan = run("recover", store, *SIZES, "-o", "json").expect(1).json()
    assert [message["known_by"] for message in plan["messages_lost"]] == ["index"] * 20
    writer = filled()
    torn(writer, 100)
    store = writer.write(tmp_path / "rows")
    assert preflight(store)["messages_already_lost"] == 20
    # 5.x notes where the last message of its recovery starts.
    with (store / "checkpoint").open("r+b") as file:
        file.seek(32)
        file.write(struct.pack(">q", writer.puts[99].physical))
    prediction = preflight(store)
    assert prediction["messages_already_lost"] == 20
    assert any("The last clean shutdown confirmed this end" in note for note in prediction["notes"])
    (store / "abort").touch()
    assert preflight(store)["messages_already_lost"] == 20


def test_beside_a_running_broker_what_leads_beyond_is_newer(tmp_path: Path) -> None:
    writer = filled()
    writer.offsets["orders", "billing"] = {0: writer.next_offset["orders", 0]}
    torn(writer, 100)
    store = writer.write(tmp_path / "s")
    with held(store):
        answer = run("preflight", store, *SIZES, *JSON).json()
    assert answer["messages_already_lost"] == 0
    assert answer["offsets_beyond_end"] == []


def test_a_store_on_which_no_broker_starts_has_its_losses_reported(tmp_path: Path) -> None:
    writer = filled()
    lost = torn(writer, 100)
    store = writer.write(tmp_path / "s")
    (store / "config" / "topics.json").write_text("{")
    (store / "config" / "topics.json.bak").write_text("{")
    prediction = preflight(store)
    assert not prediction["starts"]
    assert prediction["messages_already_lost"] == len(lost)


def test_an_empty_log_says_where_it_may_be(tmp_path: Path) -> None:
    writer = filled()
    store = writer.write(tmp_path / "s")
    for name in (store / "commitlog").iterdir():
        name.unlink()
    prediction = preflight(store)
    assert any("not mounted" in note for note in prediction["notes"])


def test_the_exit_code_of_this_start_alone(tmp_path: Path) -> None:
    writer = filled()
    writer.offsets["orders", "gone"] = {0: 10_000}
    store = writer.write(tmp_path / "offsets")
    assert preflight(store)["offsets_beyond_end"]
    assert preflight(store, 0, "--start-only")["offsets_beyond_end"]
    torn(writer, 100)
    store = writer.write(tmp_path / "torn")
    preflight(store, 1, "--start-only")  # it would cut off the rows that tell of them


def test_a_sound_store_with_everything_odd_has_lost_nothing(tmp_path: Path) -> None:
    writer = filled(Layout(log_file_size=16 << 10, queue_file_units=20, spare_file=True))
    for kind in (4, 8, 12):
        writer.put("orders", b"half", header=Header(sys_flag=kind))
    writer.offsets["orders", "g"] = {queue: writer.next_offset["orders", queue]
                                     for queue in range(4)}
    prediction = preflight(writer.write(tmp_path / "s"), 0)
    assert prediction["messages_already_lost"] == 0
    assert prediction["already_lost_by_topic"] == {}
    assert prediction["offsets_beyond_end"] == []
    assert UNIT == 20
