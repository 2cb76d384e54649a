"""Tiers for the tests of verify: a small one with everything in it, and running verify on one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rmqctl.checks.findings import INFO, Finding
from rmqctl.ext.tiered.tier import Tier
from rmqctl.ext.tiered.verify.verify import Options, TierVerification, VerifyResult, verdict
from rmqctl.store.store import Store
from tests.tiered import tiers
from tests.tiered.tiers import T0, Index, Queue

OTHER = "帐单"
TOPICS = {tiers.TOPIC: 0, OTHER: 1}


@dataclass
class Small:
    """A tier of two queues, two uploaded index files (one of them empty), one open one."""

    home: Path
    queues: list[Queue]
    uploaded: Index
    local: Index

    @property
    def root(self) -> Path:
        return self.home / "tieredstore"

    @property
    def index_path(self) -> Path:
        folder = Queue("rmq_sys_INDEX").folder(self.root) / "INDEX"
        return folder / tiers.segment_name(0)

    @property
    def local_path(self) -> Path:
        return self.home / "tiered_index_file" / str(self.local.begin)

    @property
    def metadata_path(self) -> Path:
        return self.home / "config" / "tieredStoreMetadata.json"

    def write(self) -> None:
        for queue in self.queues:
            queue.write(self.root)
        tiers.upload(self.root, self.uploaded.compacted(), b"")
        self.local_path.parent.mkdir(exist_ok=True)
        self.local_path.write_bytes(self.local.open_form())
        tiers.write_metadata(self.home, TOPICS, self.queues, {0: self.uploaded})


def small(home: Path, *, write: bool = True) -> Small:
    """Seven messages in the first queue (two segments of each kind), two in the second."""
    first, second = Queue(), Queue(OTHER, 3, first=40)
    uploaded, local = Index(T0), Index(T0 + 3000)
    for number in range(7):
        if number == 4:
            first.roll_log()
        if number == 5:
            first.roll_units()
        tags = {"TAGS": "甲"} if number % 2 else {}
        keys = {"KEYS": f"k{number} same"} if number != 3 else {}
        record = first.put(b"body %d" % number * 2, **tags, UNIQ_KEY=f"u{number}", **keys)
        file = uploaded if number < 3 else local
        file.add(record, f"u{number}")
        for key in keys.get("KEYS", "").split():
            file.add(record, key)
    for number in range(2):
        record = second.put(b"", UNIQ_KEY=f"s{number}", KEYS="x")
        for key in (f"s{number}", "x"):
            local.add(record, key, topic_id=1)
    small = Small(home, [first, second], uploaded, local)
    if write:
        small.write()
    return small


def verified(home: Path, local: Path | None = None, most: int = 1000,
             options: Options | None = None) -> VerifyResult:
    """Verify run to its end. ``home`` holds ``tieredstore``, or is a tier root itself."""
    with Tier.open(str(home)) as tier:
        store = None if local is None else Store.open(local)
        try:
            return verdict(TierVerification(tier, options or Options(), store), most)
        finally:
            if store is not None:
                store.close()


def troubles(verify_result: VerifyResult) -> list[Finding]:
    """Findings which are no mere information."""
    return [finding for finding in verify_result.findings if finding.severity != INFO]


def categories(verify_result: VerifyResult) -> set[str]:
    """The categories of those."""
    return {finding.category for finding in troubles(verify_result)}


def informed(verify_result: VerifyResult) -> set[str]:
    """The categories of mere information."""
    return {finding.category for finding in verify_result.findings if finding.severity == INFO}
