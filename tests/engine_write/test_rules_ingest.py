"""What a broker adds before the put path: properties, unique ids, half messages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.broker.settings import Settings
from rmqctl.engine.put.ingest import Preparer, prepare, unique_ids
from rmqctl.formats.config.java_map import JavaMap
from rmqctl.formats.local.properties import build, parse

V493, V533 = Settings(version="4.9.3"), Settings(version="5.3.3")
BOTH = pytest.mark.parametrize("settings", [V493, V533], ids=["4.9.3", "5.3.3"])


def unique() -> str:
    return "U" * 32


def test_a_plain_message() -> None:
    given_ = {"TAGS": "A", "KEYS": "k1 k2", "WAIT": "true"}
    assert prepare(given_, V533, unique) == (
        "UNIQ_KEY\x01" + "U" * 32 + "\x02CLUSTER\x01DefaultCluster\x02TAGS\x01A\x02"
        "KEYS\x01k1 k2\x02WAIT\x01true\x02")
    assert prepare(given_, V493, unique) == (
        "KEYS\x01k1 k2\x02CLUSTER\x01DefaultCluster\x02TAGS\x01A")
    assert list(given_) == ["TAGS", "KEYS", "WAIT"]


@BOTH
def test_what_is_there_is_kept(settings: Settings) -> None:
    parsed = parse(prepare({"UNIQ_KEY": "mine", "CLUSTER": "theirs"}, settings, unique))
    assert parsed == {"UNIQ_KEY": "mine", "CLUSTER": "DefaultCluster"}


@pytest.mark.parametrize("given_", [{}, {"UNIQ_KEY": ""}, "", "UNIQ_KEY\x01\x02", {"POP_CK": "x"}])
def test_a_5x_broker_makes_an_id(given_: Mapping[str, str] | str) -> None:
    assert parse(prepare(given_, V533, unique)) == {
        "UNIQ_KEY": "U" * 32, "CLUSTER": "DefaultCluster"}


def test_older_brokers_keep_what_newer_ones_drop() -> None:
    assert parse(prepare({"POP_CK": "x"}, V493, unique)) == {
        "POP_CK": "x", "CLUSTER": "DefaultCluster"}


def test_when_493_stores_wait() -> None:
    def names(given_: dict[str, str], **how: bool) -> set[str]:
        return set(parse(prepare({"WAIT": "true", **given_}, V493, unique, **how)))

    assert names({}) == {"CLUSTER"}
    assert names({"DELAY": "0"}) == {"CLUSTER", "DELAY"}
    assert names({"DELAY": "x"}) == {"CLUSTER", "DELAY"}
    # Out of the string, but still in the map from which the delay rewrite builds it again.
    assert names({"DELAY": "1"}) == {"CLUSTER", "DELAY", "WAIT"}
    assert names({}, rebuilt=True) == {"CLUSTER", "WAIT"}
    assert names({}, batch=True) == {"CLUSTER", "WAIT"}


def test_a_batch_gets_no_id() -> None:
    assert prepare({"WAIT": "true"}, V533, unique, batch=True) == (
        "CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02")


@BOTH
@pytest.mark.parametrize("given_", [{"": "x"}, {"a\x01": "x"}, {"a\x02b": "x"}, {"a": "x\x02"},
                                    {"a": "1", "b": "\x02"}, {"a": 1}, {1: "a"}, {"a": None}])
def test_what_cannot_be_a_property(settings: Settings, given_: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"property|properties"):
        prepare(given_, settings, unique)


@BOTH
def test_a_value_may_hold_the_other_separator(settings: Settings) -> None:
    assert parse(prepare({"a": "\x011\x01"}, settings, unique))["a"] == "\x011\x01"


TEXT = st.text(st.characters(exclude_characters="\x01\x02"), min_size=1, max_size=6)
PAIRS = st.dictionaries(st.one_of(TEXT, st.sampled_from(["WAIT", "UNIQ_KEY", "AaAa", "AaBB",
                                                         "BBAa", "CLUSTER"])), TEXT, max_size=30)


@given(PAIRS, st.booleans())
def test_it_is_the_brokers_map(pairs: dict[str, str], batch: bool) -> None:
    """Step by step as a broker does it: decode, put, take WAIT out, build, put it back."""
    for settings in (V493, V533):
        profile = settings.profile
        java_map = JavaMap.from_properties(build(pairs), profile.map_capacity)
        if profile.ensures_unique_key:
            java_map.remove("POP_CK")
        if profile.ensures_unique_key and not batch and not java_map.get("UNIQ_KEY"):
            java_map.put("UNIQ_KEY", unique())
        java_map.put("CLUSTER", settings.cluster)
        kept = java_map.text(trailing=profile.trailing_separator)
        wait = None if batch or profile.stores_wait else java_map.remove("WAIT")
        text = java_map.text(trailing=profile.trailing_separator)
        for given_ in (pairs, build(pairs)):
            assert prepare(given_, settings, unique, batch=batch) == text
        if wait is not None:
            java_map.put("WAIT", wait)
            assert prepare(pairs, settings, unique, rebuilt=True) == java_map.text(trailing=False)
            assert set(parse(kept)) == {*parse(text), "WAIT"}
        # What goes on from the string is what goes on from the map.
        again = JavaMap.from_properties(text, profile.map_capacity)
        assert wait is not None or again.text(trailing=profile.trailing_separator) == text


# -- unique ids -------------------------------------------------------------------------------

def at(*moment: int, zone: timezone = UTC) -> int:
    return int(datetime(*moment, tzinfo=zone).timestamp() * 1000)  # type: ignore[misc,arg-type]


def test_an_id() -> None:
    now = at(2024, 6, 1) + 0x01020304
    make = unique_ids(bytes([10, 0, 0, 7]), clock=lambda: now, process=0x1ABCD, loader=-2,
                      counter=0xFFFF)
    assert make() == "0A000007" "ABCD" "FFFFFFFE" "01020304" "FFFF"
    assert make() == "0A000007" "ABCD" "FFFFFFFE" "01020304" "0000"
    long = unique_ids(bytes(16), clock=lambda: now)()
    assert len(long) == 56
    assert long == long.upper()


def test_a_month_later() -> None:
    moments = iter([at(2024, 12, 31, 23, 59), at(2024, 12, 31, 23, 59, 59), at(2025, 1, 1, 0, 0, 1),
                    at(2024, 12, 31, 23, 59, 59), at(2024, 12, 1)])
    make = unique_ids(clock=lambda: next(moments), process=1, loader=1)
    parts = [int(make()[20:28], 16) for _ in range(4)]
    assert parts[0] == 31 * 86_400_000 - 1000
    assert parts[1] == 1000
    assert parts[2] == 0, "the clock was set back a little"
    assert parts[3] == (1 << 32) - 31 * 86_400_000, "the clock was set back a lot"


def test_the_month_of_another_zone() -> None:
    zone = timezone(timedelta(hours=8))
    now = at(2024, 6, 1, 1, zone=zone)
    assert int(unique_ids(clock=lambda: now, zone=zone)()[20:28], 16) == 3_600_000
    assert int(unique_ids(clock=lambda: now)()[20:28], 16) == 30 * 86_400_000 + 17 * 3_600_000


def test_ids_differ() -> None:
    make, other = unique_ids(), unique_ids()
    texts = {make() for _ in range(1000)} | {other() for _ in range(1000)}
    assert len(texts) == 2000


# -- half messages ----------------------------------------------------------------------------

NAMES = st.text(st.sampled_from("ABUWKEYSTAG%_\x01\x02é"), max_size=6) | st.sampled_from(
    ["UNIQ_KEY", "WAIT", "DELAY", "CLUSTER", "TAGS", "KEYS", "POP_CK", "a%sb"])
VALUES = st.text(st.sampled_from("abc%\x01\x02 é"), max_size=4)


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=5), max_size=4),
       st.sampled_from(["4.9.3", "5.3.3"]), st.booleans())
def test_preparing_many_gives_what_preparing_one_gives(several, version, batch):
    settings = Settings(version=version)
    many = Preparer(settings, lambda: "ID", batch=batch)

    def prepare_one(properties):
        return prepare(properties, settings, lambda: "ID", batch=batch)

    def outcome_of(make, properties):
        try:
            return make(properties)
        except ValueError as error:
            return str(error)

    for properties in several * 2:
        assert outcome_of(many, properties) == outcome_of(prepare_one, properties)
    singly = [outcome_of(prepare_one, properties) for properties in several]
    if outcome_of(many.many, several) != singly:
        assert outcome_of(many.many,
                          several) in singly  # what is wrong with the first that is wrong


@BOTH
def test_many_of_many_kinds(settings: Settings) -> None:
    several = [{"KEYS": f"k{number}", **({"TAGS": "é%s"} if number % 3 else {}),
                **({"WAIT": "true"} if number % 5 == 0 else {})} for number in range(30)]
    assert Preparer(settings, unique).many(several) == [
        prepare(properties, settings, unique) for properties in several]
    assert Preparer(settings, unique).many([*several, "KEYS\x01k"])[-1] == prepare(
        "KEYS\x01k", settings, unique)
    assert Preparer(settings, unique).many([]) == []
