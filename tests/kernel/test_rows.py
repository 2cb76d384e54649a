"""Both builds on the same messages: consumequeue rows, index entries and their chains."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.broker.settings import Settings
from rmqctl.broker.versions import version_of
from rmqctl.engine.dispatch.derive import Derived, Deriver, FurtherRows
from rmqctl.engine.dispatch.reput import Dispatcher
from rmqctl.errors import RmqctlError
from rmqctl.ext.tiered.index import compacted_form, index_file
from rmqctl.ext.tiered.index.index_file import TierIndexFile
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import MAGIC_V1, Record, build, size_of
from rmqctl.kernel import active
from rmqctl.scan.frames import records_from
from tests.kernel.test_equal import on_both, rounds
from tests.support.kernels import compiled_only, using
from tests.tiered.test_compact_form import damaged, file_of, model, written

pytestmark = compiled_only

TOPICS = [b"a", b"b", b"batch", b"", b"..", b"a/b", b"%LMQ%x", b"\xff"]
LIMITS = (-(1 << 63), -1, 0, 1, (1 << 31) - 1, 1 << 31, (1 << 63) - 1)
NOW = 1_700_000_000_000


def settings() -> Settings:
    return Settings(consumequeue_file_size=140, index_slots=7, index_max=12, lmq=True,
                    multi_dispatch=True)


def messages(source: random.Random) -> list[Derived]:
    """What messages of a log lead to, nearly all of it sound, in several parts."""
    odd = source.choice((0.0, 0.02, 0.3))
    ids = source.choice(((0,), (0, 1, 2), (0, 1, 63, 64, -1, (1 << 31) - 1, -(1 << 31))))
    next_offset: dict[tuple[int, int], int] = {}
    physical, now, parts = source.choice((0, 1000)), source.choice((NOW, NOW, 5, 0)), []
    for _ in range(source.randrange(1, 5)):
        rows: list[tuple[int, ...]] = []
        for _ in range(source.choice((1, 1, 5, 30, 60))):
            topic, queue_id = source.randrange(source.choice((2, len(TOPICS)))), source.choice(ids)
            offset = next_offset.setdefault((topic, queue_id), source.choice((0, 0, 5, 1 << 40)))
            next_offset[topic, queue_id] = offset + 1
            size = source.randrange(91, 2000)
            now += source.choice((0, 1, 999, 5000, -4000))
            if source.random() < odd:
                offset = source.choice((*LIMITS, offset - 1, offset + 3))
            when = source.choice(LIMITS) if source.random() < odd / 4 else now
            rows.append((topic, queue_id, offset, physical, size, when,
                         source.choice((0, 7, -(1 << 31), (1 << 31) - 1, 1 << 45))))
            physical += size
        topic, queue_id, offset, at, size, when, tags = np.array(rows, np.int64).T
        row = np.repeat(np.arange(len(rows)), [source.choice((0, 1, 2, 5)) for _ in rows])
        hashes = [source.choice((0, 6, 7, (1 << 31) - 1, source.getrandbits(31))) for _ in row]
        rowed = np.array([source.random() > odd for _ in rows])
        more = np.sort(np.array(source.choices(range(len(rows)), k=source.choice((0, 0, 3)))))
        further = FurtherRows([b"%LMQ%y", b"a", b"x/y"], more,
                              np.array([source.randrange(3) for _ in more], np.int64),
                              np.array([source.choice((0, 1, -1, 9)) for _ in more], np.int64))
        parts.append(Derived(TOPICS, topic, queue_id, offset, at, size, when, tags, rowed, row,
                             np.array(hashes, np.int64), further if len(more) else None, None))
    return parts


PIECES = (b"KEYS\x01", b"UNIQ_KEY\x01", b"TAGS\x01", b"\x02", b"\x02", b"\x01", b" ", b"k1 k2", b"",
          b"KEYS\x01a  b \x02", b"UNIQ_KEY\x01C0 A8\x02", b"TAGS\x01t\x02", b"TAGS\x01\x02",
          "KEYS\x01é k\x02".encode(), "TAGS\x01日本\x02".encode(), b"UNIQ_KEY\x01\xff\xf0\x02",
          b"KEYS\x01polygenelubricants", b"DELAY\x013\x02", b"DELAY\x01x\x02",
          b"INNER_BASE\x01512\x02", b"INNER_NUM\x013\x02",
          b"INNER_MULTI_DISPATCH\x01%LMQ%a,b\x02", b"INNER_MULTI_QUEUE_OFFSET\x013,4\x02")


def log(source: random.Random) -> bytes:
    data = bytearray()
    pieces = source.choice((PIECES, PIECES[:12], PIECES[:17]))
    topics = [b"a", "tö".encode(), b"%RETRY%g", props.SCHEDULE_TOPIC.encode()]
    for _ in range(source.choice((1, 3, 40))):
        topic = source.choice(topics[:source.choice((1, 3, 4))])
        texts = b"".join(source.choices(pieces, k=source.randrange(9)))
        if source.random() < 0.02:
            texts = b"KEYS\x01" + b"x " * 500 + b"\x02" + texts
        data += build(Record(
            size_of(0, MAGIC_V1, 0, len(topic), len(texts)), MAGIC_V1, 0, source.choice((0, 3)), 0,
            source.choice((0, 1, -1)), len(data), source.choice((0, 4, 8, 12)), NOW,
            (bytes(4), 1), NOW + len(data), (bytes(4), 1), 0, 0, b"", topic, texts))
    return bytes(data)


def derived_from(data: bytes, **wishes: Any) -> Any:
    """Every column of what two batches of a log lead to, each for itself and joined."""
    deriver = Deriver(wishes.pop("profile"), "1s 5s 10s", **wishes)
    batch = records_from(np.frombuffer(data, np.uint8), 0, 0, len(data))
    half = len(batch) // 2
    parts = [deriver.derive(batch.select(rows)) for rows in (slice(0, half), slice(half, None))]
    joined, whole = Derived.joined(parts), deriver.derive(batch)
    assert listed(joined) == listed(whole)
    return [listed(part) for part in parts], listed(joined)


def listed(derived: Derived) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in Derived.__dataclass_fields__:
        value = getattr(derived, name)
        if isinstance(value, FurtherRows):
            value = [value.message.tolist(), [value.names[column] for column in value.name],
                     value.offset.tolist()]
        elif isinstance(value, tuple):
            value = [column.tolist() for column in value]
        out[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return out


def test_what_messages_lead_to(seed: int) -> None:
    source = random.Random(seed)
    keys = 0
    for number in rounds()[:len(rounds()) // 5]:
        data = log(source)
        wishes = {"profile": version_of(source.choice(("4.9.3", "5.3.3"))),
                  "rows": source.random() < 0.8, "keys": source.random() < 0.8,
                  "multi_dispatch": source.random() < 0.5}
        first, second = on_both(lambda data=data, wishes=wishes: derived_from(data, **wishes))
        assert first == second, (seed, number)
        keys += len(first[1]["key_hash"] or ())
    assert keys > 1000


def test_the_names_that_are_looked_for_together() -> None:
    assert all(name.startswith(props.INNER) for name in (
        props.INNER_NUM, props.INNER_BASE, props.MULTI_DISPATCH, props.MULTI_QUEUE_OFFSET))


def dispatched(root: Path, parts: list[Derived]) -> Any:
    """Every byte that comes of it, and all that is counted."""
    dispatcher = Dispatcher(str(root), settings(), lambda: NOW, "batch".__eq__)
    counted: list[Any] = []
    try:
        for part in parts:
            dispatcher.apply(part)
            dispatcher.show()
            counted.append((dispatcher.gaps, dispatcher.refused, dispatcher.unplaceable,
                            dispatcher.logics_timestamp, dispatcher.index_timestamp,
                            dispatcher.max_physic()))
        counted.append(sorted(dispatcher.next_offsets().items()))
    except RmqctlError as error:
        counted.append(str(error).replace(str(root), "root"))
    finally:
        dispatcher.close()
    return counted, {str(path.relative_to(root)): path.read_bytes()
                     for path in sorted(root.rglob("*")) if path.is_file()}


def test_rows_and_entries(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    refused = rolled = 0
    for number in rounds()[:len(rounds()) // 40]:
        parts = messages(source)
        with using("python"):
            first = dispatched(tmp_path / f"python{number}", parts)
        with using("compiled"):
            second = dispatched(tmp_path / f"compiled{number}", parts)
        assert first == second, (seed, number)
        refused += any(isinstance(count, tuple) and count[1] for count in first[0])
        rolled += len([name for name in first[1] if name.startswith("index")]) > 1
    assert refused > 1
    assert rolled > 5


def rearranged(file: TierIndexFile) -> Any:
    """The rearranged form and how it was come by."""
    compacted = compacted_form.compact(file)
    return compacted.sound, compacted.items, written(compacted)


def test_index_files_of_a_tier(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(seed)
    sound, numbers = 0, rounds()[:len(rounds()) // 10]
    for number in numbers:
        monkeypatch.setattr(compacted_form, "PART_ITEMS", source.choice((1 << 24, 7)))
        monkeypatch.setattr(index_file, "BLOCK_ITEMS", source.choice((1 << 16, 5, 40)))
        slots, most = source.randrange(1, 20), source.randrange(4, 200)
        random_model = model(source, slots, most, source.randrange(1, most),
                             source.choice((1 << 31, 20)))
        if source.random() < 0.6:
            random_model.data[:] = damaged(source, random_model)
        if source.random() < 0.3:
            random_model.data[28 + 8 * slots + source.randrange(32 * most)] = source.randrange(256)
        file = file_of(bytes(random_model.data), slots, most)
        first, second = on_both(lambda file=file: rearranged(file))
        assert first == second, (seed, number)
        sound += first[0]
    assert len(numbers) // 10 < sound < len(numbers) * 9 // 10


def test_what_is_given_to_the_kernel_is_tested() -> None:
    with using("compiled"):
        kernel = active()
    assert kernel is not None

    def column(*numbers: int) -> Any:
        return np.array(numbers, np.int64)

    def arranged(queue: int, units: int = 40, columns: int = 2) -> Any:
        return kernel.arrange_rows(
            column(0, queue), *[column(1, 2)] * 4, np.zeros((2, 3), np.int64),
            np.empty(units, np.uint8), np.empty((3, columns), np.int64), np.empty(2, np.uint8))

    arranged(2)
    for queue in (3, -1, 1 << 40):
        with pytest.raises(IndexError):
            arranged(queue)
    for sizes in ((39, 2), (60, 2), (40, 1), (40, 3)):
        with pytest.raises(ValueError, match="shape"):
            arranged(2, *sizes)

    def linked(key_hash: int = 9, row: int = 0, slots: int = 4, dirty: int = 1,
               entries: int = 20, page_bits: int = 12) -> Any:
        return kernel.link_entries(
            column(key_hash), column(row), column(5), column(NOW), 1, 0,
            np.zeros(slots, np.int32), np.zeros(dirty, np.uint8), page_bits,
            np.empty(entries, np.uint8))

    assert linked() == 1
    for key_hash in (-1, 1 << 31):
        with pytest.raises(ValueError, match="hash"):
            linked(key_hash)
    assert linked(page_bits=62) == 1
    for page_bits in (-1, 63, 64, 1 << 30, -(1 << 31)):
        with pytest.raises(ValueError, match="parts"):
            linked(page_bits=page_bits)
    for row, dirty in ((1, 1), (-1, 1), (0, 0)):
        with pytest.raises(IndexError):
            linked(row=row, dirty=dirty)
    items = np.zeros(64 + 31, np.uint8)
    assert not kernel.count_items(items, 1, np.zeros((5, 2), np.int32))
    for first in (0, -1, (1 << 31) - 1, 1 << 31, 1 << 62):
        with pytest.raises(ValueError, match="shape"):
            kernel.count_items(items, first, np.zeros((5, 2), np.int32))
    for shape in ((0, 2), (5, 1), (5, 3)):
        with pytest.raises(ValueError, match="shape"):
            kernel.count_items(items, 1, np.zeros(shape, np.int32))
    with pytest.raises(ValueError, match="shape"):
        kernel.place_items(items, np.zeros(0, np.int32), 0, 1, 0, np.empty(28, np.uint8))
    out = np.full(29, 7, np.uint8)
    for end in (-(1 << 30), 0, 3, (1 << 31) - 1):
        kernel.place_items(items, np.full(1, end, np.int32), 0, 1, 0, out)
    for low, high in ((-1, 0), (1, 5), (1 << 62, 1 << 62)):
        kernel.place_items(items, np.full(1, 1, np.int32), low, high, 0, out)
    for begin in (-(1 << 40), 2, 1 << 40):
        kernel.place_items(items, np.full(1, 2, np.int32), 0, 1, begin, out)
    assert (out == 7).all()

    def led(start: int = 0, length: int = 7, topic: int = 0, name: bytes = b"KEYS\x01") -> Any:
        data = np.frombuffer(b"KEYS\x01ab" + bytes(1 << 16), np.uint8)
        names = [np.frombuffer(raw, np.uint8) for raw in (b"T\x01", b"U\x01", name, b"I_")]
        return kernel.leads(data, column(start), column(length), *names, 2, column(topic),
                            column(31), True, np.empty(1, np.int64), np.empty((2, 1), np.int64))

    assert led() == (1, 0, 0)
    for start, length, topic in ((-1, 7, 0), (0, -1, 0), (1 << 17, 0, 0), (9, 1 << 16, 0),
                                 (1 << 62, 1 << 62, 0), (0, 7, 1), (0, 7, -1)):
        with pytest.raises(IndexError):
            led(start, length, topic)
    with pytest.raises(ValueError, match="longer"):
        led(0, 1 << 16)
    with pytest.raises(ValueError, match="shape"):
        led(name=b"")
    for slots, entries in ((0, 20), (4, 19), (4, 40)):
        with pytest.raises(ValueError, match="shape"):
            linked(slots=slots, entries=entries)
