"""The five parts of a prediction: the effects of a startup on the broker, its log, queues, index,
and consumers.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.broker.conf.follow import SettingEffect
    from rmqctl.broker.recovery import DispatchRange
    from rmqctl.checks.consumers import Consumers, QueueLosses
    from rmqctl.checks.metadata.queues import OffsetBeyondEnd
    from rmqctl.formats.local.checkpoint import CheckpointRecord
    from rmqctl.store.files import StoreFile


# -- parts of the parts ---------------------------------------------------------------------------


class QueueChange(NamedTuple):
    """A queue whose messages are dispatched again.

    ``added``: number of new entries.
    ``kept``: names of the remaining files. The broker appends after the last of these files.
    """

    kind: str
    topic: str
    queue_id: int
    added: int
    kept: tuple[str, ...]

    @property
    def target(self) -> str:
        return f"{self.kind}/{self.topic}/{self.queue_id}"


class Noted(NamedTuple):
    """The metadata of consume queues in RocksDB.

    ``queues``: for each queue, the queue offset after the last entry, and the physical offset of
    the last message.
    ``checkpoint``: physical offset up to which the log is dispatched.
    """

    queues: dict[tuple[str, int], tuple[int, int]]
    checkpoint: int


class LostMessage(NamedTuple):
    """An intact message that the start truncates."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int


@dataclass(frozen=True, slots=True)
class SecondStart:
    """A clean startup after the predicted one, if only this second startup truncates the log.

    The recovery begins at ``start_file``, reaches older damage (``stop_reason``), and truncates the
    log at ``truncate_to``.
    """

    start_file: str
    start_reason: str
    truncate_to: int
    stop_reason: str
    messages_lost: int
    lost_by_topic: dict[str, int]

    @property
    def sentence(self) -> Phrase:
        """Return a sentence about what a broker loses at its second start."""
        return Phrase(
            "The second, clean start truncates the log at {offset} and loses {count:,} message "
            "that this start keeps: {why}",
            "The second, clean start truncates the log at {offset} and loses {count:,} messages "
            "that this start keeps: {why}", count=self.messages_lost, offset=self.truncate_to,
            why=self.stop_reason)

    def as_dict(self) -> dict[str, Any]:
        return {"start_file": self.start_file, "start_reason": self.start_reason,
                "truncate_to": self.truncate_to, "stop_reason": self.stop_reason,
                "messages_lost": self.messages_lost, "lost_by_topic": self.lost_by_topic}


class DiskUse(NamedTuple):
    """The cleaner's actions.

    ``used_ratio``: disk usage; None if the disk was not judged, for the reason ``not_judged``.
    ``deletes_files``: number of log files that the cleaner deletes in the first minutes because the
    disk is full.
    ``expires_files``: number of files older than ``fileReservedTime``.
    ``deletes_messages``, ``expires_messages``: numbers of messages in these files (None: unknown).
    """

    used_ratio: float | None
    clean_ratio: float
    refuse_ratio: float
    deletes_files: int = 0
    deletes_messages: int | None = 0
    expires_files: int = 0
    expires_messages: int | None = 0
    reserved_hours: int = 72
    delete_when: str = "04"
    expires_at_once: bool = False
    not_judged: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return self._asdict()


@dataclass(slots=True)
class CutMessages:
    """The intact messages that the startup truncates.

    ``earliest``, ``latest``: their store times (ms); None if unknown.
    """

    count: int = 0
    undecided: int = 0
    """Number of undecided records among ``count``."""
    by_topic: dict[str, int] = field(default_factory=dict)
    first: list[LostMessage] = field(default_factory=list)
    """The first of these messages."""
    earliest: int | None = None
    latest: int | None = None


@dataclass(slots=True)
class GoneMessages:
    """The messages that consume queues, index or committed offsets show, but that the log no longer
    contains. Messages of an unknown topic are not counted by topic.

    ``earliest``, ``latest``: range of the store times (ms) of all of them; None: unknown.
    """

    count: int = 0
    by_offsets: int = 0
    """Number of lost messages that only committed offsets prove."""
    at_end: int = 0
    """Number of lost messages that only a checkpoint proves."""
    at_least: bool = False
    """True if more messages may be lost than counted: the checkpoint contains only the time of the
    last message.
    """
    by_topic: dict[str, int] = field(default_factory=dict)
    earliest: int | None = None
    latest: int | None = None
    places: tuple[int, int] | None = None
    """Lowest and highest physical offset of the lost messages that entries or the index show."""


# -- the five parts -------------------------------------------------------------------------------


