"""Findings about the commitlog itself, from the spans and bad records of the log pass."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any

from rmqctl.checks.findings import WARNING, Finding
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.context import Context
from rmqctl.checks.verify.log.log_pass import UNREADABLE
from rmqctl.damage.by_time import unclear_in_log
from rmqctl.damage.stale import beside_at
from rmqctl.errors import StoreIOError
from rmqctl.formats.local import header_rules as rules
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record, host_text
from rmqctl.parse_values import time_text
from rmqctl.scan.damage.stale import MAX_STALE_PLACES, REASON, amid
from rmqctl.scan.frames import BLANK, ZERO, Span
from rmqctl.store.problems import ambiguity, earlier_life
from rmqctl.store.problems import contradicted as words_of

_MAX_NAMED = 3
_EARLIER = "; perhaps truncated by a startup"
_OF_THE_END = frozenset({"log-cut", "cq-ahead"})
_GAP = "zeros to the end of the file, but the log continues in a later file"


def log_findings(context: Context, log_end: int, queue_findings: list[Finding]) -> Iterator[
        Finding]:
    """Yield the findings for damage in physical order, then the finding for a truncated end of the
    log.
    """
    ahead = [finding for finding in queue_findings if finding.category == "cq-ahead"]
    gone = sum(finding.count for finding in ahead)
    lost = plural(gone, "later message")
    findings = [*_spans(context, log_end, gone), *_bad_records(context),
                *_without_crc(context), *_headers(context),
                *_fillers(context), *_earlier_life(context, log_end), *_contradicted(context)]
    for finding in sorted(findings, key=lambda finding: finding.offset or 0):
        if ahead and finding.offset == log_end:  # the damage at the end includes it
            ahead = []
            yield replace(finding, detail=f"{finding.detail}; {lost} lost")
        else:
            yield finding
    for name in context.result.shrunk:
        yield Finding("file-changed", "commitlog", "the file shrank while it was being read: "
                      "another process is changing it", file=name)
    if context.result.unlisted:
        yield Finding("record-damaged", "commitlog", f"{context.result.unlisted} more damaged "
                      "places (only counted)", count=context.result.unlisted)
    if ahead and (gone > 1 or _index_agrees(context)):
        yield Finding(
            "log-cut", "commitlog", f"the log ends at {log_end}; {lost} lost",
            **_place(context, log_end), count=gone)


def with_earlier_start(context: Context, log_end: int, findings: Iterable[Finding]) -> Iterator[
        Finding]:
    """Yield the findings.

    A broker may have truncated the log at its last startup. The first finding about that place
    mentions this.
    """
    ended = _ended_by_a_start(context)
    for finding in findings:
        concerned = (finding.offset == ended if finding.category not in _OF_THE_END
                     and finding.structure == "commitlog" else
                     finding.category in _OF_THE_END and ended == log_end)
        if ended is not None and concerned and finding.is_trouble:
            ended = None
            yield replace(finding, detail=finding.detail + _EARLIER)
        else:
            yield finding


def _ended_by_a_start(context: Context) -> int | None:
    """Return the offset at which a broker may have truncated the log at its last startup.

    None if unknown. The checkpoint shows the last message before this offset: a 5.x broker records
    the start of that message, a 4.x broker its store time (after a clean shutdown). If the message
    at this offset was damaged after that startup, the checkpoint looks the same.
    """
    saved = context.store.checkpoint
    if context.live or context.store.has_abort or saved is None:
        return None
    if context.store.generation < 5:
        last = context.result.last_store_timestamp
        return context.log_end if last and last == saved.logics_msg_timestamp else None
    if not saved.confirm_phy_offset:
        return None
    record = context.store.log.record_at(saved.confirm_phy_offset)
    return None if record is None else record.physical_offset + record.total_size


def _index_agrees(context: Context) -> bool:
    """Return whether an index entry points beyond the end of the log.

    A single consume queue entry that points there may be wrong. If an index entry points there,
    too, the log did extend that far.
    """
    return any(physical >= context.log_end for physical, _, _ in context.result.keys.extra)


def _place(context: Context, offset: int) -> dict[str, Any]:
    file = context.store.log.file_of(offset)
    if file is None:
        before = [file for file in context.store.log.files if file.end == offset]
        return {"file": before[-1].path if before else None, "offset": offset,
                "position": before[-1].size if before else None}
    return {"file": file.path, "offset": offset, "position": offset - file.base}


def _spans(context: Context, log_end: int, gone: int) -> Iterator[Finding]:
    lost = sorted(context.lost)
    for span in context.result.spans:
        if span.kind == BLANK:
            continue
        behind = span.offset >= log_end
        if span.kind == ZERO and behind:
            continue  # the unused end of the log
        rows = [context.lost[number] for number in
                lost[bisect_left(lost, span.offset):bisect_left(lost, span.end)]]
        shown = span.field and span.field != UNREADABLE
        detail = (span.reason or _GAP) + (f" (field {span.field})" if shown else "")
        where: dict[str, Any] = {}
        if rows:
            topic, queue_id, queue_offset = rows[0]
            where = {"topic": topic, "queue_id": queue_id, "queue_offset": queue_offset}
            detail += f"; consume queues point to {len(rows)} message" + (
                "s" if len(rows) > 1 else "") + " there"
        category = _category(context, span, behind, log_end)
        # A write cut short by a crash, of which nothing was dispatched: a broker drops it.
        unfinished = category == "torn-tail" and not rows and not gone and (
            context.store.has_abort)
        yield Finding(category, "commitlog", detail, length=span.length,
                      severity=WARNING if unfinished else "", count=max(len(rows), 1),
                      **_place(context, span.offset), **where)
        if span.doubtful:
            yield Finding("ambiguous", "commitlog", ambiguity(span.doubtful),
                          length=sum(size for _, size in span.doubtful),
                          count=len(span.doubtful), **_place(context, span.doubtful[0][0]))


def _damage(context: Context) -> list[tuple[int, int]]:
    """Return the damaged spans of the log as ascending physical offsets ``[start, end)``."""
    result = context.result
    return sorted([*((span.offset, span.end) for span in result.spans if span.kind != BLANK),
                   *((bad.offset, bad.offset + bad.size) for bad in result.bad)])


def _earlier_life(context: Context, log_end: int) -> Iterator[Finding]:
    """Yield findings for records near damage that may be stale.

    No entry points to these records, so their store times are the only evidence: none are stale if
    no message is older than the one before.
    """
    if context.result.passed.ascending:
        return
    with suppress(StoreIOError):  # already reported for that file
        for records in unclear_in_log(context.store.log, [
                place for place in _damage(context) if place[0] < log_end]):
            first = records[0].physical_offset
            yield Finding("ambiguous", "commitlog", earlier_life(len(records), first),
                          length=sum(record.total_size for record in records),
                          count=len(records), **_place(context, first))


def _contradicted(context: Context) -> Iterator[Finding]:
    """Yield findings for intact records that are contradicted by consume queues and index.

    The search covers two places: near messages whose entry points elsewhere, and near the positions
    that unmatched entries point to.
    """
    store = context.store
    odd = sorted({*context.loose_rows, *(
        claim.physical_offset for tally in context.result.queues.values()
        for claim in tally.claims if claim.row is not None and any(claim.row))})[:MAX_STALE_PLACES]
    zeros = {span.offset for span in context.result.spans if span.kind == ZERO}
    damage = [place for place in _damage(context) if place[0] not in zeros] if odd else []
    for file, group in groupby(odd, store.log.file_of):
        located = None if file is None else store.log.locate(file.base)
        if located is None:
            continue
        places = [*group]
        with suppress(StoreIOError):  # already reported for that file
            for category, records in (
                    *(("ambiguous", records) for records in amid(located[0], places)),
                    *(("record-damaged", records)
                      for records in beside_at(located[0], places, damage))):
                first = records[0].physical_offset
                yield Finding(category, "commitlog", REASON if category == "record-damaged"
                              else words_of(len(records), first),
                              length=sum(record.total_size for record in records),
                              count=len(records), **_place(context, first))


def _category(context: Context, span: Span, behind: bool, log_end: int) -> str:
    if span.field == UNREADABLE:
        return "file-unreadable"
    if behind:
        if context.live:
            return "in-progress"
        return "torn-tail" if span.offset == log_end else "garbage-tail"
    if span.kind == ZERO or span.reason.startswith("zeros"):
        return "zero-gap"
    return "physical-offset" if span.field == "physical_offset" else "record-damaged"


def _bad_records(context: Context) -> Iterator[Finding]:
    for bad in context.result.bad:
        body = bad.field == "body"
        yield Finding(
            "body-crc" if body else "property-damaged" if bad.why else "property-crc", "commitlog",
            "body CRC mismatch" if body else
            f"the properties contain {bad.why}" if bad.why else
            "appended property CRC mismatch",
            length=bad.size, topic=bad.topic.decode("utf-8", "surrogateescape"),
            queue_id=bad.queue_id, queue_offset=bad.queue_offset,
            **_place(context, bad.offset))


def _without_crc(context: Context) -> Iterator[Finding]:
    """Yield findings for messages without the appended CRC that other messages have."""
    for run in context.result.seals.suspicious():
        yield Finding(
            "property-crc-missing", "commitlog",
            f"{plural(run.messages, 'message has', 'messages have')} no appended property CRC; "
            "earlier messages have one", length=run.end - run.start, count=run.messages,
            **_place(context, run.start))


def _bad_number(record: Record) -> str:
    values = props.parse(record.properties.decode("utf-8", "surrogateescape"))
    name = rules.bad_number(values, record.topic, _NEWEST_GENERATION)
    return f"{name} ({values.get(name, '')[:40]!r})"


_NEWEST_GENERATION = 5
_DROPPED = "clients discard this message and the rest of the pull"
_HEADERS: dict[str, tuple[str, Callable[[Record], object]]] = {
    rules.BORN_PORT: ("born port {}: " + _DROPPED, lambda record: record.born_host[1]),
    rules.STORE_PORT: ("store port {}: " + _DROPPED, lambda record: record.store_host[1]),
    rules.SYS_FLAG: ("system flags {} with an unknown compression: " + _DROPPED,
                     lambda record: record.sys_flag),
    rules.FLAG_BITS: ("system flags {} have bits that no release uses",
                      lambda record: f"{record.sys_flag & 0xFFFFFFFF:#x}"),
    rules.RECONSUME: ("delivered {} times", lambda record: record.reconsume_times),
    rules.PREPARED: ("preparedTransactionOffset {} is after the message itself",
                     lambda record: record.prepared_transaction_offset),
    rules.QUEUE_OFFSET: ("a prepared or rolled back message has queue offset {}",
                         lambda record: record.queue_offset),
    rules.QUEUE_ID: ("queue id {}", lambda record: record.queue_id),
    rules.STORE_TIME: ("stored at {}, years from its neighbors",
                       lambda record: time_text(record.store_timestamp)),
    rules.STORE_HOST: ("stored by {}; the messages before and after it by another host",
                       lambda record: host_text(*record.store_host)),
    rules.NUMBER: ("property {} is not a number: a broker truncates the log here",
                   _bad_number),
}


def _headers(context: Context) -> Iterator[Finding]:
    """Yield findings for header fields of intact records with values that no broker writes."""
    headers = context.result.headers
    headers.settle()
    single = 0
    # Records with an impossible header, one by one.
    for fault in headers.faults:
        record = context.store.log.record_at(fault.offset)
        if record is None:
            continue
        if rules.STORE_TIME in fault.categories and record.store_timestamp < rules.EARLIEST:
            single += 1
        for category in fault.categories:
            words, value = _HEADERS[category]
            yield Finding(
                category, "commitlog", words.format(value(record)), length=record.total_size,
                topic=record.topic.decode("utf-8", "surrogateescape"), queue_id=record.queue_id,
                queue_offset=record.queue_offset, **_place(context, fault.offset))
    # Oddities that are only counted.
    if headers.odd_born:
        yield Finding(
            rules.BORN_TIME, "commitlog",
            f"{plural(headers.odd_born, 'message has', 'messages have')} a born time that is "
            "negative or years after the store time", count=headers.odd_born,
            **_place(context, headers.first_odd_born or 0))
    if headers.unlisted:
        yield Finding(rules.BORN_PORT, "commitlog", f"{headers.unlisted} more records with an "
                      "impossible header (only counted)", count=headers.unlisted)
    elif headers.early > single:
        yield Finding(
            rules.EARLY, "commitlog", f"{plural(headers.early, 'message has', 'messages have')} a "
            "store time before 2012: affects expiry and queries by time",
            count=headers.early,
            **_place(context, headers.first_early or 0))


    if headers.back:
        yield Finding(
            rules.BACK, "commitlog", "store times go back 6 months or more in "
            f"{plural(headers.back, 'place')}: queries by time miss messages",
            count=headers.back, **_place(context, headers.first_back or 0))


def _fillers(context: Context) -> Iterator[Finding]:
    """Yield findings for records that `recover` wrote in place of lost bytes."""
    counts, first = context.result.fillers, context.result.first_filler
    kept = context.result.kept_damaged
    if kept and context.result.first_kept is not None:
        yield Finding("kept-damaged", "commitlog",
                      f"{plural(kept, 'damaged message', 'damaged messages')} kept "
                      "(RMQCTL=damaged), the first at "
                      f"{context.result.first_kept}", count=kept,
                      **_place(context, context.result.first_kept))
    if first is None:
        return
    count = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    topics = ", ".join(f"{topic or '(no topic)'} {many}" for topic, many in ordered[:_MAX_NAMED])
    more = f" and {len(ordered) - _MAX_NAMED} more topics" if len(ordered) > _MAX_NAMED else ""
    yield Finding("fillers", "commitlog", f"{plural(count, 'filler', 'fillers')} for "
                  f"lost messages ({topics}{more}), the first at {first}", count=count,
                  **_place(context, first))
