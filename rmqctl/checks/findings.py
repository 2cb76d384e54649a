"""Findings: each describes one problem and has one of a fixed set of categories.

A finding names the structure, the file and the position, describes the problem, and gives a command
that helps. Each category has a severity, a meaning and a command. Scripts filter findings by
category; the list in docs/explanation/verify.md is generated from the categories.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

from rmqctl.lazy_dataclass import dataclass

ERROR, WARNING, INFO = "error", "warning", "info"
REBUILT = frozenset({"consumequeue", "index"})
"""Structures that are rebuilt from the log."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding.

    * ``offset``: the physical offset for the commitlog, otherwise the position in the file
    * ``position``: always the position in ``file``
    * ``count``: number of affected entries or records
    * ``cause``: a detail that a repair needs, usually the name of the damaged field; it is never
      shown
    """

    category: str
    structure: str
    detail: str
    file: str | None = None
    offset: int | None = None
    length: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    position: int | None = None
    count: int = 1
    severity: str = ""
    next: str | None = None
    cause: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.severity:
            object.__setattr__(self, "severity", CATEGORIES[self.category].severity)
        elif self.category not in CATEGORIES:
            raise KeyError(self.category)
        if self.position is None and self.structure != "commitlog":
            object.__setattr__(self, "position", self.offset)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object of the finding."""
        order = ("category", "severity", "structure", "file", "offset", "length", "topic",
                 "queue_id", "queue_offset", "detail", "next", "position", "count")
        return {name: getattr(self, name) for name in order}

    def with_next(self, command: str | None) -> Finding:
        """Return a copy with another ``next``; `dataclasses.replace` would be five times slower."""
        return Finding(self.category, self.structure, self.detail, self.file, self.offset,
                       self.length, self.topic, self.queue_id, self.queue_offset, self.position,
                       self.count, self.severity, command, self.cause)

    @property
    def is_trouble(self) -> bool:
        """Return whether the finding is a problem: any severity except info."""
        return self.severity != INFO




# -- the command that answers a finding -----------------------------------------------------------
#
# Only commands that exist, with their real arguments. Problems that a repair may fix get the
# diagnosis, which plans it; what a start would change, the prediction of that start; the rest,
# a look at the place. ``store`` is the root, quoted for a shell.

Remedy = Callable[[Finding, str], str | None]
_SHOW_CONFIG = "rmqctl config STORE"


def _look(finding: Finding, store: str) -> str | None:
    if finding.file is None or finding.position is None:
        return f"rmqctl info {store}" if finding.structure != "store" else None
    return f"rmqctl dump {shlex.quote(finding.file)} --at {finding.position} --hex"


def _preflight(_finding: Finding, store: str) -> str:
    return f"rmqctl preflight {store}"


def _diagnose(finding: Finding, store: str) -> str:
    """Return the `doctor` command; for a finding of severity info, the `preflight` command.

    `doctor` plans a repair, and recommends the repair if it changes anything.
    """
    return f"rmqctl {'preflight' if finding.severity == INFO else 'doctor'} {store}"


def _derived(finding: Finding, store: str) -> str | None:
    """Return `doctor` for a structure that is rebuilt from the log, `_look` for any other."""
    return (_diagnose if finding.structure in REBUILT else _look)(finding, store)


def _of_log(finding: Finding, store: str) -> str | None:
    """Return the command for a category of damage that occurs in the commitlog and in other
    structures.
    """
    if finding.structure == "commitlog":
        return _diagnose(finding, store)
    return (_derived if finding.category.startswith("file-") else _look)(finding, store)


def _or_info(finding: Finding, store: str) -> str:
    if finding.structure == "commitlog" or finding.structure in REBUILT:
        return _diagnose(finding, store)
    return f"rmqctl info {store}"


def _by_hand(_finding: Finding, _store: str) -> None:
    """Return None: only a person can fix a problem in a broker's configuration file."""


def _epochs(finding: Finding, store: str) -> str | None:
    return f"rmqctl config {store} epochs" if finding.position is None else _look(finding, store)


def _read_fillers(_finding: Finding, store: str) -> str:
    return f"rmqctl read {store} --where property.RMQCTL=lost"


