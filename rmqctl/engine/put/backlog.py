"""What was appended to the log and is yet to be dispatched (reput; spec: recovery.md §6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rmqctl.engine.put.cursor import Stretch

DISPATCH_BYTES = 1 << 20
"""Bytes of records that are dispatched together: each round has a cost of its own."""


class Backlog:
    """Stretches of records in the order of the log. The put lock guards it."""

    def __init__(self, dispatch: Callable[[Stretch], None]) -> None:
        self._dispatch = dispatch
        self._waiting: list[Stretch] = []
        self._bytes = 0

    def add(self, written: list[Stretch]) -> bool:
        """Takes what was written; whether it is time to `clear`."""
        self._waiting += written
        self._bytes += sum([len(one.data) for one in written])
        return self._bytes >= DISPATCH_BYTES

    def clear(self) -> None:
        """Dispatches everything."""
        for one in joined(self._waiting):
            self._dispatch(one)
        self._waiting, self._bytes = [], 0


def joined(stretches: list[Stretch]) -> Iterator[Stretch]:
    """The stretches, those that lie right behind each other as one.

    Single puts leave one for each message. None goes on over the end of a file: there is always
    a blank between.
    """
    at = 0
    while at < len(stretches):
        first = stretches[at]
        end, stop = first.base + len(first.data), at + 1
        while stop < len(stretches) and stretches[stop].base == end:
            end += len(stretches[stop].data)
            stop += 1
        run = stretches[at:stop]
        at = stop
        if len(run) == 1:
            yield first
            continue
        maps: dict[int, bytes | None] = {}
        for one in run:
            maps |= one.bit_maps
        yield Stretch(first.base, b"".join([one.data for one in run]),
                      [one.base - first.base + start for one in run for start in one.starts],
                      maps)
