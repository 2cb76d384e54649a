"""A RocksDB data base is opened without a change to it, and what is damaged in it is said."""

from __future__ import annotations

import os
import random
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rmqctl.errors import FormatError, MissingExtraError, StoreIOError, UsageError
from rmqctl.formats.rocksdb.consume_queue import (
    MAX,
    OFFSETS,
    ROW,
    ROWS,
    RowRecord,
    offset_key,
    row_key,
)
from rmqctl.store.rocksdb import mirror, row_pass
from rmqctl.store.rocksdb.database import Database
from rmqctl.store.rocksdb.queues import RocksQueues
from rmqctl.store.rocksdb.row_pass import MAX_HELD_PER_QUEUE
from tests.conftest import GoldenFolder
from tests.support.share import every
from tests.support.snapshot import assert_unchanged

KILLED = "5.3.3/rocksdb-config-v1-kill/store/config/subscriptionGroups"
"""A small data base of which a part is in tables and a part in a write-ahead log."""


@pytest.fixture
def database(golden_copy) -> Path:
    return golden_copy(KILLED)


@pytest.fixture(autouse=True)
def nothing_is_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    yield
    assert list((tmp_path / "temporary").iterdir()) == []


def names(database: Path) -> list[bytes]:
    with Database.open(str(database)) as opened:
        return [key for key, _ in opened.items("default")]


def table(database: Path) -> Path:
    return max(database.glob("*.sst"), key=lambda path: path.stat().st_size)


