"""Metadata made from the files alone, held against what the engine wrote."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered.metadata import read
from rmqctl.formats.tiered.units import NEVER
from tests.conftest import GoldenFolder
from tests.support import cli
from tests.tiered import recovering

USER = "broker-a/TP_user_Topic/0"


@pytest.mark.parametrize("name", [recovering.GOLDEN, recovering.LIVE])
def test_nothing_to_do(golden_copy: GoldenFolder, name):
    root = golden_copy(name)
    before = recovering.content(root)
    assert recovering.recover(root)["actions"] == []
    assert not recovering.changed(before, recovering.content(root))


@pytest.mark.parametrize("how", ["missing", "empty", "zeros", "torn", "no object"])
def test_lost(golden_copy: GoldenFolder, how):
    root = golden_copy(recovering.GOLDEN)
    path = root / recovering.METADATA
    engine = path.read_bytes()
    bad = {"empty": b"", "zeros": bytes(100), "torn": engine[:5000], "no object": b"[1]"}
    for file in (path, Path(f"{path}.bak")):
        if how == "missing":
            file.unlink()
        else:
            file.write_bytes(bad[how])
    plan = recovering.recovered(root)
    assert [action["action"] for action in plan["actions"]] == ["rebuild"]
    assert recovering.same_metadata(path.read_bytes(), engine)


def test_lost_with_its_folder(golden_copy: GoldenFolder):
    root = golden_copy(recovering.GOLDEN)
    engine = (root / recovering.METADATA).read_bytes()
    shutil.rmtree(root / "config")
    recovering.recovered(root)
    assert recovering.same_metadata((root / recovering.METADATA).read_bytes(), engine)


def test_of_a_tier_that_stands_alone(golden_copy: GoldenFolder, tmp_path):
    root = golden_copy(recovering.GOLDEN)
    engine = (root / recovering.METADATA).read_bytes()
    alone = tmp_path / "alone" / "tier"
    shutil.copytree(root / "tieredstore", alone)
    cli.run("tiered", "recover", alone).expect(2)
    path = tmp_path / "elsewhere" / "config" / "tieredStoreMetadata.json"
    path.parent.mkdir(parents=True)
    answer = cli.run("tiered", "recover", alone, "--metadata", path, "--apply", "-o",
                     "json").expect(0).json()
    assert answer["applied"]
    assert recovering.same_metadata(path.read_bytes(), engine)
    refused = cli.run("undo", alone, "--yes").expect(6)
    assert "--write-outside" in refused.err
    cli.run("undo", alone, "--yes", "--write-outside", path.parent).expect(0)
    assert not path.exists()


def test_stale(golden_copy: GoldenFolder):
    """Sizes and times of before the last commit, an entry too few and one too many."""
    root = golden_copy(recovering.GOLDEN)
    engine = (root / recovering.METADATA).read_bytes()

    def change(metadata: meta.Metadata) -> None:
        log, rows = metadata.segments["COMMIT_LOG"][USER], metadata.segments["CONSUME_QUEUE"][USER]
        log[43593] = replace(log[43593], size=100, end_timestamp=log[43593].begin_timestamp)
        log[21321] = replace(log[21321], begin_timestamp=NEVER, end_timestamp=NEVER)
        del rows[2000]
        rows[9000] = replace(rows[500], base_offset=9000)

    recovering.change_metadata(root, change)
    recovering.recovered(root)
    assert recovering.same_metadata((root / recovering.METADATA).read_bytes(), engine)


def test_what_is_right_stays(golden_copy: GoldenFolder):
    """Ids, reserve times and times of creation are not to be had from files."""
    root = golden_copy(recovering.GOLDEN)

    def change(metadata: meta.Metadata) -> None:
        topic = metadata.topics["TP_user_Topic"]
        metadata.topics["TP_user_Topic"] = replace(topic, reserve_time=5, status=3)
        metadata.topics["gone"] = replace(topic, topic="gone", topic_id=7)
        metadata.serial = 9
        metadata.segments["COMMIT_LOG"][USER][0] = replace(
            metadata.segments["COMMIT_LOG"][USER][0], size=1, create_timestamp=4711)

    recovering.change_metadata(root, change)
    recovering.recover(root)
    metadata = meta.parse((root / recovering.METADATA).read_bytes())
    assert metadata.topics["TP_user_Topic"].reserve_time == 5
    assert metadata.topics["TP_user_Topic"].status == 3
    assert metadata.topics["gone"].topic_id == 7
    assert metadata.serial == 9
    assert metadata.segments["COMMIT_LOG"][USER][0].create_timestamp == 4711
    assert metadata.segments["COMMIT_LOG"][USER][0].size == 21321


def test_backup(golden_copy: GoldenFolder):
    """Of the backup comes what only it can tell, of the files the rest."""
    root = golden_copy(recovering.GOLDEN)
    path = root / recovering.METADATA
    engine = path.read_bytes()

    def change(metadata: meta.Metadata) -> None:
        metadata.topics["TP_user_Topic"] = replace(metadata.topics["TP_user_Topic"], reserve_time=5)
        del metadata.segments["COMMIT_LOG"][USER][43593]

    recovering.change_metadata(root, change)
    path.rename(f"{path}.bak")
    path.write_bytes(engine[:100])
    plan = recovering.recover(root)
    assert any("backup" in note for note in plan["notes"])
    metadata = meta.parse(path.read_bytes())
    assert metadata.topics["TP_user_Topic"].reserve_time == 5
    assert metadata.segments["COMMIT_LOG"][USER][43593].size == 24062


def test_topic_ids_by_vote(golden_copy: GoldenFolder):
    """Ids that no order of names or times would give."""
    root = golden_copy(recovering.GOLDEN)
    swap = {0: 41, 1: 3}
    for path in (root / recovering.INDEX).iterdir():
        data = bytearray(path.read_bytes())
        count = int.from_bytes(data[24:28])
        at = len(data) - 28 * count
        for item in range(at, len(data), 28):
            old = int.from_bytes(data[item + 4:item + 8])
            data[item + 4:item + 8] = swap[old].to_bytes(4)
        path.write_bytes(data)
    shutil.rmtree(root / "config")
    recovering.recover(root, "--only", "metadata")
    metadata = meta.parse((root / recovering.METADATA).read_bytes())
    assert {topic.topic: topic.topic_id for topic in metadata.topics.values()} == {
        "TP_pay_Event5": 41, "TP_user_Topic": 3}
    assert metadata.serial == 41


def test_ids_without_any_index(golden_copy: GoldenFolder):
    root = golden_copy(recovering.GOLDEN)
    shutil.rmtree(root / "config")
    shutil.rmtree(root / recovering.BROKER / "rmq_sys_INDEX")
    plan = recovering.recover(root)
    assert any("--only index" in note for note in plan["notes"])
    metadata = meta.parse((root / recovering.METADATA).read_bytes())
    assert sorted(topic.topic_id for topic in metadata.topics.values()) == [0, 1]
    assert metadata.serial == 1


def test_only_metadata_leaves_the_rest(golden_copy: GoldenFolder):
    root = golden_copy(recovering.GOLDEN)
    torn = root / recovering.place("TP_user_Topic", 0, "CONSUME_QUEUE", 2000)
    torn.write_bytes(torn.read_bytes()[:27])
    before = recovering.content(root)
    recovering.recover(root, "--only", "metadata")
    assert recovering.changed(before, recovering.content(root)) == {recovering.METADATA}
    metadata = meta.parse((root / recovering.METADATA).read_bytes())
    assert metadata.segments["CONSUME_QUEUE"][USER][2000].size == 20


def test_index_segment_that_never_came(golden_copy: GoldenFolder):
    """Its entry has the largest of all times: a broker takes it for its newest file (§12.6)."""
    root = golden_copy(recovering.GOLDEN)
    engine = recovering.content(root)
    base = 16628 + 2584
    (root / recovering.INDEX / recovering.name_of(base)).write_bytes(b"")

    def change(metadata: meta.Metadata) -> None:
        table = metadata.segments["INDEX"]["broker-a/rmq_sys_INDEX/0"]
        table[base] = replace(table[0], base_offset=base, size=0, begin_timestamp=NEVER,
                              end_timestamp=NEVER)

    recovering.change_metadata(root, change)
    plan = recovering.recovered(root)
    assert plan["actions"][0]["action"] == "move aside"
    assert not recovering.changed(engine, recovering.content(root))


def test_empty_upload_of_an_idle_broker_stays(golden_copy: GoldenFolder):
    root = golden_copy(recovering.GOLDEN)
    base = 16628 + 2584
    (root / recovering.INDEX / recovering.name_of(base)).write_bytes(b"")

    def change(metadata: meta.Metadata) -> None:
        table = metadata.segments["INDEX"]["broker-a/rmq_sys_INDEX/0"]
        table[base] = replace(table[0], base_offset=base, size=0, begin_timestamp=1,
                              end_timestamp=0)

    recovering.change_metadata(root, change)
    assert recovering.recover(root)["actions"] == []


# -- other forms ----------------------------------------------------------------------------------


def old_form(metadata: meta.Metadata) -> bytes:
    """As 5.1.0 writes it: one line, objects for keys."""
    def queue(path: str) -> str:
        broker, topic, number = path.split("/")
        return f'{{"brokerName":"{broker}","queueId":{number},"topic":"{topic}"}}'

    tables = []
    for kind, name in zip(("COMMIT_LOG", "CONSUME_QUEUE", "INDEX"), meta.SEGMENT_TABLES,
                          strict=True):
        rows = []
        for path, entries in metadata.segments[kind].items():
            inner = ",".join(
                f'{base}:{{"baseOffset":{base},"beginTimestamp":{entry.begin_timestamp},'
                f'"createTimestamp":{entry.create_timestamp},"endTimestamp":{entry.end_timestamp},'
                f'"path":"x/{path}/{base}","queue":{queue(path)},"sealTimestamp":0,'
                f'"size":{entry.size},"status":1,"type":{entry.type}}}'
                for base, entry in entries.items())
            rows.append(f"{queue(path)}:{{{inner}}}")
        tables.append(f'"{name}":{{{",".join(rows)}}}')
    queues = ",".join(
        f'"{topic}":{{' + ",".join(
            f'{number}:{{"maxOffset":{item.max_offset},"minOffset":{item.min_offset},'
            f'"queue":{{"brokerName":"{item.broker_name}","queueId":{number},"topic":"{topic}"}},'
            f'"updateTimestamp":{item.update_timestamp}}}' for number, item in table.items()) + "}"
        for topic, table in metadata.queues.items())
    topics = ",".join(
        f'"{segment.topic}":{{"reserveTime":-1,"status":0,"topic":"{segment.topic}",'
        f'"topicId":{segment.topic_id},"updateTimestamp":0}}'
        for segment in metadata.topics.values())
    return (f'{{{tables[0]},{tables[1]},{tables[2]},"maxTopicId":{metadata.serial + 1},'
            f'"queueMetadataTable":{{{queues}}},"topicMetadataTable":{{{topics}}}}}').encode()


def test_metadata_of_5_1_0(golden_copy: GoldenFolder):
    root = golden_copy(recovering.GOLDEN)
    path = root / recovering.METADATA
    engine = meta.parse(path.read_bytes())
    path.write_bytes(old_form(engine))
    content = read(path.read_bytes())
    assert content.old
    assert not content.faults
    assert content.serial == engine.serial
    assert {name: topic.topic_id for name, topic in content.topics.items()} == {
        name: topic.topic_id for name, topic in engine.topics.items()}
    for kind, table in engine.segments.items():
        for place, entries in table.items():
            for base, entry in entries.items():
                assert content.segments[kind][place][base] == replace(entry, status=1)
    assert recovering.recover(root)["actions"] == []
    with Tier.open(str(root / "tieredstore")) as tier:
        assert tier.metadata_error is None
        assert tier.metadata.topics == content.topics


def test_metadata_of_5_1_2(golden_copy: GoldenFolder):
    """Paths as on Windows, entries in alphabetical order, quoted numbers."""
    root = golden_copy(recovering.GOLDEN)
    path = root / recovering.METADATA
    text = path.read_text().replace("broker-a/", "broker-a\\\\")
    for topic in ("TP_user_Topic", "TP_pay_Event5", "rmq_sys_INDEX"):
        text = text.replace(f"{topic}/", f"{topic}\\\\")
    path.write_text(text)
    assert recovering.recover(root)["actions"] == []


@pytest.mark.parametrize("text", [
    "{{}:{}}", '{{"brokerName":1,"topic":"t","queueId":0}:{}}', "{{", "{{}}", "{" * 500,
    '{"a":{{"brokerName":"b","topic":"t","queueId":0}:1}}', '{"commitLogFileSegmentTable":{[]:1}}',
    '{{"brokerName":"b","topic":"t","queueId":0}', "}", '{"a" {', "{:{}}", '{"'])
def test_odd_metadata_is_no_traceback(golden_copy: GoldenFolder, text):
    root = golden_copy(recovering.GOLDEN)
    engine = (root / recovering.METADATA).read_bytes()
    for suffix in ("", ".bak"):
        Path(f"{root / recovering.METADATA}{suffix}").write_text(text)
    recovering.recover(root)
    assert recovering.same_metadata((root / recovering.METADATA).read_bytes(), engine)


# -- whose it is ----------------------------------------------------------------------------------


def test_several_brokers(golden_copy: GoldenFolder):
    root = golden_copy(recovering.GOLDEN)
    cluster = root / recovering.BROKER
    shutil.copytree(cluster, cluster.parent / "broker-b")
    engine = recovering.content(root)
    assert recovering.recover(root)["actions"] == []  # metadata says whose it is
    for name in (recovering.METADATA, f"{recovering.METADATA}.bak"):
        (root / name).unlink()
    result = cli.run("tiered", "recover", root / "tieredstore").expect(2)
    assert "--broker" in result.err
    recovering.recover(root, "--broker", "broker-a")
    data = (root / recovering.METADATA).read_bytes()
    assert recovering.same_metadata(data, engine[recovering.METADATA])


def test_refuses_what_it_cannot_see(golden_copy: GoldenFolder, tmp_path):
    """A folder that cannot be read must not count as empty."""
    root = golden_copy(recovering.GOLDEN)
    folder = root / recovering.place("TP_user_Topic", 1, "COMMIT_LOG")
    if os.geteuid() == 0:
        pytest.skip("the administrator may read everything")
    folder.chmod(0)
    try:
        cli.run("tiered", "recover", root / "tieredstore").expect(5)
    finally:
        folder.chmod(0o755)


def test_usage(golden_copy: GoldenFolder, tmp_path):
    root = golden_copy(recovering.GOLDEN)
    cli.run("tiered", "recover", root / "tieredstore", "--only", "nothing").expect(2)
    cli.run("tiered", "recover", root / "tieredstore", "--yes").expect(2)
    cli.run("tiered", "recover", root / "tieredstore", "--broker", "nobody").expect(2)
    cli.run("tiered", "recover", "memory://nothing").expect(2)
    cli.run("tiered", "recover", tmp_path / "nothing").expect(3)
    (tmp_path / "empty").mkdir()
    cli.run("tiered", "recover", tmp_path / "empty").expect(3)


def test_document(golden_copy: GoldenFolder):
    root = golden_copy(recovering.GOLDEN)
    (root / recovering.METADATA).unlink()
    before = recovering.content(root)
    plan = recovering.recover(root, apply=False)
    assert (plan["cluster"], plan["broker"]) == ("DefaultCluster", "broker-a")
    assert plan["applied"] is False
    assert json.dumps(plan)
    assert not recovering.changed(before, recovering.content(root))
