"""The abort file, the checkpoint, how full a disk is."""

from __future__ import annotations

import os
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.engine import small_files
from rmqctl.engine.small_files import CheckpointFile
from rmqctl.errors import StoreIOError
from rmqctl.files import disk_usage
from rmqctl.formats.local import checkpoint as page
from rmqctl.formats.local.checkpoint import CheckpointRecord
from tests.engine_write.files_support import ERRORS, failing, watched


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# -- abort -----------------------------------------------------------------------------------------


def test_abort_of_4x(tmp_path):
    small_files.create_abort(str(tmp_path), None)
    assert content(tmp_path) == {"abort": b""}
    small_files.remove_abort(str(tmp_path))
    assert content(tmp_path) == {}


def test_abort_of_5x_as_in_the_golden_stores(tmp_path, golden):
    small_files.create_abort(str(tmp_path), 12345)
    assert content(tmp_path) == {"abort": b"12345", "abort.bak": b""}
    small_files.create_abort(str(tmp_path), 7)  # the run before crashed
    assert content(tmp_path) == {"abort": b"7", "abort.bak": b"12345"}
    small_files.remove_abort(str(tmp_path))
    small_files.remove_abort(str(tmp_path))
    assert content(tmp_path) == {"abort.bak": b"12345"}
    assert (golden("5.3.3/basic/store") / "abort.bak").read_bytes() == b""
    crashed = golden("5.3.3/crash-cqlag")
    assert ((crashed / "after" / "abort.bak").read_bytes()
            == (crashed / "before" / "abort").read_bytes())


def test_abort_of_4x_leaves_what_a_5x_broker_wrote(tmp_path):
    (tmp_path / "abort").write_bytes(b"99")
    small_files.create_abort(str(tmp_path), None)
    assert content(tmp_path) == {"abort": b"99"}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("old", [None, b"99"])
def test_abort_at_every_call(tmp_path, error, old):
    for number in range(1, 30):
        root = tmp_path / str(number)
        root.mkdir()
        if old is not None:
            (root / "abort").write_bytes(old)
        with failing(number, error) as faults:
            try:
                small_files.create_abort(str(root), 1234)
                failed = False
            except StoreIOError as caught:
                failed = True
                assert str(root) in str(caught)
        assert failed == bool(faults.fired)
        # A store that was clean stays clean, one that was not stays so.
        assert (root / "abort").exists() == (old is not None or not failed)
        if not faults.fired:
            assert number > 8
            return
    pytest.fail("never ran without a fault")


def test_abort_is_made_and_removed_for_good(tmp_path):
    with watched() as seen:
        small_files.create_abort(str(tmp_path), 5)
    assert seen == ["fsync abort.bak", "pwrite abort", "fsync abort", f"fsync {tmp_path.name}"]
    with watched() as seen:
        small_files.remove_abort(str(tmp_path))
        small_files.remove_abort(str(tmp_path))
    assert seen == ["unlink abort", f"fsync {tmp_path.name}", "unlink abort"]


def test_abort_that_cannot_be_removed(tmp_path):
    small_files.create_abort(str(tmp_path), None)
    with failing(1, ERRORS[0], ("unlink",)), pytest.raises(StoreIOError, match="cannot remove"):
        small_files.remove_abort(str(tmp_path))
    (tmp_path / "abort").unlink()
    (tmp_path / "abort").mkdir()
    with pytest.raises(StoreIOError):
        small_files.create_abort(str(tmp_path), 1)


# -- checkpoint ------------------------------------------------------------------------------------

FULL = CheckpointRecord(10, 20, 30, 40, 50)
times = st.integers(0, (1 << 63) - 1)


@pytest.mark.parametrize("generation", [4, 5])
def test_a_missing_checkpoint_is_zeros_and_made_by_the_flush(tmp_path, generation):
    checkpoint_file = CheckpointFile(tmp_path, generation)
    assert checkpoint_file.record == CheckpointRecord(0, 0, 0)
    assert content(tmp_path) == {}
    checkpoint_file.advance(physic=5, logics=6)
    checkpoint_file.flush()
    assert content(tmp_path) == {"checkpoint": page.build(CheckpointRecord(5, 6, 0))}


@given(steps=st.lists(st.tuples(times, times, times), min_size=1, max_size=5))
def test_times_only_move_forward(tmp_path_factory, steps):
    root = tmp_path_factory.mktemp("checkpoint")
    (root / "checkpoint").write_bytes(page.build(FULL))
    checkpoint_file = CheckpointFile(root, 5)
    for physic, logics, index in steps:
        checkpoint_file.advance(physic=physic, logics=logics, index=index)
    checkpoint_file.flush()
    again = CheckpointFile(root, 5).record
    assert again[:3] == tuple(max(old, *(step[n] for step in steps))
                              for n, old in enumerate(FULL[:3]))
    assert again[3:] == FULL[3:]


