"""What a check says of a store, in short tuples that a test can compare."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rmqctl.checks.findings import INFO, Finding
from rmqctl.checks.verify import checkpoint, compaction, config, controller, files
from rmqctl.checks.verify.timer import timer
from rmqctl.store import Store
from tests.support import damage
from tests.support import golden as golden_sets

Brief = tuple[str, str, int | None]
"""(category, file relative to the root, offset)."""
CLEAN = golden_sets.clean_stores()
IDS = [golden_store.id for golden_store in CLEAN]


@dataclass(frozen=True, slots=True)
class Log:
    """What the log pass knows when the small checks run."""

    last_store_timestamp: int | None
    end: int


def log_of(store: Store) -> Log:
    last, end = None, store.log.min_offset
    for batch in store.log.walk():
        if len(batch):
            last = max(last or 0, int(batch.column("store_timestamp").max()))
            end = int(batch.offset[-1] + batch.column("total_size")[-1])
    return Log(last, end)


def run(check: str, root: Path, dirs: Iterable[str] = (), *, live: bool = False,
        log: Log | None = None) -> list[Finding]:
    """All findings of one check; ``log`` is walked if it is not given."""
    with Store.open(root, dirs) as store:
        log_facts = log or log_of(store)
        calls = {
            "checkpoint": lambda: checkpoint.check(store, log_facts.last_store_timestamp,
                                                   log_facts.end,
                                                   live=live),
            "files": lambda: files.check(store),
            "config": lambda: config.check(store, live=live),
            "timer": lambda: timer.check(store, log_facts.end, live=live),
            "compaction": lambda: compaction.check(store, live=live),
            "extras": lambda: [*controller.check(store, log_facts.end, live=live),
                               *config.check_queues(store, log_facts.end, live=live)],
        }
        return list(calls[check]())


def brief(findings: Iterable[Finding], root: Path) -> list[Brief]:
    return [(finding.category, os.path.relpath(finding.file or root, root), finding.offset)
            for finding in findings]


def trouble(findings: Iterable[Finding]) -> list[Finding]:
    """Errors and warnings."""
    return [finding for finding in findings if finding.severity != INFO]


def one_of(findings: list[Finding], root: Path) -> tuple[Finding, Brief]:
    """The only finding."""
    assert len(findings) == 1, findings
    return findings[0], brief(findings, root)[0]


def run_golden(check: str, golden_store: golden_sets.GoldenStore, root: Path) -> list[Finding]:
    return run(check, root, golden_store.dirs)


class Changed:
    """Changes bytes of a store, runs a check, and puts them back."""

    def __init__(self, check: str, root: Path, log: Log | None = None) -> None:
        self.check, self.root, self.log = check, root, log

    def __call__(self, *changes: tuple[str, int, bytes], log: Log | None = None,
                 live: bool = False) -> list[Finding]:
        done = [damage.write(self.root, file, at, data) for file, at, data in changes]
        try:
            return run(self.check, self.root, log=log or self.log, live=live)
        finally:
            for store in reversed(done):
                damage.undo(self.root, store)

    def only(self, *changes: tuple[str, int, bytes]) -> Brief:
        """The one finding there must be."""
        return one_of(self(*changes), self.root)[1]
