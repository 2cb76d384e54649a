"""Unfinished transactions, by their half messages (spec: recovery.md §10).

An op message ends the half messages that it names. A broker checks the other half messages, from
the offset of its check group on: it appends the half message again and asks the producer for the
outcome. So a transaction may have several half messages, with one unique key. A message that was
checked too often or is too old is moved to a separate topic.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from itertools import chain
from typing import Any

import numpy as np

from rmqctl.broker.conf.effective import Effective
from rmqctl.broker.release import judged
from rmqctl.broker.transactions import (
    ENDED,
    EVERY_S,
    GIVEN_UP_TOPIC,
    GROUP,
    IMMUNITY_MS,
    MAX_CHECKS,
    PREPARED_OFFSET,
    READER,
    TIMES,
    TRANSACTION_ID,
    half_offsets,
    immunity_ms,
)
from rmqctl.broker.versions import version_of
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import java_int
from rmqctl.formats.local.message import Record, parse_message_id
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.config.progress import ConsumerProgress
from rmqctl.store.log.bounds import View
from rmqctl.store.objects import java_text, text
from rmqctl.store.problems import Report
from rmqctl.store.query.lookup import by_unique_key
from rmqctl.store.query.select import Selection, Selector
from rmqctl.store.queue.rows import QueueRows, topic_rows
from rmqctl.store.store import Store

COLUMNS = ("state", "topic", "queue_id", "producer_group", "transaction_id", "keys",
           "born_timestamp", "age_ms", "checks", "next_check", "in_log", "half_queue_id",
           "half_offset", "physical_offset", "store_timestamp", "msg_id", "copies")
WAITING, DISCARDING = "waiting", "discarded next"
DISCARDED, PASSED, ANSWERED, GONE = "discarded", "passed over", "ended before", "gone"
OPEN = (WAITING, DISCARDING)
"""States of transactions that a broker still checks."""
_HOUR = 3_600_000
_CHUNK = 1 << 16


@dataclass(slots=True)
class Transaction:
    """An unfinished transaction.

    * ``record``: the last half message in the log, without its body
    * ``offsets``: queue offsets of its half messages that no op message names
    * ``given_up``: the copy that the broker stored in `GIVEN_UP_TOPIC` when it stopped checking
    """

    state: str
    queue_id: int
    record: Record | None
    offsets: list[int] = field(default_factory=list)
    given_up: Record | None = None
    next_check: int | None = None
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def ids(self) -> set[str | None]:
        """Return the ids that may name the transaction: the client's id, and the id of each half
        message.
        """
        ids = {self.properties.get(TRANSACTION_ID), self.properties.get(props.UNIQUE_KEY)}
        return ids | {record.message_id for record in (self.record, self.given_up) if record}

    @property
    def group(self) -> str | None:
        return self.properties.get(GROUP)

    def age(self, now: int) -> int | None:
        """Return the time in ms since the producer sent the message."""
        shown = self.record or self.given_up
        return None if shown is None else now - shown.born_timestamp

    def as_dict(self, now: int) -> dict[str, Any]:
        shown, properties = self.record or self.given_up, self.properties
        queue = properties.get(props.REAL_QUEUE_ID, "")
        return {
            "state": self.state, "topic": properties.get(props.REAL_TOPIC),
            "queue_id": int(queue) if queue.isascii() and queue.isdigit() and len(queue) < 10
            else None, "producer_group": self.group,
            "transaction_id": properties.get(TRANSACTION_ID, properties.get(props.UNIQUE_KEY)),
            "keys": props.split_keys(properties.get(props.KEYS)),
            "born_timestamp": None if shown is None else shown.born_timestamp,
            "age_ms": self.age(now), "checks": max(_number(properties.get(TIMES)), 0),
            "next_check": self.next_check, "in_log": self.record is not None,
            "half_queue_id": self.queue_id, "half_offset": self.offsets[-1] if self.offsets
            else None, "physical_offset": None if shown is None else shown.physical_offset,
            "store_timestamp": None if shown is None else shown.store_timestamp,
            "msg_id": None if shown is None else shown.message_id,
            "copies": max(len(self.offsets), 1)}


def transactions(store: Store, now: int, report: Report) -> Iterator[Transaction]:
    """Yield the unfinished transactions in the order of their half messages.

    Transactions whose only remaining record is the copy in `GIVEN_UP_TOPIC` come last. ``now``:
    epoch ms.
    Raises: StoreIOError.
    """
    store.layout.require(store.root, "consumequeue")
    rules, view = _Rules.of(store), View(store)
    copies = _Copies(view, report)
    positions = ConsumerProgress.of(store).by_group().get(READER, {}).get(props.HALF_TOPIC, {})
    given_up: dict[str, Record] = {}
    for record in Selector(store, Selection(topic=GIVEN_UP_TOPIC), view, report).records():
        record.body = b""
        given_up[_key(record, _properties_of(record))] = record
    for rows in topic_rows(store, props.HALF_TOPIC, None, view, report):
        ended = _ended(view, rows.queue_id, report)
        by_key, gone = _without_end(store, rows, ended)
        position = positions.get(rows.queue_id, rows.first)
        for key, transaction in by_key.items():
            aside = given_up.pop(key, None)
            checked = transaction.offsets[-1] >= position
            own = set(transaction.offsets)
            others = copies.of(key, thorough=not checked and aside is None) - own
            others.add(_number(transaction.properties.get(PREPARED_OFFSET)))
            if others & ended:
                if not checked:
                    continue
                transaction.state = ANSWERED
            elif checked:
                rules.judge(transaction, now)
            elif aside is not None:
                transaction.state, transaction.given_up = DISCARDED, aside
            else:
                transaction.state = PASSED
            yield transaction
        for offset in gone:
            if offset >= position:
                yield Transaction(GONE, rows.queue_id, None, [offset])
    # Of transactions ended since, only messages put aside remain.
    for record in given_up.values():
        half = Transaction(DISCARDED, 0, None, given_up=record, properties=_properties_of(record))
        if not copies.of(_key(record, half.properties), thorough=True):
            yield half


def _ended(view: View, queue_id: int, report: Report) -> set[int]:
    """Return the queue offsets of the half messages that op messages name."""
    wanted = Selection(topic=props.OP_HALF_TOPIC, queue_id=queue_id, tag=ENDED)
    return half_offsets(chain.from_iterable(
        page.raw("body") for page in Selector(view.store, wanted, view, report).pages()))


def _without_end(store: Store, rows: QueueRows,
                 ended: set[int]) -> tuple[dict[str, Transaction], list[int]]:
    """Return the unfinished transactions by key, and the queue offsets of half messages that are
    not in the log. ``ended``: queue offsets that op messages name.
    """
    by_key: dict[str, Transaction] = {}
    gone: list[int] = []
    done = np.append(np.sort(np.fromiter(ended, np.int64, len(ended))), np.iinfo(np.int64).max)
    for start in range(rows.first, rows.end, _CHUNK):
        for offsets, physical, size in rows.pages(start, min(start + _CHUNK, rows.end)):
            left = np.flatnonzero(done[np.searchsorted(done, offsets)] != offsets)
            for number in left.tolist():
                offset = int(offsets[number])
                record = store.log.record_at(int(physical[number]), int(size[number]))
                if record is None or os.fsdecode(record.topic) != props.HALF_TOPIC:
                    gone.append(offset)
                    continue
                properties, record.body = _properties_of(record), b""
                key = _key(record, properties)
                transaction = by_key.setdefault(key, Transaction("", rows.queue_id, record))
                transaction.record, transaction.properties = record, properties
                transaction.offsets.append(offset)
    return by_key, gone


def was_ended(store: Store, id: str) -> bool:  # noqa: A002
    """Return whether the transaction with this id has ended.

    The caller has checked that the id names no unfinished transaction. So if the id belongs to a
    half message, the transaction has ended.
    """
    with suppress(ValueError):
        record = store.log.record_at(parse_message_id(id)[2])
        if record is not None and record.message_id == id:
            return os.fsdecode(record.topic) == props.HALF_TOPIC
    return bool(_Copies(View(store), lambda _problem: None).of(id, thorough=True))


class _Copies:
    """Search for the queue offsets of all half messages of a transaction.

    The search uses the index, which may be incomplete. With ``thorough``, it also reads the topic
    of half messages once.
    """

    def __init__(self, view: View, report: Report) -> None:
        self._view, self._report = view, report
        self._read: dict[str, set[int]] | None = None

    def of(self, key: str, *, thorough: bool) -> set[int]:
        offsets = set() if ":" in key else {
            record.queue_offset for record in by_unique_key(
                self._view.store, key, [props.HALF_TOPIC], self._report)
            if text(record.topic) == props.HALF_TOPIC}
        if thorough and len(offsets) < 2:
            offsets |= self._all().get(key, set())
        return offsets

    def _all(self) -> dict[str, set[int]]:
        if self._read is None:
            self._read = {}
            for page in Selector(self._view.store, Selection(topic=props.HALF_TOPIC), self._view,
                                 self._report).pages():
                for key, offset in zip(page.column("unique_key"),
                                       page.numbers("queue_offset").tolist(), strict=True):
                    if key:
                        self._read.setdefault(key, set()).add(offset)
        return self._read


def _key(record: Record, properties: dict[str, str]) -> str:
    """Return the identity of a transaction: its unique key, or its born time and body CRC."""
    return properties.get(props.UNIQUE_KEY) or f"{record.born_timestamp}:{record.body_crc}"


def _properties_of(record: Record) -> dict[str, str]:
    return props.parse(java_text(record.properties))


def _number(text: str | None) -> int:
    try:
        return java_int(text or "", 64)
    except ValueError:
        return -1


@dataclass(frozen=True, slots=True)
class _Rules:
    """A broker's settings for transaction checks. Times are in ms.

    * ``immunity``: time until the first check
    * ``every``: time between checks
    * ``most``: maximum number of checks
    * ``reserved``: retention time of files
    """

    immunity: int
    every: int
    most: int
    reserved: int

    @classmethod
    def of(cls, store: Store) -> _Rules:
        release = judged(store).release
        conf = Effective(store.sizes.conf, release)

        def given(name: str, default: int) -> int:
            value = conf.given(name)
            return default if value is None else int(value)

        return cls(given("transactionTimeOut", IMMUNITY_MS), given(
            "transactionCheckInterval", int(EVERY_S[version_of(release).generation] * 1000)),
            given("transactionCheckMax", MAX_CHECKS), int(conf.get("fileReservedTime")) * _HOUR)

    def judge(self, transaction: Transaction, now: int) -> None:
        """Set the transaction's state and the time of its next check."""
        record = transaction.record
        assert record is not None
        times = _number(transaction.properties.get(TIMES))
        immune = immunity_ms(transaction.properties, self.immunity)
        first = record.born_timestamp + (self.immunity if immune is None else immune)
        transaction.next_check = first if times <= 0 else max(
            first, record.store_timestamp + self.every)
        too_often = times >= self.most
        old = max(now, transaction.next_check) - record.born_timestamp > self.reserved
        transaction.state = DISCARDING if too_often or old else WAITING
