"""A tier opened read-only: queues, uploaded and local index files, metadata (tiered.md §1, §17.1).

Files take precedence over metadata, which may be stale and is often lost first. Unreadable parts
are reported as problems (texts). All other parts are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import field
from functools import cache, partial
from typing import TYPE_CHECKING

from rmqctl import vfs
from rmqctl.errors import FormatError, NotAStoreError, StoreIOError, UsageError
from rmqctl.ext.tiered.files.metadata_file import (
    behind_url,
    broker_root_of,
    exists,
    find_metadata,
    tier_root,
)
from rmqctl.ext.tiered.files.opening import open_reader
from rmqctl.ext.tiered.files.reader import TierReader
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue, QueueName
from rmqctl.ext.tiered.index.index_file import COMPACTED, TierIndexFile, uploaded
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import read as read_metadata
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import Closing
from rmqctl.store.files import Trouble

if TYPE_CHECKING:
    from rmqctl.ext.tiered.witness import KnownItems
    from rmqctl.scan.source import Witness


@dataclass(slots=True)
class TierContents:
    """The queues and index files found in the folders of a tier, and problems with the folders."""

    queues: dict[QueueName, FlatQueue] = field(default_factory=dict)
    indexes: dict[tuple[str, str], FlatFile] = field(default_factory=dict)
    problems: list[Trouble] = field(default_factory=list)

    @property
    def owners(self) -> set[tuple[str, str]]:
        """The owners of all queues and index files, as (cluster, broker)."""
        return {(name.cluster, name.broker) for name in self.queues} | set(self.indexes)


class Tier(Closing):
    """A tier root. A context manager.

    ``metadata_path``: the metadata file, or None if it does not exist.
    ``metadata``: content of the metadata file; empty if unreadable.
    ``metadata_error``: why the metadata file is unreadable, or None.
    ``broker_root``: the broker's local root, with ``config/`` and ``tiered_index_file/``; None if
    unknown.
    """

    def __init__(self, reader: TierReader, metadata_path: str | None,
                 broker_root: str | None) -> None:
        self.reader = reader
        self.name = reader.name
        self.metadata_path = metadata_path
        self.broker_root = broker_root
        self.metadata = meta.Metadata()
        self.metadata_error: str | None = None
        self.metadata_bytes: bytes | None = None
        self._contents: TierContents | None = None
        self._items: dict[tuple[str, str], KnownItems] = {}
        if metadata_path is not None:
            self._load(metadata_path)

    @classmethod
    def open(cls, root: str, metadata: str | None = None) -> Tier:
        """Open the tier in a folder or at a URL. Raises: NotAStoreError, UsageError."""
        root = tier_root(root)
        reader = open_reader(root)
        path = find_metadata(root) if metadata is None else metadata
        if metadata is not None and not exists(metadata):
            reader.close()
            raise UsageError(f"{metadata}: no such file")
        tier = cls(reader, path, broker_root_of(path))
        try:
            if not any(names.parse_cluster(entry.name)
                       for entry in reader.list("") if entry.is_folder):
                raise NotAStoreError(f"{root}: not a tier: contains no cluster folder (8 hex "
                                     "digits, '_', the cluster)")
        except BaseException:
            tier.close()
            raise
        return tier

    def _load(self, path: str) -> None:
        try:
            self.metadata_bytes = _whole(path)
            self.metadata = read_metadata(self.metadata_bytes)
        except OSError as error:
            self.metadata_error = str(StoreIOError.from_oserror(error, path, "read"))
        except StoreIOError as error:
            self.metadata_error = str(error)
        except FormatError as error:
            error.file = path
            self.metadata_error = str(error)

    # -- what is there ----------------------------------------------------------------------------

    @property
    def contents(self) -> TierContents:
        """Queues and index files of all folders. The folders are listed only once."""
        if self._contents is None:
            self._contents = _look(self.reader)
            for name, queue in self._contents.queues.items():
                with_witness(queue, partial(self._known_items, name.cluster, name.broker))
        return self._contents

    @property
    def problems(self) -> list[Trouble]:
        return self.contents.problems

    def unreadable(self, topic: str | None = None) -> Iterator[str]:
        """Yield a text for each unreadable folder on the path to a topic (None: to any topic)."""
        for problem in self.problems:
            if problem.unreadable and (topic is None or problem.path.split("/")[2:3] in (
                    [], [topic])):
                yield problem.reason

    def queues(self, topic: str | None = None, queue_id: int | None = None,
               broker: str | None = None) -> Iterator[FlatQueue]:
        """Yield the matching queues, sorted by cluster, broker, topic and queue id."""
        for name, queue in sorted(self.contents.queues.items(), key=lambda item: (
                item[0].cluster, item[0].broker, item[0].topic, item[0].queue_id)):
            if (topic in (None, name.topic) and queue_id in (None, name.queue_id)
                    and broker in (None, name.broker)):
                yield queue

    def queue(self, topic: str, queue_id: int, broker: str | None = None) -> FlatQueue | None:
        """Return a queue; None if it does not exist.
        Raises: UsageError if several brokers have a queue of this name; StoreIOError if a folder
        that may contain the queue cannot be read.
        """
        queues = list(self.queues(topic, queue_id, broker))
        for problem in () if queues else self.problems:
            steps = problem.path.split("/")
            if problem.unreadable and all(name in (None, step) for name, step in zip(
                    (broker, topic, str(queue_id)), steps[1:], strict=False)):
                raise StoreIOError(problem.reason)
        if len(queues) > 1:
            brokers = ", ".join(sorted({queue.name.broker for queue in queues}))
            raise UsageError(f"{topic}/{queue_id} exists for several brokers ({brokers}): choose "
                             "one with --broker")
        return queues[0] if queues else None

    def indexes(self, broker: str | None = None) -> Iterator[tuple[str, FlatFile]]:
        """Yield (broker, flat file of its uploaded index files) for each broker."""
        for (_, owner), flat in sorted(self.contents.indexes.items()):
            if broker in (None, owner):
                yield owner, flat

    @property
    def local_index_folder(self) -> str | None:
        """The broker's folder of index files that are not uploaded; None if it is unknown or
        missing.
        """
        if self.broker_root is None:
            return None
        folder = os.path.join(self.broker_root, names.LOCAL_INDEX_FOLDER)
        return folder if vfs.isdir(folder) else None

    def known_slots(self, broker: str | None = None) -> int | None:
        """Return the number of hash slots of the uploaded files; None if unknown. Pass the number
        when you open a file that does not contain it.
        """
        for _, flat in self.indexes(broker):
            for file in uploaded(flat):
                if isinstance(file, TierIndexFile) and file.form == COMPACTED:
                    return file.shape.slots
        return None

    def _known_items(self, cluster: str, broker: str) -> KnownItems:
        from rmqctl.ext.tiered.witness import KnownItems

        items = self._items.get((cluster, broker))
        if items is None:
            items = self._items[cluster, broker] = KnownItems(
                self.reader, index_folder(cluster, broker), self.local_index_folder)
        return items

    def close(self) -> None:
        for items in self._items.values():
            items.close()
        self.reader.close()


def index_folder(cluster: str, broker: str) -> str:
    """Return the folder of a broker's uploaded index files, below the tier root."""
    return f"{names.cluster_folder(cluster)}/{names.index_path(broker)}/{names.INDEX}"


