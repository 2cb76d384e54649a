"""Tiny but complete store directories, made from nothing.

Records are built with `rmqctl.formats.local.message`; everything derived from them (consumequeue,
ext, index, checkpoint, config) is written here with ``struct`` after the broker's put rules, so a
mistake in one of rmqctl's readers cannot hide in the store it is tested on. ``test_tiny.py`` lets
the independent `tests.support.model` judge the result.

The default store is a few hundred bytes of everything: two commitlog files with a blank roll,
three queues over two topics, one of them over two files, an index with eight slots. `VARIANTS`
names stores with one legal oddity each.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import lz4.frame

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from rmqctl.formats.local import javahash, message, properties
from rmqctl.formats.local import sysflag as flags

EPOCH = 1_700_000_000_000
"""Store time of the first message; each later one comes `STEP` ms after."""
STEP = 1_700
MTIME = EPOCH // 1000 + 3600
BORN, STORED = "10.0.0.7:52011", "10.0.0.1:10911"
BORN_V6, STORED_V6 = "[2001:db8::7]:52011", "[2001:db8::1]:10911"
BLANK = struct.Struct(">iI")
UNIT = struct.Struct(">qiq")
EXT_HEAD = struct.Struct(">hqqh")
INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_ENTRY = struct.Struct(">iqii")
CRC_PROPERTY = 20
DELAYS = dict(enumerate((1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800,
                         3600, 7200), 1))
INDEX_NAME = "20231114221320000"
ZERO_CRC_BODY = bytes.fromhex("9d0ad96d")
"""A body that is not empty and whose CRC is 0."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A message to put. ``raw_properties`` overrides ``properties``; "" gives none at all."""

    topic: str
    queue_id: int = 0
    body: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    raw_properties: str | None = None
    sys_flag: int = 0
    flag: int = 0
    born: str = BORN
    store: str = STORED
    lmq: tuple[str, ...] = ()
    prepared_at: int = 0
    reconsume_times: int = 0
    born_at: int = 0
    """Epoch ms; 0: 5 ms before it is stored."""


def _named(number: int, **more: str) -> dict[str, str]:
    return {"UNIQ_KEY": f"0A0000070000{number:04X}", "CLUSTER": "c", **more}


DEFAULT = (
    Spec("orders", 0, b"hello", _named(0, KEYS="k1 k2", TAGS="A")),
    Spec("orders", 1, b"second body", _named(1, KEYS="k1", TAGS="B"), flag=7),
    Spec("bills", 0, b"\x00\x01\xfe\xff", _named(2, TAGS="A")),
    Spec("orders", 0, b"", _named(3, KEYS="k3")),
    Spec("orders", 0, b"no properties at all", raw_properties=""),
    Spec("bills", 0, zlib.compress(b"z" * 40), _named(5, TAGS="A"), sys_flag=flags.COMPRESSED),
    Spec("orders", 0, "größe 🙂".encode(), _named(6, KEYS="schlüssel", TAGS="ü🙂")),
    Spec("orders", 1, b"last", _named(7, KEYS="k2", TAGS="B")),
)


@dataclass(frozen=True, slots=True)
class Options:
    """How the directory is laid out; sizes in bytes."""

    commitlog_file_size: int = 1024
    consumequeue_file_size: int = 60
    ext_file_size: int = 100
    index_slots: int = 8
    index_max: int = 32
    append_crc: bool = False
    cqext: bool = False
    abort: bool = False
    stale_blank: bool = False
    preallocated: int = 0
    expired_files: int = 0
    commitlog_dirs: tuple[str, ...] = ("commitlog",)
    version: str = "5.3.3"


@dataclass(frozen=True, slots=True)
class Placed:
    """A message in the log: where, and what the other structures say of it."""

    spec: Spec
    record: message.Record
    raw: bytes
    tags_code: int
    keys: tuple[str, ...]

    @property
    def start(self) -> int:
        """Physical offset of the first byte."""
        return self.record.physical_offset

    @property
    def end(self) -> int:
        return self.start + len(self.raw)


