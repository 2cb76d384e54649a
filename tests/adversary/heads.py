"""Small stores of every shape of record, one header field of one message of which has any value.

`Store.of` makes a store of a seed, `overwritten` changes one field of one of its messages, and
`fate` compares what a repair made of that message with what it was.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from pathlib import Path

from tests.adversary.writer import (
    BORN_V6,
    COMMIT,
    COMPRESSED,
    PREPARED,
    ROLLBACK,
    STORED_V6,
    Header,
    Layout,
    Put,
    Writer,
    field_places,
)

OPTIONS = ("--index-slots", "16", "--index-max", "256")
MESSAGES = 24
HALVES = "RMQ_SYS_TRANS_HALF_TOPIC"
_HOSTS = {"v4": ("10.0.0.7", 52011), "v6": ("2001:db8::7", 52011)}
_STORED = {"v4": ("10.0.0.1", 10911), "v6": ("2001:db8::1", 10911)}
FIELDS = ("total_size", "magic", "body_crc", "queue_id", "flag", "queue_offset",
          "physical_offset", "sys_flag", "born_timestamp", "born_host", "store_timestamp",
          "store_host", "reconsume_times", "prepared_transaction_offset", "body_length",
          "topic_length", "properties_length")


def places_of(raw: bytes) -> dict[str, tuple[int, int]]:
    """Place and width of every field of `FIELDS` in a record (commitlog.md §2.1, §2.2)."""
    sys_flag = int.from_bytes(raw[36:40], "big")
    born, stored = 8 + 12 * bool(sys_flag & BORN_V6), 8 + 12 * bool(sys_flag & STORED_V6)
    places = field_places(raw)
    at = 48 + born
    return {**{name: places[name] for name in FIELDS if name in places},
            "flag": (16, 4), "born_timestamp": (40, 8), "born_host": (48, born),
            "store_timestamp": (at, 8), "store_host": (at + 8, stored),
            "reconsume_times": (at + 8 + stored, 4),
            "prepared_transaction_offset": (at + 12 + stored, 8)}


@dataclass(frozen=True)
class Store:
    """A store that can be written with and without the damage of one message."""

    writer: Writer
    victim: Put

    @classmethod
    def of(cls, seed: int, *, sealed: bool | None = None) -> Store:
        """The store of a seed: hosts, versions, transactions and compression follow from it."""
        luck = random.Random(seed)
        hosts = luck.choice(("v4", "v4", "v6")), luck.choice(("v4", "v4", "v6"))
        writer = Writer(Layout(
            log_file_size=16 << 10, index_slots=16, index_entries=256,
            sealed=luck.random() < 0.25 if sealed is None else sealed), seed)
        halves: list[tuple[Put, str, str]] = []
        for number in range(MESSAGES):
            _put(writer, luck, number, hosts, halves)
        return cls(writer, luck.choice(writer.puts))

    def write(self, folder: Path, field: str = "", value: bytes = b"") -> Path:
        """The store in a folder; with ``field`` its victim has another ``value`` there."""
        self.writer._patches.clear()
        if field:
            at, _ = places_of(self.victim.raw)[field]
            self.writer.patch(self.victim.physical + at, value)
        return self.writer.write(folder)

    def value(self, field: str, luck: random.Random) -> bytes:
        """Any other value of a field of the victim."""
        at, width = places_of(self.victim.raw)[field]
        while (value := luck.randbytes(width)) == self.victim.raw[at:at + width]:
            pass
        return value

    def bytes_in(self, folder: Path) -> bytes:
        """What stands in a folder where the victim was."""
        size = self.writer.layout.log_file_size
        base = self.victim.physical - self.victim.physical % size
        data = (folder / "commitlog" / f"{base:020d}").read_bytes()
        return data[self.victim.physical - base:self.victim.end - base]


def _put(writer: Writer, luck: random.Random, number: int, hosts: tuple[str, str],
         halves: list[tuple[Put, str, str]]) -> None:
    born, stored = _HOSTS[hosts[0]], _STORED[hosts[1]]
    topic = luck.choice(("orders", "bills", "orders" * 25))
    text = b" ".join(luck.choice((b"tea", b"milk", b"10:45", b"shipped"))
                     for _ in range(luck.randrange(60)))
    flag, body = luck.choice(((0, text), (0, text), (0, luck.randbytes(80)),
                              (COMPRESSED, zlib.compress(text)),
                              (COMPRESSED | 0x300, zlib.compress(text))))
    queue, unique = luck.randrange(2), f"{luck.getrandbits(64):016X}"

    def header(kind: int = 0, prepared: int = 0) -> Header:
        return Header(flag=luck.choice((0, 0, 7)), sys_flag=flag | kind, born_host=born,
                      store_host=stored, prepared_transaction_offset=prepared)

    if halves and luck.random() < 0.7:
        half, real, key = halves.pop()
        kind = luck.choice((COMMIT, ROLLBACK))
        flag = int.from_bytes(half.raw[36:40], "big") & 0x701
        writer.put(real, half.body, queue_id=half.queue_id, unique_key=key,
                   header=header(kind, half.physical))
    elif luck.random() < 0.12 and topic != "orders" * 25:
        halves.append((writer.put(
            topic, body, queue_id=queue, unique_key=unique, properties={
                "REAL_TOPIC": topic, "REAL_QID": str(queue), "TRAN_MSG": "true"},
            header=header(PREPARED)), topic, unique))
    else:
        writer.put(topic, body, queue_id=queue, unique_key=unique,
                   tags=luck.choice(("", "a")), keys=f"k{number}", header=header())
