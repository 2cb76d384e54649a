"""Findings: what a check has to say, one class of trouble per category.

A finding names structure, file and exact place, what is wrong in words, and the command that
answers it. Categories are a closed list, with severity, meaning and that command beside each
other: scripts filter by them, and docs/verify.md is made from them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

ERROR, WARNING, INFO = "error", "warning", "info"
REBUILT = frozenset({"consumequeue", "index"})
"""Structures that are made anew from the log."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. ``offset`` is the physical offset for the commitlog, else the position
    in the file; ``position`` is always the position in ``file``. ``count`` rows or records.
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

    def __post_init__(self) -> None:
        if not self.severity:
            object.__setattr__(self, "severity", CATEGORIES[self.category].severity)
        elif self.category not in CATEGORIES:
            raise KeyError(self.category)
        if self.position is None and self.structure != "commitlog":
            object.__setattr__(self, "position", self.offset)

    def as_dict(self) -> dict[str, Any]:
        """The finding object of the command-line contract, with our own fields behind."""
        order = ("category", "severity", "structure", "file", "offset", "length", "topic",
                 "queue_id", "queue_offset", "detail", "next", "position", "count")
        return {name: getattr(self, name) for name in order}

    def with_next(self, command: str | None) -> Finding:
        """A copy with another ``next``. There may be many: `replace` takes five times as long."""
        return Finding(self.category, self.structure, self.detail, self.file, self.offset,
                       self.length, self.topic, self.queue_id, self.queue_offset, self.position,
                       self.count, self.severity, command)

    @property
    def is_trouble(self) -> bool:
        """Whether it makes the store not ok (info does not)."""
        return self.severity != INFO




# -- the command that answers a finding -----------------------------------------------------------
#
# Only commands which exist, with their real arguments. What a repair may settle is answered by the
# diagnosis, which plans it; what a start would act on, by the prediction of that start; the
# rest by a look at the place. ``store`` is the root, quoted for a shell.

Remedy = Callable[[Finding, str], str | None]
_SHOW_CONFIG = "rmqctl config STORE"


def _look(finding: Finding, store: str) -> str | None:
    if finding.file is None or finding.position is None:
        return f"rmqctl info {store}" if finding.structure != "store" else None
    return f"rmqctl dump {shlex.quote(finding.file)} --at {finding.position} --hex"


def _preflight(_finding: Finding, store: str) -> str:
    return f"rmqctl preflight {store}"


def _diagnose(finding: Finding, store: str) -> str:
    """For what a repair may settle: `doctor` plans it, and names it where it changes anything."""
    return f"rmqctl {'preflight' if finding.severity == INFO else 'doctor'} {store}"


def _derived(finding: Finding, store: str) -> str | None:
    """For what is made anew from the log; a look at anything else."""
    return (_diagnose if finding.structure in REBUILT else _look)(finding, store)


def _of_log(finding: Finding, store: str) -> str | None:
    """For damage which the commitlog and other structures may have."""
    if finding.structure == "commitlog":
        return _diagnose(finding, store)
    return (_derived if finding.category.startswith("file-") else _look)(finding, store)


def _or_info(finding: Finding, store: str) -> str:
    if finding.structure == "commitlog" or finding.structure in REBUILT:
        return _diagnose(finding, store)
    return f"rmqctl info {store}"


def _by_hand(_finding: Finding, _store: str) -> None:
    """For what only a person can correct: a broker's configuration file."""


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
    """What the tiered files themselves still tell, and what is no damage and may be put right."""
    return f"rmqctl tiered recover {tier}"


def _rebuild_tier_index(finding: Finding, tier: str) -> str | None:
    """Index files are made anew from the messages, where they are damaged."""
    return None if finding.severity == INFO else _recover_tier(finding, tier)


