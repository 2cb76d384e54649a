"""Who follows a log is never shown frames in the body of a message that is just being written.

The message is written in pieces, in orders of an adversary's choice, and between two of them its
writer rests for as long as it likes. The oracle is what was put: each of it once, in order, and
nothing else.
"""

from __future__ import annotations

import pickle
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from rmqctl.store import Store
from rmqctl.store.log.bounds import View
from rmqctl.store.log.growth import PATIENCE
from rmqctl.store.log.tail import Tail
from rmqctl.store.problems import Problem
from rmqctl.store.query.select import Selection
from tests.adversary.hostile import BODIES, FILE_SIZE, PROPERTIES, QUEUE, TOPIC
from tests.adversary.writer import Layout, Put, Writer, field_places
from tests.support.share import RUN, sample

Spans = list[tuple[int, int]]
_PAGE = 512


def _pages(put: Put) -> Spans:
    first, last = put.physical // _PAGE, (put.end - 1) // _PAGE
    return [(max(0, page * _PAGE - put.physical), min(put.size, (page + 1) * _PAGE - put.physical))
            for page in range(first, last + 1)]


def _growing(spans: Spans) -> list[Spans]:
    return [spans[:count] for count in range(1, len(spans))]


def _front_to_back(put: Put, chance: random.Random) -> list[Spans]:
    return [[(0, cut)] for cut in sorted(chance.sample(range(1, put.size), 6))]


def _size_first(put: Put, _chance: random.Random) -> list[Spans]:
    body = put.body_at - put.physical
    return [[(0, 4)], [(0, 4), (body, put.size - 40)], [(0, 4), (body, put.size)]]


def _body_first(put: Put, _chance: random.Random) -> list[Spans]:
    body = put.body_at - put.physical
    return [[(body, body + len(put.body))], [(body, put.size)], [(4, put.size)]]


def _any_page(put: Put, chance: random.Random) -> list[Spans]:
    pages = _pages(put)
    chance.shuffle(pages)
    return _growing(pages)


def _last_page_first(put: Put, _chance: random.Random) -> list[Spans]:
    return _growing(_pages(put)[::-1])


def _a_field_last(put: Put, _chance: random.Random) -> list[Spans]:
    """Of those without which it is no whole message."""
    places = [field_places(put.raw)[name] for name in (
        "total_size", "magic", "body_crc", "physical_offset", "body_length", "topic_length",
        "properties_length") if put.physical or name != "physical_offset"]
    return [[(0, place), (place + width, put.size)] for place, width in places]


ORDERS: dict[str, Callable[[Put, random.Random], list[Spans]]] = {
    "front to back": _front_to_back, "size first": _size_first, "body first": _body_first,
    "any page": _any_page, "last page first": _last_page_first, "a field last": _a_field_last}
CASES = [(body, order, queues) for body in BODIES if body != "blank" for order in ORDERS
         for queues in (True, False)]


class Growing:
    """A store on the disk that becomes another one, piece by piece, and who follows it."""

    def __init__(self, folder: Path, body: str, *, queues: bool) -> None:
        self.before, _ = self._writer(body, queues, whole=False)
        self.after, self.put = self._writer(body, queues, whole=True)
        self.store = self.before.write(folder / "store")
        self._whole = self.after.write(folder / "whole")
        self.now, self.shown = 0.0, list[int]()
        self.problems: list[Problem] = []

    @staticmethod
    def _writer(body: str, queues: bool, *, whole: bool) -> tuple[Writer, Put]:
        writer = Writer(Layout(log_file_size=FILE_SIZE, queue_file_units=50, index_slots=16,
                               index_entries=256, with_queues=queues, with_index=queues), seed=1)
        for number in range(6):
            put = writer.put(TOPIC, b"before %d" % number, queue_id=number % 3, keys=f"k{number}")
        if whole:
            put = writer.put(TOPIC, lambda at: BODIES[body](writer, at), queue_id=QUEUE,
                             keys="outer", unique_key="outer", properties_raw=PROPERTIES)
            for number in range(3):
                writer.put(TOPIC, b"after %d" % number, queue_id=number, keys=f"a{number}")
        return writer, put

    def follow(self, opened: Store) -> None:
        tail = Tail(View(opened), Selection(), self.problems.append, follow=True)
        self.shown += [record.physical_offset for record in tail.last(100)]
        self._follower = tail.follower(self.problems.append)
        self._follower._log._clock = lambda: self.now

    def look(self, times: int = 6) -> None:
        """Some looks, with more than the follower's patience in between."""
        for _ in range(times):
            self.shown += [record.physical_offset for record in self._follower.poll()]
            self.now += 10 * PATIENCE

    def write(self, spans: Iterable[tuple[int, int]]) -> bytes:
        """These bytes of the message are there, and no others; what there is of it then."""
        raw = bytearray(self.put.size)
        for start, end in spans:
            raw[start:end] = self.put.raw[start:end]
        base = self.put.physical // FILE_SIZE * FILE_SIZE
        with (self.store / "commitlog" / f"{base:020d}").open("r+b") as file:
            file.seek(self.put.physical - base)
            file.write(raw)
        return bytes(raw)

    def finish(self) -> None:
        """All that comes, rows and keys too."""
        for source in self._whole.rglob("*"):
            if source.is_file():
                target = self.store / source.relative_to(self._whole)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("r+b" if target.exists() else "wb") as file:
                    file.write(source.read_bytes())


