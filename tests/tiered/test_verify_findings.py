"""tiered verify: every finding has a change that provokes exactly it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.checks.findings import CATEGORIES
from rmqctl.ext.tiered.tier import Tier
from rmqctl.ext.tiered.verify.verify import Options, TierVerification, verdict
from rmqctl.formats.local import message
from tests.conftest import GoldenFolder, Runner
from tests.support import snapshot
from tests.tiered import tiers
from tests.tiered.tiers import T0, Index, Queue, segment_name
from tests.tiered.verifying import (
    OTHER,
    TOPICS,
    Small,
    categories,
    informed,
    troubles,
    verified,
)


def patch(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at:at + len(data)] = data
    path.write_bytes(raw)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def edit(tier: Small, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the metadata."""
    value = json.loads(tier.metadata_path.read_text())
    change(value)
    tier.metadata_path.write_text(json.dumps(value))


LOGS, UNITS, INDEXES = ("commitLogFileSegmentTable", "consumeQueueFileSegmentTable",
                        "indexFileSegmentTable")
FIRST = f"{tiers.BROKER}/{tiers.TOPIC}/0"


# -- nothing is wrong ---------------------------------------------------------------------------

@pytest.mark.parametrize("state", ["store", "store-live"])
def test_a_golden_tier_is_clean(state: str, golden: GoldenFolder) -> None:
    root = golden(f"5.3.3/tiered/{state}")
    verify_result = verified(root, local=root)
    assert verify_result.ok
    assert verify_result.findings == ()
    cover = verify_result.coverage
    assert cover.messages == cover.consumequeue_rows == cover.local_equal == 300
    assert cover.bytes_total == cover.bytes_in_messages
    assert cover.items_proven == cover.index_items == cover.keys == 609
    assert (cover.local_only, cover.tiered_only, cover.in_neither) == (0, 0, 0)


def test_the_small_tier_is_clean(tier: Small) -> None:
    verify_result = verified(tier.home)
    assert troubles(verify_result) == []
    assert verify_result.ok
    assert informed(verify_result) == {"tiered-oddity"}  # the index file without items
    cover = verify_result.coverage
    assert (cover.queues, cover.messages, cover.consumequeue_rows) == (2, 9, 9)
    assert cover.items_proven == cover.index_items == cover.keys
    assert [structure["structure"] for structure in verify_result.checked] == [
        "tier", "metadata", "commitlog", "consumequeue", "index"]


def test_parts_alone_find_only_theirs(tier: Small) -> None:
    patch(tier.queues[0].log_path(tier.root), 95, b"X")
    patch(tier.index_path, 28, bytes(8))
    assert categories(verified(tier.home, options=Options(frozenset({"commitlog"})))) == {
        "tiered-body-crc"}
    assert "tiered-index-slot" in categories(
        verified(tier.home, options=Options(frozenset({"index"}))))
    assert verified(tier.home, options=Options(frozenset({"metadata", "consumequeue"}))).ok


# -- each finding -------------------------------------------------------------------------------

def wrong_name(tier: Small) -> None:
    path = tier.queues[0].log_path(tier.root, 1)
    path.rename(path.with_name("00000000" + path.name[8:]))


def wrong_cluster(tier: Small) -> None:
    folder = next(tier.root.iterdir())
    folder.rename(folder.with_name("00000000" + folder.name[8:]))


def stray(tier: Small) -> None:
    (tier.queues[0].log_path(tier.root).parent / "notes.txt").write_text("x")


def gap(tier: Small) -> None:
    tier.queues[0].log_path(tier.root, 1).unlink()
    path = tier.queues[0].units_path(tier.root, 1)
    path.rename(path.with_name(segment_name(140)))


def overlap(tier: Small) -> None:
    path = tier.queues[0].log_path(tier.root)
    path.write_bytes(path.read_bytes() + b"more")


def no_metadata(tier: Small) -> None:
    tier.metadata_path.unlink()


def only_backup(tier: Small) -> None:
    tier.metadata_path.rename(f"{tier.metadata_path}.bak")


def broken_metadata(tier: Small) -> None:
    cut(tier.metadata_path, 200)


def broken_entry(tier: Small) -> None:
    edit(tier, lambda value: value["queueMetadataTable"][tiers.TOPIC]["0"].update(queue=7))


