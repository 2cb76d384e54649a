"""Fillers stay to be seen: `info`, `stats` and `verify` count them while they are there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.formats.local.filler import is_filler
from rmqctl.formats.local.message import decode
from rmqctl.scan.fillers import fillers
from rmqctl.scan.frames import examine
from tests.adversary.writer import Header, Layout, Writer
from tests.support.cli import run

SIZES = ("--index-slots", "16", "--index-max", "64")
JSON = ("-o", "json")


def damaged(folder: Path) -> Path:
    """Sixty messages, of which twelve in a row and two others are lost."""
    writer = Writer(Layout(log_file_size=16 << 10), seed=9)
    for number in range(60):
        writer.put(("orders", "pays")[number % 2], b"body %d" % number, queue_id=number % 3,
                   keys=f"k{number}")
    first, behind = writer.puts[20].physical, writer.puts[32].physical
    writer.patch(first, bytes(behind - first))
    for number in (5, 50):
        writer.flip(writer.puts[number].body_at)
    return writer.write(folder)


def counted(store: Path) -> tuple[int, int, int]:
    findings: list[dict[str, Any]] = run("verify", store, *SIZES,
                                         *JSON).expect(0).json()["findings"]
    assert all(finding["severity"] == "info" for finding in findings)
    return (run("info", store, *JSON).expect(0).json()["fillers"],
            run("stats", store, *JSON).expect(0).json()["fillers"],
            sum(finding["count"] for finding in findings if finding["category"] == "fillers"))


def test_they_are_counted_until_they_are_taken_back(tmp_path: Path) -> None:
    store = damaged(tmp_path / "s")
    done = run("recover", store, *SIZES, "--correct", "off", "--apply", "--yes",
               *JSON).expect(1).json()
    assert len(done["messages_lost"]) == 14
    assert counted(store) == (14, 14, 14)
    assert "14 fillers for lost messages" in run("info", store).out
    assert "fillers among the messages: 14" in run("stats", store).err
    result = run("verify", store, *SIZES).expect(0)
    assert "14 fillers for lost messages (orders 7, pays 7)" in result.out
    shown = run("read", store, "--where", "property.RMQCTL=lost", "-o", "jsonl").expect(0).jsonl()
    assert len(shown) == 14
    assert all(message["body"] for message in shown), "an empty body stops consumers"
    # In a copy without what repairs keep, the log itself still tells.
    copy = tmp_path / "copy"
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns(".rmqctl"))
    assert counted(copy) == (0, 14, 14)
    run("undo", store, "--yes").expect(0)
    assert run("info", store, *JSON).expect(0).json()["fillers"] == 0


def test_a_plan_says_what_a_consumer_receives(tmp_path: Path) -> None:
    done = run("recover", damaged(tmp_path / "s"), *SIZES).expect(1)
    assert "an empty message with the property RMQCTL=lost" in " ".join(done.out.split())
    assert "tombstone" not in (done.out + run("recover", "--help").out).lower()
    assert "RMQCTL=lost" in " ".join(run("recover", "--help").out.split())


@pytest.mark.parametrize(("body", "host", "properties", "expected"), [
    (bytes(9), ("0.0.0.0", 0), {"RMQCTL": "lost"}, True),
    (bytes(9), ("0.0.0.0", 0), {}, True),
    (b"text", ("0.0.0.0", 0), {}, False),
    (b"", ("0.0.0.0", 0), {}, False),
    (bytes(9), ("0.0.0.0", 0), {"UNIQ_KEY": "A"}, False),
    (bytes(9), ("0.0.0.0", 1), {"RMQCTL": "lost"}, False),
    (bytes(9), ("10.0.0.7", 0), {"RMQCTL": "lost"}, False),
    (bytes(9), ("::", 0), {"RMQCTL": "lost"}, False),
    (bytes(9), ("0.0.0.0", 0), {"RMQCTL": "found"}, False),
])
def test_what_is_a_filler_and_that_both_readers_agree(
        body: bytes, host: tuple[str, int], properties: dict[str, str], expected: bool) -> None:
    """A producer can choose properties and body, but not the host it comes from."""
    put = Writer(Layout()).put("t", body, unique_key="", properties=properties,
                               header=Header(born_host=host))
    batch, ok = examine(np.frombuffer(put.raw, np.uint8), 0, np.zeros(1, np.int64))
    assert ok.all()
    assert fillers(batch).tolist() == [is_filler(decode(put.raw))] == [expected]


@pytest.mark.parametrize("beside", ["behind", "before", "both", "none"])
def test_a_lost_message_without_a_body_gets_a_byte_from_beside(tmp_path: Path,
                                                               beside: str) -> None:
    """It had neither body nor properties: only a neighbour's place has room for one."""
    writer = Writer(Layout(), seed=11)
    for number in range(30):
        bare = number == 15
        writer.put("orders", b"" if bare else b"body %d" % number, unique_key="" if bare else None)
    low = 14 if beside in ("before", "both") else 15
    high = 17 if beside in ("behind", "both") else 16
    first, behind = writer.puts[low].physical, writer.puts[high].physical
    writer.patch(first, bytes(behind - first))
    store = writer.write(tmp_path / "s")
    run("recover", store, *SIZES, "--apply", "--yes", *JSON).expect(1)
    read = run("read", store, "--topic", "orders", "-o", "jsonl").expect(0).jsonl()
    assert [message["queue_offset"] for message in read] == list(range(30))
    assert all(message["body"] for message in read) is (beside != "none")
    run("verify", store, *SIZES).expect(0)
