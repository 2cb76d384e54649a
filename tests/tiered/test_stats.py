"""tiered stats: what is counted, by what, and what is not."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from rmqctl.ext.tiered.read.stats import TierQuery, collect
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.local import message
from rmqctl.scan import aggregate
from tests.conftest import GoldenFolder, Runner
from tests.tiered import tiers
from tests.tiered.tiers import T0, Queue
from tests.tiered.verifying import OTHER, Small


def test_the_golden_tier(golden: GoldenFolder, rmqctl: Runner) -> None:
    folder = golden("5.3.3/tiered")
    lines = [json.loads(line) for line in (folder / "input.jsonl").read_text().splitlines()]
    answer = rmqctl("tiered", "stats", folder / "store", "-o", "json").expect(0).json()
    assert {row["topic"]: row["messages"] for row in answer["rows"]} == Counter(
        line["stored"]["topic"] for line in lines)
    assert answer["total"]["messages"] == len(lines) == 300
    assert answer["total"]["bytes"] == 184499
    assert answer["orphans"] == {"messages": 0, "bytes": 0, "bytes_no_message": 0}
    assert answer["index"] == {"files": 4, "items": 609, "bytes": 19212}
    local = rmqctl("stats", folder / "store", "--by", "queue", "-o", "json").expect(0).json()
    mine = rmqctl("tiered", "stats", folder / "store", "--by", "queue", "-o",
                  "json").expect(0).json()
    assert mine["rows"] == [row for row in local["rows"] if row["topic"].startswith("TP_")]


def test_by_broker(tier: Small, rmqctl: Runner) -> None:
    other = Queue(broker="broker-b")
    for number in range(3):
        other.put(when=T0 + number)
    other.write(tier.root)
    answer = rmqctl("tiered", "stats", tier.root, "--by", "broker", "-o", "json").expect(0).json()
    assert [(row["broker"], row["messages"]) for row in answer["rows"]] == [
        ("broker-a", 9), ("broker-b", 3)]
    assert answer["by"] == "broker"
    shown = rmqctl("tiered", "stats", tier.root, "--by", "broker").expect(0).out
    assert "broker-b" in shown
    only = rmqctl("tiered", "stats", tier.root, "--broker", "broker-b", "-o", "json").json()
    assert only["total"]["messages"] == 3


def test_times_topics_and_groups(tier: Small, rmqctl: Runner) -> None:
    answer = rmqctl("tiered", "stats", tier.root, "--topic", OTHER, "-o", "json").expect(0).json()
    assert [(row["topic"], row["messages"]) for row in answer["rows"]] == [(OTHER, 2)]
    answer = rmqctl("tiered", "stats", tier.root, "--since", str(T0 + 2000), "--until",
                    str(T0 + 4000), "--by", "none", "-o", "json").expect(0).json()
    assert answer["total"]["messages"] == 3
    answer = rmqctl("tiered", "stats", tier.root, "--by", "tag", "-o", "json").expect(0).json()
    assert {row["tag"]: row["messages"] for row in answer["rows"]} == {"甲": 3, None: 6}
    assert "甲" in rmqctl("tiered", "stats", tier.root, "--by", "tag").expect(0).out
    lines = rmqctl("tiered", "stats", tier.root, "--by", "day", "-o", "csv").expect(0).out
    assert lines.startswith("time,")


def test_orphans_are_counted_apart(tmp_path: Path, rmqctl: Runner) -> None:
    queue = Queue()
    queue.put(b"one")
    queue.orphan(b"\x7f" * 50)
    lost = tiers.record(1, queue.log_end, body=b"twice")
    queue.orphan(message.build(lost))
    queue.put(b"twice")
    queue.roll_log(coda=True)
    queue.put(b"behind a coda", coda_first=True)
    queue.write(tmp_path)
    answer = rmqctl("tiered", "stats", tmp_path, "-o", "json").expect(0).json()
    assert answer["total"]["messages"] == 3
    assert answer["orphans"] == {"messages": 1, "bytes": lost.total_size,
                                 "bytes_no_message": 50 + 16 + 16}
    assert "without a consume queue entry" in rmqctl("tiered", "stats", tmp_path).expect(0).err


def test_more_groups_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "MAX_KEYS", 20)
    monkeypatch.setattr(aggregate, "HEAVY", 4)
    queue = Queue()
    for number in range(120):
        queue.put(KEYS="often" if number % 2 else f"k{number}")
    queue.write(tmp_path)
    with Tier.open(str(tmp_path)) as tier:
        sums = collect(tier, TierQuery("key")).brokers[""]
    assert sums.is_cut
    groups = sums.groups()
    assert groups[b"often"].messages == 60
    assert sum(group.messages for group in groups.values()) == 120


def test_empty_and_refused(tmp_path: Path, rmqctl: Runner) -> None:
    Queue().write(tmp_path / "tier")
    answer = rmqctl("tiered", "stats", tmp_path / "tier", "-o", "json").expect(0).json()
    assert answer["rows"] == []
    assert answer["total"]["messages"] == 0
    rmqctl("tiered", "stats", tmp_path / "tier", "--topic", "none", "-o", "json").expect(0)
    rmqctl("tiered", "stats", tmp_path / "tier", "--by", "broker").expect(0)
    rmqctl("tiered", "stats", tmp_path / "none").expect(3)
    rmqctl("tiered", "stats", tmp_path / "tier", "--by", "nonsense").expect(2)