def no_entry(tier: Small) -> None:
    base = str(tier.queues[0].logs[1][0])
    edit(tier, lambda value: value[LOGS][FIRST].pop(base))


def shared_id(tier: Small) -> None:
    def change(value: dict[str, Any]) -> None:
        value["topicMetadataTable"]["gone"] = {"topicId": 5, "topic": "gone"}

    edit(tier, change)


def stale_size(tier: Small) -> None:
    edit(tier, lambda value: value[LOGS][FIRST]["0"].update(size=7))


def missing_segment(tier: Small) -> None:
    edit(tier, lambda value: value[UNITS][FIRST].update({"4000": {
        "baseOffset": 4000, "size": 20, "type": 1}}))


def short_segment(tier: Small) -> None:
    edit(tier, lambda value: value[UNITS][FIRST]["100"].update(size=60))


def wrong_times(tier: Small) -> None:
    edit(tier, lambda value: value[LOGS][FIRST]["0"].update(endTimestamp=T0 + 99_999_000))


def no_queue(tier: Small) -> None:
    for number in range(2):
        path = tier.queues[0].units_path(tier.root, number)
        path.unlink()
    edit(tier, lambda value: value[UNITS].pop(FIRST))


def torn_end(tier: Small) -> None:
    path = tier.queues[0].units_path(tier.root, 1)
    path.write_bytes(path.read_bytes() + b"\0" * 7)
    edit(tier, lambda value: value[UNITS][FIRST]["100"].update(size=47))


def ahead(tier: Small) -> None:
    path = tier.queues[0].units_path(tier.root, 1)
    path.write_bytes(path.read_bytes() + struct.pack(">qiq", 1 << 40, 200, 0))
    edit(tier, lambda value: value[UNITS][FIRST]["100"].update(size=60))


def wrong_unit(tier: Small) -> None:
    patch(tier.queues[0].units_path(tier.root), 8, struct.pack(">i", 100))


def wrong_tag(tier: Small) -> None:
    patch(tier.queues[0].units_path(tier.root), 12, struct.pack(">q", 4711))


def other_queue(tier: Small) -> None:
    patch(tier.queues[0].log_path(tier.root), 12, struct.pack(">i", 9))


def other_topic(tier: Small) -> None:
    path = tier.queues[0].log_path(tier.root)
    patch(path, path.read_bytes().index(b"orders"), b"Orders")


def damaged_record(tier: Small) -> None:
    patch(tier.queues[0].log_path(tier.root), 4, b"\0\0\0\0")


def body(tier: Small) -> None:
    path = tier.queues[0].log_path(tier.root)
    patch(path, path.read_bytes().index(b"body 2"), b"B")


def unreadable_index(tier: Small) -> None:
    patch(tier.index_path, 0, b"abcd")


def index_header(tier: Small) -> None:
    patch(tier.index_path, 20, struct.pack(">i", 3))


def index_slot(tier: Small) -> None:
    last = struct.unpack_from(">ii", tier.index_path.read_bytes(), 28 + 8 * 6)
    patch(tier.index_path, 28 + 8 * 6, struct.pack(">ii", last[0] + 28, last[1]))


def index_chain(tier: Small) -> None:
    data = tier.local_path.read_bytes()
    at = next(at for at in range(84 + 64, len(data), 32)
              if data[at:at + 32].strip(b"\0") and data[at + 28:at + 32] == bytes(4))
    patch(tier.local_path, at + 28, struct.pack(">i", 1))


def index_item(tier: Small) -> None:
    patch(tier.index_path, 84 + 20, struct.pack(">i", 4711))


def index_time(tier: Small) -> None:
    patch(tier.index_path, 84 + 24, struct.pack(">i", 4711))


