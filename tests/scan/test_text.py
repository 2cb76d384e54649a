from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.formats.local import index_file, properties
from rmqctl.formats.local.javahash import string_hash
from rmqctl.scan import text
from tests.support.share import examples

ALPHABET = "ab=é€\U0001f600 "
RAW = st.lists(st.sampled_from(
    ["\x01", "\x02", "K", "KEYS", "TAGS", "UNIQ_KEY", "a", "é", " "]), max_size=25).map("".join)


def texts(raws: Sequence[bytes]) -> text.Texts:
    """The texts behind each other in a buffer."""
    length = np.array([len(raw) for raw in raws], np.int64)
    return text.Texts(np.frombuffer(b"".join(raws), np.uint8), np.cumsum(length) - length, length)


@settings(max_examples=examples(400))
@given(st.lists(RAW, max_size=8))
def test_properties_are_found_as_a_broker_reads_them(raws: list[str]) -> None:
    property_segments = text.PropertySegments(texts([raw.encode() for raw in raws]))
    for name in ("KEYS", "TAGS", "UNIQ_KEY", "K", "a"):
        row, values = property_segments.find(name)
        expected = [(at, parsed_properties[name].encode()) for at, raw in enumerate(raws)
                    if name in (parsed_properties := properties.parse(raw))]
        assert list(zip(row.tolist(), values.tolist(), strict=True)) == expected


@settings(max_examples=examples(200))
@given(st.lists(st.text(alphabet=ALPHABET, max_size=40), max_size=10))
def test_hashes(words: list[str]) -> None:
    hashed, units = text.hashes(*laid_out(words, ""))
    assert hashed.tolist() == [string_hash(word) for word in words]
    assert units.tolist() == [len(word.encode("utf-16-be")) // 2 for word in words]
    sharp = np.full(len(words), string_hash("topic#"), np.int64)
    index_hash = text.index_hash(sharp, hashed, units)
    assert index_hash.tolist() == [index_file.key_hash("topic", word) for word in words]


def test_a_hash_of_min_value_becomes_zero() -> None:
    word = "polygenelubricants"
    assert string_hash(word) == -(1 << 31)
    hashed, units = text.hashes(*laid_out([word]))
    assert text.index_hash(np.zeros(1, np.int64), hashed, units)[0] == 0


@given(st.lists(st.text(alphabet="ab ", max_size=12), max_size=8))
def test_keys_are_split_on_single_spaces(words: list[str]) -> None:
    data, start, length = laid_out(words)
    of, begin, size = text.split(data, start, length)
    expected = [(at, key.encode()) for at, value in enumerate(words)
                for key in properties.split_keys(value)]
    assert [(at, data[first:first + many].tobytes()) for at, first, many in zip(
        of.tolist(), begin.tolist(), size.tolist(), strict=True)] == expected


def laid_out(words: list[str], between: str = " x ") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The texts behind each other in a buffer, the last one at its very end."""
    data, start, length = b"", [], []
    for word in words:
        data += between.encode()
        start.append(len(data))
        length.append(len(word.encode()))
        data += word.encode()
    return (np.frombuffer(data, np.uint8), np.array(start, np.int64), np.array(length, np.int64))


@settings(max_examples=examples(200))
@given(st.lists(st.text(alphabet=ALPHABET, max_size=70), max_size=10))
def test_hashes_of_texts_where_they_lie(words: list[str]) -> None:
    out, units = text.hashes(*laid_out(words))
    assert out.tolist() == [string_hash(word) for word in words]
    assert units.tolist() == [len(word.encode("utf-16-be")) // 2 for word in words]


TOPICS = st.sampled_from(["a", "b", "ab", "Aa", "BB", "AaAa", "BBBB", "AaBB", "é", "x" * 64,
                          "y" * 65, "w" * 300, "z\x00", "z", ""])


@settings(max_examples=examples(200))
@given(st.lists(st.lists(TOPICS, max_size=8), max_size=4))
def test_texts_are_numbered_where_they_lie(batches: list[list[str]]) -> None:
    dictionary = text.Dictionary()
    for words in batches:
        numbers = dictionary.encode(text.Texts(*laid_out(words)))
        assert [dictionary.texts[number].decode() for number in numbers.tolist()] == words
    words = [word.encode() for words in batches for word in words]
    assert dictionary.texts == list(dict.fromkeys(words))


def test_a_dictionary_keeps_its_numbers() -> None:
    dictionary = text.Dictionary()
    first = dictionary.encode(texts([b"a", b"b", b"a"]))
    second = dictionary.encode(texts([b"c", b"b"]))
    assert first.tolist() == [0, 1, 0]
    assert second.tolist() == [2, 1]
    assert dictionary.texts == [b"a", b"b", b"c"]


MANY = st.lists(st.one_of(st.binary(max_size=12),
                          st.sampled_from([b"x" * 300, b"y" * 20_000])), max_size=8)


@given(MANY, MANY)
def test_packed_texts_are_the_same_texts(some: list[bytes], more: list[bytes]) -> None:
    packed = text.joined([texts(some).packed(), texts(more).packed()])
    assert packed.tolist() == some + more
    for raw in {*some, *more, b"a"}:
        assert packed.equal(raw).tolist() == [raw == other for other in some + more]
    outside = np.ones(len(packed.data), bool)
    for start, length in zip(packed.start.tolist(), packed.length.tolist(), strict=True):
        outside[start:start + length] = False
    assert outside[packed.start + packed.length].all()
    assert not packed.data[outside].any()


def test_too_many_different_texts_are_looked_up_one_by_one() -> None:
    dictionary = text.Dictionary()
    words = [str(number).encode() for number in range(6000)]
    for batch in (words[:3000], words[1000:], words[::-7]):
        assert [dictionary.texts[number]
                for number in dictionary.encode(texts(batch)).tolist()] == batch
    assert dictionary.texts == words
