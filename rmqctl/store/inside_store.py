"""Check whether a path is inside a store, where rmqctl must not write output files."""

from __future__ import annotations

import os

from rmqctl import vfs
from rmqctl.errors import UsageError
from rmqctl.formats.local.names import parse_offset
from rmqctl.formats.tiered.names import parse_cluster

_LOG = "commitlog"
_FOLDERS = (_LOG, "consumequeue", "batchconsumequeue")
_BESIDE = (*_FOLDERS, "index", "config", "checkpoint", "lock", "abort", ".rmqctl")


def enclosing_store(path: str | os.PathLike[str]) -> str | None:
    """Return the root of the store at or above ``path``; None if ``path`` is outside all stores.

    The path need not exist; it is checked as given and with links resolved. These folders are
    stores:

    * a folder that contains ``commitlog`` or consume queues, and in addition either another part of
      a store or a log file in ``commitlog``;
    * the folder of a cluster in a tier.

    An unreadable folder does not count as a store.
    """
    named = vfs.abspath(path)
    return _above(vfs.realpath(named)) or _above(named)


def refuse_in_store(path: str | os.PathLike[str], shown: str | None = None) -> None:
    """Raise UsageError for a path in a store. ``shown``: the path as the message shows it, if it
    differs from ``path``.
    """
    inside = enclosing_store(path)
    if inside is not None:
        raise UsageError(f"{shown or os.fspath(path)} is in the store {inside}: choose a place "
                         "outside of it")


def _above(path: str) -> str | None:
    while not _is_store(path):
        above = os.path.dirname(path)
        if above == path:
            return None
        path = above
    return path


def _is_store(folder: str) -> bool:
    cluster = parse_cluster(os.path.basename(folder))
    if cluster is not None and cluster[1]:
        return True
    if not any(vfs.isdir(os.path.join(folder, name)) for name in _FOLDERS):
        return False
    if sum(vfs.lexists(os.path.join(folder, name)) for name in _BESIDE) > 1:
        return True
    try:
        with vfs.scandir(os.path.join(folder, _LOG)) as entries:
            return any(parse_offset(entry.name) is not None for entry in entries)
    except OSError:
        return False
