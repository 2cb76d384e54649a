"""A store that is served for writing: what is sent can be pulled, and is there afterwards."""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.settings import Settings as StoreSettings
from rmqctl.engine.config.create import create_store
from rmqctl.engine.put.message import PutResult
from rmqctl.errors import FormatError, RefusedError, StoreHeldError, StoreIOError
from rmqctl.ext.serve import server, source
from rmqctl.ext.serve.consuming import positions
from rmqctl.ext.serve.producing import delaying, opening, writing
from rmqctl.ext.serve.producing.writing import delivered
from rmqctl.ext.serve.remoting.client import Client, records
from rmqctl.ext.serve.remoting.command import Command, write_command
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.formats.local import properties
from rmqctl.formats.local.message import Record, magic_for, size_of
from tests.conftest import Runner
from tests.serve.running import Running, empty_store, serving
from tests.serve.test_groups import join

WRITABLE = ServeSettings(writable=True)


@pytest.fixture(params=["4.9.3", "5.3.3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return empty_store(tmp_path / "store", request.param)


@pytest.fixture
def served(root: Path) -> Iterator[Running]:
    with serving(root, settings=WRITABLE) as running:
        yield running


def sent(client: Client, topic: str, body: bytes, *, queue: int = 0, text: str = "", **more: Any
         ) -> Command:
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0,
              "g": int(time.time() * 1000), "h": 0, "i": text, "j": 0, "k": False, "m": False,
              **more}
    return client.ask("SEND_MESSAGE_V2", body, **fields)


def pulled(client: Client, topic: str, queue: int = 0) -> list[Record]:
    listed_records: list[Record] = []
    while (answer := client.pull(topic, queue, len(listed_records))).code == 0:
        listed_records += records(answer.body)
    return listed_records


def verified(rmqctl: Runner, root: Path) -> None:
    rmqctl("verify", str(root)).expect(0)


def test_what_is_sent_is_found_by_its_key_at_once(served: Running) -> None:
    with served.client() as client:
        for key in ("one", "two"):
            assert sent(client, "orders", key.encode(), text=f"KEYS\x01{key}").code == 0
            response = client.ask("QUERY_MESSAGE", topic="orders", key=key, maxNum=8,
                                  beginTimestamp=0, endTimestamp=1 << 62)
            assert response.code == 0, response.remark
            assert [record.body for record in records(response.body)] == [key.encode()]
        assert [record.body for record in pulled(client, "orders")] == [b"one", b"two"]


def test_a_topic_is_made_with_a_message_type(served: Running) -> None:
    def create_topic(attributes: str) -> Command:
        return client.ask("UPDATE_AND_CREATE_TOPIC", topic="fifo", readQueueNums=2,
                          writeQueueNums=2, perm=6, attributes=attributes)

    writer = served.brokers[0].writer
    assert writer is not None
    is_5 = writer.settings.version == "5.3.3"
    with served.client() as client:
        for refused in ("-message.type", "+queue.type=BatchCQ", "+message.type=NONE",
                        "message.type"):
            assert create_topic(refused).code == (1 if is_5 else 0)
        assert create_topic("+message.type=FIFO").code == 0
        config = client.ask("GET_TOPIC_CONFIG", topic="fifo").json()
        assert (config.get("topicConfig") or config).get("attributes", {}) == (
            {"message.type": "FIFO"} if is_5 else {})


def test_what_is_sent_can_be_pulled_at_once(served: Running, root: Path, rmqctl: Runner) -> None:
    bodies = [f"message {number}".encode() * (number % 40) for number in range(300)]
    with served.client() as client:
        for number, body in enumerate(bodies):
            answer = sent(client, "orders", body,
                          text=f"TAGS\x01T{number % 3}\x02KEYS\x01k{number}")
            assert (answer.code, answer.ext["queueOffset"]) == (0, str(number)), answer.remark
            assert answer.ext["TRACE_ON"] == "true"
        assert [record.body for record in pulled(client, "orders")] == bodies
        (last,) = records(client.pull("orders", 0, 299).body)
        parsed_properties = properties.parse(last.properties.decode())
        assert (parsed_properties["TAGS"], parsed_properties["CLUSTER"]) == ("T2", "DefaultCluster")
        assert client.ask("GET_MAX_OFFSET", topic="orders", queueId=0).ext["offset"] == "300"
        tagged = client.pull("orders", 0, 0, expression="T1")
        assert [record.queue_offset for record in records(tagged.body)] == list(range(1, 96, 3))
        assert client.ask("GET_ROUTEINFO_BY_TOPIC", topic="orders").json()["queueDatas"][0][
            "perm"] == 6
        refused = sent(client, "orders", b"x", queue=9)
        writer = served.brokers[0].writer
        assert writer is not None
        assert refused.code == (29 if writer.settings.profile.generation >= 5 else 1)
        assert sent(client, "no way", b"x").code == refused.code
        assert sent(client, "orders", bytes(5 << 20)).code == 13
    served.do(lambda: None)


def test_the_id_of_a_message_leads_to_it(served: Running) -> None:
    with served.client() as client:
        sent(client, "orders", b"first")
        answer = sent(client, "orders", b"second").ext["msgId"]
        host, port, offset = answer[:8], int(answer[8:16], 16), int(answer[16:], 16)
        assert (host, port) == ("7F000001", served.address.port)
        (record,) = records(client.ask("VIEW_MESSAGE_BY_ID", offset=offset).body)
        assert record.body == b"second"


def test_afterwards_the_store_is_one_that_was_shut_down(root: Path, rmqctl: Runner) -> None:
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        for number in range(50):
            sent(client, "orders", b"x" * 3000, queue=number % 4)
        client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="g", topic="orders", queueId=0,
                   commitOffset=5)
        with pytest.raises(StoreHeldError), serving(root, settings=WRITABLE):
            pass
    verified(rmqctl, root)
    assert not (root / "abort").exists()
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        assert sum(len(pulled(client, "orders", queue)) for queue in range(4)) == 50
        answer = client.ask("QUERY_CONSUMER_OFFSET", consumerGroup="g", topic="orders", queueId=0)
        assert answer.ext["offset"] == "5"
        assert sent(client, "orders", b"again").ext["queueOffset"] == "13"
    verified(rmqctl, root)


