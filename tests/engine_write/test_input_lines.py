"""Lines from a descriptor: any cut of the bytes gives the same lines, in bounded memory."""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
import tracemalloc
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqctl.commands.shared.deferred_signals import DeferredSignals
from rmqctl.engine.input import lines as lines_module
from rmqctl.engine.input.lines import InputError, LineReader, open_lines, parse
from rmqctl.errors import ExitCode, StoreIOError

BOM = b"\xef\xbb\xbf"


class Chopped:
    """A stand-in for `os.read` that hands a text over in given pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = list(pieces)

    def __call__(self, fd: int, size: int) -> bytes:
        while self.pieces:
            piece = self.pieces.pop(0)
            if piece:
                assert len(piece) <= size
                return piece
        return b""


def read(monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], limit: int = 1000) -> list[
        list[tuple[int, object]]]:
    with monkeypatch.context() as patch:
        patch.setattr(lines_module.os, "read", Chopped(pieces))
        return [[(number, str(line) if isinstance(line, InputError) else line)
                 for number, line in group]
                for group in LineReader(5, limit=limit).groups()]


def expected(text: bytes, limit: int) -> list[tuple[int, object]]:
    """The lines of a whole text, said without any buffering."""
    parts = text.split(b"\n")
    if not parts[-1]:
        parts.pop()
    values: list[tuple[int, object]] = []
    for number, part in enumerate(parts, 1):
        if len(part) > limit:
            values.append((number, f"longer than {limit} bytes"))
        else:
            line = part.removeprefix(BOM) if number == 1 else part
            if line.strip():
                values.append((number, line))
    return values


@given(st.lists(st.sampled_from([b"{}", b"\n", b"\r\n", b" ", b'{"a":1}', b"x" * 9, BOM, b"\n\n"]),
                max_size=30),
       st.lists(st.integers(0, 60), max_size=20), st.integers(1, 20))
@example([BOM, b"\n", b"{}"], [1, 2, 3], 20)
@example([b"x" * 9, b"x" * 9, b"x" * 9], [9, 18], 20)
@example([b"x" * 9, b"x" * 9, b"x" * 9, b"\n", b"{}"], [9, 18, 27], 20)
def test_any_cut_gives_the_same_lines(words, cuts, limit):
    text = b"".join(words)
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(borders)]
    with pytest.MonkeyPatch.context() as patch:
        groups = read(patch, pieces, limit)
    assert [line for group in groups for line in group] == expected(text, limit)
    assert all(groups)


def test_one_byte_at_a_time(monkeypatch):
    text = b'{"a": 1}\r\n\r\n{"b": 2}\n{"c": 3}'
    content = read(monkeypatch, [bytes([char]) for char in text])
    assert content == [[(1, b'{"a": 1}\r')], [(3, b'{"b": 2}')], [(4, b'{"c": 3}')]]


def test_a_group_is_what_one_read_completed(monkeypatch):
    assert read(monkeypatch, [b"1\n2\n3", b"3\n", b"", b"4", b"4\n5\n"]) == [
        [(1, b"1"), (2, b"2")], [(3, b"33")], [(4, b"44"), (5, b"5")]]


def test_crlf_lines_are_json():
    assert parse(b'{"a": 1}\r') == {"a": 1}


def test_a_byte_order_mark_is_taken_off_at_the_start_only(monkeypatch):
    assert read(monkeypatch, [BOM[:1], BOM[1:] + b"{}\n" + BOM + b"{}\n"]) == [
        [(1, b"{}"), (2, BOM + b"{}")]]


def test_lines_at_below_and_above_the_limit(monkeypatch):
    text = b"\n".join([b"x" * 9, b"x" * 10, b"x" * 11, b"y"])
    for pieces in ([text], [text[:25], text[25:]], [bytes([line]) for line in text]):
        read_lines = [line for group in read(monkeypatch, pieces, 10) for line in group]
        assert read_lines == [(1, b"x" * 9), (2, b"x" * 10), (3, "longer than 10 bytes"), (4, b"y")]


def test_a_line_too_long_is_not_held(tmp_path):
    file = tmp_path / "in.jsonl"
    with file.open("wb") as out:
        out.write(b"{}\n")
        for _ in range(48):
            out.write(b" " * (1 << 20))
        out.write(b"\n{}\n")
    tracemalloc.start()
    try:
        with open_lines(str(file), limit=4 << 20) as reader:
            read_lines = [line for group in reader.groups() for line in group]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [number for number, _ in read_lines] == [1, 2, 3]
    assert isinstance(read_lines[1][1], InputError)
    assert peak < 16 << 20
    assert reader.taken == file.stat().st_size


def test_a_pipe_gives_each_line_at_once():
    out, into = os.pipe()
    try:
        groups = LineReader(out).groups()
        for number in range(1, 4):
            os.write(into, b'{"n": %d}\n' % number)
            assert next(groups) == [(number, b'{"n": %d}' % number)]
        os.close(into)
        assert next(groups, None) is None
    finally:
        os.close(out)


def test_a_pipe_that_does_not_block_is_waited_for():
    out, into = os.pipe()
    os.set_blocking(out, False)
    try:
        timer = threading.Timer(0.1, lambda: (os.write(into, b"{}"), os.close(into)))
        timer.start()
        assert list(LineReader(out).groups()) == [[(1, b"{}")]]
        timer.join()
    finally:
        os.close(out)


def test_waiting_can_be_interrupted():
    out, into = os.pipe()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            list(LineReader(out).groups())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(out)
        os.close(into)


@pytest.mark.parametrize(("number", "words"), [(errno.EIO, "input/output error"),
                                               (errno.EBADF, "not open")])
def test_a_failing_read_names_the_input(monkeypatch, number, words):
    pieces = [b"1\n2"]

    def failing(fd, size):
        if pieces:
            return pieces.pop()
        raise OSError(number, "x")

    monkeypatch.setattr(lines_module.os, "read", failing)
    groups = LineReader(5, "in.jsonl").groups()
    assert next(groups) == [(1, b"1")]
    with pytest.raises(StoreIOError, match=f"cannot read in.jsonl: {words}") as caught:
        next(groups)
    assert caught.value.exit_code is ExitCode.IO


def test_files_that_cannot_be_read(tmp_path):
    with (pytest.raises(StoreIOError, match="missing: no such file"),
          open_lines(str(tmp_path / "missing"))):
        pass
    with (pytest.raises(StoreIOError, match="is a directory"),
          open_lines(str(tmp_path)) as reader):
        list(reader.groups())
    with pytest.raises(StoreIOError, match="cannot open"), open_lines("a\0b"):
        pass


def test_a_file_is_closed_again(tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"{}")
    with open_lines(str(file)) as reader:
        assert list(reader.groups()) == [[(1, b"{}")]]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader.fd)


@contextmanager
def descriptor_zero(content: bytes):
    saved = os.dup(0)
    out, into = os.pipe()
    os.write(into, content)
    os.close(into)
    os.dup2(out, 0)
    os.close(out)
    try:
        yield
    finally:
        os.dup2(saved, 0)
        os.close(saved)


@pytest.mark.parametrize("name", [None, "-"])
def test_standard_input(name):
    with descriptor_zero(b"{}\n"), open_lines(name) as reader:
        assert list(reader.groups()) == [[(1, b"{}")]]


def test_a_closed_standard_input_is_no_file_of_the_store(monkeypatch):
    monkeypatch.setattr(lines_module.sys, "stdin", None)
    with pytest.raises(StoreIOError, match="standard input: it is closed"), open_lines("-"):
        pass


def test_a_wait_that_is_woken_goes_on_until_there_is_input():
    """What woke it is thrown away, or the next wait would not be one."""
    source, sink = os.pipe()
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    reader = LineReader(source)
    reader.wake = wake
    os.write(waker, b"\2\2")
    threading.Timer(0.2, os.write, (sink, b"{}\n")).start()
    assert next(reader.groups()) == [(1, b"{}")]
    with pytest.raises(BlockingIOError):
        os.read(wake, 1)
    for end in (source, sink, wake, waker):
        os.close(end)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_wait_ends_it(number):
    """As if it came between the last look and the read: nothing but the descriptor tells of it."""
    source, sink = os.pipe()
    with pytest.raises(KeyboardInterrupt), DeferredSignals() as gently:  # noqa: PT012
        reader = LineReader(source)
        reader.wake = gently.wake
        os.kill(os.getpid(), number)  # noted, not let through
        assert gently.requested
        assert select.select([gently.wake], [], [], 0)[0]
        gently.wait_for(lambda: next(reader.groups()))
    for end in (source, sink):
        os.close(end)


def test_nothing_is_left_open():
    before = set(os.listdir("/proc/self/fd"))
    with DeferredSignals():
        pass
    assert set(os.listdir("/proc/self/fd")) == before
