"""The tiny stores are what they claim: judged by the independent model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiny as tiny_stores
from tests.support.model import Model


def test_zero_crc_body_has_crc_zero() -> None:
    import zlib

    assert zlib.crc32(tiny_stores.ZERO_CRC_BODY) == 0


@pytest.mark.parametrize("name", tiny_stores.VARIANTS)
def test_tiny_store_is_sound(name: str, tmp_path: Path) -> None:
    store = tiny_stores.variant(tmp_path / "store", name)
    model = Model(store.root, "5.3.3", store.options.commitlog_dirs, store.options.index_slots)
    expired = store.options.expired_files * store.options.commitlog_file_size
    kept = [message for message in store.messages if message.start >= expired]

    assert list(model.records) == [message.start for message in kept]
    for message in kept:
        record = model.records[message.start]
        assert (record.body, record.topic, record.queue_offset, record.crc_ok) == (
            message.spec.body, message.spec.topic, message.record.queue_offset, True)
    for (topic, queue_id), units in store.queues().items():
        expected = [(unit.queue_offset, store.messages[unit.message].start) for unit in units
                    if store.messages[unit.message].start >= expired]
        assert [unit[:2] for unit in model.units(topic, queue_id)] == expected
    for entry in store.entries:
        placed = store.messages[entry.message]
        found_at = model.index_entries(placed.spec.topic, entry.key, 64, 0, 1 << 62)
        assert placed.start in found_at


def test_default_store_has_what_the_tests_need(tiny_base: tiny_stores.Tiny) -> None:
    assert len(tiny_base.blanks) == 1
    assert len(tiny_base.files("commitlog")) == 2
    assert len(tiny_base.files("consumequeue/orders/0")) == 2
    assert any(entry.previous for entry in tiny_base.entries), "no chain in the index"
    assert tiny_base.log_end < 2 * tiny_base.options.commitlog_file_size, "no zero tail"
    assert {unit.topic for unit in tiny_base.units} == {"orders", "bills"}
