"""One log file in three ways of writing it."""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.engine.log import log_file
from rmqctl.engine.log.log_file import BufferPool
from rmqctl.engine.log.log_files import Maker, is_all_zero, place
from rmqctl.errors import InternalError, RefusedError, StoreIOError
from tests.engine_write.files_support import ERRORS, FILE_SIZE, failing, short_writes
from tests.support.golden import all_sets

WAYS = ["channel", "mapped", "warm", "pooled"]
MULTI_PATH = [golden_set for golden_set in all_sets() if golden_set.kind == "multipath"]


def maker(way: str, size: int = FILE_SIZE) -> Maker:
    return Maker(size, mapped=way in ("mapped", "warm"), warm=way == "warm",
                 pool=BufferPool(1, size) if way == "pooled" else None)


def new(way: str, folder: Path, size: int = FILE_SIZE):
    return maker(way, size).next(str(folder / f"{0:020d}"), 0)


appends = st.lists(st.lists(st.binary(min_size=1, max_size=700), min_size=1, max_size=6),
                   max_size=12)


@pytest.mark.long
@given(groups=appends, commits=st.sets(st.integers(0, 11)), position=st.integers(0, 100))
def test_all_ways_leave_the_same_bytes(tmp_path_factory, groups, commits, position):
    folder = tmp_path_factory.mktemp("ways")
    size, left = 40_000, {}
    for way in WAYS:
        path = folder / way
        old = b"old!" * 25
        path.write_bytes(old.ljust(size, b"\0"))
        with closing(maker(way, size).open(str(path), 3 * size, position)) as file:
            for number, parts in enumerate(groups):
                file.append(parts)
                if number in commits:
                    file.sync()
                    assert file.synced == file.committed == file.wrote
            file.declare_full()
            file.sync()
            assert (file.synced, file.wrote, file.base) == (size, size, 3 * size)
        left[way] = path.read_bytes()
    joined = b"".join(part for parts in groups for part in parts)
    expected = (old[:position] + joined + old[position + len(joined):]).ljust(size, b"\0")
    assert left == dict.fromkeys(WAYS, expected)


@pytest.mark.parametrize("way", WAYS)
def test_a_new_file_has_its_length_at_once_and_is_empty(tmp_path, way):
    tmp_path.chmod(0o755)  # a file is no more open than its folder
    with closing(new(way, tmp_path / "a" / "b")) as file:
        assert os.stat(file.path).st_size == FILE_SIZE
        assert is_all_zero(file.path)
        blocks = os.stat(file.path).st_blocks * 512
        assert blocks == 0 if way in ("channel", "pooled") else blocks >= FILE_SIZE
        assert (file.wrote, file.committed, file.synced, file.full) == (0, 0, 0, False)
        assert os.stat(file.path).st_mode & 0o777 == 0o644
        assert os.listdir(tmp_path / "a" / "b") == [f"{0:020d}"]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_goes_anywhere_but_behind_the_last_byte(tmp_path, way):
    with closing(new(way, tmp_path)) as file:
        file.append([b"abc", b"def"])
        for parts in ([bytes(FILE_SIZE - 5)], [b"x", bytes(FILE_SIZE)]):
            with pytest.raises(InternalError):
                file.append(parts)
        assert file.wrote == 6
        file.append([bytes(FILE_SIZE - 6)])
        assert file.full
        with pytest.raises(InternalError):
            file.append([b"x"])
        file.commit()
    assert Path(file.path).read_bytes().rstrip(b"\0") == b"abcdef"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", ERRORS)
def test_a_file_that_cannot_be_made_leaves_nothing(tmp_path, way, error):
    for number in range(1, 12):
        folder = tmp_path / str(number)
        with failing(number, error) as faults:
            try:
                new(way, folder).close()
                failed = False
            except StoreIOError as caught:
                failed = True
                assert str(tmp_path) in str(caught)
        if not faults.fired:
            assert number > 4
            return
        assert failed or (folder / f"{0:020d}").stat().st_size == FILE_SIZE
        if failed and folder.exists():
            assert os.listdir(folder) == []
    pytest.fail("never ran without a fault")


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("missing", ["unnamed", "naming"])
def test_file_systems_that_know_less(tmp_path, error, missing):
    """Without files that have no name (NFS, say), or without /proc, a file is made by name."""
    name = {"unnamed": "open", "naming": "link"}[missing]
    real = getattr(os, name)

    def call(path, *args, **kwargs):
        if name == "link" or args[0] & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "")
        return real(path, *args, **kwargs)

    with mock.patch.object(os, name, call):
        for way in WAYS:
            with closing(new(way, tmp_path / way)) as file:
                assert os.stat(file.path).st_size == FILE_SIZE
        folder = tmp_path / "failing"
        folder.mkdir()
        with failing(1, error, ("ftruncate",), for_ever=True), pytest.raises(StoreIOError):
            new("channel", folder)
        assert os.listdir(folder) == []


