"""The index side of a dispatch: what is fed, how far it came, and what goes up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from rmqctl.errors import FormatError, RefusedError
from rmqctl.formats.tiered import names
from rmqctl.tiered.dispatch.commit import Committer
from rmqctl.tiered.dispatch.dispatch import Dispatch
from rmqctl.tiered.dispatch.progress import IndexProgress
from rmqctl.tiered.dispatch.request import Request
from rmqctl.tiered.dispatch.settings import TierSettings
from rmqctl.tiered.files.reader import open_reader
from rmqctl.tiered.files.writer import open_feeder
from rmqctl.tiered.flat_queue import FlatQueue
from rmqctl.tiered.index.index_file import local_names
from rmqctl.tiered.tier import Tier

if TYPE_CHECKING:
    from rmqctl.tiered.index.writer import IndexFeed


def opened_feed(request: Request, settings: TierSettings, run: Dispatch,
                clock: Callable[[], int]) -> IndexFeed:
    """The broker's local index files, to be fed."""
    from rmqctl.tiered.index.writer import IndexFeed

    newest = max((entry.begin_timestamp for table in run.metadata.segments[names.INDEX].values()
                  for entry in table.values() if entry.size), default=0)
    return IndexFeed(os.path.join(request.home, names.LOCAL_INDEX_FOLDER), settings.shape, clock,
                     newest)


def progress_of(request: Request, cluster: str, broker: str, notes: list[str]) -> IndexProgress:
    """How far this tier's messages are indexed; what is odd about the note goes to ``notes``."""
    # A home has one metadata file, and that is of one tier, wherever it was moved.
    progress = IndexProgress(request.home, f"{cluster}/{broker}")
    notes += progress.load()
    return progress


def queues_of(run: Dispatch, tier: Tier) -> Iterator[tuple[FlatQueue, int]]:
    """All queues of the broker, with the ids of their topics."""
    for name, queue in tier.found.queues.items():
        topic = run.metadata.topics.get(name.topic)
        if (name.cluster, name.broker) == (run.options.cluster, run.options.broker) and topic:
            yield queue, topic.topic_id


def finish_sealing(request: Request, settings: TierSettings, run: Dispatch,
                    clock: Callable[[], int]) -> int:
    """Takes the newest local index file away where a killed run had already uploaded it."""
    from rmqctl.tiered.index import compaction

    folder = os.path.join(request.home, names.LOCAL_INDEX_FOLDER)
    present = [one for one in local_names(folder) if one not in names.OLD_INDEX_NAMES]
    if not present:
        return 0
    paths = [os.path.join(folder, one) for one in present]
    try:
        with (closing(open_reader(request.tier)) as reader,
              compaction.opened_as(settings.shape)(paths[-1]) as file):
            if not compaction.is_uploaded(reader, run.metadata, run.options.cluster,
                                          run.options.broker, file):
                return 0
    except (FormatError, RefusedError):  # told where the file is fed or uploaded
        return 0
    return upload_index(request, settings, run, paths, clock)


def upload_index(request: Request, settings: TierSettings, run: Dispatch, paths: list[str],
                  clock: Callable[[], int]) -> int:
    """Rearranges and uploads index files that receive nothing any more; how many."""
    from rmqctl.tiered.index import compaction

    save = Committer(run.metadata, request.metadata_path, request.home, clock).save
    count = 0
    with closing(open_feeder(request.tier)) as feeder:
        for one in compaction.upload_files(
                feeder, run.metadata, run.options.cluster, run.options.broker, paths,
                compaction.opened_as(settings.shape), request.home, clock, save):
            count += one.status != "empty"
    return count
