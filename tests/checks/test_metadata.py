"""Topics, groups and committed offsets are data: what a start loses of them, in every command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.checks.metadata.judge import MetadataLosses, judge
from rmqctl.store import Store
from tests.conftest import GoldenFolder
from tests.support import snapshot
from tests.support.cli import run
from tests.support.config_tables import (
    GROUP,
    GROUPS,
    OFFSETS,
    TOPICS,
    committed,
    group_table,
    offset_table,
    put,
    queues,
    topic_table,
    whole,
)
from tests.track_record.queueing import without_expired_rows

Build = Callable[..., Path]
FILES = {TOPICS: "topics", GROUPS: "groups", OFFSETS: "offsets"}
VERSIONS = {"4.9.3": False, "5.3.3": True}


@pytest.fixture
def store(golden: GoldenFolder, tmp_path: Path) -> Build:
    """A copy of the basic store of a release with a sound ``config/``."""
    def build(release: str, *, backup: bool = False) -> Path:
        root = snapshot.copy_tree(golden(f"{release}/basic/store"), tmp_path / release)
        return whole(root, five=VERSIONS[release], backup=backup)
    return build


def judged(root: Path, **given: Any) -> MetadataLosses:
    with Store.open(root) as opened:
        return judge(opened, **given)


def read(root: Path, name: str) -> Any:
    return json.loads((root / "config" / name).read_text())


def empty(name: str, *, five: bool) -> dict[str, Any]:
    return {TOPICS: topic_table({}, five=five), GROUPS: group_table([], five=five),
            OFFSETS: offset_table({}, five=five)}[name]


def answers(root: Path, command: str, *codes: int) -> dict[str, Any]:
    with snapshot.assert_unchanged(root):
        return run(command, root, "-o", "json").expect(*codes).json()


# -- sound ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", VERSIONS)
def test_a_sound_config_loses_nothing(release: str, store: Build) -> None:
    root = store(release, backup=True)
    assert judged(root).defects == []
    store_answers = answers(root, "preflight", 0)
    assert store_answers["losses"] == []


@pytest.mark.parametrize("release", VERSIONS)
def test_a_store_without_config_is_sound(release: str, store: Build) -> None:
    root = store(release)
    shutil.rmtree(root / "config")
    assert judged(root).defects == []


def test_a_new_broker_is_sound(tmp_path: Path) -> None:
    root = tmp_path / "new"
    (root / "commitlog").mkdir(parents=True)
    for name in FILES:
        put(root, name, empty(name, five=True))
        put(root, f"{name}.bak", empty(name, five=True))
    assert judged(root).defects == []
    put(root, OFFSETS, b"")
    assert judged(root).defects == []


def test_a_backup_with_fewer_entries_is_sound(store: Build) -> None:
    root = store("5.3.3", backup=True)
    for name in FILES:
        put(root, f"{name}.bak", empty(name, five=True))
    assert judged(root).defects == []


def test_a_group_that_reads_on_is_sound(store: Build) -> None:
    root = store("4.9.3", backup=True)
    put(root, OFFSETS, offset_table(committed(root, 3), five=False))
    assert judged(root).defects == []


def test_a_deleted_topic_is_sound(store: Build) -> None:
    """Deleting removes the entry and the queues; 4.9.3 keeps the offsets, the log the messages."""
    root = store("4.9.3")
    names = queues(root)
    gone = next(iter(names))
    shutil.rmtree(root / "consumequeue" / gone)
    put(root, TOPICS, topic_table(dict(list(names.items())[1:]), five=False))
    assert judged(root, logged={gone}).defects == []


def test_a_deleted_group_is_sound(store: Build) -> None:
    root = store("5.3.3", backup=True)
    put(root, GROUPS, group_table(["audit"], five=True, counter=2))
    put(root, OFFSETS, offset_table({}, five=True, counter=2))
    assert judged(root).defects == []


def test_one_reset_among_groups_that_read_on_is_sound(store: Build) -> None:
    root = store("5.3.3", backup=True)
    table = committed(root, 3)
    table[next(iter(table))]["0"] = 0
    put(root, OFFSETS, offset_table(table, five=True))
    assert judged(root).defects == []


def test_what_groups_have_read_of_queues_that_are_no_longer_read_is_sound(store: Build) -> None:
    root = store("5.3.3")
    value = read(root, TOPICS)
    for topic in value["topicConfigTable"].values():
        topic["readQueueNums"] = 2
    put(root, TOPICS, value)
    put(root, OFFSETS, offset_table(committed(root, 1000), five=True))
    assert judged(root).defects == []


def test_a_running_broker_may_be_between_two_writes(store: Build) -> None:
    root = store("5.3.3", backup=True)
    put(root, OFFSETS, offset_table(committed(root, 1), five=True))
    assert judged(root, live=True).defects == []


# -- files that a start does not load ------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("backup", [None, b""])
@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: data[:len(data) * 2 // 3],
    lambda data: data.replace(b":", b"\xff", 40), lambda data: bytes(len(data))],
    ids=["zero-length", "cut", "garbage", "zeros"])
def test_a_file_that_no_broker_can_load(name: str, damage: Callable[[bytes], bytes],
                                        backup: bytes | None, store: Build) -> None:
    root = store("5.3.3")
    path = root / "config" / name
    path.write_bytes(damage(path.read_bytes()))
    if backup is not None:
        put(root, f"{name}.bak", backup)
    (loss,) = judged(root).losses
    assert (loss.what, loss.file, loss.already) == (FILES[name], f"config/{name}", False)
    assert "no usable .bak" in loss.cause
    assert loss.count is None or loss.count >= 1
    assert loss.count is not None or name == OFFSETS


@pytest.mark.parametrize("name", FILES)
def test_with_a_good_backup_a_start_loses_nothing(name: str, store: Build) -> None:
    root = store("5.3.3", backup=True)
    put(root, name, b"")
    assert judged(root).defects == []
    store_answers = answers(root, "preflight", 0)
    assert store_answers["losses"] == []


@pytest.mark.parametrize("name", FILES)
def test_a_start_with_an_emptied_backup_loses_what_the_damaged_file_has(
        name: str, store: Build) -> None:
    root = store("5.3.3")
    path = root / "config" / name
    path.write_bytes(path.read_bytes().rstrip()[:-1])
    put(root, f"{name}.bak", empty(name, five=True))
    (loss,) = judged(root).losses
    assert (loss.what, loss.already) == (FILES[name], False)
    assert loss.count


@pytest.mark.parametrize("release", VERSIONS)
def test_every_command_says_what_a_lost_offset_file_means(release: str, store: Build) -> None:
    root = store(release)
    path = root / "config" / OFFSETS
    path.write_bytes(path.read_bytes()[:-20])
    store_answers = answers(root, "preflight", 1)
    assert store_answers["starts"]
    assert [(loss["what"], loss["file"]) for loss in store_answers["losses"]] == [
        ("offsets", f"config/{OFFSETS}")]
    assert any("consumeFromWhere" in note and "skips its backlog" in note
               for note in store_answers["notes"])
    doctor = answers(root, "doctor", 1)
    assert (doctor["sound"], doctor["losses"]) == (False, store_answers["losses"])
    impact = answers(root, "impact", 1)
    assert impact["losses"] == store_answers["losses"]
    assert sum(queue["skipped"] for queue in impact["queues"]) > 100


# -- files that have lost their entries ----------------------------------------------------------


@pytest.mark.parametrize("release", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_the_next_write_would_replace_a_good_backup(release: str, name: str,
                                                    store: Build) -> None:
    root = store(release, backup=True)
    put(root, name, empty(name, five=VERSIONS[release]) if name != OFFSETS else {})
    store_answers = answers(root, "preflight", 1)
    (loss,) = store_answers["losses"]
    assert (loss["what"], loss["already"]) == (FILES[name], False)
    assert loss["count"] == {TOPICS: len(queues(root)), GROUPS: 1,
                             OFFSETS: sum(queues(root).values())}[name]
    doctor = answers(root, "doctor", 1)
    assert doctor["next"][0] == f"rmqctl recover {root}"


@pytest.mark.parametrize("name", FILES)
def test_recover_restores_the_entries_of_the_backup(name: str, store: Build) -> None:
    root = store("5.3.3", backup=True)
    before = run("config", root, FILES[name], "-o", "json").expect(0).json()
    put(root, name, empty(name, five=True))
    run("recover", root, "--apply", "--yes").expect(0)
    after = run("config", root, FILES[name], "-o", "json").expect(0).json()
    assert before
    assert after == before
    assert judged(root).defects == []
    assert answers(root, "doctor", 0)["sound"]


def test_unread_messages_of_lost_offsets_are_counted(store: Build) -> None:
    root = store("4.9.3", backup=True)
    put(root, OFFSETS, {"offsetTable": {}})
    total = 600 - 2 * sum(queues(root).values())
    metadata_losses = judged(root)
    assert f"{GROUP} would skip {total:,} unread messages" in metadata_losses.notes[0]


@pytest.mark.parametrize("gone", ["missing", "emptied"])
def test_topics_that_no_backup_has_are_rebuilt_from_the_queues(gone: str, store: Build) -> None:
    root = store("5.3.3")
    if gone == "missing":
        (root / "config" / TOPICS).unlink()
    else:
        put(root, TOPICS, topic_table({}, five=True))
    doctor = answers(root, "doctor", 1)
    (loss,) = doctor["losses"]
    assert (loss["what"], loss["count"], loss["already"]) == ("topics", len(queues(root)), True)
    assert doctor["next"][0] == f"rmqctl recover {root} --only config"
    run("recover", root, "--only", "config", "--apply", "--yes").expect(0)
    assert set(read(root, TOPICS)["topicConfigTable"]) == set(queues(root))
    assert answers(root, "doctor", 0)["sound"]


def test_lost_offsets_that_nothing_knows_have_no_repair(store: Build) -> None:
    root = store("4.9.3")
    put(root, OFFSETS, b"")
    doctor = answers(root, "doctor", 1)
    assert doctor["losses"][0]["count"] is None
    assert doctor["next"][0] == f"rmqctl recover {root} --from COPY"
    assert f"rmqctl recover {root}" not in doctor["next"]


def test_offsets_of_one_group_that_only_the_backup_has(store: Build) -> None:
    root = store("5.3.3")
    table = committed(root)
    put(root, GROUPS, group_table([GROUP, "audit"], five=True))
    put(root, f"{OFFSETS}.bak", offset_table(
        table | {key.replace(GROUP, "audit"): entry for key, entry in table.items()}, five=True))
    metadata_losses = judged(root)
    assert [(loss.what, loss.count) for loss in metadata_losses.losses] == [
        ("offsets", sum(queues(root).values()))]
    assert {group for group, _, _ in metadata_losses.offsets} == {"audit"}
    assert [defect.category for defect in metadata_losses.defects] == ["config-older"]


@pytest.mark.parametrize("counter", [1, 0])
def test_offsets_older_than_their_backup(counter: int, store: Build) -> None:
    """All lower, or mixed and with an older data version."""
    root = store("5.3.3", backup=True)
    table = committed(root, 1)
    if counter == 0:
        table[next(iter(table))]["0"] = 5
    put(root, OFFSETS, offset_table(table, five=True, counter=counter))
    (defect,) = judged(root).defects
    assert (defect.category, defect.loss.what) == ("config-older", "offsets")
    run("recover", root, "--apply", "--yes").expect(0)
    assert judged(root).defects == []
    rows = run("config", root, "offsets", "-o", "json").expect(0).json()
    assert {row["offset"] for row in rows} == ({2} if counter else {2, 5})


def test_an_older_copy_of_the_topics(store: Build) -> None:
    root = store("5.3.3", backup=True)
    names = queues(root)
    put(root, f"{TOPICS}.bak", topic_table(names | {"young": 4}, five=True, counter=9))
    (defect,) = judged(root).defects
    assert (defect.category, defect.loss.count) == ("config-older", 1)


# -- topics against their queues -----------------------------------------------------------------


def test_a_topic_with_messages_that_is_not_configured(store: Build) -> None:
    root = store("5.3.3")
    names = queues(root)
    gone = list(names)[1]
    put(root, TOPICS, topic_table({name: 4 for name in names if name != gone}, five=True))
    doctor = answers(root, "doctor", 1)
    (loss,) = doctor["losses"]
    assert (loss["what"], loss["count"], loss["file"]) == ("topics", 1, f"config/{TOPICS}")
    assert gone in loss["cause"]
    create = f"rmqctl topic create {root} {gone} --read-queues 4 --write-queues 4"
    assert doctor["next"][0] == create
    run(*create.split()[1:]).expect(0)
    assert judged(root).defects == []


def test_offsets_show_that_a_5x_broker_did_not_delete_the_topic(store: Build) -> None:
    root = store("5.3.3")
    names = queues(root)
    gone = list(names)[1]
    put(root, TOPICS, topic_table({name: 4 for name in names if name != gone}, five=True))
    shutil.rmtree(root / "consumequeue" / gone)
    assert judged(root).defects == []
    (loss,) = judged(root, logged={gone}).losses
    assert loss.what == "topics"


def test_a_topic_with_fewer_read_queues_than_queues_with_messages(store: Build) -> None:
    root = store("5.3.3")
    value = read(root, TOPICS)
    topic, entry = next(iter(value["topicConfigTable"].items()))
    entry["readQueueNums"] = 2
    put(root, TOPICS, value)
    store_answers = answers(root, "preflight", 1)
    (loss,) = store_answers["losses"]
    assert (loss["what"], loss["already"]) == ("messages", True)
    assert f"readQueueNums of {topic} is 2: queues 2 to 3" in loss["cause"]
    assert store_answers["next"] == [f"rmqctl topic create {root} {topic} --read-queues 4"]
    run(*store_answers["next"][0].split()[1:]).expect(0)
    assert answers(root, "doctor", 0)["sound"]


def test_a_topic_that_nobody_may_read(store: Build) -> None:
    root = store("4.9.3")
    value = read(root, TOPICS)
    topic, entry = next(iter(value["topicConfigTable"].items()))
    entry["perm"] = 2
    put(root, TOPICS, value)
    store_answers = answers(root, "doctor", 1)
    assert f"perm of {topic} is 2" in store_answers["losses"][0]["cause"]
    run(*store_answers["next"][0].split()[1:]).expect(0)
    assert read(root, TOPICS)["topicConfigTable"][topic]["perm"] == 6
    assert answers(root, "doctor", 0)["sound"]


def test_a_topic_that_no_group_reads_may_have_any_read_queues(store: Build) -> None:
    root = store("5.3.3")
    value = read(root, TOPICS)
    for entry in value["topicConfigTable"].values():
        entry["readQueueNums"], entry["perm"] = 1, 2
    put(root, TOPICS, value)
    put(root, OFFSETS, offset_table({}, five=True))
    assert judged(root).defects == []


def test_retry_messages_prove_that_offsets_are_lost(store: Build) -> None:
    root = store("5.3.3")
    topic = next(iter(queues(root)))
    shutil.copytree(root / "consumequeue" / topic / "0",
                    root / "consumequeue" / f"%RETRY%{GROUP}" / "0")
    put(root, TOPICS, topic_table(queues(root), five=True))
    put(root, OFFSETS, offset_table({}, five=True))
    (defect,) = judged(root).defects
    assert (defect.category, defect.loss.what, defect.loss.already) == (
        "config-emptied", "offsets", True)
    assert GROUP in defect.loss.cause


def test_a_damaged_file_is_repaired_by_one_step(store: Build) -> None:
    root = store("5.3.3")
    (root / "config" / TOPICS).write_bytes(b"")
    doctor = answers(root, "doctor", 1)
    assert [step for step in doctor["next"] if " recover " in step] == [f"rmqctl recover {root}"]
    run("recover", root, "--apply", "--yes").expect(0)
    assert set(read(root, TOPICS)["topicConfigTable"]) == set(queues(root))


def test_verify_names_offsets_beyond_the_end_as_a_start_does(store: Build) -> None:
    root = store("5.3.3")
    value = read(root, OFFSETS)
    key = next(iter(value["offsetTable"]))
    value["offsetTable"][key]["0"] = 100_000
    put(root, OFFSETS, value)
    (finding,) = answers(root, "verify", 1)["findings"]
    (beyond,) = answers(root, "preflight", 1)["offsets_beyond_end"]
    assert finding["category"] == "config-offset"
    assert (finding["topic"], finding["queue_id"]) == (beyond["topic"], beyond["queue_id"])
    assert finding["next"] == answers(root, "doctor", 1)["next"][0]
    run(*finding["next"].split()[1:], "--apply", "--yes").expect(0)
    assert answers(root, "verify", 0)["ok"]


@pytest.mark.parametrize("release", VERSIONS)
def test_first_log_files_that_no_cleaner_deleted(release: str, store: Build,
                                                 golden: GoldenFolder) -> None:
    root = store(release)
    first, second, third, *_ = sorted((root / "commitlog").iterdir())
    first.unlink()
    second.unlink()
    store_answers = answers(root, "doctor", 1)
    (loss,) = store_answers["losses"]
    assert (loss["what"], loss["already"]) == ("messages", True)
    assert loss["count"] > 0
    assert store_answers["next"][0].endswith("--from COPY")
    assert [remainder["category"] for remainder in store_answers["remains"]] == ["log-start"]
    assert answers(root, "preflight", 1)["losses"] == store_answers["losses"]
    # A broker deletes the files of a queue up to the first with an entry that is still in the log.
    without_expired_rows(root, int(third.name))
    assert answers(root, "doctor", 0)["sound"]


def test_what_the_first_log_files_had_is_counted_by_topic(golden_copy: GoldenFolder) -> None:
    """Also entries of a file with entries that are left, but none that a compaction log serves."""
    root = golden_copy("5.3.3/compaction/store")
    for file in sorted((root / "commitlog").iterdir())[:4]:
        file.unlink()
    with Store.open(root) as store:
        start = store.log.min_offset
        lost = 0
        for (topic, _), queue in store.queues.plain.items():
            if topic == "TP_audit_Event0":
                bound = queue.units(queue.first_index, 1000)
                lost += sum(0 < unit["size"] and unit["physical_offset"] < start for unit in bound)
    (loss,) = answers(root, "doctor", 1)["losses"]
    assert (loss["count"], loss["already"]) == (lost, True)
    assert "TP_audit_Event0" in loss["cause"]
    assert "TP_user_Topic" not in loss["cause"]


@pytest.mark.long
@pytest.mark.parametrize("gone", ["compaction", "compaction/compactionLog"])
def test_a_compaction_log_that_is_missing(golden_copy: GoldenFolder, gone: str) -> None:
    """5.3.3 reads such topics from nothing else, and dispatches no message again to it."""
    root = golden_copy("5.3.3/compaction/store")
    table = topic_table({"TP_user_Topic": 2, "TP_audit_Event0": 2}, five=True)
    table["topicConfigTable"]["TP_user_Topic"]["attributes"] = {"cleanup.policy": "COMPACTION"}
    put(root, TOPICS, table)
    assert answers(root, "doctor", 0)["sound"]
    shutil.rmtree(root / gone)
    store_answers = answers(root, "doctor", 1)
    (loss,) = store_answers["losses"]
    assert (loss["what"], loss["already"]) == ("messages", True)
    assert loss["count"] > 0
    why = {remainder["category"]: remainder["why"] for remainder in store_answers["remains"]}
    assert "compaction/ from a copy" in why["compaction"]
    assert not [text for text in why.values() if "does not contain what a repair needs" in text]
    assert "compaction" in {finding["category"]
                            for finding in answers(root, "verify", 1)["findings"]}
    # A broker that knows no compaction delivers these messages from the commit log.
    for command in ("doctor", "preflight"):
        older = run(command, root, "--broker-version", "5.0.0", "-o", "json").expect(0, 1).json()
        assert not older["losses"]
        assert older["starts"]


def test_two_kinds_of_queues_ask_for_the_brokers_configuration(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/rocksdb/store")
    file = root / f"consumequeue/TP_mail_Topic/0/{0:020d}"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(400))
    store_answers = answers(root, "doctor", 3)
    assert store_answers["sound"] is None
    assert store_answers["next"] == [f"rmqctl doctor {root} --broker-conf FILE"]
    for command in ("verify", "preflight", "recover", "impact"):
        assert "pass --broker-conf" in run(command, root).expect(3).err


def test_a_damaged_checkpoint_proves_no_release(store: Build) -> None:
    root = store("4.9.3")
    (root / "checkpoint").write_bytes(b"\xff" * 4096)
    assert answers(root, "doctor", 1)["broker_version"] == "4.9.3"


@pytest.mark.long
def test_topics_of_a_store_with_queues_in_rocksdb(golden_copy: GoldenFolder) -> None:
    """Its configuration is in files, and is written; topics that are in RocksDB are not."""
    root = golden_copy("5.3.3/rocksdb/store")
    topic, ids = "TP_fraud_Event4", range(4)
    put(root, TOPICS, topic_table({topic: 1, "TP_mail_Topic": 4, "TP_队列_login": 8}, five=True))
    put(root, OFFSETS,
        offset_table({f"{topic}@g1": {str(identifier): 1 for identifier in ids}}, five=True))
    step = answers(root, "doctor", 1)["next"][0]
    assert step == f"rmqctl topic create {root} {topic} --read-queues 4"
    run(*step.split()[1:]).expect(0)
    assert answers(root, "doctor", 0)["sound"]
    inside = golden_copy("5.3.3/rocksdb-config-v1-kill/store")
    with (inside / "commitlog" / f"{131072:020d}").open("r+b") as file:
        file.write(b"\x01")
    run("recover", inside, "--apply", "--yes").expect(0)
    store_answers = answers(inside, "doctor", 1)
    assert not [step for step in store_answers["next"] if " topic create " in step]
    assert "mqadmin" in store_answers["remains"][0]["why"]
