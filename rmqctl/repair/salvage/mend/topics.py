"""Correct the damaged topic of a message, with the index or with the queues.

No body CRC covers a topic. A topic that no broker can have written is recognised as such. Any other
topic is suspected if its message is the only message of its queue, or is out of order in its queue.

If an entry points to the message, `contradict` has already used that entry. Otherwise the original
topic is found with one of these structures:

* The index, if it has entries for the message's physical offset. With the original topic, the
  message's keys have the hashes of these entries. The original must be a topic that the store
  knows, or the stored topic with one bit corrected.
* The queues, if the index has no entries for the message. The original is the only topic of the
  same length with a queue from which exactly this message is missing: between two messages of the
  queue or, in a log that begins at 0, at the end of the queue.

A stored topic that could be valid is replaced with the help of the queues only if three things are
true. The store does not know this topic, the topic differs from the original in one byte, and its
message is not the first of a queue.

A known topic is doubtful if its message is out of order and is missing from another topic.
Nothing is corrected if the evidence is contradictory or several topics are possible.

In benchmarks/stage_yields.py, 59 of 59 topics with one changed byte are restored in stores that
have an index but no consume queues.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from rmqctl.checks.verify.context import known_topics
from rmqctl.damage.evidence import ENDLESS, FoundRow, Gatherer, Hole, HoleEntries, holes_with
from rmqctl.damage.records import Records, unless_crc_differs
from rmqctl.damage.survey.survey import Survey
from rmqctl.engine.put.admission import folder_fault
from rmqctl.formats.local import append_crc
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import MIN_SIZE, Record, build
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.overlay import LogPart
from rmqctl.store.store import Store

_OF_BROKERS = (props.SCHEDULE_TOPIC, props.HALF_TOPIC, props.OP_HALF_TOPIC, props.TIMER_TOPIC)
_MAX_ASKED, _MAX_HOLES = 1000, 1 << 20
"""Limits for checks of topics.

