"""Rebuild DLedger's own index from the entries of a log (spec: dledger.md §3)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from rmqctl.checks.verify.common import plural
from rmqctl.files.durable import failed, make_folders, open_file, write_all
from rmqctl.files.sparse import copy_sparse
from rmqctl.formats import dledger
from rmqctl.formats.local import names
from rmqctl.repair.plan import Action, Create, FileContent, Planned, Replace, Step
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.targets import target
from rmqctl.scan.frames import Array, distinct
from rmqctl.store.files import INDEX
from rmqctl.store.log.chain import Chain, ChainEntries, File
from rmqctl.store.log.dledger import UNIT_SIZE, Node, UnitReader
from rmqctl.store.store import Store

_PER_FILE = dledger.INDEX_FILE_SIZE // UNIT_SIZE
_SCRATCH = "dledger-index"


class IndexCheck:
    """Comparison of the units in a node's index with the entries of a log, page by page.

    ``wrong``: for each index file, by the index of the file, the number of wrong units.
    ``entries``: number of compared entries.
    """

    def __init__(self, reader: UnitReader) -> None:
        self._reader = reader
        self.wrong: dict[int, int] = {}
        self.entries = 0

    def add(self, entries: ChainEntries) -> None:
        self.entries += len(entries)
        bad = self._reader.of(entries.number) != units_of(entries)
        files = entries.number // _PER_FILE
        for number in distinct(files).tolist():
            self.wrong[number] = self.wrong.get(number, 0) + int(bad[files == number].sum())


def units_of(entries: ChainEntries) -> Array:
    """Return the index units of entries, as a structured array (`dledger.INDEX_UNIT`)."""
    out: Array = np.zeros(len(entries), dledger.INDEX_UNIT.dtype())
    out["magic"], out["pos"], out["size"] = dledger.MAGIC_ENTRY, entries.pos, entries.size
    out["entry_index"], out["term"] = entries.number, entries.term
    return out


def index_steps(store: Store, node: Node, files: Sequence[File], check: IndexCheck,
                scratch: Scratch) -> Planned:
    """Return the steps that rebuild each index file that is missing, has a wrong size or contains a
    wrong unit. Units of removed entries are kept.

    Raises: StoreIOError.
    """
    # The files that are wrong or missing.
    present = {file.base // dledger.INDEX_FILE_SIZE: file for file in node.index_listing.files}
    anew = [number for number, wrong in check.wrong.items()
            if wrong or number not in present or present[number].size != dledger.INDEX_FILE_SIZE]
    if not anew:
        return [], []
    # Each is rebuilt in scratch: the present bytes, then the units of the log's entries.
    folder = scratch.path(_SCRATCH)
    make_folders(folder, durable=False)
    opened: dict[int, tuple[int, str]] = {}
    try:
        for number in anew:
            path = os.path.join(folder, names.build_offset(number * dledger.INDEX_FILE_SIZE))
            try:
                if number in present:
                    copy_sparse(present[number].path, path)
                fd = open_file(path, os.O_RDWR | os.O_CREAT, "make")
                os.ftruncate(fd, dledger.INDEX_FILE_SIZE)
            except OSError as error:
                raise failed(error, path, "write") from None
            opened[number] = fd, path
        with UnitReader(node) as reader:
            for entries in Chain(files, reader):
                _write(entries, opened)
    finally:
        for fd, _ in opened.values():
            os.close(fd)
    # The steps that put them in place.
    steps: list[Step] = []
    actions: list[Action] = []
    for number, (_, path) in sorted(opened.items()):
        name = target(store, os.path.join(node.folder, INDEX, os.path.basename(path)))
        steps.append((Replace if number in present else Create)(name, FileContent(path)))
        wrong = check.wrong[number]
        actions.append(Action(
            "rebuild", name, None, wrong or check.entries,
            "DLedger's index is missing" if number not in present else
            f"{plural(wrong, 'unit')} of DLedger's index do not point to their entries" if wrong
            else "DLedger stops the broker if an index file has another size", "entry"))
    return steps, actions


def _write(entries: ChainEntries, opened: dict[int, tuple[int, str]]) -> None:
    units = units_of(entries)
    cuts = np.flatnonzero((np.diff(entries.number) != 1) | (
        np.diff(entries.number // _PER_FILE) != 0)) + 1
    for rows in np.split(np.arange(len(entries)), cuts):
        if len(rows):
            number, inside = divmod(int(entries.number[rows[0]]), _PER_FILE)
            if number in opened:
                fd, path = opened[number]
                write_all(fd, units[rows].tobytes(), inside * UNIT_SIZE, path)
