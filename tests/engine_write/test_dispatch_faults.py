"""Every system call that changes something fails once: what is said, and what is left."""

from __future__ import annotations

import os

import pytest

from rmqctl.engine.dispatch.queue_files import FilePool, QueueFiles
from rmqctl.errors import StoreIOError
from rmqctl.files.aside import AsideFolder
from tests.engine_write import faults
from tests.engine_write.dispatching import (
    assert_same,
    bit_maps,
    derived,
    dispatcher,
    feed,
    pieces,
)
from tests.support import replay
from tests.support.share import every


@pytest.mark.parametrize("error", [faults.out_of_space, faults.broken])
@pytest.mark.parametrize("kind", ["batchcq", "cqext", "lmq"])
def test_any_call_may_fail(kind, error, golden, tmp_path):
    """The error names a file, and dispatching again on what is left gives the engine's bytes."""
    folder = golden(f"5.3.3/{kind}")
    settings = replay.settings_of(folder, "5.3.3")
    maps = bit_maps(folder / "store")
    some = list(pieces(folder / "store", kind, 40))

    def run(root, fail_at):
        new_dispatcher = dispatcher(root, settings)
        with faults.failing(fail_at, error) as counter:
            try:
                feed(new_dispatcher, some, maps)
                new_dispatcher.flush()
            finally:
                new_dispatcher.close()
        return counter.calls

    (tmp_path / "all").mkdir()
    calls = run(tmp_path / "all", None)
    assert calls > 100
    for fail_at in every(1 + calls // 16, range(calls), f"{kind} {error.__name__}"):
        root = tmp_path / str(fail_at)
        root.mkdir()
        with pytest.raises(StoreIOError) as failed:
            run(root, fail_at)
        text = str(failed.value)
        assert text.startswith("cannot ")
        assert str(root) in text
        assert ("ENOSPC" if error is faults.out_of_space else "EIO") in text
        run(root, None)
        assert_same(root, folder / "store")


@pytest.mark.parametrize("kind", ["batchcq", "lmq"])
@pytest.mark.parametrize("fail_at", range(0, 100, 9))
def test_the_same_dispatcher_may_be_asked_again(kind, fail_at, golden, tmp_path):
    folder = golden(f"5.3.3/{kind}")
    new_dispatcher = dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    left, failures = fail_at, 0
    for data, base, _ in pieces(folder / "store", kind, 40):
        with faults.failing(left) as counter:
            try:
                new_dispatcher.dispatch(data, base)
            except StoreIOError:
                failures += 1
        left -= counter.calls
        if counter.failed:
            new_dispatcher.dispatch(data, base)
    assert failures == 1
    new_dispatcher.close()
    assert_same(tmp_path, folder / "store")


def test_after_an_error_closing_writes_nothing_more(golden, tmp_path):
    folder = golden("5.3.3/basic")
    new_dispatcher = dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    first, second, *_ = pieces(folder / "store", "basic", 40)
    new_dispatcher.dispatch(*first[:2])
    with faults.failing(0), pytest.raises(StoreIOError):
        new_dispatcher.dispatch(*second[:2])
    before = derived(tmp_path)
    new_dispatcher.close()
    assert derived(tmp_path) == before
    (index,) = (tmp_path / "index").iterdir()
    assert not any(index.read_bytes()[:40])


def test_a_failed_fsync_is_not_forgotten(golden, tmp_path):
    folder = golden("5.3.3/basic")
    new_dispatcher = dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    feed(new_dispatcher, list(pieces(folder / "store", "basic", 1000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(faults.broken()))
        with pytest.raises(StoreIOError, match="cannot force to disk .*EIO"):
            new_dispatcher.flush()
    with pytest.raises(StoreIOError, match="force to disk"):
        new_dispatcher.flush()
    new_dispatcher.close()


def test_a_write_that_fails_half_way_leaves_no_half_unit(tmp_path, monkeypatch):
    pool = FilePool(AsideFolder(str(tmp_path)))
    files = QueueFiles(str(tmp_path / "q"), 100, pool)
    files.append(b"a" * 20)
    real, sizes = os.pwrite, iter([7, 6])

    def half(fd, data, at):
        size = next(sizes, None)
        if size is None:
            raise faults.out_of_space()
        return real(fd, bytes(data)[:size], at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        with pytest.raises(StoreIOError, match="cannot write to .*q/0+: .*ENOSPC"):
            files.append(b"b" * 20)
    assert files.position == 20
    (file,) = (tmp_path / "q").iterdir()
    # The zeros could not be written in this test either: only what was put there is.
    assert file.read_bytes()[:33] == b"a" * 20 + b"b" * 13
    calls = iter([7])

    def once(fd, data, at):
        size = next(calls, None)
        if size is not None:
            return real(fd, bytes(data)[:size], at)
        if any(bytes(data)):
            raise faults.out_of_space()
        return real(fd, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", once)
        with pytest.raises(StoreIOError):
            files.append(b"c" * 20)
    assert file.read_bytes()[20:27] == bytes(7)
    pool.close()


def test_short_writes_are_gone_on_with(tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:3], at))
    pool = FilePool(AsideFolder(str(tmp_path)))
    files = QueueFiles(str(tmp_path / "q"), 40, pool)
    files.append(bytes(range(100)))
    pool.close()
    data = b"".join(path.read_bytes() for path in sorted((tmp_path / "q").iterdir()))
    assert data == bytes(range(100)) + bytes(20)


def test_no_empty_file_stays_when_it_cannot_be_sized(tmp_path, monkeypatch):
    def refuse(fd, size):
        raise faults.out_of_space()

    monkeypatch.setattr(os, "ftruncate", refuse)
    pool = FilePool(AsideFolder(str(tmp_path)))
    with pytest.raises(StoreIOError, match="cannot reserve space for 40 bytes in .*q/0+: no space"):
        QueueFiles(str(tmp_path / "q"), 40, pool).start(0)
    assert list((tmp_path / "q").iterdir()) == []


def test_new_files_and_folders_are_fsynced_once(tmp_path, monkeypatch):
    pool = FilePool(AsideFolder(str(tmp_path)), 1)
    for name in ("a/x", "a/y", "b/x"):
        QueueFiles(str(tmp_path / "top" / name), 40, pool).append(b"q" * 60)
    top = tmp_path / "top"
    wanted = {str(path) for path in [tmp_path, *top.rglob("*"), top]}
    assert set(pool.dirty) == wanted
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (
        synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    pool.flush()
    assert sorted(synced) == sorted(wanted)
    pool.flush()
    assert len(synced) == len(wanted)
    pool.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_queue_that_cannot_be_listed(golden, tmp_path):
    folder = golden("5.3.3/basic")
    (tmp_path / "consumequeue").mkdir(mode=0)
    with pytest.raises(StoreIOError, match="cannot list .*permission denied"):
        dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    (tmp_path / "consumequeue").chmod(0o700)  # or nobody could remove it


def test_a_file_where_a_folder_should_be(golden, tmp_path):
    folder = golden("5.3.3/basic")
    (tmp_path / "consumequeue").write_bytes(b"")
    with pytest.raises(StoreIOError, match="consumequeue"):
        dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    (tmp_path / "consumequeue").unlink()
    new_dispatcher = dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    (tmp_path / "index").write_bytes(b"")
    with pytest.raises(StoreIOError, match="cannot create the folder .*index: already exists"):
        feed(new_dispatcher, list(pieces(folder / "store", "basic", 1000)))
    new_dispatcher.close()
