"""Comparison of two stores: messages, queue bounds, configuration files, checkpoints and epochs.

For a DLedger group, the entries of up to three members are compared as well. Messages are compared,
not files. So preallocated space, the sizes of files and bytes beyond the end of the log make no
difference. The comparison is symmetric in ``a`` and ``b``.
"""

from __future__ import annotations

import shlex
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, field
from itertools import islice
from typing import Any, Literal

from rmqctl import vfs
from rmqctl.broker.view import view_of
from rmqctl.checks.diff.differences import MISSING, Difference, Differences, Side
from rmqctl.checks.diff.members import Members, are_members
from rmqctl.checks.diff.physical import PhysicalPass
from rmqctl.checks.diff.queue import QueuePass
from rmqctl.checks.impact import Impact, span
from rmqctl.checks.metadata.copies import offset_differences
from rmqctl.checks.verify.common import plural
from rmqctl.errors import FormatError, StoreIOError, UsageError
from rmqctl.formats.local.message import Record, decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import BACKUP, FOLDER, OK, load_one
from rmqctl.store.controller import EPOCHS, agreement, read_epochs, spans
from rmqctl.store.log.bounds import Bounds, View
from rmqctl.store.log.end import find_end
from rmqctl.store.store import Store

By = Literal["auto", "physical", "queue"]
_SAMPLE = 64
_PLACES = 3
Key = tuple[str, int]
_PAGE = 1 << 20
_OF_MESSAGES = frozenset({"different", *MISSING.values()})


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """Options of a comparison.

    * ``whole``: whether to also compare messages that expired in only one store, and configuration
      files
    * ``strict``: whether a comparison by queue includes physical offset and store host
    * ``most``: maximum number of differences that are kept; all are counted
    * ``view``: see `rmqctl.broker.view.view_of`
    """

    by: By = "auto"
    whole: bool = False
    strict: bool = False
    most: int = 1000
    view: str = "disk"


