"""Checks of the controller mode files: epochs and the broker's identity (dledger.md §8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rmqctl import vfs
from rmqctl.checks.findings import WARNING, Finding
from rmqctl.checks.verify.common import nowhere, read_start, unreadable
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.config import broker_identity
from rmqctl.formats.config.epoch import Epoch
from rmqctl.store.controller import BACKUP, EPOCHS, IDENTITY, MAX_FILE_SIZE, disorder, read_epochs
from rmqctl.store.store import Store

_IDENTITIES = (IDENTITY, f"{IDENTITY}-temp")
_MAX_CHECKED = 100
"""Number of most recent epochs whose start offsets are looked up in the log."""


def check(store: Store, log_end: int | None = None, *, live: bool | None = None,
          in_damage: Callable[[int], bool] | None = None) -> Iterator[Finding]:
    """Yield the findings for the epoch file and the broker's identity.

    ``log_end``: the physical offset after the log's last record (None: the log was not read, and
    the epochs are not compared with it).
    ``in_damage``: whether a physical offset is in a damaged part.
    """
    yield from _epochs(store, log_end, store.lock.held if live is None else live,
                       in_damage or nowhere)
    for name in _IDENTITIES:
        path = store.path(name)
        if not vfs.lexists(path):
            continue
        try:
            broker_identity.parse(read_start(path, MAX_FILE_SIZE)[0])
        except StoreIOError as error:
            yield unreadable("store", path, error)
        except FormatError as error:
            yield Finding("small-file", "store", f"{error.path}: {error.reason}", file=path,
                          offset=error.offset)


def _epochs(store: Store, log_end: int | None, live: bool,
            in_damage: Callable[[int], bool]) -> Iterator[Finding]:
    file = read_epochs(store)
    main, good = file.main, bool(file.backup.epochs)
    path = store.path(EPOCHS)
    if main.fault is not None:
        state = f"{BACKUP} " + ("is intact" if good else "is unusable: a broker starts without "
                                "epochs")
        if isinstance(main.fault, StoreIOError):
            yield Finding("file-unreadable", "store", f"{main.reason}; {state}", file=path)
        else:
            yield Finding("epoch-file", "store", f"{main.reason}; {state}", file=path,
                          offset=main.fault.offset, severity=WARNING if good else "")
    elif not main.epochs and good:
        yield Finding("epoch-file", "store", f"missing; {BACKUP} is intact", file=path,
                      severity=WARNING)
    if file.used is not None:
        yield from _entries(store, store.path(file.used.name), file.epochs, log_end, live,
                            in_damage)


def _entries(store: Store, path: str, epochs: Sequence[Epoch], log_end: int | None, live: bool,
             in_damage: Callable[[int], bool]) -> Iterator[Finding]:
    """Yield findings for contradictions between epochs, and between epochs and the log."""
    number = disorder(epochs)
    if number is not None:
        before, epoch = epochs[number - 1], epochs[number]
        yield Finding("epoch-file", "store", f"epoch {epoch.epoch} at {epoch.start_offset} follows "
                      f"epoch {before.epoch} at {before.start_offset}: both numbers must increase",
                      file=path)
    if log_end is None or not store.layout.reads("commitlog"):
        return
    for epoch in epochs[-_MAX_CHECKED:]:
        start = epoch.start_offset
        if start > log_end:
            if not live:
                yield Finding("epoch-start", "store", f"epoch {epoch.epoch} starts at {start}, "
                              f"after the end of the log, {log_end}", file=path)
        elif store.log.min_offset <= start < log_end and not in_damage(start):
            border = store.log.record_border(start)
            if border is not None and border != start:
                yield Finding("epoch-start", "store", f"epoch {epoch.epoch} starts at {start}, "
                              f"inside a record; the next record is at {border}", file=path)
