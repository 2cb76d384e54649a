"""Messages made for the purpose: what a dispatcher makes of topics, tags, delays and lists."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rmqctl.broker.settings import Settings
from rmqctl.formats.local import batch_consume_queue, consume_queue, message, properties, sysflag
from rmqctl.formats.local.consume_queue import UNIT_SIZE, UnitRecord
from rmqctl.formats.local.javahash import string_hash
from tests.engine_write.dispatching import derived, dispatcher

BORN = message.host_bytes("10.0.0.7:1")
WHEN = 1_700_000_000_000


@dataclass(frozen=True)
class Put:
    topic: str | bytes = "t"
    queue_id: int = 0
    queue_offset: int = 0
    sys_flag: int = 0
    properties: dict[str, str] = field(default_factory=dict)


def log(*puts: Put) -> bytes:
    data = b""
    for put in puts:
        topic = put.topic if isinstance(put.topic, bytes) else put.topic.encode()
        magic = message.MAGIC_V2 if len(topic) > 127 else message.MAGIC_V1
        text = properties.build(put.properties).encode()
        data += message.build(message.Record(
            message.size_of(put.sys_flag, magic, 4, len(topic), len(text)), magic,
            zlib.crc32(b"body") & message.CRC_MASK, put.queue_id, 0, put.queue_offset, len(data),
            put.sys_flag, 1, BORN, WHEN, BORN, 0, 0, b"body", topic, text))
    return data


def small(version: str = "5.3.3", **more: object) -> Settings:
    given: dict[str, object] = {"consumequeue_file_size": 10 * UNIT_SIZE, "index_slots": 10,
                                "index_max": 100, "batch_consumequeue_file_size": 92}
    return Settings(version=version, **{**given, **more})


def queues(root: Path) -> dict[str, list[UnitRecord]]:
    """The used units of every plain queue, by ``topic/queueId``."""
    units_by_queue: dict[str, list[UnitRecord]] = {}
    for name, data in sorted(derived(root).items()):
        tree, *folder, _ = name.split("/")
        if tree == "consumequeue":
            units_by_queue.setdefault("/".join(folder), []).extend(
                unit for unit in consume_queue.UNIT.decode_all(data) if unit != consume_queue.ZERO)
    return units_by_queue


def test_names_that_are_no_folders_write_nowhere(tmp_path):
    puts = [Put(topic) for topic in ("../../out", "a/b", "..", ".", "", b"a\0b", "t")]
    new_dispatcher = dispatcher(tmp_path / "store", small())
    new_dispatcher.dispatch(log(*puts), 0)
    new_dispatcher.flush()
    new_dispatcher.close()
    assert new_dispatcher.unplaceable == 6
    assert list(queues(tmp_path / "store")) == ["t/0"]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_odd_queue_ids_and_topics_that_are_no_utf8(tmp_path):
    puts = [Put(b"\xff\xfe", 70_000), Put("größe", 63), Put("größe", 64), Put("t", -1), Put(
        "%RETRY%" + "x" * 240, 0)]
    new_dispatcher = dispatcher(tmp_path, small())
    new_dispatcher.dispatch(log(*puts), 0)
    new_dispatcher.close()
    assert sorted(queues(tmp_path)) == sorted([
        "%RETRY%" + "x" * 240 + "/0", "größe/63", "größe/64", "t/-1", "\udcff\udcfe/70000"])
    again = dispatcher(tmp_path, small())
    again.dispatch(log(*puts), 0)
    again.close()
    assert all(len(rows) == 1 for rows in queues(tmp_path).values())


def test_tags_codes_and_deliver_times(tmp_path):
    schedule = properties.SCHEDULE_TOPIC
    given = [({"TAGS": "Tag"}, string_hash("Tag")), ({"TAGS": "größe"}, string_hash("größe")),
             ({}, 0), ({"TAGS": "x", "DELAY": "2"}, WHEN + 7000), ({"DELAY": "99"}, WHEN + 7000),
             ({"DELAY": "0", "TAGS": "x"}, string_hash("x")),
             ({"DELAY": "one", "TAGS": "x"}, string_hash("x")), ({"DELAY": "1"}, WHEN + 60_000)]
    new_dispatcher = dispatcher(tmp_path, small(message_delay_level="1m 7s"))
    new_dispatcher.dispatch(log(*(Put(schedule, 0, at, 0, item)
                                  for at, (item, _) in enumerate(given))), 0)
    new_dispatcher.dispatch(b"", 0)
    new_dispatcher.close()
    assert [unit.tags_code for unit in queues(tmp_path)[f"{schedule}/0"]] == [
        code for _, code in given]


def test_only_committed_messages_get_rows_and_count(tmp_path):
    kinds = [sysflag.TRANSACTION_NONE, sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_COMMIT,
             sysflag.TRANSACTION_ROLLBACK]
    new_dispatcher = dispatcher(tmp_path, small())
    new_dispatcher.dispatch(log(*(Put("t", 0, at // 2, kind, {"KEYS": "k"})
                                  for at, kind in enumerate(kinds))), 0)
    new_dispatcher.close()
    assert len(queues(tmp_path)["t/0"]) == 2
    assert new_dispatcher.next_offsets() == {("t", 0): 2}
    assert new_dispatcher.logics_timestamp == WHEN
    index = derived(tmp_path)["index/0"]
    assert int.from_bytes(index[36:40], "big") == 1 + 3


def multi(names: str, offsets: str | None, topic: str = "t", queue_id: int = 3,
          queue_offset: int = 0) -> Put:
    properties = {"INNER_MULTI_DISPATCH": names}
    if offsets is not None:
        properties["INNER_MULTI_QUEUE_OFFSET"] = offsets
    return Put(topic, queue_id, queue_offset, 0, {**properties, "TAGS": "x"})


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
@pytest.mark.parametrize(("names", "offsets", "expected"), [
    ("%LMQ%a,%LMQ%b", "0,0", {"%LMQ%a/0": 1, "%LMQ%b/0": 1}),
    ("%LMQ%a,plain", "0,0", {"%LMQ%a/0": 1, "plain/3": 1}),
    ("%LMQ%a,plain", "0,", {}),  # 5.3.3 writes that: lists of different length
    ("plain,%LMQ%a", ",0", {"%LMQ%a/0": 1}),  # a broker's dispatch would stop here for ever
    ("%LMQ%a,", "0", {"%LMQ%a/0": 1}),
    ("%LMQ%a,%LMQ%b", "x,0", {"%LMQ%b/0": 1}),
    ("%LMQ%a,%LMQ%b", "-1,99999999999999999999", {}),
    ("../x,a/b,..,%LMQ%a", "0,0,0,0", {"%LMQ%a/0": 1}),
    ("%LMQ%a,%LMQ%a", "0,0", {"%LMQ%a/0": 1}),
    ("%LMQ%a", None, {}),
    ("%LMQ%a", " ", {}),
    (" ", "0", {}),
    (",", ",", {}),
])
def test_multi_dispatched_messages(names, offsets, expected, version, tmp_path):
    new_dispatcher = dispatcher(tmp_path, small(version, lmq=True, multi_dispatch=True))
    new_dispatcher.dispatch(log(multi(names, offsets), Put("t", 3, 1)), 0)
    new_dispatcher.close()
    store_queues = queues(tmp_path)
    assert len(store_queues.pop("t/3")) == 2
    assert {name: len(rows) for name, rows in store_queues.items()} == expected
    assert all(row.tags_code == string_hash("x") for rows in store_queues.values() for row in rows)


def test_a_broker_of_5_leaves_some_topics_out(tmp_path):
    topics = ["%RETRY%g", "rmq_sys_x", properties.SCHEDULE_TOPIC, "t"]
    for version, count in (("4.9.3", 4), ("5.3.3", 1)):
        new_dispatcher = dispatcher(tmp_path / version,
                                    small(version, lmq=True, multi_dispatch=True))
        offset = iter(range(4))
        puts = [multi("%LMQ%a", "0", topic) for topic in topics[:-1]] if version == "5.3.3" else [
            multi("%LMQ%a", str(next(offset)), topic) for topic in topics[:-1]]
        puts.append(multi("%LMQ%a", "0" if version == "5.3.3" else str(next(offset))))
        new_dispatcher.dispatch(log(*puts), 0)
        new_dispatcher.close()
        assert len(queues(tmp_path / version)["%LMQ%a/0"]) == count


def test_switches_of_multi_dispatch(tmp_path):
    for lmq, multi_dispatch, further in ((True, False, []), (False, True, ["%LMQ%a/3"]),
                                         (True, True, ["%LMQ%a/0"])):
        root = tmp_path / f"{lmq}{multi_dispatch}"
        new_dispatcher = dispatcher(root, small(lmq=lmq, multi_dispatch=multi_dispatch))
        new_dispatcher.dispatch(log(multi("%LMQ%a", "0")), 0)
        new_dispatcher.close()
        assert sorted(queues(root)) == sorted([*further, "t/3"])


def test_rows_of_one_queue_are_in_log_order_whatever_led_to_them(tmp_path):
    """A queue that is both a topic's own and one that others are dispatched to."""
    puts = [multi("t", "0", "u"), Put("t", 3, 1), multi("t", "2", "u", 3, 1), Put("t", 3, 3)]
    for ext in (False, True):
        new_dispatcher = dispatcher(tmp_path / str(ext),
                                    small(multi_dispatch=True, consumequeue_ext=ext,
                                          consumequeue_ext_file_size=1000))
        new_dispatcher.dispatch(log(*puts), 0, {0: b"bits"})
        new_dispatcher.close()
        assert new_dispatcher.gaps == 0
        rows = queues(tmp_path / str(ext))["t/3"]
        assert len(rows) == 4
        assert rows == sorted(rows)
        assert [row.tags_code < -(1 << 31) for row in rows] == [False, ext, False, ext]


