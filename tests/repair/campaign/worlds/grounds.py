"""The stores of the worlds before their damage, made by `tests.adversary.writer` alone.

A world is a form of the log (`FORMS`), honest or with forged bodies: messages whose bodies hold
records that fit where they are. Queues in RocksDB, queues of batches and their entries are
rmqctl's own work, on the undamaged store.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rmqctl.store.store import Sizes
from tests.adversary.writer import (
    COMMIT,
    ROLLBACK,
    Frame,
    Header,
    Layout,
    Put,
    Writer,
    blank_record,
    frame,
    framed,
    record,
)
from tests.repair.campaign.stores import Base, body
from tests.support import cli
from tests.support.model import Stream

MANY, LARGE, TRANSACTIONS, LIGHT, HOSTS, SEALED, BATCHES, ROCKSDB, DLEDGER = FORMS = (
    "many files", "one large file", "transactions, delays", "LMQ", "IPv6, v2", "appended CRCs",
    "batches", "RocksDB", "DLedger")
FORGED = b"forged"
"""Every record in a body has this in its own."""
FORGERIES = ("shared tail", "nested blank", "at the end", "by sectors")
UNITS, SLOTS, ENTRIES = 40, 64, 4096
LARGEST = 16 << 10
"""No record of a world is larger. It is told to every command (`--max-message-size`)."""
SECTOR, HEAD, INNER_BATCH = 512, 48, 0x80
DATA, INDEX_SIZE = "dledger-n0/data", 167_772_160
_LONG = "orders" * 25
_ENTRY = struct.Struct(">iiqqqiiii")


def walk_entries(stream: Stream) -> dict[int, bytes]:
    """The records in the entries of DLedger's data, by their own places."""
    content = {}
    for base, data in stream.files:
        at = 0
        while at + HEAD <= len(data):
            magic, size, *_ = _ENTRY.unpack_from(data, at)
            if magic != 1 or not HEAD < size <= len(data) - at:
                break
            content[base + at + HEAD] = data[at + HEAD:at + size]
            at += size
    return content


@dataclass(frozen=True)
class Ground(Base):
    """The undamaged store of a world. ``forged``: the places of messages with records in them."""

    forged: tuple[int, ...] = ()

    def walk(self, stream: Stream) -> dict[int, bytes]:
        return walk_entries(stream) if self.name == DLEDGER else super().walk(stream)

    @cached_property
    def messages(self) -> dict[int, bytes]:
        return self.walk(self.log(self.root))

    @property
    def dirs(self) -> tuple[str, ...]:
        return ()


class EntryWriter(Writer):
    """Writes a DLedger member: each record is in an entry, and the index has a unit for each."""

    def __init__(self, layout: Layout, seed: int) -> None:
        super().__init__(layout, seed)
        self.units: list[bytes] = []

    def _make_room(self, size: int) -> None:
        super()._make_room(HEAD + size)
        at, number = self.end, len(self.units)
        self.log[max(self.log)] += _ENTRY.pack(1, HEAD + size, number, 1, at, 0, 0, 0, size)
        self.units.append(struct.pack(">iqiqq", 1, at, HEAD + size, number, 1))

    def roll(self) -> None:
        base = max(self.log)
        left = self.layout.log_file_size - len(self.log[base])
        self.log[base] += struct.pack(">ii", -1, left) + bytes(left - 8)
        self.log[base + self.layout.log_file_size] = bytearray()

    def write(self, folder: Path) -> Path:
        super().write(folder)
        data = folder / DATA
        data.parent.mkdir()
        (folder / "commitlog").rename(data)
        index = data.parent / "index" / f"{0:020d}"
        index.parent.mkdir()
        with index.open("wb") as file:
            file.write(b"".join(self.units))
            file.truncate(INDEX_SIZE)
        last = len(self.units) - 1
        (data.parent / "checkpoint").write_text(f"committedIndex={last}\nendIndex={last}\n")
        return folder


# -- forged bodies --------------------------------------------------------------------------------


def forge(writer: Writer, luck: random.Random, kind: str) -> Put:
    """Puts a message whose body holds records of its own queue, at the next queue offsets."""
    topic, queue = luck.choice(("orders", "bills")), luck.randrange(3)
    properties = b"UNIQ_KEY\x01F\x02"
    first = max(0, writer.next_offset.get((topic, queue), 0) + luck.choice((1, 1, 1, 0, -1)))
    frames = [frame(topic, FORGED + b" %d" % number * luck.randint(1, 9), first + number,
                    queue_id=queue, properties={"UNIQ_KEY": "F"}) for number in range(
                        luck.randint(1, 7))]
    lead = luck.choice((0, 20, 100, 600))

    def sectors(at: int) -> bytes:
        """Every record begins with a sector of the file."""
        out = bytearray()
        for item in frames:
            out += b"x" * (-(at + len(out)) % SECTOR)
            out += item.at(at + len(out))
        return bytes(out.ljust(SECTOR * (len(frames) + 1) + lead, b"y"))

    def blank(at: int) -> bytes:
        """A blank behind the records says that the file ends with it."""
        whole = framed(frames, before=b"x" * lead)(at)
        size = writer.layout.log_file_size
        return whole + blank_record(size - (at + len(whole)) % size) + bytes(40)

    def tail(at: int) -> bytes:
        """The last record's topic and properties are those of the message around it."""
        whole = framed(frames, before=b"x" * lead)(at)
        return whole[:-(1 + len(topic) + 2 + len(properties))]

    name: Callable[[int], bytes] = {
        "shared tail": tail, "nested blank": blank, "by sectors": sectors,
        "at the end": framed(frames, before=b"x" * lead, after=bytes(900))}[kind]
    return writer.put(topic, name, queue_id=queue, unique_key="F", properties_raw=properties)