@dataclass(frozen=True, slots=True)
class Unit:
    """A consumequeue entry and the message it stands for."""

    topic: str
    queue_id: int
    queue_offset: int
    message: int
    tags_code: int


@dataclass(frozen=True, slots=True)
class Entry:
    """An index entry and the message it stands for."""

    number: int
    key: str
    hash: int
    slot: int
    message: int
    previous: int


@dataclass(frozen=True, slots=True)
class Tiny:
    """A built store: where it lies and everything that was put into it."""

    root: Path
    options: Options
    messages: tuple[Placed, ...]
    blanks: tuple[int, ...]
    units: tuple[Unit, ...]
    entries: tuple[Entry, ...]

    @property
    def log_end(self) -> int:
        return self.messages[-1].end

    def moved(self, root: Path) -> Tiny:
        """The same store at another place (a copy)."""
        return replace(self, root=root)

    def place(self, physical_offset: int) -> tuple[str, int]:
        """(file relative to the root, position in it) of a byte of the log."""
        size = self.options.commitlog_file_size
        number, position = divmod(physical_offset, size)
        folders = self.options.commitlog_dirs
        return f"{folders[number % len(folders)]}/{number * size:020d}", position

    def unit_place(self, unit: Unit) -> tuple[str, int]:
        """(file, position) of a consumequeue entry."""
        size = self.options.consumequeue_file_size
        number, position = divmod(unit.queue_offset * UNIT.size, size)
        return f"consumequeue/{unit.topic}/{unit.queue_id}/{number * size:020d}", position

    def slot_place(self, slot: int) -> tuple[str, int]:
        return f"index/{INDEX_NAME}", INDEX_HEADER.size + 4 * slot

    def entry_place(self, number: int) -> tuple[str, int]:
        start = INDEX_HEADER.size + 4 * self.options.index_slots
        return f"index/{INDEX_NAME}", start + INDEX_ENTRY.size * number

    def queues(self) -> dict[tuple[str, int], list[Unit]]:
        """The entries of each queue in order."""
        units: dict[tuple[str, int], list[Unit]] = {}
        for unit in self.units:
            units.setdefault((unit.topic, unit.queue_id), []).append(unit)
        return units

    def files(self, *parts: str) -> list[str]:
        """The files below one of the named folders (all without a name), relative, sorted."""
        return sorted(str(path.relative_to(self.root)) for part in parts or (".",)
                      for path in (self.root / part).rglob("*") if path.is_file())

    @property
    def cli_options(self) -> list[str]:
        """The options a store command needs beyond the path."""
        folders = self.options.commitlog_dirs
        if folders == ("commitlog",):
            return []
        return [word for name in folders for word in ("--commitlog-dir", name)]


def build(root: Path, specs: Sequence[Spec] = DEFAULT, options: Options | None = None,
          **changes: object) -> Tiny:
    """Write a store to ``root`` (must not exist). ``changes`` are fields of `Options`."""
    options = replace(options or Options(), **changes)  # type: ignore[arg-type]
    log, placed, blanks = _put_all(specs, options)
    units = _units(placed)
    entries = _entries(placed, options)
    tiny = Tiny(root, options, tuple(placed), tuple(blanks), tuple(units), tuple(entries))
    root.mkdir(parents=True)
    _write_log(tiny, log)
    _write_queues(tiny)
    _write_index(tiny)
    _write_small(tiny)
    for path in sorted(root.rglob("*"), reverse=True):
        os.utime(path, (MTIME, MTIME))
    os.utime(root, (MTIME, MTIME))
    return tiny


# -- commitlog -----------------------------------------------------------------------------------