EXACTLY: dict[Callable[[Small], None], set[str]] = {
    wrong_name: {"tiered-name"},
    wrong_cluster: {"tiered-name"},
    stray: {"tiered-stray"},
    overlap: {"tiered-overlap"},
    no_metadata: {"tiered-metadata-missing"},
    only_backup: {"tiered-metadata-missing"},
    broken_metadata: {"tiered-metadata-damaged"},
    no_entry: {"tiered-metadata-entry"},
    shared_id: {"tiered-metadata-entry"},
    stale_size: {"tiered-metadata-size"},
    missing_segment: {"tiered-segment-missing"},
    short_segment: {"tiered-segment-short"},
    wrong_times: {"tiered-segment-time"},
    no_queue: {"tiered-cq-missing", "tiered-index-item"},
    torn_end: {"tiered-cq-torn"},
    ahead: {"tiered-cq-ahead"},
    wrong_unit: {"tiered-cq-unit", "tiered-index-item"},
    wrong_tag: {"tiered-cq-wrong-tag"},
    other_queue: {"tiered-message-fields"},
    other_topic: {"tiered-message-fields", "tiered-index-item"},
    damaged_record: {"tiered-record"},
    body: {"tiered-body-crc"},
    unreadable_index: {"tiered-index-unreadable"},
    index_header: {"tiered-index-header"},
    index_slot: {"tiered-index-slot"},
    index_chain: {"tiered-index-chain"},
    index_item: {"tiered-index-item"},
    index_time: {"tiered-index-time"},
}


@pytest.mark.parametrize(("change", "expected"), EXACTLY.items(),
                         ids=[key.__name__ for key in EXACTLY])
def test_exactly_this_is_found(tier: Small, change: Callable[[Small], None],
                               expected: set[str]) -> None:
    change(tier)
    verify_result = verified(tier.home)
    assert categories(verify_result) == expected
    assert not verify_result.ok
    for finding in verify_result.findings:
        assert finding.category in CATEGORIES
        if finding.file is not None:
            assert finding.file.startswith(str(tier.home))


def test_a_gap_is_reported_with_its_place(tier: Small) -> None:
    gap(tier)
    verify_result = verified(tier.home)
    finding = next(reported_finding for reported_finding in verify_result.findings
                   if reported_finding.category == "tiered-gap")
    assert finding.length == 40
    assert finding.offset == 0
    assert {"tiered-segment-missing", "tiered-metadata-entry"} <= categories(verify_result)


def test_a_broken_entry_costs_only_itself(tier: Small) -> None:
    broken_entry(tier)
    assert categories(verified(tier.home)) == {"tiered-metadata-damaged", "tiered-metadata-entry"}


def test_a_hash_in_another_slot(tier: Small) -> None:
    (value,) = struct.unpack_from(">i", tier.index_path.read_bytes(), 84)
    patch(tier.index_path, 84, struct.pack(">i", (value + 1) % (1 << 31)))
    assert "tiered-index-hash" in categories(verified(tier.home))
    patch(tier.index_path, 84, struct.pack(">i", -5))
    assert "tiered-index-hash" in categories(verified(tier.home))


def test_units_that_lead_backwards(tmp_path: Path) -> None:
    queue = Queue()
    for number in range(4):
        queue.put(b"x" * (10 + number))
    units = queue.units[0][1]
    first, second = bytes(units[:20]), bytes(units[20:40])
    record, two = queue.records[0], queue.records[1]
    # The log has the messages of 0 and 1 the other way round, units and all.
    swapped = [message.build(tiers.record(1, 0, body=record.body, when=T0 + 1000)),
               message.build(tiers.record(0, record.total_size, body=two.body, when=T0))]
    queue.logs[0][1][:len(swapped[0] + swapped[1])] = b"".join(swapped)
    units[:40] = struct.pack(">qiq", record.total_size, two.total_size, 0) + struct.pack(
        ">qiq", 0, record.total_size, 0)
    queue.write(tmp_path / "tieredstore")
    assert first != second
    assert categories(verified(tmp_path)) == {"tiered-cq-order"}


def test_a_message_that_claims_another_queue_offset(tier: Small) -> None:
    patch(tier.queues[0].log_path(tier.root), 20, struct.pack(">q", 77))
    verify_result = verified(tier.home)
    assert categories(verify_result) == {"tiered-message-fields", "tiered-index-item"}
    finding = next(reported_finding for reported_finding in verify_result.findings
                   if reported_finding.category == "tiered-message-fields")
    assert (finding.offset, finding.queue_offset, finding.topic,
            finding.queue_id) == (0, 0, tiers.TOPIC, 0)


