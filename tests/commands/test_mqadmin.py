"""mqadmin's words: aliases that lead to commands which change nothing, and exportMetadata."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqctl.commands import REGISTRY
from rmqctl.commands.app.aliases import ALIASES
from tests.conftest import GoldenFolder, Runner
from tests.support import tiny as tiny_stores

SPECS = {spec.name: spec for spec in REGISTRY}
KEY = "FD52233BA9584B85BFF9D73797E687CB"
TOPICS = {
    "orders": {"topicName": "orders", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
               "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
               "attributes": {}},
    **{name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
       for name in ("%RETRY%billing", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "DefaultCluster",
                    "DefaultCluster_REPLY_TOPIC")},
}
GROUPS = {name: {"groupName": name, "consumeEnable": True, "retryQueueNums": 1}
          for name in ("billing", "CID_RMQ_SYS_TRANS", "TOOLS_CONSUMER")}


@pytest.mark.parametrize("alias", ALIASES.values(), ids=lambda alias: alias.name)
def test_an_alias_is_hidden_and_changes_nothing(alias, rmqctl: Runner) -> None:
    assert SPECS[alias.command].effect == "read-only"
    assert (alias.name,) not in SPECS
    assert f"\n  {alias.name} " not in rmqctl("--help").expect(0).out
    assert rmqctl(alias.name, "--help").expect(0).out.startswith(f"Usage: rmqctl {alias.name}")


@pytest.mark.parametrize(("mqadmin", "ours"), [
    (f"queryMsgById S -i {KEY}", f"query id S {KEY}"),
    (f"queryMsgByUniqueKey S -t TP_fraud_Topic -i {KEY}",
     f"query id S {KEY} --unique --topic TP_fraud_Topic"),
    (f"querymsgbyuniquekey S --msgId={KEY}", f"query id S {KEY} --unique"),
    ("queryMsgByKey S -t TP_fraud_Topic -k hot -m 2 -b 0 -e 9223372036854775807",
     "query key S --topic TP_fraud_Topic --key hot --limit 2"),
    ("queryMsgByOffset S -t TP_fraud_Topic -i 0 -o 10",
     "query offset S --topic TP_fraud_Topic --queue 0 10"),
    ("printMsg S -t TP_fraud_Topic -b 2024-06-21#19:52:01:107 -e 2024-06-21#19:52:01:107",
     "read S --topic TP_fraud_Topic --since 1718999521107 --until 1718999521107"),
    ("consumerProgress S -t TP_fraud_Topic", "offsets S --topic TP_fraud_Topic"),
    ("topicStatus S -t TP_fraud_Topic", "offsets S --topic TP_fraud_Topic"),
    ("topics S", "config S topics"),
    ("ls S", "info S"),
])
def test_mqadmins_words_do_what_ours_do(golden: GoldenFolder, rmqctl: Runner, mqadmin: str,
                                        ours: str) -> None:
    root = golden("5.3.3/basic/store")
    said = [rmqctl(*(root if word == "S" else word for word in words.split()), "--output", "json")
            for words in (mqadmin, ours)]
    assert (said[0].code, said[0].out) == (said[1].code, said[1].out)
    json.loads(said[0].out)


@pytest.mark.parametrize(("words", "said"), [
    ("queryMsgByld S -i 1", "Did you mean 'queryMsgById'"),
    ("queryMsgById S -i", "requires an argument"),
    ("queryMsgById -n localhost:9876 -i 1", "no name server"),
    ("updateTopic S", "No such command"),
    ("deleteTopic S", "No such command"),
])
def test_what_is_no_alias(rmqctl: Runner, words: str, said: str) -> None:
    assert said in rmqctl(*words.split()).expect(2).err


def configured(tiny: tiny_stores.Tiny) -> Path:
    for name, table, value in (("topics", "topicConfigTable", TOPICS),
                               ("subscriptionGroup", "subscriptionGroupTable", GROUPS)):
        (tiny.root / "config" / f"{name}.json").write_text(json.dumps({table: value}))
    return tiny.root


def test_exported_metadata_has_mqadmins_shape(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    root = configured(tiny)
    whole = rmqctl("exportMetadata", root).expect(0).json()
    assert set(whole) == {"topicConfigTable", "subscriptionGroupTable", "exportTime"}
    assert whole["topicConfigTable"] == {"orders": TOPICS["orders"]}
    assert whole["subscriptionGroupTable"] == {"billing": GROUPS["billing"]}
    topics = rmqctl("exportMetadata", root, "-t", "-s").expect(0).json()
    assert set(topics) == {"topicConfigTable", "exportTime"}
    assert set(topics["topicConfigTable"]) == {"orders", "%RETRY%billing"}
    assert set(rmqctl("exportMetadata", root, "-g").expect(0).json()) == {
        "subscriptionGroupTable", "exportTime"}
    rmqctl("config", root, "topics", "--special").expect(2)


def test_recover_takes_what_was_exported(tiny: tiny_stores.Tiny, rmqctl: Runner,
                                         tmp_path: Path) -> None:
    root, kept = configured(tiny), tmp_path / "metadata.json"
    kept.write_text(rmqctl("exportMetadata", root).expect(0).out)
    for name in ("topics.json", "subscriptionGroup.json"):
        (root / "config" / name).write_bytes(b"\0" * 100)
        (root / "config" / f"{name}.bak").unlink(missing_ok=True)
    assert "no JSON" in rmqctl("exportMetadata", root).expect(1).err
    rmqctl("recover", root, "--from", kept, "--apply").expect(0, 1)
    again = rmqctl("exportMetadata", root).expect(0).json()
    assert again["topicConfigTable"]["orders"] == TOPICS["orders"]
    assert again["subscriptionGroupTable"]["billing"]["groupName"] == "billing"
