"""Disks always look the same to tests: 100 GiB, 60 % of them free.

What rmqctl says or refuses because of the free space would else depend on the machine. Tests of a
full disk patch `os.statvfs` themselves.
"""

from __future__ import annotations

import os
from typing import Any

BLOCK = 4096
BLOCKS = (100 << 30) // BLOCK
FREE = BLOCKS * 6 // 10
real_statvfs = os.statvfs


def statvfs(path: Any) -> os.statvfs_result:
    """As the system's call: OSError for what does not exist."""
    limits = real_statvfs(path)
    return os.statvfs_result((BLOCK, BLOCK, BLOCKS, FREE, FREE, BLOCKS, FREE, FREE,
                              limits.f_flag, limits.f_namemax))


def install() -> None:
    os.statvfs = statvfs
