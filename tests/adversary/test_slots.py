"""Frames behind damage in a tier of which only commit logs are left: the queue offsets around tell
what has room there. Who sends a message may know the next ones.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.hostile import FORGED
from tests.adversary.test_forged_tier import body_of, read, recover
from tests.adversary.tier_writer import QUEUE, TOPIC, TierWriter
from tests.adversary.writer import Put, field_places, frame, framed
from tests.support.cli import run
from tests.support.share import RUN


def bare() -> TierWriter:
    """No unit and no index item is left of what it writes."""
    writer = TierWriter()
    writer.with_units = writer.with_index = False
    return writer


def small(writer: TierWriter, number: int) -> Put:
    return writer.put(b"m%d" % number, properties_raw=b"")


def lose_head(writer: TierWriter, put: Put) -> None:
    writer.patch(put.physical, bytes(field_places(put.raw)["body"][0]))


def again(writer: TierWriter, queue_offset: int, part: int | None = None,
          properties: dict[str, str] | None = None) -> None:
    """A message (or the first bytes of it) at the end of the log, without a unit: a broker that
    dies then writes it again.
    """
    raw = frame(TOPIC, b"again %d" % queue_offset, queue_offset, queue_id=QUEUE,
                properties=properties).at(writer.end)
    writer.segments[max(writer.segments)] += raw[:part]


def end(writer: TierWriter, tmp_path: Path) -> Path:
    """One more segment: the one before it is full."""
    writer.roll()
    writer.put(b"in the last segment")
    return writer.write(tmp_path / "store")


def unclear(tier: Path) -> int:
    """Of how many records neither `verify` nor `recover` can tell what they are."""
    findings = run("tiered", "verify", tier, "-o", "json").expect(1).json()["findings"]
    count = sum(finding["count"] for finding in findings if finding["category"] == "ambiguous")
    plan = recover(tier).expect(1 if count else 0).json()
    assert plan.get("ambiguous", 0) == count
    return count


def recovered(tier: Path) -> dict[int, dict[str, Any]]:
    recover(tier, "--apply", "--yes").expect(0, 1)
    rows = read(tier)
    assert recover(tier).expect(0, 1).json()["actions"] == []
    return rows


def test_a_message_with_one_slot_has_frames_in_its_body_only(tmp_path: Path) -> None:
    writer = bare()
    for number in range(3):
        small(writer, number)
    frames = [frame(TOPIC, FORGED, number, queue_id=QUEUE) for number in (3, 4, 5)]
    around = writer.put(framed(frames, after=b"rest"))
    behind = [small(writer, number) for number in range(4, 7)]
    lose_head(writer, around)
    tier = end(writer, tmp_path)
    assert unclear(tier) == 0
    rows = recovered(tier)
    assert set(rows) == {0, 1, 2, 4, 5, 6, 7}
    assert [rows[put.queue_offset]["physical_offset"] for put in behind] == [
        put.physical for put in behind]


def test_at_a_segments_start_the_one_before_it_tells(tmp_path: Path) -> None:
    for coda in (False, True):
        writer = bare()
        writer.coda = coda
        small(writer, 0)
        writer.roll()
        around = writer.put(framed([frame(TOPIC, FORGED, 1, queue_id=QUEUE)], after=b"rest"))
        small(writer, 2)
        lose_head(writer, around)
        tier = end(writer, tmp_path / str(coda))
        assert unclear(tier) == 0
        assert set(recovered(tier)) == {0, 2, 3}


def test_whole_messages_between_damaged_ones(tmp_path: Path) -> None:
    """There is no room for other messages of their queue offsets."""
    writer = bare()
    puts = [small(writer, number) for number in range(6)]
    lose_head(writer, puts[1])
    lose_head(writer, puts[4])
    tier = end(writer, tmp_path)
    assert unclear(tier) == 0
    counted = run("tiered", "verify", tier, "-o", "json").json()["coverage"]
    assert (counted["orphans"], counted["bytes_damaged"] + counted["bytes_zero"]) == (
        5, puts[1].size + puts[4].size)
    stats = run("tiered", "stats", tier, "-o", "json").expect(0).json()
    assert stats["orphans"]["messages"] == counted["orphans"]
    rows = recovered(tier)
    assert {number: body_of(rows[number]) for number in (2, 3)} == {2: b"m2", 3: b"m3"}
    assert set(rows) == {0, 2, 3, 5, 6}


def test_what_is_left_of_a_torn_message_is_no_room(tmp_path: Path) -> None:
    writer = bare()
    lost = [small(writer, number) for number in range(3)][1]
    again(writer, 3, part=20)
    small(writer, 3)
    lose_head(writer, lost)
    tier = end(writer, tmp_path)
    assert unclear(tier) == 0
    assert set(recovered(tier)) == {0, 2, 3, 4}


def test_a_queue_offset_that_has_no_room_was_never_given(tmp_path: Path) -> None:
    """The log does not go on as a queue's does: what is missing everywhere proves nothing."""
    writer = bare()
    lost = [small(writer, number) for number in range(2)][1]
    writer.next_offset[TOPIC, QUEUE] = 3
    small(writer, 3)
    again(writer, 4, part=20)
    writer.next_offset[TOPIC, QUEUE] = 4
    small(writer, 4)
    lose_head(writer, lost)
    assert unclear(end(writer, tmp_path)) == 0