def _put_all(specs: Sequence[Spec],
             options: Options) -> tuple[bytearray, list[Placed], list[int]]:
    """The log's bytes, whole files, and what stands where."""
    log = bytearray()
    placed: list[Placed] = []
    blanks: list[int] = []
    counters: dict[tuple[str, int], int] = {}
    size = options.commitlog_file_size
    for number, spec in enumerate(specs):
        record = _record(spec, number, len(log), counters, options)
        rest = size - len(log) % size
        if len(record.raw) + BLANK.size > rest:
            blanks.append(len(log))
            log += BLANK.pack(rest, message.MAGIC_BLANK)
            filler = b"\xa5" if options.stale_blank else b"\x00"
            log += filler * (rest - BLANK.size)
            record = _record(spec, number, len(log), counters, options)
            assert len(record.raw) + BLANK.size <= size, "the commitlog file size is too small"
        log += record.raw
        placed.append(record)
        if flags.has_consume_queue_row(spec.sys_flag):
            for key in ((spec.topic, spec.queue_id), *((name, 0) for name in spec.lmq)):
                counters[key] = counters.get(key, 0) + 1
    log += bytes(-len(log) % size + size * options.preallocated)
    return log, placed, blanks


def _record(spec: Spec, number: int, at: int, counters: Mapping[tuple[str, int], int],
            options: Options) -> Placed:
    has_row = flags.has_consume_queue_row(spec.sys_flag)
    born, store = message.host_bytes(spec.born), message.host_bytes(spec.store)
    sys_flag = spec.sys_flag
    sys_flag |= flags.BORN_HOST_V6 if len(born[0]) == 16 else 0
    sys_flag |= flags.STORE_HOST_V6 if len(store[0]) == 16 else 0
    values = dict(spec.properties)
    if spec.lmq:
        values["INNER_MULTI_DISPATCH"] = ",".join(spec.lmq)
        values["INNER_MULTI_QUEUE_OFFSET"] = ",".join(
            str(counters.get((name, 0), 0)) for name in spec.lmq)
    text = properties.build(values) if spec.raw_properties is None else spec.raw_properties
    stored = text.encode()
    if options.append_crc:
        stored += b"" if not stored or stored.endswith(b"\x02") else b"\x02"
        stored += bytes(CRC_PROPERTY)
    topic = spec.topic.encode()
    magic = message.MAGIC_V2 if len(spec.topic) > 127 else message.MAGIC_V1
    timestamp = EPOCH + STEP * number
    record = message.Record(
        total_size=message.size_of(sys_flag, magic, len(spec.body), len(topic), len(stored)),
        magic=magic, body_crc=zlib.crc32(spec.body) & message.CRC_MASK if spec.body else 0,
        queue_id=spec.queue_id, flag=spec.flag,
        queue_offset=counters.get((spec.topic, spec.queue_id), 0) if has_row else 0,
        physical_offset=at, sys_flag=sys_flag,
        born_timestamp=spec.born_at or timestamp - 5, born_host=born,
        store_timestamp=timestamp, store_host=store, reconsume_times=spec.reconsume_times,
        prepared_transaction_offset=spec.prepared_at, body=spec.body, topic=topic,
        properties=stored)
    raw = message.build(record)
    if options.append_crc:
        crc = zlib.crc32(raw[:-CRC_PROPERTY]) & message.CRC_MASK
        digits = str(crc)[::-1].ljust(10, "0").encode()
        raw = raw[:-CRC_PROPERTY] + b"__CRC32#\x01" + digits + b"\x02"
        record = replace(record, properties=stored[:-CRC_PROPERTY] + raw[-CRC_PROPERTY:])
    parsed_properties = properties.parse(text)
    keys = ([parsed_properties["UNIQ_KEY"]] if "UNIQ_KEY" in parsed_properties
            else []) + properties.split_keys(
                parsed_properties.get("KEYS"))
    return Placed(spec, record, raw, _tags_code(spec, parsed_properties, timestamp), tuple(keys))


def _tags_code(spec: Spec, value: Mapping[str, str], timestamp: int) -> int:
    if spec.topic == properties.SCHEDULE_TOPIC and int(value.get("DELAY", 0)) > 0:
        return timestamp + 1000 * DELAYS[min(int(value["DELAY"]), max(DELAYS))]
    return javahash.tags_code(value.get("TAGS"))


