"""Heads that no broker can have written: found, told at their own place, and mended or filled.

A born or store port outside 0..65535 makes a client's decoder give up in the midst of a pull: the
intact messages behind it are never delivered.
"""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.formats.local import header_rules as rules
from rmqctl.formats.local.message import decode, parse
from rmqctl.scan.frames import examine
from rmqctl.scan.headers import Headers
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from tests.adversary.writer import (
    COMMIT,
    COMPRESSED,
    EPOCH,
    PREPARED,
    ROLLBACK,
    Header,
    Layout,
    Writer,
)
from tests.support.cli import run

SIZES = ("--index-slots", "16", "--index-max", "64")
JSON = ("-o", "json")
LONG_AGO = 1_000_000_000_000
YEAR = 365 * 24 * 3600 * 1000
ODD = {
    "header-born-port": Header(born_host=("10.0.0.7", 52011 | 1 << 20)),
    "header-store-port": Header(store_host=("10.0.0.1", 10911 | 1 << 31 & 0x7FFFFFFF | 1 << 17)),
    "header-sys-flag": Header(sys_flag=COMPRESSED | 0x500),
    "header-flag-bits": Header(sys_flag=1 << 20),
    "header-queue-offset": Header(sys_flag=ROLLBACK, queue_offset=15),
    "header-reconsume-times": Header(reconsume_times=-3),
    "header-prepared-offset": Header(sys_flag=COMMIT, prepared_transaction_offset=1 << 40),
    "header-store-time": Header(store_timestamp=LONG_AGO),
    "header-store-host": Header(store_host=("10.9.9.9", 10911)),
}


def filled(header: Header | None, layout: Layout | None = None, body: bytes = b"odd") -> Writer:
    """60 messages, of which number 30 has the header."""
    writer = Writer(layout or Layout(), seed=2)
    for number in range(60):
        writer.put("orders", body if number == 30 and header else b"body %d" % number,
                   queue_id=number % 2, keys=f"k{number}",
                   header=header if number == 30 else None)
    return writer


def findings(store: Path) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = run("verify", store, *SIZES, *JSON).json()["findings"]
    return findings


# -- found, and nothing else ----------------------------------------------------------------------


@pytest.mark.parametrize("category", ODD)
@pytest.mark.parametrize("v6", [False, True], ids=["v4", "v6"])
def test_each_field_is_a_finding_of_its_own(tmp_path: Path, category: str, v6: bool) -> None:
    header = ODD[category]
    if v6 and category in ("header-born-port", "header-store-port"):
        name = "born_host" if "born" in category else "store_host"
        header = Header(**{name: ("2001:db8::7", 1 << 16)})  # type: ignore[arg-type]
    writer = filled(header)
    reported = [finding for finding in findings(writer.write(tmp_path / "s"))
                if finding["category"].startswith("header-")]
    odd = writer.puts[30]
    assert [(finding["category"], finding["offset"], finding["topic"], finding["queue_offset"])
            for finding in reported            ] == [(category, odd.physical, "orders", 15)]
    assert reported[0]["severity"] == {
        "header-store-host": "info", "header-born-port": "error", "header-store-port": "error",
        "header-sys-flag": "error"}.get(category, "warning")
    assert reported[0]["next"]


def test_what_producers_and_odd_machines_choose_is_none(tmp_path: Path) -> None:
    writer = Writer(Layout(), seed=3, clock=EPOCH)
    for number in range(40):
        writer.put("orders", b"x", header=Header(
            born_host=(("0.0.0.0", 0), ("2001:db8::1", 65535), ("10.0.0.7", 1))[number % 3],
            born_timestamp=(0, 1, 1 << 60, -5)[number % 4], reconsume_times=number * 1000,
            flag=-number, sys_flag=(0, 0x2, 0x301, 0x300, 0x40, 0x80)[number % 6]))
    half = writer.put("orders", b"half", header=Header(sys_flag=PREPARED))
    for kind in (COMMIT, ROLLBACK):
        writer.put("orders", b"done", header=Header(
            sys_flag=kind, prepared_transaction_offset=half.physical))
    writer.clock -= 9 * YEAR  # set back, and right again later
    for _ in range(5):
        writer.put("orders", b"back")
    writer.clock += 12 * YEAR
    for _ in range(3):  # the broker moved to another host
        writer.put("orders", b"again", header=Header(store_host=("10.0.0.2", 10911)))
    for _ in range(3):
        writer.put("orders", b"again", header=Header(store_host=("2001:db8::5", 0)))
    assert [(finding["category"], finding["severity"], finding["count"], finding["offset"])
            for finding in findings(
                writer.write(tmp_path / "s")) if finding["category"].startswith("header-")] == [
                    ("header-born-time", "info", 20, writer.puts[2].physical)]


