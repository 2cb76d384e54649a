"""The kind of a file of a store: from its path, or else from its content.

The path decides if it is usual for a store; a file copied elsewhere is recognized by its content.
This module reads nothing: the caller provides the path's parts, the first bytes (4 KiB are enough)
and the size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from rmqctl.errors import FormatError
from rmqctl.formats import dledger
from rmqctl.formats.config import broker_identity, epoch
from rmqctl.formats.local import (
    batch_consume_queue,
    checkpoint,
    compaction,
    consume_queue,
    consume_queue_ext,
    index_file,
    lock,
    message,
    names,
)
from rmqctl.formats.tiered import index
from rmqctl.formats.tiered import names as tiered_names
from rmqctl.formats.timer import timer_check, timer_log, timer_wheel

COMMITLOG = "commitlog"
CONSUMEQUEUE = "consumequeue"
CONSUMEQUEUE_EXT = "consumequeue_ext"
BATCHCONSUMEQUEUE = "batchconsumequeue"
INDEX = "index"
CHECKPOINT = "checkpoint"
ABORT = "abort"
LOCK = "lock"
CONFIG = "config"
CLIENT_OFFSETS = "client_offsets"
TIMERWHEEL = "timerwheel"
TIMERLOG = "timerlog"
TIMERCHECK = "timercheck"
COMPACTION_LOG = "compaction_log"
COMPACTION_CQ = "compaction_cq"
EPOCH = "epoch"
BROKER_IDENTITY = "broker_identity"
DLEDGER = "dledger"
DLEDGER_INDEX = "dledger_index"
DLEDGER_CHECKPOINT = "dledger_checkpoint"
TIERED_COMMITLOG = "tiered_commitlog"
TIERED_CONSUMEQUEUE = "tiered_consumequeue"
TIERED_INDEX = "tiered_index"
TIERED_METADATA = "tiered_metadata"

KINDS: dict[str, str] = {
    COMMITLOG: "messages in the order they were stored",
    CONSUMEQUEUE: "consume queue entries, which point into the commitlog",
    CONSUMEQUEUE_EXT: "filter bit maps and tags codes of a consumequeue",
    BATCHCONSUMEQUEUE: "entries of a batch consume queue",
    INDEX: "message keys, which point into the commitlog",
    CHECKPOINT: "the times up to which each structure was flushed",
    ABORT: "exists while a broker runs, and after an unclean shutdown",
    LOCK: "locked by the broker that uses the store",
    CONFIG: "JSON files of config/: topics, groups, offsets and others",
    CLIENT_OFFSETS: "offsets.json, which a broadcasting consumer keeps on its machine",
    TIMERWHEEL: "timer messages per second, for two weeks",
    TIMERLOG: "timer messages in the order they were enqueued",
    TIMERCHECK: "the timer's progress",
    COMPACTION_LOG: "messages of a compacted topic",
    COMPACTION_CQ: "entries of a compacted topic's queue",
    EPOCH: "controller mode: where each master epoch starts",
    BROKER_IDENTITY: "controller mode: cluster, name and id of the broker",
    DLEDGER: "DLedger log entries with messages inside",
    DLEDGER_INDEX: "the position of each DLedger entry",
    DLEDGER_CHECKPOINT: "end and committed index of DLedger",
    TIERED_COMMITLOG: "a segment of a queue's commit log in a tier",
    TIERED_CONSUMEQUEUE: "a segment of a consume queue in a tier",
    TIERED_INDEX: "message keys, which point into the commit logs of a tier",
    TIERED_METADATA: "a broker's metadata of its tier",
}

_BY_NAME = {
    "checkpoint": CHECKPOINT, "abort": ABORT, "lock": LOCK, "timerwheel": TIMERWHEEL,
    "timercheck": TIMERCHECK, "timermetrics": CONFIG, "transactionMetrics": CONFIG,
    "position-checkpoint": CONFIG, "epochFileCheckpoint": EPOCH,
    "brokerIdentity": BROKER_IDENTITY, "brokerIdentity-temp": BROKER_IDENTITY,
}
_QUEUE_FOLDERS = {
    "consumequeue": CONSUMEQUEUE, "consumequeue_ext": CONSUMEQUEUE_EXT,
    "batchconsumequeue": BATCHCONSUMEQUEUE, "compactionLog": COMPACTION_LOG,
    "compactionCq": COMPACTION_CQ,
}
_LOG_FOLDERS = {"commitlog": COMMITLOG, "timerlog": TIMERLOG}
_TIERED_FOLDERS = {
    tiered_names.COMMIT_LOG: TIERED_COMMITLOG, tiered_names.CONSUME_QUEUE: TIERED_CONSUMEQUEUE,
    tiered_names.INDEX: TIERED_INDEX,
}
_WORKING_FOLDERS = ("compacting", "replicating")
_QUEUE_ID = re.compile(r"-?[0-9]{1,10}", re.ASCII)


def bare_name(name: str) -> str:
    """Return a file's name without the suffix that a broker appends to copies of it."""
    for suffix in (".bak", ".tmp", ".delete"):
        name = name.removesuffix(suffix)
    return name


