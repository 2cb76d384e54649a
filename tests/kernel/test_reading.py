"""Parts of a file read at once, by either build."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rmqctl.errors import StoreIOError
from rmqctl.ext.serve import log_reader
from rmqctl.ext.serve.log_reader import LogReader
from rmqctl.kernel import active
from rmqctl.scan.source import BytesSource, FileSource
from rmqctl.scan.walk import Walk
from rmqctl.store.files import StoreFile
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.support.kernels import KERNELS, compiled_only, using
from tests.support.share import every


@pytest.mark.parametrize("kernel", KERNELS)
def test_parts_of_a_file_go_where_they_belong(tmp_path: Path, kernel: str) -> None:
    data = random.Random(1).randbytes(1000)
    (tmp_path / "f").write_bytes(data)
    numbers = [np.array(counts, np.int64) for counts in ([0, 10, 30], [10, 30, 60], [500, 0, 980])]
    with using(kernel):
        for limit, last in ((None, data[980:] + bytes(10)), (990, data[980:990] + bytes(20))):
            out = bytearray(b"x" * 60)
            with FileSource(str(tmp_path / "f"), limit=limit) as source:
                source.read_parts(memoryview(out), *numbers)
            assert out == data[500:510] + data[:20] + last


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path: Path, kernel: str) -> None:
    (tmp_path / "f").write_bytes(b"1234")
    array = np.ones(1, np.int64)
    with using(kernel):
        source = FileSource(str(tmp_path / "f"))
        source.close()
        with pytest.raises(StoreIOError, match="/f"):
            source.read_parts(memoryview(bytearray(4)), array, array + 1, array)


@compiled_only
def test_nothing_is_written_outside_of_the_buffer(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(100))
    kernel = active()
    assert kernel is not None
    with (tmp_path / "f").open("rb") as file:
        for start, end in ((-1, 5), (0, 11), (11, 12), (8, 1 << 62), (5, 4)):
            with pytest.raises(IndexError):
                kernel.read_parts(file.fileno(), bytearray(10), np.array([start]), np.array([end]),
                                  np.array([0]), 100)
        with pytest.raises(ValueError, match="before"):
            kernel.read_parts(file.fileno(), bytearray(10), np.array([0]), np.array([5]),
                              np.array([-1]), 100)


@compiled_only
def test_records_are_read_together_where_each_is_whole(golden: GoldenFolder, tmp_path: Path
                                                       ) -> None:
    """Whatever bit is turned: all of them at once just where each would be served by itself."""
    with Store.open(golden("4.9.3/basic") / "store") as store:
        file = store.log.files[0]
        batch = next(iter(store.log.walk(file.base)))
        place, size = batch.offset[:6], batch.column("total_size")[:6]
        data = bytearray(Path(file.path).read_bytes())
    place, size = np.delete(place, 3), np.delete(size, 3)  # one lies between the others
    path = tmp_path / f"{file.base:020}"
    refused, used = 0, int(place[-1] + size[-1] - file.base)
    for bit in every(59, range(used * 8), "bits of records"):
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data[:used])
        log = CommitLog([StoreFile(str(path), path.name, file.base, used)])
        reader = LogReader(log, None)
        wanted = [reader.record(*row) for row in zip(place.tolist(), size.tolist(), strict=True)]
        for mapped in (False, True):
            out = bytearray(int(size.sum()))
            whole = log.source(0).read_records(memoryview(out), place, size, None, mapped)
            assert whole == (None not in wanted)
            if whole:
                assert out == b"".join(record or b"" for record in wanted)
        refused += not whole
        log.close()
        data[bit // 8] ^= 1 << bit % 8
    assert refused > 25


@compiled_only
def test_records_beyond_an_end_or_of_another_size_are_none(golden: GoldenFolder) -> None:
    with Store.open(golden("4.9.3/basic") / "store") as store:
        source = store.log.source(0)
        batch = next(iter(store.log.walk(source.base)))
        place, size = batch.offset[:4], batch.column("total_size")[:4]
        last, total = int(place[-1] + size[-1]), int(size.sum())

        def read(room: int, place: np.ndarray, size: np.ndarray, end: int | None) -> bool:
            records = {source.read_records(memoryview(bytearray(room)), place, size, end, mapped)
                       for mapped in (False, True)}
            assert len(records) == 1
            return records.pop()

        assert read(total, place, size, last)
        assert read(total, place, size, None)
        assert not read(total, place, size, last - 1)
        assert not read(total - 1, place, size, None)
        assert not read(total + 1, place, size, None)
        for change in (-1, 1, 1 << 40, -(1 << 62), (1 << 63) - 2000):
            assert not read(total + 1, place, size + np.array([0, 0, 0, change]), None)
            assert not read(total, place + np.array([0, 0, 0, change]), size, None)
        with pytest.raises(ValueError, match="shape"):
            read(total, place, size[:3], None)


_CUT = """
import os, signal, sys
import numpy as np
from rmqctl.scan.source import FileSource
place, size = (np.array([int(each) for each in text.split(",")]) for text in sys.argv[2:4])
source = FileSource(sys.argv[1], int(place[0]))
out = memoryview(bytearray(size.sum()))
print(source.read_records(out, place, size, None))
os.truncate(sys.argv[1], 0)
print(source.read_records(out, place, size, None), source.read_records(out, place, size, None))
source.let_go(0, 1 << 40)
source.let_go(-9, 5)
source.let_go(9, 5)
if len(sys.argv) > 4:
    signal.signal(signal.SIGBUS, lambda *_: print("as before"))
    print(source.read_records(out, place, size, None))
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGBUS)
"""


@compiled_only
@pytest.mark.parametrize("own", [False, True])
def test_a_file_that_is_cut_while_it_is_mapped_ends_nobody(golden: GoldenFolder, tmp_path: Path,
                                                           own: bool) -> None:
    with Store.open(golden("4.9.3/basic") / "store") as store:
        file = store.log.files[0]
        batch = next(iter(store.log.walk(file.base)))
        place, size = batch.offset[:9], batch.column("total_size")[:9]
        shutil.copyfile(file.path, tmp_path / "log")
    done = subprocess.run([sys.executable, "-c", _CUT, str(tmp_path / "log"), *(
        ",".join(map(str, values)) for values in (place.tolist(), size.tolist())),
                           *(["own"] * own)],
        capture_output=True, text=True, check=False)
    # What SIGBUS did before it does again afterwards.
    assert done.stdout == "True\nFalse False\n" + "False\nas before\n" * own
    assert done.returncode == (0 if own else -signal.SIGBUS), done.stderr


class Log:
    """In the place of a log and its file: notes whether it was mapped, and the windows given up."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def locate(self, physical: int) -> tuple[Log, int]:
        return self, physical

    def let_go(self, start: int, end: int) -> None:
        assert end - start == 10_000
        self.seen.append(start // 10_000)

    def read_records(self, *args: object) -> bool:
        self.seen.append(args[-1])
        return True


@pytest.mark.parametrize(("rows", "windows", "wanted"), [
    (0, 99, [True] * 5),
    (0, 2, [True, True, 0, True, 1, True, 2, True]),
    (1000, 2, [True, True, 0, True, 1, True, False, False, 2, True]),
    (0, 1, [False] * 4)])
def test_mapped_files_are_let_go_of(monkeypatch: pytest.MonkeyPatch, rows: int, windows: int,
                                    wanted: list[object]) -> None:
    """``rows``: as many for each window that is given up, or files are not mapped for 40 rows."""
    for name, value in (("_WINDOW", 10_000), ("_MAX_WINDOWS", windows), ("_ROWS_UNMAPPED", 40),
                        ("_ROWS_PER_WINDOW", rows)):
        monkeypatch.setattr(log_reader, name, value)
    log = Log()
    reader = LogReader(log, None)  # type: ignore[arg-type]
    place, number = np.arange(20) * 200, 0
    while len(log.seen) < len(wanted):
        reader.records(place + number * 10_000, np.full(20, 200))
        number += 1
    assert log.seen == wanted


@compiled_only
@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/basic", "5.3.3/ipv6"])
def test_intact_records_are_those_of_a_walk(golden: GoldenFolder, name: str) -> None:
    """Whatever bit is turned, the pass ends at the first record that a walk finds damaged."""
    with Store.open(golden(name) / "store") as store:
        file = store.log.files[0]
        batch = next(iter(store.log.walk(file.base)))
        data = bytearray(Path(file.path).read_bytes()[:int(
            batch.offset[19] + batch.column("total_size")[19] - file.base)])
    kernel = active()
    assert kernel is not None
    assert kernel.intact_records(data, file.base, 0)[:2] == (len(data), 20)
    assert kernel.intact_records(data[:-1], file.base, 0)[1] == 19
    assert kernel.intact_records(data, file.base + 1, 0) == (0, 0, 0)
    for at in (-1, len(data), len(data) + 1, 1 << 62, -(1 << 62)):
        assert kernel.intact_records(data, file.base, at) == (at, 0, 0)
    assert kernel.intact_records(b"", file.base, 0) == (0, 0, 0)
    for bit in every(97, range(len(data) * 8), "bits of records"):
        data[bit // 8] ^= 1 << bit % 8
        source = BytesSource(bytes(data), file.base)
        wanted = (0, 0, 0)
        for batch in Walk(source):
            good = batch.crc_ok()
            count = len(good) if good.all() else int(good.argmin())
            if batch.start[:1].tolist() != [wanted[0]] or not count:
                break
            wanted = (int(batch.start[count - 1] + batch.column("total_size")[count - 1]),
                      wanted[1] + count,
                      max(wanted[2], int(batch.column("store_timestamp")[:count].max())))
            if count < len(good) or batch.spans:
                break
        assert kernel.intact_records(data, file.base, 0) == wanted
        data[bit // 8] ^= 1 << bit % 8


_CUT_WINDOWS = """
import os, signal, sys
import numpy as np
from rmqctl.kernel import active
from rmqctl.scan.source import FileSource
if sys.argv[3] == "blocked":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGBUS])
mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
source, kernel = FileSource(sys.argv[1]), active()
size = source.size // 64 * 64
first, second = source.window(0, source.size), source.window(0, size)
print(kernel.intact_records(first, int(sys.argv[2]), 0)[1] > 0)
states = np.arange(16, dtype=np.uint32)
if kernel.SHA256_PAIRS:
    assert kernel.sha256_pair(states, second, second, size // 64)
before = states.copy()
os.truncate(sys.argv[1], 0)
print(kernel.intact_records(first, int(sys.argv[2]), 0))
if kernel.SHA256_PAIRS:
    assert not kernel.sha256_pair(states, second, second, size // 64)
    assert (states == before).all()
print(source.window(0, 1))
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
"""


@compiled_only
@pytest.mark.parametrize("mask", ["open", "blocked"])
def test_windows_of_a_file_that_is_cut_end_nobody(golden: GoldenFolder, tmp_path: Path,
                                                  mask: str) -> None:
    with Store.open(golden("4.9.3/basic") / "store") as store:
        file = store.log.files[0]
        (tmp_path / "log").write_bytes(Path(file.path).read_bytes()[:50_000])
    done = subprocess.run([sys.executable, "-c", _CUT_WINDOWS, str(tmp_path / "log"),
                           str(file.base), mask], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\n(0, 0, 0)\nNone\n", 0), done.stderr


@compiled_only
def test_a_record_is_not_intact_if_its_properties_cannot_be_read(golden: GoldenFolder,
                                                                 tmp_path: Path) -> None:
    """Cut the file at the page in which only the properties of a record end."""
    with Store.open(golden("4.9.3/basic") / "store") as store:
        file = store.log.files[0]
        batch = next(iter(store.log.walk(file.base)))
        ends = (batch.start + batch.column("total_size")).tolist()
        bodies = (batch.column("body_start") + batch.column("body_length")).tolist()
        data = Path(file.path).read_bytes()
    number = next(number for number, (body, end) in enumerate(zip(bodies, ends, strict=True))
                  if end // 4096 > body // 4096 and end % 4096)
    page = ends[number] // 4096 * 4096
    (tmp_path / "log").write_bytes(data[:page + 4096])
    kernel = active()
    assert kernel is not None
    with FileSource(str(tmp_path / "log")) as source:
        window = source.window(0, ends[number])
        assert kernel.intact_records(window, file.base, 0)[:2] == (ends[number], number + 1)
        os.truncate(tmp_path / "log", page)
        assert kernel.intact_records(window, file.base, 0) == (0, 0, 0)


def test_windows_contain_the_bytes_of_a_file(tmp_path: Path) -> None:
    data = random.Random(3).randbytes(20_000)
    (tmp_path / "f").write_bytes(data)
    with FileSource(str(tmp_path / "f")) as source, FileSource(
            str(tmp_path / "f"), limit=9000) as limited:
        for start, length in ((0, 1), (0, 20_000), (5, 19_995), (4096, 4096), (8191, 2)):
            assert source.window(start, length) == data[start:start + length]
        for start, length in ((0, 0), (20_000, 1), (0, 20_001), (19_999, 2)):
            assert source.window(start, length) is None
        assert limited.window(10, 8990) == data[10:9000]
        assert limited.window(10, 8991) is None
