"""Structures which only some brokers have: epoch file and identity of the controller mode,
consumequeue extension, batch consumequeue.

spec: checkpoint-and-small-files.md §5, consumequeue.md §8, §9.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from rmqctl.checks.findings import WARNING, Finding
from rmqctl.checks.verify.common import LOOK, bounded, read_start, unreadable
from rmqctl.checks.verify.queue import batch_rows, ext_units
from rmqctl.checks.verify.queue.batch_rows import batch_expected
from rmqctl.checks.verify.queue.ext_units import ExtReader
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.config import broker_identity, epoch
from rmqctl.store.store import Store

__all__ = ["ExtReader", "batch_expected", "check"]

_EPOCHS = "epochFileCheckpoint"
_IDENTITIES = ("brokerIdentity", "brokerIdentity-temp")
_MOST = 4 << 20


def check(store: Store, log_end: int | None = None, *, live: bool | None = None,
          in_damage: Callable[[int], bool] | None = None) -> Iterator[Finding]:
    """All of them. ``log_end`` is the physical offset behind the commitlog's last record;
    ``in_damage`` says whether one lies in a damaged part of the log.
    """
    held = store.lock.held if live is None else live
    end = store.log.end if log_end is None else log_end
    yield from small(store)
    yield from bounded(ext_units.check(store))
    yield from bounded(batch_rows.check(store, end, live=held, in_damage=in_damage))


def small(store: Store) -> Iterator[Finding]:
    """The epoch file and the broker's identity."""
    yield from _epochs(store)
    for name in _IDENTITIES:
        path = store.path(name)
        if not os.path.lexists(path):
            continue
        try:
            broker_identity.parse(read_start(path, _MOST)[0])
        except StoreIOError as error:
            yield unreadable("store", path, error)
        except FormatError as error:
            yield Finding("small-file", "store", f"{error.path}: {error.reason}", file=path,
                          offset=error.offset, next=LOOK)


def _epochs(store: Store) -> Iterator[Finding]:
    path = store.path(_EPOCHS)
    main, backup = _epoch_fault(path), _epoch_fault(f"{path}.bak")
    if main is None:
        return
    good = backup is None and os.path.lexists(f"{path}.bak")
    told = f"{_EPOCHS}.bak " + ("is good" if good else "does not help: a broker starts without "
                                "its epochs")
    if isinstance(main, StoreIOError):
        yield Finding("file-unreadable", "store", f"{main}; {told}", file=path)
    else:
        yield Finding("epoch-file", "store", f"{main.path}: {main.reason}; {told}", file=path,
                      offset=main.offset, severity=WARNING if good else "", next=LOOK)


def _epoch_fault(path: str) -> FormatError | StoreIOError | None:
    """What is wrong with an epoch file; None too if it is not there."""
    if not os.path.lexists(path):
        return None
    try:
        epoch.parse(read_start(path, _MOST)[0])
    except (FormatError, StoreIOError) as error:
        return error
    return None
