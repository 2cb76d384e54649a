"""The golden sets: what there is, and unpacking one when it is first needed.

Nothing is unpacked to list them: which roots a set has follows from its kind. An unpacked set is
shared by all workers of a run and guarded by a manifest (`verify`), because no test may change it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support import archives, engine, snapshot

FOLDER = Path(os.environ.get("RMQCTL_GOLDEN") or Path(__file__).parents[1] / "golden")
LAYOUTS = Path(__file__).parents[1] / "golden-layouts"
"""Sets of other layouts: unpacked by name as the others, and in none of the lists below."""
MULTI_PATH = ("cl1", "cl2")
COVERING = frozenset({
    "4.9.3/basic", "4.9.3/cqext", "4.9.3/transaction", "4.9.3/delay-delivered",
    "4.9.3/crash-trunc-garbage", "4.9.3/crash-cqahead", "4.9.3/clean-nocq",
    "5.3.3/basic", "5.3.3/appendcrc", "5.3.3/batchcq", "5.3.3/batch", "5.3.3/compaction",
    "5.3.3/ipv6", "5.3.3/lmq", "5.3.3/multipath", "5.3.3/tiered", "5.3.3/timer", "5.3.3/v2topic",
    "5.3.3/crash-crc", "5.3.3/crash-noindex"})
"""The sets every run takes where a test is too expensive for all: each kind of structure once."""


@dataclass(frozen=True, slots=True, order=True)
class GoldenSet:
    """One archive: ``4.9.3/basic``; ``kind`` is the set's name."""

    version: str
    kind: str

    @property
    def id(self) -> str:
        return f"{self.version}/{self.kind}"

    @property
    def is_damaged(self) -> bool:
        """Whether the set is a ``before/`` and ``after/`` pair instead of one ``store/``."""
        kind = self.kind.removeprefix("rocksdb-")
        return kind.startswith(("crash", "clean")) and kind != "crash-base"


@dataclass(frozen=True, slots=True, order=True)
class GoldenStore:
    """One store root in a set; ``state`` is ``store``, ``store-live``, ``before`` or ``after``."""

    set: GoldenSet
    state: str

    @property
    def id(self) -> str:
        """``4.9.3/basic/store``: what the fixtures `golden` and `golden_copy` take."""
        return f"{self.set.id}/{self.state}"

    @property
    def version(self) -> str:
        return self.set.version

    @property
    def kind(self) -> str:
        return self.set.kind

    @property
    def expect(self) -> str | None:
        """The name of the engine's answers for this root, None where it was never asked."""
        if self.state == "before":
            return None
        return "expect-live.json" if self.state == "store-live" else "expect.json"

    @property
    def is_loaded(self) -> bool:
        """Whether the engine started on it (it refuses a commitlog file of the wrong length)."""
        return self.kind != "crash-shortfile"

    @property
    def is_clean(self) -> bool:
        """A store as a clean shutdown of an undamaged one leaves it: nothing may be found."""
        return self.state == "store"

    @property
    def commitlog_dirs(self) -> tuple[str, ...]:
        """The folders of the log, relative to the root."""
        return self.dirs or ("commitlog",)

    @property
    def dirs(self) -> tuple[str, ...]:
        """The folders of the log to open it with: none where it has the usual one."""
        return MULTI_PATH if self.kind == "multipath" else ()

    @property
    def options(self) -> list[str]:
        """The options a store command needs for this root beyond its path."""
        return [word for name in self.dirs for word in ("--commitlog-dir", name)]

    def load_expect(self, unpacked: Path) -> engine.Expect:
        """The engine's answers; ``unpacked`` is the folder of the set."""
        assert self.expect is not None
        return engine.load(unpacked / self.expect)


@cache
def all_sets() -> tuple[GoldenSet, ...]:
    """Every archive in the folder, sorted."""
    return tuple(sorted(GoldenSet(file.parent.name, file.name.removesuffix(".tar.xz"))
                        for file in FOLDER.glob("*/*.tar.xz")))


@cache
def golden_stores() -> tuple[GoldenStore, ...]:
    """Every store root of every set."""
    golden_stores = []
    for golden_set in all_sets():
        states = ["before", "after"] if golden_set.is_damaged else ["store"]
        if golden_set.kind == "tiered":
            states.append("store-live")
        golden_stores += [GoldenStore(golden_set, state) for state in states]
    return tuple(golden_stores)


