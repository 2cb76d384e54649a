"""What the bytes at one position of a window say: a record, a blank, a record with a damaged head.

Everything here goes by content and costs a few small reads, whatever sizes the bytes claim.
"""

from __future__ import annotations

from rmqctl.formats import layout
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    HOST_BITS,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    START_SIZE,
    Blank,
    Message,
    variant,
)
from rmqctl.repair.carve.candidates import Candidates
from rmqctl.repair.carve.window import Checksums, Window
from rmqctl.scan.frames import PROPERTIES_LENGTH_SIZE
from rmqctl.scan.resync import MAX_RECORD, extent

HEAD = layout.reader(Message, "total_size", "magic", "body_crc", "physical_offset", "sys_flag")
_BLANK = layout.reader(Blank)
_LAST_RECORD = 8 << 20
_MAGICS = (MAGIC_V1, MAGIC_V2)


class Judge:
    """Judges positions of a window's source. Shifts are as in `carve_scan`."""

    def __init__(self, window: Window, candidates: Candidates) -> None:
        self._window, self._candidates = window, candidates
        self._sums = Checksums(window)
        self._searched = 0, 0, 0, False
        """(shift, from, to, whether one stands there): see `_next_followed`."""

    def record(self, at: int) -> tuple[int, int, bool] | None:
        """(size, shift, whether the CRC is right) of the record at a position, if there is one."""
        window = self._window
        head = window.read(at, START_SIZE)
        if len(head) < START_SIZE:
            return None
        total, magic, crc, physical, sys_flag = HEAD.unpack_from(head)
        if magic not in _MAGICS or physical < 0 or not (
                MIN_SIZE <= total <= min(MAX_RECORD, self._window.size - at)):
            return None
        if extent(window, at) != total:
            return None
        shape = variant(sys_flag & HOST_BITS, magic)
        body_at = at + shape.head_size
        whole = window.read(at, shape.head_size)
        if len(whole) < shape.head_size:
            return None
        length = shape.head.unpack(whole)[-1]
        return total, physical - at, self._sums.crc(body_at, body_at + length) == crc

    def starts(self, at: int, shift: int) -> bool:
        """Whether magic and physical offset say that a record with this shift starts here."""
        head = self._window.read(at, START_SIZE)
        if len(head) < START_SIZE:
            return False
        _, magic, _, physical, _ = HEAD.unpack_from(head)
        return magic in _MAGICS and bool(physical == at + shift)

    def is_blank(self, at: int) -> bool:
        """Whether the head of an END_OF_FILE record stands here, of whatever size."""
        head = self._window.read(at, BLANK_SIZE)
        if len(head) < BLANK_SIZE:
            return False
        total, magic = _BLANK.unpack(head)
        return magic == MAGIC_BLANK and bool(total >= BLANK_SIZE)

    def own_end(self, at: int, shift: int, *, strict: bool = False) -> int | None:
        """Where a record with a damaged head ends, if one of its sizes leads to the next record.

        Unless ``strict``, the end of the log will do as well.
        """
        head = self._window.read(at, START_SIZE)
        if len(head) < START_SIZE:
            return None
        total, magic, _, physical, _ = HEAD.unpack_from(head)
        # Lengths may add up by chance (a few bytes before a record, taken for a wider host), and
        # the end of the log tells less than another record: then the head has to fit a little.
        is_own = magic in _MAGICS or physical == at + shift
        sizes: list[int] = [total]
        if is_own:
            sizes += [one for magic in _MAGICS
                      if (one := extent(self._window, at, magic)) is not None]
        most = min(MAX_RECORD, self._window.size - at)
        ends = sorted(at + size for size in sizes if MIN_SIZE <= size <= most)
        for end in ends:
            if self.starts(end, shift):
                return end
        if is_own and not strict:
            for end in ends:
                if (end - at <= _LAST_RECORD and self._is_end(end)
                        and self._next_followed(at + 1, end, shift) >= end):
                    return end
        return None

    def _is_end(self, at: int) -> bool:
        """Whether a log may end here: a blank, zeros, or the end of the source."""
        return self.is_blank(at) or not any(self._window.read(at, START_SIZE))

    def _next_followed(self, start: int, end: int, shift: int) -> int:
        """Where from ``start`` on an intact record stands that another one or an end follows.

        ``end`` or more if there is none before. What was searched is remembered, so that this
        costs one search of the source in all.
        """
        home, low, high, stands = self._searched
        if home != shift or not low <= start <= high:
            low = high = start
        elif stands:
            return high
        for at in self._candidates.within(high, end):
            found = self.record(at)
            if not (found and found[2] and found[1] == shift):
                continue
            if self.starts(at + found[0], shift) or self._is_end(at + found[0]):
                self._searched = shift, low, at, True
                return at
        self._searched = shift, low, max(high, end), False
        return end

    def behind(self, at: int, end: int) -> int:
        """Where the search goes on behind the last record of a chain.

        No CRC covers topic and properties. Where they are no text, other bytes have been written
        over them, and a record may start there.
        """
        head = self._window.read(at, START_SIZE)
        if len(head) < START_SIZE:
            return end
        _, magic, _, _, sys_flag = HEAD.unpack_from(head)
        shape = variant(sys_flag & HOST_BITS, magic)
        whole = self._window.read(at, shape.head_size)
        if len(whole) < shape.head_size:
            return end
        body: int = shape.head.unpack(whole)[-1]
        tail = at + shape.head_size + body + shape.topic_length.size
        raw = self._window.read(tail, end - tail)
        length = int.from_bytes(self._window.read(tail - shape.topic_length.size,
                                                  shape.topic_length.size))
        texts = raw[:length] + raw[length + PROPERTIES_LENGTH_SIZE:]
        try:
            texts.decode()
        except UnicodeDecodeError:
            return tail
        return tail if b"\0" in texts else end
