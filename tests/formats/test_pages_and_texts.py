"""checkpoint, timercheck, abort, lock, epoch file, broker identity, DLedger checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats import dledger
from rmqctl.formats.config import broker_identity, epoch
from rmqctl.formats.config.broker_identity import BrokerIdentity
from rmqctl.formats.config.epoch import Epoch
from rmqctl.formats.local import abort, checkpoint, lock, names
from rmqctl.formats.local.checkpoint import CheckpointRecord
from rmqctl.formats.timer import timer_check
from tests.conftest import GoldenFolder
from tests.formats.strategies import i64, records_of

# -- checkpoint -------------------------------------------------------------------------------

def test_checkpoint_of_the_engine(golden: GoldenFolder) -> None:
    data = (golden("5.3.3/basic") / "store/checkpoint").read_bytes()
    parsed_checkpoint = checkpoint.parse(data)
    assert parsed_checkpoint == CheckpointRecord(0x1903C59F59F, 0x1903C5C9265, 0x1903C5BAA90, 0, 0)
    assert checkpoint.build(parsed_checkpoint) == data
    assert parsed_checkpoint.min_timestamp == 0x1903C59F59F - 3000
    assert parsed_checkpoint.min_timestamp_index == parsed_checkpoint.min_timestamp
    assert checkpoint.rest_is_zero(data)
    assert not checkpoint.rest_is_zero(data[:-1] + b"\1")


@given(records_of(checkpoint.CHECKPOINT))
def test_checkpoint_leads_back(record: CheckpointRecord) -> None:
    page = checkpoint.build(record)
    assert len(page) == 4096
    assert checkpoint.parse(page) == record


def test_an_old_or_short_checkpoint_has_zeros_for_what_it_lacks() -> None:
    page = checkpoint.build(CheckpointRecord(1, 2, 3, 4, 5))
    assert checkpoint.parse(page[:24]) == (1, 2, 3, 0, 0)
    assert checkpoint.parse(page[:39]) == (1, 2, 3, 4, 0)
    assert CheckpointRecord(1, 2, 3) == (1, 2, 3, 0, 0)
    for size, path in ((0, "physic_msg_timestamp"), (8, "logics_msg_timestamp"),
                       (23, "index_msg_timestamp")):
        with pytest.raises(FormatError) as caught:
            checkpoint.parse(page[:size])
        assert caught.value.path == path


def test_a_young_checkpoint_does_not_go_below_zero() -> None:
    assert CheckpointRecord(2999, 10_000, 5).min_timestamp == 0
    assert CheckpointRecord(9000, 10_000, 5).min_timestamp == 6000
    assert CheckpointRecord(9000, 10_000, 5).min_timestamp_index == 5


# -- timercheck -------------------------------------------------------------------------------

def test_timercheck_of_the_engine(golden: GoldenFolder) -> None:
    data = (golden("5.3.3/timer") / "store/config/timercheck").read_bytes()
    timer_checkpoint = timer_check.parse(data)
    assert timer_checkpoint[:4] == (1795233775000, 3688, 66, 66)
    assert timer_checkpoint.timestamp > 1795233764000
    assert timer_check.build(timer_checkpoint) == data
    assert timer_check.rest_is_zero(data)


@given(records_of(timer_check.TIMER_CHECK))
def test_timercheck_leads_back(record: timer_check.TimerCheckRecord) -> None:
    assert timer_check.parse(timer_check.build(record)) == record
    assert timer_check.parse(timer_check.build(record)[:56]) == record
    assert timer_check.parse(timer_check.build(record)[:32])[:4] == record[:4]


def test_a_cut_timercheck_is_refused() -> None:
    with pytest.raises(FormatError) as caught:
        timer_check.parse(bytes(31))
    assert caught.value.path == "master_timer_queue_offset"


# -- abort and lock -----------------------------------------------------------------------------

@pytest.mark.parametrize(("raw", "pid"), [(b"", None), (b"15194", 15194), (b"0", 0),
                                          (b"77\n", 77)])
def test_abort(raw: bytes, pid: int | None) -> None:
    assert abort.parse(raw) == pid


@given(st.none() | st.integers(0, 10**19 - 1))
def test_abort_leads_back(pid: int | None) -> None:
    assert abort.parse(abort.build(pid)) == pid


@pytest.mark.parametrize(("raw", "offset"), [(b"x", 0), (b"12x", 2), (b"-1", 0), (b"\n", 0),
                                             (b"1" * 20, 19), (b"1" * 10**5, 19), (b"\0", 0)])
def test_what_is_no_abort(raw: bytes, offset: int) -> None:
    with pytest.raises(FormatError) as caught:
        abort.parse(raw)
    assert (caught.value.offset, caught.value.path) == (offset, "pid")


def test_abort_takes_no_impossible_pid() -> None:
    for pid in (-1, 10**19):
        with pytest.raises(FormatError):
            abort.build(pid)


def test_lock() -> None:
    assert lock.parse(lock.build()) == "lock"
    assert lock.parse(b"") == ""
    for raw, offset in ((b"loch", 3), (b"lockx", 4), (b"loc", 3), (b"\0\0\0\0", 0)):
        with pytest.raises(FormatError) as caught:
            lock.parse(raw)
        assert caught.value.offset == offset
    with pytest.raises(FormatError):
        lock.build("open")


# -- epoch ------------------------------------------------------------------------------------

def epoch_file(*lines: str, end: str = "\n") -> bytes:
    body = "".join(line + end for line in lines)
    crc = zlib.crc32(body.encode()) & 0x7FFFFFFF
    return f"{len(lines)}{end}{crc}{end}{body}".encode()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_epoch_file(end: str) -> None:
    raw = epoch_file("1-0", "3-100000", "4-9223372036854775807", end=end)
    entries = [Epoch(1, 0), Epoch(3, 100000), Epoch(4, (1 << 63) - 1)]
    assert epoch.parse(raw) == entries
    assert epoch.build(entries, end) == raw


@given(st.lists(st.builds(Epoch, st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1))),
       st.sampled_from(["\n", "\r\n"]))
def test_epoch_leads_back(entries: list[Epoch], end: str) -> None:
    assert epoch.parse(epoch.build(entries, end)) == entries


def test_epoch_crc_zero_is_not_checked_and_a_missing_last_line_end_is_taken() -> None:
    assert epoch.parse(b"1\n0\n5-7\n") == [Epoch(5, 7)]
    assert epoch.parse(epoch_file("1-0", "2-5")[:-1]) == [Epoch(1, 0), Epoch(2, 5)]


@pytest.mark.parametrize(("raw", "offset", "path"), [
    (b"", 0, "count"), (b"1\n", 2, "crc"), (b"x\n0\n", 0, "count"), (b"1\ny\n1-1\n", 2, "crc"),
    (b"2\n0\n1-1\n", 0, "count"), (b"0\n0\n1-1\n", 0, "count"), (b"1\n5\n1-1\n", 2, "crc"),
    (b"1\n0\n1+1\n", 4, "entries[0]"), (b"2\n0\n1-1\n\n", 8, "entries[1]"),
    (b"1\n0\n1-9223372036854775808\n", 4, "entries[0]"), (b"1\n0\n-1-5\n", 4, "entries[0]"),
    (b"1\n0\n\xff-1\n", 4, "entries[0]"), (b"99999999999\n0\n", 0, "count"),
])
def test_epoch_refusals(raw: bytes, offset: int, path: str) -> None:
    with pytest.raises(FormatError) as caught:
        epoch.parse(raw)
    assert (caught.value.offset, caught.value.path) == (offset, path)


def test_one_changed_digit_of_an_epoch_is_found() -> None:
    raw = epoch_file("1-0", "3-100000")
    for at in range(len(raw)):
        if chr(raw[at]).isdigit():
            with pytest.raises(FormatError):
                epoch.parse(raw[:at] + (b"7" if raw[at:at + 1] != b"7" else b"8") + raw[at + 1:])


# -- broker identity ----------------------------------------------------------------------------

@pytest.mark.parametrize(("raw", "identity"), [
    (b"c#broker-a#0", BrokerIdentity("c", "broker-a", 0)),
    (b"c#b#7#tmp#x", BrokerIdentity("c", "b", 7, "tmp#x")),
    ("größe#ü#12\n".encode(), BrokerIdentity("größe", "ü", 12)),
])
def test_broker_identity(raw: bytes, identity: BrokerIdentity) -> None:
    assert broker_identity.parse(raw) == identity
    assert broker_identity.build(identity) == raw.rstrip()


@pytest.mark.parametrize(("raw", "offset", "path"), [
    (b"", 0, "cluster"), (b"c", 1, "broker_name"), (b"c#b", 3, "broker_id"),
    (b"c##1", 2, "broker_name"), (b"c#b#x", 4, "broker_id"), (b"c#\xff#1", 2, "broker_name"),
    (b"c#b#99999999999999999999", 4, "broker_id"),
])
def test_broker_identity_refusals(raw: bytes, offset: int, path: str) -> None:
    with pytest.raises(FormatError) as caught:
        broker_identity.parse(raw)
    assert (caught.value.offset, caught.value.path) == (offset, path)


def test_an_identity_that_could_not_be_read_back_is_not_built() -> None:
    for identity in (BrokerIdentity("a#b", "c", 1), BrokerIdentity("a", "b", 1, "x\n")):
        with pytest.raises(FormatError):
            broker_identity.build(identity)


# -- DLedger checkpoint -------------------------------------------------------------------------

@given(i64, i64)
def test_dledger_checkpoint(end: int, committed: int) -> None:
    raw = b"#comment\n#Sat Nov 21\n" + dledger.build_checkpoint(end, committed)
    assert dledger.parse_checkpoint(raw) == {"end_index": end, "committed_index": committed}


@pytest.mark.parametrize(("raw", "offset", "path"), [
    (b"", 0, "endIndex"), (b"endIndex=1\n", 11, "committedIndex"),
    (b"#x\nendIndex=y\n", 3, "endIndex"),
])
def test_dledger_checkpoint_refusals(raw: bytes, offset: int, path: str) -> None:
    with pytest.raises(FormatError) as caught:
        dledger.parse_checkpoint(raw)
    assert (caught.value.offset, caught.value.path) == (offset, path)


PARSERS: list[Callable[[bytes], Any]] = [
    checkpoint.parse, timer_check.parse, abort.parse, lock.parse, epoch.parse,
    broker_identity.parse, dledger.parse_checkpoint]


@pytest.mark.parametrize("parse", PARSERS)
@given(raw=st.binary(max_size=100) | st.text(alphabet="0123456789#-=\r\n x").map(str.encode))
def test_any_bytes_are_read_or_refused(parse: Callable[[bytes], Any], raw: bytes) -> None:
    try:
        parse(raw)
    except FormatError as error:
        assert error.offset is not None
        assert error.path


# -- names ------------------------------------------------------------------------------------

@given(st.integers(0, (1 << 63) - 1))
def test_offset_names_lead_back(offset: int) -> None:
    assert names.parse_offset(names.build_offset(offset)) == offset
    assert len(names.build_offset(offset)) == 20


@pytest.mark.parametrize("name", ["", "0", "0" * 19, "0" * 21, "9" * 20, "٣" * 20, " " * 20,
                                  "-" + "0" * 19, "+" + "1" * 19, "1_000" + "0" * 15])
def test_what_is_no_offset_name(name: str) -> None:
    assert names.parse_offset(name) is None


def test_offset_names_have_a_range() -> None:
    for offset in (-1, 1 << 63):
        with pytest.raises(ValueError, match="no file can start"):
            names.build_offset(offset)


@given(st.datetimes())
def test_index_names_lead_back(moment: Any) -> None:
    name = names.build_index(moment)
    assert names.is_index_name(name)
    kept = moment.replace(microsecond=moment.microsecond // 1000 * 1000, fold=0)
    assert names.parse_index(name) == kept


def test_index_names_that_are_no_moment() -> None:
    assert names.parse_index("20261121040122099") is not None
    for name in ("20261321040122099", "2026112104012209", "x0261121040122099", ""):
        assert names.parse_index(name) is None
    assert names.is_index_name("99999999999999999")  # a broker takes any number


def test_file_start() -> None:
    assert [names.file_start(offset, 380) for offset in (0, 379, 380, 761)] == [0, 0, 380, 760]
