"""mqadmin's words: aliases that lead to commands which change nothing, and exportMetadata."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from rmqctl.commands import REGISTRY
from rmqctl.commands.app.aliases import _WITHOUT, ALIASES
from tests.conftest import GoldenFolder, Runner
from tests.support import tiny as tiny_stores
from tests.test_docs import DOCS, unknown

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


#: What operators type most.
WORDS = """topicList topicRoute topicStatus brokerStatus statsAll clusterList
queryMsgById queryMsgByKey queryMsgByUniqueKey queryMsgByOffset queryCq
printMsg printMsgByQueue consumeMessage consumerProgress brokerConsumeStats
getBrokerConfig resetOffsetByTime cloneGroupOffset exportMetadata
updateTopic deleteTopic updateSubGroup sendMessage""".split()


@pytest.mark.parametrize("alias", ALIASES.values(), ids=lambda alias: alias.name)
def test_an_alias_is_hidden_and_changes_nothing(alias, rmqctl: Runner) -> None:
    assert (alias.name,) not in SPECS
    assert f"\n  {alias.name} " not in rmqctl("--help").expect(0).out
    if alias.says is None:
        assert SPECS[alias.command].effect == "read-only"
        assert rmqctl(alias.name, "--help").expect(0).out.startswith(f"Usage: rmqctl {alias.name}")


@pytest.mark.parametrize("alias",
                         [aliase for aliase in ALIASES.values() if aliase.says is not None],
                         ids=lambda alias: alias.name)
def test_an_answer_is_one_sentence_with_a_command_that_exists(alias, rmqctl: Runner) -> None:
    for typed in ((), ("-n", "localhost:9876"), ("S", "--namesrvAddr=localhost:9876")):
        error, command = rmqctl(alias.name.upper(), *typed).expect(2).err.splitlines()
        assert error == f"rmqctl: error: {alias.says}; run:"
        line = command.removeprefix("  rmqctl ")
        assert unknown(line) is None
        assert ("S" if "S" in typed else "STORE") in line.split()
        assert "localhost" not in line


def test_a_long_answer_stays_one_command_on_a_narrow_terminal(rmqctl: Runner) -> None:
    """Its first line alone would write a message without its key."""
    words = ("sendMessage", "S", "-t", "orders", "-p", "a  body of some length", "-k", "key-17",
             "-c", "tag", "-i", "3")
    wide = rmqctl(*words).expect(2).err.splitlines()[1:]
    narrow = rmqctl(*words, env={"COLUMNS": "50"}).expect(2).err.partition("run:\n")[2]
    assert len(narrow.splitlines()) > 1
    assert shlex.split(narrow.replace("\\\n", "")) == shlex.split(*wide)


@pytest.mark.parametrize("word", WORDS)
def test_mqadmins_words_are_known(word: str) -> None:
    assert ALIASES[word.lower()].name == word


@pytest.mark.parametrize(("mqadmin", "ours"), [
    ("updateTopic S -n h:1 -c C -t orders -r 3 -w 2 -p 6 -o true -a +message.type=FIFO",
     ("topic create S orders --read-queues 3 --write-queues 2 --perm 6 --order "
      "--attribute message.type=FIFO")),
    ("updateTopicPerm S -b h:2 -t TopicTest -p 4", "topic create S TopicTest --perm 4"),
    ("sendMessage S -t TopicTest -p 'a b' -k k1 -c A -b broker-a -i 1 -m true",
     "write S --topic TopicTest --body 'a b' --key k1 --tag A --queue 1"),
    ("resetOffsetByTime S -g billing -t TopicTest -s now -f true -c C -q 0",
     "offsets reset S --group billing --topic TopicTest --time now --queue 0"),
    ("skipAccumulatedMessage S -g billing -t TopicTest -f true",
     "offsets reset S --group billing --topic TopicTest --to latest"),
    ("deleteExpiredCommitLog S -n h:1 -c C", "expire S --older-than 72h"),
    ("topicRoute S -t TopicTest -l", "config S topics"),
    ("clusterList S -m -i 3", "info S"),
    ("deleteTopic S -t TopicTest -c C", "delete topic S TopicTest"),
    ("getConsumerConfig S -g billing", "config S groups"),
    ("exportMetadataInRocksDB S -t topics -j true", "config S topics --output json"),
])
def test_an_answer_can_be_typed(tiny: tiny_stores.Tiny, rmqctl: Runner, mqadmin: str,
                                ours: str) -> None:
    root = configured(tiny)
    (root / "config" / "consumerOffset.json").write_text(
        json.dumps({"offsetTable": {"TopicTest@billing": {"0": 0}}}))
    stderr = rmqctl(*(root if word == "S" else word for word in shlex.split(mqadmin))).expect(2).err
    words = shlex.split(stderr.partition("; run:\n  rmqctl ")[2])
    assert [("S" if word == str(root) else word) for word in words] == shlex.split(ours)
    plan = ["--dry-run"] if "--dry-run" in rmqctl("help", "options", *words).out else []
    rmqctl(*words, *plan).expect(0)


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
    ("topicStatus S -n h:1 -c C -t TP_fraud_Topic", "offsets S --topic TP_fraud_Topic"),
    ("queryMsgByKey S -n h:1 -c C -t TP_fraud_Topic -k hot -m 2",
     "query key S --topic TP_fraud_Topic --key hot --limit 2"),
    ("queryMsgByOffset S -t TP_fraud_Topic -b broker-a -i 0 -o 10",
     "query offset S --topic TP_fraud_Topic --queue 0 10"),
    ("queryCq S -b h:2 -t TP_fraud_Topic -q 0 -i 24 -c 3 -g billing",
     ("read S --topic TP_fraud_Topic --queue 0 --offset 24 --limit 3 --fields "
      "queue_offset,physical_offset,total_size,tags,store_timestamp")),
    ("printMsgByQueue S -t TP_fraud_Topic -a broker-a -i 3 -c GBK -s '*' -d false -p true -f false",
     "read S --topic TP_fraud_Topic --queue 3 --tag '*' --body none"),
    ("consumeMessage S -t TP_fraud_Topic -b broker-a -i 0 -o 24 -c 3 -g billing",
     "read S --topic TP_fraud_Topic --queue 0 --offset 24 --limit 3"),
    ("consumerProgress S -n h:1 -t TP_fraud_Topic -s true", "offsets S --topic TP_fraud_Topic"),
    ("brokerConsumeStats S -b h:2 -t 3000 -l 1 -o false", "offsets S"),
    ("brokerStatus S -b h:2", "info S"),
    ("statsAll S -n h:1 -a -t TP_fraud_Topic", "stats S --by topic --topic TP_fraud_Topic"),
    ("topicList S -n h:1 -c", "config S topics"),
    ("checkRocksdbCqWriteProgress S -n h:1 -c C -t TP_fraud_Topic",
     "verify S --only consumequeue"),
    ("topics S", "config S topics"),
    ("ls S", "info S"),
])
def test_mqadmins_words_do_what_ours_do(golden: GoldenFolder, rmqctl: Runner, mqadmin: str,
                                        ours: str) -> None:
    root = golden("5.3.3/basic/store")
    runs = [rmqctl(*(root if word == "S" else word for word in shlex.split(words)),
                   "--output", "json") for words in (mqadmin, ours)]
    assert (runs[0].code, runs[0].out) == (runs[1].code, runs[1].out)
    json.loads(runs[0].out)


def test_every_word_on_the_page_is_known() -> None:
    """The tables of the page have all commands of mqadmin in their first column."""
    page = (DOCS / "reference" / "mqadmin.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    words = {word for row in rows for word in re.findall(r"`([A-Za-z]+)", row)}
    assert len(words) > 90
    assert {word for word in words if word.lower() not in ALIASES | _WITHOUT} == set()


def test_a_file_needs_no_store(golden: GoldenFolder, rmqctl: Runner) -> None:
    path = golden("5.3.3/basic/store") / "checkpoint"
    outputs = [rmqctl(*words, "-o", "json").expect(0).out
               for words in (("dumpCompactionLog", "-f", path), ("dump", path))]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(("words", "expected_text"), [
    ("queryMsgByld S -i 1", "Did you mean 'queryMsgById'"),
    ("queryMsgById S -i", "requires an argument"),
    ("queryMsgById -n localhost:9876 -i 1", "name a store, or set RMQCTL_STORE"),
    ("updateTopic S -t T -a -message.type", "can only set attributes"),
    ("exportMetadata S -f /tmp", "run:\n  rmqctl exportMetadata STORE > metadata.json\n"),
    ("printMsgByQueue S -t T -i 0 -f true", "run:\n  rmqctl stats STORE --by tag --topic TOPIC\n"),
    ("wipewriteperm -b broker-a", "no counterpart to mqadmin's wipeWritePerm: it needs a running"),
    ("frobnicate S", "No such command"),
])
def test_what_is_no_alias(rmqctl: Runner, words: str, expected_text: str) -> None:
    assert expected_text in rmqctl(*words.split()).expect(2).err


def test_what_has_no_effect_is_named_once_and_not_with_quiet(golden: GoldenFolder,
                                                              rmqctl: Runner) -> None:
    words = ("brokerStatus", golden("5.3.3/basic/store"), "-n", "h:1", "-b", "h:2", "-n", "h:3")
    note = "rmqctl: ignored (no effect on a store): -n, -b\n"
    assert rmqctl(*words).expect(0).err.startswith(note)
    assert "ignored" not in rmqctl(*words, "-q").expect(0).err


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
    assert "instead of JSON" in rmqctl("exportMetadata", root).expect(1).err
    rmqctl("recover", root, "--from", kept, "--apply").expect(0, 1)
    again = rmqctl("exportMetadata", root).expect(0).json()
    assert again["topicConfigTable"]["orders"] == TOPICS["orders"]
    assert again["subscriptionGroupTable"]["billing"]["groupName"] == "billing"
