"""Queues of a tier checked by several processes, a queue at a time, results in order.

A worker reads the files itself; keys of messages come back through a file, so that memory stays
flat however many there are.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.common import bounded
from rmqctl.errors import StoreIOError
from rmqctl.scan.frames import Array
from rmqctl.store.log.ranges import parallel
from rmqctl.tiered.files.opening import open_reader
from rmqctl.tiered.flat_file import FlatFile
from rmqctl.tiered.flat_queue import FlatQueue, QueueName
from rmqctl.tiered.verify.context import Coverage, Place
from rmqctl.tiered.verify.keys import KEY, MessageKeys
from rmqctl.tiered.verify.queue import QueueCheck
from rmqctl.tiered.verify.spool import Spool
from rmqctl.tiered.verify.times import Times

_MOST = 10_000
"""Findings of one kind in one file that a worker hands over."""
_BLOCK = 1 << 20

Parts = Callable[[QueueCheck], Iterator[Finding]]
"""All findings of a queue but those about its times in the metadata."""


@dataclass(frozen=True, slots=True)
class Task:
    """A queue by its folders. ``keys``: the file its keys go to, None where nobody asks."""

    number: int
    name: QueueName
    commit_log: str
    consume_queue: str
    keys: str | None
    empty_too: bool


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker found."""

    findings: list[Finding]
    coverage: Coverage
    times: Times


class _File:
    """Takes the rows of a spool into a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, rows: Array) -> None:
        try:
            self._file.write(rows.tobytes())
        except OSError as error:
            raise StoreIOError.from_oserror(error, self._file.name, "write to") from None


def run(root: str, queues: Sequence[FlatQueue], parts: Parts, jobs: int, keys: Spool | None, *,
        empty_too: bool) -> Iterator[tuple[FlatQueue, Result]]:
    """Every queue with what was found, in order. ``parts`` must be picklable. StoreIOError."""
    with tempfile.TemporaryDirectory(prefix="rmqctl-") as folder:
        def tasks() -> Iterator[Task]:
            for number, queue in enumerate(queues):
                place = None if keys is None else os.path.join(folder, str(number))
                yield Task(number, queue.name, queue.commit_log.folder, queue.consume_queue.folder,
                           place, empty_too)

        for task, found in parallel(partial(_work, root, parts), tasks(), jobs):
            if keys is not None and task.keys is not None:
                _collect(task.keys, keys)
            yield queues[task.number], found


def _collect(path: str, keys: Spool) -> None:
    try:
        with open(path, "rb") as file:
            while data := file.read(_BLOCK * KEY.itemsize):
                keys.add(np.frombuffer(data, KEY))
        os.unlink(path)
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "read") from None


def _created(path: str) -> IO[bytes]:
    try:
        return open(path, "wb")
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "create") from None


def _work(root: str, parts: Parts, task: Task) -> Result:
    reader = open_reader(root)
    try:
        queue = FlatQueue(task.name, *(FlatFile.open(reader, one) for one in (
            task.commit_log, task.consume_queue)))
        place = Place(queue)
        if task.keys is None:
            check = QueueCheck(queue, place)
            found = list(bounded(parts(check), most=_MOST))
        else:
            with _created(task.keys) as file:
                keys = MessageKeys(_File(file), task.number, task.name.topic,
                                   empty_too=task.empty_too)
                check = QueueCheck(queue, place, keys)
                found = list(bounded(parts(check), most=_MOST))
        return Result(found, place.counted, check.times)
    finally:
        reader.close()
