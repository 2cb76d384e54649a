"""Stores with a message whose body holds frames, and what befalls them: cases for `test_forged`.

A `Case` names a body, a damage and a state of the derived files; `build` makes its store, and
says which messages were put and which of them nothing has touched.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Protocol

from tests.adversary.writer import (
    Frame,
    Layout,
    Put,
    Writer,
    blank_record,
    field_places,
    frame,
    framed,
)

FILE_SIZE = 16 << 10
FORGED = b"forged"
"""Every frame in a body has this in its own."""
TOPIC, EVIL, QUEUE = "orders", "evil", 1
PROPERTIES = b"UNIQ_KEY\x01outer\x02KEYS\x01outer\x02"
Body = Callable[[Writer, int], bytes]
"""The body for its physical offset; the writer tells of the store as it is then."""


# -- bodies ---------------------------------------------------------------------------------------


def _frames(count: int, topic: str = EVIL, first: int = 0, queue: int = 0,
            size: int = 20) -> list[Frame]:
    return [frame(topic, FORGED + bytes([97 + number % 26]) * size, first + number, queue_id=queue,
                  properties={"UNIQ_KEY": f"F{number}"}) for number in range(count)]


def _chain(_writer: Writer, at: int) -> bytes:
    return framed(_frames(3), before=b"lead" * 5, after=b"rest" * 6)(at)


def _own_queue(writer: Writer, at: int) -> bytes:
    """The very queue offsets that come next."""
    first = writer.next_offset.get((TOPIC, QUEUE), 0)
    return framed(_frames(3, TOPIC, first, QUEUE), before=b"x", after=b"y" * 30)(at)


def _padded(_writer: Writer, at: int) -> bytes:
    """Frames and a long run of zeros: a tear in it looks like the end of a log."""
    return framed(_frames(3), after=bytes(3000))(at)


def _nested(_writer: Writer, at: int) -> bytes:
    inner = frame(EVIL, FORGED + b"1", 0, inner=[frame(EVIL, FORGED + b"2", 1),
                                                 frame(EVIL, FORGED + b"3", 2)])
    return framed([inner, *_frames(2, first=3)], before=b"lead", after=b"rest")(at)


def _repeated(_writer: Writer, at: int) -> bytes:
    return framed(_frames(20, size=3), between=b"\0" * 7, before=b"-", after=b"-")(at)


def _own_copy(_writer: Writer, at: int) -> bytes:
    """Frames that say they lie where the message itself does, and around it."""
    head = 88
    out = b""
    for number in range(3):
        evil_frame = frame(EVIL, FORGED + b"c" * 40, number)
        out += evil_frame.at(at - head) + evil_frame.at(at + 512 * number + len(out) - 512)
    return out + b"end"


def _straddle(_writer: Writer, at: int) -> bytes:
    """The last frame's properties are the tail of the message around: the chain has no break."""
    tail = 1 + len(TOPIC) + 2 + len(PROPERTIES)
    whole = framed(_frames(2))(at)
    last = frame(EVIL, FORGED + b"last", 2, properties={"p" * (tail - 3): "v"})
    raw = last.at(at + len(whole))
    assert struct.unpack(">h", raw[-tail - 2:-tail]) == (tail,)
    return whole + raw[:-tail]


def _blank(_writer: Writer, at: int) -> bytes:
    """Frames, and a blank record that fits where it lies."""
    whole = framed(_frames(3), before=b"lead")(at)
    rest = FILE_SIZE - (at + len(whole)) % FILE_SIZE
    return whole + blank_record(rest) + bytes(40)


def _short_tail(_writer: Writer, at: int) -> bytes:
    """Where a length's bit is turned, a false tail awaits, and a frame behind it."""
    out = bytearray(b"." * 2100)
    size = len(out)
    for bit in range(11):
        end = (size ^ (1 << bit)) if size >> bit & 1 else 0
        if 8 < end < size - 300:
            evil_frame = frame(EVIL, FORGED + b"s", bit).at(at + end)
            out[end - 4:end] = b"\x01t\0\0"
            out[end:end + len(evil_frame)] = evil_frame
    return bytes(out)


BODIES: dict[str, Body] = {
    "chain": _chain, "own-queue": _own_queue, "padded": _padded, "nested": _nested,
    "repeated": _repeated, "own-copy": _own_copy, "blank": _blank, "short-tail": _short_tail,
    "straddle": _straddle,
}
FIELDS = ("total_size", "magic", "physical_offset", "body_length", "topic_length",
          "properties_length", "body_crc", "sys_flag", "queue_offset", "queue_id", "body")
PLACES = ("middle", "file-end", "last")
STATES = ("whole", "no-queues", "nothing", "rows-gone", "rows-flipped", "queue-gone", "lagging")
"""Of the derived files: all there, no consumequeue, nor an index either, the message's own row
zeroed, bits of rows turned, the folder of its queue gone, rows and keys of the last messages not
written yet."""