@pytest.mark.parametrize("later", [0, 20])
def test_a_clock_that_was_never_set_is_no_fault_but_said(tmp_path: Path, later: int) -> None:
    writer = Writer(Layout(), clock=86_400_000)
    for _ in range(9):
        writer.put("orders", b"x")
    writer.clock = EPOCH
    for _ in range(later):
        writer.put("orders", b"x")
    store = writer.write(tmp_path / "s")
    findings = run("verify", store, *SIZES, *JSON).expect(0).json()["findings"]
    assert [(finding["category"], finding["severity"], finding["count"], finding["offset"])
            for finding in findings] == [
                ("early-times", "info", 9, 0)]


@pytest.mark.parametrize("first", [1, 30])
@pytest.mark.parametrize("ahead", [1, 5, 29])
def test_a_clock_that_was_a_year_ahead_is_said(tmp_path: Path, first: int, ahead: int) -> None:
    """Where it was put right again; a single message ahead may be a flipped bit, and is said."""
    writer = Writer(Layout())
    for number in range(60):
        writer.clock += YEAR if number == first else -YEAR if number == first + ahead else 0
        writer.put("orders", b"x")
    store = writer.write(tmp_path / "s")
    for jobs in ("1", "3"):
        findings = run("verify", store, *SIZES, "--jobs", jobs, *JSON).expect(0).json()["findings"]
        assert [(finding["category"], finding["severity"], finding["count"], finding["offset"])
                for finding in findings
                ] == [("clock-back", "info", 1, writer.puts[first + ahead].physical)]


def test_ends_of_parts_see_the_clock_once(tmp_path: Path) -> None:
    writer = Writer(Layout())
    for number in range(20):
        writer.clock += (YEAR if number % 2 else -YEAR) if number else 0
        writer.put("orders", b"x")
    log = next((writer.write(tmp_path / "s") / "commitlog").iterdir())
    with FileSource(str(log)) as source:
        batch = next(iter(Walk(source)))
        for size in (1, 2, 3, 7, 20):
            whole = Headers()
            for start in range(0, 20, size):
                part = Headers()
                part.add(batch.select(slice(start, min(20, start + size))))
                whole.merge(part)
            whole.settle()
            assert (whole.back, whole.first_back) == (9, writer.puts[2].physical), size


@pytest.mark.parametrize("number", [0, 59], ids=["first", "last"])
def test_at_both_ends_of_the_log(tmp_path: Path, number: int) -> None:
    writer = filled(None)
    odd = writer.puts[number]
    writer.patch(odd.physical + 52, struct.pack(">i", -1))
    store_findings = findings(writer.write(tmp_path / "s"))
    assert [(finding["category"], finding["offset"]) for finding in store_findings] == [
        ("header-born-port", odd.physical)]