def test_a_batch_is_many_messages_of_one_queue(served: Running) -> None:
    def item(body: bytes, text: str) -> bytes:
        raw = text.encode()
        return struct.pack(">iiiii", 22 + len(body) + len(raw), 0, 0, 7, len(body)) + body + (
            struct.pack(">h", len(raw)) + raw)

    whole = b"".join(item(f"b{number}".encode(), f"TAGS\x01T{number}") for number in range(5))
    with served.client() as client:
        fields = {"a": "P", "b": "orders", "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 1, "h": 0,
                  "i": "", "m": True}
        answer = client.ask("SEND_BATCH_MESSAGE", whole, **fields)
        assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
        assert answer.ext["msgId"].count(",") == 4
        messages = pulled(client, "orders", 1)
        assert [(record.body, record.flag) for record in messages] == [
            (f"b{number}".encode(), 7) for number in range(5)]
        for end in range(1, len(whole) - 1, 7):
            assert client.ask("SEND_BATCH_MESSAGE", whole[:end], **fields).code in (0, 13)


def test_a_delayed_message_comes_when_it_is_due(root: Path, rmqctl: Runner) -> None:
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        begun = time.monotonic()
        assert sent(client, "orders", b"late", queue=2, text="DELAY\x011").code == 0
        assert sent(client, "orders", b"much later", queue=2, text="DELAY\x0118").code == 0
        assert pulled(client, "orders", 2) == []
        opaque = client.send("PULL_MESSAGE", ext={
            "consumerGroup": "g", "topic": "orders", "queueId": 2, "queueOffset": 0,
            "maxMsgNums": 32, "sysFlag": 6, "suspendTimeoutMillis": 15_000, "subscription": "*"})
        answer = client.receive()
        assert (answer.opaque, answer.code) == (opaque, 0)
        assert 0.8 < time.monotonic() - begun < 12
        (record,) = records(answer.body)
        assert (record.body, record.queue_id, record.queue_offset) == (b"late", 2, 0)
    verified(rmqctl, root)
    delays = rmqctl("config", str(root), "delay", "-o", "jsonl").jsonl()
    assert [(row["level"], row["offset"]) for row in delays] == [(1, 1)]
    with serving(root, settings=WRITABLE) as served:
        delays = served.brokers[0].delays
        assert delays is not None
        assert delays.done == {1: 1, 18: 0}


