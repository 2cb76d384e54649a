"""Damage done to a store on purpose, each kind once, and what it is.

Every function changes one thing in the directory it is given (a copy!) and returns a `Damage`
that says what was done and where, so a test can compare it with what was found. Nothing is
random but what takes a ``seed``. Modification times are kept: only the bytes give it away.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

PAGE = 4096
UNIT = struct.Struct(">qiq")
INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_ENTRY = struct.Struct(">iqii")
CHECKPOINT_FIELDS = ("physic", "logics", "index", "master_flushed", "confirm")
HUGE = (1 << 62) + 12345


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done: ``kind``, in which ``file`` (relative to the root), at which bytes of it.

    ``structure`` is the name `verify` uses for the kind of file; ``before`` what the bytes were,
    where they are few.
    """

    kind: str
    structure: str
    file: str
    offset: int = 0
    length: int = 0
    before: bytes = b""
    note: str = ""

    @property
    def end(self) -> int:
        """Position of the first byte behind the damage."""
        return self.offset + self.length

    @property
    def physical_offset(self) -> int:
        """For a commitlog file: where in the log the damage starts."""
        return int(Path(self.file).name) + self.offset


@contextmanager
def refused(path: str | Path) -> Iterator[None]:
    """``path`` may not be opened, as by a user without the permission."""
    real = os.open

    def opening(name: Any, *args: Any, **more: Any) -> int:
        if name == str(path):
            raise PermissionError(13, "Permission denied", name)
        return real(name, *args, **more)

    with mock.patch.object(os, "open", opening):
        yield


def structure_of(file: str) -> str:
    """The structure a file belongs to, by its place under the root."""
    top = Path(file).parts[0]
    names = {"cl1": "commitlog", "cl2": "commitlog", "consumequeue_ext": "consumequeue",
             "batchconsumequeue": "consumequeue", "timerlog": "timer", "timerwheel": "timer",
             "abort": "abort", "lock": "lock"}
    return names.get(top, top)


@contextmanager
def _patching(root: Path, file: str) -> Iterator[BinaryIO]:
    """A file to change in place; its times are put back."""
    path = root / file
    about = path.stat()
    with path.open("r+b") as opened:
        yield opened
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def write(root: Path, file: str, offset: int, data: bytes, kind: str = "overwritten") -> Damage:
    """Replace bytes at ``offset``; the file may grow."""
    with _patching(root, file) as opened:
        opened.seek(offset)
        before = opened.read(len(data))
        opened.seek(offset)
        opened.write(data)
    return Damage(kind, structure_of(file), file, offset, len(data), before)


def undo(root: Path, damage: Damage) -> None:
    """Put the bytes back that a `write` replaced (not for a file that grew)."""
    assert len(damage.before) == damage.length
    write(root, damage.file, damage.offset, damage.before)


# -- bytes ---------------------------------------------------------------------------------------


def flip_bit(root: Path, file: str, offset: int, bit: int) -> Damage:
    """Turn one bit; bit 0 is the lowest."""
    with (root / file).open("rb") as opened:
        opened.seek(offset)
        value = opened.read(1)[0]
    return write(root, file, offset, bytes((value ^ 1 << bit,)), "bit flipped")


def zero(root: Path, file: str, offset: int, length: int) -> Damage:
    return write(root, file, offset, bytes(length), "zeroed")


def zero_page(root: Path, file: str, page: int, page_size: int = PAGE) -> Damage:
    """A page that never reached the disk."""
    rest = (root / file).stat().st_size - page * page_size
    return zero(root, file, page * page_size, min(page_size, rest))


def tear_page(root: Path, file: str, page: int, old: bytes | None = None,
              page_size: int = PAGE) -> Damage:
    """The second half of a page still holds ``old`` (zeros unless given)."""
    half = page_size // 2
    data = (old or b"").ljust(half, b"\x00")[:half]
    return write(root, file, page * page_size + half, data, "page torn")


def swap_pages(root: Path, file: str, first: int, second: int, page_size: int = PAGE) -> Damage:
    """Two pages took each other's place. The damage named is the first one's."""
    pages = _read(root, file, first * page_size, page_size), _read(
        root, file, second * page_size, page_size)
    assert len(pages[0]) == len(pages[1]) == page_size, "no such page"
    done = write(root, file, first * page_size, pages[1], "pages swapped")
    write(root, file, second * page_size, pages[0])
    return done


