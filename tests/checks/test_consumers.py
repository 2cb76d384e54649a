"""What damage and a start mean for groups: `impact`, and the same in `preflight` and `recover`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.test_lost import JSON, SIZES, SMALL, filled, torn
from tests.adversary.writer import Header, Layout, Put, Writer
from tests.conftest import GoldenFolder
from tests.support import snapshot
from tests.support.cli import run
from tests.support.holder import held

QUEUE = ("orders", 0)


def impact(store: Path, code: int = 1, *more: str) -> dict[str, Any]:
    answer: dict[str, Any] = run("impact", store, *SIZES, *JSON, *more).expect(code).json()
    return answer


def of_queue(impact: dict[str, Any], group: str, topic: str = "orders",
             queue_id: int = 0) -> dict[str, Any]:
    records = impact.get("queues") or impact["consumers"]
    return next(record for record in records
                if (record["group"], record["topic"], record["queue_id"])
                == (group, topic, queue_id))


def numbers(puts: list[Put], key: tuple[str, int] = QUEUE) -> list[int]:
    """Queue offsets of a queue's messages."""
    return [put.queue_offset for put in puts if (put.topic, put.queue_id) == key]


@pytest.mark.parametrize("version", [4, 5])
def test_a_torn_tail(tmp_path: Path, version: int) -> None:
    writer = filled(Layout(queue_file_units=20, version=version, abort=True, spare_file=True))
    end = writer.next_offset[QUEUE]
    writer.offsets["orders", "done"] = {0: end}
    writer.offsets["orders", "midst"] = {0: 5}
    lost = numbers(torn(writer, 70))
    store = writer.write(tmp_path / "s")
    with snapshot.assert_unchanged(store):
        impact_report = impact(store)
    done, midst = of_queue(impact_report, "done"), of_queue(impact_report, "midst")
    kept = end - len(lost)
    assert (done["position"], done["max_offset"], done["beyond_end"]) == (end, kept, len(lost))
    assert (done["lost_before"], done["lost_after"], done["at_risk"]) == (len(lost), 0, 0)
    # A 4.x broker sends a group beyond the end of a queue that begins with 0 back to 0.
    assert (done["goes_on_at"], done["twice"]) == ((0, kept) if version == 4 else (kept, 0))
    assert (midst["beyond_end"], midst["lost_before"], midst["lost_after"]) == (0, 0, len(lost))
    # Positions are written every 5 s, and the end was unclean.
    assert (midst["twice"], midst["twice_at_most"]) == (0, kept - 5)
    assert any("every 5 s" in note for note in impact_report["notes"])
    assert impact_report["groups_affected"] == impact_report["groups"] == 2


def test_a_damaged_body(tmp_path: Path) -> None:
    """One is lost; what follows it is cut off, unread or not. Light queues have it, too."""
    writer = filled()
    writer.offsets["orders", "midst"] = {0: 5}
    writer.offsets["orders", "done"] = {queue: writer.next_offset["orders", queue]
                                        for queue in range(4)}
    writer.offsets["%LMQ%a", "light"] = {0: 2}
    bad = writer.puts[80]
    assert (bad.topic, bad.queue_id) == QUEUE
    writer.flip(bad.body_at)
    behind = numbers(writer.puts[81:])
    store = writer.write(tmp_path / "s")
    impact_report = impact(store)
    midst, done = of_queue(impact_report, "midst"), of_queue(impact_report, "done")
    assert (midst["lost_after"], midst["at_risk"], midst["would_be_cut"]) == (
        1, len(behind), len(behind))
    assert midst["max_offset"] == bad.queue_offset
    assert (done["lost_before"], done["lost_after"], done["at_risk"]) == (1, 0, 0)
    assert done["beyond_end"] == len(behind) + 1
    light = of_queue(impact_report, "light", "%LMQ%a")
    assert (light["lost_after"], light["at_risk"]) == (1, 3)
    # preflight and the broker's strategy say the same, of the queues that are affected.
    affected = [row for row in impact_report["queues"] if row["beyond_end"] or row["lost_after"]
                or row["at_risk"]]
    broker = run("recover", store, *SIZES, "--strategy", "broker", *JSON).expect(1).json()
    seen = run("preflight", store, *SIZES, *JSON).expect(1).json()
    for row in (seen, broker):
        assert row["consumers"] == affected
        assert row["groups_affected"] == 3
    # Salvage loses the one message, unless it is corrected.
    saved = run("recover", store, *SIZES, "--correct", "off", *JSON).expect(1).json()
    assert saved["groups_affected"] == 1
    assert [(row["group"], row["lost_before"], row["lost_after"], row["at_risk"])
            for row in saved["consumers"]] == [("midst", 0, 1, 0)]
    assert run("recover", store, *SIZES, *JSON).expect(0).json()["consumers"] == []


