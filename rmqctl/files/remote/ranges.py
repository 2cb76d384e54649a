"""Reading of stores at a URL: their files are listed once and then read in ranges through fsspec.

A few small reads cost a few small requests. Sequential reads use ever larger ranges, and the next
range is requested in advance. Ranges are cached up to a limit. After each range the object is
checked again: a changed or missing object is an error.
"""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

from rmqctl.errors import StoreIOError
from rmqctl.files.remote import web
from rmqctl.files.remote.ends import SAMPLES, SMALL, search
from rmqctl.files.remote.listing import identity
from rmqctl.files.remote.reader import RemoteReader
from rmqctl.files.remote.threads import THREADS, run_all, submit, taken
from rmqctl.files.remote.web import NoRangesError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import used_length
from rmqctl.vfs import Listed

_MIN_RANGE, _MAX_RANGE = 64 << 10, 4 << 20
"""Sizes of ranges in bytes.

* ``_MIN_RANGE``: the first range of a file.
* ``_MAX_RANGE``: maximum for a range that is read ahead.
"""
_SINGLE = 1 << 10
"""Size in bytes of the range that is read for a sample, a single entry or a single record."""
_MAX_KEPT = 32 << 20
"""Maximum size in bytes of all cached ranges."""
_FEW = 2
"""Number of queues whose ends are determined one by one. After that, the ends of all other queues
are requested together. The same number applies to small files.
"""
_NO_END = 1 << 62
_TRIES = 4
_PAUSE = 0.25
"""Seconds before the second attempt; each further wait is twice as long."""
_GIVEN_UP = 10.0
"""Seconds for which an unreadable file is not requested again."""


@dataclass(slots=True, eq=False)
class _KeptRange:
    """A range of a file that is cached or being fetched. ``ahead``: whether no read has used it
    yet.
    """

    start: int
    end: int
    data: Future[bytes]
    ahead: bool = False


