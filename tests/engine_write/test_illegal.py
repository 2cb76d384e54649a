"""Messages the store may not take, and lines that are none: the answer, and what stays."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmqctl.broker.settings import Settings
from rmqctl.engine.engine import Engine
from rmqctl.engine.put.message import BatchItem, Outgoing, OutgoingBatch
from rmqctl.formats.local import append_crc
from rmqctl.formats.local.message import BLANK_SIZE, MAGIC_V1, MAGIC_V2, size_of
from tests.conftest import Runner
from tests.engine_write.durable import (
    append,
    assert_whole,
    line,
    lines,
    new_store,
    numbers_in_log,
)
from tests.support import snapshot

MIB = 1 << 20
PROPERTIES = 32767
VERSIONS = ("4.9.3", "5.3.3")
EACH_VERSION = pytest.mark.parametrize("version", VERSIONS)
TOPICS = ("T1", "a" * 127, "b" * 128, "%RETRY%" + "c" * 121)


@pytest.fixture
def store(tmp_path: Path, rmqctl: Runner) -> Path:
    root = new_store(rmqctl, tmp_path / "store", "--commitlog-file-size", "64KiB")
    append(rmqctl, root, lines(0, 20))
    return root


def engine_store(rmqctl: Runner, root: Path, version: str, size: str = "16MiB") -> Path:
    root = new_store(rmqctl, root, "--commitlog-file-size", size, version=version)
    append(rmqctl, root, lines(0, 3))
    return root


def settings(version: str, **changes: object) -> Settings:
    return Settings(**{"version": version, "commitlog_file_size": 16 * MIB,
                       "consumequeue_file_size": 400, "index_slots": 50, "index_max": 200,
                       **changes})


def put(root: Path, message: Outgoing | OutgoingBatch, given: Settings):
    with Engine.open(root, given) as engine:
        return engine.put(message)


def refused(root: Path, message: Outgoing | OutgoingBatch, given: Settings, status: str) -> str:
    """The reason; nothing of the store is touched, not even to open and close it."""
    with snapshot.assert_unchanged(root):
        result = put(root, message, given)
    assert (result.status, result.physical_offset, result.wrote_bytes) == (status, None, None)
    assert result.reason
    return result.reason


def taken(root: Path, message: Outgoing | OutgoingBatch, given: Settings) -> None:
    result = put(root, message, given)
    assert result.status == "PUT_OK", result


# -- through the command line ---------------------------------------------------------------------


@dataclass(frozen=True)
class Illegal:
    """What is given to `write`, and what a broker answers."""

    words: tuple[str, ...]
    status: str = "MESSAGE_ILLEGAL"
    reason: str = ""


LONG = "v" * (PROPERTIES + 1)
ILLEGAL = {
    "topic-long": Illegal(("--topic", "t" * 256, "--body", "x")),
    "topic-empty": Illegal(("--topic", "", "--body", "x")),
    "topic-slash": Illegal(("--topic", "a/b", "--body", "x")),
    "topic-dots": Illegal(("--topic", "..", "--body", "x")),
    "properties-long": Illegal(("--topic", "T1", "--body", "x", "--property", f"A={LONG}"),
                               "MESSAGE_ILLEGAL|PROPERTIES_SIZE_EXCEEDED"),
    "body-does-not-fit": Illegal(("--topic", "T1", "--body", "x" * 65536)),
    "queue-too-large": Illegal(("--topic", "T1", "--body", "x", "--queue", str(1 << 31))),
    "inner-number": Illegal(("--topic", "T1", "--body", "x", "--property", "INNER_NUM=2")),
    "delay-no-number": Illegal(("--topic", "T1", "--body", "x", "--property", "DELAY=x")),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_write_says_the_status_and_touches_nothing(store, rmqctl, name):
    case = ILLEGAL[name]
    for more in ((), ("--dry-run",), ("--auto-create-topic",)):
        with snapshot.assert_unchanged(store):
            done = rmqctl("write", store, *case.words, *more, "-o", "json").expect(6)
        answer = done.json()
        assert answer["status"] in case.status.split("|"), done.describe()
        assert answer["physical_offset"] is None
        assert answer["status"] in done.err
        assert answer["reason"] in done.err
        # In the end one message more, if it is a legal one, makes the store no worse.
    rmqctl("write", store, "--topic", "T1", "--body", "message 77").expect(0)
    assert_whole(rmqctl, store, [])


@pytest.mark.parametrize("given", [
    {"topic": "t" * 256, "body": "x"}, {"topic": "", "body": "x"}, {"topic": "a/b", "body": "x"},
    {"topic": "T1", "body": "x" * 65536}, {"topic": "T1", "body": "x", "queue_id": 1 << 31},
    {"topic": "T1", "body": "x", "properties": {"A": LONG}},
    {"topic": "T1", "body": "x", "flag": 1 << 40},
    {"topic": 7, "body": "x"}, {"body": "x"}, {"topic": "T1"}, [], "x", None])
@pytest.mark.parametrize("manner", [(), ("--on-error", "skip")])
def test_append_of_nothing_but_illegal_lines_touches_nothing(store, tmp_path, rmqctl, given,
                                                            manner):
    source = tmp_path / "source"
    source.write_text(json.dumps(given) + "\n")
    with snapshot.assert_unchanged(store):
        done = rmqctl("append", store, source, *manner).expect(1 if manner else 6)
    assert "line 1" in done.err


@pytest.mark.parametrize("version", VERSIONS)
def test_a_body_of_four_mebibytes(tmp_path, rmqctl, version):
    root = new_store(rmqctl, tmp_path / "store", "--commitlog-file-size", "16MiB",
                     version=version)
    payload = tmp_path / "body"
    # 4.9.3 limits the record, 5.3.3 the body; the properties come on top.
    payload.write_bytes(b"x" * (4 * MIB + 1))
    with snapshot.assert_unchanged(root):
        done = rmqctl("write", root, "--topic", "T1", "--body-file", payload, "-o",
                      "json").expect(6)
    assert done.json()["status"] == "MESSAGE_ILLEGAL"
    payload.write_bytes(b"x" * (4 * MIB - (1024 if version == "4.9.3" else 0)))
    rmqctl("write", root, "--topic", "T1", "--body-file", payload, "-o", "json").expect(0)
    rmqctl("verify", root).expect(0)


# -- at every limit -------------------------------------------------------------------------------


@EACH_VERSION
def test_the_length_of_topics(tmp_path, rmqctl, version):
    root, given = engine_store(rmqctl, tmp_path / "store", version), settings(version)
    taken(root, Outgoing("t" * 126, b"message 1"), given)
    taken(root, Outgoing("t" * 127, b"message 1"), given)
    refused(root, Outgoing("t" * 128, b"message 1"), given, "MESSAGE_ILLEGAL")
    if version == "5.3.3":
        taken(root, Outgoing("%RETRY%" + "t" * 247, b"message 1"), given)
        taken(root, Outgoing("%RETRY%" + "t" * 248, b"message 1"), given)
        refused(root, Outgoing("%RETRY%" + "t" * 249, b"message 1"), given, "MESSAGE_ILLEGAL")
    rmqctl("verify", root).expect(0)


@EACH_VERSION
@pytest.mark.parametrize("crc", [False, True])
def test_the_length_of_properties(tmp_path, rmqctl, version, crc):
    if crc and version == "4.9.3":
        pytest.skip("no CRC is appended there")
    root = engine_store(rmqctl, tmp_path / "store", version)
    given = settings(version, append_properties_crc=crc)
    # The last separator is added where it is missing, and the CRC takes a place of its own.
    most = PROPERTIES - (append_crc.SIZE if crc else 0)
    for length in (most - 1, most):
        text = "A\1" + "v" * (length - 3) + "\2"
        assert len(text) == length
        taken(root, Outgoing("T1", b"message 1", text), given)
    over = "A\1" + "v" * (most - 2) + "\2"
    reason = refused(root, Outgoing("T1", b"message 1", over), given,
                     "PROPERTIES_SIZE_EXCEEDED" if version == "5.3.3" or crc
                     else "MESSAGE_ILLEGAL")
    assert str(PROPERTIES) in reason
    # Characters are not bytes.
    wide = "A\1" + "ü" * (PROPERTIES // 2) + "\2"
    refused(root, Outgoing("T1", b"message 1", wide), given, "PROPERTIES_SIZE_EXCEEDED")
    rmqctl("verify", root).expect(0)


LIMIT = 2000


def record_size(version: str, body: int, topic: str = "T1", properties: int = 0) -> int:
    return size_of(0, MAGIC_V1 if version == "4.9.3" or len(topic) <= 127 else MAGIC_V2, body,
                   len(topic), properties)


@EACH_VERSION
def test_the_length_of_bodies(tmp_path, rmqctl, version):
    """4.9.3 limits the record, 5.3.3 the body, and the record to 64 KiB more."""
    root = engine_store(rmqctl, tmp_path / "store", version)
    given = settings(version, max_message_size=LIMIT)
    most = LIMIT if version == "5.3.3" else LIMIT - record_size(version, 0)
    for length in (most - 1, most):
        taken(root, Outgoing("T1", b"m" * length), given)
    reason = refused(root, Outgoing("T1", b"m" * (most + 1)), given, "MESSAGE_ILLEGAL")
    assert str(LIMIT) in reason
    rmqctl("verify", root).expect(0)


@EACH_VERSION
def test_the_length_of_batches(tmp_path, rmqctl, version):
    root = engine_store(rmqctl, tmp_path / "store", version)
    given = settings(version, max_message_size=LIMIT)

    def batch(length: int) -> OutgoingBatch:
        return OutgoingBatch("T1", [BatchItem(b"m" * 100), BatchItem(b"m" * length)], "", 0)

    with Engine.open(root, given) as engine:
        most = max(length for length in range(1500, LIMIT)
                   if engine.put(batch(length)).status == "PUT_OK")
    assert 1600 < most < LIMIT
    refused(root, batch(most + 1), given, "MESSAGE_ILLEGAL")
    taken(root, batch(most), given)
    taken(root, batch(most - 1), given)
    refused(root, OutgoingBatch("T1", [], "", 0), given, "MESSAGE_ILLEGAL")
    rmqctl("verify", root).expect(0)


@EACH_VERSION
@pytest.mark.parametrize("batch", [False, True])
def test_records_that_do_not_fit_a_file(tmp_path, rmqctl, version, batch):
    """One that fills a file but for the room of the blank is the longest there can be."""
    size = 4096
    root = new_store(rmqctl, tmp_path / "store", "--commitlog-file-size", str(size),
                     version=version)
    given = settings(version, commitlog_file_size=size)
    most = size - BLANK_SIZE - record_size(version, 0)

    def message(length: int) -> Outgoing | OutgoingBatch:
        data = b"m" * length
        return OutgoingBatch("T1", [BatchItem(data)], "", 0) if batch else Outgoing("T1", data)

    refused(root, message(most + 1), given, "MESSAGE_ILLEGAL")
    for length in (most, most - 1, most, 1):
        taken(root, message(length), given)
        refused(root, message(most + 1), given, "MESSAGE_ILLEGAL")
    rmqctl("verify", root).expect(0)


@EACH_VERSION
def test_of_a_group_the_illegal_ones_leave_no_trace(tmp_path, rmqctl, version):
    """What is put is the same whether or not there are illegal messages in between."""
    legal = [Outgoing(f"T{n % 3}", b"message %d" % n, f"KEYS\1k{n}\2", n % 2, born_timestamp=1,
                      store_timestamp=1_700_000_000_000 + n) for n in range(60)]
    bad = Outgoing("", b"x")
    mixed = [put_result for message in legal
             for put_result in (bad, message, Outgoing("t" * 300, b"x"))]
    contents = []
    for name, group in (("plain", legal), ("mixed", mixed)):
        root = new_store(rmqctl, tmp_path / name, version=version)
        given = settings(version, commitlog_file_size=16 << 10)
        with Engine.open(root, given) as engine:
            results = engine.put_many(group)
        assert sum(put_result.stored for put_result in results) == len(legal)
        contents.append({str(path.relative_to(root)): path.read_bytes()
                         for tree in ("commitlog", "consumequeue")
                         for path in sorted((root / tree).rglob("*")) if path.is_file()})
    assert contents[0] == contents[1]


# -- broken lines in a long input -----------------------------------------------------------------

BROKEN = {
    "no JSON": (b'{"topic": "T1", "body": "x"', "column"),
    "not UTF-8": (b'{"topic": "T1", "body": "\xff"}', "UTF-8"),
    "no object": (b"[1, 2]", "object"),
    "no topic": (b'{"body": "x"}', "topic"),
    "wrong type": (b'{"topic": "T1", "body": 5}', "body"),
    "illegal": (b'{"topic": "a/b", "body": "x"}', "MESSAGE_ILLEGAL"),
    "no base64": (b'{"topic": "T1", "body": "%%%", "body_encoding": "base64"}', "base64"),
}
EACH_BROKEN = pytest.mark.parametrize("name", BROKEN)


def with_broken(name: str, *places: int, count: int = 40) -> bytes:
    """Good lines 0, 1, 2… with a broken one before each of the places."""
    rows = [line(number) for number in range(count)]
    for place in sorted(places, reverse=True):
        rows.insert(place, BROKEN[name][0] + b"\n")
    return b"".join(rows)


@EACH_BROKEN
def test_stop_keeps_what_came_before(tmp_path, rmqctl, name):
    root = new_store(rmqctl, tmp_path / "store")
    source = tmp_path / "source"
    source.write_bytes(with_broken(name, 17))
    done = rmqctl("append", root, source, "-o", "json").expect(6)
    assert "line 18" in done.err
    assert BROKEN[name][1] in done.err
    summary = done.json()
    assert (summary["messages"], summary["stopped_at_line"]) == (17, 18)
    assert numbers_in_log(root) == list(range(17))
    assert_whole(rmqctl, root, [])


@EACH_BROKEN
def test_stop_prints_the_results_before(tmp_path, rmqctl, name):
    root = new_store(rmqctl, tmp_path / "store")
    source = tmp_path / "source"
    source.write_bytes(with_broken(name, 17))
    done = rmqctl("append", root, source, "-o", "jsonl").expect(6)
    stored = [row for row in done.jsonl() if row["physical_offset"] is not None]
    assert [row["line"] for row in stored] == list(range(1, 18))
    assert "17 messages" in done.err


@EACH_BROKEN
def test_skip_goes_on(tmp_path, rmqctl, name):
    root = new_store(rmqctl, tmp_path / "store")
    source = tmp_path / "source"
    source.write_bytes(with_broken(name, 0, 17, 40))
    done = rmqctl("append", root, source, "--on-error", "skip", "-o", "json").expect(1)
    for number in (1, 19, 43):
        assert f"line {number}:" in done.err
    summary = done.json()
    assert (summary["messages"], summary["refused"]) == (40, 3)
    assert numbers_in_log(root) == list(range(40))
    assert_whole(rmqctl, root, [])


@EACH_BROKEN
def test_collect_keeps_the_lines(tmp_path, rmqctl, name):
    root = new_store(rmqctl, tmp_path / "store")
    source, kept = tmp_path / "source", tmp_path / "kept"
    source.write_bytes(with_broken(name, 0, 17, 40))
    rmqctl("append", root, source, "--on-error", "collect", kept).expect(1)
    assert kept.read_bytes() == (BROKEN[name][0] + b"\n") * 3
    assert numbers_in_log(root) == list(range(40))
    # Never over a file that is there.
    with snapshot.assert_unchanged(root, kept):
        rmqctl("append", root, source, "--on-error", "collect", kept).expect(2)


def test_a_collection_that_cannot_be_written_is_reported_at_once(tmp_path, rmqctl):
    root = new_store(rmqctl, tmp_path / "store")
    source = tmp_path / "source"
    source.write_bytes(with_broken("no JSON", 17))
    with snapshot.assert_unchanged(root):
        done = rmqctl("append", root, source, "--on-error", "collect",
                      tmp_path / "nowhere" / "kept").expect(5)
    assert "nowhere" in done.err


def test_a_line_that_is_far_too_long(tmp_path, rmqctl):
    root = new_store(rmqctl, tmp_path / "store")
    source = tmp_path / "source"
    long = b'{"topic": "T1", "body": "' + b"x" * (70 << 20) + b'"}\n'
    source.write_bytes(line(0) + long + line(1))
    done = rmqctl("append", root, source, "--on-error", "skip", "-o", "json").expect(1)
    assert "line 2: longer than" in done.err
    assert numbers_in_log(root) == [0, 1]


def test_a_recorded_inner_batch_needs_its_kind_of_queue(tmp_path, rmqctl):
    """In a plain consumequeue its one row would stand for many messages."""
    root = new_store(rmqctl, tmp_path / "store")
    row = {"topic": "b", "body": "x", "sys_flag": 0x80, "born_timestamp": 1, "store_timestamp": 1,
           "born_host": "10.0.0.1:1", "store_host": "10.0.0.1:1",
           "properties_raw": "INNER_BASE\x010\x02INNER_NUM\x013\x02"}
    source = tmp_path / "source"
    source.write_text(json.dumps(row) + "\n")
    with snapshot.assert_unchanged(root):
        done = rmqctl("append", root, source, "--as-recorded").expect(6)
        assert "BatchCQ" in done.err
    rmqctl("topic", "create", root, "b", "--attribute", "queue.type=BatchCQ").expect(0)
    rmqctl("append", root, source, "--as-recorded").expect(0)
    assert [path.name for path in (root / "batchconsumequeue").iterdir()] == ["b"]
    rmqctl("verify", root).expect(0)


def test_a_recorded_multi_dispatch_gets_its_rows(tmp_path, rmqctl):
    """Whatever the store was made for: the record says which rows it has."""
    root = new_store(rmqctl, tmp_path / "store")
    row = {"topic": "t", "body": "x", "born_timestamp": 1, "store_timestamp": 1,
           "born_host": "10.0.0.1:1", "store_host": "10.0.0.1:1", "queue_offset": 0,
           "properties_raw": "INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"}
    source = tmp_path / "source"
    source.write_text(json.dumps(row) + "\n")
    rmqctl("append", root, source, "--as-recorded").expect(0)
    assert (root / "consumequeue" / "%LMQ%a" / "0").is_dir()
    rmqctl("verify", root).expect(0)
