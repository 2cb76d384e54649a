"""Output to a URL: created in a temporary folder, then uploaded."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from rmqctl.errors import RefusedError
from rmqctl.files.remote.files import RemoteFiles
from rmqctl.files.remote.reader import without_secrets
from rmqctl.parse_values import is_url


@contextmanager
def uploaded(target: str) -> Iterator[str]:
    """Yield the path for writing a new file or folder.

    For a URL, the path is in a temporary folder. At the end, the files in this folder are uploaded,
    the top-level files last. If ``target`` is not a URL, it is the path itself. Raises:
    RefusedError if the URL already exists, StoreIOError.
    """
    if not is_url(target):
        yield target
        return
    above, _, name = target.rstrip("/").rpartition("/")
    with RemoteFiles(above) as remote, tempfile.TemporaryDirectory(prefix="rmqctl-out-") as folder:
        if remote.size(name) is not None or remote.list(name):
            raise RefusedError(f"{without_secrets(target)}: already exists; nothing is overwritten")
        local = os.path.join(folder, name)
        yield local + "/" if target.endswith("/") else local
        paths = [os.path.join(where, file) for where, _, files in os.walk(folder) for file in files]
        for path in sorted(paths, key=lambda path: (-path.count(os.sep), path)):
            remote.publish_file(os.path.relpath(path, folder), path)
