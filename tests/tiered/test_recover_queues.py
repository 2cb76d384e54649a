"""Consume queues made from the commit log, and commit logs whose messages lie elsewhere than they
say, held against what the engine wrote.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from itertools import product
from pathlib import Path

import pytest

from rmqctl.formats.tiered import metadata as meta
from tests.conftest import GoldenFolder
from tests.support import cli
from tests.support.share import sample
from tests.tiered import recovering
from tests.tiered.recovering import place

TOPIC = "TP_user_Topic"
LAST = place(TOPIC, 0, "COMMIT_LOG", 43593)


@pytest.fixture(scope="module")
def engine(golden: GoldenFolder):
    return recovering.content(golden(recovering.GOLDEN))


@pytest.fixture(scope="module")
def expected(golden: GoldenFolder):
    return recovering.expected_messages(json.loads(
        (golden("5.3.3/tiered") / "expect.json").read_text()))


def queues(root: Path) -> list[Path]:
    return sorted((root / recovering.BROKER).glob("TP*/*/CONSUME_QUEUE"))


# -- lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("metadata", [True, False])
def test_all_consume_queues_lost(root, engine, expected, metadata):
    for queue in queues(root):
        shutil.rmtree(queue)
    options = []
    if not metadata:
        shutil.rmtree(root / "config")
        options = ["--consumequeue-max-size", "500"]
    recovering.recovered(root, *options)
    now = recovering.content(root)
    assert recovering.changed(engine, now) <= {recovering.METADATA, f"{recovering.METADATA}.bak"}
    assert recovering.same_metadata(now[recovering.METADATA], engine[recovering.METADATA])
    assert recovering.messages(root) == expected


def test_one_consume_queue_lost_and_no_metadata(root, engine):
    """How large files are, those of the other queues tell."""
    shutil.rmtree(root / place(TOPIC, 0, "CONSUME_QUEUE"))
    shutil.rmtree(root / "config")
    recovering.recovered(root)
    now = recovering.content(root)
    assert recovering.changed(engine, now) <= {recovering.METADATA, f"{recovering.METADATA}.bak"}


def test_size_of_the_settings(root, engine):
    for queue in queues(root):
        shutil.rmtree(queue)
    shutil.rmtree(root / "config")
    settings = root / "tieredstore/.rmqctl/tier.json"
    settings.parent.mkdir()
    settings.write_text('{"format": 1, "consume_queue_max": 511}')
    recovering.recover(root)
    now = recovering.content(root)
    assert recovering.changed(engine, now) <= {recovering.METADATA, f"{recovering.METADATA}.bak"}


def test_default_size(root):
    for queue in queues(root):
        shutil.rmtree(queue)
    shutil.rmtree(root / "config")
    recovering.recover(root)
    assert [path.name for path in (root / place(TOPIC, 0, "CONSUME_QUEUE")).iterdir()] == [
        recovering.name_of(0)]


@pytest.mark.parametrize(("base", "metadata"), sample(
    product([0, 500, 1000, 1500, 2000], [True, False]), 5, "a lost file of a tier"))
def test_one_file_lost(root, engine, base, metadata):
    (root / place(TOPIC, 0, "CONSUME_QUEUE", base)).unlink()
    if not metadata:
        shutil.rmtree(root / "config")
    plan = recovering.recovered(root)
    now = recovering.content(root)
    assert recovering.changed(engine, now) <= {recovering.METADATA, f"{recovering.METADATA}.bak"}
    assert recovering.same_metadata(now[recovering.METADATA], engine[recovering.METADATA])
    assert len(plan["actions"]) == 1 + (not metadata)


# -- torn, wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 13, 19, 20, 39, 40])
def test_torn(root, engine, cut):
    path = root / place(TOPIC, 0, "CONSUME_QUEUE", 2000)
    path.write_bytes(path.read_bytes()[:-cut])
    recovering.recovered(root)
    assert not recovering.changed(engine, recovering.content(root))


@pytest.mark.parametrize("more", [b"x", b"x" * 19, b"\0" * 20, b"\xff" * 47])
def test_more_than_units(root, engine, more):
    path = root / place(TOPIC, 0, "CONSUME_QUEUE", 2000)
    path.write_bytes(path.read_bytes() + more)
    recovering.recovered(root)
    assert not recovering.changed(engine, recovering.content(root))


def test_misaligned_after_a_tear(root, engine):
    """A broker goes on behind a part of a unit, and rolls to a base that is no unit's (§8.4)."""
    for base in (1500, 2000):
        (root / place(TOPIC, 0, "CONSUME_QUEUE", base)).unlink()
    path = root / place(TOPIC, 0, "CONSUME_QUEUE", 1000)
    units = path.read_bytes()
    torn = units[:100] + units[100:113] + units[100:480]
    path.write_bytes(torn)
    rest = root / place(TOPIC, 0, "CONSUME_QUEUE", 1000 + len(torn))
    rest.write_bytes(units[480:])
    plan = recovering.recovered(root)
    now = recovering.content(root)
    assert recovering.changed(engine, now) == set()
    assert any("no consume queue file begins here" in action["reason"]
               for action in plan["actions"])