def _write_log(tiny: Tiny, log: bytearray) -> None:
    size = tiny.options.commitlog_file_size
    for start in range(0, len(log), size):
        name, _ = tiny.place(start)
        (tiny.root / name).parent.mkdir(exist_ok=True)
        if start >= tiny.options.expired_files * size:
            (tiny.root / name).write_bytes(log[start:start + size])


# -- consumequeue --------------------------------------------------------------------------------


def _units(placed: Sequence[Placed]) -> list[Unit]:
    units = []
    counters: dict[str, int] = {}
    for number, record in enumerate(placed):
        if not flags.has_consume_queue_row(record.record.sys_flag):
            continue
        units.append(Unit(record.spec.topic, record.spec.queue_id, record.record.queue_offset,
                          number,                           record.tags_code))
        for name in record.spec.lmq:
            units.append(Unit(name, 0, counters.get(name, 0), number, record.tags_code))
            counters[name] = counters.get(name, 0) + 1
    return units


def _write_queues(tiny: Tiny) -> None:
    size = tiny.options.consumequeue_file_size
    first = tiny.options.expired_files * tiny.options.commitlog_file_size
    for (topic, queue_id), units in tiny.queues().items():
        folder = tiny.root / "consumequeue" / topic / str(queue_id)
        folder.mkdir(parents=True)
        rows = b""
        ext = _Ext(tiny.options.ext_file_size)
        for unit in units:
            placed = tiny.messages[unit.message]
            code = unit.tags_code
            if tiny.options.cqext and topic == placed.spec.topic:
                code = ext.add(code, placed.record.store_timestamp, unit.queue_offset)
            rows += UNIT.pack(placed.start, len(placed.raw), code)
        rows += bytes(-len(rows) % size)
        last = (len(rows) - 1) // size * size
        for start in range(0, len(rows), size):
            inside = [unit for unit in units
                      if start <= unit.queue_offset * UNIT.size < start + size]
            if start == last or tiny.messages[inside[-1].message].start >= first:
                (folder / f"{start:020d}").write_bytes(rows[start:start + size])
        ext.write(tiny.root / "consumequeue_ext" / topic / str(queue_id))


class _Ext:
    """The ext files of one queue."""

    def __init__(self, file_size: int) -> None:
        self.file_size = file_size
        self.data = bytearray()

    def add(self, tags_code: int, timestamp: int, number: int) -> int:
        """Append a unit (every third has no bit map); the address for the consumequeue."""
        bits = b"" if number % 3 == 2 else bytes((number + 1,)) * 14
        raw = EXT_HEAD.pack(EXT_HEAD.size + len(bits), tags_code, timestamp, len(bits)) + bits
        rest = self.file_size - len(self.data) % self.file_size
        if len(raw) > rest - 4:
            self.data += b"\xff\xff" + bytes(rest - 2)
        address = len(self.data) - (1 << 63)
        self.data += raw
        return address

    def write(self, folder: Path) -> None:
        if not self.data:
            return
        folder.mkdir(parents=True)
        self.data += bytes(-len(self.data) % self.file_size)
        for start in range(0, len(self.data), self.file_size):
            (folder / f"{start:020d}").write_bytes(self.data[start:start + self.file_size])


# -- index ---------------------------------------------------------------------------------------


def _entries(placed: Sequence[Placed], options: Options) -> list[Entry]:
    entries: list[Entry] = []
    slots = [0] * options.index_slots
    for number, record in enumerate(placed):
        if not flags.is_indexed(record.record.sys_flag):
            continue
        for key in record.keys:
            value = javahash.index_hash(f"{record.spec.topic}#{key}")
            slot = value % options.index_slots
            entries.append(Entry(len(entries) + 1, key, value, slot, number, slots[slot]))
            slots[slot] = len(entries)
    assert len(entries) < options.index_max, "the index is too small"
    return entries


