"""Count the remaining fillers at the offsets where repairs wrote them, for `info`."""

from __future__ import annotations

import os
from contextlib import suppress

from rmqctl.errors import RmqctlError
from rmqctl.repair.executor.journal import history
from rmqctl.repair.executor.relocated import load_here
from rmqctl.scan.fillers import fillers
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store

_UNDONE = "undone"


def fillers_left(store: Store) -> int:
    """Return the number of fillers that repairs of this store wrote and that were not reverted.

    Unreadable journals and files are skipped. A store that was copied without its ``.rmqctl`` has
    fillers that only `verify` and `stats` count, because they read the log.
    """
    by_path = {os.path.realpath(file.path): file for file in store.log.files}
    places: dict[str, set[tuple[int, int]]] = {}
    with suppress(RmqctlError):
        for entry in history(store.root):
            if entry.state == _UNDONE:
                continue
            with suppress(RmqctlError):
                for record in load_here(store.root, entry.id)[0].records:
                    path = os.path.realpath(os.path.join(store.root, record.target))
                    if path in by_path and record.kind in ("create", "patch", "replace"):
                        spans = record.spans or ((0, by_path[path].size),)
                        places.setdefault(path, set()).update(spans)
    count = 0
    for path, file_spans in places.items():
        file = by_path[path]
        with suppress(RmqctlError), FileSource(path, file.base) as source:
            reach = 0
            for start, size in sorted(file_spans):
                first = max(start, reach)
                reach = max(reach, start + size)
                for batch in Walk(source, first, min(start + size, source.size)):
                    count += int(fillers(batch).sum()) if len(batch) else 0
    return count
