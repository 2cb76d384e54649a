"""The golden fixtures keep their promises."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.support import damage, snapshot
from tests.support import golden as golden_sets
from tests.support.snapshot import assert_unchanged


def test_every_archive_is_listed() -> None:
    ids = {golden_set.id for golden_set in golden_sets.all_sets()}
    assert {"4.9.3/basic", "5.3.3/timer", "5.3.3/crash-crc"} <= ids
    assert {store.set for store in golden_sets.golden_stores()} == set(golden_sets.all_sets())


@pytest.mark.parametrize("store", [pytest.param(golden_store, id=golden_store.id)
                                   for golden_store in golden_sets.golden_stores()])
def test_every_root_is_there(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    root = golden(store.id)
    assert all((root / name).is_dir() for name in store.commitlog_dirs)
    if store.expect:
        assert store.load_expect(golden(store.set.id)).loaded is store.is_loaded


def test_times_are_kept(golden: GoldenFolder) -> None:
    import tarfile

    root = golden("4.9.3/basic")
    with tarfile.open(golden_sets.FOLDER / "4.9.3/basic.tar.xz") as archive:
        for member in archive:
            assert int((root.parent / member.name).stat().st_mtime) == int(member.mtime)


def test_the_timer_wheel_is_in_its_place_and_sparse(golden: GoldenFolder) -> None:
    about = (golden("5.3.3/timer") / "store" / "timerwheel").stat()
    assert about.st_size == 7 * 86400 * 2 * 32
    assert about.st_blocks * 512 < about.st_size // 10


def test_a_changed_tree_is_noticed(tmp_path: Path) -> None:
    golden_set = golden_sets.GoldenSet("5.3.3", "transaction")
    folder = golden_sets.unpack(golden_set, tmp_path)
    assert golden_sets.verify(golden_set, tmp_path) == []
    damage.flip_bit(folder, "store/commitlog/00000000000000000000", 100, 3)
    assert golden_sets.verify(golden_set, tmp_path) == [
        "changed: store/commitlog/00000000000000000000 (content)"]
    os.utime(folder / "store" / "lock")
    assert len(golden_sets.verify(golden_set, tmp_path)) == 2


def test_a_copy_is_the_same_and_may_be_changed(golden: GoldenFolder,
                                               golden_copy: GoldenFolder) -> None:
    for name in ("4.9.3/transaction/store", "5.3.3/timer/store"):
        copy = golden_copy(name)
        before, after = snapshot.take(golden(name), inodes=False), snapshot.take(
            copy, inodes=False)
        assert before.differences(after) == []
        damage.remove(copy, "lock")
    assert golden_copy("4.9.3/transaction/store") != golden_copy("4.9.3/transaction/store")


def test_assert_unchanged_sees_every_change(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    file = root / "file"
    file.write_bytes(b"abc")

    def replaced() -> None:
        (root / "other").write_bytes(b"abc")
        os.utime(root / "other", ns=(0, file.stat().st_mtime_ns))
        (root / "other").replace(file)

    changes = [lambda: file.write_bytes(b"abd"), lambda: os.utime(file, (1, 1)),
               lambda: file.chmod(stat.S_IRUSR), (root / "new").touch, replaced]
    for change in changes:
        with pytest.raises(AssertionError, match="was changed"), assert_unchanged(root):
            change()