@cache
def rocksdb_sets() -> tuple[GoldenSet, ...]:
    """The sets with consumequeues in RocksDB for which the engine itself was asked (not a broker);
    in none of the other lists.
    """
    return tuple(golden_set for file in sorted(LAYOUTS.glob("*/rocksdb*.tar.xz"))
                 if not (golden_set := GoldenSet(file.parent.name, file.name.removesuffix(
                     ".tar.xz"))).kind.startswith(("rocksdb-config", "rocksdb-import")))


def rocksdb_stores() -> tuple[GoldenStore, ...]:
    """Their roots which the engine loaded."""
    return tuple(GoldenStore(golden_set, "after" if golden_set.is_damaged else "store")
                 for golden_set in rocksdb_sets())


def judged_stores() -> tuple[GoldenStore, ...]:
    """The roots the engine loaded and answered for."""
    return tuple(result for result in golden_stores() if result.expect and result.is_loaded)


def clean_stores() -> tuple[GoldenStore, ...]:
    """The roots in which nothing is wrong."""
    return tuple(golden_store for golden_store in golden_stores() if golden_store.is_clean)


def is_covering(golden_set: GoldenSet | GoldenStore) -> bool:
    """Whether it is of a set that every run takes: the rule for `share.sample`'s ``always``."""
    return (golden_set.set if isinstance(golden_set, GoldenStore) else golden_set).id in COVERING


def split(name: str) -> tuple[GoldenSet, str]:
    """``4.9.3/basic/store`` -> (the set, ``store``); ``4.9.3/basic`` -> (the set, ````)."""
    version, kind, *rest = name.split("/")
    return GoldenSet(version, kind), "/".join(rest)


def unpack(golden_set: GoldenSet, base: Path) -> Path:
    """The folder of a set under ``base``, unpacked on first use by whichever worker comes first."""
    target = base / golden_set.version / golden_set.kind
    manifest = _manifest(target)
    if manifest.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{golden_set.kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if manifest.exists():
            return target
        staging = target.parent / f".{golden_set.kind}.staging"
        shutil.rmtree(staging, ignore_errors=True)
        packed = Path(golden_set.version) / f"{golden_set.kind}.tar.xz"
        with tarfile.open((FOLDER if (FOLDER / packed).exists() else LAYOUTS) / packed) as archive:
            archives.unpack(archive, staging)
        _place_wheel(staging / golden_set.kind)
        (staging / golden_set.kind).rename(target)
        staging.rmdir()
        content = json.dumps(snapshot.take(target, inodes=False).to_json())
        unfinished = manifest.with_suffix(".part")
        unfinished.write_text(content)
        unfinished.rename(manifest)
    return target


def verify(golden_set: GoldenSet, base: Path) -> list[str]:
    """What differs from the manifest taken when the set was unpacked."""
    target = base / golden_set.version / golden_set.kind
    before = snapshot.Snapshot.from_json(json.loads(_manifest(target).read_text()))
    return before.differences(snapshot.take(target, inodes=False))


def _manifest(target: Path) -> Path:
    return target.with_name(f".{target.name}.manifest")


def _place_wheel(folder: Path) -> None:
    """Put the timer wheel, packed apart for its size, to where the engine has it."""
    packed = folder / "timerwheel.tar.gz"
    store = folder / "store"
    if not packed.exists():
        return
    before = store.stat()
    with tarfile.open(packed) as archive:
        for member in archive:
            source = archive.extractfile(member)
            if source is None:
                continue
            target = store / Path(member.name).name
            with source, target.open("wb") as file:
                snapshot.copy_sparse(source, file)
            os.utime(target, (member.mtime, member.mtime))
    os.utime(store, ns=(before.st_atime_ns, before.st_mtime_ns))


TIERED = "5.3.3/tiered"
TIERS = [store.id for store in golden_stores() if store.kind == "tiered"]


def flat_files(unpacked: Path) -> list[dict[str, Any]]:
    """What the engine said of the flat files of `TIERED`, whose folder is ``unpacked``."""
    expect: dict[str, Any] = json.loads((unpacked / "expect.json").read_text())["extra"]
    return list(expect["flatFiles"])