def duplicate_page(root: Path, file: str, source: int, target: int,
                   page_size: int = PAGE) -> Damage:
    """A page was written over another one."""
    data = _read(root, file, source * page_size, page_size)
    return write(root, file, target * page_size, data, "page duplicated")


def garbage_tail(root: Path, file: str, offset: int, seed: int, length: int | None = None,
                 ) -> Damage:
    """Random bytes from ``offset`` on (to the end of the file unless ``length`` is given)."""
    size = (root / file).stat().st_size - offset if length is None else length
    return write(root, file, offset, random.Random(seed).randbytes(size), "garbage")


def stale_tail(root: Path, file: str, offset: int, source: int, length: int) -> Damage:
    """Bytes of older records beyond the end of the log, as a recovered or reused file has them."""
    return write(root, file, offset, _read(root, file, source, length), "stale bytes")


def _read(root: Path, file: str, offset: int, length: int) -> bytes:
    with (root / file).open("rb") as opened:
        opened.seek(offset)
        return opened.read(length)


# -- files ---------------------------------------------------------------------------------------


def truncate(root: Path, file: str, size: int) -> Damage:
    """Cut the file to ``size`` bytes."""
    length = (root / file).stat().st_size - size
    with _patching(root, file) as opened:
        opened.truncate(size)
    return Damage("truncated", structure_of(file), file, size, max(length, 0))


def change_length(root: Path, file: str, delta: int) -> Damage:
    """A file of the wrong length: shorter, or longer by zeros."""
    size = (root / file).stat().st_size + delta
    with _patching(root, file) as opened:
        opened.truncate(size)
    return Damage("wrong length", structure_of(file), file, min(size, size - delta), abs(delta))


def empty_file(root: Path, file: str) -> Damage:
    """What a crash between creating and extending a file leaves."""
    return truncate(root, file, 0)


def remove(root: Path, file: str) -> Damage:
    size = (root / file).stat().st_size
    (root / file).unlink()
    return Damage("removed", structure_of(file), file, 0, size)


def remove_folder(root: Path, folder: str) -> Damage:
    shutil.rmtree(root / folder)
    return Damage("removed", structure_of(folder), folder)


def swap_names(root: Path, first: str, second: str) -> Damage:
    aside = root / f"{first}.swap"
    (root / first).rename(aside)
    (root / second).rename(root / first)
    aside.rename(root / second)
    return Damage("names swapped", structure_of(first), first, 0, (root / first).stat().st_size,
                  note=second)


def add_file(root: Path, file: str, data: bytes = b"?") -> Damage:
    """A file that does not belong there."""
    (root / file).write_bytes(data)
    return Damage("extra file", structure_of(file), file, 0, len(data))


# -- consumequeue --------------------------------------------------------------------------------


def cq_set(root: Path, file: str, number: int, *, physical_offset: int | None = None,
           size: int | None = None, tags_code: int | None = None,
           kind: str = "entry changed") -> Damage:
    """Change fields of entry ``number`` of a consumequeue file."""
    old = UNIT.unpack(_read(root, file, number * UNIT.size, UNIT.size))
    new = tuple(before if after is None else after for before, after in
                zip(old, (physical_offset, size, tags_code), strict=True))
    return write(root, file, number * UNIT.size, UNIT.pack(*new), kind)


def cq_wrong_offset(root: Path, file: str, number: int, delta: int = 1) -> Damage:
    """The entry points ``delta`` bytes off."""
    old = UNIT.unpack(_read(root, file, number * UNIT.size, UNIT.size))
    return cq_set(root, file, number, physical_offset=old[0] + delta, kind="wrong offset")


def cq_wrong_size(root: Path, file: str, number: int, delta: int = 1) -> Damage:
    old = UNIT.unpack(_read(root, file, number * UNIT.size, UNIT.size))
    return cq_set(root, file, number, size=old[1] + delta, kind="wrong size")


def cq_wrong_tag(root: Path, file: str, number: int, tags_code: int = 4711) -> Damage:
    return cq_set(root, file, number, tags_code=tags_code, kind="wrong tag")


def cq_missing(root: Path, file: str, number: int) -> Damage:
    """Entry ``number`` is gone, the later ones of the file moved up."""
    data = (root / file).read_bytes()
    at = number * UNIT.size
    moved = data[at + UNIT.size:] + bytes(UNIT.size)
    done = write(root, file, at, moved)
    return Damage("entry missing", done.structure, file, at, UNIT.size, data[at:at + UNIT.size])