def _write_index(tiny: Tiny) -> None:
    options = tiny.options
    data = bytearray(INDEX_HEADER.size + 4 * options.index_slots
                     + INDEX_ENTRY.size * options.index_max)
    records = [tiny.messages[entry.message].record for entry in tiny.entries]
    if records:
        INDEX_HEADER.pack_into(
            data, 0, records[0].store_timestamp, records[-1].store_timestamp,
            records[0].physical_offset, records[-1].physical_offset,
            len({entry.slot for entry in tiny.entries}), len(tiny.entries) + 1)
    for entry, record in zip(tiny.entries, records, strict=True):
        seconds = (record.store_timestamp - records[0].store_timestamp) // 1000
        INDEX_ENTRY.pack_into(data, tiny.entry_place(entry.number)[1], entry.hash,
                              record.physical_offset, seconds, entry.previous)
        struct.pack_into(">i", data, tiny.slot_place(entry.slot)[1], entry.number)
    (tiny.root / "index").mkdir()
    (tiny.root / f"index/{INDEX_NAME}").write_bytes(data)


# -- checkpoint, lock, abort, config -------------------------------------------------------------


def _write_small(tiny: Tiny) -> None:
    last = tiny.messages[-1].record.store_timestamp
    fields = struct.pack(">qqqqq", last, last, 0, 0, 0)
    (tiny.root / "checkpoint").write_bytes(fields + bytes(4096 - len(fields)))
    (tiny.root / "lock").write_bytes(b"lock")
    if tiny.options.abort:
        (tiny.root / "abort").write_bytes(b"4711" if tiny.options.version == "5.3.3" else b"")
    config = tiny.root / "config"
    config.mkdir()
    for name, text in config_files(tiny).items():
        (config / name).write_text(text)
        (config / f"{name}.bak").write_text(text)


def config_files(tiny: Tiny) -> dict[str, str]:
    """The JSON files of ``config/`` as a 4.x broker writes them, integer keys without quotes."""
    topics = dict.fromkeys(unit.topic for unit in tiny.units)
    table = ",".join(
        f'\n\t\t"{name}":{{"order":false,"perm":6,"readQueueNums":2,"topicFilterType":'
        f'"SINGLE_TAG","topicName":"{name}","topicSysFlag":0,"writeQueueNums":2}}'
        for name in topics)
    version = f'"dataVersion":{{"counter":2,"timestamp":{EPOCH}}}'
    delayed = int("SCHEDULE_TOPIC_XXXX" not in topics)  # none is delivered; or beyond the end
    return {
        "topics.json": f'{{\n\t{version},\n\t"topicConfigTable":{{{table}\n\t}}\n}}',
        "consumerOffset.json": '{\n\t"offsetTable":{\n\t\t"orders@billing":'
        f"{{0:{_offset(tiny, 0, 2)},1:{_offset(tiny, 1, 1)}}}\n\t}}\n}}",
        "delayOffset.json": f'{{\n\t"offsetTable":{{1:0,3:{delayed}\n\t}}\n}}',
    }


def _offset(tiny: Tiny, queue_id: int, wanted: int) -> int:
    """An offset of the group, not beyond the end of the queue."""
    return min(wanted, sum(unit.topic == "orders" and unit.queue_id == queue_id
                           for unit in tiny.units))


# -- legal oddities ------------------------------------------------------------------------------

