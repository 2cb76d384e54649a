"""Findings: what a check has to say, one class of trouble per category.

A finding names structure, file and exact place, what is wrong in words, and the command that
answers it. Categories are a closed list: scripts filter by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (ERROR, WARNING, INFO)

CATEGORIES: dict[str, tuple[str, str]] = {
    # category: (severity, meaning)
    "body-crc": (ERROR, "a message body does not match its CRC"),
    "property-crc": (ERROR, "a message does not match its appended property CRC"),
    "record-damaged": (ERROR, "bytes inside the log that are no record; intact ones follow"),
    "physical-offset": (ERROR, "a whole record that says it lies elsewhere"),
    "torn-tail": (ERROR, "the log ends in the middle of a record"),
    "garbage-tail": (ERROR, "bytes behind the end of the log that are no record"),
    "zero-gap": (ERROR, "zeros inside the log; intact records follow"),
    "log-cut": (ERROR, "the log ends before what consumequeue or index lead to"),
    "message-fields": (ERROR, "a consumequeue row contradicts topic, queue or queue offset"),
    "file-missing": (ERROR, "a file of a sequence is missing"),
    "file-size": (ERROR, "a file has not the size of its structure"),
    "file-empty": (WARNING, "a file of length zero"),
    "file-name": (WARNING, "something in a structure's folder that does not belong there"),
    "file-unreadable": (ERROR, "a file or folder cannot be read"),
    "file-changed": (WARNING, "a file shrank or vanished while it was read"),
    "in-progress": (INFO, "the last record is being written by a running broker"),
    "cq-missing": (ERROR, "a queue has messages in the log but no consumequeue"),
    "cq-missing-entry": (ERROR, "messages in the log have no row in their consumequeue"),
    "cq-behind": (ERROR, "the consumequeue ends before the log does"),
    "cq-ahead": (ERROR, "rows lead behind the end of the log"),
    "cq-wrong-offset": (ERROR, "a row leads to a place where its message is not"),
    "cq-wrong-size": (ERROR, "a row has not its message's size"),
    "cq-wrong-tag": (ERROR, "a row has not its message's tags code"),
    "cq-duplicate": (ERROR, "a row repeats another row's message"),
    "cq-out-of-order": (ERROR, "a row holds the message of another queue offset"),
    "cq-ext": (ERROR, "an extension unit is missing or contradicts its message"),
    "cq-batch": (ERROR, "a row of a batch consumequeue is damaged or contradicts its message"),
    "cq-lost": (INFO, "rows that lead to damaged or missing messages"),
    "index-missing": (WARNING, "there are keys in the log but no index file"),
    "index-header": (ERROR, "an index header contradicts the entries"),
    "index-chain": (ERROR, "a hash chain is broken"),
    "index-slot": (ERROR, "a hash slot does not lead to its newest entry"),
    "index-entry": (ERROR, "an entry belongs to no key of the message it leads to"),
    "index-ahead": (WARNING, "entries lead behind the end of the log"),
    "index-behind": (WARNING, "the newest keys are not in the index"),
    "index-key-missing": (WARNING, "keys between indexed ones have no entry"),
    "index-time": (WARNING, "an entry's time is not its message's"),
    "index-unreadable": (ERROR, "an index file cannot be understood"),
    "checkpoint-missing": (WARNING, "there is no checkpoint"),
    "checkpoint-damaged": (ERROR, "the checkpoint cannot be what a broker wrote"),
    "checkpoint-zero": (WARNING, "the checkpoint is all zero though there are messages"),
    "checkpoint-ahead": (WARNING, "the checkpoint is newer than the newest message"),
    "unclean-shutdown": (INFO, "the abort file is there: the last run did not end cleanly"),
    "config-unreadable": (ERROR, "a configuration file cannot be read"),
    "config-backup": (WARNING, "only the backup copy of a configuration file is good"),
    "config-oddity": (INFO, "a configuration file is readable but not as a broker writes it"),
    "timer-log": (ERROR, "a timer log unit is damaged or leads nowhere"),
    "timer-wheel": (ERROR, "a timer wheel slot contradicts the timer log"),
    "timer-check": (ERROR, "the timer checkpoint contradicts the timer log"),
    "compaction": (ERROR, "a compaction log or its queue is damaged"),
    "epoch-file": (ERROR, "the epoch file does not match its CRC or count"),
    "small-file": (WARNING, "a small file has not the content a broker writes"),
    "tiered-name": (ERROR, "a name in a tier has not the hash of what it names"),
    "tiered-stray": (WARNING, "something in a tier that does not belong there"),
    "tiered-gap": (ERROR, "bytes between two segments of a flat file are missing"),
    "tiered-overlap": (WARNING, "a segment goes on behind the start of the next one"),
    "tiered-metadata-missing": (WARNING, "there is no metadata, or only its backup"),
    "tiered-metadata-damaged": (ERROR, "the metadata or an entry of it cannot be read"),
    "tiered-metadata-entry": (WARNING, "metadata and files disagree on what there is"),
    "tiered-metadata-size": (WARNING, "metadata has not the size of a segment"),
    "tiered-segment-missing": (ERROR, "a segment that metadata has bytes for is not there"),
    "tiered-segment-short": (ERROR, "a segment has fewer bytes than were committed"),
    "tiered-segment-time": (WARNING, "times in metadata that no message of the segment has"),
    "tiered-cq-missing": (ERROR, "a tiered commit log has messages but no consume queue"),
    "tiered-cq-torn": (ERROR, "a tiered consume queue is cut inside a unit"),
    "tiered-cq-behind": (WARNING, "a tiered consume queue ends long before its messages do"),
    "tiered-cq-ahead": (ERROR, "units lead behind the end of the tiered commit log"),
    "tiered-cq-unit": (ERROR, "a unit leads to no message, or not to its own"),
    "tiered-cq-order": (ERROR, "units lead backwards in the tiered commit log"),
    "tiered-cq-wrong-tag": (WARNING, "a unit has not its message's tags code"),
    "tiered-cq-expired": (INFO, "units of messages that are expired"),
    "tiered-message-fields": (ERROR, "a tiered message is of another queue or queue offset"),
    "tiered-record": (ERROR, "a unit leads to bytes that are no record"),
    "tiered-body-crc": (ERROR, "the body of a tiered message does not match its CRC"),
    "tiered-shifted": (ERROR, "messages lie behind their place: a broker repeated a torn write"),
    "tiered-orphans": (INFO, "bytes of a tiered commit log that no unit leads to"),
    "tiered-index-unreadable": (ERROR, "a tiered index file cannot be understood"),
    "tiered-index-header": (ERROR, "the header of a tiered index file contradicts its items"),
    "tiered-index-slot": (ERROR, "a slot of a tiered index file does not lead to its items"),
    "tiered-index-chain": (ERROR, "a chain of an open index file is broken"),
    "tiered-index-hash": (ERROR, "an item of a tiered index file lies in another hash's slot"),
    "tiered-index-item": (WARNING, "an item leads to no message with its key"),
    "tiered-index-time": (WARNING, "an item's time is not its message's"),
    "tiered-index-expired": (INFO, "items of messages that are expired or removed"),
    "tiered-index-missing": (INFO, "keys of tiered messages that no index file has"),
    "tiered-lost": (WARNING, "messages that neither the tier nor the local store has"),
    "tiered-differs": (ERROR, "a message in the tier is not the one in the local store"),
    "tiered-oddity": (INFO, "what some version of a broker leaves behind; harmless"),
}


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
            object.__setattr__(self, "severity", CATEGORIES[self.category][0])
        elif self.category not in CATEGORIES:
            raise KeyError(self.category)
        if self.position is None and self.structure != "commitlog":
            object.__setattr__(self, "position", self.offset)

    def as_dict(self) -> dict[str, Any]:
        """The finding object of the command-line contract, with our own fields behind."""
        found = asdict(self)
        order = ("category", "severity", "structure", "file", "offset", "length", "topic",
                 "queue_id", "queue_offset", "detail", "next", "position", "count")
        return {name: found[name] for name in order}

    @property
    def is_trouble(self) -> bool:
        """Whether it makes the store not ok (info does not)."""
        return self.severity != INFO


Findings = Iterator[Finding]