@pytest.mark.parametrize("at", [0, 8, 12, 19])
def test_wrong_units(root, engine, at):
    """A bit in the offset, the size or the tags code."""
    path = root / place(TOPIC, 0, "CONSUME_QUEUE", 1000)
    data = bytearray(path.read_bytes())
    data[40 + at] ^= 0x40
    path.write_bytes(data)
    plan = recovering.recovered(root)
    assert not recovering.changed(engine, recovering.content(root))
    assert len(plan["actions"]) == 1


def test_wrong_names(root, engine):
    """A broker finds a file by its whole name."""
    for path in (root / LAST, root / place(TOPIC, 0, "CONSUME_QUEUE", 2000),
                 root / recovering.INDEX / recovering.name_of(5524)):
        path.rename(path.with_name("00000000" + path.name[8:]))
    recovering.recovered(root)
    assert not recovering.changed(engine, recovering.content(root))


def test_a_second_file_of_the_same_base(root, engine):
    path = root / place(TOPIC, 0, "CONSUME_QUEUE", 1000)
    path.with_name("00000000" + path.name[8:]).write_bytes(b"x" * 500)
    recovering.recovered(root)
    assert not recovering.changed(engine, recovering.content(root))


# -- half done ------------------------------------------------------------------------------------


def test_units_of_a_half_done_commit(root, engine):
    (root / place(TOPIC, 0, "CONSUME_QUEUE", 2000)).write_bytes(b"")
    recovering.recovered(root)
    assert not recovering.changed(engine, recovering.content(root))


def test_drop_orphans(root, engine):
    (root / place(TOPIC, 0, "CONSUME_QUEUE", 2000)).write_bytes(b"")
    plan = recovering.recovered(root, "--drop-orphans")
    now = recovering.content(root)
    ends = [at for at, _ in recovering.sizes(engine[LAST])]
    assert now[LAST] == engine[LAST][:ends[-2]]
    assert {action["action"] for action in plan["actions"]} == {"cut", "update"}
    metadata = meta.parse(now[recovering.METADATA]).segments["COMMIT_LOG"][f"broker-a/{TOPIC}/0"]
    assert metadata[43593].size == ends[-2]


def test_orphans_written_again(root, engine, expected):
    """After a crash between the two commits the messages come once more; the last ones count."""
    rows = place(TOPIC, 0, "CONSUME_QUEUE", 2000)
    data = bytearray(engine[LAST])
    starts = list(recovering.sizes(engine[LAST]))[-2:]
    again, units = b"", b""
    for number, (at, size) in enumerate(starts):
        position = 43593 + len(data) + len(again)
        content = bytearray(data[at:at + size])
        content[28:36] = position.to_bytes(8)
        again += content
        tags = engine[rows][20 * number + 12:20 * number + 20]
        units += struct.pack(">qi", position, size) + tags
    (root / LAST).write_bytes(bytes(data) + again)
    (root / rows).write_bytes(units)
    recovering.recover(root)  # sizes of metadata, and keys of the new places
    assert recovering.content(root)[rows] == units
    assert recovering.recover(root, apply=False)["actions"] == []
    shutil.rmtree(root / place(TOPIC, 0, "CONSUME_QUEUE"))
    recovering.recover(root)
    assert recovering.content(root)[rows] == units
    assert recovering.messages(root) == expected


# -- the commit log -------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [1, 100, 700])
def test_shifted_block(root, engine, expected, part):
    """A part of a block, then all of it: its messages say other places than theirs (§8.4)."""
    data = engine[LAST]
    at = list(recovering.sizes(data))[3][0]
    (root / LAST).write_bytes(data[:at] + data[at:at + part] + data[at:])
    plan = recovering.recovered(root)
    assert plan["actions"][0]["action"] == "put places right"
    assert recovering.messages(root) == expected
    now = recovering.content(root)[LAST]
    for start, size in list(recovering.sizes(now[at + part:])):
        assert size
        assert int.from_bytes(now[at + part + start + 28:at + part + start + 36]) == (
            43593 + at + part + start)


