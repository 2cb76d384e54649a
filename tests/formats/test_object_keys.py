"""Keys that are objects: the offsets.json of a broadcasting consumer."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.errors import FormatError
from rmqctl.formats.config import object_keys
from tests.conftest import Runner

ONE = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"prices"}:77}}'
PRETTY = (b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"b{}","queueId":3,\n\t\t\t"topic":"T,:x"\n\t'
          b'\t}:42,{"topic":"T,:x","queueId":1,"brokerName":"b{}"}:40\n\t}\n}')


@pytest.mark.parametrize(("data", "table"), [
    (ONE, {"prices@broker-a@0": 77}), (PRETTY, {"T,:x@b{}@3": 42, "T,:x@b{}@1": 40}),
    (b'{"offsetTable":{}}', {})])
def test_offsets_of_a_client(tmp_path: Path, rmqctl: Runner, data: bytes,
                             table: dict[str, int]) -> None:
    for name in ("offsets.json", "offsets.json.bak"):
        (tmp_path / name).write_bytes(data)
        rows = rmqctl("dump", tmp_path / name, "-o", "jsonl").expect(0).jsonl()
        assert [(row["name"], row["value"]) for row in rows] == [("offsetTable", table)]


@pytest.mark.parametrize("data", [ONE[:-1], ONE[:40], ONE.replace(b"queueId", b"queue"),
                                  ONE.replace(b"0,", b'"0",'), b'{"offsetTable":{[1]:2}}'])
def test_a_damaged_file_is_damaged(tmp_path: Path, rmqctl: Runner, data: bytes) -> None:
    (tmp_path / "offsets.json").write_bytes(data)
    rows = rmqctl("dump", tmp_path / "offsets.json", "-o", "jsonl").expect(1).jsonl()
    assert rows[0]["type"] == "damaged"


def test_plain_json_has_no_such_keys() -> None:
    assert object_keys.as_texts(b'{"a":{"b":[{"c":1}]}}', object_keys.queue_name) is None
    with pytest.raises(FormatError):
        object_keys.as_texts(b'{"a":', object_keys.queue_name)
