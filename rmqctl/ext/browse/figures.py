"""Statistics for nodes of the tree (places): counts, ranges of offsets and times, consumer lag.

The statistics of a node are computed when it becomes visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field

from rmqctl.errors import RmqctlError, StoreIOError
from rmqctl.ext.browse.opened import BrowsedPlace, StoreView
from rmqctl.formats.local.properties import DLQ_PREFIX, RETRY_PREFIX
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.escape import visible
from rmqctl.output.units import counted, size_text, time_text
from rmqctl.store.queue.rows import QueueRows, topic_rows, topics_on_disk

_MAX_GROUPS = 50
PREFIXES = {"retry": RETRY_PREFIX, "dead": DLQ_PREFIX}
"""Name prefixes of retry topics and of dead-letter topics, by branch of the tree."""


@dataclass(frozen=True, slots=True)
class PlaceFigures:
    """The statistics of a place.

    * ``brief``: text that the tree always shows
    * ``wide``: text that only a wide tree adds
    * ``facts``: all statistics by name, for the pane
    """

    brief: str = ""
    wide: str = ""
    facts: dict[str, str] = field(default_factory=dict)


def figures(reader: StoreView, place: BrowsedPlace) -> PlaceFigures:
    """Return the statistics of a place; if the place cannot be read, they contain the error."""
    try:
        return _OF[place.kind](reader, place) if place.kind in _OF else PlaceFigures()
    except (RmqctlError, OSError) as error:
        return PlaceFigures("?", "", {"problem": visible(str(error))})


def topics_of(reader: StoreView, kind: str) -> list[str]:
    """Return the topics in a branch of the tree: ``topics``, ``retry`` or ``dead``."""
    names = topics_on_disk(reader.store)
    if kind in PREFIXES:
        return [name for name in names if name.startswith(PREFIXES[kind])]
    return [name for name in names if not name.startswith(tuple(PREFIXES.values()))]


# -- log and topics --------------------------------------------------------------------------------


def _log(reader: StoreView, _place: BrowsedPlace) -> PlaceFigures:
    log = reader.store.log
    ends = [_stored(reader, file.base + file.head) for file in log.files[:1]]
    return PlaceFigures(size_text(log.size), "", {
        "files": f"{len(log.files):,}", "size": size_text(log.size),
        "physical offsets": f"{log.min_offset} to {log.end}",
        **({"first stored": time_text(ends[0])} if ends and ends[0] is not None else {})})


def _file(reader: StoreView, place: BrowsedPlace) -> PlaceFigures:
    file = reader.log_file(place.path)
    if file is None:
        return PlaceFigures()
    stored = _stored(reader, file.base + file.head)
    return PlaceFigures(size_text(file.size), _day(stored), {
        "file": visible(file.path), "size": size_text(file.size),
        "physical offsets": f"{file.base} to {file.end}",
        **({} if stored is None else {"first stored": time_text(stored)})})


def _branch(reader: StoreView, place: BrowsedPlace) -> PlaceFigures:
    return PlaceFigures(f"{len(topics_of(reader, place.kind)):,}")


def _queues(reader: StoreView, place: BrowsedPlace) -> PlaceFigures:
    """Return the statistics of a topic, or of one of its queues."""
    queues = topic_rows(reader.store, place.topic, place.queue_id, reader.view)
    total = sum(max(queue.end - queue.first, 0) for queue in queues)
    times = [stored for queue in queues for stored in _ends(reader, queue)]
    behind = sum(queue.behind for queue in queues)
    facts = {"topic": visible(place.topic)}
    brief = f"{total:,}"
    if place.queue_id is None:
        facts["queues"] = f"{len(queues):,}"
    elif queues:
        facts["queue"] = str(place.queue_id)
        facts["offsets"] = f"{queues[0].first} to {queues[0].end - 1}" if total else "none"
        brief = f"{queues[0].first}-{queues[0].end - 1}" if total else "empty"
    facts["messages"] = f"{total:,}"
    if times:
        facts |= {"first stored": time_text(min(times)), "last stored": time_text(max(times))}
    if behind:
        facts["beyond the log"] = counted(behind, "entry", "entries")
        brief += f" +{behind:,}!"
    if place.group:
        facts |= _commit(reader, place)
    else:
        facts |= dict(_consumers(reader, place))
    span = ""
    if times:
        first, last = _day(min(times)), _day(max(times))
        span = f"{first} to {last[6:] if last[:6] == first[:6] else last}"
    return PlaceFigures(brief, span, facts)


def _ends(reader: StoreView, queue: QueueRows) -> Iterator[int]:
    """Yield the store times of the first and the last message of a queue, if they can be read."""
    for start in dict.fromkeys((queue.first, queue.end - 1)) if queue.end > queue.first else ():
        with suppress(StoreIOError):
            for _, physical, _size in queue.pages(start, start + 1):
                stored = _stored(reader, int(physical[0])) if len(physical) else None
                if stored is not None:
                    yield stored


def _stored(reader: StoreView, physical: int) -> int | None:
    record = reader.store.log.record_at(physical)
    return None if record is None else record.store_timestamp


def _day(millis: int | None) -> str:
    return "" if millis is None else time_text(millis)[5:16].replace("T", " ")


# -- consumer groups -------------------------------------------------------------------------------


def _consumers(reader: StoreView, place: BrowsedPlace) -> Iterator[tuple[str, str]]:
    """Yield the name and lag, as text, of each group that consumes a topic or one of its queues."""
    sums: dict[str, int] = {}
    with suppress(RmqctlError):
        for row in reader.lag.of_topic(place.topic):
            if place.queue_id in (None, row["queue_id"]):
                sums[row["group"]] = sums.get(row["group"], 0) + (row["diff"] or 0)
    for group in list(sums)[:_MAX_GROUPS]:
        yield f"group {visible(group)}", f"lag {sums[group]:,}"
    if len(sums) > _MAX_GROUPS:
        yield "more groups", f"{len(sums) - _MAX_GROUPS:,}"


def _groups(reader: StoreView, _place: BrowsedPlace) -> PlaceFigures:
    return PlaceFigures(f"{len(reader.lag.groups):,}")


def _group(reader: StoreView, place: BrowsedPlace) -> PlaceFigures:
    rows = list(reader.lag.of_group(place.group))
    lag = sum(row["diff"] or 0 for row in rows)
    since = [row["unread_since"] for row in rows if row["unread_since"] is not None]
    waiting = {"oldest unconsumed": time_text(min(since))} if since else {}
    return PlaceFigures(f"lag {lag:,}", _day(min(since)) if since else "", {
        "group": visible(place.group), "lag": f"{lag:,}",
        "topics": f"{len({row['topic'] for row in rows}):,}", "queues": f"{len(rows):,}",
        **waiting})


def _commit(reader: StoreView, place: BrowsedPlace) -> dict[str, str]:
    row = next((row for row in reader.lag.of_topic(place.topic)
                if (row["group"], row["queue_id"]) == (place.group, place.queue_id)), None)
    if row is None:
        return {}
    named = {"group": visible(place.group), "consumer offset": row["consumer_offset"],
             "lag": row["diff"], "note": row["note"]}
    return {name: visible(str(value)) for name, value in named.items() if value is not None}


_OF = {"log": _log, "file": _file, "topic": _queues, "queue": _queues, "topics": _branch,
       "retry": _branch, "dead": _branch, "groups": _groups, "group": _group}