def forge_widely(writer: Writer, luck: random.Random, kind: str) -> Put:
    """Puts a message whose body holds records of any queues, at offsets near their ends, with keys
    and with bytes between them.
    """
    topic, queue = luck.choice(("orders", "bills")), luck.randrange(3)
    properties, mode = b"UNIQ_KEY\x01F\x02", luck.randrange(5)

    def frame_at(number: int) -> Frame:
        to, at = (topic, queue) if mode == 0 else (
            luck.choice(("orders", "bills", "other")), luck.randrange(3))
        offset = writer.next_offset.get((to, at), 0) + (
            luck.choice((0, 1, 2, -1)) if mode < 3 else luck.randint(-5, 8))
        return frame(to, FORGED + b" %d" % number * luck.randint(1, 40 if mode == 4 else 9),
                     max(0, offset), queue_id=at,
                     properties={"UNIQ_KEY": "F", "KEYS": f"k{luck.randrange(50)}"})

    frames = [frame_at(number) for number in range(luck.randint(1, 12))]
    lead = luck.choice((0, 1, 20, 100, 424, 600))
    whole = {"before": b"x" * lead, "between": luck.choice((b"", b"", b"abc", bytes(8)))}

    def sectors(at: int) -> bytes:
        out = bytearray()
        for inner in frames:
            out += b"x" * (-(at + len(out)) % SECTOR)
            out += inner.at(at + len(out))
        return bytes(out.ljust(SECTOR * (len(frames) + 1) + lead, b"y"))

    def blank(at: int) -> bytes:
        content = framed(frames, **whole)(at)
        size = writer.layout.log_file_size
        return content + blank_record(size - (at + len(content)) % size) + bytes(40)

    def tail(at: int) -> bytes:
        """Where the last record's topic is not that of the message, its end is not either."""
        content = framed(frames, **whole)(at)
        cut = 1 + len(frames[-1].topic) + 2 + len(properties) if mode else 0
        return content[:len(content) - cut]

    value: Callable[[int], bytes] = {
        "shared tail": tail, "nested blank": blank, "by sectors": sectors}.get(
            kind) or framed(frames, after=bytes(luck.choice((0, 900))), **whole)
    return writer.put(topic, value, queue_id=queue, unique_key="F", properties_raw=properties)


# -- honest messages ------------------------------------------------------------------------------


def _ordinary(writer: Writer, luck: random.Random, **more: object) -> Put:
    content, flag = body(luck)
    values = {"queue_id": luck.randrange(3), "tags": luck.choice(("", "A", "B")),
              "keys": " ".join(f"k{luck.randrange(50)}" for _ in range(luck.randrange(3))),
              "unique_key": f"{luck.getrandbits(64):016X}", "header": Header(sys_flag=flag)}
    topic = str(more.pop("topic", None) or luck.choice(("orders", "orders", "bills")))
    return writer.put(topic, content, **{**values, **more})  # type: ignore[arg-type]


def _transaction(writer: Writer, luck: random.Random, halves: list[Put]) -> None:
    """A delayed message, a half one, or what ends one."""
    real = {"REAL_TOPIC": "orders", "REAL_QID": "1"}
    kind = luck.randrange(3)
    if kind == 0:
        _ordinary(writer, luck, topic="SCHEDULE_TOPIC_XXXX", queue_id=1, delay_level=2,
                  properties=real)
    elif kind == 1 or not halves:
        halves.append(_ordinary(
            writer, luck, topic="RMQ_SYS_TRANS_HALF_TOPIC", queue_id=0,
            properties={**real, "TRAN_MSG": "true", "PGROUP": "g"}))
    else:
        half = halves.pop(luck.randrange(len(halves)))
        flag = int.from_bytes(half.raw[36:40], "big") & 0x701
        writer.put("orders", half.body, queue_id=1, unique_key=f"{luck.getrandbits(64):016X}",
                   header=Header(sys_flag=flag | luck.choice((COMMIT, COMMIT, ROLLBACK)),
                                 prepared_transaction_offset=half.physical))


