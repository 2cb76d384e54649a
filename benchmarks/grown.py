"""Create a store with any number of messages, queues, log files, groups, damaged records and wrong
consume queue entries, quickly.

Each topic has one queue, so a store has as many topics as queues. All records have the same
size; the size of a log file follows from the number of files. Files are preallocated, as a broker
does.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.consumequeue import Rows, write_queue
from benchmarks.index import IndexEntries, write_index
from benchmarks.javahash import index_hash, java_hash, java_hash_rows
from benchmarks.layout import (
    BLANK,
    CRC_MASK,
    INDEX_SLOT,
    MAGIC_BLANK,
    MAGIC_V1,
    MESSAGE_HEADER,
    file_name,
)
from benchmarks.smallfiles import CHECKPOINT, CHECKPOINT_SIZE, topic_config, write_json

START = 1_700_000_000_000
TAG = "TagA"
KEY_DIGITS = 12
TOPIC_DIGITS = 6
BODY = b"growth" * 16
QUEUE_FILE = 6_000_000
_BIT = 0x40
INDEX_SLOTS, INDEX_MAX = 5_000_000, 20_000_000


@dataclass(frozen=True)
class Shape:
    """The content of a store. ``files``: number of log files. ``damages``: number of records with a
    flipped bit, alternately in the body, the size and the magic. ``findings``: number of entries
    with another tag's hash.
    """

    messages: int = 50_000
    queues: int = 50
    files: int = 2
    groups: int = 20
    damages: int = 0
    findings: int = 0


def topic_name(number: int) -> str:
    """Return the name of a topic; all topic names have the same length."""
    return f"topic_{number:0{TOPIC_DIGITS}}"


def record_type() -> np.dtype[np.void]:
    """Return the type of a record. Topics, bodies and properties have fixed lengths."""
    return np.dtype([
        ("head", MESSAGE_HEADER), ("body", f"V{len(BODY)}"), ("topic_length", "u1"),
        ("topic", f"S{len(topic_name(0))}"), ("properties_length", ">i2"),
        ("start", f"S{len(_properties_start())}"), ("key", f"S{KEY_DIGITS}"), ("end", "S1"),
    ])


def _properties_start() -> bytes:
    return b"TAGS\x01" + TAG.encode() + b"\x02KEYS\x01k"


def make(shape: Shape, store: Path) -> None:
    """Create the store in a new folder."""
    kind = record_type()
    count, size = shape.messages, kind.itemsize
    per_file = -(-count // shape.files)
    file_size = per_file * size + BLANK.itemsize
    number = np.arange(count, dtype=np.int64)
    place = number // per_file * file_size + number % per_file * size
    queue = number % shape.queues

    # The records, all columns at once.
    records = np.zeros(count, kind)
    head = records["head"]
    head["total_size"], head["magic"] = size, MAGIC_V1
    head["body_crc"] = zlib.crc32(BODY) & CRC_MASK
    head["queue_offset"], head["physical_offset"] = number // shape.queues, place
    head["born_timestamp"] = head["store_timestamp"] = START + number
    head["born_ip"] = head["store_ip"] = 0x0A000001
    head["born_port"] = head["store_port"] = 10911
    head["body_length"] = len(BODY)
    records["body"], records["topic_length"] = np.void(BODY), len(topic_name(0))
    records["topic"] = np.array([topic_name(topic).encode()
                                 for topic in range(shape.queues)])[queue]
    keys = np.char.zfill(number.astype(f"S{KEY_DIGITS}"), KEY_DIGITS)
    records["properties_length"] = len(_properties_start()) + KEY_DIGITS + 1
    records["start"], records["key"], records["end"] = _properties_start(), keys, b"\x02"
    _damage(records, shape.damages)
    _write_log(records, per_file, file_size, store / "commitlog")

    # Consume queues and index.
    tags = np.full(count, java_hash(TAG), np.int64)
    tags[_spread(count, shape.findings)] ^= _BIT
    for topic in range(shape.queues):
        own = place[topic::shape.queues]
        write_queue(Rows(own, np.full(len(own), size, np.int32), tags[topic::shape.queues]),
                    QUEUE_FILE, store / "consumequeue" / topic_name(topic) / "0")
    hashes = np.zeros(count, np.int32)
    digits = keys.view(np.uint8).reshape(count, KEY_DIGITS)
    for topic in range(shape.queues):
        hashes[topic::shape.queues] = java_hash_rows(f"{topic_name(topic)}#k",
                                                     digits[topic::shape.queues])
    write_index(IndexEntries(index_hash(hashes), place, START + number), INDEX_SLOTS, INDEX_MAX,
                store / "index")
    _dig_slots(store / "index")
    _write_config(shape, store)
    checkpoint = np.array((START + count - 1, START + count - 1, 0, 0, 0), dtype=CHECKPOINT)
    (store / "checkpoint").write_bytes(checkpoint.tobytes().ljust(CHECKPOINT_SIZE, b"\0"))


def _damage(records: NDArray[np.void], count: int) -> None:
    """Flip a bit in ``count`` records, at equal distances."""
    hit = _spread(len(records), count)
    body, size, magic = hit[::3], hit[1::3], hit[2::3]
    changed = np.frombuffer(BODY, np.uint8).copy()
    changed[0] ^= _BIT
    records["body"][body] = np.void(changed.tobytes())
    records["head"]["total_size"][size] ^= _BIT
    records["head"]["magic"][magic] ^= _BIT


def _spread(of: int, count: int) -> NDArray[np.int64]:
    """Return ``count`` numbers below ``of``, at equal distances."""
    return (np.arange(count) * 2 + 1) * of // (2 * max(count, 1))


def _write_log(records: NDArray[np.void], per_file: int, file_size: int, folder: Path) -> None:
    folder.mkdir(parents=True)
    blank = np.array((BLANK.itemsize, MAGIC_BLANK), BLANK).tobytes()
    for number, first in enumerate(range(0, len(records), per_file)):
        part = records[first:first + per_file]
        with (folder / file_name(number * file_size)).open("wb") as file:
            file.truncate(file_size)
            file.write(part.tobytes())
            if first + per_file < len(records):
                file.write(blank)


def _dig_slots(folder: Path) -> None:
    """Rewrite index files so that their unused pages are holes, as in a broker's file."""
    for path in folder.iterdir():
        data, page = path.read_bytes()[:40 + INDEX_SLOTS * INDEX_SLOT.itemsize], 4096
        behind = path.stat().st_size
        rest = path.with_suffix(".made")
        with path.open("rb") as old, rest.open("wb") as new:
            new.truncate(behind)
            for start in range(0, len(data), page):
                if data[start:start + page].strip(b"\0"):
                    new.seek(start)
                    new.write(data[start:start + page])
            used = 40 + INDEX_SLOTS * INDEX_SLOT.itemsize
            old.seek(used)
            new.seek(used)
            count = int.from_bytes(data[36:40], "big")
            new.write(old.read(count * 20))
        rest.rename(path)


def _write_config(shape: Shape, store: Path) -> None:
    config = store / "config"
    config.mkdir()
    write_json(config / "topics.json", {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": START},
        "topicConfigTable": {topic_name(number): topic_config(topic_name(number), 1)
                             for number in range(shape.queues)}})
    read = shape.messages // shape.queues
    write_json(config / "consumerOffset.json", {"offsetTable": {
        f"{topic_name(number % shape.queues)}@group_{number:0{TOPIC_DIGITS}}": {0: max(read - 1, 0)}
        for number in range(shape.groups)}})
    groups = {f"group_{number:0{TOPIC_DIGITS}}": {
        "groupName": f"group_{number:0{TOPIC_DIGITS}}", "consumeEnable": True, "retryQueueNums": 1,
        "retryMaxTimes": 16, "brokerId": 0} for number in range(shape.groups)}
    (config / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": groups}))
