from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.formats.local import index_file, properties
from rmqctl.formats.local.javahash import string_hash
from rmqctl.scan import text, text_slices

ALPHABET = "ab=é€\U0001f600 "
RAW = st.lists(st.sampled_from(
    ["\x01", "\x02", "K", "KEYS", "TAGS", "UNIQ_KEY", "a", "é", " "]), max_size=25).map("".join)


@settings(max_examples=400, deadline=None)
@given(st.lists(RAW, max_size=8))
def test_properties_are_found_as_a_broker_reads_them(raws: list[str]) -> None:
    found = text.Properties(pa.array([raw.encode() for raw in raws], pa.binary()))
    for name in ("KEYS", "TAGS", "UNIQ_KEY", "K", "a"):
        row, values = found.find(name)
        told = [(at, known[name].encode()) for at, raw in enumerate(raws)
                if name in (known := properties.parse(raw))]
        assert list(zip(row.tolist(), values.to_pylist(), strict=True)) == told


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(alphabet=ALPHABET, max_size=40), max_size=10))
def test_hashes(words: list[str]) -> None:
    array = pa.array([word.encode() for word in words], pa.binary())
    assert text.java_hash(array).tolist() == [string_hash(word) for word in words]
    assert text.utf16_length(array).tolist() == [len(word.encode("utf-16-be")) // 2
                                                 for word in words]
    sharp = np.full(len(words), string_hash("topic#"), np.int64)
    found = text.index_hash(sharp, text.java_hash(array), text.utf16_length(array))
    assert found.tolist() == [index_file.key_hash("topic", word) for word in words]


def test_a_hash_of_min_value_becomes_zero() -> None:
    word = "polygenelubricants"
    assert string_hash(word) == -(1 << 31)
    array = pa.array([word.encode()], pa.binary())
    nothing = np.zeros(1, np.int64)
    assert text.index_hash(nothing, text.java_hash(array), text.utf16_length(array))[0] == 0


@given(st.lists(st.text(alphabet="ab ", max_size=12), max_size=8))
def test_keys_are_split_on_single_spaces(words: list[str]) -> None:
    data, start, length = laid_out(words)
    of, begin, size = text_slices.split(data, start, length)
    told = [(at, key.encode()) for at, value in enumerate(words)
            for key in properties.split_keys(value)]
    assert [(at, data[first:first + many].tobytes()) for at, first, many in zip(
        of.tolist(), begin.tolist(), size.tolist(), strict=True)] == told


def laid_out(words: list[str], between: str = " x ") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The texts behind each other in a buffer, the last one at its very end."""
    data, start, length = b"", [], []
    for word in words:
        data += between.encode()
        start.append(len(data))
        length.append(len(word.encode()))
        data += word.encode()
    return (np.frombuffer(data, np.uint8), np.array(start, np.int64), np.array(length, np.int64))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(alphabet=ALPHABET, max_size=70), max_size=10))
def test_hashes_of_texts_where_they_lie(words: list[str]) -> None:
    found, units = text_slices.hashes(*laid_out(words))
    assert found.tolist() == [string_hash(word) for word in words]
    assert units.tolist() == [len(word.encode("utf-16-be")) // 2 for word in words]


TOPICS = st.sampled_from(["a", "b", "ab", "Aa", "BB", "AaAa", "BBBB", "AaBB", "é", "x" * 64,
                          "y" * 65, "z\x00", "z", ""])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(TOPICS, max_size=8), max_size=4))
def test_texts_are_numbered_where_they_lie(batches: list[list[str]]) -> None:
    known = text.Dictionary()
    for words in batches:
        numbers = known.encode_places(*laid_out(words))
        assert [known.texts[number].decode() for number in numbers.tolist()] == words
    assert len(set(known.texts)) == len(known.texts)


def test_a_dictionary_keeps_its_numbers() -> None:
    known = text.Dictionary()
    first = known.encode(pa.array([b"a", b"b", b"a"], pa.binary()))
    second = known.encode(pa.array([b"c", b"b"], pa.binary()))
    assert first.tolist() == [0, 1, 0]
    assert second.tolist() == [2, 1]
    assert known.texts == [b"a", b"b", b"c"]
