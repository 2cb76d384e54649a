"""Index files with turned bits: what verify finds, recover mends, and undo brings back.

In the golden tier, in slots, items and headers of uploaded files and of the open one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.tiered.read import by_key
from rmqctl.ext.tiered.read.by_key import IndexFiles
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import metadata as meta
from rmqctl.parse_values import time_text
from tests.conftest import GoldenFolder
from tests.tiered import recovering
from tests.tiered.verifying import troubles, verified

SLOTS, MOST = 64, 180
SHAPE = fmt.TieredIndexShape(SLOTS, MOST)


def expected(golden: GoldenFolder) -> list[Any]:
    document = json.loads((golden("5.3.3/tiered") / "expect.json").read_text())
    return [index_query for index_query in document["extra"]["indexQueries"]
            if index_query["begin"] == 0]


def check_keys(root: Path, queries: list[Any]) -> None:
    """All that the engine found for a key is found."""
    seen = 0
    with Tier.open(str(root / "tieredstore")) as tier, IndexFiles.open(tier) as files:
        assert not files.errors
        for query in queries:
            wanted = {text.rpartition(":")[0]
                      for text in query["items(topicId:queueId:offset:size:timeDiff)"]}
            lines = {f"{item.topic_id}:{item.queue_id}:{item.commit_log_offset}:{item.size}"
                     for item in by_key.items_as_broker(files, query["topic"], query["key"], 1000,
                                                        0,
                                                        query["end"])}
            assert wanted <= lines
            seen += len(wanted)
    assert seen > 8


def local_file(root: Path) -> Path:
    (newest,) = (path for path in (root / "tiered_index_file").iterdir() if path.is_file())
    return newest


def turn(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def damage(chosen: random.Random, root: Path, path: Path,
           place: Callable[[random.Random], tuple[int, int]]) -> None:
    """Turns a bit that something contradicts: an item may come to be one of an expired message,
    and an end to be one of the same second.
    """
    for _ in range(40):
        at, bit = place(chosen)
        turn(path, at, bit)
        if troubles(verified(root)):
            return
        turn(path, at, bit)
    raise AssertionError(path)


def recovered(root: Path, queries: list[Any]) -> list[str]:
    """Verify finds it and names recover, recover mends it, undo brings it back. The categories."""
    before = recovering.content(root)
    listed_troubles = troubles(verified(root))
    assert listed_troubles
    assert all(str(trouble.next).startswith("rmqctl tiered recover ")
               for trouble in listed_troubles)
    recovering.recover(root)
    after = troubles(verified(root))
    assert [(finding.category, finding.detail) for finding in after] == []
    assert recovering.recover(root, apply=False)["actions"] == []
    check_keys(root, queries)
    sound = {name for name in before if recovering.INDEX in name}
    left = recovering.changed(before, recovering.content(root))
    assert len(sound & left) <= 1
    recovering.undo(root)
    assert not recovering.changed(before, recovering.content(root))
    return [trouble.category for trouble in listed_troubles]


def in_header(name: str) -> Callable[[random.Random], tuple[int, int]]:
    """(a byte of a header's field, a bit of it)."""
    field = fmt.HEADER.field(name)
    return lambda chosen: (field.offset + chosen.randrange(field.size), chosen.randrange(8))


def in_unit(unit: Any, start: int, name: str, count: int) -> Callable[
        [random.Random], tuple[int, int]]:
    """The same of a field of one of ``count`` units."""
    field = unit.field(name)
    return lambda chosen: (start + chosen.randrange(count) * unit.size + field.offset
                           + chosen.randrange(field.size), chosen.randrange(8))


UPLOADED = {
    "magic": in_header("magic"),
    "begin_timestamp": in_header("begin_timestamp"),
    "end_timestamp": in_header("end_timestamp"),
    "slot_count": in_header("slot_count"),
    "item_count": in_header("item_count"),
    "position": in_unit(fmt.COMPACTED_SLOT, fmt.HEADER.size, "position", SLOTS),
    "length": in_unit(fmt.COMPACTED_SLOT, fmt.HEADER.size, "length", SLOTS),
    **{name: in_unit(fmt.COMPACTED_ITEM, SHAPE.items_at, name, 70) for name in (
        "key_hash", "topic_id", "queue_id", "commit_log_offset", "size", "time_diff")},
}
LOCAL = {
    "magic": in_header("magic"),
    "begin_timestamp": in_header("begin_timestamp"),
    "slot_count": in_header("slot_count"),
    "item_count": in_header("item_count"),
    "slot": in_unit(fmt.SLOT, fmt.HEADER.size, "item", SLOTS),
    **{name: in_unit(fmt.ITEM, SHAPE.item_position(1), name, 70) for name in (
        "key_hash", "topic_id", "queue_id", "commit_log_offset", "size", "time_diff", "previous")},
}


SAMPLE = 5
"""Fields that are tried at a time; each takes about a second."""


@pytest.mark.parametrize("number", range(SAMPLE))
def test_uploaded(golden: GoldenFolder, golden_copy: GoldenFolder, seed: int, number: int) -> None:
    field = random.Random(seed).sample(list(UPLOADED), SAMPLE)[number]
    chosen, root = random.Random(f"{seed}{field}"), golden_copy(recovering.GOLDEN)
    base = chosen.choice((0, 5524, 11076, 16628))
    damage(chosen, root, root / recovering.INDEX / recovering.name_of(base), UPLOADED[field])
    recovered(root, expected(golden))


@pytest.mark.parametrize("number", range(SAMPLE))
def test_open(golden: GoldenFolder, golden_copy: GoldenFolder, seed: int, number: int) -> None:
    field = random.Random(seed).sample(list(LOCAL), SAMPLE)[number]
    chosen, root = random.Random(f"{seed}{field}"), golden_copy(recovering.LIVE)
    damage(chosen, root, local_file(root), LOCAL[field])
    recovered(root, expected(golden))


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(20))
def test_many(golden: GoldenFolder, golden_copy: GoldenFolder, number: int) -> None:
    chosen = random.Random(number)
    for fields, name in ((UPLOADED, recovering.GOLDEN), (LOCAL, recovering.LIVE)):
        root = golden_copy(name)
        path = (local_file(root) if fields is LOCAL else
                root / recovering.INDEX / recovering.name_of(
                    chosen.choice((0, 5524, 11076, 16628))))
        damage(chosen, root, path, fields[chosen.choice(list(fields))])
        recovered(root, expected(golden))