def test_one_message_counts_for_the_first_reason_there_is(tmp_path: Path) -> None:
    """Clients give up at one that is cut off, too: it is at risk once."""
    writer = Writer(Layout(queue_file_units=20))
    for number in range(6):
        writer.put("orders", b"%d" % number, header=Header(
            born_host=("10.0.0.7", 70_000)) if number in (1, 4) else None)
    writer.offsets["orders", "g"] = {0: 0}
    writer.flip(writer.puts[3].body_at)
    queue_impact = of_queue(impact(writer.write(tmp_path / "s")), "g")
    assert (queue_impact["lost_after"], queue_impact["would_be_cut"], queue_impact["undecodable"],
            queue_impact["at_risk"]) == (
                1, 2, 1, 3)


def test_a_hole_in_the_log_is_before_some_and_after_others(tmp_path: Path) -> None:
    writer = filled(SMALL, 300)
    lost = numbers([put for put in writer.puts if 16 << 10 <= put.physical < 32 << 10])
    writer.offsets["orders", "early"] = {0: lost[0]}
    writer.offsets["orders", "late"] = {0: lost[-1] + 1}
    writer.offsets["orders", "midst"] = {0: lost[3]}
    store = writer.write(tmp_path / "s")
    (store / "commitlog" / f"{16 << 10:020d}").unlink()
    impact_report = impact(store)
    assert {group: (of_queue(impact_report, group)["lost_before"],
                    of_queue(impact_report, group)["lost_after"])
            for group in ("early", "midst", "late")} == {
        "early": (0, len(lost)), "midst": (3, len(lost) - 3), "late": (len(lost), 0)}


def test_what_no_row_leads_to_is_never_delivered(tmp_path: Path) -> None:
    writer = Writer(Layout(queue_file_units=20))
    for number in range(20):
        writer.put("orders", b"%d" % number, queue_id=number % 2)
    for row in (2, 8):  # they lead to the message before
        writer.rows["orders", 1][row] = writer.rows["orders", 1][row - 1]
    writer.offsets["orders", "g"] = {1: 4}
    queue_impact = of_queue(impact(writer.write(tmp_path / "s")), "g", queue_id=1)
    assert (queue_impact["lost_after"], queue_impact["without_row"],
            queue_impact["at_risk"]) == (0, 1, 1)


def test_a_sound_store_affects_nobody(tmp_path: Path) -> None:
    writer = filled(SMALL, 300)
    writer.offsets["orders", "g"] = {0: 3, 1: 0}
    writer.offsets["gone", "g"] = {0: 4711}  # a deleted topic's
    store = writer.write(tmp_path / "s")
    topics = json.loads((store / "config" / "topics.json").read_text())
    assert "gone" not in topics["topicConfigTable"]
    impact_report = impact(store, 0)
    assert impact_report["groups_affected"] == 0
    assert [(queue["topic"], queue["queue_id"], queue["position"])
            for queue in impact_report["queues"]] == [
                ("orders", 0, 3), ("orders", 1, 0), ("orders", 2, None), ("orders", 3, None)]
    assert all(queue["twice_at_most"] == 0 for queue in impact_report["queues"])
    table = run("impact", store, *SIZES).expect(0)
    assert table.out == "consumers: no consumer group affected (1 checked)\n"
    rows = run("impact", store, *SIZES, "-o", "csv").expect(0).out.splitlines()
    assert rows[0].startswith("group,topic,queue_id,position,max_offset,beyond_end,lost_before")
    assert len(rows) == 5


def test_one_group_and_one_that_nobody_knows(tmp_path: Path) -> None:
    writer = filled()
    writer.offsets["orders", "near"] = {0: writer.next_offset[QUEUE]}
    writer.offsets["pays", "far"] = {0: 99}
    store = writer.write(tmp_path / "s")
    groups = json.loads((store / "config" / "subscriptionGroup.json").read_text())
    groups["subscriptionGroupTable"]["silent"] = {"groupName": "silent"}
    (store / "config" / "subscriptionGroup.json").write_text(json.dumps(groups))
    assert impact(store)["groups_without_position"] == ["silent"]
    assert [queue["group"] for queue in impact(store, 1, "--group", "far")["queues"]] == ["far"] * 4
    assert impact(store, 0, "--group", "near")["groups_affected"] == 0
    assert impact(store, 0, "--group", "silent")["queues"] == []
    unknown = run("impact", store, *SIZES, "--group", "nobody").expect(1)
    assert "unknown group: nobody" in unknown.err


