"""The engine is the judge: rmqctl answers about every golden store as the real one did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.support import engine, subject
from tests.support import golden as golden_sets

EXT_ADDRESS_BELOW = -(1 << 31)


@pytest.fixture(params=[pytest.param(golden_store, id=golden_store.id) for golden_store in (
    *golden_sets.judged_stores(), *golden_sets.rocksdb_stores())])
def store(request: pytest.FixtureRequest) -> golden_sets.GoldenStore:
    param: golden_sets.GoldenStore = request.param
    return param


@pytest.fixture
def root(store: golden_sets.GoldenStore, golden: GoldenFolder) -> Path:
    return golden(store.id)


@pytest.fixture
def expect(store: golden_sets.GoldenStore, golden: GoldenFolder) -> engine.Expect:
    return store.load_expect(golden(store.set.id))


def test_log_bounds(root: Path, expect: engine.Expect) -> None:
    assert subject.log_bounds(root, expect) == (expect.min_physical_offset,
                                                expect.max_physical_offset)


def test_messages(root: Path, expect: engine.Expect) -> None:
    for queue in expect.queues:
        expected = [(message.queue_offset, message.physical_offset, message.size, message.body_sha1,
                     message.topic,                      message.queue_id)
                    for message in queue.messages]
        assert subject.messages(root, expect, queue.topic, queue.queue_id) == expected, queue.id


def test_min_and_max(root: Path, expect: engine.Expect) -> None:
    min_maxes_by_id = {queue.id: subject.min_max(root, expect, queue.topic, queue.queue_id)
                       for queue in expect.queues}
    assert min_maxes_by_id == {queue.id: (queue.min, queue.max) for queue in expect.queues}


def test_consumequeue_entries(root: Path, expect: engine.Expect) -> None:
    for queue in expect.queues:
        unit_rows = subject.cq(root, expect, queue.topic, queue.queue_id)
        assert len(unit_rows) == len(queue.units), queue.id
        for mine, expected in zip(unit_rows, queue.units, strict=True):
            assert mine[:3] == (expected.queue_offset, expected.physical_offset,
                                expected.size), queue.id
            if queue.kind == "BatchCQ":
                assert mine[3:] == (expected.tags_code, expected.batch_size,
                                    expected.compacted_offset)
            elif mine[3] >= EXT_ADDRESS_BELOW:
                assert mine[3] == expected.tags_code
            else:
                unit = subject.ext(root, expect, queue.topic, queue.queue_id, mine[3])
                if expect.engine == "5.3.3":  # it answers with the real code
                    assert unit[0] == expected.tags_code
                else:
                    assert expected.tags_code == mine[3]
                    assert expected.ext is not None
                    assert unit == (expected.ext.tags_code, expected.ext.store_timestamp,
                                    expected.ext.bit_map, expected.ext.size)


def test_key_queries_raw(store: golden_sets.GoldenStore, root: Path,
                         expect: engine.Expect) -> None:
    for query in expect.queries:
        expected = list(query.messages)
        if store.state == "store-live":  # loading it indexed a boundary message a second time
            expected = list(dict.fromkeys(expected))
        assert subject.query_key(root, expect, query.topic, query.key, query.begin, query.end,
                                 query.max, raw=True) == expected, query.id


def test_key_queries_without_false_hits(root: Path, expect: engine.Expect) -> None:
    """What the broker gives, less the messages that have another key of the same hash."""
    keys = _keys_by_place(root, expect)
    for query in expect.queries:
        expected = [place for place in dict.fromkeys(query.messages)
                    if (query.topic, query.key) in keys[place]]
        found_ids = subject.query_key(root, expect, query.topic, query.key, query.begin, query.end,
                                      query.max, raw=False)
        assert list(dict.fromkeys(found_ids)) == expected, query.id


def _keys_by_place(root: Path, expect: engine.Expect) -> dict[int, set[tuple[str, str]]]:
    from tests.support.model import Model

    model = Model(root, expect.engine, expect.commitlog_dirs, expect.index_slots)
    keys_by_place = {}
    for place, record in model.records.items():
        parts = dict(part.split("\x01", 1) for part in record.properties.split("\x02")
                     if "\x01" in part)
        names = [*parts.get("KEYS", "").split(" "), parts.get("UNIQ_KEY", "")]
        keys_by_place[place] = {(record.topic, name) for name in names if name}
    return keys_by_place


def test_offset_by_time(store: golden_sets.GoldenStore, root: Path,
                        expect: engine.Expect) -> None:
    for queue in expect.queues:
        for expected in queue.by_time:
            def answer(boundary: str, queue: engine.Queue = queue,
                       when: int = expected.timestamp) -> int:
                return subject.offset_by_time(root, expect, queue.topic, queue.queue_id, when,
                                              like=expect.engine, boundary=boundary)

            assert answer("lower") == expected.offset, (queue.id, expected)
            # The tiered store in front of the local one knows no boundary, and the BatchCQ of
            # 5.3.3 loses its way for the upper one (Model.by_time_batch shows how).
            if expected.upper is not None and store.kind != "tiered" and queue.kind == "SimpleCQ":
                assert answer("upper") == expected.upper, (queue.id, expected)


def test_get_message_status(root: Path, expect: engine.Expect) -> None:
    for queue in expect.queues:
        for expected in queue.pulls:
            message = subject.get_message(root, expect, queue.topic, queue.queue_id,
                                          expected.offset)
            assert message == (expected.status, expected.next_begin, expected.min, expected.max,
                               list(expected.physical_offsets)), (queue.id, expected.offset)