def base_offset(name: str) -> int | None:
    """Return the stream offset of a file's first byte, if the file name is an offset."""
    if (offset := names.parse_offset(name)) is not None:
        return offset
    name = bare_name(name)
    segment = tiered_names.parse_segment(name)
    return names.parse_offset(name) if segment is None else segment[0]


def from_path(parts: Sequence[str]) -> str | None:
    """Return the kind of a file whose path is usual in a store; None for any other path. The last
    part is the file name.
    """
    if not parts:
        return None
    *above, full = parts
    folder = above[-1] if above else ""
    if names.parse_offset(full) is not None:
        return _numbered(above, folder)
    name = bare_name(full)
    if names.parse_offset(name) is not None:
        return _numbered(above, folder)
    if names.is_index_name(name):
        return INDEX if folder == "index" else None
    if folder in _TIERED_FOLDERS and tiered_names.parse_segment(name) is not None:
        return _TIERED_FOLDERS[folder]
    if name.isascii() and name.isdigit() and tiered_names.LOCAL_INDEX_FOLDER in above[-2:]:
        return TIERED_INDEX
    if name == tiered_names.METADATA_NAME:
        return TIERED_METADATA
    if name == "offsets.json" and len(above) > 1 and "@" in above[-2]:  # CLIENT/GROUP
        return CLIENT_OFFSETS
    if name.endswith(".json"):
        return CONFIG
    if name == "checkpoint" and folder.startswith("dledger-"):
        return DLEDGER_CHECKPOINT
    return _BY_NAME.get(name)


def _numbered(above: Sequence[str], folder: str) -> str | None:
    """Return the kind of a file with a 20-digit name."""
    if folder in _WORKING_FOLDERS:
        above = above[:-1]
    if len(above) >= 3 and above[-3] in _QUEUE_FOLDERS and _QUEUE_ID.fullmatch(above[-1]):
        return _QUEUE_FOLDERS[above[-3]]
    if len(above) >= 2 and above[-2].startswith("dledger-"):
        return {"data": DLEDGER, "index": DLEDGER_INDEX}.get(folder)
    return _LOG_FOLDERS.get(folder)


def recognise(parts: Sequence[str], head: bytes, size: int) -> str | None:
    """Return the kind of a file, or None.

    ``parts``: the parts of the file's path (absolute, or as far as known). ``head``: the file's
    first bytes. ``size``: the file's size in bytes.
    """
    by_path = from_path(parts)
    if by_path == COMMITLOG and dledger.detect(head) == dledger.FRAMED and _is_dledger(head, size):
        return DLEDGER  # a DLedger data folder may have any name
    if by_path == DLEDGER and dledger.detect(head) == dledger.PLAIN:
        return COMMITLOG
    if by_path == CONFIG and _is_client_offsets(head, size):
        return CLIENT_OFFSETS
    return by_path or from_content(head, size)


_MILLENNIUM = 946_684_800_000
_YEAR_3000 = 32_503_680_000_000


def _is_time(value: int) -> bool:
    return _MILLENNIUM <= value < _YEAR_3000


def _is_commitlog(head: bytes, size: int) -> bool:
    if len(head) < message.START_SIZE:
        return False
    blank = message.Blank.parse(head)
    if blank.magic == message.MAGIC_BLANK:
        return bool(blank.total_size == size)
    return blank.magic in message.VERSIONS and blank.total_size >= message.MIN_SIZE


def _is_dledger(head: bytes, _size: int) -> bool:
    if len(head) < dledger.HEAD_SIZE:
        return False
    entry = dledger.ENTRY_HEAD.decode(head)
    if dledger.judge(entry, 0) is not None or entry.pos < 0:
        return False
    return dledger.detect(head, dledger.HEAD_SIZE) in (dledger.PLAIN, None)


def _is_dledger_index(head: bytes, size: int) -> bool:
    step = dledger.INDEX_UNIT.size
    units = [dledger.INDEX_UNIT.decode(head, position)
             for position in range(0, len(head) - step + 1, step)][:3]
    used = [unit for unit in units if any(unit)]
    return bool(used) and size % step == 0 and all(unit.is_valid for unit in used) and all(
        b.entry_index == a.entry_index + 1 for a, b in pairwise(used))


def _is_timerlog(head: bytes, _size: int) -> bool:
    if len(head) < timer_log.UNIT_SIZE:
        return False
    unit = timer_log.decode(head)
    return unit.is_valid and unit.message_size > 0 and _is_time(unit.curr_write_time)


def _is_lock(head: bytes, size: int) -> bool:
    return head == lock.CONTENT and size == len(lock.CONTENT)


def _is_config(head: bytes, _size: int) -> bool:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    return re.match(rb'[{]\s*(["}]|-?[0-9]+\s*:)', text) is not None


def _is_client_offsets(head: bytes, _size: int) -> bool:
    return re.match(rb'\s*{\s*"offsetTable"\s*:\s*{\s*{', head) is not None