def test_the_delay_service_is_a_group(tmp_path: Path) -> None:
    """Without delayOffset.json it begins with the first delayed message of all."""
    writer = Writer(Layout(queue_file_units=20))
    for number in range(5):
        writer.put("SCHEDULE_TOPIC_XXXX", b"%d" % number, queue_id=2)
    store = writer.write(tmp_path / "s")
    queue_impact = of_queue(impact(store, 0), "(delay)", "SCHEDULE_TOPIC_XXXX", 2)
    assert (queue_impact["position"], queue_impact["twice"],
            queue_impact["twice_at_most"]) == (None, 0, 5)
    (store / "config" / "delayOffset.json").write_text('{"offsetTable":{3:9}}')
    # From 4.9.2 on a broker sets it back to the end, and nothing is missed.
    queue_impact = of_queue(impact(store, 0), "(delay)", "SCHEDULE_TOPIC_XXXX", 2)
    assert (queue_impact["position"], queue_impact["beyond_end"],
            queue_impact["goes_on_at"]) == (9, 4, 5)
    assert queue_impact["twice_at_most"] == 0
    older = of_queue(impact(store, 1, "--broker-version", "4.9.1"), "(delay)",
                     "SCHEDULE_TOPIC_XXXX", 2)
    assert (older["beyond_end"], older["goes_on_at"]) == (4, None)


def test_positions_that_cannot_be_read(tmp_path: Path) -> None:
    writer = filled()
    writer.offsets["orders", "g"] = {0: 3}
    store = writer.write(tmp_path / "s")
    path = store / "config" / "consumerOffset.json"
    path.rename(path.with_name("consumerOffset.json.bak"))
    path.write_bytes(bytes(200))
    assert any(".bak, which is at least 5 s older" in note for note in impact(store, 0)["notes"])
    path.with_name("consumerOffset.json.bak").unlink()
    impact_report = impact(store)
    assert not impact_report["positions_known"]
    assert any("no copy can be read" in note for note in impact_report["notes"])


def test_where_queues_or_positions_are_in_rocksdb_nothing_is_said(tmp_path: Path) -> None:
    for folder in ("consumequeue", "config/topics"):
        store = filled().write(tmp_path / folder.replace("/", "-"))
        if folder == "consumequeue":
            for queue in (store / folder).iterdir():
                queue.rename(tmp_path / queue.name)
        (store / folder).mkdir(parents=True, exist_ok=True)
        (store / folder / "CURRENT").write_bytes(b"MANIFEST-000005\n")
        if folder == "consumequeue":
            assert "RocksDB" in run("impact", store, *SIZES).expect(3).err
        else:  # a data base that does not open, and the others are not there
            impact_report = impact(store)
            assert not impact_report["positions_known"]
            assert any("config/consumerOffsets: no copy" in note for note in impact_report["notes"])


def test_what_waits_in_a_retry_topic_may_come_from_both(tmp_path: Path) -> None:
    writer = Writer(Layout(queue_file_units=20, abort=True))
    writer.put("orders", b"x")
    writer.put("%RETRY%g", b"x")
    writer.offsets["orders", "g"] = {0: 0}
    writer.offsets["%RETRY%g", "g"] = {0: 0}
    impact_report = impact(writer.write(tmp_path / "s"), 0)
    assert any("retry topics of g: " in note for note in impact_report["notes"])
    writer.offsets["%RETRY%g", "g"] = {0: 1}
    assert not any("retry topics" in note for note in impact(writer.write(tmp_path / "t"),
                                                            0)["notes"])


def test_no_log_at_all(tmp_path: Path) -> None:
    writer = filled()
    writer.offsets["orders", "g"] = {0: 3}
    store = writer.write(tmp_path / "s")
    for path in (store / "commitlog").iterdir():
        path.unlink()
    assert "not mounted" in run("impact", store, *SIZES).expect(6).err


def test_beside_a_running_broker_positions_may_be_newer_than_the_queues(tmp_path: Path) -> None:
    writer = filled()
    writer.offsets["orders", "g"] = {0: writer.next_offset[QUEUE] + 1, 1: 7}
    store = writer.write(tmp_path / "s")
    with held(store):
        impact_report = impact(store, 0)
    assert of_queue(impact_report, "g")["beyond_end"] is None
    assert any("a broker is running" in note for note in impact_report["notes"])
    assert of_queue(impact(store), "g")["beyond_end"] == 1