def test_torn_end_of_the_log(root, engine):
    """Units that lead behind it go: the next messages would come to lie there."""
    (root / LAST).write_bytes(engine[LAST][:-100])
    plan = recovering.recovered(root)
    assert plan["messages_lost_total"] == 1
    lost = plan["messages_lost"][0]
    assert (lost["topic"], lost["queue_id"], lost["queue_offset"]) == (TOPIC, 0, 101)
    assert recovering.content(root)[place(TOPIC, 0, "CONSUME_QUEUE", 2000)] == engine[
        place(TOPIC, 0, "CONSUME_QUEUE", 2000)][:20]


def test_last_segment_of_the_log_lost(root):
    (root / LAST).unlink()
    plan = recovering.recovered(root)
    assert plan["messages_lost_total"] == 33
    assert len(recovering.messages(root)[TOPIC, 0]) == 69


def overwritten(root: Path, number: int) -> None:
    """One message of the last segment is none any more."""
    data = bytearray((root / LAST).read_bytes())
    at = list(recovering.sizes(bytes(data)))[number][0]
    data[at + 4:at + 90] = bytes(86)
    (root / LAST).write_bytes(data)


def test_a_hole_that_has_a_unit_is_none(root, engine):
    overwritten(root, 5)
    plan = recovering.recover(root)
    assert plan["actions"] == []
    assert any("no longer point to a complete message" in note for note in plan["notes"])
    (root / place(TOPIC, 0, "CONSUME_QUEUE", 0)).unlink()
    recovering.recover(root)
    assert recovering.changed(engine, recovering.content(root)) == {LAST}


def test_damaged_bytes_in_a_hole_get_a_unit(root, engine):
    """Nothing else can have been there: no broker leaves a message out."""
    overwritten(root, 5)  # queue offset 74
    shutil.rmtree(root / place(TOPIC, 0, "CONSUME_QUEUE"))
    plan = recovering.recovered(root)
    assert any("1 queue offset from 74 on" in note for note in plan["notes"])
    now = recovering.content(root)
    for base in (0, 500, 1000, 1500, 2000):
        name = place(TOPIC, 0, "CONSUME_QUEUE", base)
        was = engine[name]
        differs = [at for at in range(len(was)) if now[name][at] != was[at]]
        # What its tags were is not known.
        assert all(at % 20 >= 12 and base + at - at % 20 == 74 * 20 for at in differs)


def test_a_hole_is_never_bridged(root, engine):
    """Without units and without a part of the log, what is newest stays readable."""
    (root / place(TOPIC, 0, "COMMIT_LOG", 21321)).unlink()
    shutil.rmtree(root / place(TOPIC, 0, "CONSUME_QUEUE"))
    plan = recovering.recovered(root)
    assert any("a gap separates them" in note for note in plan["notes"])
    messages = recovering.messages(root)[TOPIC, 0]
    assert [number for number, _ in messages] == list(range(69, 102))


def test_a_damaged_body_keeps_its_unit(root, engine):
    data = bytearray(engine[LAST])
    at = next(at for at, _ in recovering.sizes(engine[LAST])
              if int.from_bytes(data[at + 84:at + 88]))
    data[at + 88] ^= 1
    (root / LAST).write_bytes(data)
    shutil.rmtree(root / place(TOPIC, 0, "CONSUME_QUEUE"))
    plan = recovering.recover(root)
    assert any("CRC" in note for note in plan["notes"])
    assert recovering.changed(engine, recovering.content(root)) == {LAST}


def test_expired_messages_keep_their_units(root, engine):
    """Units live longer than what they lead to; nothing about them is wrong."""
    (root / place(TOPIC, 0, "COMMIT_LOG", 0)).unlink()
    (root / place(TOPIC, 0, "COMMIT_LOG", 21321)).unlink()
    plan = recovering.recovered(root)
    assert [action["action"] for action in plan["actions"]] == ["update"]
    now = meta.parse(recovering.content(root)[recovering.METADATA])
    was = meta.parse(engine[recovering.METADATA])
    path = f"broker-a/{TOPIC}/0"
    assert now.segments["CONSUME_QUEUE"][path] == was.segments["CONSUME_QUEUE"][path]
    assert list(now.segments["COMMIT_LOG"][path]) == [43593]