def _is_index(head: bytes, size: int) -> bool:
    room = size - index_file.HEADER.size - index_file.SLOT.size - index_file.ENTRY.size
    if room < 0 or size % index_file.SLOT.size or len(head) < index_file.HEADER.size:
        return False
    header = index_file.HEADER.decode(head)
    return (_is_time(header.begin_timestamp) and _is_time(header.end_timestamp)
            and header.begin_timestamp <= header.end_timestamp
            and 0 <= header.begin_phy_offset <= header.end_phy_offset
            and 0 <= header.hash_slot_count <= max(header.index_count, 1)
            and header.index_count <= size // index_file.ENTRY.size)


def _is_tiered_index(head: bytes, size: int) -> bool:
    if len(head) < index.HEADER.size:
        return False
    header = index.HEADER.decode(head)
    return header.magic in index.MAGICS and (
        0 <= header.item_count <= size // index.COMPACTED_ITEM.size)


def _is_timercheck(head: bytes, size: int) -> bool:
    if size not in (timer_check.TIMER_CHECK.size, timer_check.PAGE_SIZE) or any(
            head[timer_check.TIMER_CHECK.size:]) or len(head) < timer_check.TIMER_CHECK.size:
        return False
    timer_check_record = timer_check.parse(head)
    progress = (timer_check_record.last_timer_log_flush_pos,
                timer_check_record.last_timer_queue_offset,
                timer_check_record.master_timer_queue_offset)
    versioned = size == timer_check.TIMER_CHECK.size or _is_time(timer_check_record.timestamp)
    return _is_time(timer_check_record.last_read_time_ms) and min(progress) >= 0 and versioned


def _is_checkpoint(head: bytes, size: int) -> bool:
    if size != checkpoint.PAGE_SIZE or len(head) < checkpoint.CHECKPOINT.size or (
            not checkpoint.rest_is_zero(head)):
        return False
    checkpoint_record = checkpoint.parse(head)
    times = checkpoint_record[:checkpoint.CLASSIC_FIELDS]
    return any(times) and all(not time or _is_time(time)
                              for time in times) and min(checkpoint_record) >= 0


def _is_batch(head: bytes, size: int) -> bool:
    if size % batch_consume_queue.UNIT_SIZE or len(head) < batch_consume_queue.UNIT_SIZE:
        return False
    unit = batch_consume_queue.decode(head)
    return unit == compaction.END_UNIT or (
        unit.is_valid and unit.size >= message.MIN_SIZE and _is_time(unit.store_timestamp)
        and unit.compacted_offset == batch_consume_queue.NOT_COMPACTED and not unit.reserved)


def _is_ext(head: bytes, _size: int) -> bool:
    steps = list(consume_queue_ext.walk(head[:1024]))
    if not steps or steps[0].unit is None or not _is_time(steps[0].unit.store_timestamp):
        return False
    return all(step.error is None or step.at + step.size >= len(head[:1024]) for step in steps)


def _is_consumequeue(head: bytes, size: int) -> bool:
    step = consume_queue.UNIT_SIZE
    if size % step or len(head) < step:
        return False
    end = 0
    for number, position in enumerate(range(0, len(head) - step + 1, step)):
        unit = consume_queue.decode(head, position)
        if unit == consume_queue.ZERO:
            return number > 0
        if unit.is_filler:
            continue
        if unit.physical_offset < end or unit.size < message.MIN_SIZE:
            return False
        end = unit.physical_offset + unit.size
    return True


def _parses(parse: Callable[[bytes], object]) -> Callable[[bytes, int], bool]:
    def check(head: bytes, size: int) -> bool:
        if not 0 < size == len(head):
            return False
        try:
            parse(head)
        except FormatError:
            return False
        return True
    return check


def _is_pid(head: bytes, size: int) -> bool:
    return 0 < size == len(head) <= 10 and head.isdigit()


_CHECKS: tuple[tuple[str, Callable[[bytes, int], bool]], ...] = (
    (LOCK, _is_lock),
    (ABORT, _is_pid),
    (CLIENT_OFFSETS, _is_client_offsets),
    (CONFIG, _is_config),
    (COMMITLOG, _is_commitlog),
    (DLEDGER_INDEX, _is_dledger_index),
    (DLEDGER, _is_dledger),
    (TIMERLOG, _is_timerlog),
    (TIMERWHEEL, lambda _head, size: size == timer_wheel.FILE_SIZE),
    (TIMERCHECK, _is_timercheck),
    (CHECKPOINT, _is_checkpoint),
    (TIERED_INDEX, _is_tiered_index),
    (INDEX, _is_index),
    (BATCHCONSUMEQUEUE, _is_batch),
    (CONSUMEQUEUE_EXT, _is_ext),
    (CONSUMEQUEUE, _is_consumequeue),
    (EPOCH, _parses(epoch.parse)),
    (DLEDGER_CHECKPOINT, _parses(dledger.parse_checkpoint)),
    (BROKER_IDENTITY, _parses(broker_identity.parse)),
)


def from_content(head: bytes, size: int) -> str | None:
    """Return the kind that the first bytes (and the size) identify, or None."""
    if not head.strip(b"\0"):
        return TIMERWHEEL if size == timer_wheel.FILE_SIZE else None
    return next((kind for kind, check in _CHECKS if check(head, size)), None)
