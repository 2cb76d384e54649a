"""Copy a store at a URL or in an archive into a local folder."""

from __future__ import annotations

import os

from rmqctl import vfs
from rmqctl.backup.growing import Copies, Pace
from rmqctl.backup.restore import refuse_taken, removed_unless_done
from rmqctl.errors import StoreIOError
from rmqctl.files.durable import make_folders, publish_folder
from rmqctl.scan.source import FileSource
from rmqctl.store.store import Store


def fetch(place: str, target: str, pace: Pace = lambda _bytes: None) -> tuple[
        int, int, list[str]]:
    """Copy a store and all other files in its folder; zeros become holes. Return (number of files,
    number of bytes, symbolic links). Links are not followed.

    Raises: NotAStoreError, RefusedError if the target is in use, StoreIOError. After an error, the
    partial copy is removed.
    """
    part = refuse_taken(target)
    count = size = 0
    links: list[str] = []
    with removed_unless_done(part), Store.open(place) as store:
        make_folders(part)
        copies = Copies(part, pace)
        for folder, _, names in vfs.walk(store.root):
            inside = os.path.relpath(folder, store.root) if folder != store.root else ""
            make_folders(os.path.join(part, inside), durable=False)
            with vfs.scandir(folder) as entries:
                links += [os.path.join(inside, entry.name) for entry in entries
                          if entry.is_symlink()]
            for name in names:
                with FileSource(os.path.join(folder, name)) as source:
                    copies.grow(source, os.path.join(inside, name), 0, source.size)
                    count, size = count + 1, size + source.size
        vfs.raise_failure()
        for hole in copies.unread:
            raise StoreIOError(f"{os.path.join(store.root, hole.file)}: {hole.length:,} bytes at "
                               f"{hole.offset:,} cannot be read; nothing was copied")
        copies.sync()
        publish_folder(part, target, "name")
    return count, size, links
