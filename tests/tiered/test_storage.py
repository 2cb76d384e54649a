"""Storage of a tier: a folder, memory:// and file:// behave alike, against a model of bytes."""

from __future__ import annotations

import errno
import itertools
import os
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.errors import NotAStoreError, RefusedError, StoreIOError, UsageError
from rmqctl.ext.tiered.files import remote_writer
from rmqctl.ext.tiered.files.opening import open_reader, open_writer
from rmqctl.ext.tiered.files.reader import ASIDE, PosixReader, TierReader, close_source
from rmqctl.ext.tiered.files.writer import PosixWriter, TierWriter
from rmqctl.files.remote import reader as remote_reader
from rmqctl.scan.source import Source
from tests.support.share import examples

_numbers = itertools.count()
KINDS = ("folder", "memory", "file", "rewriting")


@pytest.fixture(scope="module", params=KINDS)
def roots(request, tmp_path_factory):
    """A function that gives a fresh root of one kind at each call."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "rewriting":  # as if the driver could not append
            patch.setattr(remote_writer, "APPENDING", frozenset())

        def fresh() -> str:
            number = next(_numbers)
            if request.param in ("memory", "rewriting"):
                return f"memory://test-storage-{os.getpid()}-{number}/tier"
            folder = tmp_path_factory.mktemp(f"root{number}")
            return str(folder) if request.param == "folder" else f"file://{folder}"

        yield fresh


def test_what_is_there(roots):
    with closing(open_writer(roots())) as writer:
        assert isinstance(writer, TierWriter)
        assert isinstance(writer, TierReader)
        assert writer.list("") == []
        assert writer.list("a/b") == []
        assert writer.size("a/b/c") is None
        writer.create("a/b/c")
        writer.create("a/b/c")
        writer.create("a/d")
        assert writer.size("a/b/c") == 0
        assert [(char.name, char.is_folder) for char in writer.list("a")] == [
            ("b", True), ("d", False)]
        assert writer.append("a/d", [b"123", bytearray(b"45"), memoryview(b"6")], 0) == 6
        writer.commit("a/d")
        entry = writer.list("a")[1]
        assert entry.size == 6
        assert entry.mtime_ms > 1_700_000_000_000
        assert not entry.is_strange
        with pytest.raises(StoreIOError, match="a/d"):
            writer.list("a/d")
        writer.create("a/d")
        assert writer.read("a/d", 0, 10) == b"123456"


def test_a_writer_reads_what_it_has_not_committed_yet(roots):
    with closing(open_writer(roots())) as writer:
        writer.create("a")
        writer.append("a", [b"123456"], 0)
        assert [writer.read("a", at, 3) for at in (0, 2, 5, 6)] == [b"123", b"345", b"6", b""]


def test_errors_name_the_place(roots):
    root = roots()
    with closing(open_writer(root)) as writer:
        for do in (lambda: writer.read("x/y", 0, 1), lambda: writer.source("x/y"),
                   lambda: writer.put_aside("x/y")):
            with pytest.raises(StoreIOError, match="x/y") as raised:
                do()
            assert root.rstrip("/") in str(raised.value)
            assert "\n" not in str(raised.value)


def test_a_source_is_the_file(roots):
    data = os.urandom(3 << 20)
    with closing(open_writer(roots())) as writer:
        writer.append("x", [data], 0)
        writer.commit("x")
        source: Source = writer.source("x", 1000)
        try:
            assert (source.base, source.size) == (1000, len(data))
            for position, length in ((0, 1), (5, 100), ((1 << 20) - 3, 9), ((1 << 20) - 3, 2 << 20),
                                     (len(data) - 4, 10), (len(data), 5), (0, len(data) + 1)):
                assert source.read(position, length) == data[position:position + length]
                buffer = bytearray(length)
                got = source.read_into(memoryview(buffer), position)
                assert buffer[:got] == data[position:position + length]
            assert source.next_data(17) == 17
            assert source.next_data(len(data) + 5) == len(data)
        finally:
            close_source(source)


_paths = st.sampled_from(["a", "b/a", "b/c/212d6b50_x", "b/c/%RETRY%[g]*"])
_bytes = st.binary(max_size=40)
_operations = st.lists(max_size=25, elements=st.one_of(
    st.tuples(st.just("append"), _paths, st.lists(_bytes, max_size=3)),
    st.tuples(st.just("append"), _paths, st.lists(_bytes, max_size=3)),
    st.tuples(st.just("commit"), _paths),
    st.tuples(st.just("create"), _paths),
    st.tuples(st.just("misplaced"), _paths, st.integers(1, 30)),
    st.tuples(st.just("cut"), _paths, st.integers(0, 60)),
    st.tuples(st.just("aside"), _paths),
    st.tuples(st.just("replace"), _paths, _bytes),
    st.tuples(st.just("read"), _paths, st.integers(0, 60), st.integers(0, 60)),
    st.tuples(st.just("reopen")),
))


@settings(max_examples=examples(120))
@given(operations=_operations)
def test_any_operations_against_a_model(roots, operations):
    root = roots()
    model: dict[str, bytes] = {}
    kept: dict[str, bytes] = {}
    writer = open_writer(root)
    try:
        for name, *rest in operations:
            if name == "reopen":
                for path in model:
                    writer.commit(path)
                writer.close()
                writer = open_writer(root)
                continue
            path, *more = rest
            _checked(writer, model, kept, name, path, *more)
            assert writer.size(path) == (len(model[path]) if path in model else None)
        for path in model:
            writer.commit(path)
    finally:
        writer.close()
    with closing(open_reader(root)) as reader:
        assert _all(reader) == model | kept


def _checked(writer, model, kept, name, path, *more) -> None:
    there = model.get(path, b"")
    if name == "append":
        assert writer.append(path, more[0], len(there)) == sum(map(len, more[0]))
        model[path] = there + b"".join(more[0])
    elif name == "misplaced":
        if path in model:
            with pytest.raises(RefusedError, match=r"bytes, expected"):
                writer.append(path, [b"never"], len(there) + more[0])
    elif name == "commit":
        writer.commit(path)
    elif name == "create":
        writer.create(path)
        model[path] = there
    elif name == "cut":
        place = writer.cut(path, more[0])
        if len(there) > more[0]:
            kept[place] = there[more[0]:]
            model[path] = there[:more[0]]
        else:
            assert place is None
    elif name == "aside" and path in model:
        place = writer.put_aside(path)
        assert place.startswith(f"{ASIDE}/")
        kept[place] = model.pop(path)
    elif name == "replace":
        writer.replace(path, more[0])
        model[path] = more[0]
    elif name == "read" and path in model:
        assert writer.read(path, *more) == there[more[0]:more[0] + more[1]]


def _all(reader: TierReader, folder: str = "") -> dict[str, bytes]:
    content = {}
    for name in reader.list(folder):
        path = f"{folder}/{name.name}" if folder else name.name
        if name.is_folder:
            content |= _all(reader, path)
        else:
            content[path] = reader.read(path, 0, name.size + 1)
            assert len(content[path]) == name.size == reader.size(path)
    return content


def test_what_is_appended_and_not_committed(roots):
    root = roots()
    with closing(open_writer(root)) as writer:
        writer.append("x", [b"one"], 0)
        writer.commit("x")
        writer.append("x", [b"two"], 3)
        assert writer.size("x") == 6
        assert writer.list("")[-1].size == 6
        assert [writer.read("x", at, 3) for at in range(7)] == [
            b"one", b"net", b"etw", b"two", b"wo", b"o", b""]
        with closing(open_reader(root)) as other:
            if isinstance(writer, PosixWriter):
                assert other.read("x", 0, 9) == b"onetwo"
            else:
                assert other.read("x", 0, 9) == b"one"


def test_somebody_else_writes(roots):
    root = roots()
    with closing(open_writer(root)) as writer, closing(open_writer(root)) as other:
        writer.append("x", [b"one"], 0)
        writer.commit("x")
        other.append("x", [b"two"], 3)
        other.commit("x")
        with pytest.raises(RefusedError, match="another process"):
            writer.append("x", [b"three"], 3)
        assert writer.read("x", 0, 9) == b"onetwo"


def test_a_lot_is_kept_outside_of_memory(roots, monkeypatch):
    monkeypatch.setattr(remote_writer, "_IN_MEMORY", 1 << 16)
    monkeypatch.setattr(remote_writer, "_IN_MEMORY_OF_ALL", 1 << 17)
    root = roots()
    data = [os.urandom(50_000) for _ in range(8)]
    with closing(open_writer(root)) as writer:
        for number, content in enumerate(data):
            writer.append(f"x{number % 2}", [content], 50_000 * (number // 2))
        assert writer.read("x1", 99_990, 20) == (data[3] + data[5])[49_990:50_010]
        for path in ("x0", "x1"):
            writer.commit(path)
    with closing(open_reader(root)) as reader:
        assert [reader.read(path, 0, 1 << 20) for path in ("x0", "x1")] == [
            b"".join(data[0::2]), b"".join(data[1::2])]


# -- failures -------------------------------------------------------------------------------------

def test_a_write_that_fails_half_way_in_a_folder(tmp_path, monkeypatch):
    real = os.pwritev

    def half(fd, parts, offset):
        real(fd, [parts[0][:2]], offset)
        raise OSError(errno.ENOSPC, "full")

    with closing(PosixWriter(str(tmp_path))) as writer:
        writer.append("x", [b"one"], 0)
        monkeypatch.setattr(os, "pwritev", half)
        with pytest.raises(StoreIOError, match="no space left"):
            writer.append("x", [b"two", b"three"], 3)
        monkeypatch.undo()
        assert writer.read("x", 0, 9) == b"one"
        writer.append("x", [b"four"], 3)
        writer.commit("x")
    assert (tmp_path / "x").read_bytes() == b"onefour"


class _Flaky:
    """Makes the driver's ``count``-th call of those that change something fail, half done."""

    CALLS = ("cp_file", "rm_file", "pipe_file", "info", "makedirs", "cat_file")

    def __init__(self, monkeypatch) -> None:
        from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

        self.left: int | None = None
        self.for_good = False
        for name in self.CALLS:
            monkeypatch.setattr(MemoryFileSystem, name,
                                self._around(getattr(MemoryFileSystem, name)))
        real = MemoryFile.write

        def write(file, data):
            if self._now():
                real(file, bytes(data)[:len(data) // 2])
                raise ConnectionError("the line is down")
            return real(file, data)

        monkeypatch.setattr(MemoryFile, "write", write, raising=False)

    def _around(self, real):
        def call(*arguments, **named):
            if self._now():
                raise ConnectionError("the line is down")
            return real(*arguments, **named)
        return call

    def _now(self) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        return self.left == -1 or (self.for_good and self.left < 0)


@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("appending", [True, False])
@pytest.mark.parametrize("what", ["commit", "cut", "replace", "aside"])
def test_the_line_goes_down_at_every_call(monkeypatch, what, appending, for_good):
    if not appending:
        monkeypatch.setattr(remote_writer, "APPENDING", frozenset())
    flaky = _Flaky(monkeypatch)
    flaky.for_good = for_good
    old, more = b"0123456789" * 3, [b"abcde" * 5, b"fgh"]
    whole = old + b"".join(more)
    failures = 0
    for count in itertools.count():
        root = f"memory://flaky-{os.getpid()}-{next(_numbers)}"
        with closing(open_writer(root)) as writer:
            writer.append("q/x", [old], 0)
            writer.commit("q/x")
            do = {"commit": lambda f=writer: _append_and_commit(f, more, len(old)),
                  "cut": lambda f=writer: f.cut("q/x", 7),
                  "replace": lambda f=writer: f.replace("q/x", b"new"),
                  "aside": lambda f=writer: f.put_aside("q/x")}[what]
            wanted = {"commit": whole, "cut": old[:7], "replace": b"new", "aside": None}[what]
            flaky.left = count
            try:
                do()
            except StoreIOError as error:
                failures += 1
                assert root in str(error)
                failed = True
            else:
                failed = False
            flaky.left = None
            with closing(open_reader(root)) as reader:
                seen = reader.read("q/x", 0, 99) if reader.size("q/x") is not None else None
            if not failed:
                assert seen == wanted
                break
            # The old one or the new one; a torn end may be left only while the line is down.
            if for_good and appending and what == "commit":
                assert seen in (old, whole) or seen == old + whole[len(old):len(seen)]
            else:
                assert seen in (old, wanted)
            do = {"commit": lambda f=writer: _append_and_commit(f, more, len(old))}.get(what, do)
            if seen != wanted or what == "commit":
                do()
            with closing(open_reader(root)) as reader:
                assert (reader.read("q/x", 0, 99) if wanted else reader.size("q/x")) == wanted
    assert failures >= 3


def _append_and_commit(writer: TierWriter, parts: list[bytes], position: int) -> None:
    """Appends unless it is appended already, then commits: what a retry does."""
    if writer.size("q/x") == position:
        writer.append("q/x", parts, position)
    writer.commit("q/x")


# -- opening --------------------------------------------------------------------------------------

def test_no_driver_is_a_usage_error(monkeypatch):
    from fsspec.registry import known_implementations

    with pytest.raises(UsageError, match=r"no driver for nosuch://"):
        open_reader("nosuch://bucket/tier")
    monkeypatch.setitem(known_implementations, "notyet",
                        {"class": "rmqctl_no_such_module.Driver", "err": "Install notyetfs"})
    for opened in (open_reader, open_writer):
        with pytest.raises(UsageError, match=r"notyet://.*Install notyetfs"):
            opened("notyet://bucket/tier")


def test_a_password_is_not_said():
    with pytest.raises(UsageError) as raised:
        open_reader("nosuch://me:secret@host/tier")
    assert "secret" not in str(raised.value)
    assert remote_reader.without_secrets("ftp://a:b@h/p@q:r") == "ftp://***@h/p@q:r"
    assert remote_reader.without_secrets("s3://bucket/a:b@c") == "s3://bucket/a:b@c"


def test_a_driver_that_reads_only(monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    def cannot(*arguments, **named):
        raise NotImplementedError

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", cannot)
    with (closing(open_writer(f"memory://read-only-{next(_numbers)}")) as writer,
          pytest.raises(RefusedError, match="its driver does not support that")):
        writer.create("x")


def test_a_driver_that_does_not_serve_ranges(monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    with closing(open_writer(f"memory://no-ranges-{next(_numbers)}")) as writer:
        writer.append("x", [b"0123456789"], 0)
        writer.commit("x")
        monkeypatch.setattr(MemoryFileSystem, "cat_file",
                            lambda fs, path, start, end: bytes(fs.store[path].getbuffer()))
        with pytest.raises(StoreIOError, match="does not serve ranges"):
            writer.read("x", 3, 2)


def test_a_rename_that_does_nothing_and_says_nothing(monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    with closing(open_writer(f"memory://no-rename-{next(_numbers)}")) as writer:
        writer.replace("x", b"old one")
        monkeypatch.setattr(MemoryFileSystem, "mv", lambda *_: None)
        with pytest.raises(StoreIOError, match=r"it has 7 bytes afterwards, expected 3"):
            writer.replace("x", b"new")
        monkeypatch.undo()
        assert writer.read("x", 0, 9) == b"old one"


def test_only_the_range_is_asked_for(monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    with closing(open_writer(f"memory://ranges-{next(_numbers)}")) as writer:
        writer.append("f/x", [bytes(5 << 20)], 0)
        writer.commit("f/x")
    asked = []
    real = MemoryFileSystem.cat_file
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda fs, path, start, end: (
        asked.append((start, end)), real(fs, path, start, end))[1])
    with closing(open_reader(writer.name)) as reader:
        reader.list("f")
        monkeypatch.setattr(MemoryFileSystem, "info", None)  # not asked for any more
        assert len(reader.read("f/x", 1_000_000, 20)) == 20
        monkeypatch.undo()
        monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda fs, path, start, end: (
            asked.append((start, end)), real(fs, path, start, end))[1])
        source = reader.source("f/x")
        for at in range(0, 3 << 20, 1000):
            source.read(at, 1000)
        close_source(source)
    block = remote_reader.RemoteSource.BLOCK
    assert asked == [(1_000_000, 1_000_020), *((n * block, (n + 1) * block) for n in range(4))]


def test_a_file_or_nothing_is_no_tier(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotAStoreError, match="not a folder"):
        open_reader(str(tmp_path / "file"))
    with pytest.raises(NotAStoreError, match="not a folder"):
        open_writer(str(tmp_path / "file"))
    with pytest.raises(NotAStoreError, match="no such folder"):
        open_reader(str(tmp_path / "nothing"))


def test_readers_never_write(tmp_path):
    for kind in (PosixReader, remote_reader.RemoteReader):
        assert not {"append", "create", "commit", "cut", "put_aside", "replace"} & set(dir(kind))