def test_the_table_has_room_at_80_columns(tmp_path: Path) -> None:
    writer = filled()
    writer.offsets["orders", "billing"] = {0: 5, 1: writer.next_offset["orders", 1]}
    writer.flip(writer.puts[80].body_at)
    shown = run("impact", writer.write(tmp_path / "s"), *SIZES, "-o", "table",
                env={"COLUMNS": "80"}).expect(1).out.splitlines()
    assert shown[0].startswith("consumers: 1 of 1 group affected (billing): 1 lost unread, ")
    heads = next(line.split() for line in shown if line.startswith("group"))
    assert heads == ["group", "topic", "queue", "position", "beyond", "lost", "unread", "at",
                     "risk"]
    assert max(map(len, shown)) <= 80


@pytest.mark.parametrize("position", [3, 20])
@pytest.mark.parametrize("kept", ["rows", "keys only"])
def test_what_the_index_alone_knows_is_in_no_groups_figures(tmp_path: Path, kept: str,
                                                            position: int) -> None:
    """Positions tell the queue of some of it: `recover` counts these as `impact` does."""
    writer = filled()
    writer.offsets["orders", "g"] = dict.fromkeys(range(4), position)
    writer.tear(writer.puts[100].physical, rows=kept == "rows")
    store = writer.write(tmp_path / "s")
    shutil.rmtree(store / "consumequeue")
    impact_report = impact(store)
    plan = run("recover", store, *SIZES, *JSON).expect(1).json()
    lost = [queue["lost_before"] for queue in impact_report["queues"] if queue["topic"] == "orders"]
    assert sum(lost) == (0 if position == 3 else sum(max(0, 20 - end) for end in (16, 17, 17, 16)))
    assert not impact_report["complete"]
    assert not plan["consumers_complete"]
    assert f"{20 - sum(lost)} lost messages belong to unknown queues" in impact_report["notes"][0]
    assert [queue for queue in impact_report["queues"] if queue["beyond_end"]
            or queue["lost_after"]] == (
                plan["consumers"])
    page = run("recover", store, *SIZES).expect(1).out
    assert f"{20 - sum(lost)} lost messages belong to unknown queues" in page
    if position == 3:
        assert "no consumer group known to be affected (1 checked)" in page


def test_where_no_broker_starts(tmp_path: Path) -> None:
    writer = filled()
    writer.offsets["orders", "g"] = dict.fromkeys(range(4), 20)
    store = writer.write(tmp_path / "s")
    impact(store, 0)
    log = next((store / "commitlog").iterdir())
    log.with_name("notes.txt").write_bytes(b"mine")
    assert "would not start" in run("impact", store, *SIZES).expect(1).err


MADE_FROM = {("TP_bill_Event9", 0): 31, ("TP_bill_Event9", 1): 23, ("TP_bill_Event9", 2): 5,
             ("TP_pay_Topic", 0): 25, ("TP_pay_Topic", 1): 20, ("TP_pay_Topic", 2): 1}
"""The first queue offsets for which the engine made rows, of set crash-nocq."""


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
@pytest.mark.parametrize("size", [(), ("--consumequeue-file-size", "440")])
def test_beyond_the_end_of_queues_that_a_start_makes_anew(
        golden: GoldenFolder, golden_copy: GoldenFolder, version: str,
        size: tuple[str, ...]) -> None:
    """4.9.3 goes on at the beginning where it takes 0 for the min offset, else at the end; which
    one its fillers decide, and the engine said which (``min``).
    """
    expected = json.loads((golden(f"{version}/crash-nocq/before").parent /
                           "expect.json").read_text())["queues"]
    queues = {(queue["topic"], queue["queueId"]): queue for queue in expected if queue["max"]}
    root = golden_copy(f"{version}/crash-nocq/before")
    (root / "config").mkdir()
    table: dict[str, dict[str, int]] = {}
    for (topic, queue_id), queue in queues.items():
        table.setdefault(f"{topic}@g", {})[str(queue_id)] = queue["max"] + 5
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    answer = run("impact", root, *size, *JSON).expect(1).json()
    for (topic, queue_id), queue in queues.items():
        record = of_queue(answer, "g", topic, queue_id)
        entry_count = queue["max"] - MADE_FROM[topic, queue_id]
        at_the_end = version == "5.3.3" or queue["min"]
        result = (queue["max"], 0, 0) if at_the_end else (0, entry_count, entry_count)
        if version == "4.9.3" and not size:  # which of its files a queue begins in
            result = (None, 0, entry_count)
        assert (record["goes_on_at"], record["twice"], record["twice_at_most"]) == result, queue
