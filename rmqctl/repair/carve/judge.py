"""Check whether a record, a blank or the end of a log is at a position in a window."""

from __future__ import annotations

from rmqctl.formats import dledger, layout
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    HOST_BITS,
    MAGIC_BLANK,
    MIN_SIZE,
    PROPERTIES_LENGTH_SIZE,
    START_SIZE,
    VERSIONS,
    Blank,
    Message,
    total_size_at,
    variant,
)
from rmqctl.repair.carve.window import Candidates, Checksums, Window
from rmqctl.scan.resync import MAX_RECORD, extent

HEAD = layout.reader(Message, "total_size", "magic", "body_crc", "physical_offset", "sys_flag")
LAST_RECORD = 8 << 20
_BLANK = layout.reader(Blank)


class Judge:
    """Checker of positions in a window's source. Shifts are defined in
    `rmqctl.repair.carve.scan`.
    """

    def __init__(self, window: Window, candidates: Candidates) -> None:
        self._window, self._candidates = window, candidates
        self._sums = Checksums(window)
        self._searched = 0, 0, 0, False
        """Last result of `_next_followed`: (shift, from, to, whether a record starts at ``to``)."""

    def record(self, position: int) -> tuple[int, int, bool] | None:
        """Return (size, shift, whether the CRC matches) of the record at a position, or None."""
        window = self._window
        head = window.read(position, START_SIZE)
        if len(head) < START_SIZE:
            return None
        total, magic, crc, physical, sys_flag = HEAD.unpack_from(head)
        if magic not in VERSIONS or physical < 0 or not (
                MIN_SIZE <= total <= min(MAX_RECORD, self._window.size - position)):
            return None
        if extent(window, position) != total:
            return None
        shape = variant(sys_flag & HOST_BITS, magic)
        body_at = position + shape.head_size
        head_bytes = window.read(position, shape.head_size)
        if len(head_bytes) < shape.head_size:
            return None
        length = shape.head.unpack(head_bytes)[-1]
        return total, physical - position, self._sums.crc(body_at, body_at + length) == crc

    def starts(self, position: int, shift: int) -> bool:
        """Return whether magic and physical offset at a position match a record with this shift."""
        head = self._window.read(position, START_SIZE)
        if len(head) < START_SIZE:
            return False
        _, magic, _, physical, _ = HEAD.unpack_from(head)
        return magic in VERSIONS and bool(physical == position + shift)

    def is_blank(self, position: int) -> bool:
        """Return whether the header of an end-of-file record of any size is at a position."""
        head = self._window.read(position, BLANK_SIZE)
        if len(head) < BLANK_SIZE:
            return False
        total, magic = _BLANK.unpack(head)
        return magic == MAGIC_BLANK and bool(total >= BLANK_SIZE)

    def file_end(self, position: int) -> int:
        """Return the size of the blank or DLedger end mark that ends a log file at a position; 0 if
        neither is there.
        """
        head = self._window.read(position, BLANK_SIZE)
        if self.is_blank(position):
            return total_size_at(head)
        if dledger.detect(head) != dledger.END_OF_FILE:
            return 0
        return max(dledger.END.decode(head).size, 0)

    def own_end(self, position: int, shift: int, *, strict: bool = False) -> int | None:
        """Return the end of a record with a damaged header; None if it is unknown.

        With one of its possible sizes, the record must end where another record begins or, unless
        ``strict``, where the log ends.
        """
        head = self._window.read(position, START_SIZE)
        if len(head) < START_SIZE:
            return None
        total, magic, _, physical, _ = HEAD.unpack_from(head)
        # Lengths may add up by chance (a few bytes before a record, taken for a wider host), and
        # the end of the log tells less than another record: then the head has to fit a little.
        # A consumequeue file with one row has a place of 0, too: zeros say nothing by themselves.
        is_own = magic in VERSIONS or (
            physical == position + shift and (physical > 0 or total >= MIN_SIZE))
        sizes: list[int] = [total]
        if is_own:
            sizes += [size for magic in VERSIONS
                      if (size := extent(self._window, position, magic)) is not None]
        most = min(MAX_RECORD, self._window.size - position)
        ends = sorted(position + size for size in sizes if MIN_SIZE <= size <= most)
        for end in ends:
            if self.starts(end, shift):
                return end
        if is_own and not strict:
            for end in ends:
                if (end - position <= LAST_RECORD and self._is_end(end)
                        and self._next_followed(position + 1, end, shift) >= end):
                    return end
        return None

    def _is_end(self, position: int) -> bool:
        """Return whether a log may end at a position: with a blank, zeros, or the end of the
        source.
        """
        return self.is_blank(position) or not any(self._window.read(position, START_SIZE))

    def _next_followed(self, start: int, end: int, shift: int) -> int:
        """Return the position of the first intact record from ``start`` on. Another record or an
        end of the log must follow this record.

        Without such a record before ``end``, the result is ``end`` or more. The searched range is
        cached: each byte is searched only once.
        """
        log_shift, low, high, stands = self._searched
        if log_shift != shift or not low <= start <= high:
            low = high = start
        elif stands:
            return high
        for position in self._candidates.within(high, end):
            record = self.record(position)
            if not (record and record[2] and record[1] == shift):
                continue
            if self.starts(position + record[0], shift) or self._is_end(position + record[0]):
                self._searched = shift, low, position, True
                return position
        self._searched = shift, low, max(high, end), False
        return end

    def behind(self, position: int, end: int) -> int:
        """Return the position at which the search continues after the last record of a chain. This
        is ``end``, the end of the record, or the start of its topic.

        No CRC covers topic and properties. If these are not text, they were overwritten, and
        another record may start there.
        """
        head = self._window.read(position, START_SIZE)
        if len(head) < START_SIZE:
            return end
        _, magic, _, _, sys_flag = HEAD.unpack_from(head)
        shape = variant(sys_flag & HOST_BITS, magic)
        head_bytes = self._window.read(position, shape.head_size)
        if len(head_bytes) < shape.head_size:
            return end
        body: int = shape.head.unpack(head_bytes)[-1]
        tail = position + shape.head_size + body + shape.topic_length.size
        raw = self._window.read(tail, end - tail)
        length = int.from_bytes(self._window.read(tail - shape.topic_length.size,
                                                  shape.topic_length.size))
        texts = raw[:length] + raw[length + PROPERTIES_LENGTH_SIZE:]
        try:
            texts.decode()
        except UnicodeDecodeError:
            return tail
        return tail if b"\0" in texts else end
