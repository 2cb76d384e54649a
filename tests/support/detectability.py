"""Which single bit of a tiny store a verifier can notice, and why: the honest ceiling.

A record carries no checksum over its head, so a turned bit in ``flag`` or ``born_timestamp`` can
not be seen by anybody; one in ``queue_id`` can, because the consumequeue says otherwise. `judge`
answers for one bit of one file from what the store holds, field by field; it looks at no finding.

``ALWAYS``: must be found. ``NEVER``: must not be found, it is a legal oddity. ``EITHER``: nothing
in the store contradicts it (or only something implausible shows); a finding is welcome, silence is
no defect, but such bytes may not be called verified.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from rmqctl.formats.local import message, properties
from rmqctl.formats.local import sysflag as flags
from tests.support.tiny import (
    CRC_PROPERTY,
    INDEX_ENTRY,
    INDEX_HEADER,
    UNIT,
    Placed,
    Tiny,
)

DAY = 86_400_000
WALK = frozenset({"total_size", "magic", "physical_offset", "body_length", "body",
                  "topic_length", "properties_length"})
"""Fields the log alone contradicts."""
BESIDE = frozenset({"queue_id", "queue_offset", "topic"})
"""Fields the consumequeue contradicts (for a record that has a row)."""


class Verdict(Enum):
    ALWAYS = "always"
    NEVER = "never"
    EITHER = "either"


@dataclass(frozen=True, slots=True)
class Judgement:
    """``field`` names what the bit belongs to; a finding must lie in ``span`` of ``file``.

    ``span`` None: the finding may stand at the other side of the contradiction.
    """

    verdict: Verdict
    field: str
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record by its bytes in the record."""

    name: str
    start: int
    end: int


def record_fields(placed: Placed) -> Iterator[Field]:
    """The fields of a record in order, the widths as its flags and version say."""
    record = placed.record
    born = 20 if record.sys_flag & flags.BORN_HOST_V6 else 8
    store = 20 if record.sys_flag & flags.STORE_HOST_V6 else 8
    widths = (("total_size", 4), ("magic", 4), ("body_crc", 4), ("queue_id", 4), ("flag", 4),
              ("queue_offset", 8), ("physical_offset", 8), ("sys_flag", 4),
              ("born_timestamp", 8), ("born_host", born), ("store_timestamp", 8),
              ("store_host", store), ("reconsume_times", 4),
              ("prepared_transaction_offset", 8), ("body_length", 4), ("body", len(record.body)),
              ("topic_length", 2 if record.magic == message.MAGIC_V2 else 1),
              ("topic", len(record.topic)), ("properties_length", 2),
              ("properties", len(record.properties)))
    at = 0
    for name, width in widths:
        yield Field(name, at, at + width)
        at += width
    assert at == len(placed.raw)


def judge(tiny: Tiny, file: str, offset: int, bit: int) -> Judgement:
    """What becomes of bit ``bit`` (0 is the lowest) of byte ``offset`` of ``file``."""
    top = file.split("/", 1)[0]
    if top in tiny.options.commitlog_dirs:
        return _commitlog(tiny, file, offset, bit)
    judges = {"consumequeue": _consumequeue, "index": _index, "checkpoint": _checkpoint,
              "config": _config}
    return judges[top](tiny, file, offset, bit) if top in judges else Judgement(
        Verdict.EITHER, top)


# -- commitlog -----------------------------------------------------------------------------------


def _commitlog(tiny: Tiny, file: str, offset: int, bit: int) -> Judgement:
    base = int(file.rsplit("/", 1)[1])
    physical = base + offset
    for placed in tiny.messages:
        if placed.start <= physical < placed.end:
            return _in_record(tiny, placed, physical - placed.start, bit, placed.start - base)
    for blank in tiny.blanks:
        if not base <= blank < base + tiny.options.commitlog_file_size:
            continue
        if blank <= physical < blank + 8:
            return Judgement(Verdict.ALWAYS, "blank", (blank - base, blank - base + 8))
        if physical >= blank + 8:
            return Judgement(Verdict.NEVER, "after the blank")
    return Judgement(Verdict.EITHER, "zero tail")


