"""Single messages put together to batches, where a broker would have taken them as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rmqctl.engine.put.message import BatchItem, Outgoing, OutgoingBatch
from rmqctl.formats.local import append_crc, message
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record
from rmqctl.formats.local.sysflag import INNER_BATCH, NEED_UNWRAP, TRANSACTION_MASK

MAX_BATCH = 4 << 20
"""Bytes of records that `batches` puts together: what every version takes as one batch."""

_Put = TypeVar("_Put", bound=Outgoing | OutgoingBatch | Record)


def batches(items: Iterable[_Put], limit: int,
            room: int = MAX_BATCH) -> Iterator[_Put | Outgoing | OutgoingBatch]:
    """Runs of messages that may share a batch, as batches of at most ``limit`` messages.

    The order stays, a run of one stays the message it is, and the records of a batch take no
    more than ``room`` bytes. What a broker refuses in a batch, or treats in its own way, stays
    single; so does what is a batch or a record already.
    """
    run: list[Outgoing] = []
    shared: tuple[object, ...] | None = None
    size = 0
    for item in items:
        common = _common(item) if isinstance(item, Outgoing) else None
        if not isinstance(item, Outgoing) or common is None:
            if run:
                yield _together(run)
                run, size = [], 0
            yield item
            continue
        more = _at_most(item)
        if run and (common != shared or len(run) >= limit or size + more > room):
            yield _together(run)
            run, size = [], 0
        run.append(item)
        shared, size = common, size + more
    if run:
        yield _together(run)


_ALONE = TRANSACTION_MASK | INNER_BATCH | NEED_UNWRAP
_RETRY = "%RETRY%"


def _common(item: Outgoing) -> tuple[object, ...] | None:
    """What messages of one batch have in common; None for one that stays alone."""
    text = item.properties
    if (item.sys_flag & _ALONE or item.prepared_transaction_offset
            or item.topic.startswith(_RETRY)):
        return None
    if (props.DELAY in text or "INNER_" in text or "TIMER_" in text) and any(
            name == props.DELAY or name.startswith(("INNER_", "TIMER_"))
            for name in props.parse(text)):
        return None
    return (item.topic, item.queue_id, item.sys_flag, item.born_timestamp, item.born_host,
            item.store_timestamp, item.store_host, item.reconsume_times)


_FIXED = message.size_of(message.HOST_BITS, message.MAGIC_V2, 0, 0, append_crc.SIZE + 1)


def _at_most(item: Outgoing) -> int:
    """A bound for the bytes of a message's record: with an appended CRC and its separator."""
    texts = item.topic, item.properties
    return _FIXED + len(item.body) + sum(
        len(one) if one.isascii() else 4 * len(one) for one in texts)


def _together(run: list[Outgoing]) -> Outgoing | OutgoingBatch:
    first = run[0]
    if len(run) == 1:
        return first
    return OutgoingBatch(
        first.topic,
        [BatchItem(one.body, one.properties, one.flag, one.filter_bit_map) for one in run], "",
        first.queue_id, first.sys_flag, first.born_timestamp, first.born_host,
        first.store_timestamp, first.store_host, first.reconsume_times)
