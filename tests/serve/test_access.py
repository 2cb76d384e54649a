"""Keys: who signs is answered, others are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.errors import UsageError
from rmqctl.ext.serve.access import Access, read_keys
from rmqctl.ext.serve.remoting.codes import CODE_OF
from rmqctl.ext.serve.remoting.command import Command, write_command
from rmqctl.ext.serve.remoting.signing import signature
from rmqctl.ext.serve.serving import ServeSettings
from tests.conftest import GoldenFolder, Runner
from tests.serve.running import serving
from tests.serve.test_pull import expected

EXCEPTION = "org.apache.rocketmq.acl.common.AclException"
KEYS = ("RocketMQ", "12345678")


def test_the_signature_is_the_one_of_java() -> None:
    # openssl dgst -sha1 -hmac 12345678 -binary | base64, of "RocketMQ" "7" "Topic" and the body
    ext = {"topic": "Topic", "queueId": "7", "AccessKey": "RocketMQ", "Signature": "old",
           "_UNIQUE_KEY_QUERY": "true"}
    older = b"hxM11I4rUey+RUw+Hj87dE0S1h0="
    assert signature(ext, b"body", "12345678") == older
    assert signature(ext, b"body", "12345678", 399) == older
    # the same of "RocketMQ" "true" "7" "Topic", as from 4.9.4 on
    assert signature(ext, b"body", "12345678", 400) == b"uPyWCMnDGnov3J5a3GcWaskIlaY="


def test_only_who_signs_is_answered(golden: GoldenFolder) -> None:
    store = golden("5.3.3/basic") / "store"
    (topic, queue_id), wanted = next(iter(expected(store).items()))
    with serving(store, settings=ServeSettings(access=Access(dict([KEYS])))) as served:
        with served.client(keys=KEYS) as client:
            assert client.ask("HEART_BEAT", {"clientID": "c", "consumerDataSet": []}).code == 0
            assert client.pull(topic, queue_id, 0).body == b"".join(wanted[:32])
        for keys, remark in ((None, "No accessKey is configured"),
                             (("nobody", "x"), "No acl config for nobody"),
                             (("RocketMQ", "x"), "Check signature failed for accessKey=RocketMQ")):
            with served.client(keys=keys) as client:
                for refused in (client.pull(topic, queue_id, 0), client.ask(9999)):
                    assert (refused.code, refused.body) == (1, b"")
                    assert refused.remark == f"{EXCEPTION}: {remark}"
                assert client.ask("GET_ROUTEINFO_BY_TOPIC", topic=topic).code == 0


def test_what_is_changed_on_the_way_is_refused(golden: GoldenFolder) -> None:
    store = golden("5.3.3/basic") / "store"
    ext = {"topic": "a", "queueId": "0", "AccessKey": KEYS[0]}
    text = signature(ext, b"", KEYS[1]).decode()
    with serving(store, settings=ServeSettings(access=Access(dict([KEYS])))) as served, (
            served.client()) as client:
        answers = [client.ask("GET_MAX_OFFSET", body, **{**ext, "Signature": given, **other}).code
                   for body, given, other in (
                       (b"", text, {}), (b"x", text, {}), (b"", text, {"queueId": "1"}),
                       (b"", text, {"more": "1"}), (b"", text[:-1], {}), (b"", "é", {}))]
    assert answers == [0, 1, 1, 1, 1, 1]


def test_clients_sign_what_their_version_signs(golden: GoldenFolder) -> None:
    store = golden("5.3.3/basic") / "store"
    ext = {"topic": "a", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1",
           "_UNIQUE_KEY_QUERY": "true", "AccessKey": KEYS[0]}
    with serving(store, settings=ServeSettings(access=Access(dict([KEYS])))) as served, (
            served.client()) as client:
        remarks = {}
        for number in (399, 400):
            for signed in (399, 400):
                text = signature(ext, b"", KEYS[1], signed).decode()
                client.socket.sendall(write_command(Command(
                    CODE_OF["QUERY_MESSAGE"], 1, 0, {**ext, "Signature": text}, version=number)))
                remarks[number, signed] = "signature" in client.receive().remark
    assert remarks == {(399, 399): False, (399, 400): True, (400, 399): True, (400, 400): False}


def test_key_files(tmp_path: Path) -> None:
    good, other = tmp_path / "good", tmp_path / "other"
    good.write_text("# a client's\nAccessKey = user \nSecretKey=se=cret\n")
    other.write_text("AccessKey=user\nSecretKey=another\n")
    access = read_keys([str(good)])
    assert access.secrets == {"user": "se=cret"}
    assert "cret" not in repr(access)
    with pytest.raises(UsageError, match="different secret"):
        read_keys([str(good), str(other)])
    for text in ("", "AccessKey=user\n", "AccessKey=\nSecretKey=x\n", "AccessKey=\\u12\n",
                 "AccessKey=user\nSecretKey=x\n" + "#" * 70_000):
        other.write_text(text)
        with pytest.raises(UsageError) as caught:
            read_keys([str(other)])
        assert "=x" not in str(caught.value)


def test_a_file_without_keys_is_refused(rmqctl: Runner, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("nothing")
    done = rmqctl("serve", "--temp", "--idle-exit", "1", "--key-file", str(tmp_path / "keys"))
    assert done.code == 2
    assert "not a key file" in done.err