def _in_record(tiny: Tiny, placed: Placed, at: int, bit: int, start: int) -> Judgement:
    field = next(record_field for record_field in record_fields(placed)
                 if record_field.start <= at < record_field.end)
    name = field.name
    whole = start, start + len(placed.raw)
    if tiny.options.append_crc:
        return _with_crc(placed, field, at, whole)
    always = Judgement(Verdict.ALWAYS, name, whole)
    beside = Judgement(Verdict.ALWAYS, name)
    either = Judgement(Verdict.EITHER, name)
    has_row = flags.has_consume_queue_row(placed.record.sys_flag)
    if name in WALK:
        return always
    if name == "body_crc":
        return always if placed.record.body else either
    if name in BESIDE:
        return beside if has_row else either
    if name == "sys_flag":
        return _flag_bit(placed, at - field.start, bit, either, always, beside)
    if name == "store_timestamp":
        value = _turned(placed.raw, field, at, bit)
        return beside if _index_time_differs(tiny, placed, value) else either
    if name == "properties":
        return _in_properties(placed, at - field.start, bit, has_row)
    return either


def _with_crc(placed: Placed, field: Field, at: int, whole: tuple[int, int]) -> Judgement:
    """Everything is covered but the CRC property itself, whose absence is legal."""
    covered = len(placed.raw) - CRC_PROPERTY
    digits = covered + len(properties.CRC32) + 1
    if at < covered or digits <= at < digits + 10:
        return Judgement(Verdict.ALWAYS, field.name, whole)
    return Judgement(Verdict.EITHER, "appended crc")


def _flag_bit(placed: Placed, byte: int, bit: int, either: Judgement, always: Judgement,
              beside: Judgement) -> Judgement:
    value = 1 << (8 * (3 - byte) + bit)
    if value & message.HOST_BITS:
        return always
    old, new = placed.record.sys_flag, placed.record.sys_flag ^ value
    if flags.has_consume_queue_row(old) != flags.has_consume_queue_row(new):
        return beside
    if placed.keys and flags.is_indexed(old) != flags.is_indexed(new):
        return beside
    return either


def _turned(raw: bytes, field: Field, at: int, bit: int) -> int:
    """The value of an 8-byte field after the turn."""
    data = bytearray(raw)
    data[at] ^= 1 << bit
    return int(struct.unpack_from(">q", data, field.start)[0])


def _index_time_differs(tiny: Tiny, placed: Placed, timestamp: int) -> bool:
    """Whether an index entry of the message now says another second (or the header another ms)."""
    if not placed.keys or not flags.is_indexed(placed.record.sys_flag):
        return False
    indexed = [tiny.messages[entry.message].record for entry in tiny.entries]
    begin = indexed[0].store_timestamp
    if placed.record in (indexed[0], indexed[-1]):
        return True
    return (timestamp - begin) // 1000 != (placed.record.store_timestamp - begin) // 1000


def _in_properties(placed: Placed, at: int, bit: int, has_row: bool) -> Judgement:
    """A property counts when its value stands in the consumequeue or the index too."""
    old = placed.record.properties
    turned = bytearray(old)
    turned[at] ^= 1 << bit
    before = _checked(old)
    after = _checked(bytes(turned))
    name = _property_at(old, at)
    delayed = placed.record.topic == properties.SCHEDULE_TOPIC.encode()
    # A delayed message has its deliver time in the place of its tags' hash.
    tags = before["tags"] != after["tags"] and has_row and not delayed
    keys = before["keys"] != after["keys"] and flags.is_indexed(placed.record.sys_flag)
    delay = before["delay"] != after["delay"] and delayed
    return Judgement(Verdict.ALWAYS if tags or keys or delay else Verdict.EITHER,
                     f"property {name}")


def _checked(raw: bytes) -> dict[str, object]:
    parsed_properties = properties.parse(raw.decode(errors="replace"))
    return {"tags": parsed_properties.get("TAGS"), "delay": parsed_properties.get("DELAY"),
            "keys": (parsed_properties.get("UNIQ_KEY"),
                     *properties.split_keys(parsed_properties.get("KEYS")))}


