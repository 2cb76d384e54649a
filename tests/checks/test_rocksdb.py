"""Consumequeues in RocksDB: verify and preflight, with the engine as judge; damage is found."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rocksdict import AccessType, BlockBasedOptions, Options, Rdict

from rmqctl.broker.view import view_of
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.formats.local import checkpoint as page
from rmqctl.formats.rocksdb import consume_queue as keys
from rmqctl.store import Sizes, Store
from rmqctl.store.broker_conf import NO_CONF
from tests.support.cli import run
from tests.support.golden import GoldenSet, rocksdb_sets
from tests.support.holder import held
from tests.support.snapshot import assert_unchanged

DAMAGED = [golden_set for golden_set in rocksdb_sets() if golden_set.is_damaged]
SIZES = Sizes(index_slots=100, index_max=200, conf=replace(NO_CONF, store_type="defaultRocksDB"))
SOUND = "5.3.3/rocksdb-crash/after"


def findings_of(root: Path, *words: str, code: tuple[int, ...] = (0, 1)) -> list[dict]:
    with assert_unchanged(root):
        judged = run("verify", root, *words, "-o", "json").expect(*code).json()
    # The sets of the store classes have no topics: what becomes of that is not the matter here.
    return [finding for finding in judged["findings"] if finding["category"] != "config-topic"]


def troubles(root: Path) -> Counter[str]:
    return Counter(finding["category"] for finding in findings_of(root)
                   if finding["severity"] != "info")


class Changing:
    """A data base opened to be changed, as a broker would find it."""

    def __init__(self, store: Path) -> None:
        self._store = store

        def options() -> Options:
            rocks_options = Options(raw_mode=True)
            table = BlockBasedOptions()
            table.set_format_version(5)
            rocks_options.set_block_based_table_factory(table)
            return rocks_options

        self._db = Rdict(str(store / "consumequeue"), options(),
                         {name: options() for name in (keys.ROWS, keys.OFFSETS)},
                         AccessType.read_write())

    def __enter__(self):
        self._families = [self._db.get_column_family(name) for name in (keys.ROWS, keys.OFFSETS)]
        return self._families

    def __exit__(self, *_):
        for family in self._families:
            family.flush()
            family.close()
        self._db.close()
        (self._store / "consumequeue" / "rocksdict-config.json").unlink()  # the library's own


@pytest.mark.parametrize("golden_store", DAMAGED, ids=lambda golden_store: golden_store.id)
def test_preflight_says_what_the_engine_did(golden, golden_store: GoldenSet):
    folder = golden(golden_store.id)
    expect = json.loads((folder / "expect.json").read_text())
    with Store.open(folder / "before", (), SIZES) as store:
        prediction = preflight(store, "5.3.3")
    assert prediction.starts
    assert prediction.broker.recovery == ("abnormal" if "-crash" in golden_store.kind else "normal")
    assert prediction.log.truncate_to == expect["maxPhyOffsetAfterLoad"]
    after = (folder / "after" / "checkpoint").read_bytes()
    assert prediction.broker.checkpoint == page.parse(after)
    queues = {f"{queue['topic']}-{queue['queueId']}": queue["max"] for queue in expect["queues"]
              if queue["max"]}
    assert {key: end for key, end in prediction.queues.table.items() if end} == queues
    with Store.open(folder / "before") as store:
        kept = {(int(at), topic) for batch in store.log.walk(0, prediction.log.truncate_to)
                for at, topic, kind in zip(batch.offset, topics(batch),
                                           batch.column("sys_flag") & 12, strict=True)
                if kind in (0, 8) and at < prediction.log.truncate_to}
    beyond = [queue for queue in expect["queues"] if queue["max"] and queue["maxPhysicOffset"] >= (
        prediction.log.truncate_to)]
    notes = [note for note in prediction.notes
             if "keep a last entry" in note or "keeps a last entry" in note]
    assert [note.split(" ", 1)[0] for note in notes] == ([str(len(beyond))] if beyond else [])
    rowed = {(row[1], row[4]) for queue in expect["queues"] for row in queue["messages"]}
    own = {topic: count for topic, count in prediction.queues.unreachable_by_topic.items()
           if not topic.startswith("%LMQ%")}
    assert own == dict(Counter(topic for _, topic in kept - rowed))


def topics(batch) -> list[str]:
    starts, lengths = batch.column("topic_start"), batch.column("topic_length")
    return [batch.data[start:start + length].tobytes().decode()
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]


def test_the_faults_of_the_engine_are_found(golden):
    """A row just at the cut made it note a last one too low (spec: rocksdb.md §4)."""
    findings = [finding for finding in findings_of(golden("5.3.3/rocksdb-clean-trunc-b/after"))
                if finding["category"] == "cq-last"]
    assert [(finding["topic"], finding["queue_id"], finding["queue_offset"], finding["count"])
            for finding in findings] == [("%LMQ%go1", 0, 7, 2), ("TP_pay_Topic", 1, 24, 3)]
    # The one that it leaves beyond the end of the log.
    ahead = [(finding["topic"], finding["queue_id"])
             for finding in findings_of(golden("5.3.3/rocksdb-clean-trunc/after"))
             if finding["category"] == "cq-ahead"]
    assert ahead == [("SCHEDULE_TOPIC_XXXX", 16)]
    # The record at 0 never gets its row after a clean end.
    [rowless] = findings_of(golden("5.3.3/rocksdb-clean-nocq/after"))
    assert (rowless["category"], rowless["severity"], rowless["queue_offset"]) == (
        "cq-missing-entry", "error", 0)


@pytest.mark.parametrize("name", ["rocksdb/store", "rocksdb-crash/after",
                                  "rocksdb-crash-nocq/after"])
def test_a_sound_store_has_no_findings(golden, name: str):
    assert findings_of(golden(f"5.3.3/{name}"), code=(0,)) == []


def test_what_a_kill_left_out_comes_back_at_the_next_start(golden):
    findings = findings_of(golden("5.3.3/rocksdb-crash/before"), code=(0,))
    assert {finding["category"] for finding in findings} == {
        "cq-behind", "cq-missing", "unclean-shutdown"}
    assert all("; startup recreates" in finding["detail"] for finding in findings
               if finding["category"].startswith("cq-"))
    killed = findings_of(golden("5.3.3/rocksdb-config-v1-kill/store"), "--only", "consumequeue",
                         code=(0, 3))
    assert {finding["category"] for finding in killed} == {"cq-missing", "cq-database"}
    assert {finding["severity"] for finding in killed} == {"info"}


KILLED = ["rocksdb-crash/before", "rocksdb-config-v1-kill/store"]


@pytest.mark.parametrize("name", KILLED)
def test_a_broker_that_runs_has_entries_in_memory_only(golden_copy, name: str):
    store = golden_copy(f"5.3.3/{name}")
    with held(store):
        findings = findings_of(store, code=(0,))
        doctor = run("doctor", store, "-o", "json").expect(0).json()
    lacking = [finding for finding in findings
               if finding["category"] in ("cq-missing", "cq-behind")]
    assert lacking
    assert all(finding["severity"] == "info" and "not yet flushed" in finding["detail"]
               for finding in lacking)
    assert doctor["sound"] is True


def test_entries_before_the_checkpoint_are_missing_beside_a_running_broker(golden_copy):
    """What the data base says it has flushed is not in memory only."""
    store = golden_copy("5.3.3/rocksdb-crash/before")
    with Store.open(store) as opened:
        gone = next(key for key, queue in opened.queues.by_key.items()
                    if queue.topic == "SCHEDULE_TOPIC_XXXX" and queue.disk_end == 1)
    with Changing(store) as (rows, offsets):
        del rows[keys.row_key(gone[0].encode(), gone[1], 0)]
        del rows[keys.row_key(b"TP_audit_Topic", 0, 4)]
        del offsets[keys.offset_key(gone[0].encode(), gone[1], keys.MAX)]
    with held(store):
        errors = {(finding["category"], finding["topic"], finding["queue_id"],
                   finding["queue_offset"])
                  for finding in findings_of(store, code=(1,)) if finding["severity"] == "error"}
    assert errors == {("cq-missing", *gone, 0), ("cq-missing-entry", "TP_audit_Topic", 0, 4)}


def test_a_data_base_deleted_under_a_running_broker_is_damage(golden_copy):
    store = golden_copy("5.3.3/rocksdb-config-v1-kill/store")
    shutil.rmtree(store / "consumequeue")
    with held(store):
        assert {finding["severity"] for finding in findings_of(store, code=(1,))
                if finding["category"] == "cq-missing"} == {"error"}


def test_entries_of_a_killed_broker_are_no_damage_beside_other_damage(golden_copy):
    """A start that ends at a damaged record does not make all of them; `preflight` counts that."""
    store = golden_copy("5.3.3/rocksdb-crash/before")
    with Store.open(store) as opened:
        at = next(int(offset) for batch in opened.log.walk(100_000, opened.log.end)
                  for offset in batch.offset)
        file = opened.log.file_of(at)
    data = bytearray(Path(file.path).read_bytes())
    data[at - file.base + 100] ^= 1
    Path(file.path).write_bytes(data)
    findings = findings_of(store, code=(1,))
    assert {finding["category"] for finding in findings
            if finding["severity"] != "info"} == {"body-crc"}
    assert all("never flushed" in finding["detail"] for finding in findings
               if finding["category"] == "cq-missing")
    assert run("preflight", store, "-o", "json").expect(1).json()["messages_lost"]


@pytest.mark.parametrize("lost", ["CURRENT", "*.sst"])
def test_a_data_base_that_does_not_open(golden_copy, lost: str):
    store = golden_copy(SOUND)
    next((store / "consumequeue").glob(lost)).unlink()
    [finding] = findings_of(store, code=(1,))
    assert (finding["category"], finding["severity"]) == ("cq-database", "error")
    assert str(store / "consumequeue") == finding["file"]
    # The rest is judged and read all the same.
    run("verify", store, "--only", "commitlog,index").expect(0)
    assert len(run("read", store, "-o", "jsonl").expect(0).jsonl()) == 239
    refused = run("preflight", store, "-o", "json").expect(1).json()
    assert (refused["starts"], refused["next"]) == (False, [f"rmqctl recover {store}"])
    assert run("doctor", store, "-o", "json").expect(1).json()["next"][0] == (
        f"rmqctl recover {store}")


def test_a_damaged_block_of_rows(golden_copy):
    store = golden_copy("5.3.3/rocksdb/store")
    table = max((store / "consumequeue").glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    data[100] ^= 4
    table.write_bytes(data)
    findings = findings_of(store, code=(1,))
    assert {(finding["category"], finding["structure"]) for finding in findings} == {
        ("cq-database", "consumequeue")}
    # Each row is said to be one or the other, and what a start does is told.
    unread = Counter()
    for finding in findings:
        if finding["topic"]:
            unread[finding["topic"]] += finding["count"]
    with Store.open(store) as opened:
        readable = sum(int((rows["size"] > 0).sum()) for queue in opened.queues.by_key.values()
                       for _, rows in queue.pages(queue.first_index, queue.disk_end))
    assert readable > 100
    assert unread.total() + readable == 387
    with assert_unchanged(store):
        answer = run("preflight", store, "-o", "json").expect(1).json()
        own = {topic: count for topic, count in unread.items() if not topic.startswith("%LMQ%")}
        assert answer["starts"]
        assert answer["unreachable_by_topic"] == own
        assert "is unreadable" in answer["notes"][0]
        doctor = run("doctor", store, "-o", "json").expect(1).json()
    assert [finding["category"] for finding in doctor["damaged"]] == ["cq-database"]
    assert doctor["would_lose"] == sum(own.values())
    assert doctor["next"][0] == f"rmqctl recover {store}"
    shown = run("read", store, "--topic", max(unread), "-o", "jsonl").expect(1)
    assert "unreadable entries are skipped" in shown.err
    # The log has it all.
    run("recover", store, "--only", "consumequeue", "--apply").expect(0)
    assert findings_of(store, code=(0,)) == []


def test_a_damaged_block_of_what_is_noted(golden_copy):
    """A broker asks for the checkpoint when it starts. No last row is said not to be noted."""
    store = golden_copy("5.3.3/rocksdb/store")
    table = min((store / "consumequeue").glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    data[10] ^= 4
    table.write_bytes(data)
    [finding] = findings_of(store, code=(1,))
    assert finding["category"] == "cq-database"
    assert "column family offset" in finding["detail"]
    answer = run("preflight", store, "-o", "json").expect(1).json()
    assert not answer["starts"]
    assert "column family offset" in answer["refusals"][0]
    assert run("doctor", store, "-o", "json").expect(1).json()["next"][0] == (
        f"rmqctl recover {store}")
    assert len(run("read", store, "--topic", "TP_mail_Topic", "-o", "jsonl").expect(0).jsonl()) > 9


def test_a_lost_write_ahead_log_is_no_loss(golden_copy):
    store = golden_copy(SOUND)
    for log in (store / "consumequeue").glob("*.log"):
        log.unlink()
    assert findings_of(store, code=(0,)) == []


def test_rows_that_contradict_the_log(golden_copy):
    store = golden_copy(SOUND)
    with Store.open(store) as opened:
        queue = opened.queues.find("TP_audit_Topic", 0)
        rows = [queue.unit(number) for number in range(5)]
    with Changing(store) as (table, _):
        table[keys.row_key(b"TP_audit_Topic", 0, 3)] = keys.ROW.build((
            rows[3].physical_offset, rows[3].size + 1, rows[3].tags_code, 1))
        table[keys.row_key(b"TP_audit_Topic", 0, 4)] = keys.ROW.build((
            rows[4].physical_offset, rows[4].size, rows[4].tags_code + 1, 1))
        del table[keys.row_key(b"TP_audit_Topic", 0, 10)]
        table[b"no key of a row"] = b""
        table[keys.row_key(b"TP_audit_Topic", 0, 20)] = b"short"
    assert troubles(store) == {"cq-wrong-size": 1, "cq-wrong-tag": 1, "cq-missing-entry": 2,
                               "cq-database": 1, "cq-wrong-time": 1}


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_rows_with_other_store_times_than_their_messages(golden_copy, jobs: str):
    store = golden_copy(SOUND)
    with Changing(store) as (table, _):
        for number in (2, 5):
            key = keys.row_key(b"TP_audit_Topic", 0, number)
            row = keys.ROW.decode(table[key])
            table[key] = keys.ROW.build(row._replace(store_timestamp=row.store_timestamp + 1))
            if number == 2:
                first = row.store_timestamp
    [wrong] = findings_of(store, "--jobs", jobs, code=(1,))
    assert (wrong["category"], wrong["severity"], wrong["queue_offset"], wrong["count"]) == (
        "cq-wrong-time", "warning", 2, 2)
    assert f"the first {first + 1} instead of {first}" in wrong["detail"]
    run("recover", store, "--only", "consumequeue", "--apply").expect(0)
    assert findings_of(store, code=(0,)) == []


def test_what_is_noted_as_the_last_row(golden_copy):
    store = golden_copy(SOUND)
    key = keys.offset_key(b"TP_audit_Topic", 0, keys.MAX)
    with Changing(store) as (_, offsets):
        before = keys.POSITION.decode(offsets[key])
        offsets[key] = keys.POSITION.build((before.physical_offset, before.queue_offset + 3))
    [last] = findings_of(store, code=(1,))
    assert (last["category"], last["queue_offset"]) == ("cq-last", before.queue_offset + 3)
    with Changing(store) as (_, offsets):
        offsets[key] = keys.POSITION.build((before.physical_offset + 1, before.queue_offset))
    [last] = findings_of(store, code=(1,))
    assert f"points to {before.physical_offset}" in last["detail"]


def test_a_gap_that_no_message_fills(golden_copy):
    """What a broker writes behind a last row that it has noted wrongly."""
    store = golden_copy(SOUND)
    with Store.open(store) as opened:
        queue = opened.queues.find("TP_audit_Topic", 0)
        end, last = queue.disk_end, queue.rows(queue.disk_end - 1, 1)[0]
    with Changing(store) as (table, offsets):
        table[keys.row_key(b"TP_audit_Topic", 0, end + 4)] = last.tobytes()
        offsets[keys.offset_key(b"TP_audit_Topic", 0, keys.MAX)] = keys.POSITION.build((
            int(last["physical_offset"]), end + 4))
    assert {(finding["category"], finding["queue_offset"], finding["count"])
            for finding in findings_of(store, code=(1,))} >= {("cq-gap", end, 4)}


@pytest.mark.parametrize("index", [(1 << 62), (1 << 58) - 1, -1])
def test_a_row_at_an_absurd_queue_offset_is_no_endless_loop(golden_copy, index: int):
    store = golden_copy(SOUND)
    with Changing(store) as (table, offsets):
        table[keys.row_key(b"TP_audit_Topic", 0, index)] = keys.ROW.build((0, 100, 0, 0))
        if index > 0:
            offsets[keys.offset_key(b"TP_audit_Topic", 0, keys.MAX)] = keys.POSITION.build((
                0, index))
    for words in (("verify",), ("info",), ("read", "--topic", "TP_audit_Topic")):
        run(words[0], store, *words[1:]).expect(0, 1, 3, 5)


def test_rows_behind_a_cut_are_no_rows(golden_copy):
    """They stay, and may lead to another message by now."""
    store = golden_copy(SOUND)
    with Store.open(store) as opened:
        queue = opened.queues.find("TP_audit_Topic", 0)
        end, other = queue.disk_end, queue.rows(3, 1)[0]
    with Changing(store) as (table, _):
        for index in range(end, end + 5):
            table[keys.row_key(b"TP_audit_Topic", 0, index)] = other.tobytes()
    assert findings_of(store, code=(0,)) == []
    with Store.open(store) as opened:
        queue = opened.queues.find("TP_audit_Topic", 0)
        assert (queue.rows_end, queue.disk_end) == (end + 5, end)
        assert view_of(opened, "disk").bounds(queue).end == end


def test_a_file_broker_sees_no_queue(golden):
    with Store.open(golden(SOUND)) as store:
        prediction = preflight(store, "4.9.3")
    assert all(action.before == 0 for action in prediction.actions if action.action == "add rows")
    assert prediction.queues.added == 286


def test_a_store_that_lost_its_data_base_altogether(golden_copy):
    store = golden_copy("5.3.3/rocksdb-config-v1/store")
    shutil.rmtree(store / "consumequeue")
    assert {finding["category"]
            for finding in findings_of(store, "--only", "consumequeue", code=(1, 3))} == {
                "not-judged", "cq-missing"}


def test_the_copy_of_a_broker_that_writes_twice(golden_copy):
    store = golden_copy("5.3.3/rocksdb-double/store")
    assert {finding["category"] for finding in findings_of(store, code=(0,))} == {"not-judged"}
    with Store.open(store) as opened:
        (topic, queue_id), queue = next(item for item in opened.queues.by_key.items()
                                        if item[1].disk_end > 5)
        row = queue.unit(2)
    with Changing(store) as (table, _):
        del table[keys.row_key(topic.encode(), queue_id, 4)]
    [_, missing] = findings_of(store, code=(0,))
    assert (missing["category"], missing["severity"], missing["count"]) == ("cq-copy", "info", 1)
    with Changing(store) as (table, _):
        table[keys.row_key(topic.encode(), queue_id, 2)] = keys.ROW.build((
            row.physical_offset + 1, row.size, row.tags_code, 0))
    wrong = [finding for finding in findings_of(store, code=(1,))
             if finding["severity"] == "warning"]
    assert [(finding["category"], finding["queue_offset"]) for finding in wrong] == [("cq-copy", 2)]


def test_rows_as_a_table(golden):
    store = golden("5.3.3/rocksdb/store")
    counted = run("sql", store, "SELECT topic, queue_id, count(*) AS n, max(queue_offset) + 1 AS m,"
                  " max(position) AS p FROM consumequeue GROUP BY ALL", "-o", "jsonl").jsonl()
    with Store.open(store) as opened:
        assert {(row["topic"], row["queue_id"]): (row["n"], row["m"], row["p"])
                for row in counted} == {
            key: (queue.disk_end - queue.first_index, queue.disk_end, None)
            for key, queue in opened.queues.by_key.items()}
    joined = run("sql", store, "SELECT count(*) AS n FROM consumequeue c JOIN messages m ON "
                 "c.physical_offset = m.physical_offset AND c.size = m.total_size", "-o", "jsonl")
    assert joined.jsonl() == [{"n": 387}]


def test_queues_of_topics_that_are_not_configured(golden):
    """A broker deletes them, though not when it starts."""
    store = golden("5.3.3/rocksdb/store")
    answer = run("preflight", store, "-o", "json").expect(0).json()
    [note] = [note for note in answer["notes"] if "10 minutes after its start" in note]
    assert note == ("TP_fraud_Event4, TP_mail_Topic, TP_队列_login are not configured: 10 minutes "
                    "after its start a broker deletes the consume queues of these topics")
    whole = run("preflight", golden("5.3.3/rocksdb-config-v1/store"), "-o", "json").json()
    assert not any("10 minutes" in note for note in whole["notes"])


def test_no_table_has_less_rows_unsaid(golden_copy):
    """Where nothing is said beside the answer, a damaged block ends it."""
    store = golden_copy("5.3.3/rocksdb/store")
    table = max((store / "consumequeue").glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    data[100] ^= 4
    table.write_bytes(data)
    words = "SELECT count(*) AS n FROM consumequeue"
    assert "checksum" in run("sql", store, words).expect(5).err


def rows_of(store: Path, topic: str, code: int) -> list[dict]:
    return run("read", store, "-t", topic, "-o", "jsonl", "--body", "none").expect(code).jsonl()


def test_a_topic_is_read_from_the_log_as_a_rebuild_has_it(golden, golden_copy):
    """Half messages and rollbacks have no rows, so a data base that does not open makes none."""
    sound, damaged = golden("5.3.3/rocksdb/store"), golden_copy("5.3.3/rocksdb/store")
    (damaged / "consumequeue/CURRENT").write_bytes(b"x")
    for topic in ("TP_mail_Topic", "TP_fraud_Event4"):
        rows = rows_of(damaged, topic, 1)
        assert rows == rows_of(sound, topic, 0)
        everything = run("read", damaged, "-o", "jsonl", "--where", f"topic={topic}", "--body",
                         "none").expect(0).jsonl()
        assert {row["sys_flag"] & 4 for row in everything if row not in rows} == {4}


def test_a_row_that_leads_to_another_topic_is_not_followed(golden_copy):
    store = golden_copy(SOUND)
    with Store.open(store) as opened:
        key = next(key for key in opened.queues.by_key if key[0] != "TP_audit_Topic")
        other = opened.queues.find(*key).unit(0)
    sound = rows_of(store, "TP_audit_Topic", 0)
    with Changing(store) as (table, _):
        table[keys.row_key(b"TP_audit_Topic", 0, 3)] = keys.ROW.build((*other[:3], 1))
    done = run("read", store, "-t", "TP_audit_Topic", "-o", "jsonl", "--body", "none").expect(1)
    assert done.jsonl() == [row for row in sound if row["queue_id"] or row["queue_offset"] != 3]
    assert "TP_audit_Topic/0: entry 3 points to no message" in done.err
    assert "the message there belongs to " in done.err


def test_a_data_base_that_is_too_large_to_copy_is_not_damaged(golden, monkeypatch):
    """Nothing is rebuilt because of a limit of ours."""
    monkeypatch.setenv("RMQCTL_ROCKSDB_COPY", "100")
    with Store.open(golden(SOUND)) as opened:
        assert "RMQCTL_ROCKSDB_COPY=SIZE" in opened.layout.unread["consumequeue"]
        assert opened.layout.damaged == frozenset()
