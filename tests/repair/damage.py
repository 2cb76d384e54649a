"""Random damage to the commitlog of a store, the same for the same seed.

What was there before is remembered, so that a test knows which messages were left intact.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rmqctl.formats.local.message import Record, decode
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store

KINDS = ("bit flips", "zeroed page", "torn page", "swapped pages", "missing file",
         "truncated file")
PAGES = (512, 4096)
MOST = 20


@dataclass(frozen=True, slots=True)
class Whole:
    """The log before the damage: its records by place, and the bytes of its files by name."""

    records: dict[int, Record]
    files: dict[str, bytes]
    file_size: int

    def raw(self, physical: int, size: int) -> bytes:
        base = physical - physical % self.file_size
        data = next(data for name, data in self.files.items() if int(name) == base)
        return data[physical - base:physical - base + size]


def remember(root: Path, commitlog_dirs: Sequence[str] = ()) -> Whole:
    with Store.open(root, commitlog_dirs) as store:
        records = {}
        for number in range(len(store.log.files)):
            for batch in Walk(store.log.source(number)):
                for at in range(len(batch)):
                    record = decode(batch.bytes_at(at))
                    records[record.physical_offset] = record
        files = {file.name: Path(file.path).read_bytes() for file in store.log.files}
        return Whole(records, files, store.log.file_size)


def intact(whole: Whole, root: Path, commitlog_dirs: Sequence[str] = ()) -> set[int]:
    """Places of the messages whose bytes are all there and unchanged."""
    with Store.open(root, commitlog_dirs) as store:
        now = {file.name: Path(file.path).read_bytes() for file in store.log.files}
    physicals = set()
    for physical, record in whole.records.items():
        base = physical - physical % whole.file_size
        name = f"{base:020d}"
        at = physical - base
        end = at + record.total_size
        if name in now and now[name][at:end] == whole.files[name][at:end]:
            physicals.add(physical)
    return physicals


def do(root: Path, seed: int, kinds: Sequence[str] = KINDS, count: int | None = None,
       commitlog_dirs: Sequence[str] = ()) -> list[str]:
    """Does 1 to 20 (or ``count``) damages; says what was done."""
    luck = random.Random(seed)
    texts = []
    for _ in range(luck.randint(1, MOST) if count is None else count):
        kind = luck.choice(list(kinds))
        with Store.open(root, commitlog_dirs) as store:
            paths = [Path(file.path) for file in store.log.files]
        used = [path for path in paths if any(path.read_bytes())]
        if not used:
            break
        texts.append(f"{kind}: {_hurt(luck, kind, used)}")
    return texts


def _hurt(luck: random.Random, kind: str, paths: list[Path]) -> str:
    path = luck.choice(paths)
    about = path.stat()
    data = bytearray(path.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    page = luck.choice(PAGES)
    pages = max(1, -(-end // page))
    if kind == "missing file":
        if len(paths) < 3:
            return "too few files"
        path = luck.choice(paths[1:-1])
        path.unlink()
        return path.name
    if kind == "bit flips":
        done = [luck.randrange(end) for _ in range(luck.randint(1, 4))]
        for at in done:
            data[at] ^= 1 << luck.randrange(8)
        what = f"{path.name} {done}"
    elif kind == "truncated file":
        size = luck.randrange(end)
        del data[size:]
        what = f"{path.name} to {size}"
    elif kind == "swapped pages":
        first, other = luck.randrange(pages), luck.randrange(pages)
        a, b = first * page, other * page
        if max(a, b) + page > len(data):
            return "no such page"
        data[a:a + page], data[b:b + page] = data[b:b + page], data[a:a + page]
        what = f"{path.name} {first} and {other} of {page}"
    else:
        at = luck.randrange(pages) * page + (page // 2 if kind == "torn page" else 0)
        length = min(page // 2 if kind == "torn page" else page, len(data) - at)
        if length > 0:
            data[at:at + length] = bytes(length)
        what = f"{path.name} {at} {length}"
    path.write_bytes(data)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    return what