* ``_MAX_ASKED``: maximum number of suspects, and of topics of one length.
* ``_MAX_HOLES``: maximum number of gaps in queues.
"""
_WINDOW = 16 << 20
_BETWEEN, _BEHIND, _OPEN = 3, 2, 1
"""Positions at which a message may be missing from a queue: between two messages of the queue; at
the end of the queue; at an unknown position.
"""


class Suspect(NamedTuple):
    """A message that is the only one in its run of queue offsets, so its topic may be wrong."""

    place: int
    key: QueueKey
    queue_offset: int


class CorrectedTopic(NamedTuple):
    """The corrected topic of a message, and the reason."""

    topic: bytes
    reason: str


def is_impossible(topic: bytes) -> bool:
    """Return whether no broker can have written a topic.

    Such a topic is not a valid folder name, is not UTF-8, or contains control characters.
    """
    name = os.fsdecode(topic)
    return folder_fault(name) is not None or not name.isprintable()


class TopicEvidence:
    """Evidence in a log for the topics of its messages. ``evidence``: entries of messages that are
    missing from the log.
    """

    def __init__(self, store: Store, parts: Sequence[LogPart], survey: Survey,
                 gatherer: Gatherer, evidence: HoleEntries) -> None:
        self._store, self._survey, self._gatherer = store, survey, gatherer
        self._witness, self._from_zero = parts[0].witness, parts[0].base == 0
        self._lost = {(row.key, row.queue_offset) for row in evidence.rows}
        self._budget = _MAX_HOLES
        self._claims: Counter[tuple[int, int, int]] = Counter()
        """Number of suspects, by (topic length, queue id, queue offset)."""

    def suspects(self) -> list[Suspect]:
        """Return messages whose topic may be wrong, in log order."""
        suspects = []
        for key in self._survey.runs.keys:
            if key[0].startswith(props.LMQ_PREFIX):
                continue
            suspects += [Suspect(run.low, key, run.first) for run in self._survey.runs.of(key)
                      if run.low == run.high]
        suspects.sort()
        sure = {suspect for suspect in suspects if is_impossible(os.fsencode(suspect.key[0]))}
        lacked = {suspect for suspect in suspects
                  if suspect not in sure and self._rooms(suspect, _BEHIND)}
        indexed = {*islice((suspect for suspect in suspects if self._hashes(suspect.place)),
                            _MAX_ASKED)}
        self._claims.update(map(_claim, sure | lacked | indexed))
        return sorted([*islice(sorted(sure), _MAX_ASKED), *islice(sorted(
            (lacked | indexed) - sure), _MAX_ASKED)])

    def correction_of(self, record: Record) -> CorrectedTopic | str | None:
        """Return the corrected topic of a record, or the reason why a wrong topic cannot be
        corrected.

        None if nothing shows that the topic is wrong.
        """
        # If the index has the record's keys, its topic is right, unless no broker can have written
        # it.
        place, own = record.physical_offset, record.topic
        impossible, hashes = is_impossible(own), self._hashes(place)
        if hashes & key_hashes(record):
            if not impossible:
                return None
            hashes = set()  # the index was built from the damaged log
        suspect = Suspect(place, (os.fsdecode(own), record.queue_id), record.queue_offset)
        damage = _named(record)
        # The index has other keys: find the only topic that gives these keys.
        if hashes:
            fits = [topic for topic in {*self.others(own), *_turned(own)} if hashes <= key_hashes(
                replace(record, topic=topic)) and self._room(topic, suspect)]
            if len(fits) == 1:
                damage += (f": corrected to {os.fsdecode(fits[0])}; the index has the message's "
                           "keys under this topic")
                if self._room(fits[0], suspect) == _BETWEEN:
                    damage += f", and{self._where(fits[0], suspect)}"
                return CorrectedTopic(fits[0], damage)
            return f"{damage}: the index has other keys there" if (
                impossible or self._rooms(suspect, _BETWEEN)) else None
        # The index has no keys: check the record's entry and the order of its queue.
        if not impossible and self._witness is not None and self._witness.confirms(record):
            return None
        plain, between = not impossible and own.isascii(), self._rooms(suspect, _BETWEEN)
        if not impossible and self._is_known(suspect):
            return (f"{damage}: out of order, and{self._where(between[0], suspect)}"
                    if between and any(run.low == place for run in self._gatherer.misfits.get(
                        suspect.key, ())) else None)
        # The topics that lack exactly this message; there must be only one.
        fits = between or (self._rooms(suspect, _BEHIND) if self._from_zero and (
            suspect.queue_offset or not plain) else [])
        fits = [topic for topic in fits if _is_like(topic, own, plain)]
        if len(fits) == 1 and self._claims[_claim(suspect)] < 2 and (
                not self._may_be_elsewhere(fits[0], suspect)):
            return CorrectedTopic(fits[0], f"{damage}:{self._where(fits[0], suspect)}")
        return f"{damage}: original unknown" if impossible or fits else None

    def of_impossible(self, record: Record, rows: Sequence[FoundRow]) -> CorrectedTopic | str:
        """Return the original topic of a record with an invalid topic, or the reason why it is
        unknown.

        ``rows``: entries that point to the record.
        """
        by_evidence = self.correction_of(record)
        by_rows = {os.fsencode(row.key[0]) for row in rows if not row.batch and (
            row.key[1], row.queue_offset, row.size) == (
                record.queue_id, record.queue_offset, record.total_size)}
        by_rows = {topic for topic in by_rows if len(topic) == len(record.topic)}
        if len(by_rows) == 1 and by_rows.issuperset({by_evidence.topic} if isinstance(
                by_evidence, CorrectedTopic) else ()):
            return CorrectedTopic(topic := by_rows.pop(), f"{_named(record)}: corrected to "
                             f"{os.fsdecode(topic)}, from the entry that points to it")
        return by_evidence if by_evidence and not by_rows else f"{_named(record)}: original unknown"

    def by_crc(self, raw: bytes, record: Record) -> CorrectedTopic | None:
        """Return the known topic that makes a record match its appended CRC."""
        if record.crc_ok and append_crc.stored(raw) is not None:
            for topic in self.others(record.topic):
                if append_crc.verify(build(replace(record, topic=topic))):
                    return CorrectedTopic(topic, f"{_named(record)}: with {os.fsdecode(topic)} the "
                                            "record matches its own CRC")
        return None

    def others(self, topic: bytes) -> list[bytes]:
        """Return other known topics of the same length, at most `_MAX_ASKED`."""
        return [name for name in self._names.get(len(topic), ()) if name != topic][:_MAX_ASKED]

    def is_known(self, topic: bytes) -> bool:
        """Return whether the store knows a topic from other messages, a queue or its
        configuration.
        """
        return topic in self._names.get(len(topic), ())

    # -- the evidence ------------------------------------------------------------------------------

    @cached_property
    def _names(self) -> dict[int, list[bytes]]:
        """Return the topics that the store knows, by the length of their names."""
        names = {*_OF_BROKERS, *self._configured, *self._topics}
        by_length: dict[int, list[bytes]] = {}
        for name in sorted(names):
            # A configuration may contain invalid folder names.
            if folder_fault(name) is None and not name.startswith(props.LMQ_PREFIX):
                topic = os.fsencode(name)
                if not is_impossible(topic):
                    by_length.setdefault(len(topic), []).append(topic)
        return by_length

    @cached_property
    def _configured(self) -> frozenset[str]:
        return known_topics(self._store) or frozenset()

    @cached_property
    def _topics(self) -> Counter[str]:
        """Return, for each topic, the number of its queues in the log and in folders."""
        return Counter(topic for topic, _ in {
            *self._survey.runs.keys, *self._store.queues.readable, *self._store.queues.batch})

    def _is_known(self, suspect: Suspect) -> bool:
        """Return whether a suspect's topic has other messages, a folder or a configuration."""
        return suspect.key[0] in self._configured or self._topics[suspect.key[0]] > 1 or (
            suspect.key in self._store.queues.readable or suspect.key in self._store.queues.batch)

    def _is_between(self, hole: Hole) -> bool:
        """Return whether a gap is between messages of its queue.

        In a log that begins at 0, a gap at the start of a queue counts, too.
        """
        return hole.high < ENDLESS and (hole.low >= 0 or self._from_zero)

    @cached_property
    def _queues(self) -> dict[tuple[int, int], list[bytes]]:
        """Return topics by (length, queue id). Topics that have a single message are omitted,
        because they may be damaged themselves.
        """
        topics: dict[tuple[int, int], list[bytes]] = {}
        messages: Counter[str] = Counter()
        for key in self._survey.runs.keys:
            messages[key[0]] += sum(run.end - run.first for run in self._survey.runs.of(key))
        for name, queue_id in self._gatherer.holes:
            topic = os.fsencode(name)
            if messages[name] > 1 and not is_impossible(topic) and not name.startswith(
                    props.LMQ_PREFIX):
                topics.setdefault((len(topic), queue_id), []).append(topic)
        return topics

    def _rooms(self, suspect: Suspect, least: int) -> list[bytes]:
        """Return the topics in whose queue the suspect's message is missing; an empty
        list once the budget is used up.
        """
        own, topics = os.fsencode(suspect.key[0]), []
        for topic in self._queues.get((len(own), suspect.key[1]), ()):
            self._budget -= len(self._gatherer.holes[os.fsdecode(topic), suspect.key[1]])
            if self._budget < 0:
                return []
            if topic != own and self._room(topic, suspect) >= least:
                topics.append(topic)
        return topics

    def _room(self, topic: bytes, suspect: Suspect) -> int:
        """Return where the suspect's message is missing from a topic's queue: `_BETWEEN`,
        `_BEHIND` or `_OPEN`; 0 if it is not missing.
        """
        key = os.fsdecode(topic), suspect.key[1]
        if key not in self._gatherer.holes:
            return _OPEN
        hole = holes_with(self._gatherer.holes, key, suspect.queue_offset)
        if hole is None or not hole.low < suspect.place < hole.high or (
                key, suspect.queue_offset) in self._lost:
            return 0
        if self._is_between(hole):
            return _BETWEEN
        if hole.low >= 0:
            return _BEHIND if suspect.queue_offset == hole.first else 0
        return _OPEN if hole.high == ENDLESS or suspect.queue_offset == hole.end - 1 else 0

    def _where(self, topic: bytes, suspect: Suspect) -> str:
        return (f" {os.fsdecode(topic)}/{suspect.key[1]} has no message with queue offset "
                f"{suspect.queue_offset} here")

    def _may_be_elsewhere(self, topic: bytes, suspect: Suspect) -> bool:
        """Return whether the message that is missing from the queue may have been in another
        damaged region.
        """
        hole = holes_with(self._gatherer.holes, (os.fsdecode(topic), suspect.key[1]),
                          suspect.queue_offset)
        if hole is None:
            return True
        low, high = (hole.low, hole.high) if self._is_between(hole) else (-1, ENDLESS)
        return any(
            low < region.end and region.start < min(high, self._survey.last_end)
            and region.end - region.start >= MIN_SIZE
            and not region.start <= suspect.place < region.end for region in self._survey.regions)

    def _hashes(self, place: int) -> set[int]:
        if self._witness is None:
            return set()
        start = place - place % _WINDOW
        places, hashes = self._witness.keys(start, start + _WINDOW)
        return {*hashes[places.searchsorted(place):places.searchsorted(place + 1)].tolist()}


