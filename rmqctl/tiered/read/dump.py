"""What a file of a tier is, where its name does not say: for ``rmqctl tiered dump``."""

from __future__ import annotations

import os

from rmqctl.errors import NotAStoreError
from rmqctl.formats import kinds

TYPES = {
    "commit-log": kinds.TIERED_COMMITLOG,
    "consume-queue": kinds.TIERED_CONSUMEQUEUE,
    "index": kinds.TIERED_INDEX,
    "metadata": kinds.TIERED_METADATA,
}
"""What a user may call the kinds of files a tier has."""
_ALIKE = {kinds.COMMITLOG: kinds.TIERED_COMMITLOG, kinds.CONSUMEQUEUE: kinds.TIERED_CONSUMEQUEUE,
          kinds.CONFIG: kinds.TIERED_METADATA}
_HEAD = 4096


def kind_of(path: str) -> str | None:
    """The kind by path and content; None where only `store.dump` can say what is wrong with it.

    NotAStoreError for a file of another kind: `rmqctl dump` is for those.
    """
    from rmqctl.errors import StoreIOError
    from rmqctl.scan.source import FileSource

    try:
        with FileSource(path) as source:
            head, size = source.read(0, _HEAD), source.size
    except StoreIOError:
        return None
    found = kinds.recognise(os.path.abspath(path).split(os.sep), head, size)
    found = _ALIKE.get(str(found), found)
    if found in TYPES.values():
        return found
    what = "what it is" if found is None else f"a file of a tier; it looks like {found}"
    raise NotAStoreError(f"{path}: neither its path nor its content tells {what}; give --type, one "
                         f"of: {', '.join(TYPES)}")