def test_any_number_of_ranges_gives_the_same(tmp_path: Path) -> None:
    writer = Writer(Layout(log_file_size=1 << 20), seed=4)
    for number in range(400):
        category = list(ODD)[number // 3 % len(ODD)]
        writer.put("orders", bytes(100), header=ODD[category] if number % 3 == 0 else None)
    store = writer.write(tmp_path / "s")
    whole = Headers()
    path = str(store / "commitlog" / f"{0:020d}")
    with FileSource(path) as source:
        for batch in Walk(source):
            whole.add(batch)
        whole.settle()
        assert len(whole.faults) > 100
        for cut in range(0, len(writer.puts), 7):
            parts = []
            for low, high in ((0, cut), (cut, cut + 1), (cut + 1, 400)):
                headers = Headers()
                for batch in Walk(source):
                    mine = np.isin(batch.offset, [put.physical for put in writer.puts[low:high]])
                    headers.add(batch, mine)
                parts.append(headers)
            for headers in parts[1:]:
                parts[0].merge(headers)
            parts[0].settle()
            assert parts[0].faults == whole.faults, cut


def test_both_readers_agree() -> None:
    """The rules on a record as construct reads it, and on columns."""
    ports = [0, 1, 65535, 65536, -1, 1 << 30, -(1 << 31)]
    flags = [0, 1, 0x101, 0x201, 0x301, 0x401, 0x701, 0x400, 0x40, -1, 0x7FFFFFFF & ~0x30]
    seen: set[str] = set()
    for number in range(700):
        header = Header(
            born_host=("10.0.0.7" if number % 5 else "::1", ports[number % len(ports)]),
            store_host=("10.0.0.1" if number % 3 else "::2", ports[number // 3 % len(ports)]),
            sys_flag=flags[number % len(flags)] & ~0x30,
            reconsume_times=(0, 1, -1)[number % 3],
            queue_offset=number % 2,
            prepared_transaction_offset=(0, 499, 500, 501, -1)[number % 5])
        patched = bytearray(record_at(500, header))
        queue_id = (0, 7, -1, (1 << 31) - 1, -(1 << 31))[number // 2 % 5]
        patched[12:16] = queue_id.to_bytes(4, signed=True)
        raw = bytes(patched)
        batch, ok = examine(np.frombuffer(raw, np.uint8), 500, np.zeros(1, np.int64))
        assert ok.all()
        columns = Headers()
        columns.add(batch)
        columns.settle()
        by_columns = list(columns.faults[0].categories) if columns.faults else []
        assert by_columns == rules.of_record(parse(raw)) == rules.of_record(decode(raw))
        seen |= set(by_columns)
    assert seen == set(rules.ALONE)


def record_at(place: int, header: Header) -> bytes:
    writer = Writer(Layout())
    put = writer.put("t", b"x", header=header)
    raw = bytearray(put.raw)
    raw[28:36] = struct.pack(">q", place)
    assert zlib.crc32(b"x")
    return bytes(raw)


def test_an_impossible_queue_offset_is_reported_at_the_record(tmp_path: Path) -> None:
    writer = filled(None)
    odd = writer.puts[30]
    for value in (-6510615558205997121, 1 << 61, -1):
        writer.patch(odd.physical + 20, struct.pack(">q", value))
        store_findings = findings(writer.write(tmp_path / f"s{value}"))
        assert [finding["category"] for finding in store_findings] == ["message-fields"]
        assert (store_findings[0]["offset"], store_findings[0]["position"]) == (odd.physical,
                                                                                odd.physical)
        del writer.rows["orders", 0][15]
        store_findings = findings(writer.write(tmp_path / f"t{value}"))
        assert {finding["offset"] for finding in store_findings
                if finding["queue_offset"] == value} == {odd.physical}
        assert all(0 <= (finding["offset"] or 0) < 1 << 40 for finding in store_findings)
        writer = filled(None)


# -- preflight and salvage ------------------------------------------------------------------------


def after_salvage(store: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The plan as carried out, and all messages."""
    planned = run("recover", store, *SIZES, *JSON).recovered()
    done = run("recover", store, *SIZES, "--apply", "--yes", *JSON).recovered()
    assert done["actions"] == planned["actions"]
    read = run("read", store, "-o", "jsonl").expect(0).jsonl()
    return done, read


@pytest.mark.parametrize("category", ["header-born-port", "header-store-port", "header-sys-flag"])
def test_preflight_says_that_clients_give_up(tmp_path: Path, category: str) -> None:
    writer = filled(ODD[category])
    store = writer.write(tmp_path / "s")
    answer = run("preflight", store, *SIZES, *JSON).expect(1).json()
    assert answer["undecodable"] == 1
    assert any(str(writer.puts[30].physical) in note for note in answer["notes"])
    assert run("preflight", filled(None).write(tmp_path / "t"), *SIZES, *JSON).expect(
        0).json()["undecodable"] == 0


@pytest.mark.parametrize("value", [10911 | 1 << 16, 10911 - (1 << 31), 0x7FFF0000, -1])
@pytest.mark.parametrize("number", [0, 30, 59], ids=["first", "middle", "last"])
def test_a_store_port_is_its_neighbours(tmp_path: Path, number: int, value: int) -> None:
    writer = filled(None)
    odd = writer.puts[number]
    writer.patch(odd.physical + 68, struct.pack(">i", value))
    store = writer.write(tmp_path / "s")
    done, read = after_salvage(store)
    assert done["messages_lost"] == []
    assert [message["store_host"] for message in read] == ["10.0.0.1:10911"] * 60
    assert [message["body"] for message in read] == [put.body.decode() for put in writer.puts]
    assert any("store port" in message["reason"] and "neighbours" in message["reason"]
               for message in done["actions"])
    assert findings(store) == []
    run("preflight", store, *SIZES, *JSON).expect(0)


@pytest.mark.parametrize(("value", "port"), [
    (52011 | 1 << 20, 52011), (52011 - (1 << 31), 52011), (0x12345678, 0), (-1, 0)])
@pytest.mark.parametrize("v6", [False, True], ids=["v4", "v6"])
def test_a_born_port_is_what_one_turned_bit_left_or_unknown(tmp_path: Path, value: int, port: int,
                                                            v6: bool) -> None:
    host = "2001:db8::7" if v6 else "10.0.0.7"
    writer = filled(Header(born_host=(host, value)))
    store = writer.write(tmp_path / "s")
    done, read = after_salvage(store)
    assert done["messages_lost"] == []
    assert read[30]["born_host"].rpartition(":")[2] == str(port)
    assert read[30]["body"] == "odd"
    reasons = " ".join(action["reason"] for action in done["actions"])
    assert ("one flipped bit" if port else "original unknown") in reasons
    assert findings(store) == []


def test_a_compression_is_proved_by_the_body(tmp_path: Path) -> None:
    body = zlib.compress(b"text " * 50)
    writer = filled(Header(sys_flag=COMPRESSED | 0x700), body=body)
    store = writer.write(tmp_path / "s")
    done, read = after_salvage(store)
    assert done["messages_lost"] == []
    assert read[30]["sys_flag"] == COMPRESSED | 0x300
    assert findings(store) == []


def test_a_compression_that_nothing_proves_makes_a_filler(tmp_path: Path) -> None:
    body = random.Random(1).randbytes(60)  # of a codec that is not known here, perhaps
    writer = filled(ODD["header-sys-flag"], body=body)
    store = writer.write(tmp_path / "s")
    done, read = after_salvage(store)
    assert [(message["topic"], message["queue_offset"]) for message in done["messages_lost"]] == [
        ("orders", 15)]
    assert len(read) == 60
    assert [finding["category"] for finding in findings(store)
            if finding["category"].startswith("header")] == []


@pytest.mark.parametrize(("value", "expected", "word"), [
    (3 - (1 << 31), 3, "one flipped bit"), (-3, 0, "unknown"), (-(1 << 31), 0, "one flipped bit"),
    (-1, 0, "unknown"), (3 | 1 << 20, 3, "one flipped bit")])
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_negative_reconsume_times_are_what_one_turned_bit_left_or_none(
        tmp_path: Path, value: int, expected: int, word: str, sealed: bool) -> None:
    writer = filled_and_sealed(value) if sealed else filled(Header(reconsume_times=value))
    store = writer.write(tmp_path / "s")
    assert [finding["category"] for finding in findings(store)] == ["header-reconsume-times"]
    done, read = after_salvage(store)
    assert done["messages_lost"] == []
    assert read[30]["reconsume_times"] == expected
    assert read[30]["body"] == "odd"
    assert [word in action["reason"] for action in done["actions"]
            if "reconsumeTimes" in action["reason"]            ] == [True]
    assert findings(store) == []
    run("verify", store, *SIZES).expect(0)


def test_implausible_reconsume_times_stay_where_nothing_is_better(tmp_path: Path) -> None:
    store = filled(Header(reconsume_times=0x12345678)).write(tmp_path / "s")
    _, read = after_salvage(store)
    assert read[30]["reconsume_times"] == 0x12345678
    assert [finding["category"] for finding in findings(store)] == ["header-reconsume-times"]


def filled_and_sealed(reconsume_times: int) -> Writer:
    """As `filled`, and every record ends with the CRC of its bytes (commitlog.md §5.4)."""
    writer = Writer(Layout(), seed=2)
    for number in range(60):
        odd = number == 30
        put = writer.put("orders", b"odd" if odd else b"body %d" % number, queue_id=number % 2,
                         properties_raw=b"A\x011\x02__CRC32#\x010000000000\x02",
                         header=Header(reconsume_times=reconsume_times) if odd else None,
                         indexed=False)
        digits = f"{zlib.crc32(put.raw[:-20]) & 0x7FFFFFFF:010d}"[::-1]
        writer.patch(put.physical + len(put.raw) - 11, digits.encode())
    return writer


def test_a_store_port_and_reconsume_times_of_one_message(tmp_path: Path) -> None:
    store = filled(Header(store_host=("10.0.0.1", -1), reconsume_times=-3)).write(tmp_path / "s")
    done, read = after_salvage(store)
    assert done["messages_lost"] == []
    assert (read[30]["store_host"], read[30]["reconsume_times"]) == ("10.0.0.1:10911", 0)
    assert [(word in done["actions"][0]["reason"]) for word in ("neighbours", "reconsumeTimes -3")
            ] == [True, True]
    assert findings(store) == []


# -- a queue that is none -------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-(1 << 31), (0xB2 << 24) - (1 << 32)])
@pytest.mark.parametrize("rows", [True, False], ids=["rows", "no rows"])
def test_a_negative_queue_is_the_one_that_lacks_the_message(tmp_path: Path, value: int,
                                                            rows: bool) -> None:
    writer = filled(None)
    writer.patch(writer.puts[30].physical + 12, value.to_bytes(4, signed=True))
    store = writer.write(tmp_path / "s")
    if not rows:
        shutil.rmtree(store / "consumequeue")
    reported = [finding for finding in findings(store) if finding["category"] == "header-queue-id"]
    assert [(finding["severity"], finding["offset"], finding["queue_id"])
            for finding in reported] == [
                ("error", writer.puts[30].physical, value)]
    done, read = after_salvage(store)
    assert done["messages_lost"] == []
    assert (read[30]["queue_id"], read[30]["queue_offset"]) == (0, 15)
    reasons = [action["reason"] for action in done["actions"] if action["action"] == "mend record"]
    assert [("consume queue entry" if rows else "only the message with queue offset 15") in reason
            for reason in reasons] == [True]
    assert findings(store) == []


def test_a_negative_queue_stays_where_two_may_be_right(tmp_path: Path) -> None:
    """Queues 0 and 16 lack the same queue offset in the same place."""
    writer = Writer(Layout(), seed=2)
    for number in range(60):
        writer.put("orders", b"body %d" % number, queue_id=(number % 2) * 16)
    values = {30: -(1 << 31), 31: (0x90 << 24) - (1 << 32)}
    for number, value in values.items():
        writer.patch(writer.puts[number].physical + 12, value.to_bytes(4, signed=True))
    store = writer.write(tmp_path / "s")
    shutil.rmtree(store / "consumequeue")
    _, read = after_salvage(store)
    assert {number: read[number]["queue_id"] for number in values} == values


# -- numbers among the properties -----------------------------------------------------------------

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
NUMBERS = {
    # (topic, queue, properties, what is put right; None: nothing proves it)
    "delay, one bit": (SCHEDULE, 2, {"DELAY": "s"}, {"DELAY": "3"}),
    "delay, more": (SCHEDULE, 12, {"DELAY": "xy"}, {"DELAY": "13"}),
    "delay, too long": (SCHEDULE, 2, {"DELAY": "3x"}, None),
    "delay, beyond 32 bits": (SCHEDULE, 2, {"DELAY": "9999999999"}, None),
    "inner count": ("orders", 0, {"INNER_BASE": "15", "INNER_NUM": "r"}, {"INNER_NUM": "2"}),
    "inner count, long": ("orders", 0, {"INNER_BASE": "15", "INNER_NUM": "1" * 30_000 + "r"}, None),
    "inner count, two ways": ("orders", 0, {"INNER_BASE": "15", "INNER_NUM": ";"}, None),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_property_that_must_be_a_number_and_is_none(tmp_path: Path, kind: str) -> None:
    topic, queue_id, properties, expected = NUMBERS[kind]
    writer = Writer(Layout(), seed=2)
    for number in range(60):
        if number == 30:
            odd = writer.put(topic, b"odd", queue_id=queue_id, properties=properties)
        else:
            writer.put("orders", b"body %d" % number, queue_id=number % 2, keys=f"k{number}")
    store = writer.write(tmp_path / "s")
    reported = [finding for finding in findings(store) if finding["structure"] == "commitlog"]
    assert [(finding["category"], finding["offset"], finding["severity"])
            for finding in reported] == [
                ("property-number", odd.physical, "error")]
    preflight = run("preflight", store, *SIZES, *JSON).json()
    assert preflight["messages_lost"] == 30
    done, read = after_salvage(store)
    assert findings(store) == [] or [finding["category"]
                                     for finding in findings(store)] == ["fillers"]
    assert run("preflight", store, *SIZES, *JSON).json()["messages_lost"] == 0
    assert len(read) == 60
    if expected is None:
        assert [message["queue_offset"] for message in done["messages_lost"]] == [odd.queue_offset]
    else:
        assert done["messages_lost"] == []
        assert expected.items() <= read[30]["properties"].items()


def test_what_must_not_be_a_number_is_none(tmp_path: Path) -> None:
    writer = Writer(Layout(), seed=2)
    for properties in ({"DELAY": "s"}, {"INNER_NUM": "x"}, {"INNER_BASE": "x"},
                       {"XDELAY": "s", "DELAY": "3"}, {"MY_INNER_NUM": "x", "INNER_BASE": "1"}):
        writer.put("orders", b"x", properties=properties)
    writer.put(SCHEDULE, b"x", queue_id=2, properties={"DELAY": "+3"})
    assert [finding for finding in findings(writer.write(tmp_path / "s"))
            if finding["structure"] == "commitlog"] == []


@pytest.mark.parametrize(("before", "time", "behind", "odd"), [
    ((1 << 63) - 1, EPOCH, (1 << 63) - 1, False),
    (EPOCH, (1 << 63) - 1, EPOCH, True),
    (EPOCH, -(1 << 63), EPOCH, True),
    (-(1 << 63), EPOCH, EPOCH, False),
    (-(1 << 63), -(1 << 63), -(1 << 63), False),
])
def test_times_at_the_ends_of_64_bits(before, time, behind, odd):
    """Nothing is added to them that goes round."""
    stored_at_odd_time = rules.stored_at_odd_time(*(np.array([value], np.int64)
                                                    for value in (before, time, behind)))
    assert stored_at_odd_time.tolist() == [odd]


@pytest.mark.parametrize("time", [(1 << 63) - 1, -(1 << 63)])
def test_the_time_at_the_end_of_64_bits_is_the_only_one_told(tmp_path, time):
    """Not those of its neighbours."""
    store = tmp_path / "store"
    filled(Header(store_timestamp=time, born_timestamp=EPOCH)).write(store)
    reported = [finding for finding in findings(store)
                if finding["category"] == "header-store-time"]
    assert len(reported) == 1
    run("recover", store, *SIZES, "--apply", "--yes")
    assert not [finding for finding in findings(store) if finding["severity"] != "info"]
