"""The stores of the campaign before their damage: made ones and the engine's, and their replicas.

A `Base` is an undamaged store with all that is to be had of it again: its messages byte by byte,
and the rows that lead to them. `replica` makes another store with the same log, or one that went
its own way from some message on.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rmqctl.formats.local.message import Record, decode
from rmqctl.store.store import Sizes
from tests.adversary.writer import COMMIT, COMPRESSED, Header, Layout, Writer
from tests.repair import salvaging
from tests.support import golden, snapshot, tiny
from tests.support.model import MAGICS, Stream
from tests.support.replay import settings_of

Rows = dict[tuple[str, int], dict[int, tuple[int, int]]]
"""By topic and queue: queue offset -> (physical offset, size)."""

GOLDEN = ("4.9.3/basic", "5.3.3/basic", "5.3.3/appendcrc", "5.3.3/multipath", "4.9.3/transaction",
          "5.3.3/ipv6", "5.3.3/lmq", "4.9.3/batch", "4.9.3/delay", "4.9.3/cqext")
GENERATED = ("made", "made", "made", "made of 4.9", "sealed")
"""Kinds of stores that are made, the frequent ones more than once."""
LOG_FILE, UNITS, SLOTS = 8 << 10, 20, 16
ENTRIES, MOST_ENTRIES = 100, 512
"""Of an index file: a few files, or one."""
_HEAD = struct.Struct(">iI")


def walk(stream: Stream) -> dict[int, bytes]:
    """The records of a log, as stored, by their places; as far as sizes and magics lead."""
    content = {}
    for base, data in stream.files:
        position = 0
        while position + _HEAD.size <= len(data):
            size, magic = _HEAD.unpack_from(data, position)
            if magic not in MAGICS or not _HEAD.size < size <= len(data) - position:
                break
            content[base + position] = data[position:position + size]
            position += size
    return content


@dataclass(frozen=True)
class Base:
    """An undamaged store, to be copied only. ``made_by``: what makes it again with other ends."""

    name: str
    root: Path
    sizes: Sizes
    folders: tuple[str, ...] = ("commitlog",)
    seed: int | None = None

    def log(self, root: Path) -> Stream:
        """The files of the log of a store of this kind."""
        return Stream(*(root / name for name in self.folders))

    def walk(self, stream: Stream) -> dict[int, bytes]:
        """The records of a log of this kind, by their places."""
        return walk(stream)

    @cached_property
    def files(self) -> dict[int, bytes]:
        """The log's files by the physical offset of their first byte."""
        return dict(self.log(self.root).files)

    @cached_property
    def messages(self) -> dict[int, bytes]:
        return self.walk(self.log(self.root))

    @cached_property
    def records(self) -> dict[int, Record]:
        return {place: decode(raw) for place, raw in self.messages.items()}

    @cached_property
    def rows(self) -> Rows:
        return salvaging.rows_of(self.root)

    @property
    def dirs(self) -> tuple[str, ...]:
        """What `--commitlog-dir` names: nothing where the log lies where it usually does."""
        return () if self.folders == ("commitlog",) else self.folders

    @property
    def end(self) -> int:
        last = max(self.messages)
        return last + len(self.messages[last])

    def path(self, root: Path, base: int) -> Path:
        """The file of the log that begins at ``base``, which ``root`` has, or had."""
        name = f"{base:020d}"
        folder = next(directory for store in (root, self.root) for directory in self.folders
                      if (store / directory / name).exists())
        return root / folder / name

    def copy(self, target: Path) -> Path:
        return snapshot.copy_tree(self.root, target)


# -- what is in them ------------------------------------------------------------------------------


