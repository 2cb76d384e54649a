"""Units that `tiered recover` makes for damaged messages lead to where it can only guess: they keep
the places of the queue offsets behind, and prove nothing, least of all that a frame in a body is a
message. So what is recovered once stays as it is.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.hostile import FORGED
from tests.adversary.test_forged_tier import read, recover
from tests.adversary.test_slots import bare, end, lose_head, small
from tests.adversary.tier_writer import QUEUE, TOPIC, TierWriter
from tests.adversary.writer import Body, field_places, frame, framed
from tests.support.cli import run
from tests.support.share import RUN

SAID_AFTER = {"tiered-record", "tiered-orphans"}
"""What only the units there are after a recovery can show."""


def verify_tier(tier: Path) -> tuple[Counter[str], dict[str, Any]]:
    """(what `verify` says how often, its coverage)."""
    verdict = run("tiered", "verify", tier, "-o", "json").expect(0, 1).json()
    kinds: Counter[str] = Counter()
    for finding in verdict["findings"]:
        kinds[finding["category"]] += finding["count"]
    return kinds, verdict["coverage"]


def check(writer: TierWriter, tier: Path) -> dict[str, Any]:
    """The plan of the first recovery; fails where a frame is given, or a second one finds more."""
    put = {record.queue_offset: record for record in writer.puts}

    def no_frame_is_given() -> None:
        for queue_offset, row in read(tier).items():
            assert (row["physical_offset"], row["total_size"]) == (
                put[queue_offset].physical, put[queue_offset].size), "a frame was given"
        stats = run("tiered", "stats", tier, "-o", "json").expect(0).json()
        assert stats["orphans"]["messages"] + stats["total"]["messages"] <= len(put)

    before, _ = verify_tier(tier)
    plan: dict[str, Any] = recover(tier, "--apply", "--yes").expect(0, 1).json()
    no_frame_is_given()
    after, coverage = verify_tier(tier)
    assert set(after) - set(before) <= SAID_AFTER
    assert after["ambiguous"] <= before["ambiguous"]
    assert coverage["messages"] + coverage["orphans"] <= len(put)
    again = recover(tier, "--apply", "--yes").expect(0, 1).json()
    assert again["actions"] == []
    assert again.get("ambiguous", 0) == after["ambiguous"]
    no_frame_is_given()
    return plan


def asked(tier: Path, queue_offset: int) -> str:
    """What a consumer of one message gets."""
    return run("tiered", "query", "offset", tier, "--topic", TOPIC, "--queue", str(QUEUE),
               "--offset", str(queue_offset)).out


def lead_to(writer: TierWriter, place: int) -> bytes:
    """What is between the start of the body that comes next and a place behind it in the log."""
    body_at = writer.end + field_places(frame(TOPIC, b"", 0, queue_id=QUEUE).at(0))["body"][0]
    return b"-" * (place - body_at)


def test_a_frame_where_one_of_the_equal_parts_ends(tmp_path: Path) -> None:
    """The sender has guessed what recover guesses."""
    writer = bare()
    small(writer, 0)
    start, size, lost = writer.end, 800, len(frame(TOPIC, b"m2", 2, queue_id=QUEUE).at(0))
    half = (size + lost) // 2
    body = lead_to(writer, start + half) + frame(TOPIC, FORGED, 2, queue_id=QUEUE).at(start + half)
    body += b"r" * (size - len(body) - len(frame(TOPIC, b"", 1, queue_id=QUEUE).at(0)))
    around, behind = writer.put(body, properties_raw=b""), small(writer, 2)
    assert (around.size, behind.size) == (size, lost)
    small(writer, 3)
    lose_head(writer, around)
    lose_head(writer, behind)
    tier = end(writer, tmp_path)
    plan = check(writer, tier)
    assert plan["ambiguous"] == 2
    assert any("equal parts" in note for note in plan["notes"])
    assert [asked(tier, 1), asked(tier, 2)] == ["", ""]
    # The choice is still open.
    recover(tier, "--ambiguous", "keep", "--apply", "--yes").expect(0)
    assert FORGED.decode() in asked(tier, 2)


def test_a_coda_where_one_of_the_equal_parts_begins(tmp_path: Path) -> None:
    """A broker passes over a coda: the frame behind it must not be as long as the part."""
    writer = bare()
    small(writer, 0)
    start, size = writer.end, 900
    lost = len(frame(TOPIC, b"m2", 2, queue_id=QUEUE).at(0))
    third = (size + 2 * lost) // 3
    bare_size = len(frame(TOPIC, b"", 1, queue_id=QUEUE).at(0))
    coda = bytes.fromhex("00000010cbd43194") + bytes(8)
    forged = frame(TOPIC, FORGED + b"f" * (third - bare_size - len(FORGED)), 2, queue_id=QUEUE)
    body = lead_to(writer, start + third) + coda + forged.at(start + third + len(coda))
    body += b"r" * (size - len(body) - bare_size)
    gone = [writer.put(body, properties_raw=b""), small(writer, 2), small(writer, 3)]
    assert [file.size for file in gone] == [size, lost, lost]
    small(writer, 4)
    for file in gone:
        lose_head(writer, file)
    tier = end(writer, tmp_path)
    plan = check(writer, tier)
    assert any("equal parts" in note for note in plan["notes"])
    assert [asked(tier, 1), asked(tier, 2), asked(tier, 3)] == ["", "", ""]


def test_a_damaged_unit_hides_no_message_that_has_one(tmp_path: Path) -> None:
    """Two messages lost their heads, and the unit of the second one says a size beyond the end."""
    writer = bare()
    writer.with_units = True
    for number in range(5):
        small(writer, number)
    for lost in writer.puts[1:3]:
        lose_head(writer, lost)
    unit = writer.units[2]
    writer.units[2] = unit[:8] + (1 << 19 | len(writer.puts[2].raw)).to_bytes(4, "big") + unit[12:]
    tier = end(writer, tmp_path)
    assert verify_tier(tier)[1]["messages"] == 4
    check(writer, tier)
    assert set(read(tier)) == {0, 3, 4, 5}


def test_what_mended_records_tell_of_the_others(tmp_path: Path) -> None:
    """That a whole message between two is one is known once the second one is mended, which has an
    index item; then so can the first one.
    """
    writer = TierWriter()
    writer.with_units = False
    for _ in range(2):
        writer.put(b"first", properties_raw=b"")
    lost = [writer.put(b"", properties_raw=b"")]
    writer.put(b"whole", keys="k3")
    writer.items.clear()
    writer.roll()
    lost.append(writer.put(b""))
    writer.put(b"behind", keys="k5")
    for message in lost:
        lose_head(writer, message)
    tier = end(writer, tmp_path)
    check(writer, tier)
    assert set(read(tier)) == set(range(7))


def test_a_record_at_a_segments_start_is_mended_once(tmp_path: Path) -> None:
    """What is lost begins in the segment before; the record says another queue offset."""
    writer = bare()
    for number in range(4):
        small(writer, number)
    writer.roll()
    mended = writer.put(b"mended")
    lose_head(writer, writer.puts[2])
    lose_head(writer, writer.puts[3])
    writer.patch(mended.physical + field_places(mended.raw)["queue_offset"][0], bytes(8))
    tier = end(writer, tmp_path)
    check(writer, tier)
    assert set(read(tier)) == {0, 1, 4, 5}


@pytest.mark.parametrize("with_index", [False, True])
def test_once_recovered_nothing_changes(with_index: bool, seed: int, tmp_path: Path) -> None:
    """Messages that lost their heads, whose bodies hold frames numbered as what comes next."""
    chance = random.Random(seed)
    guessed = 0
    for number in range(200 if RUN.exhaustive else 6):
        writer = bare()
        writer.with_index = with_index
        for queue_offset in range(chance.randint(6, 10)):
            rest = b"b" * chance.choice([0, 5, 30, 200])
            body: Body = rest
            if queue_offset and chance.random() < 0.5:
                first = queue_offset + chance.randint(0, 2)
                frames = [frame(TOPIC, FORGED[:chance.randint(4, len(FORGED))], first + more,
                                queue_id=QUEUE) for more in range(chance.randint(1, 3))]
                body = framed(frames, before=b"lead" * chance.choice([0, 1, 8]), after=rest)
            has_key = with_index and chance.random() < 0.5
            message = writer.put(body, properties_raw=None if has_key else b"")
            if queue_offset and chance.random() < 0.5:
                lose_head(writer, message)
        plan = check(writer, end(writer, tmp_path / str(number)))
        guessed += any("equal parts" in note for note in plan["notes"])
    assert guessed