def _read_kept(_finding: Finding, store: str) -> str:
    return f"rmqctl read {store} --where property.RMQCTL=damaged"


def _list_repairs(_finding: Finding, store: str) -> str:
    return f"rmqctl undo {store} --list"


def _by_topic_table(finding: Finding, store: str) -> str:
    if finding.topic is not None and finding.structure == "commitlog":
        return f"rmqctl query offset {store} --phy {finding.offset}"
    return f"rmqctl recover table {store}"


def _recover_tier(_finding: Finding, tier: str) -> str:
    """Return the command that rebuilds tiered metadata, queues or index from the tiered files."""
    return f"rmqctl tiered recover {tier}"


def _rebuild_tier_index(finding: Finding, tier: str) -> str | None:
    """Return the command that rebuilds damaged index files from the messages; None for an
    informational finding.
    """
    return None if finding.severity == INFO else _recover_tier(finding, tier)


def _look_into_tier(finding: Finding, tier: str) -> str | None:
    if finding.severity == INFO:
        return None
    if finding.file is not None and finding.position is not None and "://" not in finding.file:
        return f"rmqctl tiered dump {shlex.quote(finding.file)} --at {finding.position}"
    return f"rmqctl tiered ls {tier} --segments"


def advised(finding: Finding, root: str) -> Finding:
    """Return a finding about a store, with its ``next`` command; ``root``: the store's folder."""
    store = shlex.quote(root)
    if finding.structure == "config":
        return finding.with_next((finding.next or _SHOW_CONFIG).replace("STORE", store, 1))
    return finding.with_next(CATEGORIES[finding.category].remedy(finding, store))


def advised_in_tier(finding: Finding, root: str) -> Finding:
    """Return the finding of a tier with its ``next`` command; ``root``: the folder or URL of the
    tier.
    """
    tier = shlex.quote(root)
    # Unreadable files of a tier have the categories of a store's, with commands of their own.
    remedy = (CATEGORIES[finding.category].remedy if finding.category.startswith("tiered-")
              else _look_into_tier)
    return finding.with_next(remedy(finding, tier))


# -- the closed list ------------------------------------------------------------------------------


class Category(NamedTuple):
    """A category of findings. ``meaning``: the line that `explain` shows; ``remedy``: returns the
    ``next`` command of a finding.
    """

    severity: str
    meaning: str
    remedy: Remedy = _look


