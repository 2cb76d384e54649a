from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import InternalError, StoreIOError
from rmqctl.files import durable
from rmqctl.files.aside import save_file
from tests.engine_write.files_support import ERRORS, failing, short_writes, watched


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    yield fd, path
    os.close(fd)


@given(parts=st.lists(st.binary(max_size=40), min_size=1, max_size=20), at=st.integers(0, 50),
       limit=st.integers(1, 64), most=st.integers(1, 5))
def test_parts_lie_behind_each_other_whatever_the_system_takes(tmp_path_factory, parts, at,
                                                               limit, most):
    path = tmp_path_factory.mktemp("parts") / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        with short_writes(limit), mock.patch.object(durable, "IOV_MAX", most):
            assert durable.write_parts(fd, parts, at, str(path)) == len(b"".join(parts))
    finally:
        os.close(fd)
    joined = b"".join(parts)
    assert path.read_bytes() == (bytes(at) + joined if joined else b"")


def test_more_parts_than_one_call_takes(file):
    fd, path = file
    parts = [b"%05d" % n for n in range(durable.IOV_MAX * 2 + 3)]
    assert durable.write_parts(fd, parts, 0, str(path)) == len(parts) * 5
    assert path.read_bytes() == b"".join(parts)


def test_views_are_written_as_they_are(file):
    fd, path = file
    durable.write_parts(fd, [memoryview(b"abc")[1:], bytearray(b"d")], 0, str(path))
    assert path.read_bytes() == b"bcd"


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_failed_write_leaves_no_torn_bytes_behind(file, error, at):
    fd, path = file
    os.pwrite(fd, b"before" + bytes(94), 0)
    real, calls = os.pwrite, []

    def pwrite(fd, data, offset):
        calls.append(offset)
        if len(calls) == at:
            raise OSError(error, os.strerror(error))
        return real(fd, memoryview(data)[:10], offset)

    with mock.patch.object(os, "pwrite", pwrite), pytest.raises(StoreIOError) as caught:
        durable.write_parts(fd, [b"x" * 50], 6, str(path))
    assert str(path) in str(caught.value)
    assert "cannot write to" in str(caught.value)
    assert errno.errorcode[error] in str(caught.value)
    assert path.read_bytes() == b"before" + bytes(94)


def test_a_failure_in_a_later_chunk_takes_the_earlier_ones_back(file):
    fd, path = file
    with (mock.patch.object(durable, "IOV_MAX", 2),
          failing(2, errno.ENOSPC, ("pwritev",)), pytest.raises(StoreIOError)):
        durable.write_parts(fd, [b"aa", b"bb", b"cc", b"dd"], 0, str(path))
    assert path.read_bytes().strip(b"\0") == b""


def test_a_write_that_makes_no_progress_is_an_error(file):
    fd, path = file
    with mock.patch.object(os, "pwrite", return_value=0), pytest.raises(StoreIOError, match="EIO"):
        durable.write_all(fd, b"abc", 0, str(path))


@pytest.mark.parametrize(("call", "done"), [("fdatasync", False), ("fsync", True)])
@pytest.mark.parametrize("error", ERRORS)
def test_what_cannot_be_forced_is_named(file, call, done, error):
    fd, path = file
    with failing(1, error, (call,)) as faults, pytest.raises(StoreIOError) as caught:
        durable.sync(fd, str(path), whole=done)
    assert faults.fired == call
    assert f"cannot force to disk {path}" in str(caught.value)


def test_folders_are_made_and_each_name_is_forced(tmp_path):
    synced, real = [], durable.sync_folder
    with mock.patch.object(durable, "sync_folder", lambda path: (synced.append(path), real(path))):
        durable.make_folders(str(tmp_path / "a" / "b" / "c"))
        durable.make_folders(str(tmp_path / "a" / "b" / "c"))
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]


