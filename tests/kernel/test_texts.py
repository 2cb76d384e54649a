"""Both builds on the same texts and the same stores: cut, found, numbered, hashed, compared."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.checks.verify.verify import Verification
from rmqctl.formats.local import properties as props
from rmqctl.kernel import active
from rmqctl.scan import text
from rmqctl.scan.damage.properties import unsound_texts
from rmqctl.scan.derived import IndexKeys
from rmqctl.scan.frames import Array
from rmqctl.scan.groupings import KeyNumbers
from rmqctl.store.store import Store
from tests.kernel.test_equal import on_both, rounds
from tests.support import tiny
from tests.support.kernels import compiled_only

pytestmark = compiled_only

PIECES = (b"\x01", b"\x02", b" ", b",", b"KEYS\x01", b"KEYS", b"UNIQ_KEY\x01", b"TAGS\x01", b"a",
          b"b c", b"TAGS\x01t\x02", b"KEYS\x01k1 k2\x02", b"UNIQ_KEY\x01C0A8\x02",
          b"INNER_MULTI_DISPATCH\x01%LMQ%a", b"KEYS\x01\x02", "KEYS\x01é\x02".encode(),
          b"polygenelubricants", b"\xff", b"\x00", b"x" * 300)
NAMES = (props.TAGS, props.KEYS, props.UNIQUE_KEY, props.MULTI_DISPATCH, "A", "a", "a" * 20)


def laid_out(source: random.Random, raws: Sequence[bytes]) -> text.Texts:
    """The texts in one buffer, in order, with something between them and perhaps behind."""
    data = bytearray()
    start = []
    for raw in raws:
        data += source.randbytes(source.randrange(3))
        start.append(len(data))
        data += raw
    data += source.randbytes(source.choice((0, 1, 20)))
    return text.Texts(np.frombuffer(bytes(data), np.uint8), np.array(start, np.int64),
                      np.array([len(raw) for raw in raws], np.int64))


def strings(source: random.Random, pieces: Sequence[bytes] = PIECES) -> list[bytes]:
    return [b"".join(source.choices(pieces, k=source.randrange(7)))
            for _ in range(source.randrange(12))]


def plain(columns: Sequence[Array]) -> list[list[int]]:
    return [column.tolist() for column in columns]


def of_properties(texts: text.Texts) -> Any:
    """Everything that is asked of properties strings; places by their bytes."""
    properties = text.PropertySegments(texts)
    row, start, end = properties.segments
    data: list[Any] = [row.tolist(), text.Texts(properties.data, start, end - start).tolist()]
    for name in NAMES:
        row, values = properties.find(name)
        data.append((name, row.tolist(), values.tolist()))
    topics = text.Dictionary()
    numbers = np.array([topics.number(raw) for raw in
                        (b"t", "tö".encode(), b"")[:max(len(texts), 1)]], np.int64)
    keys = IndexKeys(topics).keys(properties, numbers[np.arange(len(texts)) % len(numbers)])
    return [*data, plain((keys.row, keys.key_hash, keys.size))]


def test_properties_are_cut_and_found(seed: int) -> None:
    source = random.Random(seed)
    seen = 0
    for number in rounds():
        texts = laid_out(source, strings(source))
        first, second = on_both(lambda texts=texts: of_properties(texts))
        assert first == second, (seed, number, texts.tolist())
        seen += len(first[-1][0])
    assert seen > 100


def test_parts_between_separators(seed: int) -> None:
    source = random.Random(seed)
    for number in rounds():
        texts = laid_out(source, strings(source, (b" ", b",", b"a", b"bc")))
        for keep_empty in (False, True):
            first, second = on_both(lambda texts=texts, keep=keep_empty: plain(text.split(
                texts.data, texts.start, texts.length, separator=ord(","), keep_empty=keep)))
            assert first == second, (seed, number, texts.tolist())


def test_more_parts_than_expected() -> None:
    texts = laid_out(random.Random(1), [b"," * 5000, b"", b"a,b" * 3000])
    first, second = on_both(lambda: plain(text.split(
        texts.data, texts.start, texts.length, separator=ord(","), keep_empty=True)))
    assert first == second
    many = laid_out(random.Random(1), [b"KEYS\x01" + b"k " * 9000 + b"\x02" + b"\x02" * 9000])
    first, second = on_both(lambda: of_properties(many))
    assert first == second
    assert len(first[-1][0]) == 9000


def test_numbers_of_recurring_texts(seed: int) -> None:
    source = random.Random(seed)
    for number in rounds()[:len(rounds()) // 5]:
        batches = [laid_out(source, strings(source, source.choice((PIECES, PIECES[:5]))))
                   for _ in range(4)]

        def numbered(batches: Sequence[text.Texts] = batches) -> Any:
            dictionary = text.Dictionary()
            numbers = [dictionary.encode(batch).tolist() for batch in batches]
            fixed = text.FixedTexts(dictionary.texts[::2])
            return numbers, dictionary.texts, [fixed.encode(batch, 99).tolist()
                                               for batch in batches]

        first, second = on_both(numbered)
        assert first == second, (seed, number)


def test_copies_without_anything_between(seed: int) -> None:
    source = random.Random(seed)
    for number in rounds()[:len(rounds()) // 5]:
        texts = laid_out(source, strings(source))
        other = laid_out(source, strings(source))

        def copied(texts: text.Texts = texts, other: text.Texts = other) -> Any:
            return text.joined([texts.packed(), other.packed()]).tolist()

        first, second = on_both(copied)
        assert first == second == texts.tolist() + other.tolist(), (seed, number)


def findings(root: Path) -> Any:
    with Store.open(root) as store:
        run = Verification(store)
        reported = [(finding.category, finding.severity, str(finding.file), finding.offset,
                     finding.detail)
                    for finding in run.findings()]
        return reported, run.coverage.as_dict()


def test_every_bit_of_rows_and_index(tmp_path: Path, seed: int) -> None:
    """verify says the same of each damaged bit of what is derived from the log."""
    source = random.Random(seed)
    root = tiny.build(tmp_path / "store").root
    files = [path for folder in ("consumequeue", "index") for path in sorted(
        (root / folder).rglob("*")) if path.is_file()]
    first, second = on_both(lambda: findings(root))
    assert first == second
    assert not [finding for finding in first[0] if finding[1] != "info"]
    differ = 0
    for path in files:
        sound = path.read_bytes()
        for bit in source.sample(range(8 * len(sound)), min(15, 8 * len(sound))):
            damaged = bytearray(sound)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            first, second = on_both(lambda: findings(root))
            assert first == second, (seed, path, bit)
            differ += len(first[0]) > 0
        path.write_bytes(sound)
    assert differ > 8


def test_keys_have_the_same_numbers_and_are_learned_elsewhere(seed: int) -> None:
    """Many more texts than a table begins with, other keys between them, sent and merged."""
    source = random.Random(seed)
    batches = [laid_out(source, [b"%d" % source.randrange(1 << source.choice((4, 12)))
                                 for _ in range(source.choice((0, 3, 700)))]) for _ in range(8)]

    def numbered() -> Any:
        keys, other = KeyNumbers(), KeyNumbers()
        codes = []
        for batch in batches:
            codes += [keys.of_texts(batch).tolist(), [keys.number(None), keys.number(source)]]
            other.of_texts(batch.take(slice(None, None, 3)))
            keys = copy.copy(keys)
        assert all(keys.by_number[number] == raw for batch, numbers in zip(
            batches, codes[::2], strict=True) for number, raw in zip(
                numbers, batch.tolist(), strict=True))
        few = np.arange(len(keys))[::7]
        assert keys.some(few) == [keys.by_number[number] for number in few.tolist()]
        fixed = copy.copy(KeyNumbers(keys.by_number[::5]))
        return (codes, keys.by_number, keys.numbers(other.by_number).tolist(), len(keys),
                [fixed.of_texts(batch).tolist() for batch in batches], fixed.by_number)

    first, second = on_both(numbered)
    assert first == second
    assert first[3] == len(set(first[1])) > 300


def test_what_is_given_to_a_table_is_tested() -> None:
    kernel = active()
    assert kernel is not None
    data = np.frombuffer(b"abcabc", np.uint8)

    def column(*numbers: int) -> Any:
        return np.array(numbers, np.int64)

    def entered(start: int = 0, length: int = 3, row: int = 0, room: int = 3, rows: int = 2,
                cells: int = 4, used: tuple[int, ...] = (0, 0), first: int = -1) -> Any:
        table = np.full(cells, -1, np.int32)
        table[:] = first
        places = np.zeros((rows, 2), np.int64)
        places[1:] = 3
        array, counted = np.zeros(room, np.uint8), column(*used)
        return kernel.enter(data, column(start), column(length), row, array, places, table, counted,
                            np.empty(1, np.int64)), counted.tolist(), array.tobytes()

    assert entered() == (1, [1, 3], b"abc")
    assert entered(3, 0) == (1, [1, 0], bytes(3))
    assert entered(row=1) == (1, [0, 0], bytes(3))
    for full in ({"room": 2}, {"cells": 1}, {"used": (2, 0)}, {"used": (1, 1)}, {"used": (0, 9)}):
        assert entered(**full)[0] == 0
    for start, length in ((4, 3), (-1, 3), (0, 7), (0, -1), (1 << 62, 1 << 62)):
        with pytest.raises(IndexError):
            entered(start, length)
    for wrong in ({"used": (0, -1)}, {"first": 9}, {"first": 0, "room": 2}, {"first": 0}):
        with pytest.raises(IndexError):
            entered(**wrong)
    for wrong in ({"row": -1}, {"cells": 3}, {"cells": 0}, {"rows": 3}, {"used": (0,)},
                  {"used": (3, 0)}, {"used": (-1, 0)}):
        with pytest.raises(ValueError, match="size"):
            entered(**wrong)
    for cells, rows in ((0, 2), (3, 2), (4, 1)):
        with pytest.raises(ValueError, match="size"):
            kernel.lookup(data, column(0), column(3), data, np.zeros((rows, 2), np.int64),
                          np.zeros(cells, np.int32), 9, np.empty(1, np.int64))
    out = np.zeros(5, np.uint8)
    assert kernel.join(data, column(2, 6, 0), column(2, 0, 3), out) == 5
    assert out.tobytes() == b"caabc"
    for start, length in ((5, 2), (-1, 1), (0, -1), (0, 6)):
        with pytest.raises(IndexError):
            kernel.join(data, column(start), column(length), out)


ODD = (b"\x01", b"\x02", b"a\x01b\x02", b"KEYS\x01k", b"a", b"\x00", b"\xff", "é".encode(),
       "€".encode(), "😀".encode(), b"\xed\xa0\x80", b"\xc0\xaf", b"\xe0\x80\x80",
       b"\xf4\x90\x80\x80",
       b"\xf0\x80\x80\x80", b"\xe2\x82", b"\xf5", b"x" * 40)


def test_properties_that_are_none_are_told(seed: int) -> None:
    source = random.Random(seed)
    seen = set()
    for number in range(rounds().stop):
        raws = [b"".join(source.choices(ODD[:source.choice((5, 10, len(ODD)))],
                                        k=source.randrange(7))) for _ in range(9)]
        texts = laid_out(source, raws)
        expected = [not props.are_sound(raw) for raw in raws]
        for unsound in on_both(lambda texts=texts: unsound_texts(texts).tolist()):
            assert unsound == expected, (seed, number, raws)
        seen.update(expected)
    assert seen == {True, False}
