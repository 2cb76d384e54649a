"""Messages that are lost before any broker starts.

The log no longer contains these messages. The following evidence proves that they existed:

* A consume queue entry proves a message if the other entries of its queue agree with this entry.
* An index entry proves a message.
* A committed offset of a group proves messages before this offset, but not their positions.
* Gaps in the log prove messages (`rmqctl.checks.preflight.gaps`).
* The checkpoint of a DLedger member names the last written entry. All entries after the last intact
  entry, up to the named entry, are lost.
* The checkpoint of any other store contains the time of the last written message. If this time is
  later than the times of all messages, at least one message is lost.

Messages with a known position are counted by position, so each of them is counted once. Messages
that only committed offsets prove are added. A record that may be a message is undecided, not lost.

When recovery truncates consume queues, the index and the bytes of the truncated entries remain on
disk. These still prove that messages are lost.

Some entries prove nothing:

* Entries that point before the beginning of the log (expired).
* Damaged entries of messages that the log still contains.
* While a broker is running: entries that point beyond the end of the log.
* Index entries that point beyond the last file, without other evidence. The index may belong to
  another log.
* After a repair that recorded its losses: index entries that point beyond the end of the log,
  without other evidence, if all consume queues confirm this end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import field
from itertools import chain, groupby, pairwise

import numpy as np

from rmqctl.broker.consume_queue import PLAIN, QueueState
from rmqctl.checks.offset_runs import OffsetRuns, joined
from rmqctl.checks.preflight.effects import GoneMessages
from rmqctl.checks.preflight.gaps import DamagedBytes, LogGaps, OffsetGap
from rmqctl.checks.preflight.lost import collect
from rmqctl.checks.preflight.positions import OffsetJudge, WalkFacts
from rmqctl.checks.preflight.queues import RecoveredQueues
from rmqctl.checks.preflight.types import Prediction
from rmqctl.checks.preflight.undecided import Undecided
from rmqctl.checks.preflight.walked import WalkResults
from rmqctl.checks.verify.common import plural
from rmqctl.damage.by_time import unclear_in_log
from rmqctl.errors import StoreIOError
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.formats.local.index_file import EntryRecord, entry_time
from rmqctl.formats.local.message import Record
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase
from rmqctl.scan.damage.stale import MAX_STALE_PLACES, amid
from rmqctl.scan.frames import BLANK, Array, Batch
from rmqctl.scan.headers import undecodable
from rmqctl.scan.queue_reach import ENDLESS, telling
from rmqctl.store.index.entries import AllIndexEntries, written
from rmqctl.store.log.chain import lost_at_the_end
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue, plain_units, valid
from rmqctl.store.store import Store

_MAX_SPANS = 1 << 20
_MAX_READ = 1 << 20
"""Maximum number of entries of a queue that is read completely. In a longer queue, bisection finds
the first entry that may not point to a message.
"""
_PAGE = 1 << 16
_BLOCK = 1 << 17
_MAX_PLACES = 1 << 23
"""Maximum number of positions of lost messages in memory. Further entries are only counted;
further entries of light queues are ignored.
"""
_MANY = 16
"""Number of positions for each damaged range from which on the ranges are looked up in the
positions, and not the other way round.
"""
_SECOND = 1000
_MAX_QUEUES = 1000


@dataclass(slots=True)
class Witnessed:
    """Lost messages that consume queue entries prove.

    ``places``: positions of the messages.
    ``queues``: for each position, the number of the queue in `RecoveredQueues.states`.
    ``more``: by topic, number of lost messages that are only counted.
    """

    places: list[Array] = field(default_factory=list)
    queues: list[Array] = field(default_factory=list)
    held: int = 0
    more: Counter[str] = field(default_factory=Counter)

    def add(self, number: int, topic: str, places: Array) -> None:
        if self.held + len(places) > _MAX_PLACES:
            if not topic.startswith(LMQ_PREFIX):
                self.more[topic] += len(places)
            return
        self.held += len(places)
        self.places.append(places)
        self.queues.append(np.full(len(places), number, np.int64))


class AlreadyLost:
    """Search for lost messages, with the data collected during the scans of a prediction."""

    def __init__(self, store: Store, queues: RecoveredQueues) -> None:
        self._store, self._queues = store, queues
        self._accepted: list[tuple[int, int]] = []
        self._undecodable: set[int] = set()
        self._spans: list[tuple[int, int]] = []
        self._seen: dict[int, int] = {}
        self._end = -1
        self._newest: int | None = None
        self.lost_offsets: dict[int, OffsetRuns] = {}
        """Known queue offsets of lost messages, by queue number."""
        self.undecodable_offsets: dict[int, OffsetRuns] = {}
        self.places: Array = np.zeros(0, np.int64)
        """Positions of lost messages that entries or the index prove."""
        self._gaps = LogGaps()
        self._undecided = Undecided(store)
        self._starts: Array = np.zeros(0, np.int64)
        self._ends: Array = np.zeros(0, np.int64)
        self._pending: list[tuple[Array, ...]] = []
        """Entries that records should have, as columns for each batch:

        * queue number
        * first queue offset
        * number of queue offsets
        * position of the record
        * whether the record is intact
        """
        self._held = 0
        self._sound: set[int] = set()
        """The numbers of the queues in which every entry points to an intact message."""

    # -- along the walks ------------------------------------------------------------------------

    def look(self, batch: Batch, *, spans: bool = True, accepted: bool = True) -> None:
        """Process a batch of a scan.

        ``spans``: whether bytes between records of the batch count as damage (False if a broker
        accepts these bytes).
        ``accepted``: whether the batch was read by the recovery that determines the end of the log.
        Only relevant if ``spans`` is False.
        """
        # The last two records that recovery accepts.
        if not spans and accepted:
            when = batch.column("store_timestamp")
            self._accepted = [*self._accepted, *zip(
                batch.offset[-2:].tolist(), when[-2:].tolist(), strict=True)][-2:]
        # Intact messages, and those that clients cannot decode.
        if len(batch):
            good: Array = batch.crc_ok() | (batch.column("body_length") <= 0)
            odd: Array = np.zeros(len(batch), bool)
            ends = batch.offset + batch.column("total_size")
            if good.any():
                self._end = max(self._end, int(ends[good][-1]))
                newest = int(batch.column("store_timestamp")[good].max())
                self._newest = max(newest, self._newest or newest)
                odd = good & undecodable(batch)
                if odd.any() and len(self._undecodable) < _MAX_SPANS:
                    self._undecodable.update(batch.offset[odd].tolist())
            if not good.all():
                self._spans += zip(batch.offset[~good].tolist(), ends[~good].tolist(), strict=True)
            # Their entries, counted many at a time.
            for claim in self._queues.expected(batch):
                self._pending.append((claim.number, claim.offset, claim.count, claim.place,
                                      good[claim.record]))
                self._held += len(claim.record)
                if odd.any():
                    collect(self.undecodable_offsets, claim, odd[claim.record])
        # The bytes between, unless a broker accepts them.
        if spans:
            self._undecided.look(batch.spans)
        if spans and len(self._spans) < _MAX_SPANS:
            self._spans += [(span.offset, span.end) for span in batch.spans if span.kind != BLANK]

        if self._held >= _BLOCK:
            self._count_rows()

    def _count_rows(self) -> None:
        """Process the pending entries of records, one queue after the other."""
        if not self._pending:
            return
        number, offset, count, place, good = map(np.concatenate, zip(*self._pending, strict=True))
        self._pending, self._held = [], 0
        self._gaps.look(self._queues.states, number, offset, count, place, good)
        for queue, last in _last_offsets(number[good], offset[good]):
            self._seen[queue] = max(self._seen.get(queue, 0), last + 1)

    def take(self, walked: WalkResults) -> None:
        """Process the whole log at once, from the results of an earlier pass over it.
        Raises: StoreIOError.
        """
        self._pending, self._held = [], 0
        self._spans, self._end = walked.places, walked.end
        self._accepted, self._seen = walked.accepted, walked.ends
        self._newest = walked.newest
        self._undecided.look(walked.spans)
        for number, pieces in walked.pieces.items():
            key, kind = self._queues.states[number].key, self._queues.states[number].kind
            if kind == PLAIN and not key[0].startswith(LMQ_PREFIX):
                self._gaps.know(number, pieces, *walked.damaged[number])
        self._sound = walked.sound

    def know_sound(self, number: int) -> None:
        """Skip the entries of a queue: the caller knows that all point to intact messages."""
        self._sound.add(number)

    # -- the verdict ----------------------------------------------------------------------------

    def judge(self, predicted: Prediction, log: CommitLog, without_row: dict[int, OffsetRuns],
              running: bool, looked_from: int = 0, *, cut_off: bool = False,
              counts_only: bool = False) -> None:
        """Determine the lost messages, and add them to the prediction.

        ``without_row``: queue offsets of messages in the log that have no entry, by queue number.
        ``running``: whether a broker is running on the store.
        ``looked_from``: physical offset before which nothing was examined.
        ``cut_off``: whether a repair truncated the log at its end.
        ``counts_only``: whether only the number of lost messages is needed.
        Raises: StoreIOError.
        """
        self._end = max(self._end, looked_from)
        self._count_rows()
        # Messages in the log that no consumer can decode.
        predicted.log.undecodable = len(self._undecodable)
        if predicted.log.undecodable:
            predicted.notes.append(
                Phrase(
                    "{count:,} intact message at {first} has a header that clients cannot decode; "
                    "consumers lose it and the rest of that pull",
                    "{count:,} intact messages, the first at {first}, have a header that clients "
                    "cannot decode; consumers lose each of them and the rest of its pull",
                    count=predicted.log.undecodable, first=min(self._undecodable)))
        if not log.files and any(state.disk_end for state in self._queues.states):
            predicted.notes.append(
                Phrase(
                    "consume queue entries point to messages, but there are no log files: is the "
                    "log elsewhere (--commitlog-dir) or not mounted?"))
        unclear = 0 if counts_only else self._note_stale(predicted, log)
        predicted.log.undecided = self._undecided.count + unclear
        # The end of the log before the damage.
        if cut_off:
            self._end = min(self._end, predicted.log.truncate_to or 0)
        elif predicted.log.truncate_to is not None and self._is_confirmed():
            self._note_leftover(predicted)
            if predicted.log.cut.count:
                predicted.notes.append(
                    Phrase(
                        "the checkpoint of the last clean shutdown has exactly this end of the "
                        "log: either an earlier start truncated the intact messages beyond it, or "
                        "the damage is newer than that shutdown; it is unknown which"))
        tail, tail_from = (0, 0) if running else self._lost_at_the_end(
            may_be_undecided=cut_off or predicted.log.undecided > 0)
        self._settle(log, up_to_end=running or cut_off)
        if not counts_only:
            predicted.log.undecided += self._note_contradicted(predicted, log)
        # Messages that entries, index and committed offsets show, but the log lacks.
        gone = GoneMessages()
        witnessed = Witnessed()
        for number, state in enumerate(self._queues.states):
            for offset, count, place in () if number in self._sound else self._rows(
                    state, log.min_offset):
                wrong = without_row.get(number)
                good = slice(None) if wrong is None else ~wrong.has(offset)
                witnessed.add(number, state.key[0], place[good])
                self.lost_offsets.setdefault(number, OffsetRuns()).add(
                    offset[good], None if count is None else count[good])
        places, topics = self._by_topic(witnessed)
        self.places = places
        only_index, times = self._by_index(predicted, places)
        self.places = _distinct(np.concatenate((self.places, only_index)))
        if len(self.places):
            gone.places = int(self.places[0]), int(self.places[-1])
        gaps, in_gaps = self._by_gaps(log, from_begin=looked_from <= 0,
                                      end=self._end if cut_off else ENDLESS)
        by_offsets = Counter[str]() if running else self._by_positions(predicted, log)
        # The sums: a message counts once, however many structures show it.
        unplaced = len(only_index) - _matched(only_index, gaps)
        gone.by_topic = dict(sorted((topics + witnessed.more + in_gaps + by_offsets).items()))
        gone.count = (topics.total() + witnessed.more.total() + in_gaps.total()
                      + max(unplaced, by_offsets.total()))
        gone.by_offsets = max(0, by_offsets.total() - unplaced)
        behind = [gap for gap in gaps if gap.high > tail_from]
        counted = (int((self.places >= tail_from).sum()) + gone.by_offsets + sum(
            gap.offsets.count() for gap in behind) - _matched(
                only_index[only_index >= tail_from], behind))
        gone.at_end = max(0, tail - counted)
        gone.count += gone.at_end
        gone.at_least = bool(gone.at_end) and not self._store.nodes
        if gone.at_least:
            predicted.notes.append(Phrase(
                "the checkpoint is later than every message in the log: at least one message at "
                "the end is lost; how many is unknown"))
        predicted.log.gone = gone
        if gone.count and not counts_only:
            gone.earliest, gone.latest = self._times(log, places, times)
            if log.files:
                self._elsewhere(predicted, log, places)

    def _lost_at_the_end(self, *, may_be_undecided: bool) -> tuple[int, int]:
        """Return the number of messages whose loss the checkpoint proves, and the position in the
        log after which they were stored; (0, 0) if the checkpoint proves no loss.

        ``may_be_undecided``: whether the last message may be an undecided record.
        """
        store = self._store
        if store.nodes:
            return lost_at_the_end(store.log.files, store.nodes[0]) if len(store.nodes) == 1 else (
                0, 0)
        saved = store.checkpoint
        return (1, self._end) if not may_be_undecided and store.log.files and (
            saved is not None and saved.knows_later(self._newest, store.log.min_offset)
            and store.cut_off is None and not store.repair_losses.messages) else (0, 0)

    def _note_stale(self, predicted: Prediction, log: CommitLog) -> int:
        """Add a note on records that may be stale; return the number of these records."""
        stale = [record for records in unclear_in_log(log, sorted(self._spans))
                 for record in records]
        if stale:
            predicted.notes.append(
                Phrase(
                    "{count:,} intact record between damaged places, at {first}, may be a stale "
                    "record from an earlier use of the file: it counts as a message, but was "
                    "stored before the messages around it, and no consume queue or index entry "
                    "points to it",
                    "{count:,} intact records between damaged places, from {first} on, may be "
                    "stale records from an earlier use of the file: they count as messages, but "
                    "were stored before the messages around them, and no consume queue or index "
                    "entry points to them",
                    count=len(stale), first=stale[0].physical_offset))
        return len(stale)

    def _note_contradicted(self, predicted: Prediction, log: CommitLog) -> int:
        """Add a note on records that consume queues and index contradict; return the number of
        these records.
        """
        odd = self._gaps.odd_places(DamagedBytes(self._starts, self._ends))[:MAX_STALE_PLACES]
        contradicted: list[Record] = []
        for file, places in groupby(odd, log.file_of):
            located = None if file is None else log.locate(file.base)
            if located is not None:
                contradicted += chain.from_iterable(amid(located[0], places))
        if contradicted:
            predicted.notes.append(Phrase(
                "{count:,} intact record, at {first}, counts as a message, but consume queues and "
                "index point to another message there: the record is stale, or these entries are "
                "wrong",
                "{count:,} intact records, the first at {first}, count as messages, but consume "
                "queues and index point to other messages there: the records are stale, or these "
                "entries are wrong",
                count=len(contradicted), first=contradicted[0].physical_offset))
        return len(contradicted)

    def _is_confirmed(self) -> bool:
        """Return whether the log would end where it ended at the last clean shutdown.

        The checkpoint records that end: in 5.x the start of the last message, in 4.x only its store
        time.
        """
        saved = self._store.checkpoint
        if self._store.has_abort or saved is None or len(self._accepted) < 2:
            return False
        (_, before), (last, time) = self._accepted
        if self._store.generation >= 5:
            return saved.confirm_phy_offset == last
        return before < time == saved.logics_msg_timestamp

    def _note_leftover(self, predicted: Prediction) -> None:
        count = 0
        for state in self._queues.states:
            if isinstance(state.queue, ConsumeQueue) and state.queue.exists:
                with closing(state.queue) as queue:
                    count += queue.disk_end - _first_from(queue, self._end)
        if count:
            predicted.notes.append(
                Phrase(
                    "{count:,} entry refers to an offset beyond the end of the log. The last clean "
                    "shutdown confirmed this end, so an earlier recovery truncated the message",
                    "{count:,} entries point beyond the end of the log. The last clean shutdown "
                    "confirmed this end, so an earlier recovery truncated the messages",
                    count=count))

    def _settle(self, log: CommitLog, *, up_to_end: bool) -> None:
        """Merge the ranges of the log without intact data into one ascending list."""
        spans = np.array([*self._spans, *((gap.start, gap.end) for gap in log.gaps())],
                         np.int64).reshape(-1, 2)
        self._end = max(self._end, log.min_offset)
        spans = np.minimum(spans[spans[:, 0] < self._end], self._end)
        # Each of two files with the same name may have what the other lacks.
        for name in {a.name for a, b in pairwise(log.files) if a.base == b.base}:
            twice = next(file for file in log.files if file.name == name)
            spans = spans[(spans[:, 1] <= twice.base) | (spans[:, 0] >= twice.end)]
        if not up_to_end:
            spans = np.append(spans, [(self._end, ENDLESS)], axis=0)
        self._starts, self._ends = np.ascontiguousarray(joined(spans).T)

    def gone(self, place: Array) -> Array:
        """Return a boolean array: whether each position is in a range without intact data."""
        if not len(self._starts):
            return np.zeros(len(place), bool)
        gone: Array
        if len(place) > _MANY * len(self._starts) and bool((place[1:] >= place[:-1]).all()):
            # Ascending, as in an index: the ranges are looked up in the positions.
            inside = np.zeros(len(place) + 1, np.int64)
            np.add.at(inside, np.searchsorted(place, self._starts), 1)
            np.subtract.at(inside, np.searchsorted(place, self._ends), 1)
            gone = np.cumsum(inside)[:-1] > 0
        else:
            index = np.searchsorted(self._starts, place, "right") - 1
            gone = (index >= 0) & (place < self._ends[index])
        return gone

    # -- rows -----------------------------------------------------------------------------------

    def _rows(self, state: QueueState, low: int) -> Iterator[tuple[Array, Array | None, Array]]:
        """Yield the entries of a queue that point to no message, page by page, as columns:

        * first queue offset
        * number of consecutive queue offsets (None: 1 for all entries)
        * position that the entry points to

        ``low``: entries that point to positions before this one have expired.
        """
        if not len(self._starts) or state.queue is None or not state.queue.exists:
            return
        if isinstance(state.queue, BatchQueue):
            used = state.queue.all_used()
            place = used["physical_offset"].astype(np.int64)
            gone = self._leading_nowhere(place, low)
            yield (used["msg_base_offset"][gone].astype(np.int64),
                   used["batch_size"][gone].astype(np.int64), place[gone])
            return
        with closing(state.queue) as queue:
            first, end = queue.first_index, queue.disk_end
            if end - first > _MAX_READ:
                first = _first_from(queue, int(self._starts[0]))
            for start, rows in queue.pages(first, end, _PAGE):
                # One entry of the next page, so that the last of this one has a neighbour.
                stop = start + len(rows)
                both = rows if stop == end else np.concatenate(
                    [rows, plain_units(queue.timed_units(stop, 1))])
                offset, place = _used(start, both)
                gone = self._leading_nowhere(place, low) & (offset < stop)
                if gone.any():
                    yield offset[gone], None, place[gone]

    def _leading_nowhere(self, place: Array, low: int) -> Array:
        """Return for each entry whether it proves a lost message (bool): the entry points to no
        message and agrees with its neighbours.

        ``place``: the positions that adjacent entries point to.
        ``low``: position before which entries are expired.
        """
        gone = self.gone(place) & (place >= low)
        if not gone.any():
            return gone
        agrees: Array = np.zeros(len(place), bool)
        agrees[telling(place)] = True
        return gone & agrees

    def _by_topic(self, witnessed: Witnessed) -> tuple[Array, Counter[str]]:
        """Return the distinct positions of lost messages, and how many of them each topic has.

        A position counts for the topic of a light queue only if no other queue has an entry for the
        position.
        """
        if not sum(map(len, witnessed.places)):
            return np.zeros(0, np.int64), Counter()
        places, numbers = np.concatenate(witnessed.places), np.concatenate(witnessed.queues)
        topics = [state.key[0] for state in self._queues.states]
        light = np.array([topic.startswith(LMQ_PREFIX) for topic in topics], bool)[numbers]
        order = np.lexsort((numbers, light, places))
        places, numbers = places[order], numbers[order]
        first = np.append(True, places[1:] != places[:-1])
        by_topic: Counter[str] = Counter()
        for number, count in zip(*np.unique(numbers[first], return_counts=True), strict=True):
            by_topic[topics[int(number)]] += int(count)
        return places[first], by_topic

    # -- the log itself -------------------------------------------------------------------------

    def _by_gaps(self, log: CommitLog, *,
                 from_begin: bool, end: int) -> tuple[list[OffsetGap], Counter[str]]:
        """Return the gaps that prove lost messages before physical offset ``end``, and the number
        of these messages by topic.

        ``from_begin``: whether the whole log was examined.
        """
        gaps: list[OffsetGap] = []
        topics: Counter[str] = Counter()
        damage = DamagedBytes(self._starts, self._ends)
        begins = from_begin and bool(log.files) and log.min_offset == 0
        for number, state in enumerate(list(self._queues.states)):
            lost = self.lost_offsets.get(number) or OffsetRuns()
            undecided = self._undecided.offsets.get(state.key)
            if undecided is not None:
                lost = lost.join(undecided)
            for gap in self._gaps.gaps(number, lost, damage, from_zero=begins, end=end):
                gaps.append(gap)
                topics[state.key[0]] += gap.offsets.count()
                self.lost_offsets[number] = (self.lost_offsets.get(number)
                                             or OffsetRuns()).join(gap.offsets)
        return gaps, topics

    # -- the index ------------------------------------------------------------------------------

    def _by_index(self, predicted: Prediction,
                  places: Array) -> tuple[Array, tuple[int, int] | None]:
        """Return two values:

        * the positions of lost messages that only the index proves
        * the range of store times (ms) in the index entries of all lost messages (None: no entry)

        If the last position in ``places`` comes from an entry with a flipped bit, this position is
        corrected.
        """
        entries = AllIndexEntries(self._store)
        keyed, times = [np.zeros(0, np.int64)], []
        try:
            position = entries.seek(int(self._starts[0])) if len(self._starts) else entries.total
            most = max((file.header.end_phy_offset for file in entries.files), default=-1)
            while position < entries.total:
                block = entries.read(position, _PAGE)
                if not len(block):
                    break
                place = block["physical_offset"].astype(np.int64)
                later = np.minimum.accumulate(place[::-1])[::-1]
                lost = self.gone(place) & (place <= later) & (place <= most) & written(block)
                rows = np.flatnonzero(lost)
                for row in rows[[0, -1]].tolist() if len(rows) else ():
                    file = entries.files[entries.place(position + row).file]
                    times.append(entry_time(file.header, EntryRecord(*block[row].tolist())))
                keyed.append(_distinct(place[lost]))
                position += len(block)
        except StoreIOError:
            pass  # verify reports unreadable files; the index only adds to the known losses
        finally:
            entries.close()
        indexed = _distinct(np.concatenate(keyed))
        unknown = np.setdiff1d(indexed, places, assume_unique=True)
        if len(places):
            from rmqctl.damage.index_keys import turned_place

            turned = turned_place(places, indexed, self._end, self._store.log.end)
            if turned is not None:
                places[-1] = turned[1]
                unknown = unknown[:-1]
        # Beyond the last file it may be the index of another log.
        log = self._store.log
        limit = self._end if self._agreed(places) and self._store.repair_losses.messages else max(
            (file.base + max(file.size, log.file_size) for file in log.files[-1:]), default=0)
        beyond = unknown[unknown >= limit]
        if len(beyond):
            predicted.notes.append(
                Phrase(
                    "only the index points to {messages} from {first} on: it belongs to another "
                    "log, or the messages were lost earlier; they are not counted as lost",
                    messages=plural(len(beyond), 'message'), first=int(beyond[0])))
            unknown, times = unknown[unknown < limit], times if len(places) else []
        return unknown, (min(times), max(times) + _SECOND - 1) if times else None

    def _agreed(self, places: Array) -> bool:
        """Return whether consume queues exist and none of their entries points beyond the end of
        the log.
        """
        return not (places >= self._end).any() and any(
            state.queue is not None and state.disk_end for state in self._queues.states)

    # -- offsets of groups ----------------------------------------------------------------------

    def _by_positions(self, predicted: Prediction, log: CommitLog) -> Counter[str]:
        """Return, by topic, the number of lost messages that only committed offsets prove. Losses
        that a repair has recorded are subtracted.
        """
        inside = self._ends < ENDLESS
        positions = OffsetJudge(self._store, self._queues, WalkFacts(
            log, self._end, int((self._ends - self._starts)[inside].sum()), self._seen,
            self._accepted[-1][1] if self._accepted else None))
        lost, predicted.consumers = positions.judge(predicted.log.truncate_to,
                                                    starts=predicted.starts)
        predicted.notes += predicted.consumers.notes
        noted = self._store.repair_losses.messages
        if lost.total() <= noted:
            return Counter()
        for topic in sorted(lost):
            taken = min(lost[topic], noted)
            lost[topic], noted = lost[topic] - taken, noted - taken
        for number, (end, offset) in positions.lost.items():
            self.lost_offsets.setdefault(number, OffsetRuns()).add_run(end, offset)
        return lost

    # -- when and where -------------------------------------------------------------------------

    def _times(self, log: CommitLog, places: Array,
               indexed: tuple[int, int] | None) -> tuple[int | None, int | None]:
        """Return the range of store times (ms) of all lost messages. The range comes from the
        messages before and after them, or from the index entries (``indexed``).
        """
        before = after = None
        if len(places):
            first, last = np.searchsorted(self._starts, places[[0, -1]], "right") - 1
            before = self._neighbour(log, int(self._starts[first]), before=True)
            after = self._neighbour(log, int(self._ends[last]), before=False)
        if indexed is not None:
            before = indexed[0] if before is None else before
            after = indexed[1] if after is None else after
        return before, after

    def _neighbour(self, log: CommitLog, place: int, *, before: bool) -> int | None:
        """Return the store time (ms) of the last message before a position, or of the first message
        after it. Consume queue entries are used to find these messages.
        """
        times = []
        for state in self._queues.states[:_MAX_QUEUES]:
            if place >= ENDLESS or not isinstance(state.queue, ConsumeQueue) or (
                    not state.queue.exists):
                continue
            with closing(state.queue) as queue:
                behind = _first_from(queue, place)
                unit = queue.unit(behind - 1 if before else behind)
            record = None if unit is None or not unit.is_valid else log.record_at(
                unit.physical_offset, unit.size)
            if record is not None and (record.physical_offset < place) == before:
                times.append(record.store_timestamp)
        return (max(times) if before else min(times)) if times else None

    def _elsewhere(self, predicted: Prediction, log: CommitLog, places: Array) -> None:
        """Add a note on entries that point into missing log files, as these files may be in another
        folder.
        """
        inside: Array = np.zeros(len(places), bool)
        for file in log.files:
            # A file shorter than the others has lost its own end.
            inside |= (places >= file.base) & (places < file.base + max(file.size, log.file_size))
        if not inside.all():
            predicted.notes.append(
                Phrase(
                    "{messages} would be in missing log files: are these in another folder "
                    "(--commitlog-dir), or were the consume queues copied later than the log?",
                    messages=plural(int((~inside).sum()), 'lost message')))


def _matched(places: Array, gaps: list[OffsetGap]) -> int:
    """Return the number of positions in ``places`` (ascending) that may belong to messages proven
    by the gaps.
    """
    free: Array = np.ones(len(places), bool)
    for gap in sorted(gaps, key=lambda gap: gap.high):
        start, end = np.searchsorted(places, [gap.low + 1, gap.high]).tolist()
        free[start + np.flatnonzero(free[start:end])[:gap.offsets.count()]] = False
    return int((~free).sum())


def _distinct(values: Array) -> Array:
    """Return the distinct values, ascending. Unlike `np.unique`, this does not load `numpy.ma`."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def _last_offsets(queues: Array, offsets: Array) -> Iterator[tuple[int, int]]:
    """Yield (queue number, largest queue offset) for each queue in the two parallel arrays."""
    if not len(queues):
        return
    order = np.argsort(queues, kind="stable")
    ordered = queues[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    yield from zip(ordered[starts].tolist(), np.maximum.reduceat(offsets[order], starts).tolist(),
                   strict=True)


def _first_from(queue: ConsumeQueue, place: int) -> int:
    """Return the queue offset of the first entry that points to ``place`` or later, found by
    bisection.
    """
    first, end = queue.first_index, queue.disk_end
    while first < end:
        middle = (first + end) // 2
        unit = queue.unit(middle)
        if unit is not None and (unit == FILLER or unit.physical_offset < place):
            first = middle + 1
        else:
            end = middle
    return first


def _used(start: int, rows: Array) -> tuple[Array, Array]:
    """Return the queue offsets of the used entries, and the positions that they point to."""
    used = np.flatnonzero(valid(rows) & (rows["size"] != FILLER.size))
    return used + start, rows["physical_offset"][used].astype(np.int64)
