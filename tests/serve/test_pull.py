"""What is pulled from a served store, against what `read` says of it."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from rmqctl.ext.serve.remoting.client import Client, records
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.formats.local.message import decode
from rmqctl.store.log.bounds import View
from rmqctl.store.queue.rows import topic_rows
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.serve.running import serving

_BOUNDS = ("minOffset", "maxOffset")


def drained(client: Client, topic: str, queue_id: int, *, most: int = 32, tags: str = "*",
            kind: str = "TAG") -> list[bytes]:
    """All records of a queue, pulled as a consumer does."""
    bodies: list[bytes] = []
    offset = 0
    while True:
        answer = client.pull(topic, queue_id, offset, most=most, expression=tags, kind=kind)
        if answer.code == 19:
            return bodies
        assert answer.code in (0, 20, 21), (answer.code, answer.remark)
        for record in records(answer.body):
            bodies.append(answer.body[:record.total_size])
            answer.body = answer.body[record.total_size:]
        following = int(answer.ext["nextBeginOffset"])
        assert following > offset
        offset = following


def expected(root: Path) -> dict[tuple[str, int], list[bytes]]:
    """Every queue's records as they lie in the log, by their rows."""
    raw_ats: dict[tuple[str, int], list[bytes]] = {}
    with Store.open(root) as store:
        view = View(store)
        for topic, queue_id in (*store.queues.by_key, *store.queues.batch):
            rows = [row for queue in topic_rows(store, topic, queue_id, view)
                    for page in queue.pages(queue.first, queue.end)
                    for row in zip(page[1].tolist(), page[2].tolist(), strict=True)]
            raw = [store.log.raw_at(*row) for row in rows]
            raw_ats[topic, queue_id] = [raw_at for raw_at in raw if raw_at is not None
                                        and decode(raw_at).crc_ok]
    return raw_ats


@pytest.mark.parametrize("name", [
    "4.9.3/basic/store", "5.3.3/basic/store", "5.3.3/multipath/store", "5.3.3/ipv6/store",
    "5.3.3/v2topic/store", "5.3.3/lmq/store", "4.9.3/cqext/store", "5.3.3/batchcq/store",
    "4.9.3/crash-trunc-garbage/before", "5.3.3/crash-crc/before"])
def test_every_message_of_every_queue_once_and_in_order(golden: GoldenFolder, name: str) -> None:
    version, kind, state = name.split("/")
    root = golden(f"{version}/{kind}") / state
    wanted = expected(root)
    assert wanted
    with serving(root) as served, served.client() as client:
        for (topic, queue_id), messages in wanted.items():
            route = client.ask("GET_ROUTEINFO_BY_TOPIC", topic=topic)
            assert route.code == 0
            assert route.json()["queueDatas"][0]["readQueueNums"] > queue_id
            assert route.json()["queueDatas"][0]["perm"] == 4
            assert drained(client, topic, queue_id) == messages, (topic, queue_id)
            assert drained(client, topic, queue_id, most=3) == messages


@pytest.mark.parametrize("kind", ["basic", "batchcq", "compaction"])
def test_no_more_bytes_are_given_than_asked_for(golden: GoldenFolder, kind: str) -> None:
    with serving(golden(f"5.3.3/{kind}") / "store") as served, served.client() as client:
        queues = [(topic, queue_id) for topic, topic_name in served.brokers[0].source.topics.items()
                  for queue_id in range(topic_name.read_queues)]
        for topic, queue_id in queues:
            whole = b"".join(drained(client, topic, queue_id))
            data, offset, sizes = b"", 0, []
            while (answer := client.ask(
                    "PULL_MESSAGE", consumerGroup="g", topic=topic, queueId=queue_id, sysFlag=4,
                    queueOffset=offset, maxMsgNums=32, subscription="*", maxMsgBytes=1)).code != 19:
                sizes.append(len(list(records(answer.body))))
                data += answer.body
                offset = int(answer.ext["nextBeginOffset"])
            assert data == whole
            assert set(sizes) <= {0, 1}


@pytest.mark.parametrize("layout", ["5.3.3/rocksdb", "5.3.3/dledger"])
def test_other_layouts_are_served_alike(golden: GoldenFolder, layout: str) -> None:
    root = golden(layout) / "store"
    wanted = expected(root)
    assert sum(map(len, wanted.values())) > 20
    with serving(root) as served, served.client() as client:
        for (topic, queue_id), messages in wanted.items():
            assert drained(client, topic, queue_id) == messages


