"""tiered verify: what brokers are known to leave behind is named, and is no damage."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from rmqctl.ext.tiered.verify.verify import VerifyResult
from rmqctl.formats.local import message
from tests.tiered import tiers
from tests.tiered.tiers import T0, Index, Queue, segment_name
from tests.tiered.verifying import categories, informed, small, troubles, verified

NEVER = (1 << 63) - 1


def written(home: Path, queue: Queue, *uploaded: bytes,
            metadata: dict[int, Index] | None = None) -> VerifyResult:
    """The tier of one queue, verified."""
    queue.write(home / "tieredstore")
    if uploaded:
        tiers.upload(home / "tieredstore", *uploaded)
    tiers.write_metadata(home, {tiers.TOPIC: 0}, [queue], metadata)
    return verified(home)


def details(verify_result: VerifyResult, category: str) -> str:
    return " / ".join(finding.detail for finding in verify_result.findings
                      if finding.category == category)


# -- commit log and consume queue ---------------------------------------------------------------

def test_codas_of_old_versions(tmp_path: Path) -> None:
    queue = Queue()
    for number in range(6):
        if number % 2 == 0 and number:
            queue.roll_log(coda=True)
        queue.put(b"x" * number)
    verify_result = written(tmp_path, queue)
    assert verify_result.ok
    assert verify_result.findings == ()
    assert verify_result.coverage.bytes_coda == 32
    assert verify_result.coverage.bytes_damaged == 0


def test_a_unit_that_leads_to_the_coda_before_its_message(tmp_path: Path) -> None:
    queue = Queue()
    queue.put()
    queue.put(coda_first=True)
    queue.put()
    verify_result = written(tmp_path, queue)
    assert troubles(verify_result) == []
    assert verify_result.coverage.messages == 3
    assert verify_result.coverage.bytes_coda == 16


def test_orphans_are_counted_and_reported(tmp_path: Path) -> None:
    queue = Queue()
    queue.put(b"first")
    queue.orphan(b"\x7f" * 77)
    # A batch whose units were lost in a crash, and the same messages written again behind it.
    at = queue.log_end
    lost = tiers.record(1, at, body=b"again", when=T0 + 1000)
    queue.orphan(message.build(lost))
    queue.put(b"again")
    tail = tiers.record(2, queue.log_end, body=b"tail", when=T0 + 1000)
    queue.orphan(message.build(tail))
    verify_result = written(tmp_path, queue)
    assert verify_result.ok
    assert informed(verify_result) == {"tiered-orphans"}
    text = details(verify_result, "tiered-orphans")
    assert "2 complete messages (1 written again later, 1 not yet in the consume queue)" in text
    assert "77 bytes" in text
    cover = verify_result.coverage
    assert (cover.messages, cover.orphans) == (2, 2)
    assert cover.bytes_orphaned == lost.total_size + tail.total_size
    assert cover.bytes_total == (cover.bytes_in_messages + cover.bytes_orphaned
                                 + cover.bytes_damaged + cover.bytes_coda)


def test_ipv6_times(tmp_path: Path) -> None:
    queue, index = Queue(), Index(T0)
    for number in range(4):
        put_message = queue.put(b"x", v6=number % 2 == 1, KEYS=f"k{number}")
        raw = int.from_bytes(message.build(put_message)[56:64], signed=True)
        diff = abs(raw - T0) // 1000 * (1 if raw >= T0 else -1)
        wrapped = (diff + (1 << 31)) % (1 << 32) - (1 << 31)
        index.items.append((tiers.index_hash(tiers.TOPIC, f"k{number}"), 0, 0,
                            put_message.physical_offset,
                            put_message.total_size, wrapped))
    verify_result = written(tmp_path, queue, index.compacted(), metadata={0: index})
    assert troubles(verify_result) == []
    assert "IPv6" in details(verify_result, "tiered-oddity")


def test_expired_heads(tmp_path: Path) -> None:
    queue = Queue()
    for number in range(6):
        if number == 4:
            queue.roll_log()
        queue.put()
    queue.write(tmp_path / "tieredstore")
    queue.log_path(tmp_path / "tieredstore").unlink()
    del queue.logs[0]
    tiers.write_metadata(tmp_path, {tiers.TOPIC: 0}, [queue])
    verify_result = verified(tmp_path)
    assert verify_result.ok
    assert informed(verify_result) == {"tiered-cq-expired"}
    assert verify_result.coverage.rows_expired == 4


def test_a_commit_log_that_began_anew(tmp_path: Path) -> None:
    queue = Queue()
    for _ in range(5):
        queue.put(b"long gone")
    queue.logs = [(0, bytearray())]
    for _ in range(3):
        queue.put(b"new")
    queue.records = queue.records[5:]
    queue.write(tmp_path / "tieredstore")
    tiers.write_metadata(tmp_path, {tiers.TOPIC: 0}, [queue])
    metadata = tmp_path / "config/tieredStoreMetadata.json"
    value = json.loads(metadata.read_text())
    entry = value["consumeQueueFileSegmentTable"]["broker-a/orders/0"]["0"]
    entry.update(beginTimestamp=T0, endTimestamp=T0 + 7000)
    metadata.write_text(json.dumps(value))
    verify_result = verified(tmp_path)
    assert troubles(verify_result) == []
    assert verify_result.coverage.rows_expired == 5


@pytest.mark.parametrize("torn", [1, 7, 19])
def test_a_torn_consume_queue_that_went_on(tmp_path: Path, torn: int) -> None:
    queue = Queue()
    for number in range(9):
        if number == 4:
            queue.units[-1][1].extend(b"\xee" * torn)
        queue.put(b"x" * number, TAGS="t")
    # As the broker has it: the unit at queue offset 4 lies behind the torn bytes.
    queue.records = [message.decode(message.build(record)) for record in queue.records]
    verify_result = written(tmp_path, queue)
    assert categories(verify_result) == {"tiered-cq-torn"}
    finding, = [reported_finding for reported_finding in verify_result.findings
                if reported_finding.category == "tiered-cq-torn"]
    assert finding.queue_offset == 4
    assert finding.count == 5
    assert f"{torn} byte" in finding.detail
    assert verify_result.coverage.messages == 9


def test_a_tear_without_anything_behind_it(tmp_path: Path) -> None:
    queue = Queue()
    for number in range(4):
        queue.put(b"x" * number)
    queue.units[0][1].extend(b"\0" * 12)
    verify_result = written(tmp_path, queue)
    assert categories(verify_result) == {"tiered-cq-torn"}
    assert verify_result.coverage.messages == 4


@pytest.mark.parametrize("part", [1, 50, 131, 140, 300])
def test_a_torn_write_that_was_repeated_behind_its_part(tmp_path: Path, part: int) -> None:
    queue = Queue()
    for number in range(3):
        queue.put(b"before %d" % number)
    start = queue.log_end
    for number in range(5):
        queue.put(b"block %d" % number * 3)
    log = queue.logs[0][1]
    block = bytes(log[start:])
    log[start:] = block[:part] + block
    # Messages of later rounds: they say where they lie, their units lead to where they should.
    for number in range(8, 10):
        at = queue.log_end
        record = tiers.record(number, at, body=b"later", when=T0 + 1000 * number)
        log.extend(message.build(record))
        queue.units[0][1].extend(struct.pack(">qiq", at - part, record.total_size, 0))
    verify_result = written(tmp_path, queue)
    assert "tiered-shifted" in categories(verify_result)
    assert categories(verify_result) <= {"tiered-shifted", "tiered-record"}
    record = next(finding for finding in verify_result.findings
                  if finding.category == "tiered-shifted")
    assert f" {part} bytes after" in record.detail
    whole = part // len(message.build(queue.records[3]))
    assert record.count >= 5 + 2 - whole - 1


def test_what_a_crash_leaves_of_the_metadata(tmp_path: Path) -> None:
    queue = Queue()
    for _ in range(3):
        queue.put()
    queue.write(tmp_path / "tieredstore")
    tiers.write_metadata(tmp_path, {tiers.TOPIC: 0}, [queue])
    path = tmp_path / "config/tieredStoreMetadata.json"
    value = json.loads(path.read_text())
    for table in ("commitLogFileSegmentTable", "consumeQueueFileSegmentTable"):
        value[table]["broker-a/orders/0"]["0"].update(
            size=0, beginTimestamp=NEVER, endTimestamp=NEVER)
    path.write_text(json.dumps(value))
    verify_result = verified(tmp_path)
    assert verify_result.ok
    assert informed(verify_result) == {"tiered-oddity", "tiered-metadata-size"}
    assert "times missing in the metadata" in details(verify_result, "tiered-oddity")


def test_empty_segments(tmp_path: Path) -> None:
    queue = Queue()
    queue.put()
    queue.roll_log()
    queue.roll_units()
    verify_result = written(tmp_path, queue)
    assert verify_result.ok
    assert verify_result.findings == ()


def test_a_queue_that_was_only_made(tmp_path: Path) -> None:
    verify_result = written(tmp_path, Queue())
    assert verify_result.ok
    assert verify_result.findings == ()
    assert verify_result.coverage.messages == 0


def test_a_property_crc_is_not_verifiable(tmp_path: Path) -> None:
    queue = Queue()
    queue.put(b"x", TAGS="a", **{"__CRC32#": "0123456789"})
    queue.put(b"x", TAGS="a")
    verify_result = written(tmp_path, queue)
    assert verify_result.ok
    assert verify_result.coverage.property_crc_unverifiable == 1


# -- index files --------------------------------------------------------------------------------

def keyed(*keys: str) -> tuple[Queue, Index]:
    """A message for each of ``keys``, and an index with all of them."""
    queue, index = Queue(), Index(T0)
    for key in keys:
        index.add(queue.put(b"x", KEYS=key), key)
    return queue, index


def test_hashes_of_newer_brokers(tmp_path: Path) -> None:
    queue, index = Queue(), Index(T0)
    negative = 0
    for number in range(40):
        key = f"key-{number}"
        negative += tiers.java_hash(f"{tiers.TOPIC}#{key}") < 0
        index.add(queue.put(b"x", KEYS=key), key, masked=True)
    assert negative > 5
    verify_result = written(tmp_path, queue, index.compacted(), metadata={0: index})
    assert verify_result.findings == ()
    assert verify_result.coverage.items_proven == 40


def test_times_before_the_file_and_a_lost_end(tmp_path: Path) -> None:
    queue, index = Queue(), Index(T0 + 5500)
    for number in range(9):
        index.add(queue.put(b"x", KEYS=f"k{number}"), f"k{number}")
    assert min(item[5] for item in index.items) < 0
    verify_result = written(tmp_path, queue, index.compacted(), metadata={0: index})
    assert verify_result.ok
    assert verify_result.coverage.items_proven == 9


def test_an_end_that_is_the_host_of_an_ipv6_message(tmp_path: Path) -> None:
    queue, index = keyed("a", "b")
    raw = bytearray(index.compacted())
    struct.pack_into(">q", raw, 12, 0x20010DB800000000)
    queue.write(tmp_path / "tieredstore")
    tiers.upload(tmp_path / "tieredstore", bytes(raw))
    path = tiers.write_metadata(tmp_path, {tiers.TOPIC: 0}, [queue], {0: index})
    value = json.loads(path.read_text())
    entry = value["indexFileSegmentTable"]["broker-a/rmq_sys_INDEX/0"]["0"]
    entry["endTimestamp"] = 0x20010DB800000000
    path.write_text(json.dumps(value))
    verify_result = verified(tmp_path)
    assert troubles(verify_result) == []
    assert "IPv6" in details(verify_result, "tiered-oddity")


def test_times_in_milliseconds_in_a_file_of_seconds(tmp_path: Path) -> None:
    queue, index = keyed("a", "b", "c")
    index.items = [(*item[:5], item[5] * 1000) for item in index.items]
    verify_result = written(tmp_path, queue, index.compacted(), metadata={0: index})
    assert troubles(verify_result) == []
    assert "milliseconds" in details(verify_result, "tiered-oddity")


def old_form(index: Index) -> bytes:
    """A compacted file as 5.1 has it: milliseconds, all slots in the header, a seal behind."""
    index.items = [(*item[:5], item[5] * 1000) for item in index.items]
    raw = bytearray(index.compacted())
    struct.pack_into(">i", raw, 20, index.slots)
    for slot in range(index.slots):
        if struct.unpack_from(">i", raw, 28 + 8 * slot + 4)[0] == 0:
            struct.pack_into(">i", raw, 28 + 8 * slot, 0)
    return bytes(raw) + struct.pack(">I", 0xBCC50289)


def test_the_form_of_5_1(tmp_path: Path) -> None:
    queue, index = keyed("a", "b", "c", "a")
    raw = old_form(index)
    queue.write(tmp_path / "tieredstore")
    tiers.upload(tmp_path / "tieredstore", raw)
    tiers.write_metadata(tmp_path, {tiers.TOPIC: 0}, [queue], {0: index})
    path = tmp_path / "config/tieredStoreMetadata.json"
    value = json.loads(path.read_text())
    value["indexFileSegmentTable"]["broker-a/rmq_sys_INDEX/0"]["0"]["size"] = len(raw)
    path.write_text(json.dumps(value))
    verify_result = verified(tmp_path)
    assert troubles(verify_result) == []
    assert verify_result.coverage.items_proven == 4


def test_an_open_file_of_5_1(tmp_path: Path) -> None:
    queue, _ = keyed("a", "b", "a", "c", "b")
    slots, room = 5, 12
    heads, items = [-1] * slots, b""
    for number, record in enumerate(queue.records):
        key = record.properties.decode().split("\1")[1].rstrip("\2")
        hashed = tiers.index_hash(tiers.TOPIC, key)
        items += struct.pack(">iiiqiii", hashed, 0, 0, record.physical_offset, record.total_size,
                             record.store_timestamp - T0, heads[hashed % slots])
        heads[hashed % slots] = number
    raw = struct.pack(">Iqqii", 0xBCC50289, T0, T0 + 4000, 0, len(queue.records))
    raw += b"".join(struct.pack(">ii", head, 0) for head in heads) + items
    raw = raw.ljust(40 + 8 * slots + 32 * room, b"\0") + b"\xff" * 4
    queue.write(tmp_path / "tieredstore")
    tiers.write_metadata(tmp_path, {tiers.TOPIC: 0}, [queue])
    (tmp_path / "tiered_index_file").mkdir()
    (tmp_path / "tiered_index_file/0000").write_bytes(raw)
    verify_result = verified(tmp_path)
    assert troubles(verify_result) == []
    assert verify_result.coverage.items_proven == 5


def test_items_of_expired_messages_and_removed_topics(tmp_path: Path) -> None:
    queue, index = keyed("a", "b", "c", "d")
    index.items.append((17, 1, 0, 500, 200, 0))  # topic id 1 was given once
    queue.roll_log()
    index.add(queue.put(b"x", KEYS="e"), "e")
    queue.write(tmp_path / "tieredstore")
    queue.log_path(tmp_path / "tieredstore").unlink()
    del queue.logs[0]
    tiers.upload(tmp_path / "tieredstore", index.compacted())
    tiers.write_metadata(tmp_path, {tiers.TOPIC: 0, "later": 2}, [queue], {0: index})
    verify_result = verified(tmp_path)
    assert troubles(verify_result) == []
    assert informed(verify_result) >= {"tiered-index-expired", "tiered-cq-expired"}
    assert "4 items of expired messages, 1 of deleted" in details(verify_result,
                                                                  "tiered-index-expired")
    assert verify_result.coverage.items_proven == 1


def test_items_written_twice(tmp_path: Path) -> None:
    queue, index = keyed("a", "b")
    index.items += index.items
    verify_result = written(tmp_path, queue, index.compacted(), metadata={0: index})
    assert verify_result.findings == ()


@pytest.mark.parametrize("keys", ["a  b", " a", None])
def test_the_empty_key(tmp_path: Path, keys: str | None) -> None:
    queue, index = Queue(), Index(T0)
    message = queue.put(b"x", **({} if keys is None else {"KEYS": keys}))
    for key in sorted(set("".split(" ") if keys is None else keys.split(" "))):
        index.add(message, key)
    queue.put(b"y")
    verify_result = written(tmp_path, queue, index.compacted(), metadata={0: index})
    assert verify_result.findings == ()
    assert verify_result.coverage.items_proven == len(index.items)


def test_an_index_file_without_items(tmp_path: Path) -> None:
    queue, index = keyed("a")
    verify_result = written(tmp_path, queue, index.compacted(), b"", metadata={0: index})
    assert verify_result.ok
    assert "no items" in details(verify_result, "tiered-oddity")


def test_what_a_crash_leaves_beside_the_open_index_file(tmp_path: Path) -> None:
    tier = small(tmp_path)
    folder = tier.local_path.parent
    (folder / str(T0)).write_bytes(tier.uploaded.open_form())
    (folder / "compacting").mkdir()
    (folder / "compacting" / str(T0)).write_bytes(tier.uploaded.compacted()[:50])
    verify_result = verified(tmp_path)
    assert verify_result.ok
    assert "already uploaded" in details(verify_result, "tiered-oddity")
    assert "compacted copy, not uploaded" in details(verify_result, "tiered-oddity")


def test_a_removed_segment_that_metadata_still_has(tmp_path: Path) -> None:
    queue, _ = keyed("a")
    queue.write(tmp_path / "tieredstore")
    path = tiers.write_metadata(tmp_path, {tiers.TOPIC: 0}, [queue])
    value = json.loads(path.read_text())
    table = value["commitLogFileSegmentTable"]["broker-a/orders/0"]
    table["77777"] = table["0"] | {"baseOffset": 77777, "status": 2}
    path.write_text(json.dumps(value))
    verify_result = verified(tmp_path)
    assert verify_result.ok
    assert "deleted" in details(verify_result, "tiered-oddity")


def test_windows_paths_of_old_metadata(tmp_path: Path) -> None:
    tier = small(tmp_path)
    text = tier.metadata_path.read_text()
    tier.metadata_path.write_text(text.replace("broker-a/", "broker-a\\\\").replace(
        "orders/0", "orders\\\\0").replace("rmq_sys_INDEX/0", "rmq_sys_INDEX\\\\0").replace(
        "\\u5e10\\u5355/3", "\\u5e10\\u5355\\\\3"))
    assert segment_name(0) in str(tier.index_path)
    assert verified(tmp_path).ok
