"""Explain a position in a log: the verdict, its evidence, and how a plan changes this position."""

from __future__ import annotations

from collections.abc import Iterator

from rmqctl.damage.verdicts import OF_ACTION, Evidence, LogRange, Remedy, Verdict
from rmqctl.errors import FormatError, UsageError
from rmqctl.formats.local.message import Record, decode
from rmqctl.repair.plan import Plan
from rmqctl.repair.salvage.checkpoint_times import time_evidence
from rmqctl.scan.damage.leads import Leads
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.frames import BLANK, ZERO, Span
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk, start_of
from rmqctl.store.store import Store

_WINDOW = 64 << 10


def explain(store: Store, plan: Plan, offset: int) -> LogRange:
    """Return the record or the damaged range that contains a physical offset. Raises: UsageError,
    StoreIOError.
    """
    located = store.log.locate(offset)
    if located is None:
        raise UsageError(f"physical offset {offset}: {store.log.explain(offset)}")
    source, position = located
    begin = start_of(source, max(0, position - _WINDOW)) if position > _WINDOW else 0
    if begin > position:
        begin = 0
    for batch in Walk(source, begin):
        for row, (start, size) in enumerate(zip(
                batch.offset.tolist(), batch.column("total_size").tolist(), strict=True)):
            if start - batch.head <= offset < start + size:
                return _message(store, plan, source, decode(batch.bytes_at(row)))
        for span in batch.spans:
            if span.offset <= offset < span.end:
                return _span(store, plan, source, span, offset)
    raise UsageError(f"physical offset {offset}: no record and no damage found")


def _message(store: Store, plan: Plan, source: Source, record: Record) -> LogRange:
    start, end = record.physical_offset, record.physical_offset + record.total_size
    is_intact = record.crc_ok or not record.body
    evidence = [Evidence("record", "its body matches its CRC" if is_intact else
                         "its body does not match its CRC")]
    leads = None if source.witness is None else source.witness.confirms(record)
    if leads is not None:
        evidence.append(Evidence("consumequeue", f"the entry of queue offset {record.queue_offset} "
                                 + ("points here" if leads else "points elsewhere")))
    around = None if source.witness is None or leads else Leads(
        source.witness, [record]).around(record)
    if around is not None:
        evidence.append(Evidence("consumequeue", "an entry points to a message of "
                                 f"{around[1]} bytes at {around[0]}, which would contain this "
                                 "record"))
    index_keys = set() if source.witness is None else set(
        source.witness.keys(start, start + 1)[1].tolist())
    own = index_keys & key_hashes(record)
    if index_keys:
        evidence.append(Evidence("index", f"the index has {len(own)} of its keys" if own else
                                 "the index has other keys"))
    contradicted = leads is False or (bool(index_keys) and not own)
    verdict = Verdict.DAMAGED if not is_intact else plan.verdicts.get(
        start, Verdict.CONTRADICTED if contradicted else Verdict.INTACT)
    if verdict in (Verdict.UNDECIDED, Verdict.CONTRADICTED):
        evidence += _times(store, record)
    return LogRange(start, end, verdict, tuple(evidence),
                    _remedy(plan, start, end))


def _span(store: Store, plan: Plan, source: Source, span: Span, offset: int) -> LogRange:
    frame = next(((start, size) for start, size in span.doubtful
                  if start <= offset < start + size), None)
    if frame is not None:
        start, end = frame[0], sum(frame)
        evidence = [*_undecided(store, source, span, start - source.base, frame[1])]
        return LogRange(start, end, Verdict.UNDECIDED, tuple(evidence), _remedy(plan, start, end))
    verdict = Verdict.UNUSED if span.kind in (BLANK, ZERO) and not span.reason else Verdict.DAMAGED
    evidence = [Evidence("record", span.reason + (f" (field {span.field})" if span.field else "")
                         )] if span.reason else []
    if span.doubtful:
        evidence.append(Evidence("damage", f"{len(span.doubtful)} undecided records follow, the "
                                 f"first at {span.doubtful[0][0]}"))
    return LogRange(span.offset, span.end, verdict, tuple(evidence),
                    _remedy(plan, span.offset, span.end))


def _undecided(store: Store, source: Source, span: Span, position: int,
               size: int) -> Iterator[Evidence]:
    yield Evidence("damage", f"the damaged record at {span.offset}, whose length is unknown, may "
                   "contain this record")
    try:
        record = decode(source.read(position + source.head, size - source.head))
    except FormatError:
        return
    yield Evidence("record", "its lengths are consistent, and its physical offset matches" + (
        "; its body matches its CRC" if record.crc_ok and record.body else ""))
    if source.witness is not None:
        yield Evidence("assumed", f"no record has more than {source.witness.largest_record} bytes")
        if source.witness.confirms(record) is None:
            yield Evidence("consumequeue", "no entry has this queue offset")
    yield from _times(store, record)


def _times(store: Store, record: Record) -> Iterator[Evidence]:
    times = time_evidence(store, record.store_timestamp)
    if times is not None:
        yield Evidence("checkpoint", times)


def _remedy(plan: Plan, start: int, end: int) -> Remedy:
    for action in plan.actions:
        remedy = OF_ACTION.get(action.action)
        if remedy is None or action.offset is None or not action.target.startswith("commitlog"):
            continue
        if action.offset < end and start < action.offset + (action.length or 1):
            return remedy
    return Remedy.NONE
