"""Messages by key: the engine's answers, and the better ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.tiered.read import by_key
from rmqctl.ext.tiered.read.by_key import IndexFiles
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.tiered.index import CompactedItemRecord
from rmqctl.store.problems import Problem
from tests.conftest import GoldenFolder, Runner
from tests.support import golden as golden_sets
from tests.tiered.tiers import (
    T0,
    TOPIC,
    Index,
    Queue,
    index_hash,
    java_hash,
    upload,
    write_metadata,
)

SET = "5.3.3/tiered"
STATES = [golden_store.id for golden_store in golden_sets.golden_stores()
          if golden_store.kind == "tiered"]
ITEMS = "items(topicId:queueId:offset:size:timeDiff)"


def index_queries(golden: GoldenFolder) -> list[dict[str, Any]]:
    index_queries: list[dict[str, Any]] = json.loads(
        (golden(SET) / "expect.json").read_text())["extra"]["indexQueries"]
    return index_queries


def text_of(item: CompactedItemRecord) -> str:
    return (f"{item.topic_id}:{item.queue_id}:{item.commit_log_offset}:{item.size}:"
            f"{item.time_diff}")


@contextmanager
def opened(root: Path, **options: Any) -> Iterator[tuple[Tier, IndexFiles]]:
    with Tier.open(str(root)) as tier, IndexFiles.open(tier, **options) as files:
        yield tier, files


@pytest.mark.parametrize("state", STATES)
def test_as_the_engine(state: str, golden: GoldenFolder) -> None:
    """`expect.json` has the items sorted: a broker gives them in the order of a hash map."""
    with opened(golden(state)) as (_, files):
        assert not files.errors
        for query in index_queries(golden):
            compacted_item_records = by_key.items_as_broker(files, query["topic"], query["key"],
                                                            query["max"],
                                                            query["begin"], query["end"])
            if len(query[ITEMS]) < query["max"]:
                assert sorted(map(text_of, compacted_item_records)) == sorted(query[ITEMS]), query
            else:
                assert len(compacted_item_records) == len(query[ITEMS])


@pytest.mark.parametrize("state", STATES)
def test_all_that_have_the_key_and_no_other(state: str, golden: GoldenFolder,
                                            rmqctl: Runner) -> None:
    rows = rmqctl("tiered", "read", golden(state), "-o", "jsonl").jsonl()
    collisions = 0
    with opened(golden(state)) as (tier, files):
        for query in index_queries(golden):
            begin, end, key = query["begin"], query["end"], query["key"]
            wanted = sorted((row["store_timestamp"], row["queue_id"], row["queue_offset"])
                            for row in rows if row["topic"] == query["topic"]
                            and begin <= row["store_timestamp"] <= end
                            and key in (*row["keys"], row["unique_key"]))
            key_matches = by_key.by_key(tier, files, query["topic"], key, begin=begin, end=end,
                                        most=query["max"])
            assert [(record.store_timestamp, record.queue_id, record.queue_offset)
                    for record in key_matches.records] == wanted[-query["max"]:]
            collisions += key_matches.false_hits
    assert collisions  # the sets have keys with equal hashes


def test_the_command(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden(f"{SET}/store-live")
    rows = rmqctl("tiered", "read", root, "-o", "jsonl").jsonl()
    row = next(row for row in rows if row["keys"])
    words = ["tiered", "query", "key", root, "--topic", row["topic"], "-o", "jsonl"]
    assert row in rmqctl(*words, "--key", row["keys"][0]).expect(0).jsonl()
    assert rmqctl(*words, "--key", row["unique_key"], "--type", "unique").expect(0).jsonl() == [row]
    assert rmqctl(*words, "--key", row["unique_key"], "--type", "key").expect(1).out == ""
    late = str(row["store_timestamp"] + 1)
    assert row not in rmqctl(*words, "--key", row["keys"][0], "--begin", late).expect(0, 1).jsonl()
    nobody = rmqctl(*words, "--key", "nobody").expect(1)
    assert "no message of topic" in nobody.err
    rmqctl(*words, "--key", "x", "--as-broker", "--raw").expect(2)
    assert row in rmqctl(*words, "--key", row["keys"][0], "--as-broker").expect(0).jsonl()


# -- files made here -----------------------------------------------------------------------------


def queue_of(count: int = 8) -> Queue:
    queue = Queue()
    for number in range(count):
        queue.put(KEYS=f"k{number} same", UNIQ_KEY=f"u{number}")
    return queue


def test_open_and_uploaded_files_together(tmp_path: Path) -> None:
    """Two uploaded, two local ones of which a broker would have the older sealed."""
    queue = queue_of(12)
    indexes = [Index(T0 + 10_000 * number) for number in range(4)]
    for record in queue.records:
        indexes[record.queue_offset // 3].add(record, "same")
    tier = tmp_path / "tier"
    queue.write(tier)
    upload(tier, indexes[0].compacted(), indexes[1].compacted(), b"")
    for one_file in indexes[2:]:
        folder = tmp_path / "tiered_index_file"
        folder.mkdir(exist_ok=True)
        (folder / str(one_file.begin)).write_bytes(one_file.open_form())
    (folder / "compacting").mkdir()
    write_metadata(tmp_path, {TOPIC: 0}, [queue])
    with opened(tier) as (opened_tier, files):
        assert [file.file.form for file in files.files] == ["empty", "compacted", "compacted",
                                                            "open", "open"]
        key_matches = by_key.by_key(opened_tier, files, TOPIC, "same")
        assert key_matches.records == queue.records
        newest = by_key.by_key(opened_tier, files, TOPIC, "same", most=5)
        assert newest.records == queue.records[-5:]
        window = by_key.by_key(opened_tier, files, TOPIC, "same", begin=T0 + 4000, end=T0 + 6500)
        assert window.records == queue.records[4:7]
        # A broker looks only at files made inside the window.
        as_broker = by_key.as_broker(opened_tier, files, TOPIC, "same", begin=T0 + 4000,
                                     end=T0 + 6500)
        assert as_broker.records == []
        whole = by_key.as_broker(opened_tier, files, TOPIC, "same")
        assert sorted(record.queue_offset for record in whole.records) == list(range(12))


def test_slots_of_other_ratios_are_found_from_uploaded_files_or_given(tmp_path: Path) -> None:
    queue = queue_of(3)
    index = Index(T0, slots=11, max_items=17)
    queue.write(tmp_path / "tier")
    write_metadata(tmp_path, {TOPIC: 0}, [queue])
    (tmp_path / "tiered_index_file").mkdir()
    (tmp_path / "tiered_index_file" / str(T0)).write_bytes(index.open_form())
    with opened(tmp_path / "tier") as (_, files):
        assert "must be given" in str(files.errors[0])
    for record in queue.records:
        index.add(record, "same")
    (tmp_path / "tiered_index_file" / str(T0)).write_bytes(index.open_form())
    for options in ({"slots": 11}, {"max_items": 17}):
        with opened(tmp_path / "tier", **options) as (tier, files):
            assert by_key.by_key(tier, files, TOPIC, "same").records == queue.records
    upload(tmp_path / "tier", index.compacted())
    with opened(tmp_path / "tier") as (_, files):
        assert sorted(file.file.form for file in files.files) == ["compacted", "open"]
        assert [keyed.file.form for keyed in files.table_newest_first()] == ["compacted"]


def test_both_hash_rules(tmp_path: Path) -> None:
    key = next(key for key in map(str, range(99)) if java_hash(f"{TOPIC}#{key}") < 0)
    queue = Queue()
    for _ in range(4):
        queue.put(KEYS=key)
    index = Index(T0)
    for record in queue.records:
        index.add(record, key, masked=record.queue_offset % 2 == 0)
    queue.write(tmp_path)
    upload(tmp_path, index.compacted())
    write_metadata(tmp_path, {TOPIC: 0}, [queue])
    with opened(tmp_path) as (tier, files):
        assert by_key.by_key(tier, files, TOPIC, key).records == queue.records
        assert [record.queue_offset for record in by_key.as_broker(
            tier, files, TOPIC, key).records] == [3, 1]


def test_hash_collisions_are_left_out(tmp_path: Path, rmqctl: Runner) -> None:
    assert java_hash(f"{TOPIC}#Aa") == java_hash(f"{TOPIC}#BB")
    queue = Queue()
    index = Index(T0)
    for key in ("Aa", "BB", "Aa", "BB"):
        index.add(queue.put(KEYS=key), key)
    queue.write(tmp_path)
    upload(tmp_path, index.compacted())
    write_metadata(tmp_path, {TOPIC: 0}, [queue])
    with opened(tmp_path) as (tier, files):
        key_matches = by_key.by_key(tier, files, TOPIC, "Aa")
        assert (key_matches.records,
                key_matches.false_hits) == ([queue.records[0], queue.records[2]], 2)
        assert by_key.by_key(tier, files, TOPIC, "Aa", raw=True).records == queue.records
        assert len(by_key.as_broker(tier, files, TOPIC, "Aa").records) == 4
    words = ["tiered", "query", "key", tmp_path, "--topic", TOPIC, "--key", "C#"]
    assert java_hash(f"{TOPIC}#C#") == java_hash(f"{TOPIC}#BB")
    assert "the 4 index hits have other keys" in rmqctl(*words).expect(1).err


@pytest.mark.parametrize("id_now", [0, 5, None])
def test_a_topic_with_a_new_id(id_now: int | None, tmp_path: Path) -> None:
    """A broker finds nothing under the old id; the messages tell whose they are."""
    queue = queue_of()
    index = Index(T0)
    for record in queue.records:
        index.add(record, "same", topic_id=0)
    queue.write(tmp_path)
    upload(tmp_path, index.compacted())
    write_metadata(tmp_path, {} if id_now is None else {TOPIC: id_now}, [queue])
    with opened(tmp_path) as (tier, files):
        assert by_key.by_key(tier, files, TOPIC, "same").records == queue.records
        as_broker = by_key.as_broker(tier, files, TOPIC, "same").records
        assert len(as_broker) == (8 if id_now == 0 else 0)


def test_without_metadata(tmp_path: Path) -> None:
    queue = queue_of()
    index = Index(T0)
    for record in queue.records:
        index.add(record, "same")
    queue.write(tmp_path)
    upload(tmp_path, index.compacted())
    with opened(tmp_path) as (tier, files):
        assert by_key.by_key(tier, files, TOPIC, "same").records == queue.records


def test_items_that_lead_nowhere(tmp_path: Path, rmqctl: Runner) -> None:
    queue = queue_of(4)
    index = Index(T0)
    for record in queue.records:
        index.add(record, "same")
    hashed = index.items[0][0]
    for queue_id, offset, size in ((0, 1 << 40, 200), (9, 0, 200), (0, -5, 200), (0, 0, -1),
                                   (0, 7, 200), (0, 0, queue.records[0].total_size - 1)):
        index.items.append((hashed, 0, queue_id, offset, size, 0))
    index.items.append(index.items[0])  # and one that is there twice
    queue.write(tmp_path)
    upload(tmp_path, index.compacted())
    write_metadata(tmp_path, {TOPIC: 0}, [queue])
    words = ["tiered", "query", "key", tmp_path, "--topic", TOPIC, "--key", "same", "-o", "jsonl"]
    result = rmqctl(*words).expect(0)
    assert [row["queue_offset"] for row in result.jsonl()] == [0, 1, 2, 3]
    assert "the topic has no such queue here" in result.err
    rmqctl(*words, "--as-broker").expect(0, 1)


@pytest.mark.parametrize("form", ["open", "compacted"])
def test_damage_in_an_index_file(form: str, tmp_path: Path, rmqctl: Runner) -> None:
    """Whatever byte of it is wrong, the other file still answers."""
    queue = queue_of(6)
    good, bad = Index(T0), Index(T0 + 99)
    for record in queue.records:
        (good if record.queue_offset < 3 else bad).add(record, "same")
    queue.write(tmp_path / "tier")
    write_metadata(tmp_path, {TOPIC: 0}, [queue])
    if form == "open":
        upload(tmp_path / "tier", good.compacted())
        path = tmp_path / "tiered_index_file" / str(bad.begin)
        path.parent.mkdir()
        path.write_bytes(bad.open_form())
    else:
        bases = upload(tmp_path / "tier", good.compacted(), bad.compacted())
        path = next((tmp_path / "tier").rglob(f"*{bases[1]:020d}"))
    whole = path.read_bytes()
    seen = set()
    for at in range(0, len(whole), 3):
        data = bytearray(whole)
        data[at] ^= 0x81
        path.write_bytes(data)
        with opened(tmp_path / "tier") as (tier, files):
            queue_offsets = {record.queue_offset
                             for record in by_key.by_key(tier, files, TOPIC, "same").records}
            by_key.as_broker(tier, files, TOPIC, "same")
        assert {0, 1, 2} <= queue_offsets <= set(range(6))
        seen.add(len(queue_offsets))
    assert len(seen) > 1
    path.write_bytes(b"not an index")
    result = rmqctl("tiered", "query", "key", tmp_path / "tier", "--topic", TOPIC, "--key",
                    "same", "-o", "jsonl").expect(1)
    assert len(result.jsonl()) == 3
    assert f"{path}" in result.err
    assert "index file skipped" in result.err


def test_chains_that_go_round_end(tmp_path: Path) -> None:
    queue = queue_of(2)
    index = Index(T0, slots=1)
    for record in queue.records:
        index.add(record, "same")
    data = bytearray(index.open_form())
    at = 28 + 8 + 2 * 32 + 28  # item 2's previous
    assert data[at:at + 4] == (1).to_bytes(4)
    data[at:at + 4] = (2).to_bytes(4)
    queue.write(tmp_path / "tier")
    write_metadata(tmp_path, {TOPIC: 0}, [queue])
    (tmp_path / "tiered_index_file").mkdir()
    (tmp_path / "tiered_index_file" / str(T0)).write_bytes(data)
    problems: list[Problem] = []
    with opened(tmp_path / "tier", slots=1) as (tier, files):
        key_matches = by_key.by_key(tier, files, TOPIC, "same", report=problems.append)
    assert key_matches.records == queue.records[1:]
    assert "which is not older" in problems[0].text


def test_reads_of_a_query_on_a_compacted_file(tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the header, then 8 bytes of slot and one run of items."""
    queue = queue_of(30)
    index = Index(T0, slots=5, max_items=100)
    assert java_hash(f"{TOPIC}#same") < 0  # so there are two rules, and two slots to look at
    for record in queue.records:
        index.add(record, "same")
    queue.write(tmp_path)
    upload(tmp_path, index.compacted())
    write_metadata(tmp_path, {TOPIC: 0}, [queue])
    reads = []
    with Tier.open(str(tmp_path)) as tier:
        real = tier.reader.read

        def watched(path: str, position: int, length: int) -> bytes:
            if "/INDEX/" in path:
                reads.append((position, length))
            return real(path, position, length)

        monkeypatch.setattr(tier.reader, "read", watched)
        with IndexFiles.open(tier) as files:
            assert reads == [(0, 28)]
            assert len(by_key.by_key(tier, files, TOPIC, "same").records) == 30
            slot = index.items[0][0] % 5
            other = index_hash(TOPIC, "same", masked=True) % 5
            assert other != slot
            assert reads[1:] == [(28 + 8 * slot, 8), (28 + 40, 28 * 30), (28 + 8 * other, 8)]