def test_space_for_a_mapping_is_reserved_before_anything_is_touched(tmp_path):
    with (failing(1, errno.ENOSPC, ("posix_fallocate",)), pytest.raises(StoreIOError) as caught,
          mock.patch.object(mmap, "mmap", side_effect=AssertionError)):
        new("mapped", tmp_path)
    assert "cannot reserve 8192 bytes for" in str(caught.value)
    path = tmp_path / "old"
    path.write_bytes(b"x" * FILE_SIZE)
    with failing(1, errno.ENOSPC, ("posix_fallocate",)), pytest.raises(StoreIOError):
        maker("mapped").open(str(path), 0, 5)
    assert path.read_bytes() == b"x" * FILE_SIZE


def test_a_mapping_the_system_refuses(tmp_path):
    with (mock.patch.object(mmap, "mmap", side_effect=OSError(errno.ENOMEM, "")),
          pytest.raises(StoreIOError, match="cannot map")):
        new("mapped", tmp_path)


@pytest.mark.parametrize("way", ["channel", "pooled"])
@pytest.mark.parametrize("error", ERRORS)
def test_a_failed_append_or_commit_can_be_repeated(tmp_path, way, error):
    with closing(new(way, tmp_path)) as file:
        file.append([b"first"])
        file.commit()
        if way == "pooled":
            file.append([b"se", b"cond"])
        with failing(1, error, ("pwrite", "pwritev")), pytest.raises(StoreIOError) as caught:
            file.commit() if way == "pooled" else file.append([b"se", b"cond"])
        assert file.path in str(caught.value)
        assert file.committed == 5
        if way == "channel":
            assert file.wrote == 5
            file.append([b"second"])
        file.sync()
        assert file.synced == 11
    assert Path(file.path).read_bytes().rstrip(b"\0") == b"firstsecond"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", ERRORS)
def test_after_a_failed_sync_there_is_no_other(tmp_path, way, error):
    with closing(new(way, tmp_path)) as file:
        file.append([b"x"])
        with failing(1, error, ("fsync", "fdatasync")), pytest.raises(StoreIOError):
            file.sync()
        with failing(99, error) as faults:
            for _ in range(2):
                with pytest.raises(StoreIOError, match="force to disk"):
                    file.sync()
        assert not {"fsync", "fdatasync"}.intersection(faults.calls)
        assert file.synced == 0


@pytest.mark.parametrize("way", WAYS)
def test_the_first_sync_makes_the_name_last_too(tmp_path, way):
    with closing(new(way, tmp_path)) as file:
        file.append([b"x"])
        with failing(99, 0) as faults:
            file.sync()
            file.append([b"x"])
            file.sync()
    assert [call for call in faults.calls if "sync" in call] == ["fsync", "fsync", "fdatasync"]


@pytest.mark.parametrize("way", WAYS)
def test_what_comes_while_a_sync_is_under_way_is_not_counted(tmp_path, way):
    with closing(new(way, tmp_path)) as file:
        file.append([b"x"])
        real = os.fsync

        def slow(fd):
            if file.wrote == 1:
                file.append([b"y"])
                file.commit()
            return real(fd)

        with mock.patch.object(os, "fsync", slow):
            file.sync()
        assert (file.synced, file.committed) == (1, 2)
        file.sync()
        assert file.synced == 2


def test_commits_take_what_the_system_takes(tmp_path):
    with closing(new("pooled", tmp_path)) as file, short_writes(7) as seen:
        file.append([b"0123456789"])
        file.commit()
        file.append([b"abcdef"])
        assert (file.committed, file.wrote) == (10, 16)
        file.commit()
    assert seen == [7, 3, 6]
    assert Path(file.path).read_bytes().rstrip(b"\0") == b"0123456789abcdef"


def test_closing_without_a_commit_loses_what_the_buffer_held(tmp_path):
    with closing(new("pooled", tmp_path)) as file:
        file.append([b"gone"])
    assert is_all_zero(file.path)


