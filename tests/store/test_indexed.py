"""What is passed over for a key holds no message with it, whatever is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from benchmarks import grown
from rmqctl.broker.view import view_of
from rmqctl.store import Store
from rmqctl.store.query import indexed
from rmqctl.store.query.conditions import KEY, Condition
from rmqctl.store.query.select import Selection, Selector
from tests.conftest import GoldenFolder
from tests.support import golden as golden_sets
from tests.support.share import sample

STORES = [pytest.param(golden_store, id=golden_store.id)
          for golden_store in golden_sets.golden_stores()]
SHAPE = grown.Shape(messages=900, queues=7, files=4)
ENTRY, HEADER = 20, 40


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is used, and for each message alone, however small the store is."""
    monkeypatch.setattr(indexed, "_COSTS", 0)
    monkeypatch.setattr(indexed, "_NEAR", 0)
    monkeypatch.setattr(indexed, "_BLOCK", 50)
    monkeypatch.setattr(grown, "INDEX_SLOTS", 1_000)
    monkeypatch.setattr(grown, "INDEX_MAX", 4_000)


def _numbers(store: Store, **wanted: object) -> list[int]:
    selection = Selection(**wanted)  # type: ignore[arg-type]
    return [record.physical_offset
            for record in Selector(store, selection, view_of(store, "disk")).records()]


def _alike(store: Store, key: str, topic: str | None = None) -> list[int]:
    """The messages with a key, which are the same as without the index."""
    numbers = _numbers(store, key=key, topic=topic)
    assert numbers == _numbers(store, where=(Condition(KEY, "=", key),), topic=topic)
    return numbers


@pytest.mark.parametrize("golden_store", sample(STORES, 25, "keys through the index"))
def test_the_same_messages_as_without_the_index(golden_store: golden_sets.GoldenStore,
                                                golden: GoldenFolder) -> None:
    with Store.open(golden(golden_store.id), golden_store.dirs) as store:
        keys: dict[str, str] = {}
        for page in Selector(store, Selection(), view_of(store, "disk")).pages():
            for topic, some, unique in zip(*map(page.column, ("topic", "keys", "unique_key")),
                                           strict=True):
                keys |= {key: topic for key in (*some, unique) if key}
        for key in Random(1).sample(sorted(keys), min(5, len(keys))):
            assert _alike(store, key)
            _alike(store, key, keys[key])
        assert _alike(store, "no such key") == []


def test_sound_messages_are_passed_over(tmp_path: Path) -> None:
    store = _built(tmp_path)
    with Store.open(store) as opened:
        passed = indexed.passed_over(opened, None, "k000000000123")
        assert passed is not None
        left = [stretch for file in opened.log.files for stretch in passed.left(
            file.base, file.end)]
        size = grown.record_type().itemsize
        # The message itself, the ends of files, and what is behind the end of the index.
        assert sum(end - start for start, end in left) < 2 * size
        assert len(left) == 1 + SHAPE.files


def _index(store: Path) -> Path:
    return next((store / "index").iterdir())


def _entries_at(file: Path) -> int:
    return HEADER + grown.INDEX_SLOTS * 4


def _write(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as out:
        out.seek(at)
        out.write(data)


def _zeroed_index(store: Path, luck: Random) -> None:
    file = _index(store)
    _write(file, _entries_at(file) + luck.randrange(1, 900) * ENTRY - luck.randrange(20),
           bytes(luck.randrange(4096)))


def _places_of_the_index(store: Path, luck: Random) -> None:
    file = _index(store)
    for _ in range(9):
        at = _entries_at(file) + luck.randrange(1, 900) * ENTRY
        _write(file, at + 4 + luck.randrange(8), bytes([luck.randrange(256)]))


def _repeated_index(store: Path, luck: Random) -> None:
    file = _index(store)
    raw, first = file.read_bytes(), _entries_at(file)
    start, to = (first + luck.randrange(1, 800) * ENTRY for _ in range(2))
    _write(file, to, raw[start:start + 60 * ENTRY])


def _short_index(store: Path, luck: Random) -> None:
    _write(_index(store), 36, luck.randrange(1, 900).to_bytes(4, "big"))


def _rows(store: Path, luck: Random) -> None:
    for _ in range(40):
        file = luck.choice(sorted((store / "consumequeue").glob("*/0/*")))
        _write(file, luck.randrange(120 * 20), bytes([luck.randrange(256)]))


def _lost_queue(store: Path, luck: Random) -> None:
    luck.choice(sorted((store / "consumequeue").glob("*/0/*"))).unlink()


def _zeroed_log(store: Path, luck: Random) -> None:
    file = luck.choice(sorted((store / "commitlog").iterdir()))
    _write(file, luck.randrange(30_000), bytes(luck.randrange(4096)))


@pytest.mark.parametrize("harm", [_zeroed_index, _places_of_the_index, _repeated_index,
                                  _short_index, _rows, _lost_queue, _zeroed_log])
@pytest.mark.parametrize("seed", range(4))
def test_damage_hides_no_message(harm: Callable[[Path, Random], None], seed: int,
                                 tmp_path: Path) -> None:
    store, luck = _built(tmp_path), Random(seed)
    harm(store, luck)
    with Store.open(store) as opened:
        places = {}
        for page in Selector(opened, Selection(), view_of(opened, "disk")).pages():
            places |= {keys[0]: place for keys, place in zip(
                page.column("keys"), page.column("physical_offset"), strict=True) if keys}
        assert len(places) > 800
        near = sorted(places)
        for key in luck.sample(near, 12):
            assert _numbers(opened, key=key) == [places[key]]


def _built(folder: Path) -> Path:
    grown.make(SHAPE, folder / "store")
    return folder / "store"
