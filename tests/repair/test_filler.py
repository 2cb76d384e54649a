"""Fillers: records of any size to the byte, harmless to brokers, silent in the index."""

from __future__ import annotations

import pytest

from rmqctl.formats.local import append_crc, index_file, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.filler import is_filler
from rmqctl.formats.local.message import MAGIC_V2, decode
from rmqctl.repair.salvage import filler
from rmqctl.repair.salvage.filler import Filler, FillerEntry, Style
from rmqctl.scan.overlay import OverlayPiece, Parts

STYLES = [Style(), Style(sealed=True, host=(bytes([10, 0, 0, 1]), 10911))]
FILLERS = [
    Filler((FillerEntry("TopicTest", 3, 17),)),
    Filler((FillerEntry("%RETRY%group", 0, 0),)),
    Filler((FillerEntry("SCHEDULE_TOPIC_XXXX", 2, 5),)),
    Filler((FillerEntry("RMQ_SYS_TRANS_HALF_TOPIC", 0, 5),)),
    Filler((FillerEntry("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 5),)),
    Filler((FillerEntry("rmq_sys_wheel_timer", 0, 5),)),
    Filler((FillerEntry("t" * 200, 0, 1 << 40),)),
    Filler((FillerEntry("TopicTest", 1, 4), FillerEntry("%LMQ%a", 0, 9),
            FillerEntry("%LMQ%b", 0, 0))),
    Filler((FillerEntry("Batch", 1, 40),), batch=12),
]


def whole(parts: Parts, size: int) -> bytes:
    data = bytearray(size)
    OverlayPiece(0, size, parts).read_into(memoryview(data), 0)
    return bytes(data)


@pytest.mark.parametrize("style", STYLES, ids=["plain", "sealed"])
@pytest.mark.parametrize("filler", FILLERS, ids=lambda filler: filler.rows[0].topic[:30])
def test_a_row_filler_fills_any_size_to_the_byte(filler: Filler, style: Style) -> None:
    least, wanted = filler.least(style), filler.wanted(style)
    assert least <= wanted
    for size in [*range(least, wanted + 20), 4096, 70_000, 1 << 20]:
        raw = whole(filler.parts(12_345, size, 1_700_000_000_000, style), size)
        record = decode(raw)
        own = filler.rows[0]
        assert record.crc_ok
        assert record.body
        assert not record.body.strip(b"\0")
        assert is_filler(record)
        assert (record.total_size, record.physical_offset) == (size, 12_345)
        assert (record.topic.decode(), record.queue_id, record.queue_offset) == (
            own.topic, own.queue_id, own.queue_offset)
        assert (record.magic == MAGIC_V2) == (len(own.topic) > 127)
        assert record.store_timestamp == 1_700_000_000_000
        assert sysflag.has_consume_queue_row(record.sys_flag)
        assert append_crc.verify(raw) is (True if style.sealed else None)
        values = props.parse(record.properties.decode())
        assert not index_file.keys_of(values)
        assert (values.get("RMQCTL") == "lost") == (size >= wanted)
        assert filler.required.items() <= values.items()
    assert decode(whole(filler.parts(0, least - 1, 1, style), least - 1)).body == b""
    assert filler.tight(style) == least - 1
    with pytest.raises(ValueError, match="too few"):
        filler.parts(0, least - 2, 1, style)


def test_what_brokers_need_of_fillers_in_their_own_topics() -> None:
    by_topic = {filler.rows[0].topic: filler for filler in FILLERS}

    def record(topic: str):  # type: ignore[no-untyped-def]
        result = by_topic[topic]
        size = result.least(Style())
        text = decode(whole(result.parts(0, size, 99, Style()), size))
        return text, props.parse(text.properties.decode())

    _, schedule = record("SCHEDULE_TOPIC_XXXX")
    assert schedule["REAL_TOPIC"] == "RMQ_SYS_TRANS_HALF_TOPIC"  # discarded by the delay service
    assert int(schedule["REAL_QID"]) == 0
    assert "DELAY" not in schedule  # tags code 0: due at once
    half, _ = record("RMQ_SYS_TRANS_HALF_TOPIC")
    assert half.born_timestamp == 0  # older than any fileReservedTime
    op, values = record("RMQ_SYS_TRANS_OP_HALF_TOPIC")
    assert values["TAGS"] == "d"
    assert op.body  # 4.9.3 fails on none
    assert not op.body.isdigit()  # no number: done
    _, timer = record("rmq_sys_wheel_timer")
    assert int(timer["TIMER_OUT_MS"]) == 0
    assert timer["TIMER_DEL_UNIQKEY"]
    assert int(timer["REAL_QID"]) == 0


def test_a_batch_filler_covers_its_queue_offsets_and_is_not_unwrapped() -> None:
    filler = FILLERS[-1]
    record = decode(whole(filler.parts(0, 500, 1, Style()), 500))
    values = props.parse(record.properties.decode())
    assert (values["INNER_BASE"], values["INNER_NUM"], record.queue_offset) == ("40", "12", 40)
    assert record.sys_flag & sysflag.INNER_BATCH
    assert not record.sys_flag & sysflag.NEED_UNWRAP


@pytest.mark.parametrize("style", STYLES, ids=["plain", "sealed"])
def test_fillers_have_no_row_and_no_index_entry(style: Style) -> None:
    least = filler.least_filler(style)
    for size in [*range(least, least + 50), 4096, filler.MAX_FILLER]:
        parts = filler.filler(777, size, 5, style)
        raw = whole(parts, size)
        record = decode(raw)
        assert record.crc_ok
        assert (record.total_size, record.physical_offset, record.store_timestamp) == (
            size, 777, 5)
        assert record.body
        assert is_filler(record)
        assert not sysflag.has_consume_queue_row(record.sys_flag)
        assert not sysflag.is_indexed(record.sys_flag)
        assert append_crc.verify(raw) is (True if style.sealed else None)
    assert sum(len(data) for _, data in filler.filler(0, filler.MAX_FILLER, 5, style)) < 400
    with pytest.raises(ValueError, match="too few"):
        filler.filler(0, least - 1, 1, style)


def test_the_blank_names_the_rest_of_the_file() -> None:
    assert whole(filler.blank(1000), 1000)[:8] == bytes.fromhex("000003e8cbd43194")
    with pytest.raises(ValueError, match="too few"):
        filler.blank(7)