_BIG = Options(commitlog_file_size=1 << 17)
_TRANSACTION = (
    Spec("orders", 0, b"half", _named(0, KEYS="t1"), sys_flag=flags.TRANSACTION_PREPARED),
    Spec("orders", 0, b"whole", _named(1, KEYS="t1", TAGS="A"),
         sys_flag=flags.TRANSACTION_COMMIT, prepared_at=0),
    Spec("orders", 0, b"back", _named(2, KEYS="t2"), sys_flag=flags.TRANSACTION_ROLLBACK,
         prepared_at=0),
    Spec("orders", 0, b"plain", _named(3, TAGS="A")),
)
_DELAYED = (
    *DEFAULT,
    Spec(properties.SCHEDULE_TOPIC, 2, b"later",
         _named(9, DELAY="3", REAL_TOPIC="orders", REAL_QID="1", TAGS="A")),
    Spec(properties.SCHEDULE_TOPIC, 17, b"much later",
         _named(10, DELAY="18", REAL_TOPIC="orders", REAL_QID="0")),
)
_LMQ = tuple(
    Spec("orders", number % 2, b"lmq %d" % number, _named(number, TAGS="A"),
         lmq=(("%LMQ%a", "%LMQ%b") if number % 3 else ("%LMQ%a",)))
    for number in range(5))
_COMPRESSED = (
    Spec("orders", 0, zlib.compress(b"a" * 50), _named(0), sys_flag=flags.COMPRESSED),
    Spec("orders", 0, zlib.compress(b"b" * 50), _named(1), sys_flag=flags.COMPRESSED | 0x300),
    Spec("orders", 0, lz4.frame.compress(b"c" * 50), _named(2), sys_flag=flags.COMPRESSED | 0x100),
    Spec("orders", 0, zstd.compress(b"d" * 50), _named(3), sys_flag=flags.COMPRESSED | 0x200),
    Spec("orders", 0, b"flagged as compressed, but plain", _named(4), sys_flag=flags.COMPRESSED),
    Spec("orders", 0, ZERO_CRC_BODY, _named(5)),
    Spec("orders", 0, b"", _named(6)),
)
_IPV6 = (
    Spec("orders", 0, b"4 and 4", _named(0, KEYS="h")),
    Spec("orders", 0, b"6 and 4", _named(1, KEYS="h"), born=BORN_V6),
    Spec("orders", 0, b"4 and 6", _named(2, KEYS="h"), store=STORED_V6),
    Spec("orders", 0, b"6 and 6", _named(3, KEYS="h"), born=BORN_V6, store=STORED_V6),
)
_LONG = "%RETRY%" + "g" * 140
_LARGEST = (
    Spec("t" * 127, 0, b"longest v1 topic", _named(0, TAGS="A")),
    Spec("orders", 0, b"x" * 40_000, {"PAD": "p" * (32_767 - 5)}),
    Spec(_LONG, 0, b"version 2", _named(2, TAGS="A", KEYS="k")),
    Spec(_LONG, 0, b"version 2, IPv6", _named(3), born=BORN_V6, store=STORED_V6),
    Spec("orders", 0, b"retried", _named(4, RECONSUME_TIME="3", **{"1ST_POP_TIME": "1"},
                                         POP_CK="1 2 3 4")),
)
VARIANTS: dict[str, tuple[Sequence[Spec], Options]] = {
    "default": (DEFAULT, Options()),
    "one message": (DEFAULT[:1], Options()),
    "abort file": (DEFAULT, Options(abort=True)),
    "abort file of 4.9": (DEFAULT, Options(abort=True, version="4.9.3")),
    "preallocated": (DEFAULT, Options(preallocated=2)),
    "stale bytes after a blank": (DEFAULT, Options(stale_blank=True)),
    "expired head": (DEFAULT * 3, Options(expired_files=2, index_max=64)),
    "appended crc": (DEFAULT, Options(append_crc=True, commitlog_file_size=1200)),
    "consumequeue ext": (DEFAULT, Options(cqext=True)),
    "multi-path": (DEFAULT, Options(commitlog_dirs=("cl1", "cl2"))),
    "ipv6": (_IPV6, Options()),
    "transaction": (_TRANSACTION, Options()),
    "delayed": (_DELAYED, Options()),
    "lmq": (_LMQ, Options()),
    "compressed": (_COMPRESSED, Options(commitlog_file_size=1280)),
    "largest": (_LARGEST, _BIG),
}


def variant(root: Path, name: str) -> Tiny:
    """The named store of `VARIANTS` at ``root``."""
    specs, options = VARIANTS[name]
    return build(root, specs, options)