def test_limits_a_broker_has(tmp_path: Path) -> None:
    """512 links of an open file, 1024 items of a slot of an uploaded one."""
    queue = Queue()
    for _ in range(1100):
        queue.put(KEYS="same")
    index = Index(T0, slots=1, max_items=1200)
    for record in queue.records:
        index.add(record, "same")
    queue.write(tmp_path / "tier")
    write_metadata(tmp_path, {TOPIC: 0}, [queue])
    local = tmp_path / "tiered_index_file" / str(T0)
    local.parent.mkdir()
    local.write_bytes(index.open_form())
    for wanted, uploaded in ((512, False), (1024, True)):
        if uploaded:
            local.unlink()
            upload(tmp_path / "tier", index.compacted())
        with opened(tmp_path / "tier", slots=1) as (tier, files):
            items = by_key.items_as_broker(files, TOPIC, "same", 5000, 0, by_key.FOR_EVER)
            assert len(items) == wanted
            assert len(by_key.by_key(tier, files, TOPIC, "same", most=5000).records) == 1100
            assert len(by_key.items_as_broker(files, TOPIC, "same", 3, 0, by_key.FOR_EVER)) == 3


@pytest.mark.parametrize(("keys", "has"), [("a  b", True), ("a b", False), ("  ", True), ("", True),
                                           (" a", True), ("a  ", False)])
