"""Where rows and entries lead: any question has the same answer however the log is cut into cells,
and no page is read again for each of many questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.scan.damage.stale import records_between
from rmqctl.scan.source import FileSource
from rmqctl.store.log import leads, witness
from rmqctl.store.log.leads import CellCache, Pages, Pair, merged
from rmqctl.store.store import Sizes, Store
from tests.support import tiny
from tests.support.cli import run

FAR = 1 << 62
MOST = (1 << 63) - 1
SIZES = ("--index-slots", "8", "--index-max", "128")


def pages_of(parts: list[Pair], read: Counter[int], held: CellCache | None = None) -> Pages:
    def page(number: int) -> Callable[[], Pair]:
        def again() -> Pair:
            read[number] += 1
            return parts[number]
        return again

    pages = Pages(held)
    for number in range(len(parts)):
        pages.add(page(number))
    return pages


def naive(parts: list[Pair], start: int, end: int) -> list[tuple[int, int]]:
    rows = [row for places, values in parts for row in zip(
        places.tolist(), values.tolist(), strict=True)]
    return sorted((row for row in rows if start <= row[0] < end), key=lambda row: row[0])


def rows_of(pair: Pair) -> list[tuple[int, int]]:
    return [*zip(*(column.tolist() for column in pair), strict=True)]


def some_pages(luck: np.random.Generator, queues: int, count: int) -> list[Pair]:
    """Ascending in each queue but for a few that lead anywhere, several to the same place."""
    parts = []
    for _ in range(queues):
        places = np.sort(luck.integers(0, 50_000, count))
        wild = luck.integers(0, count, 2)
        places[wild] = luck.choice([-5, 0, 7, FAR, MOST], 2)
        values = luck.integers(1, 1 << 20, count)
        half = count // 2
        parts += [(places[:half], values[:half]), (places[half:], values[half:])]
    return parts


@pytest.mark.parametrize("cell", [1 << 20, 700, 64, 1])
def test_any_question_has_the_same_answer(cell: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leads, "CELL", cell)
    monkeypatch.setattr(leads, "MAX_HELD", 4 * cell)
    monkeypatch.setattr(leads, "_SAMPLED", 4)
    luck = np.random.default_rng(cell)
    parts = [*some_pages(luck, 7, 200), leads.NOTHING]
    pages = pages_of(parts, Counter())
    questions = [(0, FAR), (0, 1 << 80), (-FAR, FAR), (FAR, MOST), (MOST, MOST + 1), (9, 9),
                 (20, 3)]
    questions += [(int(start), int(start + length)) for start, length in zip(
        luck.integers(-10, 50_000, 60), luck.choice([1, 50, 3000], 60), strict=True)]
    for start, end in questions:
        assert rows_of(pages.within(start, end)) == naive(parts, start, end), (start, end)


def test_without_pages_nothing_leads_anywhere() -> None:
    assert rows_of(Pages().within(0, FAR)) == []
    assert rows_of(merged([])) == []


def test_what_is_held_is_read_once() -> None:
    parts, read = some_pages(np.random.default_rng(1), 5, 100), Counter[int]()
    pages = pages_of(parts, read)
    for start in range(0, 50_000, 100):
        pages.within(start, start + 100)
    assert set(read.values()) == {1}


def test_of_more_each_page_is_read_about_twice_in_the_order_of_the_log(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to know where it leads, once or twice for the cells it leads into."""
    monkeypatch.setattr(leads, "CELL", 400)
    monkeypatch.setattr(leads, "MAX_HELD", 1600)
    monkeypatch.setattr(leads, "_SAMPLED", 4)
    places = np.arange(0, 40_000, 10)
    parts = [(places[first::4][part:part + 20], places[first::4][part:part + 20])
             for first in range(4) for part in range(0, 1000, 20)]
    read = Counter[int]()
    pages = pages_of(parts, read)
    for start in range(0, 40_000, 50):
        pages.within(start, start + 100)
    assert max(read.values()) <= 3


def test_what_several_share_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leads, "MAX_HELD", 150)
    held, read = CellCache(), Counter[int]()
    parts = some_pages(np.random.default_rng(2), 1, 100)
    several = [pages_of(parts, read, held) for _ in range(3)]
    for _ in range(2):
        for pages in several:
            assert rows_of(pages.within(0, FAR)) == naive(parts, 0, FAR)
    # Each once when it was added, and once more for each question after the first: none stayed.
    assert read == Counter({0: 6, 1: 6})


def test_rows_and_entries_are_read_once_however_much_is_damaged(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., Pair]:
        read = getattr(witness, name)

        def again(*args: Any) -> Pair:
            asked[name] += 1
            content: Pair = read(*args)
            return content
        return again

    for name in ("_plain", "_entries"):
        monkeypatch.setattr(witness, name, counting(name))
    specs = [tiny.Spec(f"topic{number % 6}", 0, b"tea and sugar, order %d" % number,
                       {"UNIQ_KEY": f"0A{number:04X}", "KEYS": f"k{number}"})
             for number in range(60)]
    counts = []
    for every in (30, 3):
        built = tiny.build(tmp_path / f"store{every}", specs, commitlog_file_size=1 << 16,
                           consumequeue_file_size=2000, index_max=128)
        for message in built.messages[1:-1:every]:
            name, position = built.place(message.start + 40)
            content = bytearray((built.root / name).read_bytes())
            content[position] ^= 1
            content[position - 38] ^= 1  # of its size
            (built.root / name).write_bytes(content)
        asked.clear()
        result = run("verify", built.root, *SIZES, "--jobs", "1")
        assert result.code == 1
        counts.append(dict(asked))
    assert counts[0]["_plain"]
    assert counts[0] == counts[1]

    # The same of any questions.
    asked.clear()
    knows = Store.open(str(built.root), sizes=Sizes(index_slots=8, index_max=128)).new_witness()
    led = [len(knows.rows(start, start + 10)[0]) + len(knows.keys(start, start + 10)[0])
           for start in range(0, built.log_end, 10)]
    assert sum(led) == 3 * len(specs)
    assert asked == {"_plain": 1, "_entries": 1}  # queues with few rows are read together


def test_of_a_stretch_no_more_is_read_than_it_has(tmp_path: Path) -> None:
    class Counting(FileSource):
        taken = 0

        def read_into(self, buffer: memoryview, position: int) -> int:
            self.taken += len(buffer)
            return super().read_into(buffer, position)

    built = tiny.build(tmp_path / "store", [
        tiny.Spec("orders", 0, bytes([65 + number]) * 300) for number in range(40)],
        commitlog_file_size=1 << 16)
    name, _ = built.place(0)
    places = [(message.start, message.start + len(message.raw)) for message in built.messages[5:9]]
    with Counting(str(built.root / name)) as source:
        records = records_between(source, places[0][0], places[-1][1])
        assert source.taken <= 4096
        assert [record.physical_offset for record in records] == [start for start, _ in places]
        assert [record.body[:1] for record in records[1:]] == [b"G", b"H", b"I"]
        assert records[-1] is records[3]