# -- cases ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """``damage``: ``flip:FIELD:BIT``, ``tear:PART`` (where in the message), ``zeros`` (its head),
    ``random:SEED``.
    """

    body: str
    place: str
    damage: str
    state: str

    @property
    def name(self) -> str:
        return f"{self.body}-{self.place}-{self.damage.replace(':', '.')}-{self.state}"


@dataclass(frozen=True)
class Hostile:
    """A store as it was made: its messages, the one with frames in it, and those untouched."""

    folder: Path
    puts: tuple[Put, ...]
    outer: Put
    damaged: frozenset[int]

    @property
    def intact(self) -> list[Put]:
        return [put for put in self.puts if put.physical not in self.damaged]


def damages(place: str) -> Iterator[str]:
    """All kinds of damage to a message at a place."""
    widths = {"magic": 32, "total_size": 31, "physical_offset": 40, "body_length": 31,
              "topic_length": 8, "properties_length": 16, "body_crc": 31, "sys_flag": 11,
              "queue_offset": 20, "queue_id": 8, "body": 64}
    for name in FIELDS:
        for bit in range(widths[name]):
            yield f"flip:{name}:{bit}"
    if place == "last":
        for part in ("frames", "sector", "body-end", "topic", "properties"):
            yield f"tear:{part}"
            yield f"tear:{part}:flip"


def cases() -> Iterator[Case]:
    """All of them."""
    for body, place, state in product(BODIES, PLACES, STATES):
        for damage in damages(place):
            yield Case(body, place, damage, state)


def build(folder: Path, case: Case) -> Hostile:
    """Makes the store of a case."""
    writer = Writer(Layout(log_file_size=FILE_SIZE, queue_file_units=50, index_slots=16,
                           index_entries=256), seed=1)

    def ordinary(number: int) -> None:
        writer.put(TOPIC, b"ordinary %d " % number * 5, queue_id=number % 3, tags="A",
                   keys=f"k{number}")

    for number in range(6):
        ordinary(number)
    content = BODIES[case.body]
    size = len(_preview(writer, content))
    if case.place == "file-end":  # so that just the blank record's room is left behind it
        filled = writer.room() - size - 8
        writer.put(TOPIC, b"f" * (filled - _fixed(writer)), queue_id=2)
        assert writer.room() >= size + 8
    outer = _put(writer, content)
    if case.place != "last":
        for number in range(6, 12):
            ordinary(number)
        if case.place == "middle":
            writer.roll()
        for number in range(12, 15):
            ordinary(number)
    damaged = damage_to(writer, outer, case.damage)
    _derived(writer, outer, case)
    writer.write(folder)
    return Hostile(folder, tuple(writer.puts), outer, frozenset(damaged))


def _preview(writer: Writer, content: Body) -> bytes:
    """A record of the size which the outer message will have."""
    trial = Writer(replace(writer.layout, log_file_size=1 << 20))
    return _put(trial, content).raw


def _put(writer: Writer, content: Body) -> Put:
    return writer.put(TOPIC, lambda at: content(writer, at), queue_id=QUEUE, keys="outer",
                      unique_key="outer", properties_raw=PROPERTIES)


def _fixed(writer: Writer) -> int:
    return len(Writer(writer.layout).put(TOPIC, b"", queue_id=2).raw)


class Damageable(Protocol):
    """A writer, of a store or a tier."""

    def flip(self, physical: int, bit: int = 0, /) -> None: ...

    def patch(self, physical: int, data: bytes, /) -> None: ...

    def tear(self, physical: int, /) -> None: ...


def damage_to(writer: Damageable, outer: Put, damage: str) -> set[int]:
    """Damages a message as a case says; the places of what is damaged."""
    kind, *rest = damage.split(":")
    places = field_places(outer.raw)
    if kind == "flip":
        at, width = places[rest[0]]
        bit = int(rest[1])
        byte = at + (width - 1 - bit // 8 if rest[0] != "body" else bit * max(1, width // 64))
        writer.flip(outer.physical + byte, bit % 8)
        return {outer.physical}
    if kind == "random":  # zeros or noise at one or two places
        chance = random.Random(rest[0])
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(outer.size)
            size = min(chance.choice([1, 4, 8, 30, 100, 512]), outer.size - at)
            writer.patch(outer.physical + at,
                         bytes(size) if chance.random() < 0.5 else chance.randbytes(size))
        return {outer.physical}
    if kind == "zeros":  # nothing is left of the head
        writer.patch(outer.physical, bytes(places["body"][0]))
        return {outer.physical}
    body_at, body = places["body"]
    last_frame = outer.body.rfind(FORGED)
    where = {"frames": body_at + last_frame + len(FORGED) + 60,
             "sector": (outer.end - 1) // 512 * 512 - outer.physical,
             "body-end": body_at + body, "topic": body_at + body + 1,
             "properties": places["properties_length"][0] + 2}[rest[0]]
    where = min(max(where, body_at + 1), outer.size - 1)
    writer.tear(outer.physical + where)
    if rest[1:]:
        writer.flip(outer.physical + 2, 2)
    return {outer.physical}


def _derived(writer: Writer, outer: Put, case: Case) -> None:
    rows = writer.rows
    own = rows[outer.topic, outer.queue_id]
    if case.state in ("no-queues", "nothing"):
        writer.layout = replace(writer.layout, with_queues=False,
                                with_index=case.state != "nothing")
    elif case.state == "rows-gone":
        own[outer.queue_offset] = bytes(20)
    elif case.state == "rows-flipped":
        for units in rows.values():
            for at in list(units):
                if writer.random.random() < 0.3:
                    unit = bytearray(units[at])
                    bit = writer.random.randrange(96)
                    unit[bit // 8] ^= 1 << bit % 8
                    units[at] = bytes(unit)
    elif case.state == "queue-gone":
        del rows[outer.topic, outer.queue_id]
    elif case.state == "lagging":
        late = {put.physical for put in writer.puts if put.physical >= outer.physical}
        for units in rows.values():
            for at in [at for at, unit in units.items()
                       if struct.unpack(">q", unit[:8])[0] in late]:
                del units[at]
        for index_file in writer.index:
            index_file.entry = [entry for entry in index_file.entry if entry[1] not in late]
            index_file.count = len(index_file.entry) + 1
            index_file.slot = {slot: max((number for number, entry in enumerate(index_file.entry, 1)
                                          if entry[0] % index_file.slots == slot), default=0)
                               for slot in index_file.slot}
            index_file.end = index_file.entry[-1][1]