class RangeCache:
    """Thread-safe cache of ranges of remote files. Raises StoreIOError if a file has changed since
    it was listed.
    """

    def __init__(self, remote: RemoteReader, files: Mapping[str, Listed]) -> None:
        self._remote, self._files = remote, files
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int], _KeptRange] = {}
        self._of: dict[str, list[_KeptRange]] = {}
        self._size = 0
        self._zeros: dict[str, list[tuple[int, int]]] = {}
        self.requested = self.requests = 0
        self.failed: StoreIOError | None = None
        self.sampled = False
        self._ends: dict[str, int | None] = {}
        self._small = sorted(path for path, file in files.items() if 0 < file.size <= _MIN_RANGE)
        self._small_read: Counter[str] = Counter()
        self._given_up: dict[str, tuple[StoreIOError, float]] = {}

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes; fewer only at the end of the file."""
        end = min(position + length, self._files[path].size)
        parts = []
        while position < end:
            if (beyond := self.next_data(path, position)) > position:
                parts.append(bytes(min(beyond, end) - position))
                position = min(beyond, end)
                continue
            wanted = self._range(path, position, end - position)
            try:
                data = taken(wanted.data)
            except StoreIOError as error:
                self.failed = self.failed or error
                raise
            part = data[position - wanted.start:position - wanted.start + end - position]
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def next_data(self, path: str, position: int) -> int:
        """Return the first position at or after ``position`` that was not read, or is not zero."""
        spans = self._zeros.get(path, ())
        number = bisect.bisect_right(spans, (position, _NO_END)) - 1
        if number >= 0 and spans[number][1] > position:
            return spans[number][1]
        end = self.end_of(path)
        return position if end is None or position < end else self._files[path].size

    def end_of(self, path: str) -> int | None:
        """Return the position after the data of a preallocated file, as determined from samples.

        None if the file is not sampled, or if samples contradict each other.
        """
        folder = path.partition("/")[0]
        if not self.sampled or folder not in SAMPLES or self._files[path].size < SMALL:
            return None
        if path not in self._ends:
            # For the ends of many queues, determine all of them at once.
            others = [other for other in self._files if other.startswith("consumequeue/")
                      and self._files[other].size >= SMALL]
            many = path in others and len(self._ends.keys() & others) >= _FEW
            self._find_ends([other for other in others if other not in self._ends]
                            if many else [path])
        return self._ends[path]

    @property
    def sampled_files(self) -> int:
        return sum(end is not None for end in self._ends.values())

    def _find_ends(self, paths: Sequence[str]) -> None:
        """Search all files in parallel: each step is one round of simultaneous requests."""
        searches = {path: search(self._files[path].size, SAMPLES[path.partition("/")[0]],
                                 has_holes=path.startswith("commitlog/")) for path in paths}
        wanted = {path: next(steps) for path, steps in searches.items()}
        ends: dict[str, int | None] = {}
        while wanted:
            data = iter(self._at_once((), (
                (path, *place) for path, asked in wanted.items() for place in asked)))
            for path, asked in [*wanted.items()]:
                answers = list(itertools.islice(data, len(asked)))
                for (start, _), part in zip(asked, answers, strict=True):
                    if not start or len(asked) == 1:  # this data is read next
                        self._keep_read(path, start, part)
                try:
                    wanted[path] = searches[path].send(answers)
                except StopIteration as done:
                    ends[path] = done.value
                    del wanted[path]
        self._at_once(paths, ())
        self._ends |= ends

    def gather(self, path: str, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of many ranges (position, length). The ranges are requested at the same
        time and are not cached.
        """
        size = self._files[path].size
        return self._at_once([path], [
            (path, start, max(min(start + length, size), start)) for start, length in places])

    def _at_once(self, paths: Sequence[str], places: Iterable[tuple[str, int, int]]) -> list[bytes]:
        """Fetch many ranges, then check whether the files are the listed ones."""
        try:
            parts = run_all(lambda place: self._fetch(*place, check=False), places)
            run_all(lambda path: self._same(path, self._remote.where(path)), paths)
        except StoreIOError as error:
            self.failed = self.failed or error
            raise
        return parts

    def _keep_read(self, path: str, start: int, data: bytes) -> None:
        """Cache bytes that were already read."""
        with self._lock:
            before = self._kept.get((path, start))
            if before is None or before.end < start + len(data):
                if before is not None:
                    self._drop(path, before)
                done: Future[bytes] = Future()
                done.set_result(data)
                self._of.setdefault(path, [])
                self._keep(path, _KeptRange(start, start + len(data), done))

    def _note_zeros(self, path: str, start: int, end: int) -> None:
        """Remember that a range contains only zeros, so that it is not requested again."""
        with self._lock:
            spans = self._zeros.setdefault(path, [])
            low = bisect.bisect_left(spans, (start, 0))
            if low and spans[low - 1][1] >= start:
                low -= 1
                start = spans[low][0]
            high = low
            while high < len(spans) and spans[high][0] <= end:
                end = max(end, spans[high][1])
                high += 1
            spans[low:high] = [(start, end)]

    def close(self) -> None:
        """Drop the cached ranges; do not wait for pending requests."""
        with self._lock:
            for kept in self._kept.values():
                kept.data.cancel()
            self._kept.clear()
            self._of.clear()
            self._size = 0

    def _range(self, path: str, position: int, wanted: int) -> _KeptRange:
        with self._lock:
            ranges = self._of.setdefault(path, [])
            match = next((part for part in ranges if part.start <= position < part.end), None)
            if match is not None and match.data.done() and match.data.exception() is not None:
                self._drop(path, match)
                match = None
            goes_on = match is not None and match.ahead
            if match is None:
                before = next((part for part in ranges if part.end == position), None)
                match = self._asked(path, position, wanted, before)
                goes_on = before is not None
                if self._files[path].size <= _MIN_RANGE:
                    self._small_ahead(path)
            match.ahead = False
            key = path, match.start
            self._kept[key] = self._kept.pop(key)  # the most recently used range is last
            if goes_on:
                self._ahead(path, match)
            return match

    def _asked(self, path: str, position: int, wanted: int,
               before: _KeptRange | None) -> _KeptRange:
        """Request a range. A read that continues the previous range doubles the size of the
        range.
        """
        least = _SINGLE if self.sampled else _MIN_RANGE
        if before is not None:
            length = max(wanted, min(2 * (before.end - before.start), _MAX_RANGE))
        elif wanted < least:
            end = -(-(position + wanted) // least) * least
            position = max([position // least * least, *(
                other.end for other in self._of[path] if other.end <= position)])
            length = end - position
        else:
            length = wanted
        end = min(position + length, self._ends.get(path) or self._files[path].size)
        for other in self._of[path]:  # request no bytes twice
            if position < other.start < end:
                end = other.start
        part = _KeptRange(position, end, submit(self._fetch, path, position, end))
        self._keep(path, part)
        return part

    def _ahead(self, path: str, after: _KeptRange) -> None:
        """Request the next range ahead."""
        if after.end < self._files[path].size and not any(
                part.start <= after.end < part.end for part in self._of[path]):
            self._asked(path, after.end, 1, after).ahead = True

    def _small_ahead(self, path: str) -> None:
        """Request the next small files of a folder after some of them were read."""
        folder = path.partition("/")[0]
        self._small_read[folder] += 1
        if self.sampled or self._small_read[folder] <= _FEW:
            return
        number = bisect.bisect_right(self._small, path)
        for other in self._small[number:number + THREADS]:
            if other.startswith(f"{folder}/") and not self._of.get(other):
                self._of[other] = []
                self._asked(other, 0, self._files[other].size, None)

    def _keep(self, path: str, newest: _KeptRange) -> None:
        self._of[path].append(newest)
        self._kept[path, newest.start] = newest
        self._size += newest.end - newest.start
        for (other, _), part in [*self._kept.items()]:
            if self._size <= _MAX_KEPT:
                break
            if part is not newest and part.data.done():
                self._drop(other, part)

    def _drop(self, path: str, dropped: _KeptRange) -> None:
        self._of[path].remove(dropped)
        del self._kept[path, dropped.start]
        self._size -= dropped.end - dropped.start

    def _fetch(self, path: str, start: int, end: int, *, check: bool = True) -> bytes:
        began = time.monotonic()
        for tries in range(_TRIES):
            # Another request for an unreadable file fails immediately.
            error, when = self._given_up.get(path, (None, 0.0))
            if error is not None and time.monotonic() - when < _GIVEN_UP:
                raise error
            try:
                return self._once(path, start, end, check=check)
            except StoreIOError as failure:
                is_final = isinstance(failure, _ChangedError | NoRangesError) or (
                    tries == _TRIES - 1 or time.monotonic() - began > 2 * web.PATIENCE)
                if is_final:
                    if not isinstance(failure, _ChangedError):
                        self._given_up[path] = failure, time.monotonic()
                    raise
                time.sleep(_PAUSE * 2**tries)
        raise AssertionError("no attempt was made")

    def _once(self, path: str, start: int, end: int, *, check: bool) -> bytes:
        listed, where = self._files[path], self._remote.where(path)
        with self._lock:
            self.requested += end - start
            self.requests += 1
        try:
            data, seen = self._remote.fetch(path, start, end, listed.size)
        except StoreIOError as error:
            try:
                self._same(path, where)
            except _ChangedError:
                raise
            except StoreIOError:
                raise error from None
            raise
        if check and seen != listed.identity:
            self._same(path, where)
        if len(data) > end - start:
            raise NoRangesError(f"cannot read at offset {start} of {where}: the server does not "
                                "serve ranges")
        if len(data) < end - start:
            raise StoreIOError(f"cannot read at offset {start} of {where}: received "
                               f"{len(data):,} of {end - start:,} bytes")
        if not used_length(data):
            self._note_zeros(path, start, end)
        return data

    def _same(self, path: str, where: str) -> None:
        """Raise StoreIOError if an object has changed since it was listed."""
        listed, row = self._files[path], self._remote.info(path)
        if row is None:
            raise _ChangedError(f"{where}: was deleted while the store was being read")
        if (row.get("size"), identity(row)) != (listed.size, listed.identity):
            raise _ChangedError(f"{where}: was changed while the store was being read: start again")


class _ChangedError(StoreIOError):
    """Error for an object that changed while it was read: another attempt does not help."""
