"""Feeds logs to a dispatcher, and compares what it writes with what the engine wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rmqctl.broker.settings import Settings
from rmqctl.engine.dispatch.reput import Dispatcher
from rmqctl.formats.local import consume_queue, consume_queue_ext
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store
from tests.support import golden as golden_sets
from tests.support import replay

SETS = [golden_set for golden_set in golden_sets.all_sets() if not golden_set.is_damaged]
IDS = [golden_set.id for golden_set in SETS]

Piece = tuple[bytes, int, list[int]]
"""Whole records, the physical offset of the first, and the position of each."""


def pieces(store: Path, kind: str, most: int) -> Iterator[Piece]:
    """The log file by file, up to ``most`` records at a time, without the blanks."""
    dirs = golden_sets.MULTI_PATH if kind == "multipath" else ()
    with Store.open(store, dirs) as opened:
        for number in range(len(opened.log.files)):
            for batch in Walk(opened.log.source(number)):
                end = batch.start + batch.column("total_size")
                for at in range(0, len(batch), most):
                    last = min(at + most, len(batch)) - 1
                    first = int(batch.start[at])
                    yield (batch.data[first:int(end[last])].tobytes(), batch.base + first,
                           (batch.start[at:last + 1] - first).tolist())


def bit_maps(store: Path) -> dict[int, bytes | None]:
    """The filter bit maps of a golden store's extension units, by physical offset."""
    maps_by_offset: dict[int, bytes | None] = {}
    for folder in (store / "consumequeue_ext").glob("*/*"):
        units = {}
        for file in folder.iterdir():
            for step in consume_queue_ext.walk(file.read_bytes()):
                if step.unit is not None:
                    address = consume_queue_ext.address(int(file.name) + step.at)
                    units[address] = step.unit.bit_map or None
        for file in (store / "consumequeue" / folder.parent.name / folder.name).iterdir():
            for unit in consume_queue.UNIT.decode_all(file.read_bytes()):
                if unit.tags_code in units:
                    maps_by_offset[unit.physical_offset] = units[unit.tags_code]
    return maps_by_offset


class Clock:
    """A wall clock that stands still: names of index files must differ all the same."""

    def __call__(self) -> int:
        return 1_700_000_000_123


def dispatcher(root: Path, settings: Settings, log_end: int | None = None,
               **more: bool) -> Dispatcher:
    return Dispatcher(str(root), settings, Clock(), settings.batch_topics.__contains__, log_end,
                      **more)


def feed(to: Dispatcher, some: list[Piece], maps: dict[int, bytes | None] | None = None) -> None:
    for data, base, _ in some:
        to.dispatch(data, base, maps)


def derived(root: Path) -> dict[str, bytes]:
    """Queue and index files by relative name; index files by their order."""
    return {name: data for name, data in replay.contents(root).items()
            if not name.startswith(("commitlog/", "cl1/", "cl2/"))}


def assert_same(mine: Path, theirs: Path) -> None:
    derived_files, wanted = derived(mine), derived(theirs)
    assert sorted(derived_files) == sorted(wanted)
    assert [name for name in wanted if derived_files[name] != wanted[name]] == []
