"""Rows that are kept in a file: what is read is what was added, however much stays in memory."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from rmqctl.errors import StoreIOError
from rmqctl.files.row_file import RowFile, on_disk

ROW = np.dtype([("number", "<i8"), ("twice", "<i4")])


def rows(start, end):
    array = np.zeros(end - start, ROW)
    array["number"] = np.arange(start, end)
    array["twice"] = 2 * array["number"]
    return array


@pytest.mark.parametrize("held", [0, 10, 1000])
def test_rows_come_back_in_order(held, tmp_path):
    file = RowFile(ROW, held=held, folder=str(tmp_path))
    for start in range(0, 100, 7):
        file.append(rows(start, min(start + 7, 100)))
        file.append(rows(0, 0))
    assert len(file) == 100
    for step in (1, 9, 1000):
        chunks = list(file.chunks(step))
        assert max(map(len, chunks)) <= step
        assert np.concatenate(chunks).tolist() == rows(0, 100).tolist()
    whole = file.mapped()
    assert file.read(13, 20).tolist() == rows(13, 33).tolist()
    assert os.listdir(tmp_path) == []
    file.close()
    assert (len(file), list(file.chunks(5))) == (0, [])
    assert whole.tolist() == rows(0, 100).tolist()


def test_nothing_at_all():
    assert len(RowFile(ROW).mapped()) == 0
    assert len(on_disk(np.zeros(0, np.uint64), "numbers")) == 0


def test_every_second_row_of_an_array():
    assert on_disk(rows(0, 100)[::2], "rows").tolist() == rows(0, 100)[::2].tolist()


def test_what_failed_is_said(tmp_path, monkeypatch):
    file = RowFile(ROW, "places", folder=str(tmp_path / "missing"))
    with pytest.raises(StoreIOError, match="cannot keep places in .*missing: no such"):
        file.append(rows(0, 1))
    file = RowFile(ROW, "places", folder=str(tmp_path))
    file.append(rows(0, 1))

    def failing(*_given):
        raise OSError(errno.EIO, "lost")

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", failing)
        with pytest.raises(StoreIOError, match="cannot read places in"):
            file.read(0, 1)
    with pytest.raises(StoreIOError, match="places that were stored there are missing"):
        file.read(0, 2)