@pytest.mark.parametrize(("body", "order", "queues"), sample(CASES, 24, "tail"))
def test_what_is_being_written(tmp_path: Path, body: str, order: str, *, queues: bool) -> None:
    growing = Growing(tmp_path, body, queues=queues)
    chance = random.Random(RUN.number(f"{body} {order} {queues}"))
    put = [message.physical for message in growing.after.puts]
    with Store.open(growing.store) as opened:
        growing.follow(opened)
        growing.look(2)
        for spans in ORDERS[order](growing.put, chance):
            if growing.write(spans) == growing.put.raw:
                continue  # what is missing are zeros
            growing.look()
            assert growing.shown == put[:6]
            late = Growing.__new__(Growing)  # somebody who begins just now
            late.shown, late.problems, late.now = [], [], 0.0
            late.follow(opened)
            late.look(2)
            assert late.shown == put[:6]
        growing.finish()
        growing.look()
    assert growing.shown == put
    assert [problem.text for problem in growing.problems if problem.kind == "damage"] == []


def test_damage_is_passed_where_rows_lead_behind_it(tmp_path: Path) -> None:
    """Rows are written in the order of the log: what lies before them is written no more."""
    growing = Growing(tmp_path, "chain", queues=True)
    with Store.open(growing.store) as opened:
        growing.follow(opened)
        growing.finish()
        growing.write([(88, growing.put.size)])
        growing.look()
    put = [message.physical for message in growing.after.puts]
    assert growing.shown == [place for place in put if place != growing.put.physical]
    assert [(problem.kind, problem.offset, problem.length) for problem in growing.problems] == [
        ("damage", growing.put.physical, growing.put.size)]


@pytest.mark.parametrize("order", ["size first", "body first"])
def test_a_stream(tmp_path: Path, order: str) -> None:
    """The same for who reads batches between two offsets, in other processes."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import LongType, StructField, StructType

    from rmqctl.ext.spark.source.stream import StreamReader
    growing = Growing(tmp_path, "chain", queues=True)
    reader = StreamReader({"path": str(growing.store)},
                          StructType([StructField("physical_offset", LongType())]))
    reached, shown = reader.initialOffset(), list[int]()

    def look() -> None:
        nonlocal reached
        for log in reader._logs.values():
            log._clock = lambda: growing.now
        for _ in range(4):
            latest = reader.latestOffset(reached, ReadAllAvailable())
            for part in reader.partitions(reached, latest):
                for rows in reader.read(pickle.loads(pickle.dumps(part))):
                    shown.extend(rows.column("physical_offset").to_pylist())
            reached = latest
            growing.now += 10 * PATIENCE

    look()
    for spans in ORDERS[order](growing.put, random.Random(1)):
        growing.write(spans)
        look()
    growing.finish()
    look()
    assert shown == [put.physical for put in growing.after.puts]


def test_a_batch_with_damage(tmp_path: Path) -> None:
    """A file that is closed: frames in the body of a message without its head are not in it."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import LongType, StructField, StructType

    from rmqctl.ext.spark.source.stream import StreamReader
    growing = Growing(tmp_path, "chain", queues=True)
    while len(growing.after.log) < 2:
        growing.after.put(TOPIC, b"x" * 500)
    shutil.rmtree(growing.store)
    growing.after.write(growing.store)
    growing.write([(88, growing.put.size)])
    reader = StreamReader({"path": str(growing.store), "failOnDataLoss": "false"},
                          StructType([StructField("physical_offset", LongType())]))
    first = reader.initialOffset()
    shown = [place for part in reader.partitions(first, reader.latestOffset(
        first, ReadAllAvailable())) for rows in reader.read(part)
        for place in rows.column("physical_offset").to_pylist()]
    assert shown == [put.physical for put in growing.after.puts if put is not growing.put]