def cq_duplicate(root: Path, file: str, number: int) -> Damage:
    """The entry after ``number`` is a second copy of it."""
    unit = _read(root, file, number * UNIT.size, UNIT.size)
    return write(root, file, (number + 1) * UNIT.size, unit, "entry duplicated")


def cq_out_of_order(root: Path, file: str, number: int) -> Damage:
    """Entries ``number`` and the next one changed places."""
    at = number * UNIT.size
    pair = _read(root, file, at, 2 * UNIT.size)
    return write(root, file, at, pair[UNIT.size:] + pair[:UNIT.size], "entries out of order")


def cq_ahead(root: Path, file: str, number: int, log_end: int, size: int = 100) -> Damage:
    """Entry ``number`` (a free one) points beyond the end of the log."""
    return write(root, file, number * UNIT.size, UNIT.pack(log_end, size, 0), "entry ahead")


def cq_behind(root: Path, file: str, number: int, count: int = 1) -> Damage:
    """The last ``count`` entries, from ``number`` on, were never written."""
    done = zero(root, file, number * UNIT.size, count * UNIT.size)
    return Damage("entries behind", done.structure, file, done.offset, done.length, done.before)


# -- index ---------------------------------------------------------------------------------------


def _slot_at(slot: int) -> int:
    return INDEX_HEADER.size + 4 * slot


def _entry_at(slots: int, number: int) -> int:
    return INDEX_HEADER.size + 4 * slots + INDEX_ENTRY.size * number


def index_slot(root: Path, file: str, slot: int, number: int) -> Damage:
    """The slot names another entry."""
    return write(root, file, _slot_at(slot), struct.pack(">i", number), "slot to wrong entry")


def index_set(root: Path, file: str, slots: int, number: int, *, hash_: int | None = None,
              physical_offset: int | None = None, seconds: int | None = None,
              previous: int | None = None, kind: str = "entry changed") -> Damage:
    """Change fields of entry ``number``."""
    at = _entry_at(slots, number)
    old = INDEX_ENTRY.unpack(_read(root, file, at, INDEX_ENTRY.size))
    new = tuple(before if after is None else after for before, after in
                zip(old, (hash_, physical_offset, seconds, previous), strict=True))
    return write(root, file, at, INDEX_ENTRY.pack(*new), kind)


def index_cycle(root: Path, file: str, slots: int, older: int, newer: int) -> Damage:
    """The chain that leads from ``newer`` to ``older`` goes round for ever."""
    return index_set(root, file, slots, older, previous=newer, kind="chain is a cycle")


def index_past_end(root: Path, file: str, slots: int, number: int, log_end: int) -> Damage:
    return index_set(root, file, slots, number, physical_offset=log_end,
                     kind="entry past the log")


def index_wrong_hash(root: Path, file: str, slots: int, number: int) -> Damage:
    """Another hash of the same slot, so that only the key gives it away."""
    old = INDEX_ENTRY.unpack(_read(root, file, _entry_at(slots, number), INDEX_ENTRY.size))
    return index_set(root, file, slots, number, hash_=(old[0] + slots) & 0x7FFFFFFF,
                     kind="wrong hash")


def index_wrong_offset(root: Path, file: str, slots: int, number: int,
                       physical_offset: int) -> Damage:
    """The entry names another message."""
    return index_set(root, file, slots, number, physical_offset=physical_offset,
                     kind="wrong offset")


def index_header(root: Path, file: str, **fields: int) -> Damage:
    """Change header fields: begin, end, begin_offset, end_offset, used_slots, count."""
    names = ("begin", "end", "begin_offset", "end_offset", "used_slots", "count")
    old = dict(zip(names, INDEX_HEADER.unpack(_read(root, file, 0, INDEX_HEADER.size)),
                   strict=True))
    return write(root, file, 0, INDEX_HEADER.pack(*(old | fields).values()), "header wrong")


# -- checkpoint ----------------------------------------------------------------------------------


def checkpoint(root: Path, **fields: int) -> Damage:
    """Set fields by their name in `CHECKPOINT_FIELDS`."""
    done = None
    for name, value in fields.items():
        done = write(root, "checkpoint", 8 * CHECKPOINT_FIELDS.index(name),
                     struct.pack(">q", value), f"checkpoint {name}")
    assert done is not None
    return done


def checkpoint_ahead(root: Path, last_timestamp: int) -> Damage:
    """Claims more than the log holds."""
    return checkpoint(root, physic=last_timestamp + 86_400_000,
                      logics=last_timestamp + 86_400_000)