def body(luck: random.Random) -> tuple[bytes, int]:
    """A body and the flag that says how it is to be read."""
    size = luck.choice((0, 7, 40, 90, 90, 200, 200, 700, 2500))
    kind = luck.randrange(6)
    if kind == 0:
        return luck.randbytes(size), 0
    if kind == 1:
        return bytes(size), 0
    text = " ".join(luck.choice(("tea", "milk", "größe", "10:45", "shipped")) for _ in range(
        size // 5)).encode()
    if kind == 2:
        return zlib.compress(text + b"."), COMPRESSED
    if kind == 3:
        return json.dumps({"id": luck.randrange(10**6), "lines": text.decode()}).encode(), 0
    return text, 0


def _fill(writer: Writer, luck: random.Random, count: int, split: int, other: int) -> None:
    """``count`` messages of all kinds; from number ``split`` on they are those of ``other``."""
    halves = []
    for number in range(count):
        if number == split:
            luck = random.Random(luck.getrandbits(32) ^ other)
        content, flag = body(luck)
        kind = luck.randrange(20)
        queue, tags = luck.randrange(3), luck.choice(("", "A", "B"))
        keys = " ".join(f"k{luck.randrange(50)}" for _ in range(luck.randrange(3)))
        unique = f"{luck.getrandbits(64):016X}"
        topic = luck.choice(("orders", "orders", "bills", "%RETRY%billing"))
        values, header, lmq, level = {}, Header(sys_flag=flag), (), 0
        if kind == 0:
            values = {"REAL_TOPIC": topic, "REAL_QID": str(queue), "DELAY": "2"}
            topic, queue, level = "SCHEDULE_TOPIC_XXXX", 1, 2
        elif kind == 1:
            values = {"REAL_TOPIC": topic, "REAL_QID": str(queue), "TRAN_MSG": "true",
                      "PGROUP": "g"}
            topic, queue = "RMQ_SYS_TRANS_HALF_TOPIC", 0
        elif kind == 2 and halves:
            half = luck.choice(halves)
            header = Header(sys_flag=flag | COMMIT, prepared_transaction_offset=half)
        elif kind == 3 and topic != "%RETRY%billing":
            lmq = ("%LMQ%a", "%LMQ%b")[:luck.randint(1, 2)]
        elif kind == 4:
            header = Header(sys_flag=flag, born_host=("2001:db8::7", 52011))
        elif kind == 5:
            keys, unique = "", ""
        put = writer.put(topic, content, queue_id=queue, tags=tags, keys=keys, unique_key=unique,
                         delay_level=level, properties=values, header=header, lmq=lmq)
        if kind == 1:
            halves.append(put.physical)


def _write(root: Path, kind: str, seed: int, count: int | None = None, split: int = -1) -> None:
    luck = random.Random(seed)
    many = luck.randrange(50, 110)
    if kind == "sealed":
        specs = []
        for number in range(many if count is None else count):
            if number == split:
                luck = random.Random(luck.getrandbits(32) ^ 1)
            content, flag = body(luck)
            values = {"UNIQ_KEY": f"{luck.getrandbits(64):016X}",
                      "KEYS": f"k{luck.randrange(50)}", "TAGS": luck.choice("AB")}
            specs.append(tiny.Spec(luck.choice(("orders", "bills")), luck.randrange(3), content,
                                   values, sys_flag=flag))
        tiny.build(root, specs, commitlog_file_size=LOG_FILE, append_crc=True,
                   consumequeue_file_size=20 * UNITS, index_slots=SLOTS, index_max=MOST_ENTRIES)
        return
    writer = Writer(Layout(LOG_FILE, UNITS, SLOTS, ENTRIES, version=4 if "4.9" in kind else 5,
                           spare_file=luck.random() < 0.5,
                           first_file=luck.choice((0, 0, 5 * LOG_FILE))), seed=seed)
    _fill(writer, luck, many if count is None else count, split, 1)
    writer.offsets["orders", "billing"] = {0: 5, 1: 2}
    writer.write(root)


def make(folder: Path, kind: str, seed: int) -> Base:
    """A store made for this campaign, below ``folder``."""
    root = folder / f"{kind.replace(' ', '-')}-{seed}"
    if not root.exists():
        _write(root, kind, seed)
    return Base(kind, root, Sizes(LOG_FILE, 20 * UNITS, SLOTS,
                                  MOST_ENTRIES if kind == "sealed" else ENTRIES), seed=seed)


def engine_made(unpacked: Path, name: str) -> Base:
    """A store that a broker wrote: the set ``name``, unpacked at ``unpacked``."""
    root, _ = golden.split(f"{name}/store")
    settings = settings_of(unpacked, root.version)
    folders = golden.MULTI_PATH if root.kind == "multipath" else ("commitlog",)
    return Base(name, unpacked / "store", Sizes(
        settings.commitlog_file_size, settings.consumequeue_file_size, settings.index_slots,
        settings.index_max), folders)


# -- replicas -------------------------------------------------------------------------------------


def lagging(base: Base, target: Path, luck: random.Random) -> Path:
    """A slave's store that has not got all: its log ends at some message, rows it has not made."""
    count = luck.randrange(1, len(base.messages))
    if base.seed is not None:
        _write(target, base.name, base.seed, count)
        return target
    base.copy(target)
    start = sorted(base.messages)[count]
    for first, data in base.files.items():
        if first + len(data) > start:
            keep = data[:max(0, start - first)]
            base.path(target, first).write_bytes(keep.ljust(len(data), b"\0"))
    for part in ("consumequeue", "consumequeue_ext", "index"):
        shutil.rmtree(target / part, ignore_errors=True)
    return target


def gone_another_way(base: Base, target: Path, luck: random.Random) -> int:
    """A store with the same log up to a message, and another one from there on (split brain).

    Returns the number of that message. Only of a store that is made here.
    """
    assert base.seed is not None
    split = luck.randrange(1, len(base.messages))
    _write(target, base.name, base.seed, max(split + 1, len(base.messages) + luck.randrange(
        -20, 20)), split)
    return split
