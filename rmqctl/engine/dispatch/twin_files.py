"""Files of a new queue that are written only if they differ from those of an existing queue."""

from __future__ import annotations

import os

import numpy as np

from rmqctl.engine.dispatch.queue_files import FilePool, QueueFiles
from rmqctl.formats.local import consume_queue as layout
from rmqctl.formats.local.consume_queue import FILLER, UNIT_SIZE
from rmqctl.store.queue.consume_queue import FileQueue, valid

_FILLER = np.array([tuple(FILLER)], layout.dtype())[0]


class TwinFiles(QueueFiles):
    """The files of a new queue, written only if they differ from those of an existing queue, the
    ``twin``.

    Nothing is written while every unit equals the twin's. At the first difference, all earlier
    units are written; from then on, every unit is written. A padding entry also counts as equal to
    the twin's entry of a message before ``log_min``, the start of the log.
    """

    __slots__ = ("_first", "_log_min", "_next", "_twin")

    def __init__(self, folder: str, pool: FilePool, twin: FileQueue, log_min: int) -> None:
        super().__init__(folder, twin.file_size, pool)
        self._twin: FileQueue | None = twin
        self._first = self._next = 0
        self._log_min = log_min

    def is_twin(self) -> bool:
        """Return whether the twin can replace the new files: nothing was written, and the twin has
        no units after the current position.
        """
        twin = self._twin
        return twin is not None and self.base is not None and not twin.troubles and (
            len(twin.files) == self._next
            and twin.used_bytes(self._next - 1) <= self.position - self.base
            and not any(os.path.islink(file.path) for file in twin.files))

    def write_out(self) -> None:
        """Write the units that equal the twin's, up to the current position."""
        twin, self._twin = self._twin, None
        if twin is None:
            return
        for file in twin.files[self._first:self._next]:
            super()._enter(file.base)
            end = min(file.end, self.position)
            for first, rows in twin.pages(file.base // UNIT_SIZE, end // UNIT_SIZE):
                super()._write(rows.tobytes(), first * UNIT_SIZE - file.base)
        twin.close()

    def _enter(self, base: int) -> None:
        if self._twin is not None:
            if self.base is None:
                self._first = self._next = self._older(self._twin, base)
            file = next(iter(self._twin.files[self._next:]), None)
            if file is not None and (file.base, file.size) == (base, self.file_size):
                self._next += 1
                self.base = base
                return
            self.write_out()
        super()._enter(base)

    def _write(self, data: bytes | memoryview, position: int) -> None:
        if self._twin is not None:
            if self._agrees(self._twin, data):
                return
            self.write_out()
        super()._write(data, position)

    def _older(self, twin: FileQueue, base: int) -> int:
        """Return how many files at the start of the twin are before ``base`` and have only expired
        entries.
        """
        for number, file in enumerate(twin.files):
            last = twin.unit(layout.queue_offset(file.end) - 1) if file.base < base and (
                file.size == self.file_size) else None
            if last is None or last.physical_offset >= self._log_min:
                return number
        return len(twin.files)

    def _agrees(self, twin: FileQueue, data: bytes | memoryview) -> bool:
        there = twin.units(layout.queue_offset(self.position), len(data) // UNIT_SIZE)
        if there.tobytes() == bytes(data):  # comparing a memoryview takes several times as long
            return True
        own = np.frombuffer(data, layout.dtype())
        if len(there) != len(own):
            return False
        is_expired = valid(there) & (there["physical_offset"] < self._log_min)
        return bool(((there == own) | (own == _FILLER) & is_expired).all())
