"""Writing ``tieredStoreMetadata.json``: whole, at once, the one before kept as ``.bak`` (§6).

A broker of 5.3.3 writes over the file in place; here there is the old file or the new one at any
moment.
"""

from __future__ import annotations

import os

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.durable import STAGING, make_folders, publish
from rmqctl.formats.tiered import metadata as meta
from rmqctl.tiered.files.reader import is_url


def save(path: str, metadata: meta.Metadata, home: str) -> bool:
    """Publishes metadata at ``path``, what was there as ``.bak``; False where nothing changed.

    ``home`` is the broker's local root, on whose file system the new file is staged. StoreIOError;
    RefusedError for metadata behind a URL: a broker has it on its machine.
    """
    if is_url(path):
        raise RefusedError(f"{path}: metadata is not written behind a URL; copy it to this "
                           "machine and name it with --metadata")
    data = meta.build(metadata)
    staging = os.path.join(home, STAGING)
    try:
        with open(path, "rb") as file:
            old: bytes | None = file.read()
    except FileNotFoundError:
        old = None
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "read") from None
    if old == data:
        return False
    make_folders(os.path.dirname(os.path.abspath(path)))
    if old:
        publish(f"{path}.bak", old, store=home, staging=staging)
    publish(path, data, store=home, staging=staging)
    return True
