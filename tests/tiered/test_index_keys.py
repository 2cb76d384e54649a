"""Keys of messages by column against Java's HashSet followed key by key."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.ext.tiered.index.keys import is_blank, key_set, keys_of, keys_of_all
from rmqctl.formats.local import message
from rmqctl.formats.local.message import MAGIC_V1, Record
from rmqctl.formats.tiered import index as fmt
from rmqctl.scan.source import BytesSource
from rmqctl.scan.walk import Walk
from tests.support.model import java_hash
from tests.support.share import examples

LOST = "polygenelubricants"
"""A text with the hash -2^31."""


def batch_of(properties: list[dict[str, str]], topic: str = "TopicA"):
    log = b""
    for property_ in properties:
        raw = "".join(f"{name}\1{value}\2" for name, value in property_.items()).encode()
        size = message.size_of(0, MAGIC_V1, 1, len(topic.encode()), len(raw))
        log += message.build(Record(
            size, MAGIC_V1, zlib.crc32(b"x") & 0x7FFFFFFF, 0, 0, 0, len(log), 0, 5, (bytes(4), 1),
            6, (bytes(4), 2), 0, 0, b"x", topic.encode(), raw))
    (batch,) = Walk(BytesSource(log))
    assert len(batch) == len(properties)
    return batch


def java_keys(unique: str | None, keys: str | None) -> list[str]:
    """HashSet.add of both, then its iteration (without trees)."""
    white = "\t\n\v\f\r\x1c\x1d\x1e\x1f \u1680\u2028\u2029\u205f\u3000" + "".join(
        map(chr, (*range(0x2000, 0x2007), *range(0x2008, 0x200B))))
    wanted = []
    if unique is not None and unique.strip(white):
        wanted.append(unique)
    if keys is not None and keys.strip(white):
        parts = keys.split(" ")
        while parts and not parts[-1]:
            parts.pop()
        wanted += parts
    table: list[list[str]] = [[] for _ in range(16)]
    count = 0
    for key in wanted:
        here = table[spread(key) & len(table) - 1]
        if key in here:
            continue
        here.append(key)
        count += 1
        if count > 3 * len(table) // 4:
            bigger: list[list[str]] = [[] for _ in range(2 * len(table))]
            for item in (key for bucket in table for key in bucket):
                bigger[spread(item) & len(bigger) - 1].append(item)
            table = bigger
    return [key for bucket in table for key in bucket]


def spread(text: str) -> int:
    value = java_hash(text) & 0xFFFFFFFF
    return value ^ value >> 16


def item_hash(topic: str, key: str) -> int:
    value = java_hash(f"{topic}#{key}")
    return value if value == -(1 << 31) else abs(value)


def expected(properties: list[dict[str, str]], topic: str = "TopicA") -> list[tuple[int, int]]:
    return [(row, item_hash(topic, key)) for row, property_ in enumerate(properties)
            for key in java_keys(property_.get("UNIQ_KEY") or None, property_.get("KEYS") or None)]


def key_hashes(properties: list[dict[str, str]], topic: str = "TopicA") -> list[tuple[int, int]]:
    keys = keys_of(batch_of(properties, topic), topic)
    assert keys.key_hash.dtype == np.int32
    return list(zip(keys.row.tolist(), keys.key_hash.tolist(), strict=True))


def test_the_order_the_specification_gives() -> None:
    assert key_set("u5", "k1 zz  abc k5") == ["u5", "zz", "", "abc", "k1", "k5"]
    given_keys = [{"UNIQ_KEY": "u5", "KEYS": "k1 zz  abc k5"}]
    assert key_hashes(given_keys) == [(0, fmt.key_hash("TopicA", key)) for key in
                                      ("u5", "zz", "", "abc", "k1", "k5")]


@pytest.mark.parametrize(("key", "value"), [
    ("same", 642092343), ("k0", 1903240650), ("zz", 1903240111), ("订单1", 1163990957),
    ("\U0001f600", 1901471116)])
def test_hashes_the_specification_gives(key, value) -> None:
    assert key_hashes([{"KEYS": key}]) == [(0, value)]


@pytest.mark.parametrize("keys", [
    "a", "a b", " a", "a ", " a  b ", "a a", "a b a", "  ", "\t", "\u3000", "\u00a0", "\u2007 x",
    "Aa BB", "AaAa BBBB AaBB BBAa", " ".join(f"k{n}" for n in range(12)),
    " ".join(f"k{n}" for n in range(13)), " ".join(f"k{n}" for n in range(60)), "é ü 订 ",
    "x" * 200, "x" * 63 + " " + "y" * 65])
@pytest.mark.parametrize("unique", [None, "u1", "a", "BB", " ", "é"])
def test_sets_of_all_kinds(keys, unique) -> None:
    properties = {"KEYS": keys} | ({} if unique is None else {"UNIQ_KEY": unique})
    around = [{"UNIQ_KEY": "before"}, properties, {"TAGS": "none"}, {"KEYS": "behind"}]
    assert key_hashes(around) == expected(around)


def test_messages_without_keys_have_none() -> None:
    assert key_hashes([{}, {"TAGS": "t"}]) == []
    assert is_blank(None)
    assert is_blank("")
    assert not is_blank("\u00a0")


def test_the_hash_that_has_no_positive_one_stays() -> None:
    topic, key = LOST.split("n", 1)[0], ""
    text = next(f"{topic}#{tail}" for tail in _tails(topic))
    topic, key = text.split("#", 1)
    assert key_hashes([{"UNIQ_KEY": key}, {"KEYS": f"é {key}"}], topic) == expected(
        [{"UNIQ_KEY": key}, {"KEYS": f"é {key}"}], topic)
    assert (0, -(1 << 31)) in key_hashes([{"UNIQ_KEY": key}], topic)


def _tails(topic: str):
    """Keys with which ``topic#key`` has the hash -2^31: seven characters worked out backwards."""
    letters = [chr(number) for number in range(33, 127)]
    start = java_hash(f"{topic}#")
    rest = (0x80000000 - start * pow(31, 7, 1 << 32)) & 0xFFFFFFFF
    for extra in range(200):
        value, text = rest + (extra << 32), []
        for power in (31 ** n for n in range(6, -1, -1)):
            digit = min(max((value - 33 * ((power - 1) // 30)) // power, 33), 126)
            text.append(chr(digit))
            value -= digit * power
        if value == 0 and all(char in letters for char in text):
            yield "".join(text)


TEXTS = st.text(st.sampled_from("aAbB \té订\U0001f600\u3000"), max_size=8)
MESSAGES = st.lists(st.fixed_dictionaries(
    {}, optional={"UNIQ_KEY": TEXTS, "KEYS": TEXTS, "TAGS": st.just("t")}), min_size=1, max_size=12)


@settings(max_examples=examples(200))
@given(MESSAGES)
def test_any_messages(properties) -> None:
    assert key_hashes(properties) == expected(properties)


def test_batches_of_several_topics_at_once(seed) -> None:
    draw = np.random.default_rng(seed)
    given_keys = [{"UNIQ_KEY": f"u{n}", "KEYS": f"k{n % 7} x"} for n in range(50)]
    topics = [f"T{n}" for n in draw.integers(0, 5, 50)]
    keys = keys_of_all([batch_of([item]) for item in given_keys], topics)
    assert list(zip(keys.row.tolist(), keys.key_hash.tolist(), strict=True)) == [
        (row, item_hash(topics[row], key)) for row, keys in enumerate(given_keys)
        for key in java_keys(keys["UNIQ_KEY"], keys["KEYS"])]
