"""Findings about keys and entries, from what the log pass could not pair."""

from __future__ import annotations

from collections.abc import Iterator

from rmqctl.checks.findings import INFO, Finding
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.context import Context
from rmqctl.checks.verify.index.keys import EntryPlace, KeyTally, OpenedFile
from rmqctl.formats.local import index_file as layout
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.index_file import ENTRY

SINGLE = 1000


def index_findings(context: Context) -> Iterator[Finding]:
    """Entries without a key, keys without an entry, wrong times, and a missing index."""
    tally = context.result.keys
    if not tally.files and context.result.keyed:
        yield Finding(
            "index-missing", "index", f"{context.result.keyed} messages have keys, but there is "
            "no index (a broker with messageIndexEnable=false writes none)",
            file=context.store.path("index"), offset=0, count=context.result.keyed)
        return
    tally.settle()
    yield from _extra(context)
    yield from _missing(context)
    for physical, when, place in tally.late[:SINGLE]:
        yield _entry(tally.files, place, "index-time", "time_diff",
                     f"says {when} (in whole seconds), the message at {physical} was stored at "
                     "another time")


def _extra(context: Context) -> Iterator[Finding]:
    tally = context.result.keys
    ahead: list[tuple[int, EntryPlace]] = []
    told = 0
    for physical, key_hash, place in tally.extra:
        if physical >= context.log_end:
            ahead.append((physical, place))
        elif 0 <= physical < context.store.log.min_offset or context.in_damage(physical):
            continue  # expired with its file, or a key of a message that is damaged
        elif not _legal_repeat(context, physical, key_hash):
            told += 1
            if told <= SINGLE:
                yield _entry(tally.files, place, "index-entry", "physical_offset",
                             f"leads to {physical} with hash {key_hash}, which is no key of a "
                             "message there")
    # What was only counted lies behind the log too, if the first of it does.
    unkept_ahead = tally.unkept_extra if tally.unkept_from >= context.log_end else 0
    more = max(told - SINGLE, 0) + tally.unkept_extra - unkept_ahead
    if more:
        yield Finding("index-entry", "index", f"{more} more entries belong to no key (only "
                      "counted)", count=more)
    if ahead:
        physical, place = min(ahead)
        count = len(ahead) + unkept_ahead
        yield _entry(tally.files, place, "index-ahead", "physical_offset",
                     f"{plural(count, 'entry leads', 'entries lead')} to {physical} and behind, "
                     f"where the log has ended ({context.log_end})", count)


def _legal_repeat(context: Context, physical: int, key_hash: int) -> bool:
    """A restart may index the message at the border again (index.md §5): no damage."""
    record = context.store.log.record_at(physical)
    if record is None:
        return False
    topic = record.topic.decode("utf-8", "replace")
    found = props.parse(record.properties.decode("utf-8", "replace"))
    return key_hash in (layout.key_hash(topic, key) for key in layout.keys_of(found))


def _entry(files: list[OpenedFile], place: EntryPlace, category: str, field: str, detail: str,
           count: int = 1) -> Finding:
    file = files[place.file]
    spot = ENTRY.field(field)
    return Finding(category, "index", f"entry {place.entry}: {detail}", file=file.path,
                   offset=file.shape.entry_position(place.entry) + spot.offset, length=spot.size,
                   count=count)


def _missing(context: Context) -> Iterator[Finding]:
    tally = context.result.keys
    missing = [pair for pair in tally.missing if not context.in_damage(pair[0])]
    if not missing and not tally.unkept_missing:
        return
    oldest = min((file.header.begin_phy_offset for file in tally.files), default=0)
    newest = max((file.header.end_phy_offset for file in tally.files), default=0)
    before = [pair for pair in missing if pair[0] < oldest]
    behind = [pair for pair in missing if pair[0] > newest]
    between = [pair for pair in missing if oldest <= pair[0] <= newest]
    if before:
        yield _keys(tally, "index-key-missing", before,
                    f"older than the oldest index file ({oldest}), so they cannot be queried "
                    "any more", INFO)
    if between or tally.unkept_missing:
        yield _keys(tally, "index-key-missing", between, "have no entry, though later ones have",
                    more=tally.unkept_missing)
    if behind:
        yield _keys(tally, "index-behind", behind, f"newer than the newest index entry ({newest})",
                    INFO if context.live else "")


def _keys(tally: KeyTally, category: str, pairs: list[tuple[int, int]], words: str,
          severity: str = "", more: int = 0) -> Finding:
    """A finding for keys that have no entry: the file is the one they should be in, or before."""
    first = min((physical for physical, _ in pairs), default=0)
    last = max((physical for physical, _ in pairs), default=0)
    count = len(pairs) + more
    older = [file for file in tally.files if file.header.begin_phy_offset <= first]
    file = (older or tally.files)[-1 if older else 0]
    behind = category == "index-behind"
    return Finding(category, "index", f"{plural(count, 'key')} of messages at {first} to {last}: "
                   f"{words}", file=file.path,
                   offset=file.shape.entry_position(file.header.entries + 1) if behind else None,
                   count=count, severity=severity)
