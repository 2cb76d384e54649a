"""A process that writes to a store as a broker does, step by step, while others look at it.

    python -m tests.adversary.broker FOLDER SECONDS SEED

It holds the lock, maps all files and copies into them in the broker's order: half of a record, the
rest, its rows, then its keys (entry, slot, header). Between two copies it now and then sleeps, so
that every state in between can be met. Prints "running" when it has begun, ends with SECONDS or
with its standard input. At the end the store is as `Writer.write` would have written it.
"""

from __future__ import annotations

import fcntl
import mmap
import random
import select
import struct
import sys
import time
from pathlib import Path

from tests.adversary.writer import ENTRY, SLOT, UNIT, Layout, Put, Writer

LAYOUT = Layout(log_file_size=1 << 20, queue_file_units=2000, index_slots=101,
                index_entries=4000, spare_file=True, abort=True, clock_step=3)
TOPICS = ("orders", "payments", "audit")
BEFORE = 400
"""Messages that are there when it begins."""


def put(writer: Writer, chance: random.Random) -> Put:
    """The next message: sizes, topics, keys by chance."""
    number = len(writer.puts)
    return writer.put(chance.choice(TOPICS), chance.randbytes(chance.randrange(1, 700)),
                      queue_id=chance.randrange(3), keys=f"k{number} hot", tags="A")


class Broker:
    """Files mapped for writing; ``pause`` is called between two steps."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.writer = Writer(LAYOUT, seed)
        for _ in range(BEFORE):
            put(self.writer, self.chance)
        self.writer.write(folder)
        self._maps: dict[Path, mmap.mmap] = {}
        self._entries = [len(index_file.entry) for index_file in self.writer.index]

    def _map(self, path: Path, size: int) -> mmap.mmap:
        if path not in self._maps:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as file:
                file.truncate(size)
                self._maps[path] = mmap.mmap(file.fileno(), size)
        return self._maps[path]

    def _pause(self) -> None:
        if self.chance.random() < 0.002:
            time.sleep(self.chance.random() * 0.02)

    def append(self) -> None:
        """One message, from the first byte of its record to the header of the index."""
        writer, size = self.writer, LAYOUT.log_file_size
        files = len(writer.log)
        message = put(writer, self.chance)
        bases = sorted(writer.log)
        if len(bases) > files:  # the blank record of the file before
            base = bases[-2]
            blank = bytes(writer.log[base]).rfind(struct.pack(">I", 0xCBD43194)) - 4
            self._map(self._log(base), size)[blank:blank + 8] = bytes(
                writer.log[base][blank:blank + 8])
            self._pause()
        base = bases[-1]
        self._map(self._log(base + size), size)
        log, at = self._map(self._log(base), size), message.physical - base
        half = self.chance.randrange(4, message.size)
        log[at:at + half] = message.raw[:half]
        self._pause()
        log[at + half:at + message.size] = message.raw[half:]
        self._pause()
        for topic, queue_id, number in message.rows:
            first = number - number % LAYOUT.queue_file_units
            path = self.folder / "consumequeue" / topic / str(queue_id) / f"{first * UNIT:020d}"
            place = (number - first) * UNIT
            queue = self._map(path, LAYOUT.queue_file_units * UNIT)
            queue[place:place + UNIT] = writer.rows[topic, queue_id][number]
            self._pause()
        self._index()

    def _log(self, base: int) -> Path:
        return self.folder / "commitlog" / f"{base:020d}"

    def _index(self) -> None:
        index = self.writer.index
        self._entries += [0] * (len(index) - len(self._entries))
        for number in range(max(0, len(index) - 2), len(index)):
            index_file = index[number]
            if self._entries[number] == len(index_file.entry):
                continue
            file = self._map(self.folder / "index" / index_file.name, index_file.size)
            first = 40 + SLOT * index_file.slots
            for entry in range(self._entries[number], len(index_file.entry)):
                place = first + ENTRY * (entry + 1)
                file[place:place + ENTRY] = struct.pack(">iqii", *index_file.entry[entry])
                self._pause()
                slot = 40 + SLOT * (index_file.entry[entry][0] % index_file.slots)
                file[slot:slot + SLOT] = struct.pack(">i", entry + 1)
                self._pause()
                header = bytearray(file[:40])
                slots, = struct.unpack_from(">i", header, 32)
                struct.pack_into(">ii", header, 32, slots + (index_file.entry[entry][3] == 0),
                                 entry + 2)
                if entry == 0:
                    struct.pack_into(">q", header, 0, index_file.begin_time)
                    struct.pack_into(">q", header, 16, index_file.begin)
                file[:40] = bytes(header)
                self._pause()
                put_of = index_file.entry[entry][1]
                struct.pack_into(">q", header, 24, put_of)
                struct.pack_into(">q", header, 8, self._times[put_of])
                file[:40] = bytes(header)
            self._entries[number] = len(index_file.entry)

    @property
    def _times(self) -> dict[int, int]:
        return {put.physical: put.time for put in self.writer.puts[-3:]}


def main(folder: str, seconds: str, seed: str) -> None:
    broker = Broker(Path(folder), int(seed))
    with open(Path(folder) / "lock", "r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        print("running", flush=True)
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until and not select.select([sys.stdin], [], [], 0)[0]:
            broker.append()


if __name__ == "__main__":
    main(*sys.argv[1:])
