"""Seams: for every cut what a walk over the whole file has there, or an error; never a guess."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from rmqctl.errors import StoreIOError
from rmqctl.formats.local import message
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from rmqctl.sql import seams
from rmqctl.sql.seams import QueueProof, Seams, walk_range
from tests.conftest import GoldenFolder
from tests.support import damage, forged
from tests.support import tiny as tiny_stores
from tests.support.share import every, sample

SMALL_STEPS = (300, 1200, 5000, 20_000)


@pytest.fixture
def small_steps(monkeypatch):
    """Anchors are looked for as in a large file: no walk from the start, because that is cheap."""
    monkeypatch.setattr(seams, "STEPS", SMALL_STEPS)
    monkeypatch.setattr(seams, "MAX_WALK", 0)


def borders(source: FileSource) -> list[int]:
    """Where a walk over the whole file stands, one after the other."""
    numbers = [0]
    walk = Walk(source)
    for batch in walk:
        numbers += (batch.start + batch.base - source.base).tolist()
        numbers += [span.offset - source.base for span in batch.spans[:1]]
        numbers.append(walk.position)
    return sorted(set(numbers))


def truth(standing: list[int], cut: int) -> int:
    return next(file for file in standing if file >= cut)


def frames(batches) -> list[tuple]:
    pairs = []
    for batch in batches:
        size = batch.column("total_size").tolist()
        topics = [batch.bytes_at(row) for row in range(len(batch))]
        pairs += list(zip(batch.offset.tolist(), size, topics, strict=True))
        pairs += [(span.offset, span.length, (span.kind, span.reason, span.field))
                  for span in batch.spans]
    return sorted(pairs, key=lambda pair: pair[0])


def cut_up(source: FileSource, proof, cuts: list[int]) -> list[tuple]:
    """The frames of all ranges between the cuts."""
    edges = [0, *sorted(cuts), source.size]
    return [frame for start, end in pairwise(edges) for frame in frames(
        walk_range(source, Seams(source, proof), start, end, last=end == source.size))]


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def opened(path: Path) -> FileSource:
    return FileSource(str(path), int(path.name))


def shattered(root: Path, seed: int) -> None:
    """Damage of all kinds in every file of a copy's log."""
    rng = random.Random(seed)
    for file in log_files(root):
        name, size = f"commitlog/{file.name}", file.stat().st_size
        for number in range(6):
            at = rng.randrange(size - 64)
            if number % 3 == 0:
                damage.flip_bit(root, name, at, rng.randrange(8))
            elif number % 3 == 1:
                damage.zero(root, name, at, min(rng.randrange(1, 6000), size - at))
            else:
                damage.garbage_tail(root, name, at, seed + number, min(3000, size - at))


STORES = ["4.9.3/basic/store", "5.3.3/basic/store", "5.3.3/crash-base/store",
          "5.3.3/transaction/store", "5.3.3/batchcq/store"]


@pytest.mark.long
@pytest.mark.parametrize("proven", [True, False], ids=["with queues", "without"])
def test_any_cut_of_sound_files(proven: bool, golden: GoldenFolder, seed: int,
                                small_steps: None) -> None:
    rng = random.Random(seed)
    for root in map(golden, STORES):
        proof = QueueProof(str(root)) if proven else None
        for path in log_files(root):
            with opened(path) as source:
                standing = borders(source)
                for cut in rng.sample(range(source.size), 60):
                    assert Seams(source, proof).at(cut) == truth(standing, cut), (path, cut)


@pytest.mark.parametrize("proven", [True, False], ids=["with queues", "without"])
@pytest.mark.parametrize("round_", sample(range(4), 2, "damaged files"))
def test_any_cut_of_damaged_files(round_: int, proven: bool, golden_copy: GoldenFolder,
                                  seed: int, small_steps: None) -> None:
    root = golden_copy(STORES[round_ % 3])
    shattered(root, seed + round_)
    rng = random.Random(seed)
    proof = QueueProof(str(root)) if proven else None
    for path in log_files(root):
        with opened(path) as source:
            standing = borders(source)
            near = [file + shift for file in standing for shift in (-1, 0, 1)]
            for cut in [*rng.sample(range(source.size), 40), *rng.sample(near, 40)]:
                inside = min(max(cut, 0), source.size)
                assert Seams(source, proof).at(inside) == truth(standing, inside), (path, cut)


def test_the_queues_are_asked_and_spare_the_way_back(golden: GoldenFolder, small_steps: None,
                                                     monkeypatch) -> None:
    """In a sound store nobody has to walk from the file's start."""
    root = golden("5.3.3/basic/store")

    def refused(*_: object) -> int:
        raise AssertionError("walked from the start")

    monkeypatch.setattr(seams, "STEPS", (16 << 10, 40 << 10))
    monkeypatch.setattr(Seams, "_walked", refused)
    met = 0
    for path in log_files(root):
        with opened(path) as source:
            standing = borders(source)
            for cut in range(41 << 10, standing[-2] - 9000, 2003):
                assert Seams(source, QueueProof(str(root))).at(cut) == truth(standing, cut)
                met += 1
    assert met > 20


