"""What DLedger keeps beside a log's data: its index, checkpoint and term (spec: dledger.md §1, §3).

The unit of entry i lies at byte 32 i of the index. A broker writes units, nobody who sends
messages can, so each tells where an entry lies as a row of a consumequeue does of a message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats import dledger
from rmqctl.scan.frames import Array
from rmqctl.store.files import INDEX, Listing, StoreFile, listing
from rmqctl.store.log.end import used_size

UNIT_SIZE = dledger.INDEX_UNIT.size
PAGE = 1 << 15
"""Units read at a time."""
_MOST = 1 << 16


class Units(NamedTuple):
    """Units (`dledger.INDEX_UNIT`, structured) of the entries from index ``first`` on."""

    first: int
    rows: Array


class Node:
    """The files of one DLedger node, in ``folder`` (``dledger-<selfId>``)."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        return os.path.basename(self.folder)

    @cached_property
    def index_listing(self) -> Listing:
        return listing(os.path.join(self.folder, INDEX))

    def units(self) -> Iterator[Units]:
        """All written units, page by page; files that cannot be read are left out."""
        for read in self._pages():
            page = read()
            if len(page.rows):
                yield page

    def leads(self) -> Iterator[Callable[[], tuple[Array, Array]]]:
        """Functions that give (physical offset, size) of the records which the units of a page
        lead to, one for each page.
        """
        return (partial(_leads, read) for read in self._pages())

    def _pages(self) -> Iterator[Callable[[], Units]]:
        for file in self.index_listing.files:
            try:
                with file.open() as source:
                    count = -(-used_size(source) // UNIT_SIZE)
            except StoreIOError:
                continue
            for first in range(0, count, PAGE):
                yield partial(_units, file, first, min(PAGE, count - first))

    @cached_property
    def checkpoint(self) -> dict[str, int] | None:
        """``end_index`` and ``committed_index``, of the copy where the file cannot be read; None
        without either.
        """
        for name in ("checkpoint", "checkpoint.bak"):
            try:
                with open(os.path.join(self.folder, name), "rb") as file:
                    return dledger.parse_checkpoint(file.read(_MOST))
            except (OSError, FormatError):
                continue
        return None


def _units(file: StoreFile, first: int, count: int) -> Units:
    try:
        with file.open() as source:
            raw = source.read(first * UNIT_SIZE, count * UNIT_SIZE)
    except StoreIOError:
        raw = b""
    rows = np.frombuffer(raw[:len(raw) - len(raw) % UNIT_SIZE], dledger.INDEX_UNIT.dtype())
    return Units(file.base // UNIT_SIZE + first, rows)


def _leads(read: Callable[[], Units]) -> tuple[Array, Array]:
    rows = read().rows
    rows = rows[(rows["magic"] == dledger.MAGIC_ENTRY) & (rows["pos"] >= 0)
                & (rows["size"] > dledger.HEAD_SIZE)]
    return (rows["pos"].astype(np.int64) + dledger.HEAD_SIZE,
            rows["size"].astype(np.int64) - dledger.HEAD_SIZE)