def test_what_is_sent_back_is_written(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with served.client() as client:
        sent(client, "orders", b"bad")
        join(client, "one", "orders")
        (first,) = pulled(client, "orders")
        assert client.ask("CONSUMER_SEND_MSG_BACK", offset=first.physical_offset, group="CG",
                          delayLevel=1).code == 0
        for _ in range(300):
            again = pulled(client, "%RETRY%CG")
            if again:
                break
            time.sleep(0.1)
        assert [(record.body, record.reconsume_times) for record in again] == [(b"bad", 1)]
        assert client.ask("CONSUMER_SEND_MSG_BACK", offset=again[0].physical_offset, group="CG",
                          delayLevel=-1).code == 0
        (dead,) = pulled(client, "%DLQ%CG")
        assert (dead.body, dead.reconsume_times) == (b"bad", 2)
        parsed_properties = properties.parse(dead.properties.decode())
        assert (parsed_properties["DELAY"], parsed_properties["WAIT"],
                parsed_properties["RETRY_TOPIC"]) == ("0", "false", "orders")
        assert parsed_properties["ORIGIN_MESSAGE_ID"] == first.message_id


def test_a_waiting_pull_gets_what_is_sent(served: Running) -> None:
    with served.client() as waiting, served.client() as sender:
        sent(sender, "orders", b"first")
        waiting.send("PULL_MESSAGE", ext={
            "consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": 1,
            "maxMsgNums": 32, "sysFlag": 6, "suspendTimeoutMillis": 15_000, "subscription": "A"})
        sent(sender, "orders", b"other", text="TAGS\x01B")
        begun = time.monotonic()
        sent(sender, "orders", b"wanted", text="TAGS\x01A")
        (record,) = records(waiting.receive().body)
        assert record.body == b"wanted"
        assert time.monotonic() - begun < 12  # it would wait for 15


def test_topics_are_made_and_changed(served: Running) -> None:
    with served.client() as client:
        fields = {"topic": "made", "defaultTopic": "TBW102", "readQueueNums": 3,
                  "writeQueueNums": 3, "perm": 6, "topicFilterType": "SINGLE_TAG",
                  "topicSysFlag": 0, "order": False}
        assert client.ask("UPDATE_AND_CREATE_TOPIC", **fields).code == 0
        route = client.ask("GET_ROUTEINFO_BY_TOPIC", topic="made").json()["queueDatas"][0]
        assert (route["readQueueNums"], route["writeQueueNums"], route["perm"]) == (3, 3, 6)
        assert client.ask("UPDATE_AND_CREATE_TOPIC", **{**fields, "topic": "TBW102"}).code == 1


def test_a_store_is_not_opened_anew_for_a_topic(served: Running, monkeypatch: pytest.MonkeyPatch
                                                ) -> None:
    monkeypatch.setattr(writing, "_SETTLE_S", 1e9)
    source = served.brokers[0].source
    with served.client() as client:
        sent(client, "first", b"x")
        before = source.store
        for number in range(5):
            assert sent(client, f"made{number}", b"x").code == 0
            assert len(pulled(client, f"made{number}")) == 1
        fields = {"topic": "made1", "defaultTopic": "TBW102", "readQueueNums": 9,
                  "writeQueueNums": 8, "perm": 4, "topicFilterType": "SINGLE_TAG"}
        assert client.ask("UPDATE_AND_CREATE_TOPIC", **fields).code == 0
        route = client.ask("GET_ROUTEINFO_BY_TOPIC", topic="made1").json()["queueDatas"][0]
        assert (route["readQueueNums"], route["writeQueueNums"], route["perm"]) == (9, 8, 4)
        table = client.ask("GET_ALL_TOPIC_CONFIG").json()["topicConfigTable"]
        assert (table["made1"]["perm"], table["made4"]["perm"]) == (4, 6)
        assert source.store is before


def test_messages_with_rows_of_another_kind_are_given_in_order(served: Running) -> None:
    with served.client() as client:
        texts = ["INNER_MULTI_DISPATCH\x01%LMQ%x", "", "TIMER_DELAY_SEC\x01-5", "",
                 "TIMER_DELIVER_MS\x011", ""]
        for number, text in enumerate(texts):
            assert sent(client, "orders", b"%d" % number, text=text).code == 0
        assert [(record.queue_offset, record.body) for record in pulled(client, "orders")] == [
            (number, b"%d" % number) for number in range(len(texts))]


def test_messages_for_a_certain_time_are_ordinary_ones_in_a_store_of_4x(served: Running) -> None:
    writer = served.brokers[0].writer
    assert writer is not None
    is_5 = writer.settings.profile.generation >= 5
    with served.client() as client:
        for text in ("TIMER_DELAY_SEC\x0160", "TIMER_DELAY_MS\x0160000\x02A\x01b",
                     f"TIMER_DELIVER_MS\x01{(int(time.time()) + 60) * 1000}"):
            answer = sent(client, "orders", b"timed", text=text)
            assert (answer.code, "recallHandle" in answer.ext) == (0, is_5)
        assert len(pulled(client, "orders")) == (0 if is_5 else 3)
        answer = client.ask("RECALL_MESSAGE", topic="orders", recallHandle="x")
        assert answer.code == (604 if is_5 else 3)


def test_what_was_just_sent_is_found_by_its_time(served: Running) -> None:
    (broker,) = served.brokers
    assert broker.writer is not None

    def at(when: int, kind: str = "LOWER") -> int:
        return int(client.ask("SEARCH_OFFSET_BY_TIMESTAMP", topic="orders", queueId=0,
                              timestamp=when, boundaryType=kind).ext["offset"])

    with served.client() as client:
        for number in range(6):
            sent(client, "orders", b"%d" % number)
            time.sleep(0.003)
            if number == 2:
                served.do(broker.writer.settle)
        assert broker.writer.queue(("orders", 0)) is not None
        times = [record.store_timestamp for record in pulled(client, "orders")]
        assert [at(when) for when in times] == [at(when, "UPPER") for when in times] == list(
            range(6))
        assert [at(when - 1) for when in times] == list(range(6))
        assert [at(when + 1, "UPPER") for when in times] == list(range(6))
        assert (at(0), at(times[-1] + 1), at(0, "UPPER"), at(1 << 60, "UPPER")) == (0, 6, 0, 5)
        # Java clients before 5.0 name no boundary: behind the end they get the last message.
        assert (at(0, ""), at(times[-1], ""), at(1 << 60, "")) == (0, 5, 5)


def test_only_the_next_delayed_messages_are_read(root: Path, monkeypatch: pytest.MonkeyPatch
                                                 ) -> None:
    monkeypatch.setattr(delaying, "_AT_ONCE", 40)
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        for number in range(100):
            sent(client, "orders", b"%d" % number, text="DELAY\x011", queue=number % 2)
        sent(client, "orders", b"late", text="DELAY\x0199")
        delays = served.brokers[0].delays
        assert delays is not None
        end = time.monotonic() + 30
        while delays.done.get(1) != 100 and time.monotonic() < end:
            time.sleep(0.05)
        assert delays.done == {1: 100}
        assert [[int(record.body) for record in pulled(client, "orders", queue)]
                for queue in (0, 1)] == [list(range(0, 100, 2)), list(range(1, 100, 2))]


def test_a_half_message_has_no_row_and_its_sender_an_answer(served: Running) -> None:
    with served.client() as client:
        assert sent(client, "orders", b"half", text="DELAY\x0199999999999", f=4).code == 0
        assert sent(client, "orders", b"half", f=4).code == 0
        assert sent(client, "orders", b"whole").code == 0
        assert [record.body for record in pulled(client, "orders")] == [b"whole"]


def test_a_waiting_pull_goes_on_behind_what_it_does_not_want(served: Running) -> None:
    with served.client() as waiting, served.client() as sender:
        sent(sender, "orders", b"first")
        (broker,) = served.brokers
        waiting.send("PULL_MESSAGE", ext={
            "consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": 1,
            "maxMsgNums": 32, "sysFlag": 6, "suspendTimeoutMillis": 15_000, "subscription": "A"})
        while not broker.waiting:
            time.sleep(0.01)
        held = broker.waiting.pop(("orders", 0))  # hears of nothing until all is there
        for _ in range(900):
            sender.send("SEND_MESSAGE_V2", b"other", ext={
                "a": "P", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0})
        sent(sender, "orders", b"wanted", text="TAGS\x01A")
        assert broker.writer is not None
        served.do(broker.writer.settle)
        broker.waiting["orders", 0] = held
        served.do(lambda: broker.arrived("orders", 0))
        begun = time.monotonic()
        (record,) = records(waiting.receive().body)
        assert record.body == b"wanted"
        assert time.monotonic() - begun < 12  # it would wait for 15


def test_delays_are_counted_when_the_message_is_in_its_queue(
        served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    (broker,) = served.brokers
    delays, writer = broker.delays, broker.writer
    assert delays is not None
    assert writer is not None
    with served.client() as client:
        assert sent(client, "orders", b"late", text="DELAY\x011").code == 0
        put = writer.engine.put_many
        monkeypatch.setattr(writer.engine, "put_many", lambda messages: [
            PutResult("SERVICE_NOT_AVAILABLE") for _ in messages])
        time.sleep(1.3)
        assert delays.done.get(1, 0) == 0
        monkeypatch.setattr(writer.engine, "put_many", put)
        end = time.monotonic() + 30
        while not delays.done.get(1) and time.monotonic() < end:
            time.sleep(0.05)
        assert delays.done[1] == 1
        (late,) = pulled(client, "orders")
        assert late.body == b"late"
        monkeypatch.setattr(type(writer), "is_busy", True)
        assert sent(client, "orders", b"no").code == 2


def test_a_delayed_message_that_names_no_queue_is_put_nowhere() -> None:
    def stored(text: str) -> Record:
        magic, host, raw = magic_for(b"t"), (bytes(4), 1), text.encode()
        return Record(size_of(0, magic, 1, 1, len(raw)), magic, 0, 0, 0, 0, 0, 0, 0, host, 0,
                      host, 0, 0, b"x", b"t", raw)

    good = delivered(stored("REAL_TOPIC\x01a\x02REAL_QID\x013"))
    assert good is not None
    assert (good.topic, good.queue_id) == (b"a", 3)
    for text in ("", "REAL_TOPIC\x01a\x02REAL_QID\x01\u00b2",
                 "REAL_TOPIC\x01../x\x02REAL_QID\x011",
                 "REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010",
                 "REAL_TOPIC\x01a\x02REAL_QID\x0199999999999"):
        assert delivered(stored(text)) is None


def test_positions_of_delays_are_kept_within_their_queues(root: Path) -> None:
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        for _ in range(2):
            sent(client, "orders", b"late", text="DELAY\x0118")
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{"18":99}}')
    with serving(root, settings=WRITABLE) as served:
        delays = served.brokers[0].delays
        assert delays is not None
        assert delays.done[18] == 2


def test_positions_stay_of_groups_that_begin_elsewhere(root: Path) -> None:
    file = root / "config" / "consumerOffset.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text('{"offsetTable":{"t@g":{"0":5,"1":6},"u@h":{"0":7}}}')
    elsewhere = ServeSettings(writable=True, start="earliest", stored=False)
    with serving(root, settings=elsewhere) as served, served.client() as client:
        client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="g", topic="t", queueId=1,
                   commitOffset=1)
    assert json.loads(file.read_text())["offsetTable"] == {"t@g": {"0": 5, "1": 1},
                                                           "u@h": {"0": 7}}


