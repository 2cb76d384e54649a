"""In which file of the log a broker's recovery starts, and why (spec: recovery.md §3, §4)."""

from __future__ import annotations

import numpy as np

from rmqctl.checks.preflight.types import Rules
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import checkpoint as page
from rmqctl.formats.local.checkpoint import CHECKPOINT, CheckpointRecord
from rmqctl.formats.local.message import HOST_BITS, MAGIC_V1, MAGIC_V2
from rmqctl.scan.frames import START_SIZE, shape
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.store import Store

_NORMAL_FILES = 3
_HEAD_SIZE = 256


def checkpoint(store: Store) -> CheckpointRecord:
    """The checkpoint as a broker maps it: what is missing reads as zeros."""
    try:
        return page.parse(store.read_small("checkpoint", most=CHECKPOINT.size).ljust(
            CHECKPOINT.size, b"\0"))
    except (StoreIOError, FormatError):
        return page.parse(bytes(CHECKPOINT.size))


def start_file(log: CommitLog, clean: bool, rules: Rules, max_physic: int,
               saved: CheckpointRecord) -> tuple[int, str]:
    """(number of the file, why). ``max_physic``: how far the consumequeues reach."""
    count = len(log.files)
    if clean and not rules.normal_by_queues:
        number = max(0, count - _NORMAL_FILES)
        return number, ("the third file from the end" if number else "the first file")
    if clean:
        for number in range(count - 1, 0, -1):
            if log.files[number].base <= max_physic:
                return number, f"the consumequeues reach up to {max_physic}"
        return 0, "the consumequeues reach into no later file"
    limit = saved.min_timestamp
    for number in range(count - 1, -1, -1):
        stored = _first_time(log, number, rules)
        if stored is not None and stored <= limit:
            return number, (f"its first message was stored at {stored}, not after the "
                            f"checkpoint's {limit}")
    if not limit:
        return 0, "the checkpoint says nothing"
    return 0, f"no file's first message was stored by {limit}, the checkpoint's time"


def _first_time(log: CommitLog, number: int, rules: Rules) -> int | None:
    """The store time of a file's first record as a broker picks it, without looking further."""
    head = log.source(number).read(0, _HEAD_SIZE)
    if len(head) < START_SIZE:
        return None
    plain = np.frombuffer(head, shape(0, MAGIC_V1).dtype, 1)[0]
    magic = int(plain["magic"])
    if magic != MAGIC_V1 and not (magic == MAGIC_V2 and rules.message_v2):
        return None
    shaped = shape(int(plain["sys_flag"]) & HOST_BITS, magic)
    stored = int(np.frombuffer(head, shaped.dtype, 1)[0]["store_timestamp"])
    return stored or None
