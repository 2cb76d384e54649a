"""Pulls are answered from pages of a queue that are read and checked together: as if each record
were read and judged by itself, whatever is wrong with a store.
"""

from __future__ import annotations

import random
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rmqctl.broker.get_message import FOUND, MAX_COUNT
from rmqctl.ext.serve import reading
from rmqctl.ext.serve.log_reader import LogReader
from rmqctl.ext.serve.reading import PageCache, StoredQueue
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.support.kernels import KERNELS, using
from tests.support.share import RUN

STORES = ("4.9.3/basic/store", "5.3.3/basic/store", "5.3.3/multipath/store", "5.3.3/ipv6/store",
          "5.3.3/v2topic/store", "4.9.3/crash-trunc-garbage/before")


def damaged(root: Path, source: random.Random) -> None:
    """Turns bits of the log and of queues; a file of the log may be cut."""
    for folder, share in (("commitlog", 40), ("consumequeue", 400)):
        for path in sorted((root / folder).rglob("0" * 9 + "*")):
            data = bytearray(path.read_bytes())
            used = len(data.rstrip(b"\0"))
            for _ in range(used // (share * 100) + 1):
                if used:
                    data[source.randrange(used)] ^= 1 << source.randrange(8)
            if folder == "commitlog" and source.random() < 0.1:
                del data[used * 3 // 4:]
            path.write_bytes(data)


def one_by_one(rows: list[tuple[int, int]], log: LogReader, at: int, most: int, max_bytes: int
               ) -> tuple[int, bytes, int, int]:
    """(where to go on, the records, how many, how many were passed over) of a pull."""
    records: list[bytes] = []
    skipped = 0
    last = min(len(rows), at + max(reading.SCANNED_ROWS, most))
    while at < last and len(records) < min(max(most, 1), MAX_COUNT):
        record = log.record(*rows[at])
        if record is None:
            skipped += rows[at][1] != FILLER.size
        elif records and sum(map(len, records)) + len(record) > max_bytes:
            break
        else:
            records.append(bytes(record))
        at += 1
    return at, b"".join(records), len(records), skipped


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_its_file_cuts_off_is_not_served(golden: GoldenFolder, tmp_path: Path, kernel: str
                                              ) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden("4.9.3/basic") / "store", root)
    rows = []
    with using(kernel), Store.open(root) as store:
        for batch in store.log.walk(0):
            rows += zip(batch.offset.tolist(), batch.column("total_size").tolist(), strict=True)
        place, size = (np.array(pair[-20:], np.int64) for pair in zip(*rows, strict=True))
        file = store.log.files[-1]
        assert file.base <= place[-1]
        cut = Path(file.path)
        cut.write_bytes(cut.read_bytes()[:int(place[-1] + size[-1]) - file.base - 1])
    with using(kernel), Store.open(root) as store:
        log = LogReader(store.log, None)
        _, starts = log.records(place, size)
        assert len(starts) == 21
        for number in range(20):
            assert (log.record(int(place[number]), int(size[number])) is not None) == (
                starts[number + 1] > starts[number]) == (number < 19)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", STORES)
def test_a_page_gives_what_each_record_would(golden: GoldenFolder, tmp_path: Path, name: str,
                                             kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(f"{RUN.seed} {name}")
    monkeypatch.setattr(reading, "FILTER_S", 60)
    monkeypatch.setattr(reading, "PAGE_ROWS", source.choice((13, 40, 512)))
    monkeypatch.setattr(reading, "PAGE_BYTES", source.choice((10_000, 1 << 20)))
    version, kind, state = name.split("/")
    for number in range(3):
        root = tmp_path / str(number)
        shutil.copytree(golden(f"{version}/{kind}") / state, root)
        if number:
            damaged(root, source)
        with using(kernel), Store.open(root) as store:
            view = View(store)
            log = LogReader(store.log, view.log_end)
            for plain in store.queues.by_key.values():
                queue = StoredQueue(view, plain, log, PageCache(20_000))
                rows = [(0, 0)] * queue.first + [
                    (int(row["physical_offset"]), int(row["size"]))
                    for at in range(queue.first, queue.end) for row in plain.units(at, 1)]
                if len(rows) != queue.end:  # a hole in the files
                    continue
                for _ in range(6 if queue.end > queue.first else 0):
                    at = source.randrange(queue.first, queue.end)
                    most = source.choice((1, 2, 20, 32, 100))
                    limit = source.choice((1, 700, 5_000, 1 << 18))
                    wanted = one_by_one(rows, log, at, most, limit)
                    for accept in (None, lambda _code, _record: True):
                        pulled = queue.pull(at, most, accept, limit)
                        assert (pulled.next_begin, b"".join(pulled.parts), pulled.count,
                                pulled.skipped) == wanted
                        assert pulled.count == len(list(pulled.records))
                        assert pulled.count == 0 or pulled.status == FOUND


def test_rows_that_lead_to_one_place_all_get_it(golden: GoldenFolder) -> None:
    with Store.open(golden("5.3.3/basic") / "store") as store:
        log = LogReader(store.log, None)
        rows = [row for queue in store.queues.by_key.values() for row in queue.units(0, 20)][:30]
        place = np.array([row["physical_offset"] for row in rows], np.int64)
        size = np.array([row["size"] for row in rows], np.int64)
        order = np.r_[np.arange(30)[::-1], np.arange(30), np.zeros(20, np.int64)]
        data, starts = log.records(place[order], size[order])
        assert len(starts) == len(order) + 1
        wanted = [log.record(int(place[number]), int(size[number])) for number in order]
        assert all(record is not None for record in wanted)
        assert [data[first:other] for first, other in pairwise(starts)] == wanted
