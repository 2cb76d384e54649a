"""Names of files and folders as the steps of a plan have them."""

from __future__ import annotations

import os
from itertools import pairwise

from rmqctl.errors import RefusedError
from rmqctl.store.store import Store


def target(store: Store, path: str) -> str:
    """``path`` relative to the store root; absolute where it lies outside (multi-path log)."""
    root, full = os.path.abspath(store.root), os.path.abspath(path)
    if full.startswith(root.rstrip(os.sep) + os.sep):
        return os.path.relpath(full, root)
    return full


def refuse_overlaps(store: Store) -> None:
    """RefusedError where two files of the log claim the same physical offsets.

    Which of them a broker reads depends on the order of its folders, so no cut is safe.
    """
    files = store.log.files
    for one, other in pairwise(files):
        if one.end > other.base:
            raise RefusedError(f"{other.path}: begins at {other.base}, but {one.path} ends at "
                               f"{one.end}; which of the two belongs to the log is unclear")
