"""A RocksDB data base is opened without a change to it, and what is damaged in it is said."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rmqctl.errors import FormatError, MissingExtraError, StoreIOError
from rmqctl.store.rocksdb.database import Database
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
        with pytest.raises(FormatError, match="column family default: .*checksum") as found:
            list(opened.items("default"))
        assert str(database) in str(found.value)
        assert tempfile.gettempdir() not in str(found.value)


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
    with pytest.raises(FormatError, match="a record of kind 5") as found:
        Database.open(str(database))
    assert found.value.offset == 366


def test_a_record_of_such_a_kind_ends_a_write_ahead_log(database: Path) -> None:
    changed(database / "000008.log", 400, 4)
    with Database.open(str(database)) as opened:
        assert "a record of kind 5" in opened.damage[0]
        assert len(list(opened.items("default"))) == 10


def test_a_manifest_that_ends_early_is_said(database: Path) -> None:
    manifest = database / "MANIFEST-000005"
    os.truncate(manifest, manifest.stat().st_size - 5)
    with Database.open(str(database)) as opened:
        assert "ends within a record" in opened.damage[0]


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
