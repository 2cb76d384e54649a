"""What is done to the stores of the worlds: to the log, and to what follows from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.adversary import heads
from tests.repair.campaign import damages
from tests.repair.campaign.damages import Target
from tests.repair.campaign.worlds.grounds import DLEDGER, ROCKSDB, SECTOR, Ground
from tests.support import damage

STATES = ("whole", "whole", "damaged", "no rows", "no index", "nothing", "nothing")
"""Of entries and index. Of a database one file is damaged, where others have no entries."""


@dataclass(frozen=True)
class WorldTarget(Target):
    """``base`` is a `Ground`, whose forged messages are hit more often than others."""

    @property
    def victims(self) -> list[int]:
        """Messages to be hit: the forged ones, if there are any, every other time."""
        assert isinstance(self.base, Ground)
        forged = self.base.forged
        return [*forged] if forged and self.luck.random() < 0.6 else sorted(self.base.messages)

    def write(self, at: int, data: bytes) -> str:
        """Writes at a physical offset, as far as that file goes."""
        base = max(file for file in self.base.files if file <= at)
        path = self.base.path(self.root, base)
        if not path.exists():
            return "gone already"
        room = path.stat().st_size - (at - base)
        damage.write(self.root, self.file(base), at - base, data[:max(0, room)])
        return f"@{at}+{len(data)}"


def zeroed_page(target: WorldTarget) -> str:
    """A page of zeros: where a message begins, or anywhere in it."""
    size, place = target.luck.choice((SECTOR, SECTOR, 4096)), target.luck.choice(target.victims)
    at = place if target.luck.random() < 0.6 else place + target.luck.randrange(
        len(target.base.messages[place]))
    base = max(file for file in target.base.files if file <= at)
    return target.write(max(base, at - at % size), bytes(size))


def zeroed_head(target: WorldTarget) -> str:
    """The header of a message is zeros, or noise."""
    place = target.luck.choice(target.victims)
    size = target.luck.choice((88, 88, 100, 120))
    return target.write(place, bytes(size) if target.luck.random() < 0.8
                        else target.luck.randbytes(size))


def moved_page(target: WorldTarget) -> str:
    """A page in another one's place; zeros, or the same again, where it was."""
    first, at, size, _ = target.page()
    second, other, length, _ = target.page()
    piece = target.read(first)[at:at + min(size, length)]
    damage.write(target.root, second, other, piece)
    if target.luck.random() < 0.5 and (second, other) != (first, at):
        damage.write(target.root, first, at, bytes(len(piece)))
    return f"{first} @{at} to {second} @{other} of {len(piece)}"


def copied_file(target: WorldTarget) -> str:
    """A file with the content of another one, which is still there, or is gone."""
    if len(target.used) < 2:
        return moved_page(target)
    first, other = target.luck.sample(target.used, 2)
    source = target.base.path(target.root, first)
    target.base.path(target.root, other).write_bytes(source.read_bytes())
    gone = target.luck.random() < 0.4
    if gone:
        source.unlink()
    return f"{first} over {other}{', and gone itself' if gone else ''}"


def torn_properties(target: WorldTarget) -> str:
    """The properties of a message end in zeros, or in noise; or so does a sector in them."""
    place = target.luck.choice([name for name, record in target.base.records.items()
                                if record.properties])
    end = place + len(target.base.messages[place])
    length = len(target.base.records[place].properties)
    at = end - length + target.luck.randrange(length)
    if target.luck.random() < 0.5:
        end = min(end, at - at % SECTOR + SECTOR)
    return target.write(at, bytes(end - at) if target.luck.random() < 0.6
                        else target.luck.randbytes(min(end - at, target.luck.randint(1, 20))))


def header_field(target: WorldTarget) -> str:
    """Any value in one field of a header."""
    place = target.luck.choice(target.victims)
    name = target.luck.choice(heads.FIELDS)
    at, width = heads.places_of(target.base.messages[place])[name]
    return f"{name} {target.write(place + at, target.luck.randbytes(width))}"