def checkpoint_behind(root: Path, first_timestamp: int) -> Damage:
    """Far behind: legal, a broker only walks more."""
    return checkpoint(root, physic=first_timestamp, logics=first_timestamp)


def checkpoint_zero(root: Path) -> Damage:
    """All zero: what a broker leaves in its first minute."""
    return zero(root, "checkpoint", 0, 8 * len(CHECKPOINT_FIELDS))


def checkpoint_huge(root: Path) -> Damage:
    return checkpoint(root, physic=HUGE, logics=HUGE, index=HUGE)


def checkpoint_short(root: Path, size: int = 17) -> Damage:
    return truncate(root, "checkpoint", size)


# -- config --------------------------------------------------------------------------------------


def config(root: Path, name: str, data: bytes, *, backup: bytes | None = None,
           kind: str = "config replaced") -> Damage:
    """Replace ``config/NAME`` by ``data``, and its ``.bak`` if ``backup`` is given."""
    (root / "config" / name).write_bytes(data)
    if backup is not None:
        (root / "config" / f"{name}.bak").write_bytes(backup)
    return Damage(kind, "config", f"config/{name}", 0, len(data))


def config_empty(root: Path, name: str) -> Damage:
    """The main file is empty, the backup is good."""
    return config(root, name, b"", kind="config empty")


def config_truncated(root: Path, name: str, size: int) -> Damage:
    data = (root / "config" / name).read_bytes()[:size]
    return config(root, name, data, kind="config truncated")


def config_trailing(root: Path, name: str, garbage: bytes = b'":0}') -> Damage:
    """Valid JSON with the rest of a longer, older text behind it."""
    data = (root / "config" / name).read_bytes()
    done = config(root, name, data + garbage, kind="config trailing garbage")
    return Damage(done.kind, done.structure, done.file, len(data), len(garbage))


def config_both_bad(root: Path, name: str) -> Damage:
    return config(root, name, b"{", backup=b"\x00" * 20, kind="config and backup bad")


def config_not_utf8(root: Path, name: str) -> Damage:
    """Bytes that are no UTF-8 inside a name."""
    data = (root / "config" / name).read_bytes()
    at = data.index(b'"', 1) + 1
    return write(root, f"config/{name}", at, b"\xff\xfe", "config is not UTF-8")


# -- kinds of file -------------------------------------------------------------------------------


def unreadable(root: Path, file: str) -> Damage:
    """Nobody but root may read it (no effect for root: see `can_deny`)."""
    (root / file).chmod(0)
    return Damage("unreadable", structure_of(file), file)


def can_deny() -> bool:
    """Whether taking a permission away has any effect on this process."""
    return os.geteuid() != 0


def fifo(root: Path, file: str) -> Damage:
    """A FIFO nobody writes to, in the file's place: reading it would wait for ever."""
    (root / file).unlink()
    os.mkfifo(root / file)
    return Damage("fifo", structure_of(file), file)


def directory(root: Path, file: str) -> Damage:
    """A folder with the file's name."""
    (root / file).unlink()
    (root / file).mkdir()
    return Damage("directory", structure_of(file), file)


def symlink(root: Path, file: str, target: str | Path = "/nonexistent/rmqctl") -> Damage:
    """A link in the file's place, dangling unless a target is given."""
    (root / file).unlink()
    (root / file).symlink_to(target)
    return Damage("symlink", structure_of(file), file, note=os.fspath(target))


def symlink_to_itself(root: Path, file: str) -> Damage:
    return symlink(root, file, Path(file).name)


def symlink_to_copy(root: Path, file: str, aside: Path) -> Damage:
    """The file moved elsewhere and linked to: legal."""
    shutil.copy2(root / file, aside)
    done = symlink(root, file, aside)
    return Damage("symlink to a copy", done.structure, done.file, note=done.note)


def huge_sparse(root: Path, file: str, size: int = 1 << 40) -> Damage:
    """A file of a terabyte that takes no space."""
    with _patching(root, file) as opened:
        opened.truncate(size)
    return Damage("huge", structure_of(file), file, 0, size)


def random_bytes(root: Path, file: str, seed: int) -> Damage:
    """The whole content replaced by random bytes."""
    size = (root / file).stat().st_size
    return write(root, file, 0, random.Random(seed).randbytes(size), "random bytes")


def disk_image(root: Path, name: str, *order: int) -> None:
    """Beside the store: an image with the files of its log in another order. The store stays."""
    files = sorted((root / "commitlog").iterdir())
    (root.parent / name).write_bytes(bytes(PAGE) + b"".join(
        files[number].read_bytes() for number in order))
