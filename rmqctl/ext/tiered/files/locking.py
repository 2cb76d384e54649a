"""Locks for writing to a tier, and checks of links that point outside the tier."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rmqctl.errors import InternalError, StoreHeldError, StoreIOError
from rmqctl.ext.tiered.files.metadata_file import broker_root_of, writable_around
from rmqctl.files.bounds import WritableFolders, stores_around
from rmqctl.files.lock import StoreLock
from rmqctl.files.lock_probe import probe
from rmqctl.formats.tiered.names import LOCAL_INDEX_FOLDER
from rmqctl.parse_values import is_url


def refuse_noted(root: str, metadata_path: str, metadata: str | None,
                 outside: Sequence[str]) -> None:
    """Raise RefusedError if the metadata, or the index files beside it, are outside both the tier
    and its parent folder.

    Files that the user named with ``metadata`` are allowed, as are files in a folder of
    ``outside``.
    """
    broker_root = broker_root_of(metadata_path) or ""
    around = [] if is_url(root) and metadata is None else writable_around(root, metadata)
    bounds = WritableFolders(root, [*around, *outside])
    # The index folder first: the folder that its refusal names contains the metadata, too.
    bounds.refuse_links(os.path.join(broker_root, LOCAL_INDEX_FOLDER), metadata_path,
                        f"{metadata_path}.bak")


@contextmanager
def locked(root: str, metadata_path: str, source: str | None = None, *,
           metadata: str | None = None, outside: Sequence[str] = ()) -> Iterator[None]:
    """Hold the locks that protect a writing run from brokers and other rmqctl processes.

    The locks are:

    - the broker's lock in the broker root of ``metadata_path``
    - rmqctl's lock in the tier's ``root``, unless this is a URL
    - the locks of other stores that contain a folder of ``outside``
    - the lock of ``source``, a store that the run only reads, if its lock file exists

    On a read-only disk, the lock of ``source`` is not taken, but no other process may hold it.
    ``metadata``: the metadata path that the user named.

    Raises: StoreHeldError; StoreIOError; RefusedError if a link, or a note in the tier, points to
    something other than the tier, its metadata, the broker's index files or the folders
    ``outside``. After an error, nothing was changed.
    """
    broker_root = broker_root_of(metadata_path)
    if broker_root is None:
        raise InternalError(f"{metadata_path}: cannot write metadata to a URL")
    refuse_noted(root, metadata_path, metadata, (*outside, *(() if source is None else (source,))))
    if not is_url(root):
        WritableFolders(root, outside).refuse_links(root)
    folders = [os.path.realpath(broker_root)]
    if not is_url(root):
        folders.append(os.path.realpath(root))
    with ExitStack() as stack:
        for folder in dict.fromkeys((*folders, *stores_around(outside, [
                *folders, *(() if source is None else (source,))]))):
            stack.enter_context(StoreLock(folder))
        if (source is not None and os.path.realpath(source) not in folders
                and os.path.lexists(os.path.join(source, "lock"))):
            try:
                stack.enter_context(StoreLock(source))
            except StoreIOError:
                if probe(os.path.join(source, "lock")).held:
                    raise StoreHeldError(
                        f"{source}: another process holds the store's lock") from None
        yield
