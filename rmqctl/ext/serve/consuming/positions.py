"""Consumer offsets from the store, and those that consumers have committed since.

Committed offsets are kept in memory, or in a file outside the store. The file is replaced
atomically.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

from rmqctl.errors import FormatError, UsageError
from rmqctl.ext.serve.consuming import anchors
from rmqctl.files.durable import replace_file
from rmqctl.files.named import refuse_link_of_others
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource
from rmqctl.store.log.commit_log import CommitLog

_MAX_POSITIONS = 1_000_000
"""Maximum number of committed consumer offsets (one for each group and queue)."""
_NAMES = 256
"""Number of characters in the names of group and topic that counts as one more offset."""
MAX_SIZE = 256 << 20
Key = tuple[str, str]
"""Names of group and topic."""


@dataclass(slots=True)
class Positions:
    """The consumer offsets of a broker's groups.

    ``stored``: offsets in the store, which are not changed. ``committed``: offsets that consumers
    have committed to this server.
    """

    stored: dict[Key, dict[int, int]]
    committed: dict[Key, dict[int, int]] = field(default_factory=dict)
    changes: int = 0
    """Number of changes since the start."""
    written: int = 0
    """The value of ``changes`` at the last save."""
    touched: set[Key] | None = None
    """Groups and topics with newly committed offsets; None if they are not collected."""
    _count: int = 0

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's consumer offset in a queue. Like a broker, treat a negative offset as
        missing.
        """
        key = group, topic
        offset = self.committed.get(key, {}).get(queue_id)
        if offset is None:
            offset = self.stored.get(key, {}).get(queue_id)
        return None if offset is None or offset < 0 else offset

    def forget(self, group: str) -> None:
        """Remove all consumer offsets of a group."""
        self.stored = {key: queues for key, queues in self.stored.items() if key[0] != group}
        for key in [key for key in self.committed if key[0] == group]:
            self._count -= len(self.committed.pop(key)) + sum(map(len, key)) // _NAMES
        self.changes += 1

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Commit a consumer offset. Return False if there are too many offsets already."""
        queues = self.committed.get((group, topic))
        if queues is None or queue_id not in queues:
            cost = 1 if queues is not None else 1 + (len(group) + len(topic)) // _NAMES
            if self._count + cost > _MAX_POSITIONS:
                return False
            self._count += cost
            queues = self.committed.setdefault((group, topic), {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self.changes += 1
            if self.touched is not None:
                self.touched.add((group, topic))
        return True

    @property
    def changed(self) -> bool:
        """Return whether there are unsaved changes."""
        return self.written < self.changes

    def snapshot(self) -> Positions:
        """Return a copy for another thread.

        Groups and topics that are added later do not appear in the copy. The offsets in the copy
        may still change.
        """
        return Positions(self.stored, dict(self.committed), self.changes)

    def all(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Yield (group, topic, consumer offsets by queue id) of all groups."""
        for key in {**self.stored, **self.committed}:
            yield *key, {**self.stored.get(key, {}), **self.committed.get(key, {})}

    def of_group(self, group: str) -> dict[str, dict[int, int]]:
        """Return a group's consumer offsets: topic -> queue id -> offset."""
        return {topic: queues for name, topic, queues in self.all() if name == group}

    def table(self) -> dict[str, dict[str, int]]:
        """Return all consumer offsets in the form of ``consumerOffset.json``."""
        return {f"{topic}@{group}": {str(queue_id): offset for queue_id, offset in sorted(
            queues.items())} for group, topic, queues in self.all()}


class PositionsFile:
    """The consumer offsets of several brokers in one file.

    Its form is ``{"BROKER STORE": {"offsetTable": …, "records": …}}``. The log records in
    ``records`` identify the store (`anchors`); the name is only for people to read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.warnings: list[str] = []
        """Warnings of `load` for the user, about stores without an entry in this file."""
        self._others: dict[str, Any] = {}
        self._records: dict[str, list[anchors.Anchor]] = {}

    def load(self, names: Sequence[str], logs: Sequence[CommitLog]
             ) -> dict[str, dict[Key, dict[int, int]]]:
        """Return the consumer offsets of each store, by the store's name.

        Raises: FormatError; StoreIOError; RefusedError if the path contains a link that others may
        have created; UsageError if a store's entry cannot be determined.
        """
        for name, log in zip(names, logs, strict=True):
            self.know(name, log)
        refuse_link_of_others(self.path, itself=False)
        if not os.path.lexists(self.path):
            folder = os.path.dirname(os.path.abspath(self.path))
            if not os.path.isdir(folder):
                raise UsageError(f"{self.path}: the folder {folder} does not exist")
            return {name: {} for name in names}
        with FileSource(self.path) as source:
            if source.size > MAX_SIZE:
                raise FormatError("too large for a file of consumer offsets", file=self.path)
            data = source.read(0, source.size)
        try:
            value = json.loads(data)
            tables = {name: _positions(entry) for name, entry in value.items()}
        except (ValueError, RecursionError, AttributeError, TypeError, KeyError, OverflowError
                ) as error:
            raise FormatError(f"not a file written by `serve --offsets`: {type(error).__name__} "
                              f"{error}",
                              file=self.path) from None
        try:
            keys, warnings = anchors.keys_in(value, names, logs)
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}") from None
        self.warnings = [f"{self.path}: {text}" for text in warnings]
        # Keep the entry of another store under a free name.
        for name, stored in value.items():
            if name not in keys:
                free = name
                while free in names or free in self._others:
                    free += " (earlier)"
                self._others[free] = stored
        return {name: {} if key is None else tables[key]
                for name, key in zip(names, keys, strict=True)}

    def know(self, name: str, log: CommitLog) -> None:
        """Update the log records that identify a store."""
        self._records[name] = anchors.anchors_of(log, self._records.get(name, ()))

    def save(self, positions: dict[str, Positions]) -> None:
        """Write the committed offsets. To call this function in another thread, pass snapshots.
        Raises: StoreIOError.
        """
        value = {**self._others, **{name: {"offsetTable": {
            f"{topic}@{group}": {str(queue_id): offset for queue_id, offset in dict(queues).items()}
            for (group, topic), queues in offsets.committed.items()},
            anchors.ANCHORS: self._records.get(name, [])}
            for name, offsets in positions.items()}}
        replace_file(self.path, json.dumps(value, indent=1).encode())


def _positions(value: dict[str, Any]) -> dict[Key, dict[int, int]]:
    table: dict[Key, dict[int, int]] = {}
    for key, queues in value["offsetTable"].items():
        topic, _, group = key.partition("@")  # no topic has one in its name
        table[group, topic] = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
    return table
