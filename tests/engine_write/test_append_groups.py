"""Lines that are put together lead to what they lead to one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.settings import Settings
from rmqctl.engine.config.create import create_store
from rmqctl.engine.input.append_stream import LineAppender, converter, open_session
from rmqctl.engine.put.message import Outgoing, OutgoingList

NOW = 1_700_000_000_000
LINES = 700


def lines_of(kinds: str) -> list[bytes]:
    """So many lines, of the kinds in turn: p(lain), b(atch), r(efused), n(o JSON), d(elayed),
    e(mpty topic), 6 (base64), t(ags and keys).
    """
    values = []
    for number in range(LINES):
        kind = kinds[number * 7 // 5 % len(kinds)]
        item: dict[str, Any] = {"topic": f"t{number % 3}", "queue_id": number % 2,
                                "body": f"größe {number}", "born_timestamp": NOW + number,
                                "properties": {"UNIQ_KEY": f"{number:032X}"}}
        if kind == "b":
            item["messages"] = [{"body": item.pop("body")}, {"body": "second"}]
        elif kind == "r":
            item["topic"] = "x" * 300
        elif kind == "d":
            item["delay_level"] = 2
        elif kind == "6":
            item |= {"body": "AAEC/w==", "body_encoding": "base64", "flag": number,
                     "born_host": "10.0.0.7:52011"}
        elif kind == "t":
            item |= {"tags": "A", "keys": ["k1", "k2"]}
        elif kind == "e":
            del item["topic"]
        values.append(b"{no" if kind == "n" else json.dumps(item, ensure_ascii=False).encode())
    return values


def appended(root: Path, lines: list[bytes], together: int, *, stop: bool, replay: bool,
             batch: int) -> Any:
    """What became of the lines, and the bytes of the log."""
    settings = Settings(disk_watermark=1.0, commitlog_file_size=1 << 20)
    create_store(str(root), settings)
    became, faults = [], []
    with open_session(str(root), settings, clock=lambda: NOW) as session:
        appender = LineAppender(session, converter(settings, replay=replay), stop=stop,
                                batch=batch)
        numbered = list(enumerate(lines, 1))
        for start in range(0, len(lines), together):
            became += [(number, result.as_dict())
                       for number, result in appender.put(numbered[start:start + together])]
            faults += map(str, appender.faults)
            if appender.stopped_by is not None:
                break
    tally = appender.tally.as_dict()
    del tally["seconds"], tally["messages_per_second"]
    log = b"".join(file.read_bytes() for file in sorted((root / "commitlog").iterdir()))
    return became, faults, appender.stopped_by, tally, log


@pytest.mark.parametrize(("kinds", "stop", "replay"), [
    ("p", True, False), ("t6", False, True), ("pb", True, True), ("pb", False, False),
    ("pppppppn", True, False), ("pppppppn", False, True), ("ppprd", True, True),
    ("ppprd", False, False), ("pte6", False, False)])
def test_groups_of_any_size(kinds: str, stop: bool, replay: bool, tmp_path: Path) -> None:
    lines = lines_of(kinds)
    whole = appended(tmp_path / "whole", lines, LINES, stop=stop, replay=replay, batch=0)
    parts = appended(tmp_path / "parts", lines, 10, stop=stop, replay=replay, batch=0)
    assert whole[1:] == parts[1:]
    assert [item for item in whole[0] if item[1]["physical_offset"] is not None] == [
        item for item in parts[0] if item[1]["physical_offset"] is not None]
    assert whole[4].count("größe".encode()) > 0


def test_batches_are_made_of_lines_that_were_read_together(tmp_path: Path) -> None:
    lines = [json.dumps({"topic": "t", "body": "b", "born_timestamp": NOW}).encode()] * LINES
    became, _, _, tally, _ = appended(tmp_path / "store", lines, LINES, stop=True, replay=True,
                                      batch=32)
    assert tally["messages"] == LINES
    assert [number for number, _ in became] == list(range(1, LINES + 1, 32))


def test_messages_by_column() -> None:
    messages = [Outgoing(f"t{number}", b"b", flag=number, filter_bit_map=b"1" * number)
                for number in range(5)]
    columns = OutgoingList.of(messages)
    assert list(columns) == messages
    assert [columns[number] for number in range(len(columns))] == messages
    assert list(columns[1:3]) == messages[1:3]
    columns.extend(OutgoingList.of(messages[:2]))
    assert list(columns) == messages + messages[:2]
    assert OutgoingList.of(columns) is columns
