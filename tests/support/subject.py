"""rmqctl as the tests see it: every call into the library stands here, and nowhere else.

The functions answer in plain tuples, in the shapes of `tests.support.engine`, so that a change of
the library's interface changes this file alone. `verify` goes through the command, whose JSON is
a contract, or straight through the library, which is twice as fast.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from rmqctl.broker import offset_by_time as by_time
from rmqctl.broker.get_message import get_message as pull
from rmqctl.broker.versions import version_for
from rmqctl.broker.view import broker_view
from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.formats.local.message import Record
from rmqctl.store import Sizes, Store
from rmqctl.store.log.bounds import View
from rmqctl.store.query import lookup
from rmqctl.store.queue.compaction import CompactionQueue
from tests.support import cli
from tests.support.engine import Expect

Row = tuple[int, int, int, str, str, int]
"""(queue offset, physical offset, size, sha1 of the body, topic, queue id) of a record."""
UnitRow = tuple[int, ...]
"""(queue offset, physical offset, size, tagsCode), for a BatchCQ also (batch size, compacted)."""
PullRow = tuple[str, int, int, int, list[int]]
"""(status, next begin, min, max, physical offsets)."""


# -- reading -------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _view(root: Path, generation: int, folders: tuple[str, ...], _age: tuple[int, int]) -> View:
    """The broker's view of a golden store, kept open for the tests that ask it next. A later test
    may have another store in a folder of this name.
    """
    return broker_view(Store.open(root, folders), version_for(generation))


def _opened(root: Path, expect: Expect) -> View:
    about = root.stat()
    return _view(root, int(expect.engine[0]), tuple(expect.commitlog_dirs),
                 (about.st_ino, about.st_ctime_ns))


def _row(queue_offset: int, record: Record) -> Row:
    return (queue_offset, record.physical_offset, record.total_size,
            hashlib.sha1(record.body).hexdigest(), record.topic.decode(), record.queue_id)


def messages(root: Path, expect: Expect, topic: str, queue_id: int) -> list[Row]:
    """The messages of a queue from min to max, as `getMessage` would deliver them."""
    view = _opened(root, expect)
    rows: list[Row] = []
    compacted = CompactionQueue.open(view.store, topic, queue_id)
    if compacted is not None:
        with compacted:
            for unit in (unit for units in compacted.files for unit in units):
                record = compacted.record(unit)
                if record is not None:
                    rows.append(_row(record.queue_offset, record))
        return rows
    log_end = view.log_end or 0
    batch = view.store.queues.batch.get((topic, queue_id))
    if batch is not None:
        units = [(int(r["msg_base_offset"]), int(r["physical_offset"]), int(r["size"]))
                 for r in batch.all_used(log_end)]
    else:
        queue = view.store.queues.find(topic, queue_id)
        if queue is None:
            return []
        bounds = view.bounds(queue)
        units = [(bounds.first + at, int(r["physical_offset"]), int(r["size"]))
                 for at, r in enumerate(queue.units(bounds.first, bounds.end - bounds.first))]
    for _, physical, size in units:
        record = view.store.log.record_at(physical, size)
        if record is not None:
            rows.append(_row(record.queue_offset, record))
    return rows


def cq(root: Path, expect: Expect, topic: str, queue_id: int) -> list[UnitRow]:
    """The entries from min to max, fillers included, tagsCode raw (an ext address stays one)."""
    view = _opened(root, expect)
    batch = view.store.queues.batch.get((topic, queue_id))
    if batch is not None:
        names = ("msg_base_offset", "physical_offset", "size", "tags_code", "batch_size",
                 "compacted_offset")
        return [tuple(int(row[name]) for name in names) for row in batch.all_used(view.log_end)]
    queue = view.store.queues.find(topic, queue_id)
    if queue is None:
        return []
    bounds = view.bounds(queue)
    return [(bounds.first + at, *(int(value) for value in row))
            for at, row in enumerate(queue.units(bounds.first, bounds.end - bounds.first))]


def ext(root: Path, expect: Expect, topic: str, queue_id: int,
        address: int) -> tuple[int, int, bytes | None, int]:
    """(tagsCode, store timestamp, bit map or None, size) of the ext unit behind an address."""
    from rmqctl.checks.verify.queue.ext_units import ExtReader

    unit = ExtReader(_opened(root, expect).store, topic, queue_id).unit(address)
    assert unit is not None
    return unit.tags_code, unit.store_timestamp, unit.bit_map or None, unit.size


def min_max(root: Path, expect: Expect, topic: str, queue_id: int) -> tuple[int, int]:
    """The queue's min and max offset; (0, 0) for a queue that is not there."""
    view = _opened(root, expect)
    batch = view.store.queues.batch.get((topic, queue_id))
    if batch is not None:
        return batch.bounds(view.store.log.min_offset, view.log_end)
    queue = view.store.queues.find(topic, queue_id)
    if queue is None:
        return 0, 0
    bounds = view.bounds(queue)
    return bounds.first, bounds.end


def query_key(root: Path, expect: Expect, topic: str, key: str, begin: int, end: int,
              maximum: int, *, raw: bool) -> list[int]:
    """Physical offsets in the broker's order (ascending); ``raw`` keeps false hash hits."""
    answer = lookup.by_key(_opened(root, expect), topic, key, begin=begin, end=end, most=maximum,
                           raw=raw)
    return [record.physical_offset for record in answer.records]


