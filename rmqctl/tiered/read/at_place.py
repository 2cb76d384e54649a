"""Single messages of a queue in a tier: by queue offset, or by a place in its commit log."""

from __future__ import annotations

from rmqctl.errors import FormatError
from rmqctl.formats.local import message
from rmqctl.formats.local.message import Record
from rmqctl.formats.tiered.units import CODA_SIZE, is_coda
from rmqctl.scan.resync import MAX_RECORD, next_provable
from rmqctl.scan.walk import Walk
from rmqctl.tiered.files.reader import close_source
from rmqctl.tiered.flat_file import Segment
from rmqctl.tiered.flat_queue import FlatQueue
from rmqctl.tiered.read.messages import Fault, held_from, proven

_WINDOW = 1 << 20
_HEAD = 1024


def at_offset(queue: FlatQueue, offset: int) -> Record | str:
    """The message of a queue offset, or in words why there is none. StoreIOError."""
    unit = queue.unit(offset)
    if unit is None:
        span = (f"the tier has {queue.cq_start} to {queue.commit_offset - 1}"
                if queue.commit_offset > queue.cq_start else "the queue is empty")
        return f"no queue offset {offset}: {span}"
    found = proven(queue, offset, unit)
    if not isinstance(found, Fault):
        return found
    first = held_from(queue)
    return f"expired: the first that is there is {first}" if offset < first else str(found)


def at_place(queue: FlatQueue, place: int, around: bool = False) -> Record | str:
    """The message that starts at an offset of the commit log, or with ``around`` lies around it;
    else in words what is there. StoreIOError.
    """
    flat = queue.commit_log
    one = flat.segment_of(place)
    if one is None:
        if place < flat.start:
            return f"expired: the commit log begins at {flat.start}"
        return f"nothing is at {place}: the commit log ends at {flat.end}"
    if around:
        return _around(queue, one, place)
    head = flat.read(place, _HEAD)
    if is_coda(head):
        return f"a coda record ({CODA_SIZE} bytes, written by 5.1 and 5.2) is at {place}"
    size = int.from_bytes(head[:4], "big", signed=True)
    try:
        if message.MIN_SIZE <= size <= MAX_RECORD:
            record = message.decode(flat.read(place, size), 0, place)
            if record.physical_offset == place:
                return record
    except FormatError:
        pass
    found = _around(queue, one, place)
    if isinstance(found, str):
        return f"no message starts at {place}: {found}"
    return (f"no message starts at {place}; it lies inside the one at {found.physical_offset} "
            f"({found.total_size} bytes), which --containing shows")


def _around(queue: FlatQueue, segment: Segment, place: int) -> Record | str:
    """Walks up to the place from windows that grow backwards, up to the segment's start."""
    source = queue.commit_log.reader.source(segment.path, segment.base)
    try:
        at, window = place - segment.base, _WINDOW
        while True:
            start = max(0, at - window)
            first = next_provable(source, start, min(at + 1, source.size)) if start else 0
            for batch in Walk(source, first, at + 1) if first is not None else ():
                if len(batch):
                    last = len(batch) - 1
                    begin = int(batch.offset[last])
                    if begin <= place < begin + int(batch.column("total_size")[last]):
                        return message.decode(batch.bytes_at(last))
            if start == 0:
                return f"damage or unused bytes are around {place}"
            window *= 8
    finally:
        close_source(source)
