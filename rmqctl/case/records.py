"""Bytes that an evidence folder keeps: a copy of each damaged range with a finding, and carved
records that are not messages of the store.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rmqctl.case.folder import Folder, json_line
from rmqctl.case.runs import CommandRuns
from rmqctl.errors import StoreIOError
from rmqctl.files.row_file import on_disk
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource
from rmqctl.store.redaction import Redaction

INDEX, LIVE, CARVED = "damage/index.jsonl", "messages.jsonl", "carved.jsonl"
MAX_COPIES = 10_000
_MAX_BYTES, _BLOCK = 64 << 20, 1 << 20
UNSERVED = "not-served"
_in = lru_cache(maxsize=4096)(os.path.realpath)


class DamageCopies:
    """Copies of damaged ranges, with an index. ``redaction``: if not None, the index contains
    digests and the ranges are not copied.
    """

    def __init__(self, folder: Folder, redaction: Redaction | None) -> None:
        self._folder, self._redaction = folder, redaction
        self._index = folder.new(INDEX)
        self._seen: set[tuple[str, int, int]] = set()
        self.count = self.left_out = 0

    def close(self) -> None:
        self._index.close()

    def add(self, path: str, position: int, length: int, about: Mapping[str, Any]) -> None:
        """Copy a range of a file. If the range cannot be read, add only an index entry with the
        error.
        """
        place = _in(path), position, length
        if length <= 0 or place in self._seen:
            return
        if self.count >= MAX_COPIES:
            self.left_out += 1
            return
        self._seen.add(place)
        self.count += 1
        row = {"file": path, "position": position, "length": length, **about}
        name = f"damage/{self.count:05d}-{about['category']}.bin"
        try:
            with FileSource(path, device=True) as source:
                row |= self._copied(source, position, min(length, _MAX_BYTES), name)
        except StoreIOError as error:
            row["problem"] = str(error)
        if length > _MAX_BYTES:
            row["problem"] = f"only the first {_MAX_BYTES} bytes were copied"
        if self._redaction is not None:
            row |= {name: self._redaction.document(row[name]) for name in ("detail", "problem")
                    if name in row}
        self._index.write(json_line(row))

    def _copied(self, source: FileSource, position: int, length: int, name: str) -> dict[str, Any]:
        if self._redaction is not None:
            return {"digest": self._redaction.value(source.read(position, length))}
        digest, end, at = hashlib.sha256(), min(position + length, source.size), position
        with self._folder.new(name) as file:
            while at < end and (block := source.read(at, min(_BLOCK, end - at))):
                file.write(block)
                digest.update(block)
                at += len(block)
        return {"copy": name, "copied": at - position, "sha256": digest.hexdigest()}


class FindingPlaces:
    """The byte ranges in the findings of `verify`."""

    def __init__(self, findings: Iterable[Mapping[str, Any]]) -> None:
        self._by_file: dict[str, list[tuple[int, int, str]]] = {}
        for row in findings:
            if row.get("file") and row.get("position") is not None and row.get("length"):
                self._by_file.setdefault(_in(row["file"]), []).append(
                    (row["position"], row["position"] + row["length"], row["category"]))
        for ranges in self._by_file.values():
            ranges.sort()

    def at(self, path: str, position: int) -> str | None:
        """Return the category of the finding whose range includes this position; None if no range
        does.
        """
        ranges = self._by_file.get(_in(path), [])
        number = bisect_right(ranges, (position, 1 << 63, "")) - 1
        return ranges[number][2] if number >= 0 and position < ranges[number][1] else None


class Live:
    """The positions of a store's messages in its log files, kept on disk with 8 bytes per
    message.
    """

    def __init__(self, root: str, exported: Iterable[bytes]) -> None:
        self._by_file: dict[str, Array] = {}
        self.count = 0
        path, places = "", array("q")
        for line in exported:
            row = json.loads(line)
            if row["file"] != path:
                self._keep(root, path, places)
                path, places = row["file"], array("q")
            places.append(row["position"])
            self.count += 1
        self._keep(root, path, places)

    def _keep(self, root: str, path: str, places: array[int]) -> None:
        if not places:
            return
        key, rows = _in(os.path.join(root, path)), np.array(places, np.int64)
        if key in self._by_file:
            rows = np.union1d(self._by_file[key], rows)
        self._by_file[key] = on_disk(rows, "positions of messages")

    def has(self, path: str, position: int) -> bool:
        rows = self._by_file.get(_in(path))
        if rows is None:
            return False
        row = int(np.searchsorted(rows, position))
        return row < len(rows) and int(rows[row]) == position


def carve(runs: CommandRuns, folder: Folder, words: Sequence[str], live: Live | None,
          places: FindingPlaces, copies: DamageCopies) -> Counter[str]:
    """Carve records and write them to the evidence folder, each with its kind (``found``). Messages
    of the store (``live``) are not written. Return the number of records of each kind. Raises:
    StoreIOError.
    """
    counts: Counter[str] = Counter()
    with folder.new(CARVED) as out, runs.run(words, CARVED, subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                row = json.loads(line)
            except ValueError:  # the run was ended
                break
            path, position, placement = row["source"], row["source_offset"], row["placement"]
            if live is not None and live.has(path, position):
                counts["live"] += 1
                continue
            how = ("duplicate" if row["duplicate"] else UNSERVED
                   if placement == "in-place" and live is not None else placement)
            counts[how] += 1
            out.write(json_line({"found": how, "finding": places.at(path, position),
                                 "source": path, "source_offset": position, **row}))
            if live is None and placement == "damaged":
                copies.add(path, position, row["total_size"], {
                    "category": "body-crc", "detail": "body CRC mismatch"})
        process.stdout.close()
    return counts
