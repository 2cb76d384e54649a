"""The index files of a store, with their shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.index_file import IndexShape
from rmqctl.formats.local.names import INDEX_DIGITS
from rmqctl.store import live
from rmqctl.store.files import Listing, StoreFile, listing
from rmqctl.store.index.files import IndexFile, open_index
from rmqctl.store.index.shape import Decided
from rmqctl.store.live import Snapshot
from rmqctl.store.log.once import cached_property
from rmqctl.store.store_settings import StoreConfig

_VOTERS = 3
"""Maximum number of index files of one size that are examined to determine the shape of all these
files.
"""


class IndexOwner(Protocol):
    """The part of the interface of `rmqctl.store.store.Store` that its index needs."""

    def path(self, *parts: str) -> str: ...
    @property
    def snapshot(self) -> Snapshot | None: ...
    @property
    def config(self) -> StoreConfig: ...


class Index:
    """The index files of a store; the state of the store's snapshot is read.

    ``slots``, ``most``: the configured number of hash slots and of entries; None if the files
    determine them. ``current``: read the current files, without a snapshot.
    """

    def __init__(self, store: IndexOwner, slots: int | None = None, most: int | None = None, *,
                 current: bool = False) -> None:
        self._store, self._slots, self._most, self._current = store, slots, most, current
        self._met: dict[str, Decided] = {}
        self._lent: dict[str, Decided] | None = None

    @property
    def _snapshot(self) -> Snapshot | None:
        return None if self._current else self._store.snapshot

    @cached_property
    def listing(self) -> Listing:
        """The index files, ascending by name."""
        listed = listing(self._store.path("index"), INDEX_DIGITS)
        if (snapshot := self._snapshot) is not None:
            listed.files = [file for file in listed.files if file.name in snapshot.index_names]
        return listed

    def open(self, file: StoreFile) -> IndexFile:
        """Open an index file.

        Raises: FormatError if the file's shape is unknown, StoreIOError if it is unreadable.
        """
        snapshot = self._snapshot
        if snapshot is None or file.name not in snapshot.index_headers:
            return self._open(file)
        for _ in range(live.INDEX_TRIES - 1):
            try:  # a header that is older than the slots fits no shape, but the next one may
                index = self._open(file)
                break
            except FormatError:
                continue
        else:
            index = self._open(file)
        return live.fixed(index, snapshot.index_headers[file.name])

    def _open(self, file: StoreFile) -> IndexFile:
        lent = None if self._lent is None else self._lent.get(file.path)
        index = open_index(file, self._slots, self._most, self._shapes_said(file), lent)
        if self._lent is not None:
            self._lent[file.path] = Decided(index.shape, index.sure)
        return index

    def _shapes_said(self, file: StoreFile) -> Iterator[IndexShape]:
        """Yield shapes that an index file may have: first from store.json, then from other index
        files of the same size.
        """
        remembered = self._store.config.remembered
        slots, most = remembered.get("index_slots"), remembered.get("index_max")
        if slots is not None and most is not None:
            yield IndexShape(slots, most)
        for size, shape in self._shapes.items():
            if size == file.size:
                yield shape

    @cached_property
    def _shapes(self) -> dict[int, IndexShape]:
        """For each file size: the shape that the contents of most examined index files of this size
        prove.
        """
        votes: dict[int, Counter[IndexShape]] = {}
        for file in self.listing.files:
            shapes = votes.setdefault(file.size, Counter())
            if shapes.total() >= _VOTERS:
                continue
            try:
                index = open_index(file)
            except (FormatError, StoreIOError):
                continue
            index.close()
            if index.sure and index.header.entries:
                shapes[index.shape] += 1
        return {size: shapes.most_common(1)[0][0] for size, shapes in votes.items() if shapes}

    def shape(self) -> tuple[IndexShape | None, str]:
        """Return (shape of the index files, reason).

        The newest file that proves a shape decides. If no file proves a shape, the result is (None,
        reason); if there are no index files, (None, "").
        """
        why = ""
        for file in reversed(self.listing.files):
            if not file.size:
                continue
            try:
                index = self.open(file)
            except (FormatError, StoreIOError) as error:
                why = why or str(error)
                continue
            index.close()
            if index.sure:
                return index.shape, ""
            why = why or (f"{file.path}: cannot determine the number of hash slots; pass "
                          "--index-slots and --index-max")
        return None, why

    def newest_first(self) -> Iterator[IndexFile]:
        """Yield the readable index files. Other index files are omitted; `verify` names them."""
        for file in reversed(self.listing.files):
            try:
                index = self.open(file)
            except (FormatError, StoreIOError):
                continue
            try:
                yield index
            finally:
                index.close()

    def keep_shapes(self) -> None:
        """Determine the shape of each file only once: a file that changes is an error here."""
        self._lent = self._met

    def borrow(self, other: Index) -> None:
        """Use what another view of the same store knows about the shapes of its files."""
        self._lent = other._met