def test_a_full_file_gives_its_buffer_back_as_it_is(tmp_path):
    pool = BufferPool(1, FILE_SIZE)
    maker = Maker(FILE_SIZE, pool=pool)
    first = maker.next(str(tmp_path / "a"), 0)
    second = maker.next(str(tmp_path / "b"), FILE_SIZE)
    assert pool.free == 1
    first.append([b"A" * 100])
    with pytest.raises(InternalError, match="in use"):
        second.append([b"B"])
    first.declare_full()
    assert pool.free == 0
    first.commit()
    assert pool.free == 1
    second.append([b"B" * 10])
    second.declare_full()
    second.commit()
    assert Path(second.path).read_bytes() == b"B" * 10 + bytes(FILE_SIZE - 10)
    first.close()
    second.close()
    pool.close()


def test_a_pool_without_memory(tmp_path):
    with (mock.patch.object(mmap, "mmap", side_effect=OSError(errno.ENOMEM, "")),
          pytest.raises(StoreIOError, match="out of memory")):
        BufferPool(1, 4096).take()


@pytest.mark.parametrize("allowed", [True, False])
def test_warming_changes_nothing_and_may_not_be_allowed(tmp_path, allowed):
    path = tmp_path / "old"
    content = os.urandom(FILE_SIZE)
    path.write_bytes(content)
    calls = []

    def lock(name, pages):
        calls.append((name, len(pages)))
        return allowed

    with mock.patch.object(log_file, "_lock_pages", lock):
        file = maker("warm").open(str(path), 0, 100)
        assert file.locked == allowed
        file.sync()
        file.close()
        file.close()
    assert calls == [("mlock", FILE_SIZE), ("munlock", FILE_SIZE)][:1 + allowed]
    assert path.read_bytes() == content


def test_pages_are_really_locked(tmp_path):
    def locked() -> int:
        return next(int(line.split()[1]) for line in Path("/proc/self/status").open()
                    if line.startswith("VmLck"))

    before = locked()
    file = new("warm", tmp_path)
    assert locked() - before == (FILE_SIZE // 1024 if file.locked else 0)
    file.close()
    assert locked() == before


# -- opening ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_file_of_another_length_is_refused(tmp_path, way):
    path = tmp_path / "x"
    for size in (0, FILE_SIZE - 1, FILE_SIZE + 1):
        path.write_bytes(bytes(size))
        with pytest.raises(RefusedError, match=f"has {size} bytes, not"):
            maker(way).open(str(path), 0, 0)
        assert path.stat().st_size == size


@pytest.mark.parametrize("way", WAYS)
def test_a_file_laid_out_earlier_is_used_when_it_holds_nothing(tmp_path, way):
    path = tmp_path / "x"
    for size in (0, 100, FILE_SIZE):
        path.write_bytes(bytes(size))
        maker(way).next(str(path), 0).close()
        assert path.read_bytes() == bytes(FILE_SIZE)
    path.write_bytes(bytes(FILE_SIZE + 1))
    with pytest.raises(RefusedError, match="has more than"):
        maker(way).next(str(path), 0)
    path.write_bytes(bytes(FILE_SIZE - 1) + b"x")
    with pytest.raises(RefusedError, match="contains data"):
        maker(way).next(str(path), 0)
    assert path.read_bytes() == bytes(FILE_SIZE - 1) + b"x"


@given(size=st.integers(0, 3 << 20), at=st.none() | st.integers(0, 3 << 20))
def test_zeros_are_distinguished_from_data(tmp_path_factory, size, at):
    path = tmp_path_factory.mktemp("zeros") / "x"
    with path.open("wb") as file:
        file.truncate(size)
        if at is not None and at < size:
            file.seek(at)
            file.write(b"\1")
    assert is_all_zero(str(path)) == (at is None or at >= size)


# -- placement -------------------------------------------------------------------------------------


def test_places_are_a_brokers(golden):
    assert MULTI_PATH
    for golden_set in MULTI_PATH:
        store = golden(f"{golden_set.id}/store")
        folders_by_number = {int(file.name): folder for folder in ("cl1", "cl2")
                             for file in (store / folder).iterdir()}
        size = next((store / "cl1").iterdir()).stat().st_size
        assert len(folders_by_number) > 4
        for order in (["cl1", "cl2"], ["cl2", "cl1"]):
            assert {base: place(order, base, size)
                    for base in folders_by_number} == folders_by_number


def test_full_folders():
    folders = ["c", "a", "b"]
    assert [place(folders, n * 10, 10) for n in range(4)] == ["a", "b", "c", "a"]
    assert [place(folders, n * 10, 10, full={"b"}) for n in range(4)] == ["a", "c", "a", "c"]
    assert [place(folders, n * 10, 10, full={*folders}) for n in range(2)] == ["a", "b"]
