"""Tiers with a message whose body holds frames, and what befalls them: cases for
`test_forged_tier`. Bodies and damages of `hostile`, and some that only a tier invites.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

from tests.adversary import hostile
from tests.adversary.hostile import FORGED, PROPERTIES, Case, Hostile
from tests.adversary.tier_writer import QUEUE, TOPIC, TierWriter
from tests.adversary.writer import Frame, Put, frame, framed

Body = Callable[[TierWriter, int], bytes]


def _frames(count: int, first: int, size: int = 20) -> list[Frame]:
    """Messages of the queue itself: a commit log of a tier holds no others."""
    return [frame(TOPIC, FORGED + bytes([97 + number % 26]) * size, first + number, queue_id=QUEUE,
                  properties={"UNIQ_KEY": f"F{number}"}) for number in range(count)]


def _next(writer: TierWriter) -> int:
    return writer.next_offset.get((TOPIC, QUEUE), 0)


def _own(writer: TierWriter, at: int) -> bytes:
    return framed(_frames(3, _next(writer)), before=b"x", after=b"y" * 30)(at)


def _following(writer: TierWriter, at: int) -> bytes:
    """As if the message around had ended: the queue offsets behind its own."""
    return framed(_frames(3, _next(writer) + 1), after=b"rest")(at)


def _nested(writer: TierWriter, at: int) -> bytes:
    first = _next(writer)
    inner = frame(TOPIC, FORGED + b"1", first, queue_id=QUEUE, inner=_frames(2, first + 1))
    return framed([inner, *_frames(2, first + 1)], before=b"lead", after=b"rest")(at)


def _shifted(writer: TierWriter, at: int) -> bytes:
    """Frames that say they lie where the message itself does, as in a block written again."""
    return framed(_frames(3, _next(writer)), before=b"pad", shift=-91)(at)


def _twice(writer: TierWriter, at: int) -> bytes:
    """A run of frames, and the same once more, that still say the first place."""
    once = framed(_frames(2, _next(writer)))(at)
    return once + once + b"end"


def _earlier(writer: TierWriter, at: int) -> bytes:
    """Frames with place, size and queue offset of messages that were before."""
    out = b""
    for put in writer.puts[-2:]:
        room = put.size - len(frame(TOPIC, FORGED, 0, queue_id=QUEUE).at(0))
        out += frame(TOPIC, FORGED + b"e" * room, put.queue_offset, queue_id=QUEUE).at(put.physical)
    return out


def _coda(writer: TierWriter, at: int) -> bytes:
    """Codas around frames: what lies behind one is where a segment goes on."""
    coda = struct.pack(">iIq", 16, 0xCBD43194, writer.clock)
    return coda + framed(_frames(2, _next(writer)), between=coda)(at + 16) + coda


def _straddle(writer: TierWriter, at: int) -> bytes:
    """The last frame's properties are the tail of the message around: the chain has no break."""
    tail = 1 + len(TOPIC) + 2 + len(PROPERTIES)
    whole = framed(_frames(2, _next(writer)))(at)
    last = frame(TOPIC, FORGED + b"last", _next(writer) + 2, queue_id=QUEUE,
                 properties={"p" * (tail - 3): "v"})
    return whole + last.at(at + len(whole))[:-tail]


def _of_a_log(name: str) -> Body:
    """A body of `hostile`, which asks of its writer no more than a tier's has."""
    return hostile.BODIES[name]  # type: ignore[return-value]


BODIES: dict[str, Body] = {
    "own": _own, "following": _following, "nested": _nested, "shifted": _shifted, "twice": _twice,
    "earlier": _earlier, "coda": _coda, "straddle": _straddle,
    **{name: _of_a_log(name) for name in ("chain", "padded", "own-copy", "short-tail")},
}
PLACES = ("middle", "segment-end", "first", "last")
STATES = ("whole", "no-units", "nothing", "unit-gone", "units-flipped", "lagging", "no-metadata")
"""No consume queue; nor an index; the message's own unit zeroed; bits of units turned; units
and items of it and what follows not written yet; files, and no metadata that knows them."""


def cases() -> Iterator[Case]:
    for body, place, state in product(BODIES, PLACES, STATES):
        for damage in damages(place):
            yield Case(body, place, damage, state)


def damages(place: str) -> Iterator[str]:
    yield from hostile.damages("last" if place == "last" else "middle")
    yield "zeros"


def build(folder: Path, case: Case) -> Hostile:
    """Makes the tier of a case."""
    writer = TierWriter(first=3, coda=case.state == "no-metadata")

    def ordinary(count: int) -> None:
        for _ in range(count):
            number = len(writer.puts)
            writer.put(b"ordinary %d " % number * 4, keys=f"k{number}", tags="A")

    ordinary(4)
    writer.roll()
    if case.place != "first":
        ordinary(3)
    outer = writer.put(lambda at: BODIES[case.body](writer, at), properties_raw=PROPERTIES)
    if case.place == "segment-end":
        writer.roll()
    if case.place != "last":
        ordinary(5)
    if case.place == "middle":
        writer.roll()
        ordinary(3)
    damaged = hostile.damage_to(writer, outer, case.damage)
    _derived(writer, outer, case.state)
    return Hostile(writer.write(folder), tuple(writer.puts), outer, frozenset(damaged))


def _derived(writer: TierWriter, outer: Put, state: str) -> None:
    units = writer.units
    if state in ("no-units", "nothing"):
        writer.with_units, writer.with_index = False, state != "nothing"
    elif state == "unit-gone":
        units[outer.queue_offset] = bytes(20)
    elif state == "units-flipped":
        for number in units:
            if writer.random.random() < 0.3:
                unit = bytearray(units[number])
                bit = writer.random.randrange(96)
                unit[bit // 8] ^= 1 << bit % 8
                units[number] = bytes(unit)
    elif state == "lagging":
        for put in writer.puts:
            if put.physical >= outer.physical:
                units.pop(put.queue_offset)
        writer.items = [pair for pair in writer.items if pair[1] < outer.physical]
    elif state == "no-metadata":
        writer.with_metadata = False