def with_witness(queue: FlatQueue,
                 items: Callable[[], KnownItems] | None = None) -> FlatQueue:
    """Give a queue a witness and return the queue. The queue's units and its broker's index items
    are evidence of the offsets of its messages.
    """
    def witness() -> Witness:
        from rmqctl.ext.tiered.witness import QueueWitness

        return QueueWitness(queue, None if items is None else items())

    queue.commit_log.witness = cache(witness)
    return queue


def _whole(path: str) -> bytes:
    """Return the content of a file or URL. Raises: OSError, StoreIOError."""
    if not behind_url(path):
        with vfs.open_bytes(path) as file:
            return file.read()
    folder, _, name = path.rpartition("/")
    with closing(open_reader(folder)) as reader:
        return reader.read(name, 0, reader.size(name) or 0)


def _look(reader: TierReader) -> TierContents:
    contents = TierContents()
    for cluster, path in _folders(reader, "", contents):
        parsed = names.parse_cluster(cluster)
        if parsed is None:
            if cluster not in (".rmqctl", "config", names.LOCAL_INDEX_FOLDER):
                contents.problems.append(Trouble(path, "not a cluster folder"))
            continue
        if not parsed[1]:
            contents.problems.append(Trouble(path, "the hash in the cluster folder's name is "
                                                 "wrong", misnamed=True))
        for broker, below in _folders(reader, path, contents):
            for topic, under in _folders(reader, below, contents):
                _queues_of(reader, (parsed[0], broker, topic), under, contents)
    return contents


def _queues_of(reader: TierReader, owner: tuple[str, str, str], path: str,
               contents: TierContents) -> None:
    cluster, broker, topic = owner
    for number, folder in _folders(reader, path, contents):
        if not (number.isascii() and number.isdigit()) or str(int(number)) != number:
            contents.problems.append(Trouble(folder, "not a queue folder"))
            continue
        flat = {}
        for kind, place in _folders(reader, folder, contents):
            if kind not in names.KINDS:
                contents.problems.append(Trouble(place, "not a file type of a tier"))
                continue
            try:
                flat[kind] = FlatFile.open(reader, place)
            except StoreIOError as error:
                contents.problems.append(Trouble(place, str(error), unreadable=True))
                continue
            contents.problems.extend(Trouble(f"{place}/{name}", "not a segment name")
                                         for name in flat[kind].strange)
        if names.INDEX in flat:
            contents.indexes[cluster, broker] = flat.pop(names.INDEX)
        if flat:
            name = QueueName(cluster, broker, topic, int(number))
            log, rows = (flat.get(kind) or FlatFile(reader, f"{folder}/{kind}", kind)
                         for kind in (names.COMMIT_LOG, names.CONSUME_QUEUE))
            contents.queues[name] = FlatQueue(name, log, rows)


def _folders(reader: TierReader, path: str,
             contents: TierContents) -> Iterator[tuple[str, str]]:
    try:
        entries = reader.list(path)
    except StoreIOError as error:
        contents.problems.append(Trouble(path, str(error), unreadable=True))
        return
    for entry in entries:
        below = f"{path}/{entry.name}" if path else entry.name
        if entry.is_folder:
            yield entry.name, below
        elif path or entry.name not in (names.METADATA_NAME, f"{names.METADATA_NAME}.bak",
                                         "lock"):
            contents.problems.append(Trouble(below, "unexpected file: only folders belong here"))
