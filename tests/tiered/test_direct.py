"""Blocks past the page cache: the same bytes, the same errors, and the usual way where it fails."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import time

import pytest

from rmqctl.errors import StoreIOError
from rmqctl.ext.tiered.files import writer
from rmqctl.ext.tiered.files.writer import PosixWriter
from rmqctl.files import odirect

PATH = "cluster/b/T/0/COMMIT_LOG/file"
SIZES = (1, 4095, 4096, 4097, odirect.FROM - 1, odirect.FROM, odirect.FROM + odirect.BLOCK - 1,
         3 * odirect.FROM + 17, (4 << 20) + 3 * 4096, (9 << 20) + 5)


@pytest.fixture
def feeder(tmp_path):
    with PosixWriter(str(tmp_path)) as opened:
        yield opened


@pytest.fixture
def flagged(monkeypatch):
    """How many of the writes went past the page cache."""
    seen = []
    pwrite = os.pwrite

    def watching(fd, data, position):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & odirect._FLAG:
            assert position % odirect.BLOCK == 0
            assert len(data) % odirect.BLOCK == 0
            seen.append(len(data))
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", watching)
    return seen


def content(feeder):
    return feeder.read(PATH, 0, feeder.size(PATH))


def test_any_sizes_one_behind_the_other(feeder, flagged, seed):
    chance, whole = random.Random(seed), b""
    for size in [*SIZES, *chance.choices(SIZES, k=8)]:
        block = chance.randbytes(size)
        assert feeder.append(PATH, [memoryview(block)], len(whole)) == size
        whole += block
        if chance.random() < 0.3:
            feeder.commit(PATH)
        assert feeder.size(PATH) == len(whole)
    feeder.commit(PATH)
    assert content(feeder) == whole
    if feeder._direct._refused:
        pytest.skip("the file system of the test cannot write past the page cache")
    assert sum(flagged) > len(whole) // 2
    fd = feeder._writing[PATH]
    assert not fcntl.fcntl(fd, fcntl.F_GETFL) & odirect._FLAG  # an ordinary write comes next


@pytest.mark.parametrize("number", range(3))
def test_what_could_not_be_written_whole_is_taken_back(feeder, monkeypatch, number):
    first = b"a" * 5000
    feeder.append(PATH, [first], 0)
    pwrite, calls = os.pwrite, []

    def full(fd, data, position):
        calls.append(position)
        if len(calls) > number:
            raise OSError(errno.ENOSPC, "full")
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreIOError, match="ENOSPC"):
        feeder.append(PATH, [b"b" * (9 << 20)], len(first))
    monkeypatch.undo()
    assert content(feeder) == first
    feeder.append(PATH, [b"c" * (1 << 20)], len(first))
    assert content(feeder) == first + b"c" * (1 << 20)


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_cannot(feeder, monkeypatch, error):
    pwrite = os.pwrite

    def refusing(fd, data, position):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & odirect._FLAG:
            raise OSError(error, "no")
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", refusing)
    blocks = [random.Random(1).randbytes(size) for size in ((1 << 20) + 9, 6 << 20)]
    feeder.append(PATH, [blocks[0]], 0)
    feeder.append(PATH, [blocks[1]], len(blocks[0]))
    assert content(feeder) == b"".join(blocks)


def test_writes_that_are_cut_short(feeder, monkeypatch, seed):
    pwrite, chance = os.pwrite, random.Random(seed)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(
        fd, data[:max(1, chance.randrange(len(data)))], position))
    block = chance.randbytes(5 << 20)
    feeder.append(PATH, [block], 0)
    assert content(feeder) == block


def test_a_file_that_cannot_be_forced_to_disk_leaves_the_others_whole(feeder, monkeypatch):
    """The error comes when no thread looks at any of the files any more."""
    paths = [f"c/b/T/{number}/COMMIT_LOG/file" for number in range(9)]
    for path in paths:
        feeder.append(path, [b"data"], 0)
    seen = []

    def sync(fd, where, **_):
        if where.endswith("T/0/COMMIT_LOG/file"):
            raise StoreIOError("boom")
        time.sleep(0.05)
        os.fstat(fd)
        seen.append(where)

    monkeypatch.setattr(writer.durable, "sync", sync)
    with pytest.raises(StoreIOError, match="boom"):
        feeder.commit_later(paths)()
    assert len(seen) == 6  # of the three others of its thread's share two are not tried
