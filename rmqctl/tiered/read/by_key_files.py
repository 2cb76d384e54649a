"""The index files of a broker that can answer for a key, uploaded and not (tiered.md §5.5, §11)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.tiered.names import (
    INDEX,
    INDEX_QUEUE,
    INDEX_TOPIC,
    OLD_INDEX_NAMES,
    metadata_path,
)
from rmqctl.formats.tiered.units import NEVER
from rmqctl.tiered.flat_file import FlatFile
from rmqctl.tiered.index.index_file import COMPACTED, IndexFile, LocalIndex, uploaded
from rmqctl.tiered.tier import Tier


@dataclass(frozen=True, slots=True)
class Keyed:
    """An index file with its key in the broker's table: for a broker the time it was made."""

    key: int
    owner: str
    file: IndexFile


@dataclass(slots=True)
class IndexFiles:
    """The index files of a tier that can be read, by ascending key. Context manager.

    ``errors`` are the others.
    """

    files: list[Keyed] = field(default_factory=list)
    errors: list[FormatError | StoreIOError] = field(default_factory=list)
    _local: LocalIndex | None = None

    @classmethod
    def open(cls, tier: Tier, broker: str | None = None, slots: int | None = None,
             max_items: int | None = None) -> Self:
        """``slots`` and ``max_items`` are those of files that do not tell: the open ones. Without
        them the slots are taken to be those of the uploaded files. Of each the header is read.
        """
        found = cls()
        for owner, flat in tier.indexes(broker):
            found._add_uploaded(tier, owner, flat)
        owner = _local_owner(tier)
        if broker is None or owner in (broker, ""):
            if slots is None and max_items is None:
                slots = next((one.file.shape.slots for one in found.files
                              if one.file.form == COMPACTED and owner in (one.owner, "")), None)
            found._add_local(tier, owner, slots, max_items)
        found.files.sort(key=lambda one: (one.key, one.owner, one.file.base))
        return found

    def _add_uploaded(self, tier: Tier, owner: str, flat: FlatFile) -> None:
        entries = tier.metadata.segments[INDEX].get(
            metadata_path(owner, INDEX_TOPIC, INDEX_QUEUE), {})
        for one in uploaded(flat):
            if not isinstance(one, IndexFile):
                self.errors.append(one)
                continue
            entry = entries.get(one.base)
            known = entry is not None and entry.begin_timestamp != NEVER
            key = entry.begin_timestamp if known and entry is not None else one.timestamp
            self.files.append(Keyed(key, owner, one))

    def _add_local(self, tier: Tier, owner: str, slots: int | None,
                   max_items: int | None) -> None:
        try:
            self._local = LocalIndex(tier.local_index_folder, slots, max_items)
        except StoreIOError as error:
            self.errors.append(error)
            return
        self.errors += self._local.errors
        for one in self._local.files:
            name = os.path.basename(one.where)
            key = one.timestamp if name in OLD_INDEX_NAMES else int(name)
            self.files.append(Keyed(key, owner, one))

    def newest_first(self) -> Iterator[Keyed]:
        """All of them."""
        return reversed(self.files)

    def table_newest_first(self) -> Iterator[Keyed]:
        """Those a broker has in its table: one of each key, the uploaded one before the local one
        (which it deletes when it starts), the last uploaded before others.
        """
        last: int | None = None
        for one in self.newest_first():
            if one.key != last:
                last = one.key
                yield one

    def close(self) -> None:
        if self._local is not None:
            self._local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _local_owner(tier: Tier) -> str:
    """The broker the local files belong to, as far as it can be told; else an empty text."""
    named = {one.broker_name for table in tier.metadata.queues.values() for one in table.values()}
    if len(named) == 1:
        return named.pop()
    owners = {owner for owner, _ in tier.indexes()}
    return owners.pop() if len(owners) == 1 else ""