@dataclass(slots=True)
class Diff:
    """A comparison: call `run`, then read the results.

    ``c``: a third member of a DLedger group. Only the entries of the three members are then
    compared.
    """

    a: Store
    b: Store
    options: DiffOptions = field(default_factory=DiffOptions)
    progress: Callable[[int], None] | None = None
    c: Store | None = None
    differences: Differences = field(init=False)
    summary: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    _a: Side = field(init=False)
    _b: Side = field(init=False)

    def __post_init__(self) -> None:
        self.differences = Differences(self.options.most)
        self._a = Side("a", view_of(self.a, self.options.view))
        self._b = Side("b", view_of(self.b, self.options.view))

    @property
    def equal(self) -> bool:
        """Return whether no differences were found."""
        return not self.differences.total

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object of ``diff``. Call `run` first."""
        impact, differences = self.impact, self.differences
        return {
            "equal": self.equal,
            "summary": {**self.summary, "remarks": self.remarks},
            "differences": [difference.as_dict() for difference in differences.listed],
            "differences_total": differences.total,
            "next": [] if self.following is None else [shlex.join(["rmqctl", *self.following[1]])],
            "impact": None if impact is None else impact.as_dict(),
            "counts": [{"kind": kind, "count": count}
                       for kind, count in sorted(differences.counts.items())],
        }

    @property
    def following(self) -> tuple[str, list[str]] | None:
        """Return the store (a, b or c) and the words of the command that shows more; None if
        nothing differs.

        If only configuration differs: the groups' offsets. Else `verify` of the worse store, which
        has more damage or more missing messages.
        """
        if self.c is not None:
            name, worst = max(self.summary["entries"]["members"].items(), key=lambda item: (
                item[1]["damaged"], item[1]["behind"], item[0]))
            return None if self.equal else (name, ["verify", worst["store"]])
        if not self.differences.counts.keys() - {"config"}:
            return ("a", ["offsets", "diff", self.a.root, self.b.root]) if self.summary[
                "offsets"] else None
        name = max(("b", "a"), key=lambda name: (
            self.summary[name]["damaged_spans"], self.summary[f"missing_in_{name}"]))
        return name, ["verify", self.summary[name]["store"]]

    @property
    def impact(self) -> Impact | None:
        """Return the `Impact` of the differences: the messages that are missing or different; None
        if there are no such messages. Call `run` first.
        """
        summary = self.summary
        if self.c is not None:
            return None
        messages = summary["different"] + summary["missing_in_a"] + summary["missing_in_b"]
        if not messages:
            return None
        listed = [difference for difference in self.differences.listed
                  if difference.kind in _OF_MESSAGES]
        topics = Counter(difference.topic for difference in listed if difference.topic is not None)
        earliest, latest = span((difference.store_timestamp,) * 2 for difference in listed)
        return Impact(messages, messages + summary["equal"], topics, earliest, latest,
                      len(listed) == messages)

    def prepare(self) -> int:
        """Choose how messages are paired; return the number of log bytes that `run` will read.

        Raises: UsageError for a third store, unless all three are members of a DLedger group.
        """
        by = self.options.by
        if self.c is not None:
            if not are_members(self._stores):
                raise UsageError(f"{self.c.root}: a third store requires that all three are "
                                 "members of a DLedger group, each with its own store")
            self.summary["by"] = "entry"
            return sum(store.log.size for store in self._stores)
        if by == "auto":
            by = "physical" if shares_offsets(self._a, self._b) else "queue"
            if by == "queue":
                self.remarks.append("the logs have different physical offsets: messages are "
                                    "matched by topic, queue and queue offset")
        self.summary["by"] = by
        spans = [(side.start, side.end) for side in (self._a, self._b)]
        if by == "queue":
            return 2 * sum(end - start for start, end in spans)
        return max(end for _, end in spans) - min(start for start, _ in spans)

    def run(self) -> None:
        """Compare the stores.
        Raises: StoreIOError if a file of a log cannot be read.
        """
        if not self.summary:
            self.prepare()
        # Members of a group are compared by entries; three logs only by entries.
        self.summary["entries"] = self._members()
        if self.c is not None:
            self.summary |= {name: {"store": store.root}
                             for name, store in zip("abc", self._stores, strict=True)}
            return
        # Two logs, by place or by queue offset.
        compare = self._physical if self.summary["by"] == "physical" else self._queues
        compared = compare(self._a, self._b)
        if compared["damaged_alike"]:
            spans = plural(compared["damaged_alike"], "span")
            self.remarks.append(f"the same damage in both: {spans}")
        count = QueueCount()
        for difference in queue_differences(self._a.view, self._b.view, count,
                                            whole=self.options.whole):
            self.differences.add(difference)
        # Configuration and committed offsets.
        config = compare_config(self.a, self.b)
        offsets = offset_differences(self.a, self.b)
        if self.options.whole:
            for difference in config_differences(config):
                self.differences.add(difference)
            for group in offsets:
                self.differences.add(Difference(
                    "config", "config", file=f"{FOLDER}/consumerOffset.json",
                    detail=f"group {group.group}: {group.in_words}"))
        # The figures.
        self.summary |= {
            "a": _about(self._a), "b": _about(self._b), **compared, "queues": asdict(count),
            "config": asdict(config), "offsets": [group.as_dict() for group in offsets],
            "checkpoint": checkpoints(self.a, self.b),
            "epochs": self._epochs()}

    @property
    def _stores(self) -> list[Store]:
        return [self.a, self.b, *([] if self.c is None else [self.c])]

    def _members(self) -> dict[str, Any] | None:
        """Compare the entries of the members of a DLedger group; return None if a store is not a
        member.
        """
        if not are_members(self._stores):
            return None
        members = Members(self._stores, self.options.most, self.progress if self.c else None)
        members.run()
        for difference in members.differences():
            self.differences.add(difference)
        self.differences.count("entry", members.runs_total - len(members.runs))
        self.remarks += members.remarks()
        return members.as_dict()

    def _epochs(self) -> dict[str, Any] | None:
        """Compare the controller mode epochs; return None if a store has no epochs."""
        epochs_a, epochs_b = read_epochs(self.a).epochs, read_epochs(self.b).epochs
        if not epochs_a or not epochs_b:
            return None
        ends = find_end(self.a).offset, find_end(self.b).offset
        common = agreement(epochs_a, epochs_b, *ends)
        if common.conflict is not None:
            self.differences.add(Difference(
                "epoch", "store", file=EPOCHS, detail=f"epoch {common.conflict} starts at "
                "different physical offsets in a and b"))
        if common.consistent_point != max(ends):
            self.remarks.append("according to their epochs, the logs have nothing in common"
                                if common.consistent_point is None else
                                "according to their epochs, the logs are the same up to "
                                f"{common.consistent_point}")
        return {name: [span._asdict() for span in spans(epochs, end)]
                for name, epochs, end in zip("ab", (epochs_a, epochs_b), ends, strict=True)
                } | asdict(common)

    # -- by physical offset -------------------------------------------------------------------

    def _physical(self, a: Side, b: Side) -> dict[str, Any]:
        start, end = max(a.start, b.start), min(a.end, b.end)
        job = PhysicalPass(a, b, self.differences, self.progress)
        outside = []
        for side, other in ((a, b), (b, a)):
            upto = min(start, side.end)
            if side.start < upto:
                count = self._head(job, side, other, upto)
                outside.append({"store": side.name, "where": "before", "from": side.start,
                                "to": upto, "messages": count})
                self.remarks.append(f"{other.name} starts at {other.start}; {side.name} has "
                                    f"{plural(count, 'message')} before that, from {side.start} on")
        job.compare(end)
        for side, other in ((a, b), (b, a)):
            if side.end > max(end, start):
                position = max(side.position, start)
                count = job.rest(side, side.end, f"{other.name} ends at {other.end}")
                if count:
                    outside.append({"store": side.name, "where": "beyond", "from": position,
                                    "to": side.end, "messages": count})
                    self.remarks.append(f"{other.name} ends at {other.end}; {side.name} continues "
                                        f"to {side.end}: {plural(count, 'message')}")
        return {"compared": {"from": start, "to": max(start, end)}, "outside": outside,
                **asdict(job.tally)}

    def _head(self, job: PhysicalPass, side: Side, other: Side, upto: int) -> int:
        """Skip the messages before the start of the other log or, with ``whole``, report them;
        return their number.
        """
        if self.options.whole:
            return job.rest(side, upto, f"{other.name} starts at {other.start}")
        before = side.messages
        for _ in side.frames(upto):
            side.close_damage(side.position)
        return side.messages - before

    # -- by queue -----------------------------------------------------------------------------

    def _queues(self, a: Side, b: Side) -> dict[str, Any]:
        job = QueuePass(a, b, self.differences, strict=self.options.strict,
                        whole=self.options.whole, progress=self.progress)
        job.compare()
        tally = asdict(job.tally)
        outside = []
        for side, other in ((a, b), (b, a)):
            for where, count in tally["outside"][side.name].items():
                if count:
                    outside.append({"store": side.name, "where": where, "from": None, "to": None,
                                    "messages": count})
                    edge = "before the start" if where == "before" else "after the end"
                    self.remarks.append(f"{side.name} has {plural(count, 'message')} {edge} of "
                                        f"the queues of {other.name}")
        return {"compared": None, **tally, "outside": outside}


def _about(side: Side) -> dict[str, Any]:
    return {"store": side.store.root, "min_phy_offset": side.start, "max_phy_offset": side.end,
            "messages": side.messages, "damaged_spans": side.damaged_spans,
            "bytes_damaged": side.bytes_damaged}


def shares_offsets(a: Side, b: Side) -> bool:
    """Return whether samples show the same messages at the same physical offsets in both logs.

    * Same file size: most records of any sample must agree (a slave may have diverged later).
    * Different file sizes: all records must agree.
    """
    start, end = max(a.start, b.start), min(a.end, b.end)
    if start >= end:  # nothing in common: only an empty log leaves nothing to pair by queue
        return a.start >= a.end or b.start >= b.end
    samples = []
    for number in range(_PLACES):
        for batch in islice(a.log.walk(start + (end - start) * number // _PLACES, end), 1):
            records = [decode(batch.bytes_at(index)) for index in range(min(len(batch), _SAMPLE))]
            if records:
                agreeing = sum(_is_there(b, record) for record in records)
                samples.append((agreeing, len(records)))
    if a.log.file_size == b.log.file_size:
        return any(2 * agreeing > tried for agreeing, tried in samples) or not samples
    return all(agreeing == tried for agreeing, tried in samples)


def _is_there(side: Side, record: Record) -> bool:
    other = side.log.record_at(record.physical_offset)
    return other is not None and (record.topic, record.queue_id, record.queue_offset) == (
        other.topic, other.queue_id, other.queue_offset)


# -- queues ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class QueueCount:
    """Number of queues by result. ``begin_differs``: queues that differ only in their first
    offset.
    """

    compared: int = 0
    different: int = 0
    begin_differs: int = 0


def queue_differences(a: View, b: View, count: QueueCount, *, whole: bool = False) -> Iterator[
        Difference]:
    """Yield a difference for each queue whose bounds are not the same in both views.

    Entries expire with the log. So a different first offset counts only if both logs begin at the
    same offset or ``whole`` is true.
    """
    left, right = _bounds(a), _bounds(b)
    strict = whole or a.store.log.min_offset == b.store.log.min_offset
    for topic, queue_id in sorted({*left, *right}):
        key = topic, queue_id
        bounds_a, bounds_b = left.get(key), right.get(key)
        if _is_empty(bounds_a) and _is_empty(bounds_b):
            continue
        count.compared += 1
        if bounds_a == bounds_b:
            continue
        fields = _fields(bounds_a, bounds_b)
        if fields == ("min_offset",) and not strict:
            count.begin_differs += 1
            continue
        count.different += 1
        yield Difference("queue", "consumequeue", topic=topic, queue_id=queue_id, fields=fields,
                         detail=f"a: {_bounds_text(bounds_a)}; b: {_bounds_text(bounds_b)}")


def _bounds(view: View) -> dict[Key, Bounds | str]:
    """Return, for each queue with a folder, its bounds, or the reason why it cannot be read."""
    store = view.store
    bounds: dict[Key, Bounds | str] = {}
    for key, queue in store.queues.by_key.items():
        with closing(queue):  # a broker has more queues than a process may have files
            try:
                bounds[key] = view.bounds(queue)
            except (StoreIOError, FormatError) as error:
                bounds[key] = str(error)
    for key, batches in store.queues.batch.items():
        try:
            bounds[key] = Bounds(*batches.bounds(store.log.min_offset, view.log_end))
        except (StoreIOError, FormatError) as error:
            bounds[key] = str(error)
    return bounds


def _is_empty(bounds: Bounds | str | None) -> bool:
    return bounds is None or (isinstance(bounds, Bounds) and bounds.end == 0)


def _fields(a: Bounds | str | None, b: Bounds | str | None) -> tuple[str, ...]:
    if not isinstance(a, Bounds) or not isinstance(b, Bounds):
        return ("max_offset",)
    return ("min_offset",) * (a.first != b.first) + ("max_offset",) * (a.end != b.end)


def _bounds_text(bounds: Bounds | str | None) -> str:
    if bounds is None:
        return "no such queue"
    return bounds if isinstance(bounds, str) else f"min {bounds.first}, max {bounds.end}"


# -- configuration --------------------------------------------------------------------------------


@dataclass(slots=True)
class ConfigCount:
    """Result of comparing the configuration files, without their backups.

    ``same``: number of equal files. Other fields: names of the files that differ or are in only one
    store.
    """

    same: int = 0
    different: list[str] = field(default_factory=list)
    only_in_a: list[str] = field(default_factory=list)
    only_in_b: list[str] = field(default_factory=list)


def compare_config(a: Store, b: Store) -> ConfigCount:
    """Compare the files of ``config/`` by content; the layout of a JSON file does not count. An
    unreadable file counts as different.
    """
    files_a, files_b = _config_files(a), _config_files(b)
    count = ConfigCount(only_in_a=sorted(files_a - files_b), only_in_b=sorted(files_b - files_a))
    for name in sorted(files_a & files_b):
        if _same_content(a.path(FOLDER, name), b.path(FOLDER, name)) or _same_value(a, b, name):
            count.same += 1
        else:
            count.different.append(name)
    return count


def config_differences(count: ConfigCount) -> Iterator[Difference]:
    """Yield a difference for each file that differs or is missing from one store."""
    for names, detail in ((count.different, "different in a and b"),
                          (count.only_in_a, "only in a"), (count.only_in_b, "only in b")):
        for name in names:
            yield Difference("config", "config", file=f"{FOLDER}/{name}", detail=detail)


def _config_files(store: Store) -> set[str]:
    try:
        with vfs.scandir(store.path(FOLDER)) as entries:
            return {entry.name for entry in entries if not entry.name.endswith(BACKUP)
                    and stat.S_ISREG(entry.stat().st_mode)}
    except OSError:
        return set()


def _same_content(a: str, b: str) -> bool:
    try:
        with FileSource(a) as left, FileSource(b) as right:
            if left.size != right.size:
                return False
            return all(left.read(position, _PAGE) == right.read(position, _PAGE)
                       for position in range(0, left.size, _PAGE))
    except StoreIOError:
        return False


def _same_value(a: Store, b: Store, name: str) -> bool:
    left, right = load_one(a, name).main, load_one(b, name).main
    return (left.state == right.state == OK and not left.database and not right.database
            and left.value == right.value)


# -- checkpoint -----------------------------------------------------------------------------------


def checkpoints(a: Store, b: Store) -> dict[str, Any]:
    """Return both checkpoints (epoch ms and offsets; null if missing) and their differences."""
    left, right = (None if store.checkpoint is None else store.checkpoint._asdict()
                   for store in (a, b))
    names = sorted({*(left or {}), *(right or {})})
    return {"a": left, "b": right,
            "different": [name for name in names if (left or {}).get(name) != (
                right or {}).get(name)]}