def test_bytes_behind_the_known_fields_stay(tmp_path):
    data = page.build(FULL)[:-7] + b"behind!" + b"longer"
    (tmp_path / "checkpoint").write_bytes(data)
    four = CheckpointFile(tmp_path, 4)
    four.advance(physic=11)
    four.flush()
    assert (tmp_path / "checkpoint").read_bytes() == (
        page.build(FULL._replace(physic_msg_timestamp=11))[:-7] + b"behind!longer")
    five = CheckpointFile(tmp_path, 5)
    five.advance(logics=25)
    five.flush()
    assert (tmp_path / "checkpoint").read_bytes() == (
        page.build(CheckpointRecord(11, 25, 30, 40, 50))[:-7] + b"behind!longer")


@pytest.mark.parametrize("length", [0, 7, 24, 30, 100])
def test_a_short_checkpoint_is_filled_up(tmp_path, length):
    (tmp_path / "checkpoint").write_bytes(page.build(FULL)[:length])
    checkpoint_file = CheckpointFile(tmp_path, 5)
    expected = page.parse(page.build(FULL)[:length].ljust(4096, b"\0"))
    assert checkpoint_file.record == expected
    checkpoint_file.flush()
    assert (tmp_path / "checkpoint").read_bytes() == page.build(expected)


def test_a_checkpoint_is_forced_and_a_new_ones_name_too(tmp_path):
    checkpoint_file = CheckpointFile(tmp_path, 5)
    with watched() as seen:
        checkpoint_file.flush()
        checkpoint_file.flush()
    assert seen == ["pwrite checkpoint", "fsync checkpoint", f"fsync {tmp_path.name}",
                    "pwrite checkpoint", "fsync checkpoint"]


def test_a_checkpoint_nobody_can_read(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(StoreIOError, match="checkpoint"):
        CheckpointFile(tmp_path, 5)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("old", [None, page.build(FULL)])
def test_checkpoint_at_every_call(tmp_path, error, old):
    for number in range(1, 20):
        root = tmp_path / str(number)
        root.mkdir()
        if old is not None:
            (root / "checkpoint").write_bytes(old)
        checkpoint_file = CheckpointFile(root, 5)
        checkpoint_file.advance(physic=99)
        with failing(number, error) as faults:
            try:
                checkpoint_file.flush()
                failed = False
            except StoreIOError as caught:
                failed = True
                assert str(root) in str(caught)
        assert failed == bool(faults.fired)
        assert CheckpointFile(root, 5).record[1:] == (FULL[1:] if old else (0, 0, 0, 0))
        checkpoint_file.flush()
        assert CheckpointFile(root, 5).record.physic_msg_timestamp == 99
        if not faults.fired:
            assert number >= 4
            return
    pytest.fail("never ran without a fault")


# -- disk ------------------------------------------------------------------------------------------


def statvfs(total, free, available):
    return mock.Mock(f_blocks=total, f_bfree=free, f_bavail=available)


@pytest.mark.parametrize(("total", "free", "available", "ratio"), [
    (1000, 1000, 1000, 0.0), (1000, 0, 0, 1.0), (1000, 500, 500, 0.5), (1000, 499, 499, 0.51),
    (1000, 100, 50, 0.95), (0, 0, 0, 0.0), (100, 100, 0, 0.0), (10**9, 10**9 - 1, 10**9 - 1, 0.01),
])
def test_used_ratio_is_a_brokers(tmp_path, total, free, available, ratio):
    with mock.patch.object(os, "statvfs", return_value=statvfs(total, free, available)):
        assert disk_usage.used_ratio(str(tmp_path)) == ratio


def test_the_least_full_folder_decides(tmp_path):
    sizes = {str(tmp_path / "a"): statvfs(100, 5, 5), str(tmp_path / "b"): statvfs(100, 20, 20)}
    with mock.patch.object(os, "statvfs", sizes.__getitem__):
        assert not disk_usage.over_watermark(sizes, 0.90)
        assert not disk_usage.over_watermark(sizes, 0.80)
        assert disk_usage.over_watermark(sizes, 0.79)
        assert disk_usage.over_watermark([str(tmp_path / "a")], 0.90)
        assert not disk_usage.over_watermark(sizes, 1)
        assert not disk_usage.over_watermark([], 0.0)
        assert disk_usage.full_folders(sizes, 0.85) == {str(tmp_path / "a")}


def test_a_folder_that_is_not_there_yet(tmp_path):
    nowhere = tmp_path / "no" / "such"
    assert disk_usage.used_ratio(str(nowhere)) == disk_usage.used_ratio(str(tmp_path))


def test_a_file_system_that_does_not_answer(tmp_path):
    with (mock.patch.object(os, "statvfs", side_effect=OSError(5, "EIO")),
          pytest.raises(StoreIOError, match="free space")):
        disk_usage.over_watermark([str(tmp_path)], 0.9)
    with mock.patch.object(os, "statvfs", side_effect=OSError(5, "EIO")):
        assert disk_usage.full_folders([str(tmp_path)], 0.1) == frozenset()