def test_two_units_of_one_message(tier: Small) -> None:
    path = tier.queues[0].units_path(tier.root)
    patch(path, 20, path.read_bytes()[:20])
    verify_result = verified(tier.home)
    finding = next(reported_finding for reported_finding in verify_result.findings
                   if reported_finding.category == "tiered-cq-unit")
    assert "the message at queue offset 0" in finding.detail
    assert finding.position == 20


def test_a_key_without_an_item_is_information(tier: Small) -> None:
    tier.queues[1].put(b"late", KEYS="unheard")
    tier.queues[1].write(tier.root)
    verify_result = verified(tier.home)
    assert verify_result.ok
    assert "tiered-index-missing" in informed(verify_result)


def test_a_lost_consume_queue_beyond_what_may_be_pending(tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    from rmqctl.ext.tiered.verify import leftover

    monkeypatch.setattr(leftover, "MAX_BEHIND", 5)
    queue = Queue()
    for _ in range(10):
        queue.put()
    del queue.units[0][1][40:]
    queue.write(tmp_path / "tieredstore")
    assert categories(verified(tmp_path)) == {"tiered-cq-behind"}


# -- against the local store --------------------------------------------------------------------

def test_other_bytes_than_the_local_ones(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/tiered/store")
    path = next((root / "tieredstore").rglob("COMMIT_LOG/cfcd2084*"))
    patch(path, 16, b"\x7f")  # the flag: nothing in the tier covers it
    assert verified(root).ok
    verify_result = verified(root, local=root)
    assert categories(verify_result) == {"tiered-differs"}
    assert verify_result.coverage.local_equal == 299
    assert "byte 16" in troubles(verify_result)[0].detail


def test_messages_that_neither_has(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/tiered/store")
    local = snapshot.copy_tree(root, root.with_name("local"))
    for path in sorted((local / "commitlog").iterdir())[:4]:
        path.unlink()
    for queue in (root / "tieredstore").rglob("CONSUME_QUEUE"):
        for path in queue.iterdir():
            if int(path.name[8:]) > 0:
                path.unlink()
            else:
                cut(path, 40)
    verify_result = verified(root, local=local, options=Options(frozenset({"local"})))
    assert categories(verify_result) == {"tiered-lost"}
    cover = verify_result.coverage
    assert cover.tiered_only == 8
    assert cover.in_neither + cover.local_only + cover.tiered_only == 300
    assert cover.in_neither > 0
    assert sum(finding.count for finding in troubles(verify_result)) == cover.in_neither


def test_queues_that_were_not_uploaded_are_local_only(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/tiered/store")
    topic = next((root / "tieredstore").glob("*/broker-a/TP_pay_Event5"))
    count = verified(root).coverage.messages
    for path in sorted(topic.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    topic.rmdir()
    cover = verified(root, local=root, options=Options(frozenset({"local"}))).coverage
    assert cover.local_equal + cover.local_only == count
    assert cover.local_only == 87 + 49


def test_a_tier_that_grows_meanwhile(tmp_path: Path) -> None:
    queue = Queue()
    for _ in range(3):
        queue.put()
    root = tmp_path / "tieredstore"
    queue.write(root)
    with Tier.open(str(root)) as tier:
        before = next(tier.queues()).commit_log
        for _ in range(4):
            queue.put()
        queue.write(root)
        # The folder of the log was listed before these messages came, that of the units after.
        flat = next(tier.queues())
        flat.consume_queue = type(before).open(tier.reader, flat.consume_queue.folder)
        report = verdict(TierVerification(tier, Options(frozenset({"consumequeue"}))), 100)
    assert report.ok
    assert "uploaded during this check" in report.findings[0].detail


def test_the_tier_of_two_brokers(tier: Small) -> None:
    other = Queue(broker="broker-b")
    for number in range(4):
        other.put(b"x" * number, KEYS="k")
    other.write(tier.root)
    index = Index(T0)
    for record in other.records:
        index.add(record, "k")
    tiers.upload(tier.root, index.compacted(), broker="broker-b")
    verify_result = verified(tier.home)
    assert troubles(verify_result) == []
    assert "has no entries of broker 'broker-b'" in " ".join(finding.detail
                                                             for finding in verify_result.findings)
    assert verify_result.coverage.messages == 13
    assert verify_result.coverage.items_unverifiable == 4
    verify_result = verified(tier.home, options=Options(broker="broker-a"))
    assert verify_result.coverage.messages == 9
    body(tier)
    assert verified(tier.home, options=Options(broker="broker-b")).ok
    tiers.write_metadata(tier.home, {tiers.TOPIC: 0}, [other], None)
    tier.local_path.unlink()
    verify_result = verified(tier.home, options=Options(broker="broker-b"))
    assert verify_result.coverage.items_proven == 4
    assert categories(verify_result) == {"tiered-metadata-entry"}  # the index segment


# -- the command --------------------------------------------------------------------------------

def test_the_command(tier: Small, rmqctl: Runner) -> None:
    answer = rmqctl("tiered", "verify", tier.root, "-o", "json").expect(0).json()
    assert answer["ok"] is True
    assert answer["coverage"]["messages"] == 9
    assert set(answer) == {"ok", "findings", "coverage", "checked", "findings_total", "counts",
                           "known", "not_judged", "next", "steps", "impact", "damaged_from",
                           "damaged_to"}
    body(tier)
    answer = rmqctl("tiered", "verify", tier.home, "-o", "json").expect(1).json()
    assert answer["ok"] is False
    finding = next(reported_finding for reported_finding in answer["findings"]
                   if reported_finding["category"] == "tiered-body-crc")
    assert finding["severity"] == "error"
    assert finding["next"].startswith("rmqctl tiered dump ")
    shown = rmqctl("tiered", "verify", tier.home).expect(1).out
    assert "tiered-body-crc" in shown
    assert "What next" in shown
    lines = rmqctl("tiered", "verify", tier.home, "-o", "jsonl", "--max-findings", "1").expect(1)
    assert len(lines.jsonl()) == 1
    assert "more findings" in lines.err
    assert rmqctl("tiered", "verify", tier.home, "-o", "csv").expect(1).out.startswith("category,")


def test_the_command_refuses(tier: Small, tmp_path: Path, rmqctl: Runner) -> None:
    rmqctl("tiered", "verify", tmp_path / "nothing").expect(3)
    rmqctl("tiered", "verify", tier.root, "--only", "nonsense").expect(2)
    rmqctl("tiered", "verify", tier.root, "--only", "local").expect(2)
    rmqctl("tiered", "verify", tier.root, "--metadata", tmp_path / "none.json").expect(2)
    (tmp_path / "empty").mkdir()
    rmqctl("tiered", "verify", tmp_path / "empty").expect(3)


def test_next_names_commands_that_work(tier: Small, rmqctl: Runner) -> None:
    body(tier)
    stray(tier)
    answer = rmqctl("tiered", "verify", tier.home, "-o", "json").expect(1).json()
    tried = {finding["next"] for finding in answer["findings"] if finding["next"]
             and not finding["next"].startswith("rmqctl tiered recover")}
    assert len(tried) >= 2
    for text in tried:
        rmqctl(*text.split()[1:]).expect(0, 1)


def test_nothing_of_a_tier_is_changed(tier: Small, rmqctl: Runner) -> None:
    damaged_record(tier)
    with snapshot.assert_unchanged(tier.home):
        rmqctl("tiered", "verify", tier.home).expect(1)
        rmqctl("tiered", "ls", tier.home, "--segments").expect(0)
        rmqctl("tiered", "stats", tier.home).expect(0)
        rmqctl("tiered", "dump", tier.index_path).expect(0)


def test_other_index_numbers_are_found_from_the_file(tmp_path: Path) -> None:
    queue, index = Queue(), Index(T0, slots=13, max_items=21)
    for _ in range(6):
        index.add(queue.put(b"", KEYS="a"), "a")
    queue.write(tmp_path / "tieredstore")
    tiers.write_metadata(tmp_path, TOPICS | {OTHER: 4}, [queue])
    (tmp_path / "tiered_index_file").mkdir()
    (tmp_path / "tiered_index_file" / str(T0)).write_bytes(index.open_form())
    verify_result = verified(tmp_path)
    assert verify_result.ok
    assert verify_result.coverage.items_proven == 6
    assert os.path.isdir(tmp_path / "config")
