"""What is kept of a configuration file in which one byte is wrong."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from rmqctl.errors import FormatError
from rmqctl.formats.config import config_json, fastjson, one_byte
from rmqctl.formats.config.one_byte import Partial, sound_members
from tests.support.share import sample

TOPICS = {"dataVersion": {"counter": 3, "timestamp": 1700000000000}, "topicConfigTable": {
    name: {"attributes": {"message.type": "FIFO"} if name == "b" else {}, "order": False, "perm": 6,
           "topicName": name, "writeQueueNums": 12} for name in ("orders", "b", "pays-x")}}
OFFSETS = {"offsetTable": {"orders@billing": {0: 120, 1: 98, 2: 5}, "x@y": {},
                           "%RETRY%b@b": {0: 3}}, "dataVersion": {"counter": 7}}
DELAYS = {"offsetTable": {1: 10, 2: 0, 3: 55}}
VALUES = {"topicConfigTable": [TOPICS], "offsetTable": [OFFSETS, DELAYS]}


def read(data: bytes, table: str) -> Partial | None:
    def belongs(key: str, value: Any) -> str | None:
        own = value.get("topicName") == key if table == "topicConfigTable" else "@" in key
        return table if isinstance(value, dict) and own else None
    return sound_members(data, (table,), belongs)


def is_part(value: Any, whole: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(whole, dict) and all(
            key in whole and is_part(inner, whole[key]) for key, inner in value.items())
    return bool(value == whole)


CASES = [(table, value, build) for table, values in VALUES.items() for value in values
         for build in (fastjson.build, lambda value: json.dumps(value, indent="\t").encode())]


@pytest.mark.parametrize(("case", "byte"), sample(
    product(range(len(CASES)), (0, 0xFF, ord("x"), ord("5"), ord('"'), ord("}"), ord("\n"))), 6,
    "one byte"))
def test_nothing_is_kept_that_was_not_there(case: int, byte: int) -> None:
    table, value, build = CASES[case]
    data = build(value)
    whole = config_json.parse(data).value
    for place in range(case % 3, len(data), 19):
        hurt = data[:place] + bytes([byte]) + data[place + 1:]
        try:
            if not config_json.parse(hurt).oddities:
                continue  # a broker loads it
        except FormatError:
            pass
        partial = read(hurt, table)
        if partial is None:
            continue
        entries = partial.value.get(table, {})
        assert is_part(entries, whole[table]), (place, partial)
        if not partial.lost:
            assert entries == whole[table], (place, partial)
        elif value is TOPICS:
            assert len(entries) >= len(whole[table]) - 1
            assert sum(entries[key] != whole[table][key] for key in entries) <= 1


def hit(old: bytes, new: bytes, value: dict[str, Any] = TOPICS) -> Partial:
    data = fastjson.build(value)
    assert data.count(old) >= 1
    partial = read(data.replace(old, new, 1), next(key for key in value if key.endswith("Table")))
    assert partial is not None
    return partial


def test_a_value_is_lost_alone() -> None:
    partial = hit(b'"perm":6', b'"perm":\0')
    lost, = partial.lost
    assert (lost.key, lost.fields, lost.text) == ("orders", {"perm"}, '"perm":\\x00')
    expected = dict(TOPICS["topicConfigTable"])
    expected["orders"] = {key: value for key, value in expected["orders"].items() if key != "perm"}
    assert partial.value["topicConfigTable"] == expected


@pytest.mark.parametrize(("old", "new"), [
    (b"},\n", b"}\0\n"), (b'"perm"', b'"perm\0'),
    (b'\t"perm', b'\0"perm'), (b'"topicConfigTable":{', b'"topicConfigT\0ble":{'),
    (b"{\n", b"\0\n"), (b"\n\t\t}", b"\n\t\0}")])
def test_a_byte_of_the_structure_loses_nothing(old: bytes, new: bytes) -> None:
    partial = hit(old, new)
    assert not partial.lost
    assert partial.value["topicConfigTable"] == TOPICS["topicConfigTable"]


def test_a_key_is_lost_alone() -> None:
    partial = hit(b'"b":{', b'"\x01":{')
    lost, = partial.lost
    assert (lost.key, lost.value) == (None, TOPICS["topicConfigTable"]["b"])
    assert [*partial.value["topicConfigTable"]] == ["orders", "pays-x"]


def test_an_offset_is_lost_alone() -> None:
    partial = hit(b"1:98", b"1:\x008", OFFSETS)
    assert partial.value["offsetTable"]["orders@billing"] == {"0": 120, "2": 5}
    assert partial.lost[0].fields == {"1"}


def test_a_longer_range_loses_what_it_may_have_contained() -> None:
    """The end of one entry and the start of the next: no field moves to another entry."""
    data = fastjson.build(TOPICS)
    start, end = data.index(b'"topicName":"orders"'), data.index(b'"perm":6', data.index(b'"b":{'))
    partial = read(data[:start] + bytes(end - start) + data[end:], "topicConfigTable")
    assert partial is not None
    assert partial.value["topicConfigTable"] == {"pays-x": TOPICS["topicConfigTable"]["pays-x"]}
    assert partial.lost[0].key == "orders"


@pytest.mark.parametrize("data", [b"", b"{", b'{"a":{"b":1,}}', bytes(100), b"\n\t\"" * 50])
def test_files_without_lines(data: bytes) -> None:
    assert read(data, "offsetTable") is None


@pytest.mark.parametrize(("limit", "value"), [("_MAX_PARSED", 1 << 20), ("_MAX_CORRECTED", 3)])
def test_corrections_of_much_damage_are_bounded(limit: str, value: int,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, real = 0, one_byte._parsed

    def counted(text: str, **how: bool) -> dict[str, Any] | None:
        nonlocal parsed
        parsed += len(text)
        return real(text, **how)

    monkeypatch.setattr(one_byte, limit, value)
    monkeypatch.setattr(one_byte, "_parsed", counted)
    table = {f"topic{number}@group": dict.fromkeys(range(8), number) for number in range(200)}
    data = fastjson.build({"offsetTable": table}).replace(b'5@group":', b'5@group";')
    partial = read(data, "offsetTable")
    assert partial is not None
    assert len(partial.value["offsetTable"]) >= 180
    assert all(
        table[key] == {int(queue): offset for queue, offset in offsets.items()}
        for key, offsets in partial.value["offsetTable"].items())
    assert parsed < (1 << 20) + 20 * len(data)