def test_a_file_that_is_made_anew_has_its_own_times(golden_copy: GoldenFolder) -> None:
    """The entry of the file that was there does not stay, though base, size and begin are those
    of the new one.
    """
    root = golden_copy(recovering.GOLDEN)
    path = root / recovering.INDEX / recovering.name_of(16628)
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    recovering.recover(root)
    header = fmt.HEADER.decode(path.read_bytes())

    def change(metadata: meta.Metadata) -> None:
        table = metadata.segments["INDEX"]["broker-a/rmq_sys_INDEX/0"]
        table[16628] = replace(table[16628], end_timestamp=header.end_timestamp + 99_000)

    recovering.change_metadata(root, change)
    finding, = troubles(verified(root))
    assert finding.category == "tiered-segment-time"
    assert f"to {time_text(header.end_timestamp + 99_000)} in the metadata" in finding.detail
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    recovering.recover(root)
    assert troubles(verified(root)) == []
    metadata = meta.parse((root / recovering.METADATA).read_bytes())
    entry = metadata.segments["INDEX"]["broker-a/rmq_sys_INDEX/0"][16628]
    assert (entry.begin_timestamp, entry.end_timestamp) == (header.begin_timestamp,
                                                            header.end_timestamp)


def test_stale_times_of_a_sound_file(golden_copy: GoldenFolder) -> None:
    root = golden_copy(recovering.GOLDEN)
    before = recovering.content(root)

    def change(metadata: meta.Metadata) -> None:
        table = metadata.segments["INDEX"]["broker-a/rmq_sys_INDEX/0"]
        table[5524] = replace(table[5524], end_timestamp=table[5524].end_timestamp - 99_000)

    recovering.change_metadata(root, change)
    assert [finding.category for finding in troubles(verified(root))] == ["tiered-segment-time"]
    recovering.recover(root)
    assert recovering.changed(before, recovering.content(root)) <= {recovering.METADATA}
    assert troubles(verified(root)) == []


def test_lost_messages_are_no_fault_of_their_items(golden_copy: GoldenFolder) -> None:
    root = golden_copy(recovering.GOLDEN)
    path = min((root / recovering.BROKER).glob("TP_user_Topic/0/COMMIT_LOG/*"))
    path.write_bytes(path.read_bytes()[:3000] + bytes(2000) + path.read_bytes()[5000:])
    index = {path: path.read_bytes() for path in (root / recovering.INDEX).iterdir()}
    recovering.recover(root)
    assert {path: path.read_bytes() for path in (root / recovering.INDEX).iterdir()} == index


def test_two_neighbours_take_their_places(golden: GoldenFolder, golden_copy: GoldenFolder) -> None:
    root = golden_copy(recovering.GOLDEN)
    names = sorted(path.name for path in (root / recovering.INDEX).iterdir())
    for base in (0, 5524):
        turn(root / recovering.INDEX / recovering.name_of(base), SHAPE.items_at + 20, 3)
    recovering.recover(root)
    assert troubles(verified(root)) == []
    assert sorted(path.name for path in (root / recovering.INDEX).iterdir()) == names
    check_keys(root, expected(golden))