def _look_into_tier(finding: Finding, tier: str) -> str | None:
    if finding.severity == INFO:
        return None
    if finding.file is not None and finding.position is not None and "://" not in finding.file:
        return f"rmqctl tiered dump {shlex.quote(finding.file)} --at {finding.position}"
    return f"rmqctl tiered ls {tier} --segments"


def advised(finding: Finding, root: str) -> Finding:
    """The finding with its ``next`` filled in, where there is something to look at."""
    store = shlex.quote(root)
    if finding.structure == "config":
        return finding.with_next((finding.next or _SHOW_CONFIG).replace("STORE", store, 1))
    return finding.with_next(CATEGORIES[finding.category].remedy(finding, store))


def advised_in_tier(finding: Finding, root: str) -> Finding:
    """`advised` for what lies in a tier; ``root``: its folder or URL."""
    tier = shlex.quote(root)
    # Files of a tier that cannot be read have the categories of a store's, with its own commands.
    remedy = (CATEGORIES[finding.category].remedy if finding.category.startswith("tiered-")
              else _look_into_tier)
    return finding.with_next(remedy(finding, tier))


# -- the closed list ------------------------------------------------------------------------------


class Category(NamedTuple):
    """``meaning`` is the line of docs/verify.md; ``remedy`` makes a finding's ``next``."""

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
        ERROR, "bytes inside the log that are no record; intact ones follow", _of_log),
    "physical-offset": Category(ERROR, "a whole record that says it lies elsewhere", _of_log),
    "ambiguous": Category(
        WARNING, "whole records beyond damage that may be messages or not", _diagnose),
    "cut-off": Category(INFO, "bytes beyond the end at which a repair has ended the log"),
    "torn-tail": Category(ERROR, "the log ends in the middle of a record", _preflight),
    "garbage-tail": Category(
        ERROR, "bytes beyond the end of the log that are no record", _preflight),
    "dledger-entry": Category(
        ERROR, "the head of a DLedger entry is damaged, the message in it is not", _preflight),
    "dledger-chain": Category(
        ERROR, "index or term of a DLedger entry do not follow those before", _preflight),
    "dledger-cut": Category(
        ERROR, "a DLedger log ends before the last entry that its checkpoint names", _preflight),
    "dledger-index": Category(
        WARNING, "units of DLedger's index do not lead to the entries", _preflight),
    "dledger-index-missing": Category(WARNING, "a DLedger log without its index", _preflight),
    "dledger-checkpoint": Category(WARNING, "DLedger's checkpoint cannot be read", _preflight),
    "dledger-uncommitted": Category(
        INFO, "entries that DLedger had not noted as committed yet"),
    "dledger-left-over": Category(
        INFO, "entries of an older time behind the end of a DLedger log that was cut"),
    "zero-gap": Category(ERROR, "zeros inside the log; intact records follow", _of_log),
    "not-judged": Category(
        INFO, "a structure lies in a form that is not read, or twice; or what belongs there "
        "cannot be told"),
    "log-cut": Category(
        ERROR, "the log ends before what consumequeue or index lead to", _preflight),
    "log-start": Category(
        WARNING, "log files before the first one are missing, but not as a broker deletes them",
        _preflight),
    "message-fields": Category(
        ERROR, "a consume queue entry contradicts topic, queue or queue offset", _by_topic_table),
    "fillers": Category(
        INFO, "messages that `recover` put in place of lost bytes", _read_fillers),
    "kept-damaged": Category(
        INFO, "damaged messages that `recover` kept", _read_kept),
    "lost-in-repair": Category(
        INFO, "messages or undecided records that an earlier repair dropped", _list_repairs),
    "header-born-port": Category(
        ERROR, "a born port that is none: clients drop it and what follows in a pull",
        _of_log),
    "header-store-port": Category(
        ERROR, "a store port that is none: clients drop it and what follows in a pull",
        _of_log),
    "header-sys-flag": Category(
        ERROR, "system flags name a compression that no version knows: clients give up there",
        _of_log),
    "property-number": Category(
        ERROR, "a property that brokers read as a number is none: they cut the log off there",
        _of_log),
    "header-flag-bits": Category(
        WARNING, "system flags with bits that no known release uses",
        _of_log),
    "header-born-time": Category(
        INFO, "a born time that is negative or years after the store time"),
    "header-reconsume-times": Category(
        WARNING, "an implausible number of deliveries: negative or above 65,536", _of_log),
    "header-prepared-offset": Category(
        WARNING, "the half message that a message ends would lie after it", _of_log),
    "header-queue-id": Category(
        ERROR, "a message in a queue with a negative number: no consumer asks for that one",
        _of_log),
    "header-queue-offset": Category(
        WARNING, "a queue offset in a prepared or rolled back message, which has none",
        _of_log),
    "header-store-time": Category(
        WARNING, "a store time before there were brokers, or years after its neighbours",
        _of_log),
    "early-times": Category(
        INFO, "messages stored before there were brokers: the clock was wrong"),
    "clock-back": Category(
        INFO, "store times go back by half a year or more: the clock was wrong"),
    "header-store-host": Category(
        INFO, "a single message that another host than its neighbours' stored"),
    "file-missing": Category(ERROR, "a file of a sequence is missing", _of_log),
    "file-size": Category(ERROR, "a file has not the size of its structure", _of_log),
    "file-empty": Category(WARNING, "a file of length zero", _derived),
    "file-name": Category(
        WARNING, "something in a structure's folder that does not belong there", _or_info),
    "file-unreadable": Category(ERROR, "a file or folder cannot be read", _derived),
    "file-changed": Category(WARNING, "a file shrank or vanished while it was read", _derived),
    "in-progress": Category(INFO, "the last record is being written by a running broker"),
    "cq-earlier": Category(
        INFO, "messages of a queue that was deleted and created again: no entry leads to them"),
    "cq-missing": Category(ERROR, "a queue has messages in the log but no consumequeue", _derived),
    "cq-missing-entry": Category(
        ERROR, "messages in the log have no entry in their consumequeue", _derived),
    "cq-behind": Category(ERROR, "the consumequeue ends before the log does", _derived),
    "cq-ahead": Category(ERROR, "entries point beyond the end of the log", _diagnose),
    "cq-wrong-offset": Category(ERROR, "an entry points to a place without its message", _derived),
    "cq-wrong-size": Category(ERROR, "the size in an entry does not match its message", _derived),
    "cq-wrong-time": Category(
        WARNING, "an entry in RocksDB does not match its message's store time", _derived),
    "cq-wrong-tag": Category(
        ERROR, "the tags code of an entry does not match its message", _derived),
    "cq-duplicate": Category(ERROR, "an entry repeats another entry's message", _derived),
    "cq-after-gap": Category(
        INFO, "the log lacks queue offsets; later entries are where a broker puts them"),
    "cq-out-of-order": Category(
        ERROR, "an entry points to the message of another queue offset", _derived),
    "cq-ext": Category(ERROR, "an extension unit is missing or contradicts its message", _derived),
    "cq-batch": Category(
        ERROR, "an entry of a batch consumequeue is damaged or contradicts its message", _derived),
    "cq-lost": Category(INFO, "entries that point to damaged or missing messages", _diagnose),
    "cq-database": Category(
        ERROR, "the data base of consumequeues is damaged, or a part of it", _diagnose),
    "cq-last": Category(
        ERROR, "what is noted as the last entry of a queue in RocksDB is not its last", _derived),
    "cq-copy": Category(
        WARNING, "the copy of the consumequeues in RocksDB says something else than their files"),
    "cq-gap": Category(
        WARNING, "a queue in RocksDB has no entries between others, and no message for them",
        _derived),
    "index-missing": Category(WARNING, "there are keys in the log but no index file", _derived),
    "index-header": Category(ERROR, "an index header contradicts the entries", _derived),
    "index-chain": Category(ERROR, "a hash chain is broken", _derived),
    "index-slot": Category(ERROR, "a hash slot does not lead to its newest entry", _derived),
    "index-entry": Category(
        ERROR, "an entry belongs to no key of the message it leads to", _derived),
    "index-ahead": Category(WARNING, "entries lead beyond the end of the log", _diagnose),
    "index-behind": Category(WARNING, "the newest keys are not in the index", _derived),
    "index-key-missing": Category(WARNING, "keys between indexed ones have no entry", _derived),
    "index-time": Category(WARNING, "an entry's time is not its message's", _derived),
    "index-unreadable": Category(ERROR, "an index file cannot be understood", _derived),
    "checkpoint-missing": Category(INFO, "there is no checkpoint", _diagnose),
    "checkpoint-damaged": Category(
        ERROR, "the checkpoint cannot be what a broker wrote", _diagnose),
    "checkpoint-zero": Category(
        INFO, "the checkpoint is all zero though there are messages", _diagnose),
    "checkpoint-ahead": Category(
        WARNING, "the checkpoint is newer than the newest message", _diagnose),
    "unclean-shutdown": Category(
        INFO, "the abort file is there: the last run did not end cleanly", _preflight),
    "config-unreadable": Category(ERROR, "a configuration file cannot be read"),
    "config-backup": Category(WARNING, "only the backup copy of a configuration file is good"),
    "config-oddity": Category(
        INFO, "a configuration file is readable but not as a broker writes it"),
    "config-database": Category(
        ERROR, "a RocksDB data base with configuration is damaged or missing"),
    "config-entry": Category(
        WARNING, "an entry of a configuration in RocksDB cannot be understood"),
    "config-import": Category(
        WARNING, "a JSON file beside a RocksDB configuration is taken over, or not, at a start"),
    "conf-name": Category(
        WARNING, "a name in broker.conf that the broker does not read", _by_hand),
    "conf-value": Category(
        ERROR, "a value in broker.conf that the broker reads differently than it looks", _by_hand),
    "conf-path": Category(WARNING, "a folder in broker.conf does not exist", _by_hand),
    "conf-store": Category(ERROR, "broker.conf contradicts the store", _by_hand),
    "conf-default": Category(
        INFO, "a setting that broker.conf leaves at its default", _by_hand),
    "config-topic": Category(
        WARNING, "a topic has messages but no configuration: clients get TOPIC_NOT_EXIST"),
    "config-emptied": Category(
        ERROR, "a configuration file lost all entries that its .bak or the store has"),
    "config-older": Category(
        WARNING, "a configuration file lacks entries of its .bak, or is older than it"),
    "config-offset": Category(
        WARNING, "a committed offset is beyond the end of its queue"),
    "config-read-queues": Category(
        WARNING, "readQueueNums or perm keeps consumers from reading messages"),
    "timer-log": Category(ERROR, "a timer log unit is damaged or leads nowhere"),
    "timer-wheel": Category(ERROR, "a timer wheel slot contradicts the timer log"),
    "timer-check": Category(ERROR, "the timer checkpoint contradicts the timer log"),
    "compaction": Category(ERROR, "a compaction log or its queue is damaged"),
    "epoch-file": Category(
        ERROR, "the epoch file does not match its CRC or count, or its entries are not in order",
        _epochs),
    "epoch-start": Category(
        ERROR, "an epoch begins beyond the end of the log, or where no record does", _epochs),
    "small-file": Category(WARNING, "a small file has not the content a broker writes"),
    "tiered-name": Category(
        ERROR, "a name in a tier has not the hash of what it names", _look_into_tier),
    "tiered-stray": Category(
        WARNING, "something in a tier that does not belong there", _look_into_tier),
    "tiered-gap": Category(
        ERROR, "bytes between two segments of a flat file are missing", _look_into_tier),
    "tiered-overlap": Category(
        WARNING, "a segment goes on beyond the start of the next one", _look_into_tier),
    "tiered-metadata-missing": Category(
        WARNING, "there is no metadata, or only its backup", _recover_tier),
    "tiered-metadata-damaged": Category(
        ERROR, "the metadata or an entry of it cannot be read", _recover_tier),
    "tiered-metadata-entry": Category(
        WARNING, "metadata and files disagree on what there is", _recover_tier),
    "tiered-metadata-size": Category(
        WARNING, "metadata has not the size of a segment", _recover_tier),
    "tiered-segment-missing": Category(
        ERROR, "a segment that metadata has bytes for is not there", _look_into_tier),
    "tiered-segment-short": Category(
        ERROR, "a segment has fewer bytes than were committed", _look_into_tier),
    "tiered-segment-time": Category(
        WARNING, "times in metadata that no message of the segment has", _recover_tier),
    "tiered-cq-missing": Category(
        ERROR, "a tiered commit log has messages but no consume queue", _recover_tier),
    "tiered-cq-torn": Category(ERROR, "a tiered consume queue is cut inside a unit", _recover_tier),
    "tiered-cq-behind": Category(
        WARNING, "a tiered consume queue ends long before its messages do", _recover_tier),
    "tiered-cq-ahead": Category(
        ERROR, "units lead beyond the end of the tiered commit log", _recover_tier),
    "tiered-cq-unit": Category(
        ERROR, "a unit leads to no message, or not to its own", _recover_tier),
    "tiered-cq-order": Category(
        ERROR, "units lead backwards in the tiered commit log", _recover_tier),
    "tiered-cq-wrong-tag": Category(
        WARNING, "a unit has not its message's tags code", _recover_tier),
    "tiered-cq-expired": Category(INFO, "units of messages that are expired", _look_into_tier),
    "tiered-message-fields": Category(
        ERROR, "a tiered message is of another queue or queue offset", _look_into_tier),
    "tiered-record": Category(ERROR, "a unit leads to bytes that are no record", _look_into_tier),
    "tiered-body-crc": Category(
        ERROR, "the body of a tiered message does not match its CRC", _look_into_tier),
    "tiered-shifted": Category(
        ERROR, "messages lie after their place: a broker repeated a torn write", _look_into_tier),
    "tiered-orphans": Category(
        INFO, "bytes of a tiered commit log that no unit leads to", _recover_tier),
    "tiered-index-unreadable": Category(
        ERROR, "a tiered index file cannot be understood", _rebuild_tier_index),
    "tiered-index-header": Category(
        ERROR, "the header of a tiered index file contradicts its items", _rebuild_tier_index),
    "tiered-index-slot": Category(
        ERROR, "a slot of a tiered index file does not lead to its items", _rebuild_tier_index),
    "tiered-index-chain": Category(
        ERROR, "a chain of an open index file is broken", _rebuild_tier_index),
    "tiered-index-hash": Category(
        ERROR, "an item of a tiered index file lies in another hash's slot", _rebuild_tier_index),
    "tiered-index-item": Category(
        WARNING, "an item leads to no message with its key", _rebuild_tier_index),
    "tiered-index-time": Category(
        WARNING, "an item's time is not its message's", _rebuild_tier_index),
    "tiered-index-expired": Category(
        INFO, "items of messages that are expired or removed", _look_into_tier),
    "tiered-index-missing": Category(
        INFO, "keys of tiered messages that no index file has", _recover_tier),
    "tiered-lost": Category(
        WARNING, "messages that neither the tier nor the local store has", _look_into_tier),
    "tiered-differs": Category(
        ERROR, "a message in the tier is not the one in the local store", _look_into_tier),
    "tiered-oddity": Category(
        INFO, "what some version of a broker leaves over; harmless", _look_into_tier),
}
