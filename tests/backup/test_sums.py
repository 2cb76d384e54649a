"""SHA-256 sums of parts of the log: pairs and single ranges, against hashlib."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from random import Random

import pytest

from rmqctl.backup import sums
from rmqctl.kernel import VARIABLE, active
from rmqctl.scan.source import FileSource

SMALL = 256


@pytest.fixture(params=["compiled", "python"])
def either_kernel(request, monkeypatch):
    if request.param == "compiled" and active() is None:
        pytest.skip("no compiled kernel")
    monkeypatch.setenv(VARIABLE, request.param)
    active.cache_clear()
    monkeypatch.setattr(sums, "_READ", SMALL)
    monkeypatch.setattr(sums, "_of_thread", type("", (), {})())
    yield
    active.cache_clear()


def summed(path, *ranges):
    with ExitStack() as stack:
        return sums.sha256_of([(stack.enter_context(FileSource(str(path))), *places)
                               for places in ranges])


def test_ranges_of_all_lengths(tmp_path, either_kernel):
    data = Random(1).randbytes(5 * SMALL)
    path = tmp_path / "file"
    path.write_bytes(data)
    lengths = [0, 1, 55, 56, 63, 64, SMALL - 64, SMALL - 9, SMALL - 8, SMALL - 1, SMALL,
               SMALL + 1, 2 * SMALL, 3 * SMALL + 70]
    for first in lengths:
        for second in lengths:
            ranges = (3, 3 + first), (100, 100 + second)
            assert summed(path, *ranges) == [
                hashlib.sha256(data[start:end]).hexdigest() for start, end in ranges]
    assert summed(path, (7, 900)) == [hashlib.sha256(data[7:900]).hexdigest()]


def test_a_file_that_ends_before_its_range(tmp_path, either_kernel):
    data = Random(2).randbytes(3 * SMALL)
    path = tmp_path / "file"
    path.write_bytes(data)
    assert summed(path, (0, 9 * SMALL), (5, 2 * SMALL)) == [
        hashlib.sha256(data).hexdigest(), hashlib.sha256(data[5:2 * SMALL]).hexdigest()]