def torn_last(target: WorldTarget) -> str:
    """The log's last message is torn somewhere behind its head, and its head is damaged too, or
    not.
    """
    place = max(target.base.messages)
    base = max(file for file in target.base.files if file <= place)
    size = len(target.base.files[base])
    at = place + target.luck.randrange(100, max(101, len(target.base.messages[place])))
    text = f"from {target.write(at, bytes(max(0, base + size - at)))}"
    if target.luck.random() < 0.7:
        text += f"; head {target.write(place, bytes(target.luck.choice((4, 88))))}"
    return text


KINDS: Mapping[str, Callable[[WorldTarget], str]] = {
    "zeroed page": zeroed_page, "zeroed header": zeroed_head, "stale page": damages.stale_pages,
    "swapped pages": damages.swapped_pages, "moved page": moved_page,
    "swapped files": damages.swapped_files, "copied file": copied_file,
    "lost files": damages.lost_files, "torn log": damages.torn_tail, "torn last": torn_last,
    "torn properties": torn_properties, "header field": header_field}


def runs(target: WorldTarget) -> str:
    """Up to three runs of zeros or noise, of 1 to 8,192 bytes, in messages and before them."""
    stores = []
    for _ in range(target.luck.randint(1, 3)):
        place = target.luck.choice(target.victims)
        at = max(place + target.luck.randrange(-60, len(target.base.messages[place])),
                 min(target.base.files))
        size = target.luck.choice((1, 2, 7, 30, 88, 200, 512, 1000, 3000, 8192))
        stores.append(target.write(at, bytes(size) if target.luck.random() < 0.5
                                   else target.luck.randbytes(size)))
    return "; ".join(stores)


def sectors(target: WorldTarget) -> str:
    """Up to three times one or more sectors show others, or two places each other's."""
    texts = []
    for _ in range(target.luck.randint(1, 3)):
        first = target.luck.choice(target.victims)
        second = target.luck.choice(sorted(target.base.messages))
        size = SECTOR * target.luck.choice((1, 1, 2, 8))
        pair = [place - place % SECTOR for place in (first, second)]
        bases = [max(file for file in target.base.files if file <= at) for at in pair]
        if not all(target.base.path(target.root, base).exists() for base in bases):
            continue
        parts = [target.read(target.file(base))[at - base:at - base + size]
                 for at, base in zip(pair, bases, strict=True)]
        texts.append(f"to {target.write(pair[0], parts[1])}")
        if target.luck.random() < 0.5:
            texts.append(f"to {target.write(pair[1], parts[0])}")
    return "; ".join(texts)


WIDE: Mapping[str, Callable[[WorldTarget], str]] = {
    **KINDS, "runs": runs, "more runs": runs, "sectors": sectors, "more sectors": sectors,
    "most sectors": sectors}
"""Those of wide worlds: more of what the others have little of."""


def derived(target: WorldTarget, state: str) -> str:
    """Brings entries and index into one of `STATES`."""
    form, luck = target.base.name, target.luck
    if form == DLEDGER and state == "nothing":
        (target.root / "dledger-n0/index" / f"{0:020d}").unlink()
    if form != ROCKSDB:
        return damages.do_derived(target, state)
    if state in ("no index", "nothing"):
        shutil.rmtree(target.root / "index", ignore_errors=True)
    if state in ("no rows", "nothing", "damaged"):
        names = sorted(path.name for path in (target.root / "consumequeue").iterdir()
                       if path.name == "CURRENT" or path.suffix == ".sst")
        name = luck.choice(names)
        path = target.root / "consumequeue" / name
        if name == "CURRENT":
            path.unlink()
        else:
            damage.flip_bit(target.root, f"consumequeue/{name}",
                            luck.randrange(path.stat().st_size), luck.randrange(8))
        return f"{state}: consumequeue/{name}"
    return state


def do(target: WorldTarget, kind: str, kinds: Mapping[str, Callable[[WorldTarget], str]] = KINDS,
       ) -> list[str]:
    """Damages the log once, or, one time in four, once more in any way."""
    names = [kind]
    if target.luck.random() < 0.25:
        names.append(target.luck.choice([*kinds]))
    return [f"{name}: {WIDE[name](target)}" for name in names if target.used]


__all__ = ["KINDS", "STATES", "WIDE", "WorldTarget", "derived", "do"]
