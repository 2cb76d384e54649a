"""One fixed seed of each world (`grounds.FORMS`, honest and forged) and of each damage
(`harms.KINDS`), and each that was wrong once. All others: `python -m benchmarks.worlds`.
"""

from __future__ import annotations

import random
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import worlds
from rmqctl.formats.local.message import decode
from tests.adversary.writer import V1, Layout, Writer
from tests.repair.campaign.judging import After
from tests.repair.campaign.worlds import grounds, harms, trial
from tests.support import damage
from tests.support.cli import run
from tests.support.share import RUN

PART = 40
WRONG_ONCE = (24, 1010, 1116, 2124, 5011, 5421, 5839, 20251, 20605, 20668, 21351, 21464, 21957,
              22291, 22332, 22512, 22668, 23183, 23331, 23636, 31498, 40785, 40792,
              41736, 51107, 60157, 72255, 94248, 94299, 100349, 112382, 120865,
              125797, 130250, 132152, 136540,
              139710)
"""Seeds: 24, 5011, 5421, 5839, 94248 and 112382 showed records of a stale page, 130250 a frame
right behind one, 125797 published one. 20605, 23183, 23331 and 23636 took a moved record's size for
an extent, and hid intact messages. 20668, 21351, 21464, 22291, 22512 and 22668 made a message of a
moved or stale record, since one key was in the index. 22332 left a queue without rows that `verify`
complained about. 31498 published a frame in the body of a message whose head a moved page covers.
40785 left a queue id of any value where its topic lacked the message just there, 40792 did not
count a message without a body between damage, and 51107 and 94299 made a message without a body of
a header of zeros. 41736 called a message stale that the user keeps, and 60157 made a message of a
copied frame whose place was off by one bit. 72255 replaced the entry of a message whose damaged
properties have no room for it. 1010 is a file over another one, gone itself, whose places were off
by one bit. 1116 lost all messages; the fillers of a later file were older than those before. 2124
has zeroed index entries in the chain of a slot. 100349 left the entry of a lost message whose size
is one bit off. 120865 set places right that a moved page has, as these differ in one bit. 132152
kept overwritten index entries of messages whose file is gone. 136540 took bytes of another message
for the rest of a topic, 139710 zeros for the length of properties."""


def judged(world: trial.World, folder: Path) -> trial.Outcome:
    outcome = trial.try_one(world, folder)
    assert not outcome.wrong, outcome.describe()
    return outcome


@pytest.mark.long
@pytest.mark.parametrize("forged", [False, True], ids=["honest", "forged"])
@pytest.mark.parametrize("form", grounds.FORMS)
def test_each_form(form: str, forged: bool, tmp_path: Path) -> None:
    world = trial.world(7, form, "zeroed page", forged)
    assert judged(world, tmp_path).counts["damaged"]


@pytest.mark.long
def test_a_member_brings_all_back(tmp_path: Path) -> None:
    replaced = replace(trial.world(1, grounds.DLEDGER, "zeroed page"), source="whole",
                       state="whole")
    counts = judged(replaced, tmp_path).counts
    assert counts["back"] == counts["damaged"] > 0


@pytest.mark.long
@pytest.mark.parametrize("kind", [*harms.KINDS])
def test_each_damage(kind: str, tmp_path: Path) -> None:
    world = trial.world(8, grounds.MANY, kind, True)
    assert judged(world, tmp_path).counts["damaged"]


@pytest.mark.long
@pytest.mark.parametrize("form", grounds.FORMS)
def test_an_undamaged_ground_is_sound(form: str, tmp_path: Path) -> None:
    ground = grounds.make(tmp_path, form, True, 3)
    assert ground.forged
    document = run("verify", ground.root, "-o", "json").expect(0).json()
    assert document["coverage"]["messages"] == len(ground.messages)


