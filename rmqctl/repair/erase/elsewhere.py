"""Copies outside the log: in compaction logs and in a tier below the store, and what is left.

A message there is a record like in the log. What is found of an erased body anywhere else (an
earlier use of a file, a page of a damaged one, what repairs keep) is counted, with its file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from rmqctl.errors import FormatError
from rmqctl.files.durable import STAGING
from rmqctl.formats.local.message import (
    MAGIC_OFFSET,
    MAGIC_PATTERN,
    MIN_SIZE,
    Record,
    decode,
    total_size_at,
)
from rmqctl.repair.erase.find import LEAST, Traits
from rmqctl.scan.frames import Array
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.source import FileSource
from rmqctl.store.store import Store

_NO_MESSAGES = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config",
                "timerwheel", "lock", "checkpoint", "abort", STAGING)
_WORD = 8
_PAGE = 8 << 20
_TABLE = 1 << 16


@dataclass(slots=True)
class Copies:
    """Records by file: (position, bytes, record)."""

    files: dict[str, list[tuple[int, bytes, Record]]] = field(default_factory=dict)


def other_copies(store: Store, traits: Traits) -> Copies:
    """Find the copies in all files of the store but those of the log. StoreIOError."""
    found = Copies()
    own = {os.path.realpath(file.path) for file in store.log.files}
    for path in files_below(store.root):
        first = os.path.relpath(path, store.root).split(os.sep)[0]
        if first in _NO_MESSAGES or os.path.realpath(path) in own or os.path.islink(path):
            continue
        records = [*_records(path, traits)]
        if records:
            found.files[path] = records
    return found


def files_below(root: str) -> Iterator[str]:
    """All files of a folder, sorted."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        yield from (os.path.join(folder, name) for name in sorted(names)
                    if os.path.isfile(os.path.join(folder, name)))


def _records(path: str, traits: Traits) -> Iterator[tuple[int, bytes, Record]]:
    with FileSource(path) as source:
        base = at = 0
        while base < source.size:
            data = source.read(base, _PAGE)
            for hit in MAGIC_PATTERN.finditer(data):
                start = base + hit.start() - MAGIC_OFFSET
                if start < at:
                    continue
                size = total_size_at(source.read(start, MIN_SIZE))
                if not MIN_SIZE <= size <= min(MAX_RECORD, source.size - start):
                    continue
                raw = source.read(start, size)
                try:
                    record = decode(raw)
                except FormatError:
                    continue
                at = start + size
                if traits.is_copy(record) or (
                        record.topic.decode("utf-8", "replace") in traits.topics):
                    yield start, raw, record
            base += _PAGE - MAGIC_OFFSET  # one magic may lie in both pages


# -- what is left ---------------------------------------------------------------------------------


def leftovers(store: Store, traits: Traits, planned: dict[str, list[tuple[int, int]]],
              gone: Iterable[str] = ()) -> dict[str, int]:
    """How many bytes of erased bodies stay, by file: in runs of `LEAST` bytes or more, outside of
    the spans (start, end) that are ``planned`` and the files and folders that are ``gone``.
    """
    words = _words(traits.bodies)
    if not len(words):
        return {}
    away = tuple(os.path.join(path, "") for path in gone)
    table = np.zeros(_TABLE, bool)
    table[(words & np.uint64(_TABLE - 1)).astype(np.int64)] = True
    windows = _windows(traits.bodies)
    left: dict[str, int] = {}
    paths = dict.fromkeys([*files_below(store.root), *(file.path for file in store.log.files)])
    for path in paths:
        if os.path.join(path, "").startswith(away) and away:
            continue
        count = sum(_hits(path, words, table, windows, planned.get(path, [])))
        if count:
            left[path] = count
    return left


def _words(found: set[bytes]) -> Array:
    """The aligned words of all bodies: each run of `LEAST` bytes has one of them."""
    parts = [np.frombuffer(body[:len(body) // _WORD * _WORD], "<u8") for body in found]
    words = np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.uint64)
    found_words: Array = words[words != 0]
    return found_words


def _windows(found: set[bytes]) -> dict[bytes, list[tuple[bytes, int]]]:
    by_word: dict[bytes, list[tuple[bytes, int]]] = {}
    for body in found:
        for at in range(0, len(body) - _WORD + 1, _WORD):
            by_word.setdefault(body[at:at + _WORD], []).append((body, at))
    return by_word


def _hits(path: str, words: Array, table: Array, windows: dict[bytes, list[tuple[bytes, int]]],
          planned: list[tuple[int, int]]) -> Iterator[int]:
    with FileSource(path) as source:
        at = source.next_data(0)
        while at < source.size:
            data = source.read(at, _PAGE + 2 * LEAST)
            if not data:
                return
            yield from _in_page(data, at, words, table, windows, planned)
            at = source.next_data(at + _PAGE)


def _in_page(data: bytes, base: int, words: Array, table: Array,
             windows: dict[bytes, list[tuple[bytes, int]]],
             planned: list[tuple[int, int]]) -> Iterator[int]:
    end = 0
    places = []
    for shift in range(_WORD):
        some = np.frombuffer(data, "<u8", (len(data) - shift) // _WORD, shift) if len(
            data) >= _WORD + shift else np.zeros(0, np.uint64)
        rows = np.flatnonzero(table[(some & np.uint64(_TABLE - 1)).astype(np.int64)])
        rows = rows[np.isin(some[rows], words)]
        places += (rows * _WORD + shift).tolist()
    for place in sorted(places):
        if place < end or any(first <= base + place < last for first, last in planned):
            continue
        # The longest run around the word that any of the bodies has.
        longest = max((_run(data, place, body, at) for body, at in windows[
            data[place:place + _WORD]]), key=lambda run: (run[1] - run[0], run[1]))
        if longest[1] - longest[0] >= LEAST and any(data[longest[0]:longest[1]]):
            end = longest[1]
            yield longest[1] - longest[0]


def _run(data: bytes, place: int, body: bytes, at: int) -> tuple[int, int]:
    """The bounds in ``data`` of what is the same in both around the word at these places."""
    before = 0
    while before < min(at, place) and body[at - before - 1] == data[place - before - 1]:
        before += 1
    after = _WORD
    while at + after < len(body) and place + after < len(data) and (
            body[at + after] == data[place + after]):
        after += 1
    return place - before, place + after
