"""A folder in memory where there is one: these tests force thousands of files to disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.roomy import real_statvfs

MEMORY = "/dev/shm"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if not os.access(MEMORY, os.W_OK) or real_statvfs(MEMORY).f_bavail < 1 << 16:
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="rmqctl-test-", dir=MEMORY))
    yield path
    shutil.rmtree(path)
