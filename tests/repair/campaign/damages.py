"""What is done to the stores of the campaign: kinds of damage to the log, states of what follows.

Each takes the store, where it lies and a source of luck, changes some bytes or files, and says
what it did. Which messages that touched is told by comparing the bytes (`trial.damaged`).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.repair.campaign.stores import Base
from tests.support import damage

PAGES = (512, 4096)


@dataclass(frozen=True)
class Target:
    """The damaged copy ``root`` of a store; ``older``: the log of an earlier life of its files,
    messages with the same physical offsets that were cut off (None: there is none).
    """

    base: Base
    root: Path
    luck: random.Random
    older: dict[int, bytes] | None = None

    def file(self, base: int) -> str:
        return str(self.base.path(self.root, base).relative_to(self.root))

    @property
    def used(self) -> list[int]:
        """The files that are there and hold anything."""
        return [base for base, data in self.base.log(self.root).files if any(data)]

    def place(self) -> tuple[str, int]:
        """Some byte of some message: (file, position)."""
        at = self.luck.choice(sorted(self.base.messages))
        at += self.luck.randrange(len(self.base.messages[at]))
        base = max(file for file in self.base.files if file <= at)
        return self.file(base), at - base

    def page(self) -> tuple[str, int, int, int]:
        """Some page of a file that holds anything: (file, first byte, size, the file's base)."""
        base = self.luck.choice(self.used)
        data = self.base.path(self.root, base).read_bytes()
        size = self.luck.choice(PAGES)
        count = max(1, -(-len(data.rstrip(b"\0")) // size))
        at = self.luck.randrange(count) * size
        return self.file(base), at, min(size, len(data) - at), base

    def read(self, file: str) -> bytes:
        return (self.root / file).read_bytes()


def _changed(target: Target, length: int, change: Callable[[bytes], bytes]) -> str:
    file, at = target.place()
    if not (target.root / file).exists():
        return "gone already"
    before = target.read(file)[at:at + length]
    if not before:
        return "cut already"
    damage.write(target.root, file, at, change(before))
    return f"{file} @{at}+{len(before)}"


def bits(target: Target) -> str:
    """One to four single bits."""
    luck = target.luck
    return "; ".join(_changed(target, 1, lambda old: bytes([old[0] ^ 1 << luck.randrange(8)]))
                     for _ in range(luck.randint(1, 4)))


def whole_bytes(target: Target) -> str:
    """One to four single bytes."""
    luck = target.luck
    return "; ".join(_changed(target, 1, lambda old: bytes([old[0] ^ luck.randrange(1, 256)]))
                     for _ in range(luck.randint(1, 4)))


def bursts(target: Target) -> str:
    """One to three runs of 2 to 31 bits, or of up to 64 bytes."""
    luck = target.luck

    def few_bits(old: bytes) -> bytes:
        length = luck.randint(2, 31)
        turned = (1 | 1 << length - 1 | luck.getrandbits(length)) << luck.randrange(32 - length + 1)
        return bytes(a ^ b for a, b in zip(old, turned.to_bytes(4, "big"), strict=False))

    done = []
    for _ in range(luck.randint(1, 3)):
        if luck.random() < 0.6:
            done.append(_changed(target, 4, few_bits))
        else:
            done.append(_changed(target, luck.randint(2, 64), lambda old: luck.randbytes(len(old))))
    return "; ".join(done)


def lost_pages(target: Target) -> str:
    """A page of zeros, of other bytes, or half of one."""
    file, at, size, _ = target.page()
    kind = target.luck.randrange(3)
    data = target.luck.randbytes(size) if kind == 1 else bytes(size if not kind else size // 2)
    damage.write(target.root, file, at + (size // 2 if kind == 2 else 0), data)
    return f"{('zeros', 'noise', 'half')[kind]}: {file} @{at}+{size}"


def swapped_pages(target: Target) -> str:
    """Two pages of one file, or of two, in each other's place."""
    first, at, size, _ = target.page()
    for _ in range(20):
        second, other, length, _ = target.page()
        if length == size and (second, other) != (first, at):
            content = target.read(first)[at:at + size]
            damage.write(target.root, first, at, target.read(second)[other:other + size])
            damage.write(target.root, second, other, content)
            return f"{first} @{at} and {second} @{other} of {size}"
    return "only one page"


def stale_pages(target: Target) -> str:
    """A page as it was before: when the log ended within it, of another place, or of an earlier
    life of the file.
    """
    file, at, size, base = target.page()
    kind = target.luck.randrange(3)
    if kind == 2 and target.older and len(target.older.get(base, b"")) >= at + size:
        damage.write(target.root, file, at, target.older[base][at:at + size])
        return f"of an older log: {file} @{at}+{size}"
    if kind == 1:
        source, other, length, _ = target.page()
        piece = target.read(source)[other:other + min(size, length)]
        damage.write(target.root, file, at, piece)
        return f"a copy of {source} @{other}: {file} @{at}+{len(piece)}"
    borders = [place - base for place in target.base.messages if at < place - base < at + size]
    start = target.luck.choice(borders) if borders else at
    damage.write(target.root, file, start, bytes(at + size - start))
    return f"unwritten from {start} on: {file} @{at}+{size}"


def lost_files(target: Target) -> str:
    """Files that are gone: the first, some in between, the last ones."""
    used = target.used
    kind = target.luck.choice(("first", "middle", "middle", "last"))
    count = target.luck.randint(1, max(1, len(used) // 3))
    if len(used) < 3 or kind == "middle":
        chosen = target.luck.sample(used[1:-1], min(count, len(used[1:-1])))
    else:
        chosen = used[:count] if kind == "first" else used[-count:]
    for base in chosen:
        damage.remove(target.root, target.file(base))
    return f"{kind}: {sorted(chosen)}"


def torn_tail(target: Target) -> str:
    """The log's end is zeros, noise, or cut off, from somewhere in its last file, or before."""
    used = target.used
    first = used[-1] if target.luck.random() < 0.7 else target.luck.choice(used)
    file = target.file(first)
    data = target.read(file)
    at = target.luck.randrange(len(data.rstrip(b"\0")))
    kind = target.luck.choice(("zeros", "cut", "noise"))
    if kind == "cut":
        damage.truncate(target.root, file, at)
    else:
        rest = len(data) - at
        damage.write(target.root, file, at, bytes(rest) if kind == "zeros" else
                     target.luck.randbytes(min(rest, 700)))
    for base in used:
        if base > first:
            damage.remove(target.root, target.file(base))
    return f"{kind}: {file} @{at}"


def swapped_files(target: Target) -> str:
    """Two files took each other's names."""
    used = target.used
    if len(used) < 2:
        return "only one file"
    first, other = target.luck.sample(used, 2)
    damage.swap_names(target.root, target.file(first), target.file(other))
    return f"{first} and {other}"


Kind = Callable[[Target], str]
KINDS: dict[str, Kind] = {
    "bits": bits, "bytes": whole_bytes, "bursts": bursts, "pages lost": lost_pages,
    "pages swapped": swapped_pages, "pages stale": stale_pages, "files lost": lost_files,
    "tail torn": torn_tail, "files swapped": swapped_files}
MIXED = "several of these"


def do(target: Target, kind: str) -> list[str]:
    """Damages the log in one of `KINDS`, or two to five times in any of them."""
    names = [kind] if kind in KINDS else [
        target.luck.choice(list(KINDS)) for _ in range(target.luck.randint(2, 5))]
    return [f"{name}: {KINDS[name](target)}" if target.used else f"{name}: nothing is left"
            for name in names]


# -- what follows from the log --------------------------------------------------------------------

STATES = ("whole", "whole", "whole", "damaged", "no rows", "no index", "nothing")
"""Of consumequeues and index."""


def do_derived(target: Target, state: str) -> str:
    """Brings rows and index into a state of `STATES`."""
    if state in ("no rows", "nothing"):
        for part in ("consumequeue", "consumequeue_ext"):
            shutil.rmtree(target.root / part, ignore_errors=True)
    if state in ("no index", "nothing"):
        shutil.rmtree(target.root / "index", ignore_errors=True)
    if state != "damaged":
        return state
    luck, done = target.luck, []
    files = sorted(path for part in ("consumequeue", "index")
                   for path in (target.root / part).rglob("*") if path.is_file())
    for path in luck.sample(files, min(len(files), luck.randint(1, 4))):
        file = str(path.relative_to(target.root))
        size = path.stat().st_size
        used = max(1, len(path.read_bytes().rstrip(b"\0")))
        kind = luck.choice(("bit", "bit", "zeros", "gone", "cut"))
        at = luck.randrange(used)
        if kind == "gone" or not size:  # RocksDB has empty files
            damage.remove(target.root, file)
        elif kind == "bit":
            damage.flip_bit(target.root, file, at, luck.randrange(8))
        elif kind == "zeros":
            damage.zero(target.root, file, at, min(luck.choice((20, 100, 512)), size - at))
        else:
            damage.truncate(target.root, file, at)
        done.append(f"{kind}: {file} @{at}")
    return "; ".join(done)