def stands_at(client: Client, offset: int, group: str = "g") -> None:
    assert client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup=group, topic="t", queueId=0,
                      commitOffset=offset).code == 0


def test_positions_are_written_while_clients_are_answered(root: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_SAVE_S", 0.02)
    begun, go_on = threading.Event(), threading.Event()
    real = opening.publish
    writes: list[str] = []

    def slow(path: str, data: bytes, *, store: str) -> None:
        writes.append(path)
        begun.set()
        assert go_on.wait(10)
        real(path, data, store=store)

    monkeypatch.setattr(opening, "publish", slow)
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        stands_at(client, 1)
        assert begun.wait(10)
        stands_at(client, 2)
        stands_at(client, 7, "h")
        time.sleep(0.1)
        assert len(writes) == 1  # one at a time
        threading.Timer(0.1, go_on.set).start()
    # The end waits for what is under way, and then writes by itself.
    assert json.loads((root / "config" / "consumerOffset.json").read_text())["offsetTable"] == {
        "t@g": {"0": 2}, "t@h": {"0": 7}}


def test_positions_that_were_written_here_are_not_read_again(
        root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    for module in (opening, source):
        real = module.load_one
        monkeypatch.setattr(module, "load_one", lambda store, name, real=real: (
            read.append(name), real(store, name))[1])  # type: ignore[func-returns-value]
    file = root / "config" / "consumerOffset.json"
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        read.clear()
        for number in range(3):
            stands_at(client, number)
            served.do(served.server._save)
            sent(client, "T", b"")
            served.do(served.brokers[0].writer.settle)  # type: ignore[union-attr]
        assert read.count(file.name) == 1
        assert "g" in served.brokers[0].source.groups
        assert b'"0":1\n' in file.with_name(f"{file.name}.bak").read_bytes()
        file.write_text("[")  # by somebody else
        stands_at(client, 9)
        write = served.server.save()
        assert write is not None
        with pytest.raises(RefusedError):
            write()
        assert served.brokers[0].positions.changed
        file.unlink()


def test_positions_that_could_not_be_written_are_written_later(
        root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "positions.json"
    with serving(root, settings=ServeSettings(writable=True, offsets=str(file))) as served:
        with served.client() as client:
            client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="g", topic="t", queueId=0,
                       commitOffset=5)

        def full(_path: str, _data: bytes) -> None:
            raise StoreIOError("no space left")

        monkeypatch.setattr(positions, "replace_file", full)
        write = served.server.save()
        assert write is not None
        with pytest.raises(StoreIOError):
            write()
        monkeypatch.undo()
    assert json.loads(file.read_text())[f"broker-a {root}"]["offsetTable"] == {"t@g": {"0": 5}}
    assert b"t@g" in (root / "config" / "consumerOffset.json").read_bytes()
    file.write_text(json.dumps({f"broker-a {root}": {"offsetTable": {"t@g": {"0": 1e999}}}}))
    with pytest.raises(FormatError), serving(root, settings=ServeSettings(offsets=str(file))):
        pass


def test_answers_of_one_turn_come_together_and_in_order(served: Running,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    real = os.writev

    def writev(fd: int, parts: list[bytes]) -> int:
        given.append(len(parts))
        return real(fd, parts)

    monkeypatch.setattr(os, "writev", writev)
    with served.client() as client:
        assert sent(client, "orders", b"first").code == 0
        del given[:]
        fields = {"a": "P", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0,
                  "j": 0}
        asked = b"".join(write_command(Command(310, number, 0, {
            name: str(value) for name, value in fields.items()}, body=b"x" * number))
            for number in range(100, 140))
        client.socket.sendall(asked)
        answers = [client.receive() for _ in range(40)]
        assert [answer.opaque for answer in answers] == list(range(100, 140))
        assert [answer.ext["queueOffset"] for answer in answers] == [
            str(number) for number in range(1, 41)]
    assert sum(given) == 40
    assert len(given) < 10


def test_where_one_store_cannot_be_opened_the_others_are_closed(root: Path) -> None:
    other = root.parent / "other"
    create_store(other, StoreSettings(commitlog_file_size=1 << 16))
    (other / "config").mkdir(exist_ok=True)
    for name in ("topics.json", "topics.json.bak"):
        (other / "config" / name).write_bytes(b"{")
    with pytest.raises(RefusedError) as refused, serving(root, other, settings=WRITABLE):
        pass
    assert "topics.json" in str(refused.value)
    with serving(root, settings=WRITABLE):  # its lock is free again
        pass
