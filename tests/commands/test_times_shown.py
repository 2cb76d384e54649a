"""Times in sentences and in cells of plans: as everywhere else, in the zone of ``--tz``; JSON keeps
its numbers.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from rmqctl.formats.local import checkpoint as page
from tests.conftest import GoldenFolder, Runner
from tests.support import tiny as tiny_stores

CRASHED = "5.3.3/crash-nocq/before"
MILLIS = re.compile(r"(?<![\d/])1[67]\d{11}(?!\d)")
"""A raw time of these stores; not a file's name."""
STORED_AT = 56
STRANGE = [1, -1, 1 << 40, 300_000_000_000_000, (1 << 63) - 1, -(1 << 63)]
"""Store times before there was a broker, beyond the year 9999, and at the ends of the numbers."""
CHINA, INDIA = "Asia/Shanghai", "+05:30"


def set_checkpoint(store: Path, *times: int) -> None:
    (store / "checkpoint").write_bytes(page.build(page.CheckpointRecord(*times)))


def retimed(tiny: tiny_stores.Tiny, number: int, time: int) -> None:
    file, position = tiny.place(tiny.messages[number].start + STORED_AT)
    with (tiny.root / file).open("r+b") as log:
        log.seek(position)
        log.write(struct.pack(">q", time))


@pytest.mark.parametrize("command", [("preflight",), ("recover", "--strategy", "broker")],
                         ids=["preflight", "recover"])
def test_what_a_broker_would_do(golden: GoldenFolder, rmqctl: Runner,
                                command: tuple[str, ...]) -> None:
    store = golden(CRASHED)
    seen = rmqctl(*command, store, "-o", "plain").out
    assert "logics 2024-06-23T19:13:40.943Z, confirm 0" in seen
    assert not MILLIS.search(seen)
    there = rmqctl(*command, store, "--tz", CHINA, "-o", "plain").out
    assert "logics 2024-06-24T03:13:40.943+08:00, confirm 0" in there
    assert "Z " not in there
    # The zone is of one command: the next one has its own.
    assert rmqctl(*command, store, "-o", "plain").out == seen


def test_where_recovery_begins_is_a_sentence(golden: GoldenFolder, rmqctl: Runner) -> None:
    reason = rmqctl("preflight", golden(CRASHED), "--tz", CHINA, "-o", "json").json()[
        "start_reason"]
    assert reason == ("its first message was stored at 2024-06-24T03:13:15.525+08:00, not after "
                      "the checkpoint's 2024-06-24T03:13:19.897+08:00")


def test_numbers_of_a_plan_stay_numbers(golden: GoldenFolder, rmqctl: Runner) -> None:
    write = next(action for action in rmqctl(
        "preflight", golden(CRASHED), "--tz", CHINA, "-o", "json").json()["actions"]
        if action["target"] == "checkpoint")
    assert write["from"] == {"logics_msg_timestamp": 1719170020943, "confirm_phy_offset": 0}
    assert write["to"] == {"logics_msg_timestamp": 1719170042482, "confirm_phy_offset": 183158}


def test_a_checkpoint_made_anew(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    set_checkpoint(tiny.root, 0, 0, 0)
    plan = rmqctl("recover", tiny.root, "--only", "checkpoint", "--tz", INDIA, "-o", "plain").out
    assert "physic 0, logics 0, index 0" in plan
    assert "physic 2023-11-15T03:43:31.900+05:30, logics 2023-11-15T03:43:31.900+05:30" in plan


def test_a_checkpoint_ahead(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    last = tiny.messages[-1].record.store_timestamp
    set_checkpoint(tiny.root, last, last + 1000, 0)
    finding, = rmqctl("verify", tiny.root, "--only", "commitlog,checkpoint", "--tz", INDIA, "-o",
                      "json").json()["findings"]
    assert finding["detail"] == ("logics_msg_timestamp: 2023-11-15T03:43:32.900+05:30 is after the "
                                 "newest message, stored at 2023-11-15T03:43:31.900+05:30")


def test_an_index_that_has_another_time(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    index = next((tiny.root / "index").iterdir())
    content = bytearray(index.read_bytes())
    content[:8] = struct.pack(">q", struct.unpack(">q", content[:8])[0] + 60_000)
    index.write_bytes(content)
    details = [finding["detail"] for finding in rmqctl(
        "verify", tiny.root, "--tz", INDIA, "-o", "json").expect(1).json()["findings"]]
    assert any(re.search(r"is 2023-11-15T\S+\+05:30, but the message at \d+ was stored at "
                         r"2023-11-15T\S+\+05:30", detail) for detail in details)
    assert not any(MILLIS.search(detail) for detail in details)


def test_a_time_that_two_stores_have_differently(tiny: tiny_stores.Tiny, tiny_base:
                                                 tiny_stores.Tiny, rmqctl: Runner) -> None:
    retimed(tiny, 2, tiny_stores.EPOCH)
    difference, = rmqctl("diff", tiny_base.root, tiny.root, "--tz", INDIA, "-o",
                         "json").expect(1).json()[
                             "differences"]
    assert difference["detail"] == ("store_timestamp 2023-11-15T03:43:23.400+05:30 / "
                                    "2023-11-15T03:43:20.000+05:30")
    assert difference["store_timestamp"] == tiny_stores.EPOCH + 2 * tiny_stores.STEP


def test_what_is_cut_and_taken_back(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    plan = rmqctl("truncate", tiny.root, "--to-phy", str(tiny.messages[5].start), "--tz",
                  INDIA, "--apply", "--yes", "-o", "plain").expect(0).out
    assert "logics 2023-11-15T03:43:26.800+05:30" in plan
    assert "stored from 2023-11-15T03:43:28.500+05:30" in plan
    assert not MILLIS.search(plan)
    assert "+05:30" in rmqctl("undo", tiny.root, "--list", "--tz", INDIA, "-o", "plain").out
    assert "+05:30" in rmqctl("undo", tiny.root, "--yes", "--tz", INDIA, "-o", "plain").out


@pytest.mark.parametrize("time", STRANGE)
def test_times_that_cannot_be_are_shown_as_they_are(tiny: tiny_stores.Tiny, rmqctl: Runner,
                                                    time: int) -> None:
    retimed(tiny, 0, time)
    retimed(tiny, 4, time)
    set_checkpoint(tiny.root, time, time, time)
    (tiny.root / "abort").touch()
    for zone in (CHINA, "-12:00"):
        for command in (("verify",), ("preflight",), ("recover",),
                        ("recover", "--strategy", "broker"),
                        ("truncate", "--to-phy", str(tiny.messages[3].start)),
                        ("expire", "--older-than", "0s")):
            done = rmqctl(command[0], tiny.root, *command[1:], "--tz", zone, "-o", "plain")
            assert done.code in (0, 1), (command, done.err)
        rmqctl("diff", tiny.root, tiny.root, "--tz", zone, "-o", "plain").expect(0)