def changed(path: Path, position: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bits
    path.write_bytes(data)


def test_families_and_keys(database: Path) -> None:
    with assert_unchanged(database), Database.open(str(database)) as opened:
        assert opened.families == ("default", "kvDataVersion", "forbidden")
        assert opened.damage == ()
        keys = [key for key, _ in opened.items("default")]
        assert len(keys) == 10
        assert keys == sorted(keys)
        assert [key for key, _ in opened.items("default", keys[3], keys[7])] == keys[3:7]
        assert list(opened.items("default", keys[-1] + b"\0")) == []
        assert opened.get("default", keys[4]) == dict(opened.items("default"))[keys[4]]
        assert opened.get("default", b"nobody") is None
        assert list(opened.items("nothing")) == []
        assert opened.get("nothing", keys[0]) is None


def test_it_is_read_where_nothing_may_be_written(database: Path) -> None:
    database.chmod(0o555)
    with assert_unchanged(database):
        assert len(names(database)) == 10
    database.chmod(0o755)


def test_a_block_that_is_damaged_ends_no_listing_unsaid(database: Path) -> None:
    changed(table(database), 20)
    with Database.open(str(database)) as opened:
        with pytest.raises(FormatError, match="column family default: .*checksum") as error:
            list(opened.items("default"))
        assert str(database) in str(error.value)
        assert tempfile.gettempdir() not in str(error.value)


@pytest.mark.parametrize("lost", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_lost_file_is_said(database: Path, lost: str) -> None:
    gone = next(database.glob(lost))
    gone.unlink()
    with pytest.raises(FormatError, match=gone.name):
        Database.open(str(database))


def test_a_lost_log_is_no_damage_and_a_damaged_one_is_read_as_far_as_it_goes(
        database: Path) -> None:
    log = next(path for path in database.glob("*.log") if path.stat().st_size)
    changed(log, log.stat().st_size - 3)
    with Database.open(str(database)) as opened:
        assert len(opened.damage) == 1
        assert "write-ahead log" in opened.damage[0]
    log.unlink()
    with Database.open(str(database)) as opened:
        assert opened.damage == ()


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-000005", "000010.sst"])
def test_what_is_no_file_is_not_waited_for(database: Path, name: str) -> None:
    (database / name).unlink()
    os.mkfifo(database / name)
    with pytest.raises(FormatError, match=name):
        Database.open(str(database))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_the_systems_fault(database: Path) -> None:
    (database / "CURRENT").chmod(0)
    with pytest.raises(StoreIOError, match="permission"):
        Database.open(str(database))


def test_a_file_that_a_running_broker_took_away_is_looked_for_again(
        database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = table(database)
    shutil.move(kept, database.parent / kept.name)
    # Of this module alone: other threads of the process (py4j's) sleep, too.
    monkeypatch.setattr("rmqctl.store.rocksdb.database.time", SimpleNamespace(
        sleep=lambda _: shutil.move(database.parent / kept.name, kept)))
    assert len(names(database)) == 10


def test_without_the_library(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rmqctl\[rocksdb\]'"):
        Database.open(str(database))


def test_a_record_of_a_kind_at_which_the_library_reads_for_ever(database: Path) -> None:
    changed(database / "MANIFEST-000005", 372, 4)
    with pytest.raises(FormatError, match="unknown RocksDB record type 5") as error:
        Database.open(str(database))
    assert error.value.offset == 366


def test_a_record_of_such_a_kind_ends_a_write_ahead_log(database: Path) -> None:
    changed(database / "000008.log", 400, 4)
    with Database.open(str(database)) as opened:
        assert "unknown RocksDB record type 5" in opened.damage[0]
        assert len(list(opened.items("default"))) == 10


def test_a_manifest_that_ends_early_is_said(database: Path) -> None:
    manifest = database / "MANIFEST-000005"
    os.truncate(manifest, manifest.stat().st_size - 5)
    with Database.open(str(database)) as opened:
        assert "ends in the middle of a record" in opened.damage[0]


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-000005", "000008.log", "000009.sst",
                                  "000010.sst"])
def test_any_bit_and_any_length_is_read_or_said(database: Path, name: str, seed: int) -> None:
    path = database / name
    sound = path.read_bytes()
    rng = random.Random(seed)
    for position in every(1 + len(sound) // 5, range(len(sound)), name):
        for length in (len(sound), position):
            data = bytearray(sound[:length])
            if length > position:
                data[position] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            try:
                with Database.open(str(database)) as opened:
                    for family in opened.families:
                        assert sum(1 for _ in opened.items(family)) <= 10
            except FormatError as error:
                assert str(database) in str(error)


# -- stores that fill the disk or the memory of who reads them ------------------------------------


def _holes(path: Path, size: int) -> None:
    path.write_bytes(b"")
    os.truncate(path, size)


def test_holes_stay_holes(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0
    real = mirror._copy

    def copy(file: mirror._Copied, target: str) -> None:
        nonlocal written
        real(file, target)
        written += os.stat(target).st_blocks * 512

    monkeypatch.setattr(mirror, "_copy", copy)
    log = database / "000008.log"
    data = log.stat().st_size
    os.truncate(log, 64 << 20)
    with assert_unchanged(database):
        assert len(names(database)) == 10
    assert 0 < written < data + (1 << 20)


@pytest.mark.parametrize("name", ["000099.log", "MANIFEST-000005"])
def test_what_is_too_large_is_not_copied(
        name: str, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _holes(database / name, 1 << 40)
    monkeypatch.setattr(mirror, "_copy", pytest.fail)
    with pytest.raises(StoreIOError, match=r"1,048,577 MiB; at most 4,096 MiB .*"
                                           r"RMQCTL_ROCKSDB_COPY=SIZE sets another limit"):
        Database.open(str(database))


def test_the_limit_is_an_option(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mirror.VARIABLE, "100")
    with pytest.raises(StoreIOError, match="at most 1 MiB"):
        Database.open(str(database))
    monkeypatch.setenv(mirror.VARIABLE, "1GiB")
    assert len(names(database)) == 10
    monkeypatch.setenv(mirror.VARIABLE, "much")
    with pytest.raises(UsageError, match="RMQCTL_ROCKSDB_COPY: invalid size 'much'"):
        Database.open(str(database))


def test_free_space_is_asked_for_first(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror.os, "statvfs", lambda _: SimpleNamespace(
        f_bavail=63, f_frsize=1 << 20))
    monkeypatch.setattr(mirror, "_copy", pytest.fail)
    with pytest.raises(StoreIOError, match="has 63 MiB free; TMPDIR=FOLDER names another folder"):
        Database.open(str(database))


def _framed(payload: bytes) -> bytes:
    """A record over as many blocks as it needs; its checksums are none."""
    out = b""
    while payload:
        free = 32768 - len(out) % 32768
        part, payload = payload[:free - 7], payload[free - 7:]
        kind = (1 if not payload else 2) if not out else 3 if payload else 4
        out += struct.pack("<IHB", 1, len(part), kind) + part
    return out


def test_a_record_larger_than_any_of_a_broker(
        database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "MAX_RECORD", 1 << 20)
    log, manifest = database / "000008.log", database / "MANIFEST-000005"
    sound = log.read_bytes(), manifest.read_bytes()
    log.write_bytes(_framed(b"k" * ((1 << 20) + 1)))
    with Database.open(str(database)) as opened:
        assert "000008.log @0: a record of more than 1 MiB" in opened.damage[0]
        assert len(opened.damage) == 1
        assert list(opened.items("default"))
    log.write_bytes(sound[0])
    manifest.write_bytes(_framed(b"k" * ((1 << 20) + 1)))
    with pytest.raises(FormatError, match="MANIFEST-000005 @0: a record of more than 1 MiB"):
        Database.open(str(database))
    log.write_bytes(_framed(b"k" * (1 << 20)))
    manifest.write_bytes(sound[1])
    with Database.open(str(database)) as opened:
        assert "more than" not in str(opened.damage)


def test_keys_longer_than_those_of_a_broker_are_no_queues(tmp_path: Path) -> None:
    rocksdict = pytest.importorskip("rocksdict")
    options = rocksdict.Options(raw_mode=True)
    options.create_missing_column_families(True)
    base = rocksdict.Rdict(str(tmp_path / "consumequeue"), options,
                           {name: rocksdict.Options(raw_mode=True) for name in (ROWS, OFFSETS)})
    rows, offsets = base.get_column_family(ROWS), base.get_column_family(OFFSETS)
    topics = b"a" * 127, b"b" * 281, b"c" * 282, b"d" * 100_000, b"e"
    for topic in topics:
        rows[row_key(topic, 0, 0)] = bytes(28)
        offsets[offset_key(topic, 0, MAX)] = bytes(16)
    for number in range(50):
        rows[b"x" * 300 + bytes([number])] = b""
        rows[b"\xff" * 300 + bytes([number])] = b""
    for handle in (rows, offsets, base):
        handle.close()
    with RocksQueues(str(tmp_path / "consumequeue")) as rocks_queues:
        assert [len(topic) for topic, _ in rocks_queues.queues] == [127, 281, 1]
        # Those that begin as another one are passed at once, but for those of 0xff alone.
        assert rocks_queues.odd_count == 2 + 2 + 1 + 50


def many_queues(folder: Path, count: int, long: int = 3) -> None:
    """A database with a row for each of many topics, and ``long`` queues that have more rows than
    are held.
    """
    rocksdict = pytest.importorskip("rocksdict")
    options = rocksdict.Options(raw_mode=True)
    options.create_missing_column_families(True)
    base = rocksdict.Rdict(str(folder), options,
                           {name: rocksdict.Options(raw_mode=True) for name in (ROWS, OFFSETS)})
    rows = base.get_column_family(ROWS)
    for number in range(count):
        rows[row_key(b"t%06d" % number, 0, number)] = ROW.build(RowRecord(number, 91, 0, 5))
    for number in range(long):
        for offset in range(MAX_HELD_PER_QUEUE + 2):
            rows[row_key(b"long", number, 7 + offset)] = ROW.build(RowRecord(offset, 92, 0, 5))
    for handle in (rows, base):
        handle.close()


@pytest.mark.parametrize("count", [10, 300])
def test_one_cursor_tells_the_ends_and_rows_of_many_queues(tmp_path: Path, count: int,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    many_queues(tmp_path / "consumequeue", count)
    asked: list[str] = []
    for name in ("cursor", "items", "page", "last", "get"):
        real = getattr(Database, name)
        monkeypatch.setattr(Database, name, lambda self, family, *key, real=real, name=name: (
            asked.append(name), real(self, family, *key))[1])
    with RocksQueues(str(tmp_path / "consumequeue")) as rocks_queues:
        assert len(rocks_queues.queues) == count + 3
        short = [queue for queue in rocks_queues.queues.values() if queue.topic != "long"]
        assert [(queue.first_index, queue.disk_end) for queue in short] == [
            (number, number + 1) for number in range(count)]
        assert [queue.unit(queue.first_index) for queue in short] == [
            (number, 91, 0) for number in range(count)]
        assert all(len(queue.units(queue.first_index, 5)) == 1 for queue in short)
        assert {(rocks_queues.queues["long", number].first_index,
                 rocks_queues.queues["long", number].disk_end)
                for number in range(3)} == {(7, 7 + MAX_HELD_PER_QUEUE + 2)}
        assert asked == ["items", "cursor"]  # the offsets, the rows
        assert rocks_queues.queues["long", 2].units(8, 1000)["physical_offset"].tolist() == list(
            range(1, MAX_HELD_PER_QUEUE + 2))


def test_rows_are_held_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many_queues(tmp_path / "consumequeue", 20, 0)
    monkeypatch.setattr(row_pass, "MAX_HELD", 10)
    asked: list[bytes] = []
    get = Database.get
    monkeypatch.setattr(Database, "get", lambda self, family, key: (
        asked.append(key), get(self, family, key))[1])
    with RocksQueues(str(tmp_path / "consumequeue")) as rocks_queues:
        assert [queue.unit(queue.first_index) for queue in rocks_queues.queues.values()] == [
            (number, 91, 0) for number in range(20)]
    assert len(asked) == 10


def test_held_rows_are_those_that_look_ups_find(golden: GoldenFolder,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(golden("5.3.3/rocksdb/store") / "consumequeue")

    def lookups() -> list[object]:
        with RocksQueues(folder) as rocks_queues:
            return [(key, queue.first_index, queue.disk_end, queue.next_row(3, 9),
                     queue.timed_units(0, 9).tolist(), queue.units(2, 3).tolist(),
                     [queue.unit(number) for number in range(-1, 12)])
                    for key, queue in rocks_queues.queues.items()]

    held = lookups()
    assert len(held) > 5
    monkeypatch.setattr(row_pass, "MAX_HELD", 0)
    assert lookups() == held
    monkeypatch.setattr(row_pass, "MAX_HELD_PER_QUEUE", 1)
    assert lookups() == held
    monkeypatch.setattr(row_pass.RowPass, "_ends", lambda *_: None)
    assert lookups() == held


def scattered(folder: Path, offsets: list[int]) -> None:
    """A database with one queue that has rows at these queue offsets."""
    rocksdict = pytest.importorskip("rocksdict")
    options = rocksdict.Options(raw_mode=True)
    options.create_missing_column_families(True)
    base = rocksdict.Rdict(str(folder), options,
                           {name: rocksdict.Options(raw_mode=True) for name in (ROWS, OFFSETS)})
    rows = base.get_column_family(ROWS)
    for offset in offsets:
        rows[row_key(b"far", 0, offset)] = ROW.build(RowRecord(offset % 1000, 91, 0, 5))
    for handle in (rows, base):
        handle.close()


@pytest.mark.parametrize("short", [1, MAX_HELD_PER_QUEUE])
def test_pages_are_no_larger_than_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             short: int) -> None:
    offsets = [0, 1, 5, 40_000, 1 << 40, (1 << 40) + 1]
    scattered(tmp_path / "consumequeue", offsets)
    monkeypatch.setattr(row_pass, "MAX_HELD_PER_QUEUE", short)
    with RocksQueues(str(tmp_path / "consumequeue")) as rocks_queues:
        pages = [*rocks_queues.queues["far", 0].pages(0, 1 << 50)]
        assert [start + at for start, rows in pages
                for at in np.flatnonzero(rows["size"])] == offsets
        # What is missing after a row is shown by one entry of zeros at least.
        assert [(start, len(rows)) for start, rows in pages] == [
            (0, 7), (40_000, 2), (1 << 40, 2)]
        assert [(start, len(rows))
                for start, rows in rocks_queues.queues["far", 0].pages(2, 4)] == [
                    (2, 1)]
