"""Bodies that another message of the same log has, too.

A transaction's half message and the one that commits it, a delayed message and the delivered one, a
message and its retries and dead letter have one body, one unique key and one body CRC. So where the
body of one is damaged, an intact one whose body has the length and the CRC that the damaged one
says has its body: a foreign body of the same key would have that CRC in 1 of 2^31 cases.

They are found where the record says (its half message's place, the place in ORIGIN_MESSAGE_ID), and
by the index, under the topics that keep such copies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import append_crc, index_file
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record, build, parse_message_id
from rmqctl.repair.salvage.evidence import ENDLESS
from rmqctl.repair.salvage.records import Records, whole_record
from rmqctl.store import index_files
from rmqctl.store.store import Store

_MOST_LOOKUPS, _MOST_ENTRIES, _MOST_TOPICS = 1000, 64, 16
_RETRIES = props.RETRY_PREFIX, props.DLQ_PREFIX


class Twin(NamedTuple):
    """The record ``content`` with the body of the message at ``place``; ``reason`` in words."""

    content: bytes
    record: Record
    place: int
    reason: str


class Twins:
    """Looks for them in a store's log. One object bounds how often its index is asked."""

    def __init__(self, store: Store, records: Records) -> None:
        self._store, self._records = store, records
        self._lookups = _MOST_LOOKUPS

    def of(self, raw: bytes, record: Record, *, sealed: bool) -> Twin | None:
        """The damaged ``record`` (its bytes: ``raw``) with another one's body. StoreIOError.

        None where there is none, and where the record is still damaged with it.
        """
        if record.crc_ok or not record.body:
            return None
        key = _values(record).get(props.UNIQUE_KEY)
        if key is None:
            return None
        tried = {record.physical_offset}
        for place in self._places(record, key):
            if place in tried:
                continue
            tried.add(place)
            _, other, _ = self._records.read(place, None)
            if (other is None or not other.crc_ok or len(other.body) != len(record.body)
                    or other.body_crc != record.body_crc
                    or _values(other).get(props.UNIQUE_KEY) != key):
                continue
            content = build(replace(record, body=other.body))
            made = whole_record(content, record.physical_offset, sealed)
            if made is not None and (not sealed or append_crc.verify(raw) is None
                                     or append_crc.verify(content)):
                return Twin(content, made, place, (
                    f"its body from {_name(other)} at {place}: of the same unique key, length and "
                    "body CRC"))
        return None

    def _places(self, record: Record, key: str) -> Iterator[int]:
        values = _values(record)
        if record.prepared_transaction_offset > 0:
            yield record.prepared_transaction_offset
        with suppress(FormatError, ValueError):
            yield parse_message_id(values.get(props.ORIGIN_MESSAGE_ID, ""))[2]
        retries = sorted({topic for topic, _ in self._store.known_queues
                          if topic.startswith(_RETRIES)})
        topics = dict.fromkeys([
            props.HALF_TOPIC, props.SCHEDULE_TOPIC, props.TIMER_TOPIC, os.fsdecode(record.topic),
            *(values[name] for name in (props.REAL_TOPIC, props.RETRY_TOPIC) if name in values),
            *retries[:_MOST_TOPICS]])
        for topic in topics:
            if not self._lookups:
                return
            self._lookups -= 1
            yield from self._indexed(topic, key)

    def _indexed(self, topic: str, key: str) -> list[int]:
        places: list[int] = []
        for index in self._store.indexes_newest_first():
            with suppress(StoreIOError):
                index_files.select(index, index_file.key_hash(topic, key), _MOST_ENTRIES, 0,
                                   ENDLESS, places)
        return places


def _values(record: Record) -> dict[str, str]:
    return props.parse(record.properties.decode("utf-8", "surrogateescape"))


def _name(record: Record) -> str:
    topic = os.fsdecode(record.topic)
    return {props.HALF_TOPIC: "the half message", props.SCHEDULE_TOPIC: "the delayed message",
            props.TIMER_TOPIC: "the timed message"}.get(topic, f"the message of {topic}")
