"""Plans of ``delete message``, ``delete key``, ``delete topic`` and ``delete group``."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

import numpy as np

from rmqctl.checks.verify.common import plural
from rmqctl.engine.config.table import next_version
from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.formats.config import fastjson
from rmqctl.formats.local.filler import MARK
from rmqctl.formats.local.message import HOST_BITS, Record, parse_message_id, variant
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase
from rmqctl.repair.broker_config import configured
from rmqctl.repair.config.convert import replaced
from rmqctl.repair.erase.elsewhere import leftovers, other_copies
from rmqctl.repair.erase.find import Matches, Traits, content, find, unique_key
from rmqctl.repair.erase.index import drop_entries
from rmqctl.repair.erase.inner import digest, inner_messages, is_empty, without
from rmqctl.repair.erase.named import in_batches
from rmqctl.repair.erase.record import ERASED, erased, is_erased
from rmqctl.repair.erase.tier import drop_items, drop_metadata, topic_folders
from rmqctl.repair.erase.topics import DeletedTopics
from rmqctl.repair.offsets.table import quotes_queue_ids
from rmqctl.repair.plan import Action, Changes, MoveAside, Patch, Plan, Replace, Step
from rmqctl.repair.rebuild import rocksdb
from rmqctl.repair.rebuild.derived_range import log_as_it_is
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.targets import target
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.store.config.config import FOLDER, MISSING, load_one
from rmqctl.store.config.progress import named
from rmqctl.store.explain import near_names
from rmqctl.store.log.bounds import View
from rmqctl.store.problems import Problem
from rmqctl.store.query.lookup import message_at
from rmqctl.store.query.select import Selection, Selector
from rmqctl.store.repair_losses import REPAIRS
from rmqctl.store.store import Store

_QUEUES = ("consumequeue", "consumequeue_ext", "batchconsumequeue")
_COMPACTION = "compaction"
_OFFSET_FILES = ("consumerOffset.json", "lmqConsumerOffset.json")
_OFFSET_TABLES = ("offsetTable", "lmqOffsetTable", "pullOffsetTable")
_TOPIC_TABLES = (("topics.json", ("topicConfigTable",)),
                 ("topicQueueMapping.json", ("topicQueueMappingInfoMap",)),
                 ("messageRequestMode.json", ("messageRequestModeMap",)),
                 ("consumerFilter.json", ("filterDataByTopic",)))
_BY_TOPIC_AND_GROUP = (("consumerOrderInfo.json", ("table",)),)
_GROUPS_OF_TOPICS = {"messageRequestMode.json": ("messageRequestModeMap", ""),
                     "consumerFilter.json": ("filterDataByTopic", "groupFilterData")}
"""Topic tables with entries for groups, and the field that contains these entries ("": the topic's
entry itself).
"""
_GROUP_TABLES = (("subscriptionGroup.json", ("subscriptionGroupTable", "forbiddenTable")),)


@dataclass(frozen=True, slots=True)
class EraseSelection:
    """The messages to erase.

    * ``ids``: ids of clients or brokers.
    * ``selection``: selects further messages.
    * ``topics``, ``groups``: deleted completely.
    * ``same_body``: also erase messages that have an erased body but another id.
    * ``whole_batches``: also erase the other messages of a compressed batch.
    """

    ids: tuple[str, ...] = ()
    selection: Selection | None = None
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    same_body: bool = False
    whole_batches: bool = False
    purge: bool = False


@dataclass(slots=True)
class Erasure:
    """A plan that erases messages.

    * ``erased``: lines of the certificate.
    * ``left``: for each file, number of bytes of erased bodies that remain in the file.
    * ``doubtful``: number of messages that may be copies.
    * ``batches``: number of batches that cannot be erased in part.
    """

    plan: Plan
    erased: list[dict[str, Any]] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)
    doubtful: int = 0
    batches: int = 0
    not_found: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def plan_erase(store: Store, command: str, wanted: EraseSelection, clock: Callable[[], int],
               scratch: Scratch) -> Erasure:
    """Return the plan for an opened store.
    Raises: RefusedError for messages, topics or groups that do not exist or must not be deleted;
    UsageError, UnsupportedError, StoreIOError.
    """
    # The selected messages, and all their copies in the log.
    problems: list[Problem] = []
    going = DeletedTopics(store, wanted.topics, wanted.groups)
    topics = going.topics
    traits = Traits(topics=frozenset(topics), selects=in_batches(wanted.selection),
                    whole_batches=wanted.whole_batches)
    matches = find(store, traits, _chosen(store, wanted, traits, problems.append),
                   same_body=wanted.same_body)
    copies = other_copies(store, traits)
    # Topics that share messages with light queues stay.
    topics = [topic for topic in topics if topic not in matches.shared]
    # The log: each record in place.
    changes = Changes()
    lines: list[dict[str, Any]] = []
    spans: dict[str, list[tuple[int, int]]] = {}
    unmarked = 0
    ids: set[bytes | None] = set()
    for physical, role in sorted(matches.messages.items()):
        record, raw = store.log.record_at(physical), store.log.raw_at(physical)
        place = store.log.locate(physical)
        if record is None or raw is None or place is None:
            raise StoreIOError(f"{store.root}: the message at {physical} can no longer be read")
        ids |= {unique_key(record), *(item.unique_key for item in inner_messages(record))}
        drop = record.topic.decode("utf-8", "replace") in topics
        unmarked += _erase(changes, lines, spans, store, place[0].name, place[1], raw, record, role,
                           drop=drop)
    for physical in sorted(matches.batches):
        ids |= _erase_inside(changes, lines, spans, store, physical, traits,
                             same_body=wanted.same_body)
    for physical in matches.closed:
        closed = store.log.record_at(physical)
        ids |= {item.unique_key for item in inner_messages(closed)} if closed else set()
    for path, records in copies.files.items():
        for at, raw, record in records:
            ids.add(unique_key(record))
            unmarked += _erase(changes, lines, spans, store, path, at, raw, record,
                               target(store, path).split(os.sep)[0], drop=False)
    changes.steps = [*_joined(changes.steps)]
    # References to them: the index; for topics and groups, queues, configuration and offsets.
    gone = np.array(sorted(matches.messages), np.int64)
    for index in (drop_entries(store, gone) if len(gone) else Changes(),
                  drop_items(store, copies)):
        changes.extend(index)
    tiered = topic_folders(store, topics)
    away = _move_queues(changes, store, topics, [path for _, path in tiered])
    changes.extend(drop_metadata(store, tiered))
    if topics and store.queues.rocksdb is not None:
        _rebuild_database(changes, store, frozenset(topics), scratch)
    _drop_config(changes, store, topics, wanted.groups, clock, scratch)
    # Bytes that stay, and places that a plan cannot reach.
    for path in away:
        spans.pop(path, None)
    left = leftovers(store, traits, spans, away)
    notes = [*dict.fromkeys(problem.text for problem in problems if problem.is_fault),
             *changes.notes,
             *_notes(store, wanted, matches, left, unmarked, len(traits.unsearched))]
    empty = not changes.steps
    missing = sorted(name.decode() for name in traits.named - ids)
    notes = [*_not_found(store, wanted, missing, matches, is_empty=empty),
             *going.notes(store.root),
             *(notes if not empty or left or matches.doubtful or matches.closed else ())]
    return Erasure(Plan(command, store.root, tuple(changes.actions), tuple(changes.steps),
                        notes=tuple(notes)),
                   lines, left, len(matches.doubtful), len(matches.closed), missing,
                   [problem.text for problem in problems if problem.is_fault])


def _chosen(store: Store, wanted: EraseSelection, traits: Traits,
            report: Callable[[Problem], None]) -> Iterable[Record]:
    """Yield the selected messages. Ids that clients created are added to ``traits`` instead of
    being looked up.
    """
    for message_id in wanted.ids:
        record = None
        try:
            address, port, physical = parse_message_id(message_id)
        except ValueError:
            physical = -1
        if physical >= 0:
            record = message_at(store, physical, report)
            # An id of a client may look like one of a broker.
            if record is not None and record.store_host != (address, port):
                record = None
        if record is None:
            traits.named.add(encoded := message_id.encode())
            traits.ids.add(encoded)
        elif not is_erased(record):
            yield record
    if wanted.selection is not None:
        for record in Selector(store, wanted.selection, View(store), report).records():
            if not is_erased(record):
                yield record


def _erase(changes: Changes, lines: list[dict[str, Any]],
           spans: dict[str, list[tuple[int, int]]], store: Store, path: str, at: int, raw: bytes,
           record: Record, role: str, *, drop: bool) -> bool:
    """Plan the erasure of one record; return whether the record is too small for the mark."""
    parts, is_marked = erased(raw, record, drop=drop)
    name, topic = sys.intern(target(store, path)), sys.intern(record.topic.decode(
        "utf-8", "replace"))
    line = {"file": name, "offset": at, "size": len(raw), "what": role,
            "topic": topic, "queue_id": record.queue_id,
            "queue_offset": record.queue_offset, "physical_offset": record.physical_offset,
            "store_timestamp": record.store_timestamp,
            "sha256": hashlib.sha256(raw).hexdigest(),
            "body_sha256": hashlib.sha256(content(record)).hexdigest()}
    lines.append(line)
    spans.setdefault(path, []).append((at, at + len(raw)))
    changes.steps.append(Patch(name, (OverlayPiece(at, len(raw), parts),)))
    changes.actions.append(Action("erase", name, None, None, _what(role, topic, record.queue_id),
                                  offset=record.physical_offset, length=len(raw), proof=line))
    return not is_marked


@lru_cache
def _what(role: str, topic: str, queue_id: int) -> Phrase:
    return Phrase("{what} of {topic}, queue {queue}", what=role, topic=topic, queue=queue_id)


def _joined(steps: Iterable[Step]) -> Iterator[Patch]:
    """Merge the patches of each file into one patch."""
    pieces: dict[str, list[OverlayPiece]] = {}
    for step in steps:
        if isinstance(step, Patch):
            pieces.setdefault(step.target, []).extend(step.pieces)
    return (Patch(name, tuple(file_pieces)) for name, file_pieces in pieces.items())


def _erase_inside(changes: Changes, lines: list[dict[str, Any]],
                  spans: dict[str, list[tuple[int, int]]], store: Store, physical: int,
                  traits: Traits, *, same_body: bool) -> set[bytes | None]:
    """Plan the erasure of messages in a batch; return the ids of these messages."""
    record, raw = store.log.record_at(physical), store.log.raw_at(physical)
    place = store.log.locate(physical)
    if record is None or raw is None or place is None:
        raise StoreIOError(f"{store.root}: the batch at {physical} can no longer be read")
    patched, items = without(raw, record, lambda item: bool(
        traits.has_inner(record, item, same_body=same_body)) and not is_empty(item))
    name, path, at = target(store, place[0].name), place[0].name, place[1]
    body = at + variant(record.sys_flag & HOST_BITS, record.magic).head_size
    for item in items:
        lines.append({
            "file": name, "offset": body + item.at, "size": item.size, "what": "in a batch",
            "topic": record.topic.decode("utf-8", "replace"), "queue_id": record.queue_id,
            "queue_offset": record.queue_offset, "physical_offset": physical,
            "store_timestamp": record.store_timestamp,
            "sha256": hashlib.sha256(raw).hexdigest(), "body_sha256": digest(item)})
        spans.setdefault(path, []).append((body + item.at, body + item.at + item.size))
        changes.actions.append(Action("erase", name, None, None, _what(
            "message in a batch", lines[-1]["topic"], record.queue_id), offset=physical,
            length=item.size, proof=lines[-1]))
    if items:
        changes.steps.append(Patch(name, (OverlayPiece(at, len(raw), ((0, patched),)),)))
    return {item.unique_key for item in items}


def _move_queues(changes: Changes, store: Store, topics: Sequence[str],
                 others: Sequence[str]) -> list[str]:
    """Move aside the folders of the topics and the folders ``others``; return all moved folders."""
    folders = list(_QUEUES)
    if os.path.isdir(store.path(_COMPACTION)):
        folders += [os.path.join(_COMPACTION, name)
                    for name in sorted(os.listdir(store.path(_COMPACTION)))]
    away = [path for topic in topics for folder in folders
            if os.path.isdir(path := store.path(folder, topic))] + [*others]
    for path in away:
        name = target(store, path)
        # Files below are moved as a whole: no patches.
        changes.steps = [step for step in changes.steps
                         if not step.target.startswith(os.path.join(name, ""))]
        changes.act(MoveAside(name), "move aside", None, None,
                    f"{os.path.basename(path)} is deleted", "")
    return away


def _rebuild_database(changes: Changes, store: Store, topics: frozenset[str],
                      scratch: Scratch) -> None:
    """Rebuild the consume queue database without the queues of the topics. Raises: RefusedError
    if the database is damaged; StoreIOError, MissingExtraError.
    """
    present = store.queues.rocksdb
    if present is None or not any(topic in topics for topic, _ in present.queues):
        return
    if present.damage or present.has_unread:
        raise RefusedError(f"{store.root}: the database of consume queues is damaged; repair it "
                           "first (`rmqctl recover`)")
    kept = {key: queue for key, queue in present.queues.items() if key[0] not in topics}
    database = rocksdb.make(
        log_as_it_is(store), store.root, configured(store, {}).settings, scratch, kept,
        wants=lambda key: key[0] not in topics, recreated=True)
    steps, actions = rocksdb.steps(store.root, database, None,
                                   "entries of deleted topics are removed")
    changes.steps += steps
    changes.actions += actions


def _drop_config(changes: Changes, store: Store, topics: Sequence[str], groups: Sequence[str],
                 clock: Callable[[], int], scratch: Scratch) -> None:
    """Remove the topics and groups from all configuration tables. Raises: RefusedError if a table
    cannot be read.
    """
    if not (topics or groups):
        return
    databases: dict[str, dict[str, Any]] = {}
    tables: list[tuple[str, tuple[str, ...], set[str]]] = [
        (name, tables_of_file, set(topics)) for name, tables_of_file in _TOPIC_TABLES] + [
        (name, tables_of_file, set(groups)) for name, tables_of_file in _GROUP_TABLES] + [
        (name, _OFFSET_TABLES, set()) for name in _OFFSET_FILES] + [
        (name, tables_of_file, set()) for name, tables_of_file in _BY_TOPIC_AND_GROUP]
    for name, tables_of_file, names in tables:
        file = load_one(store, name)
        if file.main.state == MISSING and file.backup.state == MISSING:
            continue
        if file.used is None or file.used.damaged or file.faults:
            raise RefusedError(f"{store.root}: {file.main.fault()}; repair it first (`rmqctl "
                               "recover`)")
        value, dropped = dict(file.value or {}), []
        for table in tables_of_file:
            entries = value.get(table)
            if not isinstance(entries, dict):
                continue
            out = [key for key in entries if key in names or (
                not (names or name in _GROUPS_OF_TOPICS) and _is_offset_of(key, topics, groups))]
            if out:
                dropped += out
                value[table] = {key: entry for key, entry in entries.items() if key not in out}
        if name in _GROUPS_OF_TOPICS:
            dropped += _drop_groups(value, *_GROUPS_OF_TOPICS[name], groups)
        if not dropped:
            continue
        if isinstance(value.get("dataVersion"), dict):
            value["dataVersion"] = next_version(value["dataVersion"], store.generation, clock())
        place = file.main.path if file.main.database else f"{FOLDER}/{name}"
        for key in dropped:
            changes.actions.append(Action("remove", place, key, None, "deleted"))
        if file.main.database:
            databases[name] = value
            continue
        if name in _OFFSET_FILES and not quotes_queue_ids(store, file, value.get("offsetTable")):
            value["offsetTable"] = {key: {int(queue): offset for queue, offset in entry.items()}
                                    for key, entry in (value.get("offsetTable") or {}).items()}
        if name == "consumerOrderInfo.json" and not quotes_queue_ids(
                store, file, value.get("table")):
            value["table"] = _with_bare_numbers(value["table"])
        data = fastjson.build(value)
        for copy in (file.main, file.backup):
            if copy.state != MISSING:
                changes.steps.append(Replace(copy.path, data))
    if databases:
        changes.steps += replaced(store, databases, scratch)


def _with_bare_numbers(value: Any) -> Any:
    """Return the table, in which keys that are queue ids or queue offsets are numbers, as a broker
    writes them.
    """
    if not isinstance(value, dict):
        return value
    return {int(key) if isinstance(key, str) and key.isdecimal() else key: _with_bare_numbers(entry)
            for key, entry in value.items()}


def _drop_groups(value: dict[str, Any], table: str, below: str,
                 groups: Sequence[str]) -> list[str]:
    """Remove the groups from each topic's entry in a table; return the removed entries."""
    dropped: list[str] = []
    entries = value.get(table)
    for topic, entry in (entries if isinstance(entries, dict) else {}).items():
        inner = entry.get(below) if below and isinstance(entry, dict) else entry
        inner = inner if isinstance(inner, dict) else {}
        if gone := [group for group in groups if group in inner]:
            left = {group: kept for group, kept in inner.items() if group not in gone}
            value[table] = {**value[table], topic: {**entry, below: left} if below else left}
            dropped += [f"{topic}@{group}" for group in gone]
    return dropped