CATEGORIES: dict[str, Category] = {
    "body-crc": Category(ERROR, "a message body does not match its CRC", _of_log),
    "property-crc": Category(
        ERROR, "a message does not match its appended property CRC", _of_log),
    "property-damaged": Category(
        ERROR, "the properties of a message are damaged; its body is intact", _of_log),
    "property-crc-missing": Category(
        WARNING, "a message without an appended property CRC among others that have one",
        _of_log),
    "record-damaged": Category(
        ERROR, "invalid bytes in the log, followed by intact records", _of_log),
    "physical-offset": Category(ERROR, "an intact record with a wrong physical offset", _of_log),
    "ambiguous": Category(
        WARNING, "records after damage that may belong to a message body", _diagnose),
    "cut-off": Category(INFO, "bytes after the offset at which a repair truncated the log"),
    "torn-tail": Category(ERROR, "last record is incomplete", _preflight),
    "garbage-tail": Category(
        ERROR, "invalid bytes after the last record", _preflight),
    "dledger-entry": Category(
        ERROR, "DLedger entry header damaged; the message inside is intact", _preflight),
    "dledger-chain": Category(
        ERROR, "index or term of a DLedger entry is not the next in sequence", _preflight),
    "dledger-cut": Category(
        ERROR, "a DLedger log ends before the last entry in its checkpoint", _preflight),
    "dledger-index": Category(
        WARNING, "DLedger index units do not point to the entries", _preflight),
    "dledger-index-missing": Category(WARNING, "the index of a DLedger log is missing", _preflight),
    "dledger-checkpoint": Category(WARNING, "the DLedger checkpoint cannot be read", _preflight),
    "dledger-uncommitted": Category(
        INFO, "DLedger entries not yet marked as committed"),
    "dledger-left-over": Category(
        INFO, "stale DLedger entries after the end of the log"),
    "zero-gap": Category(ERROR, "zeroed range in the log, followed by intact records", _of_log),
    "not-judged": Category(
        INFO, "unsupported, duplicate or ambiguous structure"),
    "log-cut": Category(
        ERROR, "the log ends before messages that consume queue or index entries point to",
        _preflight),
    "log-start": Category(
        WARNING, "the first log files are missing, and no broker deleted them",
        _preflight),
    "message-fields": Category(
        ERROR, "a consume queue entry contradicts topic, queue or queue offset", _by_topic_table),
    "fillers": Category(
        INFO, "fillers that `recover` wrote in place of lost messages", _read_fillers),
    "kept-damaged": Category(
        INFO, "damaged messages that `recover` kept", _read_kept),
    "lost-in-repair": Category(
        INFO, "messages that an earlier repair could not restore, or discarded", _list_repairs),
    "header-born-port": Category(
        ERROR, "invalid born port: clients discard this message and the rest of the pull",
        _of_log),
    "header-store-port": Category(
        ERROR, "invalid store port: clients discard this message and the rest of the pull",
        _of_log),
    "header-sys-flag": Category(
        ERROR, "unknown compression: clients discard this message and the rest of the pull",
        _of_log),
    "property-number": Category(
        ERROR, "non-numeric value in a numeric property: brokers truncate the log here",
        _of_log),
    "header-flag-bits": Category(
        WARNING, "system flags with bits that no known release uses",
        _of_log),
    "header-born-time": Category(
        INFO, "a born time that is negative or years after the store time"),
    "header-reconsume-times": Category(
        WARNING, "an implausible number of deliveries: negative or above 65,536", _of_log),
    "header-prepared-offset": Category(
        WARNING, "preparedTransactionOffset is after the message itself", _of_log),
    "header-queue-id": Category(
        ERROR, "negative queue id: no consumer reads the message",
        _of_log),
    "header-queue-offset": Category(
        WARNING, "a prepared or rolled back message has a queue offset",
        _of_log),
    "header-store-time": Category(
        WARNING, "store time is before 2012, or years after the neighboring messages",
        _of_log),
    "early-times": Category(
        INFO, "store times before 2012: the clock was wrong"),
    "clock-back": Category(
        INFO, "store times go back by half a year or more: the clock was wrong"),
    "header-store-host": Category(
        INFO, "the store host of one message differs from its neighbors"),
    "file-missing": Category(ERROR, "a file in a sequence is missing", _of_log),
    "file-size": Category(ERROR, "wrong file size", _of_log),
    "file-empty": Category(WARNING, "empty file", _derived),
    "file-name": Category(
        WARNING, "unexpected file or folder in the store", _or_info),
    "file-unreadable": Category(ERROR, "a file or folder cannot be read", _derived),
    "file-changed": Category(WARNING, "a file shrank or disappeared while it was being read",
                             _derived),
    "in-progress": Category(INFO, "the last record is being written by a running broker"),
    "cq-earlier": Category(
        INFO, "messages of a queue that was deleted and recreated: no entry points to them"),
    "cq-missing": Category(ERROR, "a queue has messages in the log but no consume queue", _derived),
    "cq-missing-entry": Category(
        ERROR, "messages in the log have no consume queue entry", _derived),
    "cq-behind": Category(ERROR, "the consume queue ends before the log", _derived),
    "cq-ahead": Category(ERROR, "entries point beyond the end of the log", _diagnose),
    "cq-wrong-offset": Category(ERROR, "an entry does not point to its message", _derived),
    "cq-wrong-size": Category(ERROR, "entry size differs from the message's size", _derived),
    "cq-wrong-time": Category(
        WARNING, "store time in a RocksDB entry differs from the message's", _derived),
    "cq-wrong-tag": Category(
        ERROR, "entry tags code does not match the message", _derived),
    "cq-duplicate": Category(ERROR, "two entries point to the same message", _derived),
    "cq-after-gap": Category(
        INFO, "queue offsets are missing from the log, but the consume queue has no gap there"),
    "cq-out-of-order": Category(
        ERROR, "an entry points to a message with another queue offset", _derived),
    "cq-ext": Category(ERROR, "an extension unit is missing or does not match its message",
                       _derived),
    "cq-batch": Category(
        ERROR, "a batch consume queue entry is damaged or does not match its message", _derived),
    "cq-lost": Category(INFO, "entries that point to damaged or missing messages", _diagnose),
    "cq-database": Category(
        ERROR, "the consume queue database is damaged", _diagnose),
    "cq-last": Category(
        ERROR, "RocksDB has a wrong last entry for a queue", _derived),
    "cq-copy": Category(
        WARNING, "the RocksDB copy of the consume queues differs from their files"),
    "cq-gap": Category(
        WARNING, "a gap in a RocksDB queue, with no messages for it in the log",
        _derived),
    "index-missing": Category(WARNING, "messages have keys, but the index is missing", _derived),
    "index-header": Category(ERROR, "an index header does not match its entries", _derived),
    "index-chain": Category(ERROR, "a hash chain is broken", _derived),
    "index-slot": Category(ERROR, "a hash slot does not point to its newest entry", _derived),
    "index-entry": Category(
        ERROR, "an index entry matches no key of its message", _derived),
    "index-ahead": Category(WARNING, "index entries point beyond the end of the log", _diagnose),
    "index-behind": Category(WARNING, "the newest keys are not in the index", _derived),
    "index-key-missing": Category(WARNING, "some keys have no index entry", _derived),
    "index-time": Category(WARNING, "index entry time differs from the message's store time",
                           _derived),
    "index-unreadable": Category(ERROR, "unreadable index file", _derived),
    "checkpoint-missing": Category(INFO, "the checkpoint is missing", _diagnose),
    "checkpoint-damaged": Category(
        ERROR, "the checkpoint is invalid", _diagnose),
    "checkpoint-zero": Category(
        INFO, "the checkpoint is all zeros although there are messages", _diagnose),
    "checkpoint-ahead": Category(
        WARNING, "the checkpoint is newer than the newest message", _diagnose),
    "unclean-shutdown": Category(
        INFO, "the abort file exists: the last shutdown was unclean", _preflight),
    "config-unreadable": Category(ERROR, "a configuration file cannot be read"),
    "config-backup": Category(WARNING, "a configuration file is damaged; its backup is intact"),
    "config-oddity": Category(
        INFO, "a configuration file differs from what brokers write"),
    "config-database": Category(
        ERROR, "a RocksDB configuration database is damaged or missing"),
    "config-entry": Category(
        WARNING, "an entry in a RocksDB configuration database is invalid"),
    "config-import": Category(
        WARNING, "a start imports, or ignores, a JSON file next to a RocksDB configuration"),
    "conf-name": Category(
        WARNING, "broker.conf has a setting that the broker does not read", _by_hand),
    "conf-value": Category(
        ERROR, "the broker reads a value in broker.conf in an unexpected way", _by_hand),
    "conf-path": Category(WARNING, "a folder in broker.conf does not exist", _by_hand),
    "conf-store": Category(ERROR, "broker.conf does not fit the store", _by_hand),
    "conf-default": Category(
        INFO, "broker.conf does not set this; the default applies", _by_hand),
    "config-topic": Category(
        WARNING, "a topic has messages but no configuration: clients get TOPIC_NOT_EXIST"),
    "config-emptied": Category(
        ERROR, "a configuration file lost all the entries that its .bak or the store has"),
    "config-older": Category(
        WARNING, "a configuration file is older than its .bak, or has fewer entries"),
    "config-delays": Category(
        ERROR, "delayOffset.json is later than the log: delayed messages are not delivered"),
    "config-offset": Category(
        WARNING, "a committed offset is beyond the end of its queue"),
    "config-read-queues": Category(
        WARNING, "readQueueNums or perm keeps consumers from reading messages"),
    "timer-log": Category(ERROR, "a timer log unit is damaged or points to no message"),
    "timer-wheel": Category(ERROR, "a timer wheel slot does not match the timer log"),
    "timer-check": Category(ERROR, "the timer checkpoint does not match the timer log"),
    "compaction": Category(ERROR, "a compaction log or its queue is damaged"),
    "epoch-file": Category(
        ERROR, "the epoch file does not match its CRC or count, or its entries are not in order",
        _epochs),
    "epoch-start": Category(
        ERROR, "an epoch starts beyond the end of the log or inside a record", _epochs),
    "small-file": Category(WARNING, "a small file does not contain what a broker writes"),
    "tiered-name": Category(
        ERROR, "the hash in a tiered name does not match the name", _look_into_tier),
    "tiered-stray": Category(
        WARNING, "unexpected file or folder in the tier", _look_into_tier),
    "tiered-gap": Category(
        ERROR, "bytes are missing between two segments of a flat file", _look_into_tier),
    "tiered-overlap": Category(
        WARNING, "a segment overlaps the next segment", _look_into_tier),
    "tiered-metadata-missing": Category(
        WARNING, "the metadata is missing, or only its backup exists", _recover_tier),
    "tiered-metadata-damaged": Category(
        ERROR, "the metadata, or an entry in it, cannot be read", _recover_tier),
    "tiered-metadata-entry": Category(
        WARNING, "metadata and files list different segments", _recover_tier),
    "tiered-metadata-size": Category(
        WARNING, "the size in the metadata differs from the segment's", _recover_tier),
    "tiered-segment-missing": Category(
        ERROR, "a segment with bytes in the metadata is missing", _look_into_tier),
    "tiered-segment-short": Category(
        ERROR, "a segment has fewer bytes than committed", _look_into_tier),
    "tiered-segment-time": Category(
        WARNING, "no message in the segment has the times in the metadata", _recover_tier),
    "tiered-cq-missing": Category(
        ERROR, "a tiered commit log has messages but no consume queue", _recover_tier),
    "tiered-cq-torn": Category(ERROR, "a tiered consume queue ends inside a unit", _recover_tier),
    "tiered-cq-behind": Category(
        WARNING, "a tiered consume queue ends long before its messages", _recover_tier),
    "tiered-cq-ahead": Category(
        ERROR, "units point beyond the end of the tiered commit log", _recover_tier),
    "tiered-cq-unit": Category(
        ERROR, "a unit does not point to its message", _recover_tier),
    "tiered-cq-order": Category(
        ERROR, "units point backwards in the tiered commit log", _recover_tier),
    "tiered-cq-wrong-tag": Category(
        WARNING, "unit tags code does not match the message", _recover_tier),
    "tiered-cq-expired": Category(INFO, "units of expired messages", _look_into_tier),
    "tiered-message-fields": Category(
        ERROR, "a tiered message belongs to another queue or queue offset", _look_into_tier),
    "tiered-record": Category(ERROR, "a unit points to invalid bytes", _look_into_tier),
    "tiered-body-crc": Category(
        ERROR, "tiered message body CRC mismatch", _look_into_tier),
    "tiered-shifted": Category(
        ERROR, "messages are after their expected position: a broker repeated a partial write",
        _look_into_tier),
    "tiered-orphans": Category(
        INFO, "no unit points to these bytes of a tiered commit log", _recover_tier),
    "tiered-index-unreadable": Category(
        ERROR, "unreadable tiered index file", _rebuild_tier_index),
    "tiered-index-header": Category(
        ERROR, "the header of a tiered index file does not match its items", _rebuild_tier_index),
    "tiered-index-slot": Category(
        ERROR, "a slot of a tiered index file does not point to its items", _rebuild_tier_index),
    "tiered-index-chain": Category(
        ERROR, "a hash chain in an open index file is broken", _rebuild_tier_index),
    "tiered-index-hash": Category(
        ERROR, "an item of a tiered index file is in the slot of another hash",
        _rebuild_tier_index),
    "tiered-index-item": Category(
        WARNING, "an item does not point to a message with its key", _rebuild_tier_index),
    "tiered-index-time": Category(
        WARNING, "item time differs from the message's", _rebuild_tier_index),
    "tiered-index-expired": Category(
        INFO, "items of expired or deleted messages", _look_into_tier),
    "tiered-index-missing": Category(
        INFO, "keys of tiered messages are in no index file", _recover_tier),
    "tiered-lost": Category(
        WARNING, "messages missing from both the tier and the local store", _look_into_tier),
    "tiered-differs": Category(
        ERROR, "the tier and the local store have different messages", _look_into_tier),
    "tiered-oddity": Category(
        INFO, "leftover of a specific broker version; harmless", _look_into_tier),
}
