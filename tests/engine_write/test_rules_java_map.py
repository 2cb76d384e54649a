"""The order of a Java HashMap: against a plain simulation of its table, and known answers."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqctl.formats.config.java_map import JavaMap, ordered
from rmqctl.formats.local.javahash import string_hash

COLLIDING = ["AaAa", "AaBB", "BBAa", "BBBB"]
KEYS = st.one_of(st.text(min_size=1, max_size=6), st.sampled_from(COLLIDING),
                 st.integers(0, 40).map(lambda number: f"p{number}"))
OPERATIONS = st.lists(st.tuples(st.booleans(), KEYS, st.text(max_size=3)), max_size=60)
CAPACITIES = st.sampled_from([1, 2, 16, 128])


class Table:
    """The table as Java keeps it: buckets of pairs, split in order when it doubles."""

    def __init__(self, capacity: int) -> None:
        self.buckets: list[list[list[str]]] = [[] for _ in range(capacity)]
        self.size = 0

    def bucket(self, key: str) -> list[list[str]]:
        value = string_hash(key) % (1 << 32)
        return self.buckets[(value ^ (value >> 16)) % len(self.buckets)]

    def put(self, key: str, value: str) -> None:
        for pair in self.bucket(key):
            if pair[0] == key:
                pair[1] = value
                return
        self.bucket(key).append([key, value])
        self.size += 1
        if len(self.bucket(key)) > 8 and len(self.buckets) < 64:
            self.double()
        if self.size > len(self.buckets) * 0.75:
            self.double()

    def double(self) -> None:
        pairs = self.pairs()
        self.buckets = [[] for _ in range(2 * len(self.buckets))]
        for pair in pairs:
            self.bucket(pair[0]).append(list(pair))

    def remove(self, key: str) -> None:
        texts = self.bucket(key)
        self.size -= sum(pair[0] == key for pair in texts)
        texts[:] = [pair for pair in texts if pair[0] != key]

    def pairs(self) -> list[tuple[str, str]]:
        return [(key, value) for bucket in self.buckets for key, value in bucket]


@given(CAPACITIES, OPERATIONS)
@example(16, [(True, f"p{number}", "v") for number in range(13)])
@example(16, [(True, "".join(a + b for a, b in zip("AAB" * 3, "aaB" * 3, strict=True)), "v")])
def test_it_is_a_table_of_buckets(capacity: int,
                                  operations: list[tuple[bool, str, str]]) -> None:
    ours, table = JavaMap(capacity), Table(capacity)
    for puts, key, value in operations:
        if puts:
            ours.put(key, value)
            table.put(key, value)
        else:
            ours.remove(key)
            table.remove(key)
        assert list(ours.items()) == table.pairs()
        assert ours.capacity == len(table.buckets)
    assert len(ours) == table.size


@given(CAPACITIES, st.lists(KEYS, unique=True, max_size=80))
def test_ordered_is_the_same_in_one_step(capacity: int, keys: list[str]) -> None:
    java_map = JavaMap(capacity)
    for key in keys:
        java_map.put(key, "")
    assert [keys[number] for number in ordered(tuple(keys), capacity)] == [
        key for key, _ in java_map.items()]


def test_a_long_bucket_doubles_a_small_table() -> None:
    names = [a + b + c + d for a in ("Aa", "BB") for b in ("Aa", "BB") for c in ("Aa", "BB")
             for d in ("Aa", "BB")]
    assert len({string_hash(name) for name in names}) == 1
    java_map = JavaMap(16)
    for name in names[:8]:
        java_map.put(name, "")
    assert java_map.capacity == 16
    java_map.put(names[8], "")
    assert java_map.capacity == 32


def test_growing() -> None:
    java_map = JavaMap()
    for number in range(12):
        java_map.put(str(number), "")
    assert java_map.capacity == 16
    java_map.put("one more", "")
    assert java_map.capacity == 32
    java_map.remove("one more")
    assert java_map.capacity == 32
    assert java_map.get("11") == ""
    assert java_map.get("one more") is None
    assert "11" in java_map


@pytest.mark.parametrize(("capacity", "names"), [
    # Two strings of the golden sets: the order of 4.9.3 and of 5.3.3 for the same message.
    (16, "KEYS UNIQ_KEY INNER_MULTI_DISPATCH TAGS INNER_MULTI_QUEUE_OFFSET"),
    (128, "UNIQ_KEY INNER_MULTI_QUEUE_OFFSET TAGS KEYS INNER_MULTI_DISPATCH"),
])
def test_known_strings(capacity: int, names: str) -> None:
    pairs = [f"{name}\x01v" for name in names.split()]
    # Names of one bucket of sixteen keep their order: UNIQ_KEY, INNER_MULTI_DISPATCH.
    for turned in (pairs, pairs[3:] + pairs[:3], pairs[1:] + pairs[:1]):
        java_map = JavaMap.from_properties("\x02".join(turned), capacity)
        assert java_map.text(trailing=False) == "\x02".join(pairs)


def test_overwriting_keeps_the_place_and_a_new_put_is_the_last_of_its_bucket() -> None:
    java_map = JavaMap(128)
    for key in COLLIDING:
        java_map.put(key, "1")
    java_map.put("AaAa", "2")
    assert [key for key, _ in java_map.items()] == COLLIDING
    assert java_map.remove("AaAa") == "2"
    assert java_map.remove("AaAa") is None
    java_map.put("AaAa", "3")
    assert [key for key, _ in java_map.items()] == [*COLLIDING[1:], "AaAa"]


def test_later_duplicates_overwrite() -> None:
    raw = "AaBB\x011\x02AaAa\x012\x02AaBB\x013\x02empty\x01\x02"
    assert JavaMap.from_properties(raw, 16).text(trailing=True) == "AaBB\x013\x02AaAa\x012\x02"


@pytest.mark.parametrize("capacity", [0, -1, 3, 12, 100])
def test_a_capacity_is_a_power_of_two(capacity: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        JavaMap(capacity)
