"""Run `verify` on the message, file, queue or topic under the cursor."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import field

from rmqctl.checks.doctor import Diagnosis, diagnose
from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.errors import UnsupportedError
from rmqctl.ext.browse.listing import ListRow
from rmqctl.ext.browse.opened import BrowsedPlace, StoreView
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.log.end import used_size

_MAX_LISTED = 500
_BY_FOLDER = {"consumequeue": "consumequeue", "consumequeue_ext": "consumequeue",
              "batchconsumequeue": "consumequeue", "index": "index", "config": "config",
              "timerlog": "timer", "timerwheel": "timer", "compaction": "compaction",
              "checkpoint": "checkpoint"}
"""The structure whose checks cover the files in each top-level folder of a store."""


@dataclass(frozen=True, slots=True)
class Task:
    """A check to run.

    * ``subject``: name of the checked thing, shown to the user
    * ``only``: structures to check (None: all)
    * ``part``: range of physical offsets to check (None: the complete log)
    * ``concerns``: returns whether to show a finding
    """

    subject: str
    only: frozenset[str] | None
    part: tuple[int, int] | None = None
    concerns: Callable[[Finding], bool] = field(default=lambda _finding: True)


@dataclass(slots=True)
class CheckResult:
    """The result of a check: the first findings, the number of all findings, and notes as
    sentences. ``diagnosis``: the result of `doctor`, if the whole store was checked.
    """

    findings: list[Finding] = field(default_factory=list)
    total: int = 0
    notes: list[str] = field(default_factory=list)
    diagnosis: Diagnosis | None = None

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> CheckResult:
        """Return the check result for a diagnosis of the whole store."""
        verdict = diagnosis.findings
        notes = [diagnosis.verdict, *diagnosis.losses.in_words(), *(
            f"{name} was not checked: {reason}" for name, reason in diagnosis.not_judged.items())]
        return cls(list(verdict.findings[:_MAX_LISTED]), sum(verdict.counts.values()),
                   list(map(str, notes)), diagnosis)


def of_row(row: ListRow) -> Task | None:
    """Return the check of a row's message or damage; None if the row has no bytes in the log."""
    if row.physical is None:
        return None
    noun = "message" if row.kind == "message" else "bytes"
    return Task(f"the {noun} at physical offset {row.physical}", frozenset({"commitlog"}),
                (row.physical, row.physical + max(row.size or 1, 1)))


def of_place(place: BrowsedPlace, reader: StoreView) -> Task:
    """Return the task that checks ``place``, a node of the tree."""
    if place.kind in ("topic", "queue"):
        noun = "queue" if place.kind == "queue" else "topic"
        return Task(f"{noun} {place.name}, checked against the whole log",
                    frozenset({"consumequeue"}), concerns=lambda finding: (
                        finding.topic == place.topic
                        and place.queue_id in (None, finding.queue_id)))
    if place.kind != "file":
        return Task("the whole store", None)
    file = reader.log_file(place.path)
    if file is not None:
        # Zeros at the end of a file are damage only if the log continues after it.
        log = reader.store.log
        is_last = not any(used_size(log.source(number)) for number, later in enumerate(log.files)
                          if later.base >= file.end)
        return Task(f"log file {file.name}", frozenset({"commitlog"}),
                    (file.base, log.end if is_last else file.end))
    folder = os.path.relpath(place.path, reader.store.root).split(os.sep)[0]
    return Task(f"file {place.name}", frozenset({_BY_FOLDER.get(folder, "store")}),
                concerns=lambda finding: finding.file == place.path)


def run(task: Task, reader: StoreView, progress: Callable[[int], None]) -> CheckResult:
    """Run a check. Raises: UnsupportedError.

    ``progress`` is called with the number of log bytes checked since the last call, and may raise.
    A check of the whole store counts each byte twice.
    """
    if task.only is None and task.part is None:
        return CheckResult.of(diagnose(reader.store, None, 1, progress))
    answer = CheckResult()
    if not reader.store.layout.reads("commitlog") and task.part is not None:
        raise UnsupportedError(reader.store.layout.unread["commitlog"])
    checks = Verification(reader.store, VerifyOptions(task.only, part=task.part), progress)
    for finding in checks.findings():
        progress(0)
        if task.concerns(finding):
            answer.total += 1
            if len(answer.findings) < _MAX_LISTED:
                answer.findings.append(finding)
    answer.notes += [f"{name} was not checked: {reason}"
                     for name, reason in checks.not_judged.items()]
    return answer


def row_of(reader: StoreView, physical: int) -> str | None:
    """Return a sentence about the consume queue entry of the message at a physical offset; None
    without a message.
    """
    record = reader.record(physical)
    if record is None:
        return None
    leads = reader.store.new_witness().confirms(record)
    if leads is None:
        return "the consume queue has no entry for its queue offset"
    return ("the consume queue entry at its queue offset points to it" if leads
            else "the consume queue entry at its queue offset points elsewhere")
