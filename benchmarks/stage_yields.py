"""Measure how many damaged messages each stage of salvage restores.

``python -m benchmarks.stage_yields`` damages a message, or two pages, in each of 60 stores of a
kind, recovers the store with all stages, and counts the damaged messages whose bytes are restored.
The figures are in the docstrings of the stages. The exit code is 1 if a stage restores fewer than
one in twenty messages: then it should be removed, unless no other field proves the damaged one.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from rmqctl.errors import RmqctlError
from tests.adversary import heads
from tests.repair.campaign import stores, trial
from tests.repair.campaign.damages import Target, swapped_pages
from tests.support import damage
from tests.support.cli import run

STORES = 60
MIN_YIELD = 1 / 20
SECTOR = 512
Yield = tuple[int, int]
"""Number of damaged messages, and number of messages whose bytes are restored."""


# -- damage to bodies, topics, properties and pages -----------------------------------------------


def one_bit(target: Target) -> bool:
    """Flip a bit of a body."""
    return _in_body(target, lambda old, luck: bytes([old[0] ^ 1 << luck.randrange(8)]), 1)


def one_byte(target: Target) -> bool:
    """Change a byte of a body: at least two of its bits."""
    def changed(old: bytes, luck: random.Random) -> bytes:
        return bytes([old[0] ^ luck.choice([x for x in range(256) if x.bit_count() > 1])])

    return _in_body(target, changed, 1)


def torn_run(target: Target) -> bool:
    """Overwrite two to four bytes of a body next to a sector border with zeros or random bytes."""
    luck, size = target.luck, target.luck.randint(2, 4)
    places = [(place, at) for place, raw in sorted(target.base.messages.items())
              for at in _body_of(target, place, size)
              if (at + size if luck.random() < 0.5 else at) % SECTOR == 0 and raw]
    if not places:
        return False
    _, at = luck.choice(places)
    kind = luck.random() < 0.5
    return _write(target, at, bytes(size) if kind else luck.randbytes(size))


def topic_byte(target: Target) -> bool:
    """Change a byte of a topic."""
    place = target.luck.choice(sorted(target.base.records))
    record = target.base.records[place]
    at = place + len(target.base.messages[place]) - len(record.properties) - 2 - len(record.topic)
    at += target.luck.randrange(len(record.topic))
    return _write(target, at, target.luck.randbytes(1))


def topic_byte_without_entries(target: Target) -> bool:
    """Change a byte of a topic, and delete the consume queues."""
    shutil.rmtree(target.root / "consumequeue")
    return topic_byte(target)


def property_byte(target: Target) -> bool:
    """Change a byte of a key or tag."""
    luck = target.luck
    places = []
    for place, record in sorted(target.base.records.items()):
        start = place + len(target.base.messages[place]) - len(record.properties)
        for name in (b"KEYS\x01", b"TAGS\x01", b"UNIQ_KEY\x01"):
            at = record.properties.find(name)
            end = record.properties.find(b"\x02", at)
            end = len(record.properties) if end < 0 else end
            places += [start + position for position in range(at + len(name), end) if at >= 0]
    return bool(places) and _write(target, luck.choice(places), bytes([luck.randrange(33, 127)]))


def property_nul(target: Target) -> bool:
    """Write a NUL to the properties, which no broker does."""
    place = target.luck.choice([place for place, record in sorted(target.base.records.items())
                                if record.properties])
    length = len(target.base.records[place].properties)
    at = place + len(target.base.messages[place]) - length + target.luck.randrange(length)
    return _write(target, at, b"\0")


def pages(target: Target) -> bool:
    """Swap two pages of 512 bytes or 4 KiB."""
    return swapped_pages(target) != "only one page"


def _body_of(target: Target, place: int, size: int) -> range:
    record, raw = target.base.records[place], target.base.messages[place]
    width = 2 if len(record.topic) > 127 else 1
    end = place + len(raw) - len(record.properties) - 2 - len(record.topic) - width
    return range(end - len(record.body), end - size + 1)


def _in_body(target: Target, change: Callable[[bytes, random.Random], bytes], size: int) -> bool:
    places = [place for place, record in sorted(target.base.records.items()) if record.body]
    at = target.luck.choice([*_body_of(target, target.luck.choice(places), size)])
    base = max(start for start in target.base.files if start <= at)
    old = target.read(target.file(base))[at - base:at - base + size]
    return _write(target, at, change(old, target.luck))


def _write(target: Target, at: int, data: bytes) -> bool:
    base = max(start for start in target.base.files if start <= at)
    damage.write(target.root, target.file(base), at - base, data)
    return True


DAMAGES: Mapping[str, Callable[[Target], bool]] = {
    "bit of a body": one_bit, "byte of a body": one_byte, "torn run of a body": torn_run,
    "swapped pages": pages, "byte of a topic": topic_byte,
    "byte of a topic, no entries": topic_byte_without_entries,
    "byte of a key or tag": property_byte,
    "NUL in properties": property_nul}


def of_damage(kind: str, count: int, folder: Path) -> Yield:
    """Return the `Yield` for one of `DAMAGES` in generated stores."""
    damaged = back = 0
    for seed in range(count):
        name = stores.GENERATED[seed % len(stores.GENERATED)]
        base = stores.make(folder / "made", name, seed % 40)
        case = trial.Case(seed, kind, trial.NONE, "whole", "byte", False, name, seed % 40)
        root = base.copy(folder / "store")
        if DAMAGES[kind](Target(base, root, random.Random(f"{kind} {seed}"))):
            hit = trial.touched(base, root)
            with contextlib.suppress(RmqctlError):
                trial.recover(root, trial.options_of(base, case, None))
            left = trial.touched(base, root)
            damaged, back = damaged + len(hit), back + len(hit.keys() - left.keys())
        shutil.rmtree(root)
    return damaged, back


# -- header fields --------------------------------------------------------------------------------


def of_field(field: str, count: int, folder: Path, *, sealed: bool | None = None,
             bit: bool = False) -> Yield:
    """Return the `Yield` for a random value, or a flipped ``bit``, in a header field."""
    back = 0
    for seed in range(count):
        root = folder / "store"
        store = heads.Store.of(seed, sealed=sealed)
        luck = random.Random(f"{seed} {field}")
        store.write(root, field, _turned(store, field, luck) if bit else store.value(field, luck))
        run("recover", root, *heads.OPTIONS, "--apply", "--yes").expect(0, 1)
        back += store.bytes_in(root) == store.victim.raw
        shutil.rmtree(root)
    return count, back


def _turned(store: heads.Store, field: str, luck: random.Random) -> bytes:
    at, width = heads.places_of(store.victim.raw)[field]
    value = int.from_bytes(store.victim.raw[at:at + width], "big")
    return (value ^ 1 << luck.randrange(8 * width)).to_bytes(width, "big")


def main(words: list[str] | None = None) -> int:
    """Run the command line; return 1 if a kind is below `MIN_YIELD`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stores", type=int, default=STORES)
    parser.add_argument("--only", metavar="KIND", help="as printed, or header, sealed, bit")
    given = parser.parse_args(words)
    low = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kinds: dict[str, Callable[[], Yield]] = {}
        for kind in DAMAGES:
            kinds[kind] = partial(of_damage, kind, given.stores, folder)
        for group, sealed, bit in (("header", False, False), ("sealed", True, False),
                                   ("bit", False, True)):
            for field in heads.FIELDS:
                kinds[f"{group}: {field}"] = partial(
                    of_field, field, given.stores, folder, sealed=sealed, bit=bit)
        for kind, measure in kinds.items():
            if given.only not in (None, kind, kind.partition(":")[0]):
                continue
            damaged, back = measure()
            low |= back < damaged * MIN_YIELD
            sys.stdout.write(f"{kind}: {back} of {damaged}\n")
            sys.stdout.flush()
    return int(low)


if __name__ == "__main__":
    sys.exit(main())
