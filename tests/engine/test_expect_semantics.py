"""What ``expect.json`` means, shown on the raw bytes by a reader that is not rmqctl.

If one of these fails, the golden data or our reading of it is wrong, not rmqctl.
"""

from __future__ import annotations

import json

import pytest

from tests.conftest import GoldenFolder
from tests.support import engine
from tests.support import golden as golden_sets
from tests.support.model import Model
from tests.support.share import sample

JUDGED = [pytest.param(golden_store, id=golden_store.id) for golden_store in sample(
    golden_sets.judged_stores(), 30, "the model")]
EXT_ADDRESS_BELOW = -(1 << 31)


def opened(store: golden_sets.GoldenStore, golden: GoldenFolder) -> tuple[engine.Expect, Model]:
    expect = store.load_expect(golden(store.set.id))
    assert expect.commitlog_dirs == store.commitlog_dirs
    return expect, Model(golden(store.id), expect.engine, expect.commitlog_dirs,
                         expect.index_slots)


def row(message: engine.Message) -> tuple[int, int, int, str, str, int]:
    return (message.queue_offset, message.physical_offset, message.size, message.body_sha1,
            message.topic, message.queue_id)


@pytest.mark.parametrize("store", JUDGED)
def test_the_log_ends_at_the_first_bad_record(store: golden_sets.GoldenStore,
                                              golden: GoldenFolder) -> None:
    expect, model = opened(store, golden)
    assert model.log_end == expect.max_physical_offset
    assert model.log.start == expect.min_physical_offset
    assert expect.readable_total == sum(len(queue.messages) for queue in expect.queues)


@pytest.mark.parametrize("store", JUDGED)
def test_units_and_messages(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    expect, model = opened(store, golden)
    for queue in expect.queues:
        if queue.kind == "BatchCQ":
            batches = model.batch_units(queue.topic, queue.queue_id)
            assert [engine.Unit(unit.base_offset, unit.physical_offset, unit.size, unit.tags_code,
                                None, unit.batch_size, unit.compacted_offset)
                    for unit in batches] == list(queue.units), queue.id
            places = [unit.physical_offset for unit in batches]
        else:
            units = model.units(queue.topic, queue.queue_id)
            assert [unit[:3] for unit in units] == [
                (unit.queue_offset, unit.physical_offset, unit.size) for unit in queue.units]
            for raw, expected in zip(units, queue.units, strict=True):
                if raw.tags_code >= EXT_ADDRESS_BELOW:
                    assert (raw.tags_code, expected.ext) == (expected.tags_code, None)
                    continue
                tags, timestamp, bits, size = model.ext(queue.topic, queue.queue_id, raw.tags_code)
                if expect.engine == "5.3.3":
                    assert expected.tags_code == tags
                else:
                    assert expected.tags_code == raw.tags_code
                    assert expected.ext == engine.ExtUnit(tags, timestamp, bits or None, size)
            places = [unit.physical_offset for unit in queue.units if not unit.is_filler]
        if expect.is_compacted(queue.topic):
            records = model.compaction(queue.topic, queue.queue_id).records()
        else:
            records = [model.records[place] for place in places]
        assert [record.row() for record in records] == [row(message) for message in queue.messages]


@pytest.mark.parametrize("store", JUDGED)
def test_min_max_and_pulls(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    expect, model = opened(store, golden)
    for queue in expect.queues:
        where = queue.topic, queue.queue_id
        for pull in queue.pulls:
            expected = (pull.offset, pull.status, pull.next_begin, pull.min, pull.max,
                        pull.physical_offsets)
            if queue.kind == "BatchCQ":
                assert model.pull_batch(*where, pull.offset) == expected, queue.id
            elif expect.is_compacted(queue.topic):
                answer = model.compaction(*where).pull(pull.offset)
                assert (pull.offset, *answer) == expected, queue.id
            else:
                assert model.pull(*where, pull.offset) == expected, queue.id
                assert (pull.min, pull.max) == (queue.min, queue.max)


@pytest.mark.parametrize("store", JUDGED)
def test_offset_by_time(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    expect, model = opened(store, golden)
    for queue in expect.queues:
        by_time = model.by_time_batch if queue.kind == "BatchCQ" else model.by_time
        for expected in queue.by_time:
            assert by_time(queue.topic, queue.queue_id,
                           expected.timestamp) == expected.offset, queue.id
            if expected.lower is None or expected.upper is None:
                continue
            assert expected.lower == expected.offset
            if store.kind == "tiered":  # the tiered store in front knows no boundary
                assert expected.upper == expected.lower
                continue
            assert by_time(queue.topic, queue.queue_id, expected.timestamp,
                           "upper") == expected.upper


@pytest.mark.parametrize("store", JUDGED)
def test_key_queries(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    expect, model = opened(store, golden)
    for query in expect.queries:
        asked = query.topic, query.key, query.max, query.begin, query.end
        index, messages = list(query.index), list(query.messages)
        if store.state == "store-live":  # loading it indexed a boundary message a second time
            index, messages = list(dict.fromkeys(index)), list(dict.fromkeys(messages))
        assert model.index_entries(*asked) == index, query.id
        assert model.query(*asked) == messages, query.id


@pytest.mark.parametrize("store", [pytest.param(golden_store, id=golden_store.id)
                                   for golden_store in golden_sets.clean_stores()])
def test_puts_are_the_records(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    """``stored`` of ``input.jsonl`` names every record of the log in order, byte for byte."""
    import hashlib

    _, model = opened(store, golden)
    expected = sorted((record.physical_offset, record.size, record.raw_sha1)
                      for put in engine.puts(golden(store.set.id) / "input.jsonl")
                      for record in put.stored)
    values = []
    for place, record in model.records.items():
        raw = model.log.at(place, record.size)
        assert raw is not None
        values.append((place, record.size, hashlib.sha1(raw).hexdigest()))
    assert values == expected


def test_refused_store_changed_nothing(golden: GoldenFolder) -> None:
    for golden_store in golden_sets.golden_stores():
        if not golden_store.is_loaded and golden_store.state == "after":
            raw = json.loads((golden(golden_store.set.id) / "expect.json").read_text())
            assert raw["treeSha1Before"] == raw["treeSha1After"]
