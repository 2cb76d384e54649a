"""One file of any kind, record by record: the rows of `rmqctl dump`.

The file is opened read-only and read in parts, so memory does not grow with the file's size. Damage
never ends a dump: a row reports the fault and its position, and the dump continues with the next
provable record.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

from rmqctl import vfs
from rmqctl.errors import NotAStoreError, UsageError
from rmqctl.formats import dledger, kinds
from rmqctl.formats.config import epoch
from rmqctl.formats.config.broker_identity import PARTS
from rmqctl.formats.local import consume_queue_ext, index_file
from rmqctl.formats.local.checkpoint import CheckpointRecord
from rmqctl.formats.tiered import index
from rmqctl.formats.tiered import units as tiered_units
from rmqctl.formats.timer import timer_log
from rmqctl.formats.timer.timer_check import TimerCheckRecord
from rmqctl.scan.source import Closing, FileSource
from rmqctl.store.config.client_offsets import ClientOffset
from rmqctl.store.dump import messages, texts, tiered, units
from rmqctl.store.dump.fields import DumpOptions, Row, Target
from rmqctl.store.objects import FIELDS

__all__ = ["Dump", "DumpOptions", "kind_of"]

_HEAD = 4096
_PLACE = ("number", "offset", "byte_offset", "type")

_READERS = {
    **dict.fromkeys(units.ARRAYS, units.array_rows),
    kinds.TIMERLOG: units.timerlog_rows,
    kinds.CONSUMEQUEUE_EXT: units.ext_rows,
    kinds.INDEX: units.index_rows,
    **messages.READERS,
    **texts.READERS,
    **tiered.READERS,
}

_COLUMNS: dict[str, tuple[str, ...]] = {
    **{kind: (*array.unit.names, *array.extra) for kind, array in units.ARRAYS.items()},
    kinds.TIMERLOG: (*timer_log.UNIT.names, "slot_time", "flags"),
    kinds.CONSUMEQUEUE_EXT: (*consume_queue_ext.UnitRecord._fields, "address"),
    kinds.INDEX: (*index_file.HEADER.names, *index_file.SLOT.names, *index_file.ENTRY.names,
                  "entry_time", "used", "slot"),
    kinds.COMMITLOG: ("size", *FIELDS, "appended_crc_ok"),
    kinds.COMPACTION_LOG: ("size", *FIELDS, "appended_crc_ok"),
    kinds.DLEDGER: (*dledger.ENTRY_HEAD.names, *FIELDS),
    kinds.TIERED_COMMITLOG: ("size", *FIELDS, "appended_crc_ok", "max_store_timestamp"),
    kinds.TIERED_CONSUMEQUEUE: (*tiered_units.UNIT.names, "queue_offset"),
    kinds.TIERED_INDEX: (*index.HEADER.names, *index.COMPACTED_SLOT.names, "count",
                         *index.SLOT.names, *index.ITEM.names, "item_time", "slot"),
    kinds.TIERED_METADATA: tiered.METADATA_COLUMNS,
    kinds.CHECKPOINT: (*CheckpointRecord._fields, "min_timestamp", "min_timestamp_index"),
    kinds.TIMERCHECK: TimerCheckRecord._fields,
    kinds.CONFIG: ("name", "value"),
    kinds.CLIENT_OFFSETS: (*ClientOffset._fields, "name", "value"),
    kinds.ABORT: ("pid",),
    kinds.LOCK: ("text",),
    kinds.EPOCH: (*epoch.Epoch._fields, "end_offset"),
    kinds.BROKER_IDENTITY: PARTS,
    kinds.DLEDGER_CHECKPOINT: tuple(dledger.CHECKPOINT_KEYS.values()),
}

_TIMES = ("min_timestamp_index", "time_ms", "slot_time", "curr_write_time", "last_read_time_ms",
          "entry_time", "item_time")
_SINGLE = (kinds.CHECKPOINT, kinds.TIMERCHECK, kinds.ABORT, kinds.LOCK, kinds.BROKER_IDENTITY,
           kinds.DLEDGER_CHECKPOINT)

_MESSAGE_BRIEF = ("number", "offset", "type", "size", "topic", "queue_id", "queue_offset",
                  "store_timestamp", "tags", "keys", "body", "error")
_BRIEF: dict[str, tuple[str, ...]] = {
    kinds.COMMITLOG: _MESSAGE_BRIEF,
    kinds.COMPACTION_LOG: _MESSAGE_BRIEF,
    kinds.TIERED_COMMITLOG: _MESSAGE_BRIEF,
    kinds.TIERED_INDEX: ("number", "offset", "type", "position", "length", "item", "key_hash",
                         "topic_id", "queue_id", "commit_log_offset", "size", "item_time",
                         "previous", "error"),
    kinds.TIERED_METADATA: ("type", "kind", "path", "topic", "queue_id", "topic_id", "base_offset",
                            "size", "begin_timestamp", "end_timestamp", "error"),
    kinds.DLEDGER: ("number", "offset", "type", "size", "entry_index", "term", *_MESSAGE_BRIEF[4:]),
    kinds.INDEX: ("number", "offset", "type", "entry", "key_hash", "physical_offset", "entry_time",
                  "previous", "index_count", "error"),
    kinds.CONFIG: ("name", "value", "error"),
    kinds.CLIENT_OFFSETS: (*ClientOffset._fields, "error"),
}


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


def kind_of(name: str) -> str:
    """Return the kind with a given name, ignoring underscores, hyphens and case.

    Raises: UsageError for an unknown kind.
    """
    for kind in kinds.KINDS:
        if _plain(kind) == _plain(name):
            return kind
    raise UsageError(f"unknown kind {name!r}; kinds: {', '.join(kinds.KINDS)}")


def _parts(path: str) -> list[str]:
    with contextlib.suppress(OSError):  # the working directory may have been deleted
        path = vfs.abspath(path)
    return path.split(os.sep)


class Dump(Closing):
    """An opened file: its ``kind``, its rows, and remarks on what was read.

    ``faults``: number of faults in the rows yielded so far. ``notes``: the remarks, as sentences.
    """

    def __init__(self, path: str, options: DumpOptions) -> None:
        wanted = None if options.kind is None else kind_of(options.kind)
        if options.at is not None and options.start is not None:
            raise UsageError("--from (records) and --at (bytes) cannot be combined")
        self._source = FileSource(path)
        try:
            kind = wanted or self._recognise(path)
            base = kinds.base_offset(os.path.basename(path))
            self._target = Target(self._source, kind, base, options)
            if options.at is not None:
                self._target.options = self._placed(options, options.at)
        except BaseException:
            self._source.close()
            raise

    def _recognise(self, path: str) -> str:
        head, size = self._source.read(0, _HEAD), self._source.size
        kind = kinds.recognise(_parts(path), head, size)
        kind = kind or kinds.from_path(vfs.realpath(path).split(os.sep))
        if kind is None:
            raise NotAStoreError(f"{path}: cannot determine the kind of file from its path or "
                                 f"content; pass --kind with one of: {', '.join(kinds.KINDS)}")
        return kind

    def _placed(self, options: DumpOptions, position: int) -> DumpOptions:
        """Return the options with ``at`` as a position in the file, if the user passed a stream
        offset.
        """
        from dataclasses import replace

        base, size = self._target.base, self._source.size
        if self.kind in texts.READERS or self.kind == kinds.TIERED_METADATA:
            raise UsageError("--at requires a file of records; the kind of this file is "
                             f"{self.kind}")
        if not 0 <= position < size and base is not None:
            position -= base
        if not 0 <= position < size:
            where = f"0 to {size - 1}" if size else "the file is empty"
            raise UsageError(f"--at {options.at} is outside the file ({where})")
        return replace(options, at=position, count=1 if options.count is None else options.count)

    @property
    def kind(self) -> str:
        return self._target.kind

    @property
    def base(self) -> int | None:
        return self._target.base

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._target.size

    @property
    def faults(self) -> int:
        return self._target.faults

    @property
    def notes(self) -> list[str]:
        return self._target.notes

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that rows of this kind may have."""
        return tuple(dict.fromkeys((*_PLACE, *_COLUMNS[self.kind], "error")))

    @property
    def brief(self) -> tuple[str, ...] | None:
        """The columns of a table on a narrow terminal; None for all columns."""
        return _BRIEF.get(self.kind)

    @property
    def times(self) -> tuple[str, ...]:
        """The columns whose values are times in epoch milliseconds."""
        return tuple(name for name in self.columns if name.endswith("timestamp")
                     or name in _TIMES)

    @property
    def single(self) -> bool:
        """Return whether a file of this kind consists of a single record."""
        return self.kind in _SINGLE

    def rows(self) -> Iterator[Row]:
        """Yield a row for each record as soon as it is read."""
        return itertools.islice(_READERS[self.kind](self._target), self._target.options.count)

    def close(self) -> None:
        self._source.close()
