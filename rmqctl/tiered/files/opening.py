"""A tier root opened, for reading or for writing, and who may write to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rmqctl.errors import NotAStoreError, StoreHeldError, StoreIOError
from rmqctl.files import durable
from rmqctl.files.bounds import Bounds
from rmqctl.files.lock import StoreLock
from rmqctl.files.lock_probe import probe
from rmqctl.formats.tiered.names import LOCAL_INDEX_FOLDER
from rmqctl.tiered.files.reader import PosixReader, Reader, is_url

if TYPE_CHECKING:
    from rmqctl.tiered.files.writer import TierWriter


def open_reader(target: str) -> Reader:
    """A tier root to read from. NotAStoreError where there is no folder."""
    if is_url(target):
        from rmqctl.tiered.files.remote_reader import RemoteReader

        return RemoteReader(target)
    if not os.path.isdir(target):
        words = "is no folder" if os.path.lexists(target) else "no such folder"
        raise NotAStoreError(f"{target}: {words}")
    return PosixReader(target)


def open_writer(target: str) -> TierWriter:
    """A tier root to write to; made where it is missing. NotAStoreError, StoreIOError."""
    if is_url(target):
        from rmqctl.tiered.files.remote_writer import RemoteWriter

        return RemoteWriter(target)
    if os.path.lexists(target) and not os.path.isdir(target):
        raise NotAStoreError(f"{target}: is no folder")
    from rmqctl.tiered.files.writer import PosixWriter

    durable.make_folders(os.path.abspath(target))
    return PosixWriter(target)


@contextmanager
def locked(root: str, broker_root: str, source: str | None = None, *,
           outside: Sequence[str] = ()) -> Iterator[None]:
    """Holds what a run that writes needs: nobody else may while a broker runs, or another rmqctl.

    These are the broker's lock in ``broker_root`` and a lock of ours in the tier's ``root`` (a URL
    has none); also that of the store ``source``, which is only read, where it has a lock file: on
    a read-only disk it is enough that nobody else holds it. StoreHeldError, before anything is
    changed; RefusedError for a link that leads out of the tier, or of the broker's index files,
    into none of the folders ``outside``; StoreIOError.
    """
    Bounds(broker_root, outside).refuse_links(os.path.join(broker_root, LOCAL_INDEX_FOLDER))
    if not is_url(root):
        Bounds(root, outside).refuse_links(root)
    folders = [os.path.realpath(broker_root)]
    if not is_url(root):
        folders.append(os.path.realpath(root))
    with ExitStack() as stack:
        for folder in dict.fromkeys(folders):
            stack.enter_context(StoreLock(folder))
        if (source is not None and os.path.realpath(source) not in folders
                and os.path.lexists(os.path.join(source, "lock"))):
            try:
                stack.enter_context(StoreLock(source))
            except StoreIOError:
                if probe(os.path.join(source, "lock")).held:
                    raise StoreHeldError(
                        f"{source}: the store is held by another process") from None
        yield