@pytest.mark.long
@pytest.mark.parametrize("count", sample([1, 2, 7, 64], 2, "ranges"))
def test_ranges_are_the_sequential_walk(count: int, golden_copy: GoldenFolder, seed: int,
                                        small_steps: None) -> None:
    for number, name in enumerate(STORES[:3]):
        root = golden_copy(name)
        if number:
            shattered(root, seed)
        for path in log_files(root):
            with opened(path) as source:
                whole = frames(Walk(source))
                even = [source.size * number // count for number in range(1, count)]
                odd = sorted(random.Random(seed).sample(range(source.size), count - 1))
                for cuts in (even, odd):
                    cut_ranges = cut_up(source, QueueProof(str(root)), cuts)
                    assert cut_ranges == whole
                assert sum(frame[1] for frame in whole) == source.size


@pytest.mark.long
def test_every_cut_of_a_tiny_store(tiny_base: tiny_stores.Tiny, small_steps: None) -> None:
    for path in log_files(tiny_base.root):
        with opened(path) as source:
            whole = frames(Walk(source))
            for cut in every(3, range(1, source.size), "cuts"):
                assert cut_up(source, QueueProof(str(tiny_base.root)), [cut]) == whole, cut
            assert cut_up(source, None, list(range(1, source.size, 3))) == whole


# -- bodies that hold records ---------------------------------------------------------------------


def claiming(store: tiny_stores.Tiny, inside: int) -> None:
    """The forged records now say they are the messages of a real queue."""
    name, position = store.place(inside)
    path = store.root / name
    data = bytearray(path.read_bytes())
    text = message.decode(bytes(data[position:position + len(forged.records(0, 1))]))
    at, number = position, 0
    while True:
        raw = bytes(data[at:at + text.total_size])
        try:
            record = message.decode(raw)
        except Exception:  # noqa: BLE001
            break
        if record.topic != b"forged":
            break
        built = message.build(replace(record, topic=b"orders", queue_offset=number))
        assert len(built) == len(raw)
        data[at:at + len(raw)] = built
        at, number = at + len(raw), number + 1
    assert number > 2
    path.write_bytes(data)


@pytest.mark.long
@pytest.mark.parametrize("claims", [False, True], ids=["own topic", "topic of a queue"])
def test_forged_records_are_not_believed(claims: bool, tmp_path: Path, small_steps: None) -> None:
    """Well placed and chained, near to the cut: only the queue's row tells them from real ones."""
    store, inside = forged.build(tmp_path, around=12, file_size=16384)
    if claims:
        claiming(store, inside)
    proof = QueueProof(str(store.root))
    with opened(log_files(store.root)[0]) as source:
        whole = frames(Walk(source))
        standing = borders(source)
        size = len(forged.records(0))
        for cut in range(inside - 200, inside + size + 200):
            assert Seams(source, proof).at(cut) == truth(standing, cut), cut
        for width in (64, 97, 333):
            assert cut_up(source, proof, list(range(1, source.size, width))) == whole


def test_without_queues_a_forged_record_is_never_read_silently(tmp_path: Path, monkeypatch) -> None:
    """No row can tell: where resyncs agree on the wrong seam, the range before it notices."""
    monkeypatch.setattr(seams, "MAX_WALK", 0)
    monkeypatch.setattr(seams, "STEPS", (60, 120, 180))
    store, inside = forged.build(tmp_path, around=4, file_size=16384)
    ended = 0
    with opened(log_files(store.root)[0]) as source:
        whole = frames(Walk(source))
        for cut in range(inside, inside + 300, 7):
            try:
                assert cut_up(source, None, [cut]) == whole
            except StoreIOError as error:
                assert "splitSize=0" in str(error)
                assert str(source.name) in str(error)
                ended += 1
    assert ended, "the forged record was not even met"


def test_where_it_is_cheap_the_files_start_decides(tmp_path: Path) -> None:
    store, inside = forged.build(tmp_path, around=4, file_size=16384)
    with opened(log_files(store.root)[0]) as source:
        whole = frames(Walk(source))
        for cut in range(inside - 50, inside + 400, 11):
            assert cut_up(source, None, [cut, cut + 30]) == whole


# -- files that change ----------------------------------------------------------------------------


def test_a_file_that_shrinks_is_named(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    path = log_files(root)[0]
    with opened(path) as source:
        size = source.size
        damage.truncate(root, f"commitlog/{path.name}", size // 2)
        for start, end, last in ((0, size, True), (0, size * 3 // 4, False),
                                 (size * 3 // 4, size, True)):
            source.size = size
            with pytest.raises(StoreIOError, match=f"{path.name}: the file shrank"):
                list(walk_range(source, Seams(source, QueueProof(str(root))), start, end,
                                last=last))


def test_unreadable_queues_prove_nothing(golden_copy: GoldenFolder, small_steps: None) -> None:
    root = golden_copy("5.3.3/basic/store")
    for file in (root / "consumequeue").rglob("0*"):
        if file.is_file():
            damage.symlink_to_itself(root, str(file.relative_to(root)))
    proof = QueueProof(str(root))
    with opened(log_files(root)[0]) as source:
        standing = borders(source)
        for cut in range(1, source.size, 4999):
            assert Seams(source, proof).at(cut) == truth(standing, cut)


@pytest.mark.parametrize("change", [
    {"physical_offset": 1}, {"total_size": 1}, {"queue_offset": 1}, {"queue_id": 1}])
def test_only_the_row_that_leads_here_proves(change: dict[str, int],
                                             tiny_base: tiny_stores.Tiny) -> None:
    proof = QueueProof(str(tiny_base.root))
    record = tiny_base.messages[0].record
    assert proof(record)
    assert not proof(replace(record, **{name: getattr(record, name) + by
                                        for name, by in change.items()}))


@pytest.mark.parametrize("topic", [b"", b".", b"..", b"a/b", b"a\0b", b"\xff\xfe", b"x" * 300])
def test_strange_topics_prove_nothing(topic: bytes, tiny_base: tiny_stores.Tiny) -> None:
    record = replace(tiny_base.messages[0].record, topic=topic)
    assert not QueueProof(str(tiny_base.root))(record)
    assert QueueProof(str(tiny_base.root))(tiny_base.messages[0].record)