def test_a_bit_map_that_is_too_large_leaves_the_plain_code(tmp_path):
    new_dispatcher = dispatcher(tmp_path,
                                small(consumequeue_ext=True, consumequeue_ext_file_size=100))
    data = log(Put(properties={"TAGS": "x"}), Put("t", 0, 1, 0, {"TAGS": "x"}))
    new_dispatcher.dispatch(data, 0, {0: bytes(77)})
    new_dispatcher.close()
    first, second = queues(tmp_path)["t/0"]
    assert first.tags_code == string_hash("x")
    assert second.tags_code == -(1 << 63)


def test_a_broker_makes_extension_units_again(tmp_path):
    new_dispatcher = dispatcher(tmp_path,
                                small(consumequeue_ext=True, consumequeue_ext_file_size=1000),
                                as_broker=True)
    for _ in range(2):
        new_dispatcher.dispatch(log(Put()), 0)
    new_dispatcher.close()
    data = derived(tmp_path)["consumequeue_ext/t/0/00000000000000000000"]
    assert [data[at:at + 2] for at in (0, 20, 40)] == [b"\0\x14", b"\0\x14", b"\0\0"]


def test_batch_queues(tmp_path):
    settings = small(batch_topics=frozenset(["b"]))
    puts = [Put("b", 0, 0, sysflag.INNER_BATCH, {"INNER_NUM": "5", "INNER_BASE": "0"}),
            Put("b", 0, 5), Put("b", 0, 6, 0, {"INNER_NUM": "5"}),
            Put("b", 0, 7, 0, {"INNER_NUM": "x", "INNER_BASE": "7"}),
            Put("b", 0, 8, 0, {"INNER_NUM": "70000", "INNER_BASE": "7"}), Put("t", 0, 0)]
    new_dispatcher = dispatcher(tmp_path, settings)
    new_dispatcher.dispatch(log(*puts), 0)
    assert new_dispatcher.refused == 2
    assert new_dispatcher.next_offsets() == {("b", 0): 7, ("t", 0): 1}
    new_dispatcher.close()
    units = [unit for name, data in derived(tmp_path).items() if name.startswith("batch")
             for unit in batch_consume_queue.UNIT.decode_all(data) if unit.is_valid]
    assert [(unit.msg_base_offset, unit.batch_size) for unit in units] == [(0, 5), (5, 1), (6, 1)]
    old = dispatcher(tmp_path / "old", small("4.9.3", batch_topics=frozenset(["b"])))
    old.dispatch(log(*puts), 0)
    old.close()
    assert sorted(queues(tmp_path / "old")) == ["b/0", "t/0"]


def test_gaps_are_counted_and_written_on(tmp_path):
    new_dispatcher = dispatcher(tmp_path, small())
    new_dispatcher.dispatch(log(Put(), Put("t", 0, 5), Put("t", 0, 6)), 0)
    assert (new_dispatcher.gaps, new_dispatcher.next_offsets()) == (2, {("t", 0): 3})
    new_dispatcher.close()
