"""`delete`: messages and all their copies are gone from every file; the store stays sound."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import pytest

from rmqctl.formats import bodies
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import Record, decode
from rmqctl.repair.erase.inner import inner_messages, is_empty
from rmqctl.repair.executor.apply_step import StepApplier
from rmqctl.store import Store
from tests.conftest import GoldenFolder
from tests.support import snapshot
from tests.support import tiny as tiny_stores
from tests.support.cli import run
from tests.support.layouts import layout_copy
from tests.support.tiny import DEFAULT, Options, Spec

SECRET = b"the private letter of customer 4711"
ID = "0A00000700000010"
NAMED = {"UNIQ_KEY": ID, "KEYS": "c4711", "TAGS": "A", "user": "4711"}
SPECS = (
    *DEFAULT,
    Spec("orders", 0, SECRET, NAMED),
    Spec("%RETRY%billing", 0, SECRET, {**NAMED, "RETRY_TOPIC": "orders"}),
    Spec("%DLQ%billing", 0, SECRET, {**NAMED, "DLQ_ORIGIN_TOPIC": "orders"}),
    Spec("RMQ_SYS_TRANS_HALF_TOPIC", 0, SECRET, {**NAMED, "REAL_TOPIC": "orders", "REAL_QID": "0"}),
    Spec("SCHEDULE_TOPIC_XXXX", 2, zlib.compress(SECRET),
         {**NAMED, "REAL_TOPIC": "orders", "REAL_QID": "0", "DELAY": "3"},
         sys_flag=sysflag.COMPRESSED),
    Spec("RMQ_SYS_TRACE_TOPIC", 0, "\1".join((
        "Pub", "1700000000000", "r", "g", "orders", ID, "A", "c4711", "h", "35", "3", "0", "",
        "true", "c")).encode() + b"\2"),
    Spec("bills", 0, b"another letter, of somebody else", {"UNIQ_KEY": "0A00000700000020"}),
)
COPIES = 6
PLAN = ("--apply", "--yes", "-o", "json")


@pytest.fixture(params=[False, True], ids=["plain", "appended-crc"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    tiny = tiny_stores.build(tmp_path / "store", SPECS, Options(
        append_crc=request.param, commitlog_file_size=2048))
    return Path(tiny.root)


def records(root: Path) -> Iterator[Record]:
    with Store.open(root) as store:
        for batch in store.log.walk(whole=True):
            yield from (decode(batch.bytes_at(row)) for row in range(len(batch)))


def files_containing(root: Path, body: bytes = SECRET) -> list[str]:
    """Where a run of 16 bytes of the body is, in files or in decompressed records."""
    runs = [body[at:at + 16] for at in range(len(body) - 15)]
    places = [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()
              and (data := path.read_bytes().rstrip(b"\0")) and any(run in data for run in runs)]
    for record in records(root):
        plain = bodies.decompressed(sysflag.compression(record.sys_flag), record.body)[0]
        places += [f"record {record.physical_offset}" for run in runs[:1] if run in plain]
    return places


def delete(root: Path, *words: object) -> dict[str, Any]:
    document: dict[str, Any] = run("delete", *words, *PLAN).expect(0).json()
    return document


WAYS = {
    "id": ("message", "--id", ID), "key": ("message", "--key", "c4711", "--topic", "orders"),
    "property": ("message", "--property", "user=4711"), "the key alone": ("key", "c4711"),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_run_of_the_body_is_left(way: str, root: Path) -> None:
    name, *options = WAYS[way]
    assert len(files_containing(root)) >= COPIES
    before = {record.physical_offset: record for record in records(root)}
    deletion = delete(root, name, root, *options, "--purge")
    assert files_containing(root) == []
    assert len(deletion["erased"]) == COPIES
    assert run("verify", root).expect(0)
    after = {record.physical_offset: record for record in records(root)}
    assert before.keys() == after.keys()
    gone = {line["physical_offset"] for line in deletion["erased"]}
    for physical, record in after.items():
        old = before[physical]
        if physical in gone:
            assert (record.total_size, record.topic, record.queue_id, record.queue_offset) == (
                old.total_size, old.topic, old.queue_id, old.queue_offset)
            assert b"c4711" not in record.properties
            assert record.crc_ok
            assert not any(record.body)
            assert b"RMQCTL\1erased" in record.properties or old.properties == b""
        else:
            assert record == old


def test_the_index_does_not_find_it(root: Path) -> None:
    run("query", "key", root, "--topic", "orders", "--key", "c4711").expect(0)
    delete(root, "message", root, "--id", ID)
    run("query", "key", root, "--topic", "orders", "--key", "c4711").expect(1)
    for key in ("k1", "k2", "k3"):
        run("query", "key", root, "--topic", "orders", "--key", key).expect(0)


@pytest.mark.parametrize("words", [("message", "--id", ID), ("topic", "orders"),
                                   ("group", "billing"), ("key", "c4711")], ids=" ".join)
def test_it_can_be_undone(words: tuple[str, ...], root: Path) -> None:
    before = snapshot.take(root)
    name, *rest = words
    delete(root, name, root, *rest)
    run("undo", root, "--yes").expect(0)
    changed = [line for line in before.differences(snapshot.take(root))
               if ".rmqctl" not in line and ": . (" not in line]
    assert changed == []


def test_a_list_of_ids_and_a_certificate(root: Path, tmp_path: Path) -> None:
    listed, certificate = tmp_path / "ids", tmp_path / "certificate.json"
    listed.write_bytes(f"\ufeff{ID}\r\n\r\n0A00000700000020 ".encode())
    delete(root, "message", root, "--list", listed, "--certificate", certificate, "--purge")
    document = json.loads(certificate.read_text())
    assert len(document["erased"]) == COPIES + 1
    assert all(len(line["sha256"]) == 64 for line in document["erased"])
    assert "c4711" not in certificate.read_text()
    assert files_containing(root,
                            b"another letter, of somebody else") == files_containing(root) == []


def test_the_certificate_after_an_interruption(root: Path, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run("delete", "message", root, "--id", ID, "-o", "json").json()["erased"]
    with monkeypatch.context() as patched:
        patched.setattr(StepApplier, "forward", interrupted)
        run("delete", "message", root, "--id", ID, *PLAN).expect(130)
    certificate = tmp_path / "certificate.json"
    delete(root, "message", root, "--id", "0A00000700000020", "--certificate", certificate)
    erased = json.loads(certificate.read_text())["erased"]
    assert [line for line in erased if line in expected] == expected
    assert len(erased) == len(expected) + 1


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_twice_is_once(root: Path) -> None:
    delete(root, "message", root, "--id", ID)
    again = delete(root, "message", root, "--id", ID)
    assert (again["actions"], again["erased"]) == ([], [])
    message_id = next(record.message_id for record in records(root) if record.topic == b"bills")
    delete(root, "message", root, "--id", message_id, "--id", message_id)
    again = delete(root, "message", root, "--id", message_id)
    assert (again["actions"], again["not_found"]) == ([], [])


@pytest.mark.parametrize("way", WAYS)
def test_a_message_that_claims_to_be_erased_is_erased(way: str, tmp_path: Path) -> None:
    claims = Spec("orders", 0, SECRET, {**NAMED, "RMQCTL": "erased"})
    root = Path(tiny_stores.build(tmp_path / "store", (*DEFAULT, claims)).root)
    name, *options = WAYS[way]
    delete(root, name, root, *options, "--purge")
    assert files_containing(root) == []
    assert delete(root, name, root, *options)["actions"] == []


def test_the_same_body_under_another_id_is_only_counted(tmp_path: Path) -> None:
    others = (Spec("bills", 0, SECRET, {"UNIQ_KEY": "0A00000700000030"}),
              Spec("bills", 0, SECRET, raw_properties=""))
    root = Path(tiny_stores.build(tmp_path / "store", (*SPECS, *others)).root)
    assert delete(root, "message", root, "--id", ID, "--purge")["same_body"] == 2
    assert files_containing(root)
    delete(root, "message", root, "--id", "0A00000700000030", "--purge", "--same-body")
    assert files_containing(root) == []


def test_an_id_that_a_stranger_chose_leads_to_no_other_message(tmp_path: Path) -> None:
    honest = Spec("bills", 0, b"the only copy of an invoice", {"UNIQ_KEY": "0A00000700000040"})
    for name, value in (("UNIQ_KEY", "0A00000700000040"),
                        ("ORIGIN_MESSAGE_ID", "0A00000700000040")):
        hostile = Spec("orders", 0, b"a message of a stranger", {
            "UNIQ_KEY": "0A00000700000050", "KEYS": "h", name: value})
        root = Path(tiny_stores.build(tmp_path / name, (*SPECS, honest, hostile)).root)
        deletion = delete(root, "message", root, "--key", "h", "--purge")
        assert files_containing(root, hostile.body) == []
        assert [line["topic"] for line in deletion["erased"]] == ["orders"]
        assert files_containing(root, honest.body)


def test_a_topic_goes_with_everything(root: Path) -> None:
    deletion = delete(root, "topic", root, "orders", "--purge")
    assert files_containing(root) == []
    assert not (root / "consumequeue/orders").exists()
    for name in ("topics.json", "consumerOffset.json"):
        assert "orders" not in (root / "config" / name).read_text()
    assert not any(record.topic == b"orders" for record in records(root))
    assert {line["what"] for line in deletion["erased"]} >= {"message", "retry", "dlq", "half"}
    run("verify", root).expect(0)
    # A rebuild does not bring it back.
    run("recover", root, "--only", "consumequeue,index", "--apply", "--yes").expect(0)
    assert not (root / "consumequeue/orders").exists()


def test_a_group_goes_with_everything(root: Path) -> None:
    delete(root, "group", root, "billing", "--purge")
    assert not list((root / "consumequeue").glob("*billing*"))
    assert "@billing" not in (root / "config/consumerOffset.json").read_text()
    assert b"billing" not in b"".join(record.topic for record in records(root))
    run("verify", root).expect(0)


@pytest.mark.parametrize("words", [("group", "billing"), ("topic", "%DLQ%billing"),
                                   ("topic", "%RETRY%billing")], ids=" ".join)
def test_messages_that_a_group_sent_back_are_not_erased_where_they_came_from(
        words: tuple[str, str], root: Path) -> None:
    own = {words[1]} if words[0] == "topic" else {"%RETRY%billing", "%DLQ%billing"}
    before = {record.physical_offset: record for record in records(root)}
    waiting = Spec("SCHEDULE_TOPIC_XXXX", 1, b"waits to be sent back", {
        **NAMED, "REAL_TOPIC": "%RETRY%billing", "REAL_QID": "0", "RETRY_TOPIC": "orders"})
    other = Path(tiny_stores.build(root.parent / "other", (*SPECS, waiting)).root)
    deletion = delete(root, *words[:1], root, words[1], "--purge")
    assert {line["topic"] for line in deletion["erased"]} == own
    after = {record.physical_offset: record for record in records(root)}
    assert {record.topic.decode() for physical, record in before.items()
            if after[physical] != record} == own
    deletion = delete(other, *words[:1], other, words[1])
    assert {line["topic"] for line in deletion["erased"]} == own | (
        set() if "%DLQ" in words[1] else {"SCHEDULE_TOPIC_XXXX"})


def test_a_message_passed_on_stays_when_its_first_topic_goes(tmp_path: Path) -> None:
    passed_on = (Spec("bills", 0, SECRET, NAMED),
                 Spec("%RETRY%others", 0, SECRET, {**NAMED, "RETRY_TOPIC": "bills"}))
    root = Path(tiny_stores.build(tmp_path / "store", (*SPECS, *passed_on)).root)
    deletion = delete(root, "topic", root, "orders")
    assert {line["topic"] for line in deletion["erased"]} >= {"orders", "%DLQ%billing"}
    assert not {line["topic"] for line in deletion["erased"]} & {"bills", "%RETRY%others"}
    assert deletion["same_body"] == len(passed_on)


@pytest.mark.parametrize("words", [("topic", "orders"), ("group", "billing")], ids=" ".join)
def test_queues_in_rocksdb(words: tuple[str, str], root: Path) -> None:
    pytest.importorskip("rocksdict")
    run("convert", root, "--consumequeue", "rocksdb", "--apply").expect(0)
    with Store.open(root) as store:
        queues = {*store.queues.by_key}
    delete(root, words[0], root, words[1])
    with Store.open(root) as store:
        assert queues - {*store.queues.by_key} == {key for key in queues if words[1] in key[0]}
    run("verify", root).expect(0)
    run("recover", root, "--apply", "--yes").expect(0)
    run("verify", root).expect(0)
    for _ in range(2):
        run("undo", root, "--yes")
    with Store.open(root) as store:
        assert {*store.queues.by_key} == queues


@pytest.mark.parametrize("words", [("topic", "TBW102"), ("topic", "SCHEDULE_TOPIC_XXXX"),
                                   ("group", "TOOLS_CONSUMER"), ("topic", "%LMQ%light")])
def test_what_a_broker_needs_stays(words: tuple[str, str], root: Path) -> None:
    run("delete", words[0], root, words[1]).expect(6)


@pytest.mark.parametrize("kind", ["topic", "group"])
@pytest.mark.parametrize("name", ["../commitlog", "..", ".", "", "/", "a/../../config", "a" * 256])
def test_a_name_leads_nowhere_else(kind: str, name: str, root: Path) -> None:
    before = snapshot.take(root)
    run("delete", kind, root, name, "--apply", "--yes", "--purge").expect(2)
    assert before.differences(snapshot.take(root)) in ([], ["changed: . (mtime_ns)"])


def test_purge_needs_consent(root: Path) -> None:
    before = snapshot.take(root)
    done = run("delete", "message", root, "--id", ID, "--purge", "--apply").expect(2)
    assert "--yes" in done.err
    assert before.differences(snapshot.take(root)) == []


@pytest.mark.parametrize("way", [("-q",), ("-o", "json"), ()], ids=" ".join)
def test_what_is_purged_is_not_said_to_come_back(way: tuple[str, ...], root: Path) -> None:
    plan = run("delete", "message", root, "--id", ID, "--purge", "-o", "json").expect(0).json()
    assert [step["effect"] for step in plan["steps"]] == ["irreversible"]
    done = run("delete", "message", root, "--id", ID, "--purge", "--apply", "--yes", *way).expect(0)
    assert "reverts" not in done.out + done.err
    assert "comes back" not in done.out
    assert not list((root / ".rmqctl/repairs").iterdir())


def test_what_purge_leaves_is_named(root: Path) -> None:
    # An opening of the store put this aside; no repair keeps it.
    (root / ".rmqctl/aside/1").mkdir(parents=True)
    (root / ".rmqctl/aside/1/torn").write_bytes(SECRET)
    done = run("delete", "message", root, "--id", ID, "--purge", *PLAN).expect(0)
    assert list(done.json()["bytes_left"].values()) == [len(SECRET)]
    assert ".rmqctl/aside/1/torn" in done.err
    # What a repair with a damaged journal keeps is not deleted.
    run("delete", "key", root, "k1", "--apply", "--yes").expect(0)
    [journal] = (root / ".rmqctl/repairs").glob("*/journal.jsonl")
    journal.write_bytes(b"{}\n" + journal.read_bytes())
    done = run("delete", "key", root, "k2", "--purge", "--apply", "--yes").expect(6)
    assert "are not deleted" in done.err or "damaged" in done.err


def test_bytes_of_an_earlier_use_are_counted(root: Path) -> None:
    last = max((root / "commitlog").iterdir())
    data = bytearray(last.read_bytes())
    data[-40:-40 + len(SECRET)] = SECRET
    last.write_bytes(data)
    deletion = delete(root, "message", root, "--id", ID, "--purge")
    assert list(deletion["bytes_left"].values()) == [len(SECRET)]


def test_it_finds_nothing_without_a_word(root: Path) -> None:
    run("delete", "message", root).expect(2)
    run("delete", "message", root, "--property", "user").expect(2)
    assert delete(root, "message", root, "--id", "0A0000070000FFFF")["actions"] == []


def test_what_leads_to_nothing_is_named(root: Path) -> None:
    done = run("delete", "message", root, "--id", ID, "--id", "0A0000070000FFFF", "-o", "json")
    assert done.json()["not_found"] == ["0A0000070000FFFF"]
    assert "1 of 2 ids" in done.err
    delete(root, "message", root, "--id", ID)
    assert delete(root, "message", root, "--id", ID)["not_found"] == [ID]
    assert "did you mean orders" in run("delete", "topic", root, "ordres").expect(0).err
    assert "group biling" in run("delete", "group", root, "biling").expect(0).err


def test_a_message_that_damage_hides_is_not_kept_silent(root: Path) -> None:
    chosen = [record for record in records(root) if record.topic == b"bills"][-1]
    log = max((root / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    at = chosen.physical_offset - int(log.name)
    data[at:at + 20] = b"\xff" * 20
    log.write_bytes(data)
    for words in (("message", root, "--id", "0A00000700000020"), ("topic", root, "bills")):
        assert "damaged" in run("delete", *words).expect(0).err


def test_a_topic_that_light_queues_share_keeps_its_queues(golden: GoldenFolder,
                                                          tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden("5.3.3/lmq/store"), root)
    topic = next(record.topic for record in records(root)
                 if b"INNER_MULTI_DISPATCH" in record.properties).decode()
    before = run("verify", root, "-o", "json").json()["findings"]
    done = run("delete", "topic", root, topic, *PLAN, "--purge").expect(0)
    assert done.json()["erased"]
    assert f"topic {topic} keeps its queues" in done.err
    assert not any(any(record.body) for record in records(root) if record.topic == topic.encode())
    assert run("verify", root, "-o", "json").json()["findings"] == before
    run("preflight", root).expect(0)
    again = run("delete", "topic", root, topic, "-o", "json").expect(0)
    assert again.json()["actions"] == []
    assert "nothing of topic" not in again.err


@pytest.fixture
def batched(golden: GoldenFolder, tmp_path: Path) -> tuple[Path, list[Record]]:
    """A store with batches of several messages, and these."""
    root = tmp_path / "store"
    shutil.copytree(golden("5.3.3/batchcq/store"), root)
    return root, [record for record in records(root) if len(inner_messages(record)) > 1]


def test_a_message_of_a_batch(batched: tuple[Path, list[Record]]) -> None:
    root, batches = batched
    items = [item for record in batches for item in inner_messages(record)]
    chosen = next(item for item in items if item.unique_key and len(item.body) >= 16 and sum(
        item.body in other.body for other in items) == 1)
    assert chosen.unique_key is not None
    before = list(records(root))
    deletion = delete(root, "message", root, "--id", chosen.unique_key.decode(), "--purge")
    assert [line["what"] for line in deletion["erased"]] == ["in a batch"]
    assert [action["proof"] for action in deletion["actions"]] == deletion["erased"]
    assert deletion["erased"][0]["body_sha256"] == hashlib.sha256(chosen.body).hexdigest()
    assert files_containing(root, chosen.body) == []
    # All else is as it was, and readable.
    after = list(records(root))
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 1
    [(old, new)] = changed
    assert new.crc_ok
    assert (new.total_size, new.properties) == (old.total_size, old.properties)
    left = [item for item in inner_messages(old) if item != chosen]
    assert [item for item in inner_messages(new) if not is_empty(item)] == left
    assert [(item.at, item.size) for item in inner_messages(new)] == [
        (item.at, item.size) for item in inner_messages(old)]
    run("verify", root).expect(0)
    assert delete(root, "message", root, "--id", chosen.unique_key.decode())["actions"] == []


def test_messages_of_batches_are_found_by_their_own_keys_and_properties(
        batched: tuple[Path, list[Record]]) -> None:
    root, batches = batched
    topic, chosen = next((record.topic.decode(), item) for record in batches
                         for item in inner_messages(record) if b"KEYS\1" in item.properties
                         and len(item.body) >= 16)
    properties = props.parse(chosen.properties.decode())
    for way in (("--key", properties["KEYS"].split()[0]),
                ("--property", f"KEYS={properties['KEYS']}"),
                ("--key", properties["KEYS"].split()[0], "--topic", topic)):
        plan = run("delete", "message", root, *way, "-o", "json").expect(0).json()
        assert hashlib.sha256(chosen.body).hexdigest() in {
            line["body_sha256"] for line in plan["erased"] if line["what"] == "in a batch"}
    assert run("delete", "message", root, *way[:2], "--topic", "another", "-o", "json").expect(
        0).json()["erased"] == []
    delete(root, "message", root, *way, "--purge")
    assert files_containing(root, chosen.body) == []
    assert delete(root, "message", root, *way)["erased"] == []


def test_a_batch_that_is_named_goes_with_all_its_messages(
        batched: tuple[Path, list[Record]]) -> None:
    root, [batch, *_] = batched
    bodies_of = [item.body for item in inner_messages(batch)]
    delete(root, "message", root, "--id", batch.message_id, "--purge", "--same-body")
    left = {item.body for record in records(root) for item in inner_messages(record)}
    left |= {bytes(record.body) for record in records(root)}
    assert not left & {body for body in bodies_of if len(body) >= 16}


def is_text(body: bytes) -> bool:
    return body.decode("utf-8", "replace").encode() == body


def test_the_same_body_in_a_batch_is_only_counted(batched: tuple[Path, list[Record]]) -> None:
    root, batches = batched
    copied = next(item for record in batches for item in inner_messages(record)
                  if len(item.body) >= 16 and is_text(item.body))
    lines = root.parent / "lines"
    lines.write_text(json.dumps({"topic": "TopicTest", "body": copied.body.decode(),
                                 "properties": {"UNIQ_KEY": "0A00000700000060"}}) + "\n")
    run("append", root, lines, "--auto-create-topic").expect(0)
    deletion = delete(root, "message", root, "--id", "0A00000700000060")
    assert deletion["same_body"] >= 1
    assert "in a batch" not in {line["what"] for line in deletion["erased"]}


@pytest.mark.parametrize("name", ["4.9.3/dledger", "5.3.3/dledger"])
def test_a_dledger_log(name: str, tmp_path: Path) -> None:
    root = layout_copy(name, tmp_path)
    chosen = next(record for record in records(root) if 40 <= len(record.body) < 200)
    delete(root, "message", root, "--id", chosen.message_id, "--purge")
    assert files_containing(root, bytes(chosen.body)) == []
    run("verify", root).expect(0)
    run("preflight", root).expect(0)


@pytest.mark.parametrize("words", [("topic", "orders"), ("group", "billing")], ids=" ".join)
def test_what_consumers_registered_goes(words: tuple[str, str], root: Path) -> None:
    def of(topic: str, group: str) -> dict[str, str]:
        return {"consumerGroup": group, "expression": "a > 5", "topic": topic}

    pairs = [(topic, group) for topic in ("orders", "bills") for group in ("billing", "audit")]
    config = root / "config"
    for name, document in {
            "consumerFilter.json": {"filterDataByTopic": {
                topic: {"groupFilterData": {group: of(topic, group)
                                            for group in ("billing", "audit")}, "topic": topic}
                for topic in ("orders", "bills")}},
            "messageRequestMode.json": {"messageRequestModeMap": {
                topic: {group: of(topic, group) for group in ("billing", "audit")}
                for topic in ("orders", "bills")}}}.items():
        (config / name).write_text(json.dumps(document))
    (config / "consumerOrderInfo.json").write_text('{"table":{' + ",".join(
        f'"{topic}@{group}":{{0:{{"popTime":1,"o":[3,1],"ot":{{4:9}}}}}}'
        for topic, group in pairs) + "}}")
    delete(root, words[0], root, words[1])
    left = [pair for pair in pairs if words[1] not in pair]
    filters = json.loads((config / "consumerFilter.json").read_text())["filterDataByTopic"]
    modes = json.loads((config / "messageRequestMode.json").read_text())["messageRequestModeMap"]
    assert [(topic, group) for topic, entry in filters.items()
            for group in entry["groupFilterData"]] == left
    assert [(topic, group) for topic, groups in modes.items() for group in groups] == left
    orders = (config / "consumerOrderInfo.json").read_text()
    assert [pair for pair in pairs if "@".join(pair) in orders] == left
    assert orders.count("popTime") == len(left)
    assert orders.count("4:9") == len(left)
    run("verify", root).expect(0)
    run("undo", root, "--yes").expect(0)
    assert all("@".join(pair) in (config / "consumerOrderInfo.json").read_text()
               for pair in pairs)


POP = (("%RETRY%bill_orders", b"of a group with POP"), ("%RETRY%bill_ing_orders", b"of either"),
       ("%RETRY%bill+orders", b"of its newer form"), ("%RETRY%bill_gone", b"of a topic gone"),
       ("%RETRY%bill_audit", b"of another group"), ("%RETRY%bills", b"of a longer name"))


@pytest.mark.parametrize(("topics", "groups", "goes", "undecided"), [
    ((), (), {"bill_orders", "bill+orders"}, {"bill_gone", "bill_audit", "bill_ing_orders"}),
    # Another group, or another topic, gives the same name.
    ((), ("bill_orders",), {"bill+orders"},
     {"bill_orders", "bill_gone", "bill_audit", "bill_ing_orders"}),
    (("ing_orders",), (), {"bill_orders", "bill+orders", "bill_ing_orders"},
     {"bill_gone", "bill_audit"}),
    (("ing_orders",), ("bill_ing",), {"bill_orders", "bill+orders"},
     {"bill_gone", "bill_audit", "bill_ing_orders"}),
    # What can only be another group's is not this one's.
    ((), ("bill_audit", "bill_ing"), {"bill_orders", "bill+orders"}, {"bill_gone"}),
])
def test_retry_topics_of_pop_go_with_the_only_group_that_they_can_be_of(
        topics: tuple[str, ...], groups: tuple[str, ...], goes: set[str], undecided: set[str],
        tmp_path: Path) -> None:
    specs = (*SPECS, *(Spec(topic, 0, body) for topic, body in POP),
             *(Spec(topic, 0, b"of another topic") for topic in topics))
    root = Path(tiny_stores.build(tmp_path / "store", specs).root)
    (root / "config/subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": {
        group: {"groupName": group} for group in ("bill", "other", *groups)}}))
    done = run("delete", "group", root, "bill", *PLAN).expect(0)
    assert {line["topic"] for line in done.json()["erased"]} == {f"%RETRY%{name}" for name in goes}
    left = {path.name.removeprefix("%RETRY%") for path in (root / "consumequeue").iterdir()}
    assert not left & goes
    named = {name for name in left if f"delete topic {root} %RETRY%{name}`" in done.err}
    assert named == undecided
    run("verify", root, "--only", "commitlog,consumequeue,index").expect(0)
    # A name that another group's POP gives, too, is not the group's alone.
    run("undo", root, "--yes").expect(0)
    plan = run("delete", "group", root, "bill_orders", "-o", "json").expect(0)
    assert "%RETRY%bill_orders" not in {line["topic"] for line in plan.json()["erased"]}
    assert f"delete topic {root} %RETRY%bill_orders`" in plan.err


def packed(*messages: tuple[bytes, dict[str, str]]) -> bytes:
    """The body of a batch."""
    parts = []
    for content, message in messages:
        text = props.build(message).encode()
        parts += [struct.pack(">iiiii", 22 + len(content) + len(text), 0, 0, 0, len(content)),
                  content, struct.pack(">h", len(text)), text]
    return b"".join(parts)


@pytest.mark.parametrize("way", [("message", "--id", "0A000007000000B1"), ("key", "in-b1"),
                                 ("message", "--property", "user=b1")], ids=" ".join)
@pytest.mark.parametrize(("kind", "compress"), [
    (1, lz4.frame.compress), (2, bodies.zstd().compress), (3, zlib.compress)])
def test_a_compressed_batch_is_erased_on_request_only(
        kind: int, compress: Callable[[bytes], bytes], way: tuple[str, ...],
        tmp_path: Path) -> None:
    inner = [(f"the letter number {number} of the batch".encode(), {
        "UNIQ_KEY": f"0A000007000000B{number}", "KEYS": f"in-b{number}", "user": f"b{number}"})
        for number in range(3)]
    flags = (sysflag.COMPRESSED | sysflag.INNER_BATCH | sysflag.NEED_UNWRAP
             | kind << sysflag.COMPRESSION_SHIFT)
    batch = Spec("orders", 1, compress(packed(*inner)), {"UNIQ_KEY": "0A000007000000C0"},
                 sys_flag=flags)
    root = Path(tiny_stores.build(tmp_path / "store", (*SPECS, batch)).root)
    name, *options = way
    before = [*records(root)]
    done = run("delete", name, root, *options, *PLAN).expect(0)
    assert (done.json()["erased"], done.json()["batches_left"], done.json()["not_found"]) == (
        [], 1, [])
    assert "--whole-batches also erases 2 other messages" in done.err
    assert [*records(root)] == before
    deletion = delete(root, name, root, *options, "--whole-batches", "--purge")
    assert [line["what"] for line in deletion["erased"]] == ["batch"]
    assert (deletion["batches_left"], deletion["not_found"]) == (0, [])
    assert files_containing(root, inner[1][0]) == []
    assert [old for old, new in zip(before, records(root), strict=True) if old != new] == [
        record for record in before if record.body == batch.body]
    run("verify", root).expect(0)


@pytest.mark.parametrize("words", [("topic", "orders"), ("key", "k")], ids=" ".join)
def test_a_small_delayed_message_does_not_stop_its_level(words: tuple[str, str],
                                                         tmp_path: Path) -> None:
    # The record has no space for what takes its place otherwise.
    waits = {"REAL_TOPIC": "orders", "REAL_QID": "0", "DELAY": "3"}
    small = Spec("SCHEDULE_TOPIC_XXXX", 2, b"1", waits if words[0] == "topic" else {
        **waits, "KEYS": "k"})
    root = Path(tiny_stores.build(tmp_path / "store", (*DEFAULT, small)).root)
    delete(root, *words[:1], root, *words[1:], "--purge")
    [record] = [record for record in records(root) if record.topic == b"SCHEDULE_TOPIC_XXXX"]
    assert not any(record.body)
    properties = props.parse(record.properties.decode())
    # A broker of 4.9.3 reads the queue id for ever where it is no number.
    assert properties["REAL_QID"].isdecimal()
    assert (properties["DELAY"], "KEYS" in properties) == ("3", False)
    run("verify", root).expect(0)
    assert delete(root, *words[:1], root, *words[1:])["erased"] == []