def _property_at(raw: bytes, at: int) -> str:
    start = raw.rfind(b"\x02", 0, at) + 1
    return raw[start:].split(b"\x01", 1)[0].decode(errors="replace")


# -- consumequeue --------------------------------------------------------------------------------


def _consumequeue(tiny: Tiny, file: str, offset: int, bit: int) -> Judgement:
    number, inside = divmod(offset, UNIT.size)
    field = "offset" if inside < 8 else "size" if inside < 12 else "tags code"
    here = number * UNIT.size, (number + 1) * UNIT.size
    if (file, here[0]) in {tiny.unit_place(unit) for unit in tiny.units}:
        return Judgement(Verdict.ALWAYS, field, here)
    # The free entry right behind the last one is an entry to a broker once it has a size.
    last = max((at for name, at in map(tiny.unit_place, tiny.units) if name == file), default=-1)
    counts = (field == "size" and here[0] == last + UNIT.size
              and not (inside == 8 and bit == 7))
    return Judgement(Verdict.ALWAYS if counts else Verdict.EITHER, f"free entry's {field}",
                     here if counts else None)


# -- index ---------------------------------------------------------------------------------------


def _index(tiny: Tiny, file: str, offset: int, bit: int) -> Judgement:
    if offset < INDEX_HEADER.size:
        name = ("begin", "end", "begin offset", "end offset", "counts")[offset // 8]
        if name != "counts":
            return Judgement(Verdict.ALWAYS, f"header {name}", (0, INDEX_HEADER.size))
        if offset < 36:
            return Judgement(Verdict.EITHER, "header used slots")
        return Judgement(Verdict.ALWAYS, "header count")
    entries = tiny.entry_place(0)[1]
    if offset < entries:
        return Judgement(Verdict.ALWAYS, "slot")
    number, inside = divmod(offset - entries, INDEX_ENTRY.size)
    if not 1 <= number <= len(tiny.entries):
        return Judgement(Verdict.EITHER, "free entry")
    field = ("hash" if inside < 4 else "offset" if inside < 12 else
             "seconds" if inside < 16 else "previous")
    return Judgement(Verdict.ALWAYS, f"entry's {field}")


# -- checkpoint and config -----------------------------------------------------------------------


def _checkpoint(tiny: Tiny, _file: str, offset: int, bit: int) -> Judgement:
    names = ("physic", "logics", "index", "master flushed", "confirm")
    if offset >= 8 * len(names):
        return Judgement(Verdict.EITHER, "rest of the page")
    last = tiny.messages[-1].record.store_timestamp
    number, byte = divmod(offset, 8)
    old = last if number < 2 else 0
    value = old ^ 1 << (8 * (7 - byte) + bit)
    value -= (value >> 63) << 64
    if number < 3:
        wrong = value < 0 or value > last + DAY
    else:
        wrong = number == 4 and (value < 0 or value > tiny.log_end)
    return Judgement(Verdict.ALWAYS if wrong else Verdict.EITHER, names[number],
                     (8 * number, 8 * number + 8) if wrong else None)


_BARE_KEY = re.compile(r"([{,]\s*)(-?\d+)(\s*:)")


def readable_json(raw: bytes) -> bool:
    """Whether a tolerant reader (integer keys without quotes) takes the bytes for JSON."""
    try:
        json.loads(_BARE_KEY.sub(r'\1"\2"\3', raw.decode()))
    except ValueError:
        return False
    return True


def _config(tiny: Tiny, file: str, offset: int, bit: int) -> Judgement:
    raw = bytearray((tiny.root / file).read_bytes())
    raw[offset] ^= 1 << bit
    broken = not readable_json(bytes(raw))
    name = "unreadable text" if broken else "readable text"
    # Nobody reads a broken backup while the main file is good.
    must = broken and not file.endswith(".bak")
    return Judgement(Verdict.ALWAYS if must else Verdict.EITHER, name)