def _batch(writer: Writer, luck: random.Random) -> None:
    """Several messages in one record, which has as many queue offsets."""
    inner, queue = luck.randint(1, 5), luck.randrange(2)
    at = writer.next_offset.get(("batches", queue), 0)
    writer.put("batches", b"".join(record("batches", b"inner %d" % number, b"", queue, 0, 0,
                                          Header(), 1) for number in range(inner)),
               queue_id=queue, properties={"INNER_NUM": str(inner), "INNER_BASE": str(at)},
               header=Header(sys_flag=INNER_BATCH), row=False)
    writer.next_offset["batches", queue] = at + inner


def _special(form: str, writer: Writer, luck: random.Random, halves: list[Put]) -> None:
    """A message of the kind that a form is named by."""
    if form == TRANSACTIONS:
        _transaction(writer, luck, halves)
    elif form == LIGHT:
        _ordinary(writer, luck, topic="orders",
                  lmq=("%LMQ%a", "%LMQ%b")[:luck.randint(1, 2)])
    elif form == HOSTS:
        six = luck.random() < 0.7
        _ordinary(writer, luck, topic=luck.choice(("orders", _LONG)), header=Header(
            born_host=("2001:db8::7", 52011),
            store_host=("2001:db8::1", 10911) if six else ("10.0.0.1", 10911)))
    elif form == BATCHES:
        _batch(writer, luck)
    else:
        _ordinary(writer, luck)


def _written(form: str, forged: bool, seed: int, wide: bool, split: int = -1) -> tuple[
        Writer, list[int]]:
    luck = random.Random(f"{form} {forged} {seed}")
    large = form == LARGE
    layout = Layout(1 << 19 if large else luck.choice((8, 16, 16)) << 10, UNITS, SLOTS, ENTRIES,
                    spare_file=luck.random() < 0.3, sealed=form == SEALED)
    writer = EntryWriter(layout, seed) if form == DLEDGER else Writer(layout, seed)
    halves: list[Put] = []
    evil: list[int] = []
    forging = forge_widely if wide else forge
    for number in range(luck.randrange(400, 700) if large else luck.randrange(60, 120)):
        if number == split:
            luck = random.Random(luck.getrandbits(32) ^ 1)
        if forged and luck.random() < (0.01 if large else 0.06):
            evil.append(forging(writer, luck, luck.choice(FORGERIES[:2] + FORGERIES[3:]))
                        .physical)
        elif luck.random() < 0.4:
            _special(form, writer, luck, halves)
        else:
            _ordinary(writer, luck)
    if forged and (not evil or luck.random() < 0.4):
        evil.append(forging(writer, luck, luck.choice(FORGERIES)).physical)
    writer.offsets["orders", "billing"] = {0: 5, 1: 2}
    return writer, evil


def make(folder: Path, form: str, forged: bool, seed: int, *, wide: bool = False) -> Ground:
    """The store of a world, made once below ``folder``; ``wide``: see `forge_widely`."""
    what = "honest" if not forged else "wide" if wide else "forged"
    root = folder / f"{form}-{what}-{seed}".replace(" ", "-")
    writer, evil = _written(form, forged, seed, wide)
    sizes = Sizes(writer.layout.log_file_size, 20 * UNITS, SLOTS, ENTRIES,
                  largest_record=LARGEST)
    ground = Ground(form, root, sizes, (DATA,) if form == DLEDGER else ("commitlog",), seed,
                    tuple(evil))
    if not root.exists():
        writer.write(root)
        if form == BATCHES:
            _queue_of_batches(root)
        elif form == ROCKSDB:
            _into_rocksdb(root)
    return ground


def older(form: str, forged: bool, seed: int, split: int, *,
          wide: bool = False) -> dict[int, bytes]:
    """The log's files as another life of them, which differs from message ``split`` on, had them.
    """
    writer, _ = _written(form, forged, seed, wide, split)
    return {base: bytes(data) for base, data in writer.log.items()}


def _queue_of_batches(root: Path) -> None:
    """Gives the topic its attribute, and its queues the entries that rmqctl rebuilds."""
    path = root / "config/topics.json"
    text = path.read_text()
    start = text.index('"batches"')
    path.write_text(text[:start] + text[start:].replace(
        '"order"', '"attributes": {"queue.type": "BatchCQ"}, "order"', 1))
    cli.run("recover", root, "--index-slots", str(SLOTS), "--index-max", str(ENTRIES),
            "--consumequeue", "file", "--apply", "--yes").expect(0)
    shutil.rmtree(root / ".rmqctl")


def _into_rocksdb(root: Path) -> None:
    converted = root.with_name(root.name + ".made")
    cli.run("convert", root, "--consumequeue", "rocksdb", "--out", converted).expect(0)
    shutil.rmtree(root)
    converted.rename(root)
    shutil.rmtree(root / ".rmqctl", ignore_errors=True)



