"""Parts of a file read at once, by either build."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from rmqctl.errors import StoreIOError
from rmqctl.kernel import active
from rmqctl.scan.source import FileSource
from tests.support.kernels import KERNELS, compiled_only, using


@pytest.mark.parametrize("kernel", KERNELS)
def test_parts_of_a_file_go_where_they_belong(tmp_path: Path, kernel: str) -> None:
    data = random.Random(1).randbytes(1000)
    (tmp_path / "f").write_bytes(data)
    numbers = [np.array(each, np.int64) for each in ([0, 10, 30], [10, 30, 60], [500, 0, 980])]
    with using(kernel):
        for limit, last in ((None, data[980:] + bytes(10)), (990, data[980:990] + bytes(20))):
            out = bytearray(b"x" * 60)
            with FileSource(str(tmp_path / "f"), limit=limit) as source:
                source.read_parts(memoryview(out), *numbers)
            assert out == data[500:510] + data[:20] + last


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path: Path, kernel: str) -> None:
    (tmp_path / "f").write_bytes(b"1234")
    one = np.ones(1, np.int64)
    with using(kernel):
        source = FileSource(str(tmp_path / "f"))
        source.close()
        with pytest.raises(StoreIOError, match="/f"):
            source.read_parts(memoryview(bytearray(4)), one, one + 1, one)


@compiled_only
def test_nothing_is_written_outside_of_the_buffer(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(100))
    kernel = active()
    assert kernel is not None
    with (tmp_path / "f").open("rb") as file:
        for start, end in ((-1, 5), (0, 11), (11, 12), (8, 1 << 62), (5, 4)):
            with pytest.raises(IndexError):
                kernel.read_parts(file.fileno(), bytearray(10), np.array([start]), np.array([end]),
                                  np.array([0]), 100)
        with pytest.raises(ValueError, match="before"):
            kernel.read_parts(file.fileno(), bytearray(10), np.array([0]), np.array([5]),
                              np.array([-1]), 100)
