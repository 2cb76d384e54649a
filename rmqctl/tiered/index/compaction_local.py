"""The local index files of a broker that are to go up: which, whose, and how they are opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field

from rmqctl.errors import RefusedError, UsageError
from rmqctl.formats.tiered import names
from rmqctl.scan import malloc_tuning
from rmqctl.tiered.dispatch.progress import IndexProgress
from rmqctl.tiered.dispatch.settings import recall
from rmqctl.tiered.files import metadata_file
from rmqctl.tiered.files.lock import held
from rmqctl.tiered.files.reader import is_url
from rmqctl.tiered.files.writer import open_feeder
from rmqctl.tiered.index import compaction
from rmqctl.tiered.index.compaction import Uploaded
from rmqctl.tiered.index.index_file import IndexFile, known_slots, local_names
from rmqctl.tiered.tier import Tier


@dataclass(slots=True)
class LocalFiles:
    """What was asked for, and what of it is there. ``notes``: in words what is left alone."""

    home: str
    metadata_path: str
    cluster: str
    broker: str
    paths: list[str]
    slots: int | None
    max_items: int | None
    notes: list[str] = field(default_factory=list)

    def opening(self, path: str) -> AbstractContextManager[IndexFile]:
        """One of the files. FormatError, StoreIOError."""
        return compaction.opened(path, self.slots, self.max_items)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a run is to do. ``everything``: the newest file, too, as at a clean shutdown.

    ``slots`` and ``max_items`` win over what is remembered beside the tier or known from uploaded
    files. ``cluster`` and ``broker`` are needed where the tier has several, or nothing yet.
    """

    root: str
    metadata: str | None = None
    cluster: str | None = None
    broker: str | None = None
    everything: bool = False
    slots: int | None = None
    max_items: int | None = None


def run(wanted: Wanted, now: Callable[[], int], note: Callable[[str], None]) -> Iterator[Uploaded]:
    """Rearranges and uploads the files, one after the other; each is done when it is given out.

    StoreHeldError while a broker runs; UsageError, NotAStoreError, RefusedError, FormatError,
    StoreIOError. After any end the next run goes on where this one stopped.
    """
    malloc_tuning.keep()
    with Tier.open(wanted.root, wanted.metadata) as tier:
        root, home = tier.name, _home(tier)
    with held(root, home), Tier.open(wanted.root, wanted.metadata) as tier:
        files = _files(tier, wanted)
        for text in files.notes:
            note(text)
        metadata = tier.metadata
        with closing(open_feeder(root)) as feeder:
            yield from compaction.upload_files(
                feeder, metadata, files.cluster, files.broker, files.paths, files.opening, home,
                now, lambda: metadata_file.save(files.metadata_path, metadata, home))


def rehearse(wanted: Wanted, now: Callable[[], int],
             note: Callable[[str], None]) -> Iterator[Uploaded]:
    """What `run` would do. Nothing is changed, nothing is locked."""
    with Tier.open(wanted.root, wanted.metadata) as tier:
        files = _files(tier, wanted)
        for text in files.notes:
            note(text)
        ahead: set[int] = set()
        for path in files.paths:
            with files.opening(path) as file:
                yield compaction.plan(tier.reader, tier.metadata, files.cluster, files.broker,
                                      file, ahead, now())


def _home(tier: Tier) -> str:
    if tier.home is None or tier.metadata_path is None:
        raise UsageError(f"{tier.name}: no {names.METADATA_NAME} is found beside it, so the local "
                         "root of its broker is not known: name the file with --metadata")
    if is_url(tier.home):
        raise UsageError(f"{tier.home}: the local root of a broker must be a folder: name its "
                         f"{names.METADATA_NAME} with --metadata")
    return tier.home


def _files(tier: Tier, wanted: Wanted) -> LocalFiles:
    home = _home(tier)
    assert tier.metadata_path is not None
    fault = tier.metadata_error or next(
        (f"{tier.metadata_path}: {one.path}: {one.reason}" for one in tier.metadata.faults), None)
    if fault:
        raise RefusedError(f"{fault}; let `rmqctl tiered recover` mend the metadata first")
    cluster, broker = _owner(tier, wanted)
    folder = os.path.join(home, names.LOCAL_INDEX_FOLDER)
    found = local_names(folder)
    old = [one for one in found if one in names.OLD_INDEX_NAMES]
    present = [one for one in found if one not in old]
    if not wanted.everything:
        present = present[:-1]
    remembered, notes = recall(tier.reader)
    waiting = _waiting_for_dispatch(tier, home, (cluster, broker), present)
    if waiting:
        notes.append(f"a `tiered dispatch` was interrupted: {', '.join(waiting)} in {folder} stay "
                     "until it is run again, which completes them")
        present = [one for one in present if one not in waiting]
    files = LocalFiles(
        home, tier.metadata_path.removesuffix(".bak"), cluster, broker,
        [os.path.join(folder, one) for one in present],
        wanted.slots or remembered.get("index_slots") or known_slots(tier, broker),
        wanted.max_items or remembered.get("index_max"), notes)
    files.notes += [f"{os.path.join(folder, one)}: of a broker of 5.1.x, left alone" for one in old]
    return files


def _waiting_for_dispatch(tier: Tier, home: str, owner: tuple[str, str],
                          present: list[str]) -> list[str]:
    """The files in which an interrupted dispatch has to put right what it had begun."""
    progress = IndexProgress(home, "/".join(owner))
    progress.load()
    ends = {(name.topic, name.queue_id): queue.commit_offset
            for name, queue in tier.found.queues.items() if (name.cluster, name.broker) == owner}
    if progress.position is None or not progress.is_unfinished(ends):
        return []
    return [one for one in present if int(one) >= progress.position[0]]


def _owner(tier: Tier, wanted: Wanted) -> tuple[str, str]:
    """The one cluster and broker that the local files can belong to. UsageError."""
    there = {(one.cluster, one.broker) for one in tier.found.queues} | set(tier.found.indexes)
    fitting = sorted((cluster, broker) for cluster, broker in there
                     if wanted.cluster in (None, cluster) and wanted.broker in (None, broker))
    if len(fitting) == 1:
        return fitting[0]
    if not fitting and wanted.cluster and wanted.broker:
        return wanted.cluster, wanted.broker
    what = ", ".join(f"{broker} of {cluster}" for cluster, broker in fitting or sorted(there))
    raise UsageError(f"{tier.name}: whose index files these are is not clear ({what or 'no broker'}"
                     " is there): name --broker and --cluster")
