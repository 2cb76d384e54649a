"""SHA-256 sums of parts of the log: pairs and single ranges, against hashlib."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from rmqctl.backup import copying, sums
from rmqctl.kernel import VARIABLE, active
from rmqctl.scan.source import FileSource
from rmqctl.store.log.end import find_end
from rmqctl.store.store import Store
from tests.support.kernels import compiled_only, using

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


@compiled_only
@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/basic", "5.3.3/multipath", "4.9.3/dledger"])
def test_damage_is_the_same_with_either_kernel(name, golden_copy, monkeypatch):
    """One wrong bit, zeros or a shorter file: what a backup says of a log is what a walk finds."""
    monkeypatch.setattr(copying, "_PASSED", 3000)
    root = golden_copy(name)
    with Store.open(root / "store" if (root / "store").is_dir() else root) as store:
        first, files, places = store.log.min_offset, store.log.files, []
        end = find_end(store).offset
        for batch in store.log.walk(first):
            places += batch.offset.tolist()
    assert len(places) > 20
    random, damaged = Random(name), 0
    for kind in ["sound", *["bit", "zeros", "body"] * 4]:
        at = random.choice(places) + random.randrange(60)
        file = next(file for file in files if file.base <= at < file.end)
        before = Path(file.path).read_bytes()
        data, at = bytearray(before), at - file.base
        if kind != "sound":
            length = {"bit": 1, "zeros": 500, "body": 90}[kind]
            data[at:at + length] = bytes(len(data[at:at + length])) if kind == "zeros" else (
                bytes(byte ^ 4 for byte in data[at:at + length]))
        Path(file.path).write_bytes(data)
        seen = []
        for kernel in ("compiled", "python"):
            with using(kernel), Store.open(Path(store.root)) as view:
                seen.append([copying.damage_in(view, start, end)
                              for start in (first, places[7], places[-3])])
        assert seen[0] == seen[1]
        assert not seen[0][0][0] if kind == "sound" else True
        damaged += bool(seen[0][0][0])
        Path(file.path).write_bytes(before)
    assert damaged >= 8
