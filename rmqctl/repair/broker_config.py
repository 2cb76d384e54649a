"""The configuration of the broker that wrote a store, as far as derived files depend on it.

What is given wins, then what `init` remembered, then what the store itself shows. Each guess
that could be wrong is said.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rmqctl.engine.clock import now_ms
from rmqctl.engine.config.resolve import resolve
from rmqctl.engine.config.settings import Settings
from rmqctl.engine.config.topics import Topics
from rmqctl.errors import RefusedError
from rmqctl.store.files import listing
from rmqctl.store.store import Store
from rmqctl.store.store_settings import recall

VERSIONS = {4: "4.9.3", 5: "5.3.3"}
"""The version whose rules stand for a generation when nobody names one."""


@dataclass(frozen=True, slots=True)
class Configured:
    """``settings``, the topics with batch queues, and what had to be assumed (``notes``)."""

    settings: Settings
    batch_topics: frozenset[str]
    notes: tuple[str, ...]


def configured(root: str, given: Mapping[str, Any],
               commitlog_dirs: Iterable[str] = ()) -> Configured:
    """The configuration for a repair of the store at ``root``.

    ``given`` are values by the names of `Settings`, None where not given. A message that was
    dispatched to further queues says so itself (the property with its offsets there is made by
    a broker that does it), so multi-dispatch and light queues count as on unless they are
    switched off. Raises what `resolve` raises.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    known = recall(root).values
    with Store.open(root, commitlog_dirs) as store:
        shown: dict[str, Any] = {
            "version": VERSIONS[store.generation],
            "lmq": True,
            "multi_dispatch": True,
            "consumequeue_ext": _has_ext_files(root),
        }
        notes = _assumed(store, {*chosen, *known})
    for name, value in shown.items():
        if name not in known:
            chosen.setdefault(name, value)
    settings = resolve(root, chosen, commitlog_dirs)
    batch = set(settings.batch_topics)
    try:
        batch |= Topics(root, settings, now_ms).batch_topics()
    except RefusedError as error:  # config/topics.json is damaged: that stops no repair
        notes.append(f"{error} (which topics have batch queues is taken from their folders)")
    with Store.open(root, commitlog_dirs) as store:
        batch |= {topic for topic, _ in store.batch_queues}
    return Configured(settings, frozenset(batch), tuple(notes))


def _has_ext_files(root: str) -> bool:
    top = os.path.join(root, "consumequeue_ext")
    return any(listing(os.path.join(top, topic, queue)).files
               for topic in listing(top).folders
               for queue in listing(os.path.join(top, topic)).folders)


def _assumed(store: Store, known: set[str]) -> list[str]:
    """What no file of the store tells, and a broker's default stands in for."""
    notes = []
    if "consumequeue_file_size" not in known and not any(
            queue.files for queue in store.queues.values()):
        notes.append("no consumequeue file says their size: a broker's default is assumed "
                     "(--consumequeue-file-size)")
    if not {"index_slots", "index_max"} <= known and not store.index_listing.files:
        notes.append("no index file says their shape: a broker's default is assumed "
                     "(--index-slots, --index-max)")
    return notes
