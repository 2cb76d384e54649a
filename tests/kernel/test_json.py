"""Texts as JSON by the kernel: what Python's own encoder makes of them, and nothing outside."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from rmqctl.formats.local import properties as props
from rmqctl.kernel import active
from rmqctl.scan.frames import Array
from rmqctl.scan.json_cells import LIST, LONG, OBJECT, STRING, Cells, Forms, json_bytes
from rmqctl.scan.text import Texts
from rmqctl.store.objects import text
from tests.kernel.test_equal import rounds
from tests.kernel.test_texts import laid_out
from tests.support.kernels import compiled_only

pytestmark = compiled_only

SHAPES = {STRING: str, LIST: props.split_keys, OBJECT: props.parse}
CHARACTERS = [*map(chr, range(0x300)), *"\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff\u2028"]
BROKEN = [b"\x80", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xe0\x9f\xbf", b"\xe2\x82", b"\xed\xa0\x80",
          b"\xed\xbf\xbf", b"\xf0\x8f\xbf\xbf", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xf5",
          b"\xff", b"\xc3(", b"\xe2\x28\xa1", b"\xe2\x82\x28", b"\xf0\x9f\x28\x80"]
PIECES = [b" ", b"  ", b"\x01", b"\x02", b"a\x01b\x02", b"a\x01\x02", b"\x01b\x02",
          b"TAGS\x01x\x02",
          b"k\x01v\x01w\x02", b'"', b"\\", b"plain text of some length", "größe".encode(),
          "消息队列".encode(), "🙂".encode()]


def cells_of(texts: Texts, shape: str) -> list[bytes]:
    """The cell of each text, by the kernel and by Python where it leaves one to it."""
    cells = Cells()
    cells.begin(len(texts))

    def others(rows: Array) -> list[bytes]:
        return [json_bytes(SHAPES[shape](text(raw))) for raw in texts.take(rows).tolist()]

    cells.add(cells.make(texts, others, shape))
    cells.literal(b"\n")
    return bytes(cells.woven()).split(b"\n")[:-1]


def expected(raw: bytes, shape: str) -> bytes:
    return json.dumps(SHAPES[shape](text(raw)), ensure_ascii=False).encode(
        "utf-8", "backslashreplace")


def check(raws: list[bytes], source: random.Random) -> None:
    texts = laid_out(source, raws)
    for shape in SHAPES:
        for raw, cell in zip(raws, cells_of(texts, shape), strict=True):
            assert cell == expected(raw, shape), (raw, shape)


def test_every_character_at_every_place_of_a_word() -> None:
    source = random.Random(1)
    for character in CHARACTERS:
        raw = character.encode("utf-8")
        check([b"x" * before + raw + b"y" * 9 for before in range(9)] + [raw, raw * 9], source)


def test_what_is_no_text_is_left_to_others() -> None:
    source = random.Random(1)
    for broken in BROKEN:
        with pytest.raises(UnicodeDecodeError):
            broken.decode()
        check([b"x" * before + broken + behind for before in range(9)
               for behind in (b"", b"y", b"y" * 9)] + [b"k\x01" + broken + b"\x02"], source)


def test_random_texts(seed: int) -> None:
    source = random.Random(seed)
    for _ in rounds():
        check([b"".join(source.choices(PIECES + BROKEN[:source.choice((0, 3, 17))],
                                       k=source.randrange(9))) for _ in range(9)], source)


def test_names_that_are_there_twice_and_many_names() -> None:
    source = random.Random(1)
    for count in (1, 2, 63, 64, 65, 200):
        raw = b"".join(b"n%d\x01v%d\x02" % (number, number) for number in range(count))
        check([raw, raw + b"n0\x01again\x02", raw[:-1], b"n\x01first\x02" + raw + b"n\x01\x02"],
              source)


def test_long_texts_and_none() -> None:
    texts = laid_out(random.Random(1), [b"\x01" * (LONG + 1), b"", b"x" * LONG])
    assert cells_of(texts, STRING) == [expected(raw, STRING) for raw in texts.tolist()]
    assert cells_of(texts.take(slice(0, 0)), STRING) == []


def test_numbers_and_choices() -> None:
    values = [0, 1, -1, 9, 10, -10, 99, 100, (1 << 63) - 1, -(1 << 63), 10 ** 18, 10 ** 18 - 1]
    cells = Cells()
    forms = Forms(lambda raw: b"<" + raw + b">")
    for given in (values, values[:1], [7] * 5):
        cells.begin(len(given))
        cells.numbers(np.array(given, np.int64))
        cells.literal(b" ")
        cells.choice(np.arange(len(given)) % 2, [b"even", b"odd"])
        cells.literal(b" ")
        forms.choose(cells, laid_out(random.Random(2), [b"%d" % (value % 5) for value in given]))
        cells.digits(b"".join(b"%03d" % number for number in range(len(given))))
        cells.literal(b"\n")
        assert bytes(cells.woven()).decode().splitlines() == [
            f"{value} {'odd' if row % 2 else 'even'} <{value % 5}>{row:03d}"
            for row, value in enumerate(given)]


def test_recurring_texts_are_forgotten_in_time() -> None:
    forms = Forms(bytes)
    cells = Cells()
    for start in range(0, 20_000, 1000):
        raws = [b"%d" % number for number in range(start, start + 1000)]
        cells.begin(len(raws))
        forms.choose(cells, laid_out(random.Random(1), raws))
        cells.literal(b"\n")
        assert bytes(cells.woven()).split() == raws


def test_nothing_is_read_or_written_outside() -> None:
    kernel = active()
    assert kernel is not None
    data, places = np.frombuffer(b"abc\x01\x02", np.uint8), np.empty((2, 1), np.int64)
    array = lambda *values: np.array(values, np.int64)  # noqa: E731
    for shape in range(3):
        for start, length in ((4, 2), (-1, 1), (0, 6), (1 << 62, 1), (0, -1), (6, 0)):
            with pytest.raises(IndexError):
                kernel.json_texts(data, array(start), array(length), shape, 2, 1,
                                  np.empty(100, np.uint8), 0, places)
        for room, at in ((31, 0), (32, 1), (32, -1), (0, 0)):
            with pytest.raises(IndexError):
                kernel.json_texts(data, array(0), array(5), shape, 2, 1, np.empty(room, np.uint8),
                                  at, places)
    for cell, room in (((4, 2), 99), ((-1, 1), 99), ((0, -2), 99), ((0, 5), 7), ((7, -1), 20)):
        with pytest.raises(IndexError):
            kernel.weave(data, np.array([[[cell[0]], [cell[1]]]], np.int64), b"<>>", array(1, 3),
                         np.empty(room, np.uint8))
    for ends in ((1, 4), (2, 1), (-1, 2), (1, 2, 3), (1,)):
        with pytest.raises((IndexError, ValueError)):
            kernel.weave(data, np.array([[[0], [5]]], np.int64), b"<>>", array(*ends),
                         np.empty(99, np.uint8))