@dataclass(slots=True)
class BrokerEffect:
    """The broker as a whole: whether it starts, its configuration, the files that it deletes, and
    what the disk allows.
    """

    recovery: str
    refusals: list[str] = field(default_factory=list)
    """Reasons why the broker does not start; empty if it starts."""
    unopened: bool = False
    """True if a damaged consume queue database prevents the start; `recover` rebuilds it."""
    configuration: list[SettingEffect] = field(default_factory=list)
    """Effects of the broker's configuration file on this start."""
    conf_path: str = ""
    assumed: dict[str, Any] = field(default_factory=dict)
    """Assumed values of settings that the configuration file does not set."""
    log_unopened: bool = False
    """True if the broker opens another log: the messages of `LogEffect.cut` remain on disk, but the
    broker does not read them.
    """
    checkpoint: CheckpointRecord | None = None
    doomed: list[str] = field(default_factory=list)
    """Paths of the files and folders that the broker deletes from log, consume queues and index, in
    the order of deletion. Paths are relative to the root, or absolute.
    """
    differences: list[str] = field(default_factory=list)
    """Sentences on how other releases would treat this store."""
    second_start: SecondStart | None = None
    """The next start (after a clean shutdown), if it loses messages that this start keeps; else
    None.
    """
    refuses_writes: bool = False
    """True if the broker rejects messages because its disk is full."""
    disk: DiskUse | None = None
    """Actions of the cleaner; None if they were not predicted."""


@dataclass(slots=True)
class LogEffect:
    """The log before and after the startup. Offsets are physical, in bytes.

    ``truncate_to``: the end of the log after the startup; None if the broker does not start.
    ``superseded``: intact messages beyond the end of the log, left by an earlier truncation. Their
    queue offsets now belong to other messages.
    """

    loaded: list[StoreFile] = field(default_factory=list)
    """The log files that the broker loads."""
    start_file: str | None = None
    """The file at which recovery begins, for ``start_reason``."""
    start_reason: str = ""
    truncate_to: int | None = None
    stop_reason: str = ""
    cut_off: bool = False
    """True if a repair has already truncated the log at ``truncate_to``."""
    leaves: bool = False
    """True if any bytes, entries or index entries remain beyond the end of the log."""
    dispatch: list[DispatchRange] = field(default_factory=list)
    cut: CutMessages = field(default_factory=CutMessages)
    gone: GoneMessages = field(default_factory=GoneMessages)
    messages: int | None = None
    """Number of intact messages in the log; None if the log was not read completely."""
    undecided: int = 0
    """Number of records in the examined part of the log that may be messages or part of a damaged
    message's body.
    """
    replaced: int | None = None
    """Number of messages with a matching CRC that are fillers, or that a repair kept with a damaged
    body.
    """
    damaged: int | None = None
    """Number of messages with damaged properties. Brokers do not detect this damage, but rmqctl
    does not count these messages as intact.
    """
    undecodable: int = 0
    """Number of intact messages whose header clients cannot decode (`header_rules.UNDECODABLE`)."""
    superseded: int = 0
    shadowed: int = 0
    """Number of messages that a broker may not find because log files have the same name or
    overlap (it reads only one of these files), or because a file is in another folder.
    """
    found_in: str = ""
    """Folders of the log, if a broker reads them only with a setting that is not known; else
    empty.
    """


@dataclass(slots=True)
class QueueEffect:
    """The consume queues before and after the startup.

    ``unreachable``: messages that remain in the log without a consume queue entry. None: only a
    part of the log was searched.
    ``lost``: queue entries that are deleted because the log is empty.
    """

    table: dict[str, int] = field(default_factory=dict)
    """The next queue offset of every plain queue: ``{"TopicTest-3": 17}``."""
    changes: list[QueueChange] = field(default_factory=list)
    added: int = 0
    cut: int = 0
    lost: int = 0
    unreachable: int | None = 0
    unreachable_by_topic: dict[str, int] = field(default_factory=dict)
    noted: Noted | None = None
    """Metadata of the consume queue database after the start; None if the queues are in files."""
    losses: dict[tuple[str, int], QueueLosses] | None = None
    """The losses of each queue as ranges of queue offsets; None if queues were not judged."""


@dataclass(slots=True)
class IndexEffect:
    """The index before and after the startup. ``discarded``: number of files."""

    discarded: int = 0
    entries: int = 0
    duplicates: int = 0
    lost: int = 0
    """Number of entries of discarded index files that are not recreated."""
    uncounted: int = 0
    """Number of discarded index files whose lost entries cannot be counted."""
    begin: int = 0
    """Physical offset before which messages get no index entry even if they are dispatched."""


@dataclass(slots=True)
class ConsumerEffect:
    """The consumer groups and their committed offsets."""

    groups: Consumers | None = None
    """The effect on consumer groups; None if queues or groups were not judged."""
    beyond_end: list[OffsetBeyondEnd] = field(default_factory=list)
    unclear: list[OffsetBeyondEnd] = field(default_factory=list)
    """Committed offsets for which it is unknown whether messages before them are lost."""
    notes: list[str] = field(default_factory=list)
    """The notes of the prediction that are about committed offsets."""
