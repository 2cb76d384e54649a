"""The checkpoint page, the abort file and the lock file (checkpoint-and-small-files.md §1-§3).

A checkpoint may lag behind at any time: a broker then only reads more of the log at its next start.
If a checkpoint is ahead of the log, the broker reads too little.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator

from rmqctl import vfs
from rmqctl.checks.findings import INFO, WARNING, Finding
from rmqctl.checks.verify.common import LOOK, read_start, unreadable
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import abort as abort_format
from rmqctl.formats.local import checkpoint as layout
from rmqctl.formats.local import lock as lock_format
from rmqctl.formats.local.checkpoint import CHECKPOINT, CheckpointRecord
from rmqctl.parse_values import time_or_zero, time_text
from rmqctl.store.store import Store

_FIX = "rmqctl recover STORE --only checkpoint"
_MAX_SIZE = 1 << 16
_NOT_SET = -1
"""Value that a broker writes for an offset that it does not have."""
_DRIFT_MS = 3_600_000
_DRIFT_BYTES = 1 << 36
"""Maximum number of bytes by which a running broker may extend the log between the log pass and
this check.
"""
_TIMES = CHECKPOINT.names[:layout.CLASSIC_FIELDS]
_OFFSETS = CHECKPOINT.names[layout.CLASSIC_FIELDS:]


def check(store: Store, last_store_timestamp: int | None, log_end: int, *,
          live: bool | None = None) -> Iterator[Finding]:
    """Yield the findings for checkpoint, abort file and lock of a store.

    * ``last_store_timestamp``: greatest store time in the log (None: the log has no messages)
    * ``log_end``: physical offset after the last record of the log
    * ``live``: whether a broker is running on the store (None: determine it)
    """
    held = store.lock.held if live is None else live
    yield from _checkpoint(store, last_store_timestamp, log_end, held)
    yield from _abort(store, held)
    yield from _lock(store)


def _finding(category: str, store: Store, detail: str, offset: int, length: int | None = None,
             severity: str = "") -> Finding:
    return Finding(category, "checkpoint", detail, file=store.path("checkpoint"), offset=offset,
                   length=length, severity=severity, next=_FIX)


def _checkpoint(store: Store, last: int | None, log_end: int, held: bool) -> Iterator[Finding]:
    path = store.path("checkpoint")
    if not vfs.lexists(path):
        if last is not None:
            yield _finding("checkpoint-missing", store,
                           "missing: after a crash a broker checks the whole log", 0)
        return
    try:
        data, size = read_start(path, _MAX_SIZE)
    except StoreIOError as error:
        yield unreadable("checkpoint", path, error)
        return
    if size < layout.CLASSIC_SIZE:
        # As with zeros, a broker walks the whole log; not if only the index time is missing.
        left = layout.parse(data.ljust(layout.PAGE_SIZE, b"\0"))
        healed = not left.min_timestamp
        yield _finding("checkpoint-damaged", store, f"has {size} bytes, but the fields end at "
                       f"{layout.CLASSIC_SIZE}: missing fields count as 0" + (
                           ", and after a crash a broker checks the whole log"
                           if healed else ""), size,
                       layout.PAGE_SIZE - size, INFO if healed else "")
        return
    if size != layout.PAGE_SIZE:
        # No time is lost, and a broker extends a short page when it maps it.
        yield _finding("checkpoint-damaged", store, f"has {size} bytes, but a broker writes a page "
                       f"of {layout.PAGE_SIZE}", min(size, layout.PAGE_SIZE),
                       abs(size - layout.PAGE_SIZE),
                       INFO if CHECKPOINT.size <= size < layout.PAGE_SIZE else WARNING)
    rest = data[CHECKPOINT.size:]
    used = rest.rstrip(b"\0")
    if used:
        first = len(rest) - len(rest.lstrip(b"\0"))
        yield _finding("checkpoint-damaged", store, "non-zero bytes after the fields, where a "
                       "broker writes zeros", CHECKPOINT.size + first, len(used) - first)
    yield from _values(store, layout.parse(data), last, log_end, held)


def _values(store: Store, checkpoint: CheckpointRecord, last: int | None, log_end: int,
            held: bool) -> Iterator[Finding]:
    values = checkpoint._asdict()
    if last is not None and checkpoint.physic_msg_timestamp == checkpoint.logics_msg_timestamp == 0:
        yield _finding("checkpoint-zero", store, "all zeros despite messages: after a crash a "
                       "broker checks the whole log", 0, 2 * CHECKPOINT.field(_TIMES[0]).size)
    for name in _TIMES:
        value = values[name]
        if not 0 <= value < layout.YEAR_3000:
            yield _field("checkpoint-damaged", store, name, f"{value} is not a valid store time")
        elif last is not None and value > last + (_DRIFT_MS if held else 0):
            yield _field("checkpoint-ahead", store, name,
                         f"{time_or_zero(value)} is after the newest message, stored at "
                         f"{time_text(last)}")
    for name in _OFFSETS:
        value = values[name]
        if value < _NOT_SET:
            yield _field("checkpoint-damaged", store, name,
                         f"{value} is not a valid physical offset")
        elif last is not None and value > log_end + (_DRIFT_BYTES if held else 0):
            # The master's offset may be ahead of a slave's own log: reported, but not a problem.
            yield _field("checkpoint-ahead", store, name,
                         f"{value} is beyond the end of the log, {log_end}",
                         INFO if name == "master_flushed_offset" else "")


def _field(category: str, store: Store, name: str, detail: str, severity: str = "") -> Finding:
    place = CHECKPOINT.field(name)
    return _finding(category, store, f"{name}: {detail}", place.offset, place.size, severity)


def _abort(store: Store, held: bool) -> Iterator[Finding]:
    """Yield a finding for the abort file if no broker is running; a running broker has one."""
    if not store.has_abort:
        return
    path = store.path("abort")
    if not held:
        yield Finding("unclean-shutdown", "store", "the abort file exists: unclean shutdown, or "
                      "copied while a broker ran", file=path)
    yield from _small(path, abort_format.parse)


def _lock(store: Store) -> Iterator[Finding]:
    path = store.path("lock")
    if vfs.lexists(path):
        yield from _small(path, lock_format.parse)


def _small(path: str, parse: Callable[[bytes], object]) -> Iterator[Finding]:
    """Yield a finding if the content of a small file is wrong; this is only a warning."""
    try:
        if not stat.S_ISREG(vfs.stat(path).st_mode):
            yield Finding("small-file", "store", "not a regular file", file=path)
            return
        data, size = read_start(path, 256)
    except StoreIOError as error:
        yield unreadable("store", path, error)
        return
    except OSError as error:
        yield unreadable("store", path, StoreIOError.from_oserror(error, path, "open"))
        return
    try:
        parse(data)
    except FormatError as error:
        yield Finding("small-file", "store", f"{error.reason} ({size} bytes)", file=path,
                      offset=error.offset or 0, length=max(size - (error.offset or 0), 0),
                      next=LOOK)
