"""Keys that are objects: the offsets.json of a broadcasting consumer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqctl.errors import FormatError
from rmqctl.formats.config import config_json, object_keys
from tests.conftest import Runner
from tests.repair.test_offsets_reset import store_of

TABLE = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"prices"}:77}}'
PRETTY = (b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"b{}","queueId":3,\n\t\t\t"topic":"T,:x"\n\t'
          b'\t}:42,{"topic":"T,:x","queueId":1,"brokerName":"b{}"}:40\n\t}\n}')


@pytest.fixture
def main(tmp_path: Path) -> Path:
    """Where a client has the file of the group ``g``."""
    folder = tmp_path / ".rocketmq_offsets" / "10.0.0.1@DEFAULT" / "g"
    folder.mkdir(parents=True)
    return folder / "offsets.json"


@pytest.mark.parametrize(("data", "rows"), [
    (TABLE, [("prices", "broker-a", 0, 77)]),
    (PRETTY, [("T,:x", "b{}", 3, 42), ("T,:x", "b{}", 1, 40)]),
    (b'{"offsetTable":{}}', [])])
def test_offsets_of_a_client(main: Path, rmqctl: Runner, data: bytes, rows: list[object]) -> None:
    elsewhere = main.parents[3] / "copy.json"
    for path in (main, main.with_name("offsets.json.bak"), *([elsewhere] if rows else [])):
        path.write_bytes(data)
        entries = rmqctl("dump", path, "-o", "jsonl").expect(0).jsonl()
        assert [(row["topic"], row["broker"], row["queue_id"], row["queue_offset"])
                for row in entries] == rows


@pytest.mark.parametrize(("data", "offset", "field"), [
    (TABLE[:-1], 74, "$"), (TABLE[:40], 40, "$.(key)"), (b"\0" * 60, 0, "$"), (b"", 0, "$"),
    (TABLE.replace(b"queueId", b"queue"), 16, "$.offsetTable"),
    (TABLE.replace(b"0,", b'"0",'), 16, "$.offsetTable"),
    (TABLE.replace(b"77", b"true"), 0, '$.offsetTable.["prices", "broker-a", 0]'),
    (b'{"offsetTable":{"prices":2}}', 0, "$.offsetTable.prices"),
    (b'{"offsetTable":{[1]:2}}', 16, "$.offsetTable"), (b'{"a":{}}', 0, "$.offsetTable")])
def test_a_damaged_file_is_damaged(main: Path, rmqctl: Runner, data: bytes, offset: int,
                                   field: str) -> None:
    main.write_bytes(data)
    row = rmqctl("dump", main, "-o", "jsonl").expect(1).jsonl()[-1]
    assert (row["type"], row["error"]["offset"], row["error"]["field"]) == (
        "damaged", offset, field)


@pytest.mark.parametrize(("backup", "expected_text"), [
    (TABLE, "offsets.json.bak instead, which is intact (queues: 1)"),
    (TABLE[:30], "is damaged, too (@30"), (b"", "starts without offsets"),
    (None, "starts without offsets")])
def test_what_the_client_does_instead(main: Path, rmqctl: Runner, backup: bytes | None,
                                      expected_text: str) -> None:
    main.write_bytes(TABLE[:50])
    if backup is not None:
        main.with_name("offsets.json.bak").write_bytes(backup)
    assert expected_text in rmqctl("dump", main).expect(1).err
    assert expected_text in rmqctl("offsets", "diff", main, main).expect(6).err


def test_a_store_takes_the_offsets(main: Path, tmp_path: Path, rmqctl: Runner) -> None:
    store = store_of(tmp_path)
    queue = {"brokerName": "broker-a", "topic": "orders"}
    keys = [(json.dumps({**queue, "queueId": number}), number + 2) for number in range(2)]
    main.write_text('{"offsetTable":{%s}}' % ",".join(f"{key}:{at}" for key, at in keys))  # noqa: UP031
    words = ("offsets", "import", store, main, "-o", "json")
    plan = rmqctl(*words).expect(0).json()
    assert [(queue["group"], queue["topic"], queue["queue_id"], queue["to"])
            for queue in plan["queues"]] == [("g", "orders", 0, 2), ("g", "orders", 1, 3)]
    rmqctl(*words, "--group", "billing", "--replace", "--apply", "--yes").expect(0)
    rmqctl("offsets", "diff", main, store, "--group", "billing", "--topic", "orders").expect(1)
    changed = json.loads((store / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert {"0": 2, "1": 3}.items() <= changed["orders@billing"].items()


def test_what_is_not_clear_is_asked(main: Path, tmp_path: Path, rmqctl: Runner) -> None:
    store = store_of(tmp_path)
    copy = tmp_path / "copy.json"
    copy.write_bytes(TABLE)
    assert "--group" in rmqctl("offsets", "import", store, copy).expect(6).err
    main.write_bytes(PRETTY.replace(b'"b{}"', b'"c"', 1))
    assert "brokers (b{}, c)" in rmqctl("offsets", "import", store, main).expect(6).err
    plan = rmqctl("offsets", "import", store, main, "--broker", "c", "-o", "json").expect(0).json()
    assert [queue["queue_id"] for queue in plan["queues"]] == [3]


def test_only_who_asks_reads_such_keys() -> None:
    with pytest.raises(FormatError):
        config_json.parse(TABLE)
    assert config_json.parse(TABLE, object_keys.queue_name).value == {
        "offsetTable": {"prices@broker-a@0": 77}}