def _is_offset_of(key: str, topics: Sequence[str], groups: Sequence[str]) -> bool:
    topic, _, group = key.partition("@")
    return topic in topics or group in groups


def _not_found(store: Store, wanted: EraseSelection, ids: Sequence[str], matches: Matches, *,
               is_empty: bool) -> Iterator[str]:
    """Yield notes on ids, topics and groups that were not found, and on damage that hides messages.

    An id that was not found was mistyped, or its message was erased before.
    """
    if matches.damaged:
        yield (f"{plural(matches.damaged, 'byte', 'bytes')} of the log are damaged, and messages "
               "in them cannot be found; run `rmqctl recover` first")
    if ids:
        yield (f"{len(ids):,} of {plural(len(wanted.ids), 'id', 'ids')}: not in this store, or "
               f"erased before ({named(list(ids))})")
    if is_empty:
        topics = {topic for topic, _ in store.queues.readable}
        yield from (f"this store contains no data of topic {topic}{near_names(topic, topics)}"
                    for topic in wanted.topics if topic not in matches.shared)
        yield from (f"this store contains no data of group {group}" for group in wanted.groups)


def _notes(store: Store, wanted: EraseSelection, matches: Matches, left: dict[str, int],
           unmarked: int, unsearched: int) -> Iterable[str]:
    """Yield notes that the user should read before applying the plan."""
    # Files that opening the store put aside below .rmqctl are not of a repair, and stay.
    kept = {path: count for path, count in left.items() if os.path.relpath(
        path, store.root).startswith(os.path.join(REPAIRS, ""))}
    others = [path for path in left if path not in kept]
    if others:
        count = sum(left[path] for path in others)
        where = named([target(store, path) for path in others])
        yield (f"{plural(count, 'byte', 'bytes')} of erased bodies are also in other messages, or "
               f"in unused or damaged bytes: not erased ({where})")
    if kept and not wanted.purge:
        yield (f"{plural(sum(kept.values()), 'byte', 'bytes')} of erased bodies are in files "
               "that earlier repairs keep below .rmqctl: --purge deletes them")
    if unsearched:
        yield (f"the bodies of {plural(unsearched, 'message', 'messages')} are not searched for "
               "by content (too many): their copies are found by id only")
    if matches.doubtful:
        yield (f"{plural(len(matches.doubtful), 'message has', 'messages have')} the body or the "
               "id of an erased message but may be unrelated: not erased (--same-body erases "
               "them, too)")
    for topic in sorted(matches.shared):
        yield (f"topic {topic} keeps its queues, configuration and offsets: LMQs share its "
               "messages")
    together = {physical: others for physical, others in matches.closed.items() if others >= 0}
    if together:
        yield (f"{plural(len(together), 'batch is', 'batches are')} compressed and can only be "
               "erased as a whole: not erased (at "
               f"{named([str(physical) for physical in sorted(together)])}; --whole-batches also "
               f"erases {plural(sum(together.values()), 'other message')})")
    if unread := len(matches.closed) - len(together):
        yield (f"{plural(unread, 'batch contains', 'batches contain')} an erased body and cannot "
               "be read message by message: not erased")
    if unmarked:
        yield (f"{plural(unmarked, 'message is', 'messages are')} too small for the property "
               f"{MARK}={ERASED}")
    if wanted.purge:
        yield ("--purge deletes everything that this and earlier repairs keep below .rmqctl; "
               "`undo` cannot restore anything afterwards")
    else:
        yield ("erased data is kept below .rmqctl for `undo`, until --purge or `rmqctl undo "
               "STORE --prune 0s --apply` deletes it")
    copies = "replicas and backups" if not store.nodes else (
        "other members of the DLedger group and backups")
    yield f"not erased: {copies} of this store"