def test_a_file_in_the_way_of_a_folder(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(StoreIOError, match="cannot create the folder"):
        durable.make_folders(str(tmp_path / "a" / "b"))
    with pytest.raises(StoreIOError, match="cannot create the folder"):
        durable.make_folders(str(tmp_path / "a"))


@pytest.mark.parametrize("kind", ["folder", "fifo", "nothing", "nul"])
def test_only_regular_files_are_opened(tmp_path, kind):
    path = str(tmp_path / "x")
    if kind == "folder":
        os.mkdir(path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "nul":
        path += "\0"
    with pytest.raises(StoreIOError, match="cannot open"):
        durable.open_file(path, os.O_RDWR)


# -- publish -------------------------------------------------------------------------------------


def test_publish_makes_the_folder_and_leaves_nothing_staged(tmp_path):
    target = tmp_path / "config" / "topics.json"
    assert durable.publish(str(target), b"new", store=str(tmp_path)) is None
    assert target.read_bytes() == b"new"
    assert list((tmp_path / ".rmqctl").iterdir()) == []


def test_publish_keeps_mode_and_link(tmp_path):
    real = tmp_path / "elsewhere.json"
    real.write_bytes(b"old")
    real.chmod(0o600)
    link = tmp_path / "topics.json"
    link.symlink_to(real)
    durable.publish(str(link), b"new", store=str(tmp_path))
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert real.stat().st_mode & 0o777 == 0o600


def test_replaced_files_are_kept_when_asked_for(tmp_path):
    target = tmp_path / "config" / "topics.json"
    kept = [replaced(target, tmp_path, b"%d" % n) for n in range(4)]
    assert kept[0] is None
    assert [Path(text).read_bytes() for text in kept[1:]] == [b"0", b"1", b"2"]
    assert all(text.startswith(str(tmp_path / ".rmqctl" / "kept" / "config")) for text in kept[1:])
    assert target.read_bytes() == b"3"


def replaced(target: Path, store: Path, data: bytes) -> str | None:
    """Publishes a file, as `Topics` does where the old one could not be read."""
    kept = save_file(str(target), str(store))
    durable.publish(str(target), data, store=str(store))
    return kept


def test_kept_files_are_copied_where_there_are_no_links(tmp_path):
    target = tmp_path / "a.json"
    target.write_bytes(b"old")
    with failing(1, errno.EPERM, ("link",), for_ever=True):
        kept = [replaced(target, tmp_path, b"%d" % n) for n in range(2)]
    assert [Path(text).read_bytes() for text in kept] == [b"old", b"0"]


def test_publish_forces_each_step_before_the_next(tmp_path):
    target = tmp_path / "config" / "a.json"
    replaced(target, tmp_path, b"old")
    (tmp_path / ".rmqctl" / "kept" / "config").mkdir(parents=True)
    with watched() as seen:
        replaced(target, tmp_path, b"new")
    assert seen == ["link a.json", "fsync config", "pwrite a.json.new", "fsync a.json.new",
                    "rename a.json.new", "fsync config"]


@pytest.mark.parametrize("staging", ["commitlog", "consumequeue/T/0", "index/x", "commitlog/.t"])
def test_nothing_is_staged_where_a_broker_looks(tmp_path, staging):
    with pytest.raises(InternalError):
        durable.publish(str(tmp_path / "a"), b"", store=str(tmp_path),
                        staging=str(tmp_path / staging))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("keep", [False, True])
def test_publish_is_all_or_nothing_at_every_call(tmp_path, error, keep):
    for number in range(1, 40):
        store = tmp_path / str(number)
        store.mkdir()
        target = store / "config" / "topics.json"
        durable.publish(str(target), b"old", store=str(store))
        with failing(number, error) as faults:
            try:
                if keep:
                    replaced(target, store, b"new!")
                else:
                    durable.publish(str(target), b"new!", store=str(store))
                failed = False
            except StoreIOError as caught:
                failed = True
                assert str(store) in str(caught)
        assert target.read_bytes() in ((b"old", b"new!") if failed else (b"new!",))
        assert [path.name for path in target.parent.iterdir()] == ["topics.json"]
        if not faults.fired:
            assert number > 5
            return
        assert failed or faults.fired == "link", "link alone has another way"
    pytest.fail("never ran without a fault")


# -- files and folders outside of a store ----------------------------------------------------------


def test_a_file_is_replaced_whole(tmp_path):
    target = tmp_path / "rmqctl.prom"
    target.write_text("old\n")
    with watched() as seen:
        durable.replace_file(str(target), b"new\n")
    assert [step.split()[0] for step in seen] == ["pwrite", "fsync", "rename", "fsync"]
    assert all(step.endswith(".tmp") for step in seen[:3])
    assert seen[3] == f"fsync {tmp_path.name}"
    assert target.read_text() == "new\n"
    assert os.listdir(tmp_path) == ["rmqctl.prom"]


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename"])
def test_a_file_that_cannot_be_replaced_stays(tmp_path, call):
    target = tmp_path / "rmqctl.prom"
    target.write_text("old\n")
    with (failing(1, errno.ENOSPC, (call,)),
          pytest.raises(StoreIOError, match=r"cannot write .*rmqctl\.prom: no space left")):
        durable.replace_file(str(target), b"new", doing="write")
    assert target.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["rmqctl.prom"]


def test_a_file_needs_its_folder(tmp_path):
    with pytest.raises(StoreIOError, match="no such file or directory"):
        durable.replace_file(str(tmp_path / "missing" / "rmqctl.prom"), b"")


def test_a_link_is_replaced_outside_of_a_store(tmp_path):
    (tmp_path / "elsewhere").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    durable.replace_file(str(tmp_path / "link"), b"new", mode=0o600)
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "elsewhere").read_text() == "old"


def test_a_folder_is_published_where_nothing_is(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "out").mkdir()
    with watched() as seen:
        durable.publish_folder(str(tmp_path / "new"), str(tmp_path / "out"))
    assert seen == ["fsync new", "rename new", f"fsync {tmp_path.name}"]
    (tmp_path / "new").mkdir()
    (tmp_path / "out" / "file").touch()
    with pytest.raises(StoreIOError, match="cannot publish .*out: the directory is not") as no:
        durable.publish_folder(str(tmp_path / "new"), str(tmp_path / "out"))
    assert no.value.errno == errno.ENOTEMPTY


def test_things_are_moved_aside_and_never_onto_something(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    target = tmp_path / "x" / "y"
    durable.move(str(tmp_path / "a"), str(target))
    assert target.read_text() == "1"
    with pytest.raises(StoreIOError, match="already exists"):
        durable.move(str(tmp_path / "b"), str(target))
    assert target.read_text() == "1"
    assert (tmp_path / "b").read_text() == "2"
    with pytest.raises(StoreIOError, match="no such file"):
        durable.move(str(tmp_path / "a"), str(tmp_path / "z"))