def _named(record: Record) -> str:
    return f"topic {os.fsdecode(record.topic)!a}"


def _claim(suspect: Suspect) -> tuple[int, int, int]:
    return len(os.fsencode(suspect.key[0])), suspect.key[1], suspect.queue_offset


def _is_like(topic: bytes, damaged: bytes, plain: bool) -> bool:
    """Return whether a damaged topic may have been ``topic``.

    If the damaged topic looks valid (``plain``), exactly one byte must differ. Otherwise, at least
    half of its printable characters must be equal.
    """
    pairs = [(a, b) for a, b in zip(topic, damaged, strict=True) if 0x20 < b < 0x7F]
    equal = sum(a == b for a, b in pairs)
    return equal == len(pairs) - 1 if plain else 2 * equal >= len(pairs)


def _turned(topic: bytes) -> Iterator[bytes]:
    """Yield all topics that differ from a topic in one bit and that a broker may have written."""
    for at in range(len(topic)):
        for bit in range(8):
            turned = topic[:at] + bytes([topic[at] ^ 1 << bit]) + topic[at + 1:]
            if turned.isascii() and not is_impossible(turned):
                yield turned


def mend_topics(topics: TopicEvidence, records: Records,
                rows: Mapping[int, Sequence[FoundRow]]) -> dict[int, str]:
    """Correct topics of intact messages in ``records``.

    Return the reasons why other wrong topics are kept, by physical offset. ``rows``: entries by the
    physical offset that they point to. Raises: StoreIOError.
    """
    left = {}
    for suspect in topics.suspects():
        place = suspect.place
        if place in records.rejected or records.is_replaced(place):
            continue
        _, record, _ = records.read(place, None)
        if record is None or not record.crc_ok or os.fsdecode(record.topic) != suspect.key[0]:
            continue
        verdict = topics.of_impossible(record, rows.get(place, ())) if is_impossible(
            record.topic) else topics.correction_of(record)
        if isinstance(verdict, CorrectedTopic) and records.replace(place, unless_crc_differs(build(
                replace(record, topic=verdict.topic)))):
            records.reasons[place] = verdict.reason
        elif verdict is not None:
            left[place] = verdict if isinstance(verdict, str) else (
                f"{verdict.reason}, but the record's own CRC contradicts it")
    return left
