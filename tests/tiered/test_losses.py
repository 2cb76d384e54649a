"""What a tier has lost is in the one account of losses, whoever shows it."""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import rmqctl
from tests.support.cli import run

JSON = ("-o", "json")
TOPIC = "TP_user_Topic"


def segments(root: Path, queue_id: int) -> list[Path]:
    """The commit log of a queue, its first segment first."""
    return sorted(root.glob(f"**/{TOPIC}/{queue_id}/COMMIT_LOG/*"), key=lambda file: file.name[8:])


def hurt(root: Path) -> int:
    """Zeroes a part of two commit logs: how many messages were there, by the units."""
    lost = 0
    for queue_id, start, end in ((0, 60, 3000), (1, 4000, 9000)):
        file = segments(root, queue_id)[0]
        data = bytearray(file.read_bytes())
        data[start:end] = bytes(end - start)
        file.write_bytes(data)
        units = b"".join(rows.read_bytes() for rows in sorted(
            root.glob(f"**/{TOPIC}/{queue_id}/CONSUME_QUEUE/*"), key=lambda rows: rows.name[8:]))
        lost += sum(place < end and place + size > start
                    for place, size, _ in struct.iter_unpack(">qiq", units))
    assert lost > 5
    return lost


def expire(root: Path) -> None:
    """Leaves nothing in the log but its last file."""
    for file in sorted((root / "commitlog").iterdir())[:-1]:
        file.unlink()
    shutil.rmtree(root / "index")


def test_a_tier_alone(root: Path) -> None:
    tier = root / "tieredstore"
    lost = hurt(tier)
    segments(tier, 1)[-1].unlink()
    lost += sum(row["count"] for row in run("verify", tier, *JSON).json()["findings"]
                if row["category"] == "tiered-cq-ahead")
    for jobs in ("1", "2"):
        cover = run("verify", tier, "--jobs", jobs, *JSON).expect(1).json()["coverage"]
        assert cover["messages_already_lost"] == lost
        assert cover["already_lost_by_topic"] == {TOPIC: lost}
    assert re.search(rf"already lost +{lost} messages", run("verify", tier).out)


def test_the_place_of_a_finding_fits_on_a_screen(root: Path) -> None:
    file = segments(root, 0)[0]
    data = bytearray(file.read_bytes())
    data[300] ^= 1  # of the first body
    file.write_bytes(data)
    page = run("verify", root, "--only", "tiered", env={"COLUMNS": "80"}).expect(1).out
    assert file.name in page.partition("What next")[0]
    assert max(map(len, page.splitlines())) <= 80


def test_what_the_log_still_has_is_not_lost(root: Path) -> None:
    hurt(root)
    cover = run("verify", root, "--only", "tiered", *JSON).expect(1).json()["coverage"]
    assert cover["tiered"]["messages_already_lost"] == 0


def numbers(losses: dict[str, Any]) -> list[int]:
    return [losses[name] for name in (
        "messages_already_lost", "messages_undecided", "messages_replaced")]


@pytest.mark.long
def test_all_commands_count_what_a_tier_has_lost(root: Path, tmp_path: Path) -> None:
    lost = hurt(root)
    expire(root)
    doctor = run("doctor", root, *JSON).expect(1).json()
    assert doctor["already_lost"] == lost
    assert doctor["already_lost_by_topic"] == {TOPIC: lost}
    assert [row["count"] for row in doctor["losses"] if row["file"] == "tieredstore"] == [lost]
    for name in ("verify", "preflight", "impact"):
        answer = run(name, root, *JSON).expect(1).json()
        assert numbers(answer.get("coverage", answer)) == numbers(doctor), name
    with rmqctl.open(root) as opened:
        assert numbers(opened.doctor()) == numbers(opened.preflight()) == numbers(doctor)
        assert numbers(opened.verify()["coverage"]) == numbers(doctor)
    out = tmp_path / "report.html"
    run("report", root, "--no-hash", "--out", out).expect(1)
    tiles = re.sub(r"<[^>]+>|\s+", " ", out.read_text())
    assert re.search(rf"{lost:,} +messages already lost", tiles)
    text = f"{lost} messages are lost in the tier but not in the log"
    for name in ("doctor", "preflight", "impact"):
        assert text in " ".join(run(name, root).out.split()), name


@pytest.mark.long
def test_a_repair_of_the_tier_hides_no_loss(root: Path) -> None:
    """Units at the end of a queue are dropped with the messages that they tell of."""
    hurt(root)
    segments(root, 1)[-1].unlink()
    expire(root)
    before = numbers(run("doctor", root, *JSON).expect(1).json())
    done = run("tiered", "recover", root, "--apply", "--yes", *JSON).expect(0, 1).json()
    assert done["messages_lost"]
    assert numbers(run("doctor", root, *JSON).expect(1).json()) == before


@pytest.mark.long
def test_a_tier_that_can_be_repaired_is_nothing_to_do_by_hand(root: Path) -> None:
    segments(root, 1)[-1].unlink()
    before = run("doctor", root, *JSON).expect(1).json()
    assert [step for step in before["next"] if " tiered recover " in step]
    assert not [remainder for remainder in before["remains"]
                if remainder["category"].startswith("tiered-")]
    expire(root)
    run("tiered", "recover", root, "--apply", "--yes").expect(0, 1)
    after = run("doctor", root, *JSON).expect(1).json()
    assert "messages are missing since repairs of the tier" in after["verdict"]
    assert after["already_lost"] > 10
    assert not [loss for loss in after["losses"] if loss["file"] == "tieredstore"]
