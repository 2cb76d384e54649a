"""The entries of a RocksDB database as rows, in the broker's terms."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from rmqctl import vfs
from rmqctl.errors import FormatError
from rmqctl.formats.rocksdb import config, small_stores
from rmqctl.formats.rocksdb import consume_queue as queue
from rmqctl.store.rocksdb.database import Database

COLUMNS = ("number", "family", "key", "fields", "error")
_SHOWN = 120

Fields = dict[str, Any]
Read = Callable[[bytes, bytes], Fields]


class DatabaseDump:
    """All entries of a database, one column family after the other; ``faults`` counts the damaged
    and unrecognized entries yielded so far.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.faults = 0

    def rows(self) -> Iterator[Fields]:
        """Yield a row for each entry. ``key``: the entry's key as text, with non-text bytes
        escaped.

        Damage is reported in a row; the rest of that column family is then skipped.
        Raises: FormatError, StoreIOError or MissingExtraError if the database cannot be opened.
        """
        number = 0
        place = os.path.basename(vfs.abspath(self.folder))
        with Database.open(self.folder) as database:
            for damage in database.damage:
                yield self._fault(None, None, damage)
            for family in database.families:
                read = _reader(place, family)
                try:
                    for key, value in database.items(family):
                        row: Fields = {"number": number, "family": family, "key": _text(key)}
                        number += 1
                        try:
                            yield {**row, "fields": read(key, value)}
                        except FormatError as error:
                            yield self._fault(row["number"], family, str(error), row["key"])
                except FormatError as error:
                    yield self._fault(None, family, str(error))

    def _fault(self, number: int | None, family: str | None, error: str,
               key: str | None = None) -> Fields:
        self.faults += 1
        return {"number": number, "family": family, "key": key, "error": error}


def _text(key: bytes) -> str:
    shown = key[:_SHOWN].decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in shown)


def _reader(place: str, family: str) -> Read:
    """Return the function that parses the entries of a column family in the database folder
    ``place``.
    """
    readers: dict[tuple[str, str], Read] = {
        ("consumequeue", queue.ROWS): _row, ("consumequeue", queue.OFFSETS): _position,
        ("rdb", config.DEFAULT): _second, **small_stores.READERS}
    if place in ("topics", "subscriptionGroups", "consumerOffsets"):
        return _first
    return readers.get((place, family), _unknown)


def _first(key: bytes, value: bytes) -> Fields:
    return {"name": config.name_of(key), **config.object_of(value)}


def _second(key: bytes, value: bytes) -> Fields:
    parsed = config.parse_key(key)
    record = config.parse_value(parsed, value)
    fields: Fields = {"table": config.TABLES[parsed.table]}
    if isinstance(record, config.VersionRecord):
        return fields | {"data_version": record.as_json()}
    if isinstance(record, int):
        return fields | {"group": parsed.group, "topic": parsed.topic,
                         "queue_id": parsed.queue_id, "offset": record}
    return fields | {"name": parsed.name, **record}


def _row(key: bytes, value: bytes) -> Fields:
    place = queue.parse_row_key(key)
    if place is None or len(value) != queue.ROW.size:
        raise FormatError("not the key of a consume queue entry", offset=0, path="key")
    return {"topic": config.name_of(place[0]), "queue_id": place[1], "queue_offset": place[2],
            **queue.ROW.decode(value)._asdict()}


def _position(key: bytes, value: bytes) -> Fields:
    place = queue.parse_offset_key(key)
    if place is None:
        raise FormatError("not the key of a queue's offset", offset=0, path="key")
    fields = {"topic": config.name_of(place[0]), "queue_id": place[2], "which": place[1].decode()}
    if place[0] == queue.CHECKPOINT_TOPIC:
        return fields | {"physical_offset": queue.parse_checkpoint(value)}
    if len(value) != queue.POSITION.size:
        raise FormatError(f"has {len(value)} bytes, not {queue.POSITION.size}", offset=0,
                          path="value")
    return fields | queue.POSITION.decode(value)._asdict()


def _unknown(_: bytes, value: bytes) -> Fields:
    return {"bytes": len(value)}