def test_where_there_is_room_for_one_more_they_may_be_in_a_body(tmp_path: Path) -> None:
    """The message around has frames that are numbered as those behind it, of which as little is
    left as of itself.
    """
    writer = bare()
    small(writer, 0)
    frames = [frame(TOPIC, FORGED, number, queue_id=QUEUE) for number in (2, 3)]
    lost = [writer.put(framed(frames, before=b"lead" * 5), properties_raw=b""),
            *(small(writer, number) for number in range(2, 5))]
    small(writer, 5)
    for put in lost:
        lose_head(writer, put)
    tier = end(writer, tmp_path)
    assert unclear(tier) == 3
    assert not any(FORGED in body_of(row) for row in recovered(tier).values())


@pytest.mark.parametrize("torn", [False, True])
def test_messages_that_were_written_again(torn: bool, tmp_path: Path) -> None:
    """The log has more records than there are queue offsets, so nothing tells."""
    writer = bare()
    small(writer, 0)
    if torn:
        lost = small(writer, 1)
        again(writer, 2)
        again(writer, 3, part=20)
        small(writer, 2)
    else:
        again(writer, 1)
        lost = small(writer, 1)
        # Its properties are no text, so it may end a body as well as itself.
        writer.put(b"m2", properties_raw=b"p\x01\x03\x02")
    small(writer, 3)
    lose_head(writer, lost)
    assert unclear(end(writer, tmp_path)) == 1


@pytest.mark.parametrize("with_units", [False, True])
@pytest.mark.parametrize("coda", [False, True])
def test_commit_takes_for_sound_what_verify_does(with_units: bool, coda: bool,
                                                 tmp_path: Path) -> None:
    """Units were not written yet from a damaged message on, and the log ends in another one: frames
    in the body of the former change nothing.
    """
    done = []
    for has_frames in (False, True):
        writer = bare()
        writer.coda, writer.with_units = coda, with_units
        small(writer, 0)
        writer.roll()
        small(writer, 1)
        if coda:  # the last unit leads to the coda before its message
            place = writer.puts[-1].physical - 16
            writer.units[1] = place.to_bytes(8, "big") + writer.units[1][8:]
        inner = frame(TOPIC, FORGED, 2, queue_id=QUEUE)
        lost = [writer.put(framed([inner]) if has_frames else b"b" * 40, properties_raw=b"")]
        small(writer, 3)
        writer.roll()
        small(writer, 4)
        lost.append(small(writer, 5))
        for put in lost:
            lose_head(writer, put)
        for number in range(2, 6):
            writer.units.pop(number)
        tier = writer.write(tmp_path / str(has_frames) / "store")
        findings = run("tiered", "verify", tier, "-o", "json").expect(0, 1).json()["findings"]
        assert "ambiguous" not in {finding["category"] for finding in findings}
        rows = run("tiered", "commit", tier, "-o", "json").expect(0).json()
        assert set(read(tier)) == {0, 1}
        done.append([{**row, "kept": len(row["kept"])} for row in rows])
    assert [row["bytes_cut"] for row in done[0]] == [lost[1].size]
    assert done[1] == done[0]


def test_no_frame_is_kept_and_nothing_that_is_whole_is_lost_unsaid(seed: int,
                                                                  tmp_path: Path) -> None:
    """Some messages lose their heads; bodies hold frames that are numbered as what comes next."""
    chance = random.Random(seed)
    count = 0
    for number in range(400 if RUN.exhaustive else 12):
        writer = bare()
        lost = {}
        small(writer, 0)
        for queue_offset in range(1, chance.randint(4, 9)):
            body = b"b" * chance.choice([0, 5, 30, 200])
            if chance.random() < 0.5:
                first = queue_offset + chance.randint(0, 2)
                frames = [frame(TOPIC, FORGED[:chance.randint(4, len(FORGED))], first + more,
                                queue_id=QUEUE) for more in range(chance.randint(1, 3))]
                message = writer.put(framed(frames, before=body[:chance.choice([0, 4])],
                                            after=body), properties_raw=b"")
            else:
                message = writer.put(body, properties_raw=b"")
            if chance.random() < 0.4:
                lost[queue_offset] = message
                lose_head(writer, message)
        tier = end(writer, tmp_path / str(number))
        plan = recover(tier, "--apply", "--yes").expect(0, 1).json()
        rows = read(tier)
        put = {record.queue_offset: record for record in writer.puts}
        for queue_offset, row in rows.items():
            assert (row["physical_offset"], row["total_size"]) == (
                put[queue_offset].physical, put[queue_offset].size), "a frame was given"
        if not plan.get("ambiguous"):
            count += 1
            assert set(put) - set(lost) == set(rows) - set(lost)
    assert count
