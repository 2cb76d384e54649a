"""Expiry of a tier, held against the rules written out once more over the engine's own answers."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered.units import NEVER
from tests.conftest import GoldenFolder
from tests.support import cli
from tests.tiered import recovering, tiers

FIRST, LAST = 1795233792655, 1795233897296
HOUR = 3_600_000
NOWS = [FIRST, 1795233827779, 1795233827780, 1795233840000, 1795233866668, 1795233890000,
        LAST + 1, LAST + 1000 * HOUR]


@pytest.fixture(scope="module")
def flat_files(golden: GoldenFolder) -> list[Any]:
    flat_files: list[Any] = json.loads((golden("5.3.3/tiered") / "expect.json").read_text())[
        "extra"]["flatFiles"]
    return flat_files


def expire(root: Path, now: int, *options: str, older: str = "0s", apply: bool = False) -> Any:
    more = ("--apply",) if apply else ()
    return cli.run("tiered", "expire", root / "tieredstore", "--older-than", older, "--now",
                   str(now), *more, "-o", "json", *options).expect(0).json()


def gone(plan: Any) -> set[str]:
    return {f"tieredstore/{action['target']}" for action in plan["actions"]
            if action["action"] == "move aside"}


def wanted(flat_files: list[Any], limit: int, topic: str | None = None) -> set[str]:
    """Whole segments from the head, the last one stays; units as far as all they lead to goes."""
    places = set()
    for flat_file in flat_files:
        if topic not in (None, flat_file["topic"]):
            continue
        start = 0
        for segment in flat_file["commitLogSegments"][:-1]:
            if segment["maxTimestamp"] >= limit:
                break
            places.add(recovering.place(flat_file["topic"], flat_file["queueId"], "COMMIT_LOG",
                                    segment["baseOffset"]))
            start = segment["baseOffset"] + segment["size"]
        for segment in flat_file["consumeQueueSegments"][:-1]:
            end = (segment["baseOffset"] + segment["size"]) // 20
            if flat_file["messages"][end - 1][1] >= start:
                break
            places.add(recovering.place(flat_file["topic"], flat_file["queueId"], "CONSUME_QUEUE",
                                    segment["baseOffset"]))
    return places


@pytest.mark.parametrize("now", NOWS)
def test_queues(root, flat_files, now):
    plan = expire(root, now)
    files = {file for file in gone(plan) if "INDEX" not in file}
    assert files == wanted(flat_files, now)
    ends = {0: 1795233831622, 5524: 1795233871103, 11076: 1795233897296}
    assert {file for file in gone(plan) if "INDEX" in file} == {
        f"{recovering.INDEX}/{recovering.name_of(base)}" for base, end in ends.items() if end < now}


def test_applied(root, flat_files):
    before = recovering.content(root)
    all_messages = recovering.messages(root)
    plan = expire(root, 1795233890000, apply=True)
    assert plan["applied"]
    now = recovering.content(root)
    assert recovering.changed(before, now) == gone(plan) | {recovering.METADATA}
    assert all(file not in now for file in gone(plan))
    left = recovering.messages(root)
    assert sum(map(len, all_messages.values())) - sum(map(len, left.values())) == plan[
        "messages_expired"] == 177
    for name, rows in left.items():
        assert rows == all_messages[name][-len(rows):]
    for queue in plan["queues"]:
        rows = left[queue["topic"], queue["queue_id"]]
        assert rows[0][0] == queue["min_offset"]
    metadata, was = (meta.parse(data[recovering.METADATA]) for data in (now, before))
    count = 0
    for kind, table in was.segments.items():
        for path, entries in table.items():
            for base, queue in entries.items():
                kept = metadata.segments[kind].get(path, {}).get(base)
                assert kept in (None, queue)
                count += kept is None
    assert count == len(gone(plan))
    assert metadata.topics == was.topics
    assert metadata.queues == was.queues
    assert expire(root, 1795233890000)["actions"] == []
    assert recovering.recover(root, apply=False)["actions"] == []
    recovering.undo(root)
    assert not recovering.changed(before, recovering.content(root))


def test_in_two_steps(root):
    """What is left after one expiry is where the next one begins."""
    expire(root, 1795233840000, apply=True)
    expire(root, 1795233890000, apply=True)
    two = recovering.content(root)
    recovering.undo(root)
    recovering.undo(root)
    expire(root, 1795233890000, apply=True)
    assert recovering.content(root) == two


def test_age(root):
    assert expire(root, LAST + 71 * HOUR, older="72h")["actions"] == []
    assert len(gone(expire(root, LAST + 73 * HOUR, older="72h"))) == 12


def test_reserve_time_of_a_topic(root, flat_files):
    """Its own wins, longer or shorter; index files go by the common age."""
    def change(metadata: meta.Metadata) -> None:
        metadata.topics["TP_user_Topic"] = replace(metadata.topics["TP_user_Topic"],
                                                   reserve_time=100)
        metadata.topics["TP_pay_Event5"] = replace(metadata.topics["TP_pay_Event5"], reserve_time=1)

    recovering.change_metadata(root, change)
    plan = expire(root, LAST + 50 * HOUR, older="72h")
    assert gone(plan) == wanted(flat_files, LAST + 1, "TP_pay_Event5")
    plan = expire(root, LAST + 80 * HOUR, older="72h")
    assert {file for file in gone(plan) if "INDEX" not in file} == wanted(
        flat_files, LAST + 1, "TP_pay_Event5")
    assert sum("INDEX" in file for file in gone(plan)) == 3


def test_one_topic(root, flat_files):
    plan = expire(root, LAST + HOUR, "--topic", "TP_user_Topic")
    assert gone(plan) == wanted(flat_files, LAST + 1, "TP_user_Topic")
    cli.run("tiered", "expire", root / "tieredstore", "--older-than", "1h", "--topic",
            "nothing").expect(2)


def test_the_last_segment_of_an_idle_queue_stays(root):
    """A broker takes all of it, and then begins anew at offset 0."""
    plan = expire(root, LAST + 10_000 * HOUR, apply=True)
    assert plan["applied"]
    with Tier.open(str(root / "tieredstore")) as tier:
        for queue in tier.queues():
            assert len(queue.commit_log.segments) == 1
            assert queue.consume_queue.segments
            assert queue.min_offset < queue.commit_offset


def test_a_segment_without_times(root, flat_files):
    """A broker deletes what metadata has no times for; here its messages are asked."""
    path = "broker-a/TP_user_Topic/0"

    def change(metadata: meta.Metadata) -> None:
        table = metadata.segments["COMMIT_LOG"][path]
        table[0] = replace(table[0], begin_timestamp=NEVER, end_timestamp=NEVER)

    recovering.change_metadata(root, change)
    assert {file for file in gone(expire(root, 1795233827779)) if "INDEX" not in file} == wanted(
        flat_files, 1795233827779)
    assert {file for file in gone(expire(root, 1795233827780)) if "INDEX" not in file} == wanted(
        flat_files, 1795233827780)


def test_times_that_are_too_small(root, flat_files):
    """The messages themselves have the last word before a segment goes."""
    def change(metadata: meta.Metadata) -> None:
        for table in metadata.segments["COMMIT_LOG"].values():
            for base, replaceds_by_base in table.items():
                table[base] = replace(replaceds_by_base, begin_timestamp=0, end_timestamp=0)

    recovering.change_metadata(root, change)
    assert {file for file in gone(expire(root, 1795233840000)) if "INDEX" not in file} == wanted(
        flat_files, 1795233840000)


def test_index_header_that_lost_its_end(root):
    """After a broker opened a file again its end is its begin (§5.1); the items know better."""
    path = root / recovering.INDEX / recovering.name_of(0)
    data = bytearray(path.read_bytes())
    data[12:20] = data[4:12]
    path.write_bytes(data)
    assert not any("INDEX" in file for file in gone(expire(root, 1795233831000)))
    assert any("INDEX" in file for file in gone(expire(root, 1795233832100)))


def test_an_empty_index_file_takes_none_with_it(root):
    base = 16628 + 2584
    empty = root / recovering.INDEX / recovering.name_of(base)
    empty.write_bytes(b"")
    plan = expire(root, LAST + HOUR, apply=True)
    assert empty.exists()
    assert f"{recovering.INDEX}/{recovering.name_of(16628)}" in gone(plan)


def test_a_damaged_head(root):
    """Nothing in it can be read: it goes by the time of the file."""
    path = root / recovering.place("TP_user_Topic", 0, "COMMIT_LOG", 0)
    path.write_bytes(bytes(path.stat().st_size))
    plan = expire(root, LAST + 10_000 * HOUR)
    assert any("the file's modification time" in note for note in plan["notes"])


def test_metadata_that_cannot_be_read(root):
    (root / recovering.METADATA).write_bytes(b"{")
    result = cli.run("tiered", "expire", root / "tieredstore", "--older-than", "1h").expect(6)
    assert "tiered recover" in result.err


def test_held(root):
    from rmqctl.files.lock import StoreLock

    before = recovering.content(root)
    with StoreLock(root):
        cli.run_process("tiered", "expire", root / "tieredstore", "--older-than", "0s",
                        "--apply").expect(4)
        cli.run_process("tiered", "recover", root / "tieredstore", "--apply").expect(4)
    assert not recovering.changed(before, recovering.content(root))


def test_any_unit(root):
    """A last unit that leads anywhere is no reason for its file to go."""
    path = root / recovering.place("TP_user_Topic", 0, "CONSUME_QUEUE", 0)
    data = path.read_bytes()
    for offset in (-1, 1 << 62):
        path.write_bytes(data[:-20] + struct.pack(">q", offset) + data[-12:])
        assert f"{path.relative_to(root)}" not in gone(expire(root, LAST + HOUR))


def test_ipv6_times_are_those_of_the_messages(tmp_path):
    """A broker takes a part of the address for the time; the messages know better."""
    home = tmp_path / "home"
    queue = tiers.Queue()
    for number in range(4):
        queue.put(v6=True)
        if number == 1:
            queue.roll_log()
            queue.roll_units()
    queue.write(home / "tieredstore")
    tiers.write_metadata(home, {tiers.TOPIC: 0}, [queue])
    assert gone(expire(home, tiers.T0 + 1000)) == set()
    assert len(gone(expire(home, tiers.T0 + 1001))) == 2


def test_segments_of_codas_alone_have_their_time(tmp_path):
    home = tmp_path / "home"
    queue = tiers.Queue()
    queue.coda()
    queue.roll_log()
    queue.put()
    queue.write(home / "tieredstore")
    tiers.write_metadata(home, {tiers.TOPIC: 0}, [queue])
    assert gone(expire(home, tiers.T0)) == set()
    assert len(gone(expire(home, tiers.T0 + 1))) == 1


def test_now_is_in_the_zone_that_is_given(golden: GoldenFolder) -> None:
    tier = golden(recovering.GOLDEN) / "tieredstore"

    def now(text: str, zone: str) -> Any:
        return cli.run("tiered", "expire", tier, "--older-than", "0s", "--now", text, "--tz", zone,
                       "-o", "json").expect(0).json()["now"]

    assert now("2020-01-01", "+05:30") == now("2020-01-01", "UTC") - 19_800_000