@pytest.mark.parametrize("kind", grounds.FORGERIES)
def test_a_forgery_is_one(kind: str) -> None:
    """Its first forged record is a whole one, of the physical offset where it is."""
    writer = Writer(Layout(16 << 10), 1)
    put = grounds.forge(writer, random.Random(kind), kind)
    at = put.raw.index(struct.pack(">I", V1), 8) - 4
    size, = struct.unpack_from(">i", put.raw, at)
    record = decode(put.raw[at:at + size])
    assert record.body.startswith(grounds.FORGED)
    assert (record.physical_offset, record.topic) == (put.physical + at, put.topic.encode())


@pytest.mark.long
@pytest.mark.parametrize("seed", WRONG_ONCE)
def test_what_was_wrong_once(seed: int, tmp_path: Path) -> None:
    judged(trial.world(seed), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", [283, 379, 556, 1225, 2048, 2068, 2280, 2489, 2531, 7082])
def test_what_was_wrong_once_in_wide_worlds(seed: int, tmp_path: Path) -> None:
    """283, 379 and 556 hid an intact message that a forged frame reaches into, 1225 took the
    messages of a queue of batches for stale. 2068 took zeros in a body for the end of a record,
    2048 a damaged length of a body, and 2280 made a message of a swapped page whose place was off
    by one bit. 2531 changed an intact message because of frames that the user keeps.
    2489 showed records of a stale page at the log's end, 7082 left the head of a DLedger entry
    damaged.
    """
    judged(trial.world(seed, wide=True), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(20))
def test_many_worlds(part: int, tmp_path: Path) -> None:
    first = 1_000_000 + 1000 * RUN.seed + PART * part
    for seed in range(first, first + PART):
        judged(trial.world(seed), tmp_path)


def test_what_the_table_says() -> None:
    """Each error is counted once for its world, and for its damage."""
    sums = worlds.Sums()
    world = trial.world(1, grounds.LARGE, "zeroed page", False)
    outcome = trial.Outcome(world, ["a", "b"], [(trial.LOST, "x"), (trial.LOST, "y")])
    outcome.counts.update(damaged=5, messages=1000, undecided=250, pages=1)
    sums.add(outcome)
    text = worlds.section(sums, "command", 1, 1)
    row = next(line for line in text.splitlines() if line.startswith("| one large file, honest"))
    assert [cell.strip() for cell in row.split("|")][2:-1] == [
        "1", "0", "5", "0", "0", "0", "0", "1", "0", "0", "0", "0", "250", "25.00%", "250"]
    assert sums.too_many


@pytest.mark.long
def test_one_hole_in_the_index_does_not_make_messages_stale(tmp_path: Path) -> None:
    """No consume queues, and a zeroed stretch of the index, which has the entries of the messages
    after a damaged one: one cause, so nothing speaks against them.
    """
    ground = grounds.make(tmp_path / "made", grounds.MANY, False, 3)
    root = ground.copy(tmp_path / "store")
    shutil.rmtree(root / "consumequeue")
    places = sorted(ground.messages)
    bases = [max(base for base in ground.files if base <= place) for place in places]
    victim = next(number for number in range(40, len(places) - 8)
                  if len({*bases[number - 4:number + 8]}) == 1)
    damage.write(root, f"commitlog/{bases[victim]:020d}", places[victim] - bases[victim],
                 bytes(88))
    index, = (root / "index").iterdir()
    data = bytearray(index.read_bytes())
    after = places[victim + 1:victim + 5]
    for at in range(40 + 4 * grounds.SLOTS, len(data) - 19, 20):
        if int.from_bytes(data[at + 4:at + 12], "big") in after:
            data[at:at + 20] = bytes(20)
    index.write_bytes(data)
    run("recover", root, "--commitlog-file-size", str(ground.sizes.commitlog_file),
        "--index-slots", str(grounds.SLOTS), "--index-max", str(grounds.ENTRIES),
        "--max-message-size", str(grounds.LARGEST), "--ambiguous", "leave-out", "--apply", "--yes")
    kept = After(ground, root).messages
    assert [kept.get(place) for place in after] == [ground.messages[place] for place in after]
