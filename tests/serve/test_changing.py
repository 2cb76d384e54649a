"""Groups and values that tools or members bring into a server that is open for writing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.store import Sizes
from rmqctl.store.broker_conf import BrokerConf
from tests.conftest import Runner
from tests.serve.running import Running, empty_store, serving
from tests.serve.test_groups import join
from tests.serve.test_writable import sent

WRITABLE = ServeSettings(writable=True)


@pytest.fixture(params=["4.9.3", "5.3.3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return empty_store(tmp_path / "store", request.param)


@pytest.fixture
def served(root: Path) -> Iterator[Running]:
    with serving(root, settings=WRITABLE) as running:
        yield running


def table(root: Path, file: str, name: str) -> dict[str, dict[str, object]]:
    content: dict[str, dict[str, object]] = json.loads((root / "config" / file).read_text())[name]
    return content


def test_groups_that_come_stand_in_the_configuration_as_a_broker_writes_them(
        root: Path, rmqctl: Runner) -> None:
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        join(client, "c1", "orders", group="orders-app")
        join(client, "c1", "orders", group="no name for a topic")
    groups = table(root, "subscriptionGroup.json", "subscriptionGroupTable")
    assert list(groups) == ["orders-app"]
    assert groups["orders-app"]["retryMaxTimes"] == 16
    version = json.loads((root / ".rmqctl" / "store.json").read_text())["version"]
    assert ("groupRetryPolicy" in groups["orders-app"]) == (version == "5.3.3")
    retry = table(root, "topics.json", "topicConfigTable")["%RETRY%orders-app"]
    assert (retry["readQueueNums"], retry["writeQueueNums"], retry["perm"]) == (1, 1, 6)
    rmqctl("verify", str(root)).expect(0)


def test_groups_are_made_changed_and_deleted(served: Running, root: Path) -> None:
    with served.client() as client:
        body = json.dumps({"groupName": "g", "retryMaxTimes": 3, "retryQueueNums": "many",
                           "of": "others"}).encode()
        assert client.ask("UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", body).code == 0
        answer = client.ask("GET_SUBSCRIPTIONGROUP_CONFIG", group="g").json()
        assert (answer["retryMaxTimes"], answer["retryQueueNums"]) == (3, 1)
        assert "of" not in table(root, "subscriptionGroup.json", "subscriptionGroupTable")["g"]
        for wrong in (b"[]", b"{}", b'{"groupName": "a b"}', b'{"groupName": 5}', b"\xff"):
            assert client.ask("UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", wrong).code == 1
        assert client.ask("DELETE_SUBSCRIPTIONGROUP", groupName="g").code == 0
        assert client.ask("DELETE_SUBSCRIPTIONGROUP", groupName="g").code == 0
        assert table(root, "subscriptionGroup.json", "subscriptionGroupTable") == {}


def test_several_groups_are_made_at_once(served: Running, root: Path) -> None:
    with served.client() as client:
        assert client.ask("UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST", {"groupConfigList": [
            {"groupName": name, "retryMaxTimes": 2} for name in ("g", "h")]}).code == 0
        assert client.ask("GET_SUBSCRIPTIONGROUP_CONFIG", group="h").json()["retryMaxTimes"] == 2
    assert list(table(root, "subscriptionGroup.json", "subscriptionGroupTable")) == ["g", "h"]


def test_topics_without_messages_are_deleted(served: Running, root: Path) -> None:
    with served.client() as client:
        for name in ("T", "kept"):
            assert client.ask("UPDATE_AND_CREATE_TOPIC", topic=name, readQueueNums=1,
                              writeQueueNums=1, perm=6).code == 0
        sent(client, "kept", b"body")
        for name, code in (("T", 0), ("kept", 1), ("none", 0), ("TBW102", 1)):
            assert client.ask("DELETE_TOPIC_IN_BROKER", topic=name).code == code
        for name, code in (("T", 0), ("kept", 1)):
            assert client.ask("DELETE_TOPIC_IN_NAMESRV", topic=name).code == code
        assert client.ask("GET_ROUTEINFO_BY_TOPIC", topic="T").code == 17
        assert client.pull("kept", 0, 0).code == 0
    assert list(table(root, "topics.json", "topicConfigTable")) == ["kept"]


def test_routes_say_that_nothing_can_be_sent(served: Running) -> None:
    with served.client() as client:
        sent(client, "T", b"")

        def perm() -> int:
            route: int = client.ask("GET_ROUTEINFO_BY_TOPIC", topic="T").json()[
                "queueDatas"][0]["perm"]
            return route

        assert perm() == 6
        assert client.ask("WIPE_WRITE_PERM_OF_BROKER", brokerName="broker-a").ext == {
            "wipeTopicCount": str(len(served.brokers[0].topics))}
        assert perm() == 4
        assert client.ask("ADD_WRITE_PERM_OF_BROKER", brokerName="none").ext == {
            "addTopicCount": "0"}
        assert client.ask("ADD_WRITE_PERM_OF_BROKER", brokerName="broker-a").code == 0
        assert perm() == 6


def test_positions_of_a_broker_for_light_groups(root: Path) -> None:
    file = root / "config" / "lmqConsumerOffset.json"
    file.write_text('{"lmqOffsetTable":{"%LMQ%a@%LMQ%G":5},"offsetTable":{"T@g":{0:3}}}')
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        for group, name, before in (("%LMQ%G", "%LMQ%a", 5), ("g", "T", 3)):
            where: dict[str, Any] = {"consumerGroup": group, "topic": name, "queueId": 0}
            assert client.ask("QUERY_CONSUMER_OFFSET", **where).ext["offset"] == str(before)
            assert client.ask("UPDATE_CONSUMER_OFFSET", commitOffset=7, **where).code == 0
    assert json.loads(file.read_text()) == {
        "lmqOffsetTable": {"%LMQ%a@%LMQ%G": 7}, "offsetTable": {"T@g": {"0": 7}}}
    assert table(root, "consumerOffset.json", "offsetTable") == {
        "%LMQ%a@%LMQ%G": {"0": 7}, "T@g": {"0": 7}}


def test_values_of_the_name_server(served: Running) -> None:
    with served.client() as client:
        assert client.ask("PUT_KV_CONFIG", namespace="n", key="k", value="v").code == 0
        assert client.ask("GET_KV_CONFIG", namespace="n", key="k").ext == {"value": "v"}
        assert client.ask("GET_KVLIST_BY_NAMESPACE", namespace="n").json() == {
            "table": {"k": "v"}}
        assert client.ask("PUT_KV_CONFIG", namespace="n", key="k", value="v" * 5000).code == 2
        assert client.ask("DELETE_KV_CONFIG", namespace="n", key="k").code == 0
        assert client.ask("GET_KV_CONFIG", namespace="n", key="k").code == 22
        assert client.ask("DELETE_KV_CONFIG", namespace="other", key="k").code == 0


def test_who_reads_alone_changes_nothing(root: Path) -> None:
    with serving(root) as served, served.client() as client:
        join(client, "c1", "orders", group="g")
        body = b'{"groupName": "g"}'
        assert client.ask("UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", body).code == 16
        assert client.ask("PUT_KV_CONFIG", namespace="n", key="k", value="v").code == 16
    assert not (root / "config" / "subscriptionGroup.json").exists()


def test_settings_of_the_broker_that_count_here(served: Running) -> None:
    with served.client() as client:
        def change(text: str) -> tuple[int, str | None]:
            answer = client.ask("UPDATE_BROKER_CONFIG", text.encode())
            return answer.code, answer.remark

        def shown() -> str:
            return bytes(client.ask("GET_BROKER_CONFIG").body).decode()

        assert change("autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\n")[0] == 0
        assert "autoCreateTopicEnable=false\n" in shown()
        assert sent(client, "new", b"x").code == 17
        assert change("autoCreateTopicEnable=true")[0] == 0
        assert "autoCreateSubscriptionGroup=false\nautoCreateTopicEnable=true\n" in shown()
        assert sent(client, "new", b"x").code == 0
        # Nothing of it is done where something is refused.
        for text, words in (("autoCreateTopicEnable=false\nfileReservedTime=1\n",
                             "rmqctl serve cannot change fileReservedTime"),
                            ("autoCreateTopicEnable=no", "expected true or false")):
            code, remark = change(text)
            assert code == 1
            assert words in (remark or "")
        assert "autoCreateTopicEnable=true" in shown()
        assert change("")[0] == 0


@pytest.mark.parametrize("hours", [1, 72, 100])
def test_files_expire_by_the_brokers_own_setting(tmp_path: Path, hours: int) -> None:
    root = empty_store(tmp_path / "store")
    conf = Sizes(conf=BrokerConf(runtime={"fileReservedTime": hours}))
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        for number in range(40):
            sent(client, "U", b"%d" % number * 4000)
    first, before = min((root / "commitlog").iterdir()), time.time() - 80 * 3600
    os.utime(first, (before, before))
    with serving(root, settings=WRITABLE, sizes=conf) as served, served.client() as client:
        answer = client.ask("DELETE_EXPIRED_COMMITLOG")
        assert answer.code == (0 if hours == 100 else 1)
        assert hours == 100 or f"--older-than {hours}h" in (answer.remark or "")
        assert f"fileReservedTime={hours}\n" in bytes(
            client.ask("GET_BROKER_CONFIG").body).decode()


def test_what_a_broker_would_delete_is_refused_by_name(tmp_path: Path) -> None:
    root = empty_store(tmp_path / "store")
    asked = ("CLEAN_EXPIRED_CONSUMEQUEUE", "CLEAN_UNUSED_TOPIC", "DELETE_EXPIRED_COMMITLOG",
             "POP_ROLLBACK")
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        sent(client, "T", b"x")
        for number in range(40):
            sent(client, "U", b"%d" % number * 4000)
        assert [client.ask(name).code for name in asked] == [0, 0, 0, 0]
    # Old log files, a queue that only leads to expired ones, a topic without configuration.
    log = sorted((root / "commitlog").iterdir())
    log[0].unlink()
    os.utime(log[1], (0, 0))
    (root / "consumequeue" / "U").rename(root / "consumequeue" / "lost")
    (root / "kvStore").mkdir()
    (root / "kvStore" / "CURRENT").write_text("MANIFEST-000001\n")
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
        answers = [client.ask(name) for name in asked]
        assert [answer.code for answer in answers] == [1, 1, 1, 1]
        for answer, words in zip(answers, (
                "T (queue 0)", "lost", "rmqctl expire", "kvStore"), strict=True):
            assert words in (answer.remark or "")
        assert {path: path.stat().st_mtime_ns for path in root.rglob("*")
                if path.is_file()} == before
    with serving(root) as served, served.client() as client:
        assert [client.ask(name).code for name in asked] == [16, 16, 16, 16]
