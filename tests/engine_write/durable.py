"""Small stores that roll often, messages with a number, and what must hold after any accident."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmqctl.broker.recovery import recover_log
from rmqctl.broker.versions import version_for
from rmqctl.store.store import Store
from tests.conftest import Runner

SIZES = ("--commitlog-file-size", "16KiB", "--consumequeue-file-size", "400", "--index-slots",
         "50", "--index-max", "200")
"""Many files of each kind from few messages."""
LAST_YEAR = int(time.time() - 86400 * 365) * 1000
TOPICS = ("T0", "T1", "T2")


def new_store(rmqctl: Runner, root: Path, *more: str, version: str = "5.3.3") -> Path:
    rmqctl("init", root, *SIZES, "--broker-version", version, *more).expect(0)
    return root


def append(rmqctl: Runner, root: Path, data: bytes, *more: str, first: int = 0) -> list[Ack]:
    """Appends lines in this process; what was acknowledged."""
    source = root.parent / "lines"
    source.write_bytes(data)
    done = rmqctl("append", root, source, "-o", "jsonl", *more).expect(0)
    return acknowledged(done.out, first)


def body(number: int) -> str:
    return f"message {number} " + "x" * (number * 37 % 300)


def line(number: int) -> bytes:
    """The message with a number as a line of input."""
    text = json.dumps({
        "topic": TOPICS[number % 3], "queue_id": number // 3 % 2, "body": body(number),
        "properties": {"KEYS": f"k{number}", "TAGS": "A"}})
    return text.encode() + b"\n"


def old_lines(first: int, count: int) -> bytes:
    """The same as records of last year, a second apart: a recovery need not begin with them."""
    out = []
    for number in range(first, first + count):
        given = json.loads(line(number))
        when = LAST_YEAR + number * 1000
        text = "".join(f"{name}\1{value}\2" for name, value in given.pop("properties").items())
        out.append(json.dumps({**given, "store_timestamp": when, "born_timestamp": when,
                               "store_host": "127.0.0.1:10911", "born_host": "127.0.0.1:0",
                               "properties_raw": text}).encode() + b"\n")
    return b"".join(out)


def lines(first: int, count: int) -> bytes:
    return b"".join(map(line, range(first, first + count)))


@dataclass(frozen=True)
class Ack:
    """A message and the result that was printed for it."""

    number: int
    result: dict[str, Any]

    @property
    def place(self) -> int:
        return self.result["physical_offset"]

    @property
    def end(self) -> int:
        return self.place + self.result["wrote_bytes"]

    @property
    def queue(self) -> tuple[str, int, int]:
        return TOPICS[self.number % 3], self.number // 3 % 2, self.result["queue_offset"]


def acknowledged(printed: bytes | str, first: int) -> list[Ack]:
    """What was printed, without a last line that is not whole; line 1 is message ``first``."""
    text = printed.decode() if isinstance(printed, bytes) else printed
    rows = [json.loads(part) for part in text.split("\n")[:-1]]
    assert all(row["status"] == "PUT_OK" for row in rows), rows
    return [Ack(first + row["line"] - 1, row) for row in rows]


def assert_in_log(root: Path, acks: Iterable[Ack]) -> None:
    """Every acknowledged message is where it was said to be, before the end of any broker's log."""
    acks = list(acks)
    with Store.open(root) as store:
        for ack in acks:
            record = store.log.record_at(ack.place, ack.result["wrote_bytes"])
            assert record is not None, f"message {ack.number} at {ack.place} is not in the log"
            assert (record.topic.decode(), record.queue_id, record.queue_offset) == ack.queue
            assert record.body == body(ack.number).encode()
        if acks:
            for generation in (4, 5):
                end = recover_log(store, version_for(generation)).end
                assert end >= max(ack.end for ack in acks)


def assert_whole(rmqctl: Runner, root: Path, acks: Sequence[Ack]) -> None:
    """Nothing is wrong, and every acknowledged message can be read in all the ways there are.

    A message of which a write put all but the end of the properties is one for every broker: the
    CRC covers the body. Nobody got an acknowledgement for it, and it is reported.
    """
    result = rmqctl("verify", root, "-o", "json")
    queues = {ack.queue for ack in acks}
    wrong = [finding for finding in result.json()["findings"]
             if finding["category"] != "property-damaged"
             or (finding["topic"], finding["queue_id"], finding["queue_offset"]) in queues]
    assert wrong == [], result.describe()
    assert not (root / "abort").exists()
    there = {}
    for topic in TOPICS:
        for row in rmqctl("read", root, "--topic", topic, "-o", "jsonl").expect(0, 1).jsonl():
            there[topic, row["queue_id"], row["queue_offset"]] = row
    for ack in acks:
        row = there.get(ack.queue)
        assert row is not None, f"message {ack.number} cannot be read from queue {ack.queue}"
        assert (row["physical_offset"], row["body"]) == (ack.place, body(ack.number))
    for ack in acks[::max(1, len(acks) // 2)]:
        by_key = rmqctl("query", "key", root, "--topic", ack.queue[0], "--key",
                        f"k{ack.number}", "-o", "jsonl").expect(0).jsonl()
        assert ack.place in [row["physical_offset"] for row in by_key]


def assert_recovers(rmqctl: Runner, root: Path, acks: Sequence[Ack]) -> None:
    """After an accident: nothing acknowledged is lost, and the next run makes the store whole."""
    assert_in_log(root, acks)
    done = rmqctl("write", root, "--topic", "T0", "--body", "after", "--key", "after", "-o",
                  "json").expect(0).json()
    assert done["status"] == "PUT_OK"
    assert done["physical_offset"] >= max((ack.end for ack in acks), default=0)
    assert_in_log(root, acks)
    assert_whole(rmqctl, root, acks)


def numbers_in_log(root: Path) -> list[int]:
    """The numbers of all messages in the log, in its order."""
    out = []
    with closing(Store.open(root)) as store:
        for batch in store.log.walk(0, store.log.end):
            for at in range(len(batch)):
                start = int(batch.column("body_start")[at])
                raw = batch.data[start:start + int(batch.column("body_length")[at])].tobytes()
                out.append(int(raw.split()[1]))
    return out