def test_the_empty_key(keys: str, has: bool, tmp_path: Path) -> None:
    """An empty part between two spaces is indexed, by 5.2.0 also what has no key at all."""
    queue = Queue()
    message = queue.put(KEYS=keys) if keys else queue.put()
    assert by_key.has_key(message, "") is has
    assert by_key.has_key(message, "a") is ("a" in keys)


def test_several_brokers(tmp_path: Path, rmqctl: Runner) -> None:
    both = [Queue(broker=name) for name in ("broker-a", "broker-b")]
    for queue in both:
        index = Index(T0)
        index.add(queue.put(queue.broker.encode(), KEYS="same"), "same")
        queue.write(tmp_path)
        upload(tmp_path, index.compacted(), broker=queue.broker)
    words = ["tiered", "query", "key", tmp_path, "--topic", TOPIC, "--key", "same", "-o", "jsonl"]
    alone = rmqctl(*words, "--broker", "broker-b").expect(0).jsonl()
    assert [row["body"] for row in alone] == ["broker-b"]
    rmqctl(*words, "--as-broker").expect(2)
    assert len(rmqctl(*words).expect(0).jsonl()) == 2


def test_an_index_file_that_may_not_be_read(tmp_path: Path, rmqctl: Runner) -> None:
    queue = queue_of(3)
    index = Index(T0)
    for record in queue.records:
        index.add(record, "same")
    queue.write(tmp_path / "tier")
    upload(tmp_path / "tier", index.compacted())
    write_metadata(tmp_path, {TOPIC: 0}, [queue])
    (tmp_path / "tiered_index_file").mkdir()
    os.mkfifo(tmp_path / "tiered_index_file" / str(T0 + 5))
    result = rmqctl("tiered", "query", "key", tmp_path / "tier", "--topic", TOPIC, "--key",
                    "same", "-o", "jsonl").expect(5)
    assert len(result.jsonl()) == 3
    assert f"{T0 + 5}: not a regular file: index file skipped" in result.err
