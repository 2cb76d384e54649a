"""Sizes in a broker's configuration file, checked against the files of a store.

The configuration may belong to another store, or may have been edited after the files were created.
Such sizes must not mislead readers or repairs. `rmqctl.broker.conf` predicts the effect of a
configuration on a startup.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rmqctl.errors import RmqctlError
from rmqctl.formats.local import batch_consume_queue, consume_queue
from rmqctl.store.files import common_size, queue_size

_FIELDS = {"commitlog_file_size": "commitlog_file", "consumequeue_file_size": "consumequeue_file",
           "index_slots": "index_slots", "index_max": "index_max"}
"""For each setting's name in a configuration: the field of `Sizes`."""
_SURE = 2
"""Minimum number of files whose common size is certain; a single file may be truncated."""


def as_files_are(store: Any, sizes: Any) -> Any:
    """Return ``sizes`` without the values of ``sizes.conf`` that contradict the files of ``store``.

    ``store`` is a view of the current files (`rmqctl.store.store.Store`) that was opened without
    `Sizes`.
    """
    values = sizes.conf.values
    refuted: set[str] = set()
    with suppress(RmqctlError):
        refuted = {name for name, size in _proven(store, values) if values.get(name, size) != size}
    if not refuted:
        return sizes
    dropped: dict[str, Any] = {field: None for name, field in _FIELDS.items()
                               if name in refuted and getattr(sizes, field) == values[name]}
    return replace(sizes, refuted=frozenset(refuted), **dropped)


def _proven(store: Any, values: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield (name, size) for each configured size whose actual value a store's files prove."""
    if "commitlog_file_size" in values:
        files = store.log.files
        size = common_size(files)
        if size and _is_sure([file.size for file in files], size, values["commitlog_file_size"]):
            yield "commitlog_file_size", size
    for name, queues, unit in (
            ("consumequeue_file_size", store.queues.by_key, consume_queue.UNIT_SIZE),
            ("batch_consumequeue_file_size", store.queues.batch, batch_consume_queue.UNIT_SIZE)):
        if name not in values:
            continue
        size = queue_size((queue.files for queue in queues.values()), unit)
        if size and _is_sure([file.size for queue in queues.values() for file in queue.files],
                             size, values[name]):
            yield name, size
    if {"index_slots", "index_max"} & values.keys():
        shape, _ = store.index.shape()
        if shape is not None:
            yield "index_slots", shape[0]
            yield "index_max", shape[1]


def _is_sure(sizes: list[int], usual: int, configured: int) -> bool:
    return (sizes.count(usual) >= _SURE and configured not in sizes) or max(sizes) > configured