def offset_by_time(root: Path, expect: Expect, topic: str, queue_id: int, timestamp: int, *,
                   like: str, boundary: str) -> int:
    """The queue offset at a time: ``like`` "4.9.3" or "5.3.3", boundary "lower" or "upper"."""
    answer = by_time.offset_by_time(_opened(root, expect), topic, queue_id, timestamp,
                                        upper=boundary == "upper", like=like)
    return 0 if answer is None else answer.queue_offset


def get_message(root: Path, expect: Expect, topic: str, queue_id: int,
                offset: int) -> PullRow:
    """``getMessage`` with at most five messages."""
    answer = pull(_opened(root, expect), topic, queue_id, offset, 5)
    return answer.status, answer.next_begin, answer.min, answer.max, list(answer.offsets)


def log_bounds(root: Path, expect: Expect) -> tuple[int, int]:
    """The log's min and max physical offset, as the engine has them after its recovery."""
    view = _opened(root, expect)
    return view.store.log.min_offset, view.log_end or 0


# -- verify --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; ``file`` is relative to the root.

    ``offset`` is the physical offset for the commitlog, else the position in the file;
    ``position`` is always the latter. ``count``: how many rows or records it stands for.
    """

    category: str
    severity: str
    structure: str
    file: str
    offset: int | None
    length: int | None
    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    position: int | None
    count: int
    detail: str

    @property
    def physical_offset(self) -> int | None:
        """Of a finding in the commitlog: the place in the log."""
        return self.offset if self.structure == "commitlog" else None

    def touches(self, file: str, span: tuple[int, int]) -> bool:
        """Whether it names ``file`` and a place in the span (or no place at all)."""
        if self.file != file:
            return False
        if self.position is None:
            return True
        return self.position < span[1] and self.position + max(self.length or 0, 1) > span[0]

    def __str__(self) -> str:
        return (f"{self.severity} {self.category} {self.structure} {self.file}@{self.position}"
                f"+{self.length}: {self.detail}")


@dataclass(frozen=True, slots=True)
class Report:
    """What verify says: ``ok``, findings, and where every byte of the log went."""

    ok: bool
    findings: tuple[Finding, ...]
    coverage: dict[str, int]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that mean damage: errors and warnings."""
        return tuple(finding for finding in self.findings if finding.severity != "info")

    def of(self, *structures: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.structure in structures)

    def text(self) -> str:
        return "\n".join(str(finding) for finding in self.findings) or "no findings"


def verify(root: Path, *, options: Sequence[str] = (), only: str | None = None) -> Report:
    """Everything that can be checked, through the library: the tests ask tens of thousands of
    times. ``only`` and ``options`` as the command takes them; `verify_by_command` is the same
    through the command, which also counts what is lost."""
    folder = {"--commitlog-dir": [], "--commitlog-file-size": [], "--consumequeue-file-size": [],
              "--index-slots": [], "--index-max": []}
    for name, value in zip(options[::2], options[1::2], strict=True):
        folder[name].append(value)
    sizes = Sizes(*(int(folder[name][0]) if folder[name] else None for name in list(folder)[1:]))
    with Store.open(root, folder["--commitlog-dir"], sizes) as store:
        wanted = None if only is None else frozenset(only.split(","))
        run = Verification(store, VerifyOptions(wanted))
        raw = [finding.as_dict() for finding in run.findings()]
        return Report(run.ok, tuple(_findings(root, raw)), run.coverage.as_dict())


def verify_by_command(root: Path, *, options: Sequence[str] = (),
                      only: str | None = None) -> Report:
    """Everything that can be checked. ``only`` as the option takes it."""
    words = ["verify", os.fspath(root), "-o", "json", *options]
    if only is not None:
        words += ["--only", only]
    raw = cli.run(*words).expect(0, 1).json()
    coverage = {name: count for name, count in raw["coverage"].items()
                if name != "messages_already_lost"}
    return Report(raw["ok"], tuple(_findings(root, raw["findings"])), coverage)


def _findings(root: Path, raw: Iterable[dict[str, Any]]) -> Iterable[Finding]:
    for finding in raw:
        file = finding.get("file") or ""
        yield Finding(
            finding["category"], finding["severity"], finding["structure"],
            os.path.relpath(file, root) if os.path.isabs(file) else file,
            finding.get("offset"), finding.get("length"), finding.get("topic"),
            finding.get("queue_id"),
            finding.get("queue_offset"), finding.get("position", finding.get("offset")),
            finding.get("count", 1), finding.get("detail") or "")


def every_byte_is_accounted_for(report: Report) -> bool:
    """The identity the contract promises, whatever the damage."""
    parts = ("bytes_in_messages", "bytes_blank", "bytes_zero", "bytes_damaged")
    return report.coverage["bytes_total"] == sum(report.coverage[name] for name in parts)


# -- commands ------------------------------------------------------------------------------------


@cache
def read_only_commands() -> list[str]:
    """The names of all commands that declare to change nothing, from the registry itself."""
    listed = cli.run("commands", "-o", "json").expect(0).json()
    return sorted(difference["name"] for difference in listed
                  if difference["effect"] == "read-only")