@pytest.mark.parametrize("left", [0, 7])
@pytest.mark.parametrize("named", [True, False], ids=["right", "wrong"])
def test_an_emptied_file_of_expired_units_leaves_no_gap(root, engine, left, named):
    """Nothing can make its units again, and a file without them would end where it begins."""
    for base in (0, 21321):
        (root / place(TOPIC, 0, "COMMIT_LOG", base)).unlink()
    first = root / place(TOPIC, 0, "CONSUME_QUEUE", 0)
    assert int.from_bytes(first.read_bytes()[-20:-12]) < 43593
    first.write_bytes(bytes(left))
    if not named:
        first = first.rename(first.with_name("deadbeef" + first.name[8:]))
    plan = recovering.recovered(root)
    assert {action["action"] for action in plan["actions"]} == {"move aside", "update"}
    assert not first.exists()
    assert json.loads(cli.run("tiered", "verify", root, "-o", "json").expect(0).out)["ok"]
    path = f"broker-a/{TOPIC}/0"
    now = meta.parse(recovering.content(root)[recovering.METADATA])
    was = meta.parse(engine[recovering.METADATA])
    assert list(now.segments["CONSUME_QUEUE"][path]) == list(
        was.segments["CONSUME_QUEUE"][path])[1:]


@pytest.mark.parametrize(("base", "by"), [(0, 7), (21321, 7), (21321, -7), (43593, 7),
                                          (43593, -300), (43593, 9000)])
@pytest.mark.parametrize("name", sample(["right", "wrong"], 1, "a log at the wrong place"))
def test_a_log_at_the_wrong_place(root, engine, base, by, name):
    """Its messages know where it begins."""
    path = root / place(TOPIC, 0, "COMMIT_LOG", base)
    other = root / place(TOPIC, 0, "COMMIT_LOG", base + by)
    path.rename(other if name == "right" else other.with_name("0" * 8 + other.name[8:]))
    plan = recovering.recovered(root)
    assert {action["action"] for action in plan["actions"]} == {"rename", "move aside"}
    assert not recovering.changed(engine, recovering.content(root))


def test_a_log_at_the_wrong_place_without_room(root, engine):
    other = root / place(TOPIC, 0, "COMMIT_LOG", 60000)
    other.write_bytes(engine[LAST][:12000])
    plan = recovering.recovered(root)
    assert [action["action"] for action in plan["actions"]] == ["move aside"]
    assert not recovering.changed(engine, recovering.content(root))


def test_a_file_that_is_none_of_the_log(root, engine):
    """It would hide the end of the segment in front of it."""
    other = root / place(TOPIC, 0, "COMMIT_LOG", 60000)
    other.write_bytes(bytes(5000))
    plan = recovering.recovered(root)
    assert [action["action"] for action in plan["actions"]] == ["move aside"]
    assert not recovering.changed(engine, recovering.content(root))


@pytest.mark.parametrize("name", ["COMMIT_LOG", "CONSUME_QUEUE"])
def test_any_bytes(root, name, seed):
    """Whatever lies there: a clear end, and nothing of it is gone."""
    chosen = random.Random(seed)
    for _ in range(6):
        for path in (root / place(TOPIC, 0, name)).iterdir():
            data = bytearray(path.read_bytes())
            for _ in range(chosen.randrange(4)):
                at = chosen.randrange(len(data) + 1)
                what = chosen.choice([chosen.randbytes(30), bytes(25), b"\xff" * 9,
                                      b"\xda\xa3\x20\xa7" * 3])
                data[at:at + chosen.choice([0, len(what)])] = what
            path.write_bytes(data)
        content = recovering.content(root)
        recovering.recover(root, apply=False)
        assert not recovering.changed(content, recovering.content(root))
    recovering.recover(root)
    assert recovering.recover(root, apply=False)["actions"] == []
    recovering.undo(root)
    assert not recovering.changed(content, recovering.content(root))


@pytest.mark.parametrize("part", [1, 100, 700])
@pytest.mark.parametrize("later", [False, True])
def test_shifted_block_in_an_earlier_segment(root, engine, part, later):
    """The end of the file lies behind the start of the next one: without the part that is there
    twice all is as it should be. ``later`` blocks know the place they were really written to.
    """
    path = place(TOPIC, 0, "COMMIT_LOG", 21321)
    data = bytearray(engine[path])
    starts = [at for at, _ in recovering.sizes(engine[path])]
    if later:
        for at in starts[20:]:
            data[at + 28:at + 36] = (21321 + at + part).to_bytes(8)
    at = starts[3]
    (root / path).write_bytes(bytes(data[:at] + data[at:at + part] + data[at:]))
    plan = recovering.recovered(root)
    assert [action["action"] for action in plan["actions"]] == ["close up"]
    assert not recovering.changed(engine, recovering.content(root))
