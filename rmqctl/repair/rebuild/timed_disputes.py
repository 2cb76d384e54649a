"""Find timed messages whose REAL_TOPIC does not match the hash in their unit of the timer log.

A broker delivers a timed message to its REAL_TOPIC, but no CRC covers properties. The unit was
written when the message was intact. A rebuild of the timer log from a damaged REAL_TOPIC would
destroy the only proof of its value. If physical offset and size in the unit match the message,
there are three cases:

* The REAL_TOPIC does not exist, and changing one of its bytes gives an existing topic with the hash
  in the unit: the message is corrected.
* The REAL_TOPIC exists, and no such change is possible: the unit is rebuilt.
* All other cases are undecided: neither the message nor the unit is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace

from rmqctl.checks.findings import Finding
from rmqctl.errors import StoreIOError
from rmqctl.formats.local import javahash
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record
from rmqctl.formats.timer.timer_log import UNIT, UNIT_SIZE, UnitRecord
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.rebuild.disputes import ChangedByte, IntactRecords, single_changes
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import load_one
from rmqctl.store.store import Store

_FIELD = UNIT.field("topic_hash").offset
_REASON = "its unit in the timer log has the hash of this topic"


@dataclass(slots=True)
class TimedDisputes:
    """Disputes between timed messages and their units.

    ``corrected``: corrected bytes; with them, messages match their units. ``topics``: corrected
    topics of these messages, by physical offset. ``open``: physical offsets of messages in
    undecided disputes.
    """

    corrected: list[ChangedByte] = field(default_factory=list)
    topics: dict[int, str] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    @property
    def places(self) -> set[int]:
        """Return the physical offsets of messages whose units are right, or may be right."""
        return {*self.topics, *self.open}


def timed_disputes(store: Store, parts: Sequence[LogPart],
                   findings: Iterable[Finding]) -> TimedDisputes:
    """Settle the disputes in the findings of ``verify`` about topic hashes in units. ``parts``: the
    files of the repaired log.
    """
    settled = TimedDisputes()
    topics: set[str] | None = None
    records = IntactRecords(store, parts)
    for finding in findings:
        unit = disputed_unit(finding)
        record = None if unit is None else records.at(unit.physical_offset, unit.message_size)
        if unit is None or record is None:
            continue
        topics = _topics(store) if topics is None else topics
        _judge(settled, record, unit.topic_hash, topics)
    return settled


def disputed_unit(finding: Finding) -> UnitRecord | None:
    """Return the unit that a finding about a topic hash refers to; None for any other finding."""
    if finding.category != "timer-log" or finding.file is None or finding.offset is None or (
            finding.cause != "topic_hash"):
        return None
    try:
        with FileSource(finding.file) as source:
            return UNIT.decode(source.read(finding.offset - _FIELD, UNIT_SIZE))
    except StoreIOError:
        return None


def _judge(settled: TimedDisputes, record: Record, wanted: int, topics: set[str]) -> None:
    def fits(properties: bytes) -> bool:
        topic = real_topic(properties)
        return topic in topics and javahash.string_hash(topic) == wanted

    own = real_topic(record.properties)
    changes = [*single_changes(record, (props.REAL_TOPIC,), fits), *_renamed(record, fits)]
    if own in topics and not changes:
        return
    place = record.physical_offset
    if own not in topics and len(changes) == 1:
        change = replace(changes[0], reason=_REASON)
        settled.corrected.append(change)
        settled.topics[place] = real_topic(_with(record, change))
    else:
        settled.open.add(place)


def _renamed(record: Record, fits: Callable[[bytes], bool]) -> Iterator[ChangedByte]:
    """Yield each change of one byte that turns another property's name into REAL_TOPIC and after
    which ``fits`` returns true.
    """
    raw, name = record.properties, props.REAL_TOPIC.encode()
    start = record.physical_offset + record.total_size - len(raw)
    at = 0
    for part in raw.split(props.PROPERTY_SEPARATOR.encode()):
        title = part[:len(name)]
        odd = [number for number, pair in enumerate(zip(title, name, strict=False))
               if pair[0] != pair[1]]
        if len(title) == len(name) and len(odd) == 1:
            place = at + odd[0]
            change = ChangedByte(record.physical_offset, start + place, raw[place], name[odd[0]],
                                 "")
            if fits(_with(record, change)):
                yield change
        at += len(part) + 1


def _with(record: Record, change: ChangedByte) -> bytes:
    """Return the properties of a message after a change of one byte."""
    raw = record.properties
    at = change.place - (record.physical_offset + record.total_size - len(raw))
    return raw[:at] + bytes([change.after]) + raw[at + 1:]


def real_topic(properties: bytes) -> str:
    """Return the topic to which a timed message is delivered; "" if unknown."""
    return props.parse(properties.decode("utf-8", "replace")).get(props.REAL_TOPIC, "")


def _topics(store: Store) -> set[str]:
    """Return the existing topics: configured ones, and those with consume queues."""
    value = load_one(store, "topics.json").value
    table = value.get("topicConfigTable") if isinstance(value, dict) else None
    return {topic for topic, _ in store.queues.readable} | (
        set(table) if isinstance(table, dict) else set())
