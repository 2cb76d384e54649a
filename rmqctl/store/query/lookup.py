"""Single messages by key, id or physical offset, without a scan of the log.

Keys are looked up in the index files exactly as a broker's queryMessage does (spec: index.md §8).
Messages that only have the same hash as the key are removed afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Literal

from rmqctl import vfs
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import index_file as layout
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import Record, decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk, start_of
from rmqctl.store.index import files as index_files
from rmqctl.store.index.files import IndexFile
from rmqctl.store.log.bounds import View
from rmqctl.store.objects import java_text, text
from rmqctl.store.problems import Problem, Report
from rmqctl.store.queue.rows import topics_on_disk
from rmqctl.store.store import Store

FOR_EVER = (1 << 63) - 1
KeyType = Literal["key", "unique"]
MAX_BATCH = index_files.MAX_BATCH
_WINDOW = 1 << 20
_MAX_PER_ID = 64


def opened_indexes(store: Store, report: Report) -> Iterator[IndexFile]:
    """Yield the index files, newest first; unreadable files are reported and omitted."""
    for trouble in store.index.listing.troubles:
        if trouble.unreadable:
            report(Problem("unreadable", f"{trouble.path}: {trouble.reason}"))
    for file in reversed(store.index.listing.files):
        try:
            index = store.index.open(file)
        except FormatError as error:
            report(Problem("damage", f"{error}: this index file is skipped"))
            continue
        except StoreIOError as error:
            report(Problem("unreadable", f"{error}: this index file is skipped"))
            continue
        try:
            yield index
        finally:
            index.close()


@dataclass(slots=True)
class KeyAnswer:
    """The result of a look-up.

    ``records``: the messages in the broker's order.
    ``false_hits``: number of omitted messages that have another key with the same hash.
    ``dangling``: physical offsets in the index at which no record can be read.
    ``behind``: offsets that a broker ignores, because they are after the end of its log.
    """

    records: list[Record] = field(default_factory=list)
    false_hits: int = 0
    dangling: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)


def by_key(view: View, topic: str, key: str, *, begin: int = 0, end: int = FOR_EVER,
           most: int = 32, kind: KeyType | None = None, raw: bool = False,
           report: Report = lambda _problem: None) -> KeyAnswer:
    """Return the messages with a key, as a broker's queryMessage finds them.

    ``kind`` limits the search to application keys or to unique keys. ``raw``: include messages that
    have another key with the same hash, as a broker does.
    """
    answer = KeyAnswer()
    records: dict[int, Record] = {}
    log = view.store.log
    reported: set[str] = set()

    def once(problem: Problem) -> None:  # the index may be asked up to three times
        if problem.text not in reported:
            reported.add(problem.text)
            report(problem)

    def offsets(first: int, last: int) -> list[int]:
        if vfs.lacks(view.store.root, "index"):
            newest = deque(_in_log(view, "topic", topic, key, once, first, last),
                           min(most, MAX_BATCH))
            return [record.physical_offset for record in newest]
        return index_files.query_offsets(opened_indexes(view.store, once), topic, key, most, first,
                                         last)

    def store_time(physical: int) -> int | None:
        # An index entry may point to no message, or past the broker's end of the log.
        record = log.record_at(physical)
        if record is None or (view.log_end is not None and physical >= view.log_end):
            left_out = answer.dangling if record is None else answer.behind
            if physical not in left_out:
                left_out.append(physical)
            return None
        records[physical] = record
        return record.store_timestamp

    # The index contains only hashes, so compare the real topic and key.
    for physical in index_files.query_messages(offsets, store_time, begin, end):
        record = records[physical]
        if raw or (java_text(record.topic) == topic and has_key(record, key, kind)):
            answer.records.append(record)
        else:
            answer.false_hits += 1
    return answer


def _in_log(view: View, field: str, value: str, key: str | None, report: Report,
            first: int = 0, last: int = FOR_EVER) -> Iterator[Record]:
    """Scan the log instead of using the index. Yield the messages that have the key, and the given
    value in ``field``.
    """
    from rmqctl.store.query.conditions import Condition
    from rmqctl.store.query.select import Selection, Selector

    wanted = Selection(since=first, until=last, key=key, where=(Condition(field, "=", value),))
    return Selector(view.store, wanted, view, report).records()


def is_lagging(store: Store) -> bool:
    """Return whether the index lags: a message with a key follows soon after the last indexed
    message.
    """
    last = max((index.header.end_phy_offset
                for index in opened_indexes(store, lambda _problem: None)), default=-1)
    place = store.log.locate(last)
    if place is None:
        return False
    source, start = place
    for batch in Walk(source, start_of(source, start), min(source.size, start + _WINDOW)):
        kind = batch.column("sys_flag") & sysflag.TRANSACTION_MASK
        later = (batch.offset > last) & (kind != sysflag.TRANSACTION_ROLLBACK)
        if any(b"%s\1" % name.encode() in batch.data[start:start + length].tobytes()
               for start, length in zip(batch.column("properties_start")[later].tolist(),
                                        batch.column("properties_length")[later].tolist(),
                                        strict=True)
               for name in (props.KEYS, props.UNIQUE_KEY)):
            return True
    return False


def has_key(record: Record, key: str, kind: KeyType | None) -> bool:
    """Return whether a message has the key; its properties are parsed as a broker parses them."""
    parsed = props.parse(java_text(record.properties))
    return ((kind != "unique" and key in props.split_keys(parsed.get(props.KEYS)))
            or (kind != "key" and parsed.get(props.UNIQUE_KEY) == key))


def by_unique_key(store: Store, unique: str, topics: Sequence[str],
                  report: Report = lambda _problem: None) -> list[Record]:
    """Return the messages with a client id (unique key), in the order of the log.

    The index contains hashes of ``topic#key``. The id is therefore looked up in each of ``topics``,
    and messages of other topics are not found.
    """
    if vfs.lacks(store.root, "index"):
        return [record for record in _in_log(View(store), "unique_key", unique, None, report)
                if java_text(record.topic) in topics][:_MAX_PER_ID]
    hashes = [layout.key_hash(topic, unique) for topic in topics]
    places: set[int] = set()
    for index in opened_indexes(store, report):
        for wanted in hashes:
            offsets: list[int] = []
            index_files.select(index, wanted, _MAX_PER_ID, 0, FOR_EVER, offsets)
            places.update(offsets)
    records = (store.log.record_at(place) for place in sorted(places))
    return [record for record in records if record is not None
            and has_key(record, unique, "unique")]


def known_topics(store: Store) -> list[str]:
    """Return the topics that have queues or are in ``config/topics.json``, sorted."""
    from rmqctl.store.config.config import load_one

    value = load_one(store, "topics.json").value
    table = value.get("topicConfigTable") if isinstance(value, dict) else None
    named = [name for name in table if isinstance(name, str)] if isinstance(table, dict) else []
    return sorted({*topics_on_disk(store), *named})


def message_at(store: Store, physical: int, report: Report = lambda _problem: None,
               ) -> Record | None:
    """Return the message that starts at a physical offset; None if no message starts there.

    A copy of a record in the body of another message does not count. Damage around the offset is
    reported.

    Raises: StoreIOError.
    """
    record, place = store.log.record_at(physical), store.log.locate(physical)
    if record is None or place is None:
        return None
    source, position = place
    # A sender can put a record into a body, but no consume queue entry points to it.
    if source.witness is not None and source.witness.confirms(record):
        return record
    around = record_around(source, position)
    if around is None:
        report(Problem("damage", f"there is an intact record at {physical}, but the log is damaged "
                       "there: it may be part of another message's body"))
    return record if around is None or around.physical_offset == physical else None


def containing(store: Store, physical: int) -> Record | None:
    """Return the message whose bytes include a physical offset.

    Raises: StoreIOError.
    """
    place = store.log.locate(physical)
    return None if place is None else record_around(*place)


def record_around(source: Source, position: int) -> Record | None:
    """Return the message that includes the byte at ``position`` of a log file (of a store or a
    tier).

    The search scans increasingly large windows before the position until two windows without damage
    give the same result. One window is not enough: it may begin inside a body that contains a copy
    of a record.

    Raises: StoreIOError.
    """
    physical, window = source.base + position, _WINDOW
    before: int | None = None
    while True:
        start = max(0, position - window)
        record: Record | None = None
        damaged = False
        for batch in Walk(source, start_of(source, start), position + 1):
            if len(batch):
                last = len(batch) - 1
                first = int(batch.offset[last])
                inside = first <= physical < first + int(batch.column("total_size")[last])
                record = decode(batch.bytes_at(last)) if inside else None
            damaged |= any(span.kind == "damaged" for span in batch.spans)
        if start == 0:
            return record
        if record is not None and not damaged:
            if before == record.physical_offset:
                return record
            before = record.physical_offset
        window *= 8


def where_is(store: Store, physical: int) -> str:
    """Return the reason, in words, why no message starts at a physical offset."""
    if store.log.is_blank_at(physical):
        return "the end-of-file record of a commitlog file"
    reason = store.log.explain(physical)
    if reason in ("no record there", "a record is there") or reason.startswith("field"):
        around = containing(store, physical)
        if around is not None and around.physical_offset != physical:
            return (f"it is inside the record at {around.physical_offset} ({around.total_size:,} "
                    f"bytes, topic {text(around.topic)}); add --containing to show that record")
        place = store.log.locate(physical)
        if place is not None and not any(place[0].read(place[1], 64)):
            return "unused space"
    return reason