def test_the_states_of_a_queue_have_a_brokers_codes(golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic") / "store"
    with Store.open(root) as store:
        topic, queue_id = next(iter(store.queues.by_key))
    end = len(expected(root)[topic, queue_id])
    with serving(root) as served, served.client() as client:
        def asked(offset: int, queue: int = queue_id, name: str = topic) -> tuple[int, str, str]:
            answer = client.pull(name, queue, offset)
            return answer.code, str(answer.remark)[:24], answer.ext.get("nextBeginOffset", "")

        assert asked(end) == (19, "OFFSET_OVERFLOW_ONE", str(end))
        assert asked(end + 7) == (21, "OFFSET_OVERFLOW_BADLY", str(end))
        assert asked(-1) == (21, "OFFSET_TOO_SMALL", "0")
        assert asked(0, 99)[0] == 1
        assert "queueId[99] is illegal" in str(
            client.pull(topic, 99, 0).remark)
        assert asked(0, 0, "no-such-topic")[0] == 17
        assert asked(0, 0, "../../etc")[0] == 17
        answer = client.pull(topic, queue_id, end - 1)
        assert [answer.ext[name] for name in _BOUNDS] == ["0", str(end)]
        assert client.ask("GET_MAX_OFFSET", topic=topic, queueId=queue_id).ext["offset"] == str(end)
        assert client.ask("GET_MIN_OFFSET", topic=topic, queueId=queue_id).ext["offset"] == "0"


def test_tags_are_compared_by_their_hashes(golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic") / "store"
    wanted = expected(root)
    (topic, queue_id), messages = max(wanted.items(), key=lambda pair: len(pair[1]))
    tags = [dict(pair.split("\x01") for pair in decode(raw).properties.decode().split("\x02")
                 if pair).get("TAGS") for raw in messages]
    some = sorted({tag for tag in tags if tag})[:2]
    assert some
    with serving(root) as served, served.client() as client:
        received = drained(client, topic, queue_id, tags=" || ".join(some))
        assert received == [raw for raw, tag in zip(messages, tags, strict=True) if tag in some]
        assert drained(client, topic, queue_id, tags="no-such-tag") == []


def test_a_pull_without_messages_waits_for_them(golden: GoldenFolder, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden("5.3.3/basic") / "store", root)
    with Store.open(root) as store:
        topic, queue_id = next(iter(store.queues.by_key))
    end = len(expected(root)[topic, queue_id])
    with serving(root) as served, served.client() as client:
        begun = time.monotonic()
        assert client.pull(topic, queue_id, end, wait_ms=600).code == 19
        assert 0.5 < time.monotonic() - begun < 12
        opaque = client.send("PULL_MESSAGE", ext={
            "consumerGroup": "g", "topic": topic, "queueId": queue_id, "queueOffset": end,
            "maxMsgNums": 32, "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 15_000,
            "subscription": "*", "subVersion": 0})
        threading.Thread(target=_append, args=(root, topic, queue_id)).start()
        begun = time.monotonic()
        answer = client.receive()
        assert (answer.opaque, answer.code) == (opaque, 0)
        assert time.monotonic() - begun < 12
        assert [record.body for record in records(answer.body)] == [b"new"]
        assert served.brokers[0].waiting == {}


def _append(root: Path, topic: str, queue_id: int) -> None:
    from rmqctl.broker.settings import resolve
    from rmqctl.engine.engine import Engine
    from rmqctl.engine.put.message import Outgoing

    with Store.open(root) as store:
        settings = resolve(store, {}).settings
    engine = Engine.open(root, settings)
    assert engine.put_many([Outgoing(topic, b"new", queue_id=queue_id)])[0].stored
    engine.close()


def test_damaged_messages_are_passed_over_and_counted(golden: GoldenFolder, tmp_path: Path
                                                      ) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden("4.9.3/basic") / "store", root)
    wanted = expected(root)
    (topic, queue_id), messages = max(wanted.items(), key=lambda pair: len(pair[1]))
    place = decode(messages[5]).physical_offset
    with Store.open(root) as store:
        file = store.log.file_of(place)
    assert file is not None
    data = bytearray(Path(file.path).read_bytes())
    data[data.index(decode(messages[5]).body, place - file.base)] ^= 1
    Path(file.path).write_bytes(data)
    with serving(root) as served, served.client() as client:
        assert drained(client, topic, queue_id) == messages[:5] + messages[6:]
        assert served.brokers[0].skipped == 1
        assert client.ask("VIEW_MESSAGE_BY_ID", offset=place).code == 1
        sound = decode(messages[6]).physical_offset
        assert client.ask("VIEW_MESSAGE_BY_ID", offset=sound).body == messages[6]


def test_the_brokers_view_ends_where_a_broker_would(golden: GoldenFolder) -> None:
    root = golden("5.3.3/crash-crc") / "before"
    counts = []
    for view in ("disk", "broker"):
        with serving(root, settings=ServeSettings(view=view)) as served, served.client() as client:
            counts.append(sum(len(drained(client, *queue)) for queue in expected(root)))
    assert counts[1] < counts[0]


def test_messages_by_key_and_by_time(golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic") / "store"
    wanted = expected(root)
    (topic, queue_id), messages = max(wanted.items(), key=lambda pair: len(pair[1]))
    record = decode(messages[3])
    properties = dict(pair.split("\x01") for pair in record.properties.decode().split("\x02")
                      if pair)
    with serving(root) as served, served.client() as client:
        if "UNIQ_KEY" in properties:
            answer = client.ask("QUERY_MESSAGE", topic=topic, key=properties["UNIQ_KEY"], maxNum=8,
                                beginTimestamp=0, endTimestamp=(1 << 63) - 1,
                                _UNIQUE_KEY_QUERY="true")
            assert messages[3] == answer.body
        assert client.ask("QUERY_MESSAGE", topic=topic, key="no such key", maxNum=8,
                          beginTimestamp=0, endTimestamp=(1 << 63) - 1).code == 22
        first = next(number for number, raw in enumerate(messages)
                     if decode(raw).store_timestamp >= record.store_timestamp)
        answer = client.ask("SEARCH_OFFSET_BY_TIMESTAMP", topic=topic, queueId=queue_id,
                            timestamp=record.store_timestamp)
        assert answer.ext["offset"] == str(first)
