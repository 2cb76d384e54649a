"""``recover --only config``: repair topics, groups and offsets in ``config/``.

A file that a broker would reject is rebuilt from its readable part and from its backup. (Brokers
write these files in place. After a crash, a file may contain only the start of the new content.)
If a byte is wrong, only the entry that contains it is affected.

If neither of them contains an entry, the file is rebuilt from names and offsets in the store, and
from the output of ``mqadmin exportMetadata``, if given. Notes name unknown values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from rmqctl.checks.delays import delays
from rmqctl.checks.metadata.judge import REPORTED, judge
from rmqctl.checks.verify.common import plural
from rmqctl.engine.config.table import next_version
from rmqctl.formats.config import fastjson
from rmqctl.formats.config.one_byte import DamagedEntry
from rmqctl.formats.local.properties import SCHEDULE_TOPIC
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.config import inferred
from rmqctl.repair.config.exported import Exported, fitting, refuse_foreign
from rmqctl.repair.offsets.delays import set_back_delays
from rmqctl.repair.plan import Action, Create, MoveAside, Replace, Step, Watch
from rmqctl.store.config.config import (
    EMPTY,
    FOLDER,
    MAX_SIZE,
    MISSING,
    ODDITY,
    UNREADABLE,
    ConfigCopy,
    ConfigFile,
    load_beside,
    load_one,
)
from rmqctl.store.config.readable import Readable, readable_part
from rmqctl.store.store import Store

CONFIG = "config"
_SINCE = 5
_NAMED = 5
"""Maximum number of damaged entries that a note names."""


class _Kind(NamedTuple):
    """A kind of file.

    ``table``: the name of the file's table.
    ``entry``, ``entries``: nouns for the entries.
    ``shape``: ``bean`` for objects with a name, ``numbers`` for a number per queue (``{0:5}``),
    ``number`` for one number.
    """

    name: str
    table: str
    entry: str
    entries: str
    shape: str

    @property
    def unit(self) -> str:
        return "entry" if self.shape == "numbers" else self.entry

    def counted(self, number: int) -> str:
        return plural(number, self.entry, self.entries)


_KINDS = (_Kind("topics.json", "topicConfigTable", "topic", "topics", "bean"),
          _Kind("consumerOffset.json", "offsetTable", "topic@group entry", "topic@group entries",
                "numbers"),
          _Kind("subscriptionGroup.json", "subscriptionGroupTable", "group", "groups", "bean"),
          _Kind("delayOffset.json", "offsetTable", "delay level", "delay levels", "number"))


_BY_ITSELF = {
    "consumerFilter.json": "consumers register their SQL92 filters again",
    "consumerOrderInfo.json": "ordered POP consumers get unacknowledged messages again",
    "topicQueueMapping.json": "static topics lose their queue mapping; take it from a replica",
    "timermetrics": "the broker recounts timed messages",
    "transactionMetrics": "the broker recounts half messages",
    "messageRequestMode.json": "groups use the broker's default delivery mode (pull or POP) again",
    "lmqConsumerOffset.json": "groups of light queues start where consumeFromWhere specifies",
}
"""Files that can only be restored from their backups, each with the consequence if this is
impossible. Most of these files prevent a broker from starting if neither the file nor its backup
can be read.
"""


@dataclass(slots=True)
class ConfigMended:
    """Steps and actions that repair configuration files, and notes on what remains unknown."""

    steps: list[Step] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def mend_config(store: Store, generation: int, table: Iterable[str], clock: Callable[[], int],
                watch: Watch, *, missing: bool, settled: Collection[str] = (),
                exports: Sequence[Exported] = ()) -> ConfigMended:
    """Return the steps, actions and notes that repair all files. Raises: StoreIOError.

    ``table``: queues in the log (``TopicTest-3``).
    ``clock``: returns the time in epoch ms.
    ``missing``: whether to create files that have neither a main file nor a backup.
    ``settled``: files that the plan already restores from another store.
    ``exports``: for each file, the first export that contains the file's table is used.
    """
    mender = _Mender(store, generation, list(table), clock, watch, missing, exports)
    for kind in _KINDS:
        if f"{FOLDER}/{kind.name}" not in settled:
            mender.mend(kind)
    for name, what_follows in _BY_ITSELF.items():
        if f"{FOLDER}/{name}" not in settled:
            mender.free(load_one(store, name), what_follows)
    mender.free(load_beside(store, "compaction", "position-checkpoint"),
                "compaction starts again with the first message")
    for export in exports:
        mender.judge(export)
    return mender.mended


class _Mender:
    def __init__(self, store: Store, generation: int, table: list[str], clock: Callable[[], int],
                 watch: Watch, missing: bool, exports: Sequence[Exported]) -> None:
        self._store, self._generation, self._table = store, generation, table
        self._clock, self._watch, self._missing = clock, watch, missing
        self._exports, self._used = exports, set[str]()
        self.mended = ConfigMended()
        self._groups: set[str] = set()
        """Groups with consumer offsets in the readable part of the file or in its backup."""
        self._judged = judge(store)

    def mend(self, kind: _Kind) -> None:
        file = load_one(self._store, kind.name)
        main, backup = file.main, file.backup
        if main.usable and not main.damaged:
            self._emptied(kind, file)
            return
        if (main.state == UNREADABLE and main.offset is None) or main.size > MAX_SIZE:
            self.mended.notes.append(f"{main.path}: {main.reason}; it is left as it is")
            return
        if (main.state == ODDITY and main.value is not None and "\ufffd" in str(main.value)
                and not self._one_byte(main)):
            self.mended.notes.append(f"{main.fault()}; some names in it are damaged, so it is "
                                     "left as it is")
            return
        if main.state == MISSING and backup.state in (MISSING, EMPTY):
            self._create(kind, file)
            return
        read = self._readable(kind, main)
        of_backup = backup.value if backup.usable and not backup.damaged else None
        if read is None and of_backup is None:
            torn = self._readable(kind, backup)
            of_backup = None if torn is None else torn.value
        if read is None and of_backup is None:
            self._create(kind, file)
            return
        self._of_copies(kind, file, read, of_backup)

    def free(self, file: ConfigFile, what_follows: str) -> None:
        """Restore a file from its backup, or move the file aside if neither copy can be read."""
        main, backup = file.main, file.backup
        if (main.usable and not main.damaged) or main.state == backup.state == MISSING:
            return
        if any(copy.state == UNREADABLE and copy.offset is None for copy in (main, backup)):
            return  # it cannot be read from the disk
        if backup.usable and not backup.damaged:
            data = self._store.read_small(backup.path, most=MAX_SIZE)
            step = Create if main.state == MISSING else Replace
            self.mended.steps.append(step(main.path, data))
            self.mended.actions.append(Action(
                "restore", main.path, main.state, file.entries,
                f"{main.reason}; a broker reads {os.path.basename(backup.path)} instead", "entry",
                proof={"backup": backup.path}))
        elif file.used is None and not self._mended_free(file):
            self._aside(file, what_follows, empty=True)

    def _mended_free(self, file: ConfigFile) -> bool:
        """Keep the intact entries of a file in which a byte is wrong; return False if nothing after
        the damage can be read.
        """
        main = file.main
        if main.state != UNREADABLE or not main.path.startswith(f"{FOLDER}/"):
            return False
        readable = readable_part(file.name, self._data(main))
        if readable is None or readable.lost is None:
            return False
        count = 0
        for table in readable.value.values():
            if isinstance(table, dict):
                for entry in readable.lost:
                    table.pop(entry.key, None)
                count += len(table)
        text = f", except for {_texts(readable.lost)}" if readable.lost else ""
        self.mended.steps.append(Replace(main.path, fastjson.build(readable.value)))
        self.mended.actions.append(Action(
            "mend", main.path, main.state, count,
            f"{main.reason}; {plural(count, 'entry', 'entries')} can be read{text}", "entry",
            proof={"entries_read": count, "entries_damaged": len(readable.lost)}))
        return True

    # -- of what can be read --------------------------------------------------------------------

    def _readable(self, kind: _Kind, copy: ConfigCopy) -> Readable | None:
        """Return the readable part of a damaged copy; None if it contains no entry."""
        if copy.state not in (UNREADABLE, ODDITY):
            return None
        readable = readable_part(kind.name, self._data(copy))
        return readable if readable is not None and _entries(kind, readable.value) else None

    def _data(self, copy: ConfigCopy) -> bytes:
        return self._store.read_small(FOLDER, copy.path.removeprefix(f"{FOLDER}/"), most=MAX_SIZE)

    def _one_byte(self, copy: ConfigCopy) -> bool:
        """Return whether exactly one byte of a copy is not UTF-8. Several such bytes may be text in
        another encoding.
        """
        text = self._data(copy).decode("utf-8", "surrogateescape")
        return sum("\udc80" <= char <= "\udcff" for char in text) == 1

    def _filled(self, kind: _Kind, key: str, entry: Any, older: Any) -> Any:
        """Return a partly readable entry, completed from the backup or, for topics and groups, with
        the values that the store shows and a broker's defaults.
        """
        if not isinstance(older, dict) and kind.shape == "bean":
            inferred_entries = (inferred.topics(self._store, self._generation, self._table)[0]
                     if kind.name == "topics.json" else inferred.groups(
                         self._store, self._generation, self._table, [key])[0])
            older = inferred_entries.get(key)
        return {**older, **entry} if isinstance(older, dict) else entry

    def _lost(self, kind: _Kind, file: ConfigFile, lost: Sequence[DamagedEntry],
              fresh: dict[str, Any], old: dict[str, Any]) -> str:
        """Complete the partly readable entries in ``fresh``, add the notes about damaged entries,
        and return the damaged texts.
        """
        path, gone = file.main.path, 0
        for entry in lost:
            key = entry.key
            if key is None or key not in fresh:
                gone += key not in old if key is not None and key != kind.table else not old
                continue
            fresh[key] = self._filled(kind, key, fresh[key], old.get(key))
            where = f"{path}: {key}: {entry.text} is not readable"
            if key in old:
                self.mended.notes.append(f"{where}; the value in the backup is used")
            elif kind.shape == "numbers":
                self.mended.notes.append(
                    f"{where}: in that queue, the group starts where its consumeFromWhere "
                    "specifies")
            elif len(fresh[key]) > len(entry.value or ()):
                self.mended.notes.append(
                    f"{where}; the value that the store shows, or a broker's default, is used")
            else:
                self.mended.notes.append(f"{where}; the value is missing")
        shown = _texts(lost)
        if gone:
            self.mended.notes.append(
                f"{path}: {plural(gone, 'damaged entry is', 'damaged entries are')} not in the "
                f"repaired file: {shown}")
        return shown

    def _of_copies(self, kind: _Kind, file: ConfigFile, read: Readable | None,
                   of_backup: dict[str, Any] | None) -> None:
        # Readable entries of the file, of its backup, and of the user's export.
        newest, lost, length = read or Readable({}, None, 0)
        older = of_backup or {}
        fresh, old = _entries(kind, newest), _entries(kind, older)
        export = self._export(kind) if of_backup is None else None
        if export is not None:
            old = self._taken(export, kind)
        damaged = "" if not lost else self._lost(kind, file, lost, fresh, old)
        if lost is not None and all(entry.value is not None for entry in lost):
            # All other entries were deleted before the file was written.
            keys = {entry.key for entry in lost}
            old = {key: entry for key, entry in old.items() if keys & {key, None, kind.table}}
        only_old = old.keys() - fresh.keys()
        value = {**older, **newest, kind.table: {**old, **fresh}}
        if isinstance(older.get("dataVersion"), dict) and newest:
            value["dataVersion"] = {**older["dataVersion"], **newest.get("dataVersion", {})}
        if kind.shape == "numbers":
            self._groups = {key.partition("@")[2] for key in {*fresh, *old} if key.count("@") == 1}
        # The reason, and the sources.
        reason = f"{file.main.reason}; "
        if not fresh:
            verb = "restore"
            reason += f"its backup has {kind.counted(len(old))}"
        else:
            verb = "mend"
            reason += (f"{kind.counted(len(fresh))} before the damage are readable"
                       if lost is None else f"{kind.counted(len(fresh))} can be read")
            if damaged:
                reason += f", except for {damaged}"
            if only_old:
                where = "the backup" if export is None else export.name
                reason += f", {len(only_old)} more are in {where}"
        # Notes on what is unknown.
        if lost is None and fresh and of_backup is None and export is None:
            self.mended.notes.append(
                f"{file.main.path}: the content after byte {length} is unknown, and no usable "
                "backup exists")
        elif kind.shape == "numbers" and only_old:
            self.mended.notes.append(
                f"{file.main.path}: offsets of {kind.counted(len(only_old))} are from the "
                "backup, written at least 5 s before the file itself: groups may get messages "
                "twice")
        self._put(kind, file, value, verb, reason, {
            "read_before_break": len(fresh), "bytes_read": length,
            **({} if lost is None else {"entries_damaged": len(lost)}),
            "of_backup": 0 if export is not None else len(only_old) if fresh else len(old),
            "backup": file.backup.path if of_backup is not None else None,
            **(_proof(export, len(only_old)) if export is not None else {})},
            taken=None if fresh or not file.backup.usable else file.backup)

    # -- of what mqadmin wrote ------------------------------------------------------------------

    def _export(self, kind: _Kind) -> Exported | None:
        return next((export for export in self._exports if export.tables.get(kind.table)), None)

    def _taken(self, export: Exported, kind: _Kind) -> dict[str, Any]:
        """Return the entries of an export. Raises: RefusedError if the export has none of the
        store's topics.
        """
        refuse_foreign(export, inferred.topics(self._store, self._generation, self._table)[0])
        self._used.add(export.name)
        good, notes = fitting(self._store, export, kind.table)
        self.mended.notes += notes
        return good

    def judge(self, export: Exported) -> None:
        """Add notes if entries of an export are invalid, or if the export is not needed."""
        if export.refused:
            skipped = plural(export.refused, "invalid entry", "invalid entries")
            self.mended.notes.append(
                f"{export.name}: {skipped} skipped (no broker writes such entries)")
        if export.name not in self._used:
            self.mended.notes.append(f"{export.name}: not needed: topics and groups are present, "
                                     "or in a backup")

    # -- of a file that lost its entries --------------------------------------------------------

    def _emptied(self, kind: _Kind, file: ConfigFile) -> None:
        """Restore the entries of a file that can be loaded but has fewer entries than its backup or
        the store.
        """
        if not any(defect.category in REPORTED and defect.loss.file == file.main.path
                   for defect in self._judged.defects):
            return
        lost = self._judged.restored.get(kind.name)
        if not lost:
            if self._missing:
                self._create(kind, file)
            return
        if kind.shape == "number":
            changes = set_back_delays(
                self._store, {int(level): int(str(offset)) for level, offset in lost.items()},
                self._clock)
            self.mended.steps += changes.steps
            self.mended.actions += changes.actions
            return
        entries = _entries(kind, file.main.value)
        for key, entry in lost.items():
            entries[key] = entry if kind.shape != "numbers" else _furthest(
                entries.get(key, {}), entry)
        where = os.path.basename(file.backup.path)
        self._put(kind, file, {**file.main.value, kind.table: entries}, "restore",
                  f"{kind.counted(len(lost))} from {where}, which the next write would replace",
                  {"of_backup": len(lost), "backup": file.backup.path})

    # -- of what the store knows ----------------------------------------------------------------

    def _create(self, kind: _Kind, file: ConfigFile) -> None:
        """Rebuild a file if neither the file nor its backup can be read."""
        never = file.main.state == MISSING and file.backup.state in (MISSING, EMPTY)
        export = self._export(kind)
        if never and export is None and not self._missing:
            return
        if kind.name == "consumerOffset.json":
            self._without_offsets(file, never=never)
            return
        entries, proof = self._inferred(kind, file, export)
        if entries:
            why = "missing" if never else file.main.reason or (
                "no entries" if file.main.usable else file.main.state)
            tells = f"the store shows {kind.counted(len(entries))}"
            if export is not None:
                taken = proof["of_export"]
                tells = f"{export.name} has {kind.counted(taken)}" + (
                    f", the store shows {len(entries) - taken} more" * (len(entries) > taken))
            self._put(kind, file, {kind.table: entries}, "rebuild",
                      f"{why}, and no usable backup; {tells}", proof)
        elif not never:
            self._aside(file)

    def _inferred(self, kind: _Kind, file: ConfigFile,
                  export: Exported | None) -> tuple[dict[Any, Any], dict[str, Any]]:
        """Return (inferred entries, evidence for them). ``export``: an export that has this file's
        table.
        """
        # Topics and groups: from the queues and the log.
        path = file.main.path
        if kind.name == "topics.json":
            topics, seen = inferred.topics(self._store, self._generation, self._table)
            return self._with(export, kind, topics, {"queues_seen": seen}, (
                f"{path}: {{}}perm, order, filter type and attributes are unknown, as are queues "
                "without messages or offsets. Topics get a broker's defaults for a topic created "
                "by sending (4 queues, perm 6). Topics without messages are missing; deleted "
                "topics come back if their files still exist"))
        if kind.name == "subscriptionGroup.json":
            groups, evidence = inferred.groups(self._store, self._generation, self._table,
                                               sorted(self._groups))
            return self._with(export, kind, groups, {"told_by": evidence}, (
                f"{path}: {{}}retry counts and other settings of groups are unknown: they get a "
                "broker's defaults (16 retries)"))
        # Delays: from the delivered copies in the log.
        if not any(topic == SCHEDULE_TOPIC for topic, _ in self._store.queues.by_key):
            return {}, {}
        with self._watch("looking for delivered messages", self._store.log.size) as done:
            levels = delays(self._store, done)
        if levels:
            self.mended.notes.append(
                f"{path}: each delay level continues at the first message without a delivered "
                "copy in the log; messages after it that were delivered are delivered again")
        return ({level: delayed.first for level, delayed in levels.items()},
                {"levels": {str(level): {"first_not_delivered": delayed.first,
                                         "delivered": delayed.before, "messages": delayed.messages}
                            for level, delayed in levels.items()}})

    def _with(self, export: Exported | None, kind: _Kind, entries: inferred.Table,
              proof: dict[str, Any], unknown: str) -> tuple[inferred.Table, dict[str, Any]]:
        """Return (entries, evidence). The entries are all entries of the export, and the
        inferred ``entries`` that are missing from it.

        ``unknown``: the note on unknown values of inferred entries, with a placeholder for their
        names.
        """
        theirs = {} if export is None else self._taken(export, kind)
        mine = dict.fromkeys(sorted(entries.keys() - theirs.keys()))
        if mine:
            named = f"of {inferred.text_of(mine)}: " if export is not None else ""
            self.mended.notes.append(unknown.format(named))
        if export is not None:
            proof = {**_proof(export, len(theirs)), **proof}
        return {**entries, **theirs}, proof

    def _without_offsets(self, file: ConfigFile, *, never: bool) -> None:
        groups = {row["group"] for row in load_one(self._store, "subscriptionGroup.json").rows()}
        groups |= inferred.groups(self._store, self._generation, self._table)[1].keys()
        if groups or not never:
            self.mended.notes.append(
                f"{file.main.path}: consumer offsets are unknown. Each group starts at "
                "its consumers' consumeFromWhere, unless `rmqctl offsets reset` "
                f"sets offsets by time{': ' if groups else ''}"
                f"{inferred.text_of(dict.fromkeys(sorted(groups)))}")
        if not never:
            self._aside(file)

    # -- steps ------------------------------------------------------------------------------------

    def _aside(self, file: ConfigFile, what_follows: str = "", *, empty: bool = False) -> None:
        why = ("a broker that reads this file does not start; without the file, it starts"
               if file.stops_broker else "a broker reads nothing from it")
        why += f": {what_follows}" if what_follows else ""
        for copy in (file.main, file.backup):
            if (copy.state == UNREADABLE and copy.offset is not None) or (
                    empty and copy.state == EMPTY):
                self.mended.steps.append(MoveAside(copy.path))
                self.mended.actions.append(Action("move aside", copy.path, copy.state, None,
                                                  f"{copy.reason}; {why}"))

    def _put(self, kind: _Kind, file: ConfigFile, value: dict[str, Any], verb: str, reason: str,
             proof: dict[str, Any], taken: ConfigCopy | None = None) -> None:
        """Add the step and the action that write a file. ``taken``: the backup whose bytes are
        copied unchanged, if any.
        """
        entries = _entries(kind, value)
        value = {**value, kind.table: {
            int(key) if kind.shape == "number" else key:
            {int(queue): offset for queue, offset in entry.items()}
            if kind.shape == "numbers" else entry for key, entry in entries.items()}}
        version = value.get("dataVersion")
        if kind.shape == "bean" or isinstance(version, dict) or self._generation >= _SINCE:
            value["dataVersion"] = next_version(version, self._generation, self._clock())
        data = (fastjson.build(dict(sorted(value.items()))) if taken is None else
                self._store.read_small(FOLDER, taken.path.removeprefix(f"{FOLDER}/"),
                                       most=MAX_SIZE))
        step = Create if file.main.state == MISSING else Replace
        self.mended.steps.append(step(file.main.path, data))
        self.mended.actions.append(Action(verb, file.main.path, file.main.state, len(entries),
                                          reason, kind.unit, proof=proof))


def _texts(lost: Sequence[DamagedEntry]) -> str:
    """Return the damaged texts, at most `_NAMED`."""
    more = f"; and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    return "; ".join(entry.text for entry in lost[:_NAMED]) + more


def _furthest(ours: Any, theirs: Any) -> dict[str, Any]:
    """Merge the offsets of two copies: return, for each queue, the greater offset."""
    offsets = {str(queue): offset for queue, offset in ours.items()}
    for queue, offset in theirs.items():
        offsets[str(queue)] = max(offset, offsets.get(str(queue), 0))
    return offsets


def _proof(export: Exported, taken: int) -> dict[str, Any]:
    return {"exported": export.name, "exported_at": export.time, "of_export": taken}


def _entries(kind: _Kind, value: dict[str, Any]) -> dict[str, Any]:
    """Return those entries of a file's table that have the expected form."""
    table = value.get(kind.table)
    if not isinstance(table, dict):
        return {}
    return {key: entry for key, entry in table.items() if _is_sound(kind, key, entry)}


def _is_sound(kind: _Kind, key: Any, entry: Any) -> bool:
    if kind.shape == "number":
        return _is_number(key) and _is_int(entry)
    if kind.shape == "numbers":
        return isinstance(entry, dict) and all(
            _is_number(queue) and _is_int(offset) for queue, offset in entry.items())
    return isinstance(entry, dict)


def _is_number(key: Any) -> bool:
    text = str(key).removeprefix("-")
    return text.isascii() and text.isdigit() and len(text) < 11


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
