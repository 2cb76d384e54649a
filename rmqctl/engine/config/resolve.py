"""The settings for a store that is there: what is given, remembered, found, or a default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from rmqctl.engine.config.profile import PROFILES
from rmqctl.engine.config.settings import Settings
from rmqctl.errors import RefusedError
from rmqctl.formats.local import batch_consume_queue, consume_queue
from rmqctl.store.files import StoreFile, common_size, listing
from rmqctl.store.store import Sizes, Store
from rmqctl.store.store_settings import path_of, recall

NAMES = frozenset(one.name for one in fields(Settings))
_SHAPE = ("index_slots", "index_max")


def resolve(root: str, given: Mapping[str, Any], commitlog_dirs: Iterable[str] = (), *,
            files: bool = True) -> Settings:
    """The settings for the store at ``root``.

    A value of ``given`` (names of `Settings`; None: not given) wins over ``store.json``, which
    wins over what the files of the store say, which wins over a broker's defaults. Without
    ``files`` these are not asked: for who needs no sizes. UsageError for a version that is not
    known, NotAStoreError, RefusedError when ``store.json`` cannot be relied on: to guess at sizes
    could ruin the store.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    known = recall(root)
    if known.notes:
        raise RefusedError(f"{known.notes[0]}; nothing is written as long as it is not known what "
                           "the store was made for (mend or remove this file)")
    kept = {name: value for name, value in known.values.items() if name in NAMES}
    version = kept.get("version")
    if "version" not in chosen and version is not None and version not in PROFILES:
        raise RefusedError(f"{path_of(root)}: there is no profile for version {version!r}; name "
                           f"one of {', '.join(PROFILES)}")
    if not set(_SHAPE) <= chosen.keys() | kept.keys():
        kept = {name: value for name, value in kept.items() if name not in _SHAPE}
    sizes = Sizes(index_slots=chosen.get("index_slots"), index_max=chosen.get("index_max"))
    with Store.open(root, commitlog_dirs, sizes) as store:
        found = found_in(store, kept.keys() | chosen.keys()) if files else {}
    settings = Settings(**{**found, **kept, **chosen})
    _ = settings.profile
    return settings


def found_in(store: Store, known: Iterable[str] = ()) -> dict[str, int]:
    """The sizes which the files of a store say, by the names of `Settings`.

    What is in ``known`` need not be looked for.
    """
    skip = set(known)
    found: dict[str, int | None] = {}
    if "commitlog_file_size" not in skip:
        found["commitlog_file_size"] = common_size(store.log.files)
    if "consumequeue_file_size" not in skip:
        found["consumequeue_file_size"] = _queue_size(
            (queue.files for queue in store.queues.values()), consume_queue.UNIT_SIZE)
    if "batch_consumequeue_file_size" not in skip:
        found["batch_consumequeue_file_size"] = _queue_size(
            (queue.files for queue in store.batch_queues.values()), batch_consume_queue.UNIT_SIZE)
    if "consumequeue_ext_file_size" not in skip:
        found["consumequeue_ext_file_size"] = _queue_size(_ext_files(store), 1)
    if not skip.issuperset(_SHAPE):
        shape = next((index.shape for index in store.indexes_newest_first()), None)
        if shape is not None:
            found |= zip(_SHAPE, shape, strict=True)
    return {name: size for name, size in found.items() if size is not None and name not in skip}


def _queue_size(queues: Iterable[list[StoreFile]], unit: int) -> int | None:
    """The size most queues have; those of several files tell it for certain, and so go first."""
    sure: Counter[int] = Counter()
    likely: Counter[int] = Counter()
    for files in queues:
        size = common_size(files)
        if size and size % unit == 0:
            (sure if len(files) > 1 else likely)[size] += 1
    best = (sure or likely).most_common(1)
    return best[0][0] if best else None


def _ext_files(store: Store) -> Iterable[list[StoreFile]]:
    top = store.path("consumequeue_ext")
    for topic in listing(top).folders:
        for queue in listing(store.path("consumequeue_ext", topic)).folders:
            yield listing(store.path("consumequeue_ext", topic, queue)).files
