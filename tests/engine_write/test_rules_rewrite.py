"""Delay, timer, multi-dispatch and inner batches: the rules one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rmqctl.broker.settings import Settings
from rmqctl.engine.put.message import BatchItem, Outgoing, OutgoingBatch, PutResult
from rmqctl.engine.put.rewrite import (
    Rewriter,
    Rewritten,
    batch_properties,
    delete_property,
    is_blank,
)
from rmqctl.errors import UsageError
from rmqctl.formats.local.delay import delay_level_of, delay_table
from rmqctl.formats.local.properties import build, parse

V493, V533 = Settings(version="4.9.3"), Settings(version="5.3.3")
BOTH = pytest.mark.parametrize("settings", [V493, V533], ids=["4.9.3", "5.3.3"])
SCHEDULE, TIMER = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
NOW = 1_700_000_000_500
PREPARED, COMMIT, ROLLBACK, INNER = 0x4, 0x8, 0xC, 0x80

Table = dict[tuple[str, int], int]


def message(topic: str = "T", queue_id: int = 3, sys_flag: int = 0, body: bytes = b"b",
            **properties: str) -> Outgoing:
    return Outgoing(topic, body, build(properties), queue_id, sys_flag=sys_flag)


def apply(settings: Settings, message: Outgoing, table: Table | None = None,
          batch_topics: tuple[str, ...] = ()) -> Rewritten | PutResult:
    rules = Rewriter(settings)
    result = rules.apply(message, NOW, table or {}, lambda topic: topic in batch_topics)
    if not rules.concerns(message):
        assert result == Rewritten(message)
    return result


def stored(settings: Settings, message: Outgoing, table: Table | None = None,
           batch_topics: tuple[str, ...] = ()) -> Rewritten:
    result = apply(settings, message, table, batch_topics)
    assert isinstance(result, Rewritten), result
    return result


def refusal(settings: Settings, message: Outgoing, batch_topics: tuple[str, ...] = ()) -> str:
    result = apply(settings, message, {}, batch_topics)
    assert isinstance(result, PutResult), result
    assert result.reason
    assert not result.stored
    return result.status


# -- delay ------------------------------------------------------------------------------------

@BOTH
@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("18", 18), ("19", 18), ("+5", 5),
                                              ("2147483647", 18), ("007", 7)])
def test_delay(settings: Settings, asked: str, level: int) -> None:
    outgoing = message(DELAY=asked, WAIT="true")
    got = stored(settings, outgoing).message
    assert (got.topic, got.queue_id, got.body) == (SCHEDULE, level - 1, b"b")
    kept = asked if int(asked) <= 18 else "18"
    assert parse(got.properties) == {"DELAY": kept, "WAIT": "true", "REAL_TOPIC": "T",
                                     "REAL_QID": "3"}
    assert got.properties.endswith("\x02") == settings.profile.trailing_separator
    assert outgoing == message(DELAY=asked, WAIT="true")


@BOTH
@pytest.mark.parametrize("asked", ["0", "-1", "-2147483648", "-0"])
def test_no_delay(settings: Settings, asked: str) -> None:
    outgoing = message(DELAY=asked)
    assert stored(settings, outgoing).message is outgoing


@BOTH
@pytest.mark.parametrize("asked", ["x", " 1", "1.0", "2147483648", "1_0", "+", "9" * 5000])
def test_a_delay_that_is_no_number(settings: Settings, asked: str) -> None:
    assert refusal(settings, message(DELAY=asked)) == "MESSAGE_ILLEGAL"
    assert refusal(settings, message(DELAY=asked, sys_flag=COMMIT)) == "MESSAGE_ILLEGAL"
    for half in (PREPARED, ROLLBACK):
        outgoing = message(DELAY=asked, sys_flag=half)
        assert stored(settings, outgoing).message is outgoing


@BOTH
@pytest.mark.parametrize(("sys_flag", "delayed"), [(0, True), (COMMIT, True), (PREPARED, False),
                                                   (ROLLBACK, False), (0x1 | COMMIT, True)])
def test_only_some_transaction_types_are_delayed(settings: Settings, sys_flag: int,
                                                 delayed: bool) -> None:
    got = stored(settings, message(DELAY="2", sys_flag=sys_flag)).message
    assert (got.topic == SCHEDULE) == delayed
    assert got.sys_flag == sys_flag


@BOTH
def test_what_is_in_the_schedule_topic_stays(settings: Settings) -> None:
    outgoing = message(topic=SCHEDULE, DELAY="2", REAL_TOPIC="T", REAL_QID="1", TIMER_DELAY_SEC="9")
    assert stored(settings, outgoing).message is outgoing
    for sys_flag in (0, PREPARED):
        bad = message(topic=SCHEDULE, DELAY="x", sys_flag=sys_flag)
        assert refusal(settings, bad) == "MESSAGE_ILLEGAL"


def test_levels_of_ones_own() -> None:
    settings = replace(V533, message_delay_level="1s 2s ")
    assert stored(settings, message(DELAY="9")).message.queue_id == 1


@pytest.mark.parametrize("text", ["", " ", "1", "1x", "s", "1s  2s", "1s x", " 1s",
                                  "9223372036854775807d", "1" * 5000 + "s"])
def test_levels_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        delay_table(text)
    with pytest.raises(UsageError):
        Rewriter(replace(V533, message_delay_level=text))


def test_the_table() -> None:
    table = delay_table("1s 5m 2h 1d")
    assert dict(table.levels) == {1: 1000, 2: 300_000, 3: 7_200_000, 4: 86_400_000}
    assert table.max_level == 4
    assert delay_level_of({}) == 0


# -- timer ------------------------------------------------------------------------------------

SECOND = NOW - NOW % 1000


@pytest.mark.parametrize(("given_", "due"), [
    ({"TIMER_DELAY_SEC": "3"}, SECOND + 3000),
    ({"TIMER_DELAY_MS": "500"}, SECOND),
    ({"TIMER_DELAY_MS": "501"}, SECOND + 1000),
    ({"TIMER_DELIVER_MS": str(SECOND + 2000)}, SECOND + 1000),
    ({"TIMER_DELIVER_MS": str(SECOND + 2001)}, SECOND + 2000),
    ({"TIMER_DELAY_SEC": "3", "TIMER_DELAY_MS": "9", "TIMER_DELIVER_MS": "x"}, SECOND + 3000),
    ({"TIMER_DELAY_MS": "4000", "TIMER_DELIVER_MS": "x"}, SECOND + 4000),
    ({"TIMER_DELAY_MS": "1", "TIMER_DEL_UNIQKEY": "k"}, SECOND),
    ({"TIMER_DELAY_SEC": "259200"}, SECOND + 259_200_000),
    ({"TIMER_DELAY_SEC": "2", "DELAY": "0"}, SECOND + 2000),
])
def test_timer(given_: dict[str, str], due: int) -> None:
    got = stored(V533, message(**given_)).message
    assert (got.topic, got.queue_id) == (TIMER, 0)
    assert parse(got.properties) == {**given_, "TIMER_OUT_MS": str(due), "REAL_TOPIC": "T",
                                     "REAL_QID": "3"}


@pytest.mark.parametrize("given_", [
    {"TIMER_DELAY_SEC": "0"}, {"TIMER_DELAY_SEC": "-5"}, {"TIMER_DELIVER_MS": str(NOW)},
    {"TIMER_DELAY_SEC": "9223372036854775807"},  # times 1000 wraps to -1000
    {"TIMER_DELAY_MS": "9223372036854775807"},  # plus now wraps below zero
    {"TIMER_DELAY_SEC": "9", "TIMER_OUT_MS": "1"}, {"TIMER_DEQUEUE_MS": "1"},
])
def test_no_timer(given_: dict[str, str]) -> None:
    outgoing = message(**given_)
    assert stored(V533, outgoing).message is outgoing


@pytest.mark.parametrize("given_", [
    {"TIMER_DELAY_SEC": "x"}, {"TIMER_DELAY_MS": "1.5"}, {"TIMER_DELIVER_MS": str(1 << 63)},
    {"TIMER_DELAY_MS": "259200001"}, {"TIMER_DELIVER_MS": "9223372036854775807"},
    {"TIMER_DELAY_SEC": "0", "TIMER_DEL_UNIQKEY": "k"},
])
def test_a_timer_that_cannot_be(given_: dict[str, str]) -> None:
    assert refusal(V533, message(**given_)) == "WHEEL_TIMER_MSG_ILLEGAL"
    for stored_message in (message(**given_, sys_flag=PREPARED), message(**given_, topic=TIMER)):
        assert stored(V533, stored_message).message is stored_message
    assert stored(V493, message(**given_)).message == message(**given_)


def test_a_delay_level_beats_the_timer() -> None:
    got = stored(V533, message(TIMER_DELAY_SEC="5", TIMER_DELAY_MS="x", TIMER_DELIVER_MS="1",
                               DELAY="1", TIMER_OUT_MS="7")).message
    assert got.topic == SCHEDULE
    assert parse(got.properties) == {"DELAY": "1", "TIMER_OUT_MS": "7", "REAL_TOPIC": "T",
                                     "REAL_QID": "3"}


def test_a_delay_in_the_timer_topic_is_a_delay() -> None:
    got = stored(V533, message(topic=TIMER, TIMER_DELAY_SEC="5", DELAY="1")).message
    assert got.topic == SCHEDULE
    assert parse(got.properties)["TIMER_DELAY_SEC"] == "5"


# -- multi-dispatch ---------------------------------------------------------------------------

LMQ493 = replace(V493, lmq=True, multi_dispatch=True)
LMQ533 = replace(V533, lmq=True, multi_dispatch=True)
NAMES = "INNER_MULTI_DISPATCH"


def offsets(rewritten: Rewritten) -> str | None:
    return parse(rewritten.message.properties).get("INNER_MULTI_QUEUE_OFFSET")


def test_493_allots_to_every_queue() -> None:
    table = {("%LMQ%a", 0): 5, ("plain", 3): 7, ("plain", 0): 99}
    rewritten = stored(LMQ493, message(**{NAMES: "%LMQ%a,plain,%LMQ%a,new"}, WAIT="true"), table)
    assert offsets(rewritten) == "5,7,5,0"
    assert rewritten.advancing == (("%LMQ%a", 0), ("plain", 3), ("new", 3))
    assert "WAIT" not in parse(rewritten.message.properties)
    assert rewritten.multi_dispatch
    assert table == {("%LMQ%a", 0): 5, ("plain", 3): 7, ("plain", 0): 99}
    without = replace(LMQ493, lmq=False)
    assert stored(without, message(**{NAMES: "%LMQ%a"}), table).advancing == (("%LMQ%a", 3),)


def test_493_its_own_queue_goes_on_once() -> None:
    rewritten = stored(LMQ493, message(**{NAMES: "T,%LMQ%a"}), {("T", 3): 4})
    assert offsets(rewritten) == "4,0"
    assert rewritten.advancing == (("%LMQ%a", 0),)


def test_533_allots_to_light_queues() -> None:
    table = {("%LMQ%a", 0): 5, ("plain", 3): 7}
    rewritten = stored(LMQ533, message(**{NAMES: "%LMQ%a,%LMQ%a,plain"}, WAIT="true"), table)
    assert parse(rewritten.message.properties)["WAIT"] == "true"
    assert offsets(rewritten) == "5,5,"
    assert rewritten.advancing == (("%LMQ%a", 0), ("%LMQ%a", 0))


def test_wait_becomes_the_last_of_its_bucket() -> None:
    def same_bucket(capacity: int) -> str:
        return next(key for key in (f"k{number}" for number in range(10_000))
                    if bucket_of(key, capacity) == bucket_of("WAIT", capacity))

    name = same_bucket(128)
    text = stored(LMQ533, message(**{NAMES: "%LMQ%a", "WAIT": "true", name: "1"})
                  ).message.properties
    assert text.index(name) < text.index("WAIT")
    text = stored(V533, message(**{"DELAY": "1", "WAIT": "true", name: "1"})).message.properties
    assert text.index(name) > text.index("WAIT")


def bucket_of(key: str, capacity: int) -> int:
    from rmqctl.formats.local.javahash import string_hash

    value = string_hash(key) % (1 << 32)
    return (value ^ value >> 16) % capacity


@pytest.mark.parametrize(("settings", "topic", "applied"), [
    (LMQ493, "T", True), (LMQ493, "%RETRY%g", True), (LMQ493, "rmq_sys_x", True),
    (replace(LMQ493, multi_dispatch=False), "T", False),
    (LMQ533, "T", True), (LMQ533, "%RETRY%g", False), (LMQ533, "rmq_sys_x", False),
    (LMQ533, SCHEDULE, False),
    (replace(LMQ533, lmq=False), "T", False), (replace(LMQ533, multi_dispatch=False), "T", True),
])
def test_when_it_is_applied(settings: Settings, topic: str, applied: bool) -> None:
    outgoing = message(topic=topic, **{NAMES: "%LMQ%a"})
    rewritten = stored(settings, outgoing)
    assert rewritten.multi_dispatch == applied
    assert (rewritten.message is outgoing) != applied
    blank = message(topic=topic, **{NAMES: " \t"})
    assert stored(settings, blank).message is blank


def test_a_delayed_message_is_dispatched_by_493_under_its_new_queue() -> None:
    rewritten = stored(LMQ493, message(**{NAMES: "plain", "DELAY": "2"}))
    assert rewritten.message.topic == SCHEDULE
    assert rewritten.advancing == (("plain", 1),)
    assert not stored(LMQ533, message(**{NAMES: "%LMQ%a", "DELAY": "2"})).multi_dispatch


@pytest.mark.parametrize("sys_flag", [PREPARED, ROLLBACK])
def test_counters_of_half_messages(sys_flag: int) -> None:
    outgoing = message(**{NAMES: "%LMQ%a"}, sys_flag=sys_flag)
    old, new = stored(LMQ493, outgoing), stored(LMQ533, outgoing)
    assert offsets(old) == offsets(new) == "0"
    assert old.advancing == ()
    assert new.advancing == (("%LMQ%a", 0),)


@pytest.mark.parametrize(("settings", "names", "expected"), [
    (LMQ493, ",", None), (LMQ493, "a,,", "0"), (LMQ533, "a,,", None), (LMQ533, "%LMQ%a,b", "0,"),
    (LMQ533, "%LMQ%x/y", "0"),
])
def test_odd_lists(settings: Settings, names: str, expected: str | None) -> None:
    rewritten = stored(settings, message(**{NAMES: names}))
    assert offsets(rewritten) == expected
    assert "INNER_MULTI_QUEUE_OFFSET\x01" in rewritten.message.properties


@pytest.mark.parametrize(("settings", "names"), [
    (LMQ493, "../x"), (LMQ493, ",a"), (LMQ493, "a,."), (LMQ493, "%LMQ%a/b"),
    (LMQ493, "%LMQ%" + "x" * 251), (LMQ533, "%LMQ%" + "x" * 251), (LMQ533, "%LMQ%\0"),
    (LMQ533, "plain,%LMQ%a"), (LMQ533, ",%LMQ%a"),
])
def test_queues_that_would_do_harm(settings: Settings, names: str) -> None:
    assert refusal(settings, message(**{NAMES: names})) == "MESSAGE_ILLEGAL"


def test_without_dispatch_empty_entries_do_no_harm() -> None:
    rewritten = stored(replace(LMQ533, multi_dispatch=False), message(**{NAMES: "plain,%LMQ%a"}))
    assert offsets(rewritten) == ",0"


def _filled(settings: Settings, spare: int) -> Outgoing:
    """A message whose properties with the offsets are ``spare`` bytes below the limit."""
    outgoing = message(**{NAMES: "%LMQ%a", "p": "x"})
    size = len(stored(settings, outgoing).message.properties)
    return message(**{NAMES: "%LMQ%a", "p": "x" * (32_767 - spare - size + 1)})


@pytest.mark.parametrize(("settings", "status"), [(LMQ493, "UNKNOWN_ERROR"),
                                                  (LMQ533, "MESSAGE_ILLEGAL")])
def test_offsets_that_make_the_properties_too_long(settings: Settings, status: str) -> None:
    assert len(stored(settings, _filled(settings, 0)).message.properties) == 32_767
    assert refusal(settings, _filled(settings, -1)) == status


def test_the_whole_record_is_limited_with_offsets_of_533() -> None:
    settings = replace(LMQ533, max_message_size=1000)
    outgoing = message(**{NAMES: "%LMQ%a"})
    size = 91 + 1 + 1 + len(stored(settings, outgoing).message.properties)
    for more, fits in ((999 - size, True), (1000 - size, True), (1001 - size, False)):
        bigger = structs.replace(outgoing, body=b"b" * (1 + more))
        assert isinstance(apply(settings, bigger), Rewritten) == fits
    bigger = structs.replace(outgoing, body=b"b" * (1001 - size + 1))
    assert refusal(settings, bigger) == "MESSAGE_ILLEGAL"


def test_493_looks_at_the_sizes_before_and_after() -> None:
    settings = replace(LMQ493, max_message_size=1000)
    outgoing = message(**{NAMES: "%LMQ%a"})
    before = 91 + 1 + 1 + len(outgoing.properties)
    after = 91 + 1 + 1 + len(stored(settings, outgoing).message.properties)
    assert isinstance(apply(settings, structs.replace(outgoing, body=b"b" * (1001 - after))),
                      Rewritten)
    assert refusal(settings,
                   structs.replace(outgoing, body=b"b" * (1002 - after))) == "UNKNOWN_ERROR"
    assert refusal(settings,
                   structs.replace(outgoing, body=b"b" * (1001 - before))) == "UNKNOWN_ERROR"
    assert refusal(settings,
                   structs.replace(outgoing, body=b"b" * (1002 - before))) == "MESSAGE_ILLEGAL"


@pytest.mark.parametrize(("text", "blank"), [
    (None, True), ("", True), (" \t\n\x1c\u3000\u2028", True), ("\xa0", False), ("\u2007", False),
    ("\x85", False), (" a ", False)])
def test_blank_is_java_white_space(text: str | None, blank: bool) -> None:
    assert is_blank(text) == blank


# -- inner batches ----------------------------------------------------------------------------

def test_an_inner_batch_takes_as_many_offsets_as_it_holds() -> None:
    rewritten = stored(V533, message(INNER_NUM="8", sys_flag=INNER), {("T", 3): 40}, ("T",))
    assert parse(rewritten.message.properties) == {"INNER_NUM": "8", "INNER_BASE": "40"}
    assert rewritten.message_number == 8
    for text, number in (("0", 1), ("-3", 1), ("32767", 32_767)):
        assert stored(V533, message(INNER_NUM=text, sys_flag=INNER), {}, ("T",)
                      ).message_number == number
    plain = stored(V533, message(sys_flag=INNER), {}, ("T",))
    assert (plain.message_number, parse(plain.message.properties)) == (1, {"INNER_BASE": "0"})


def test_an_inner_batch_that_is_prepared_has_no_base() -> None:
    outgoing = message(INNER_NUM="2", sys_flag=INNER | PREPARED)
    rewritten = stored(V533, outgoing, {}, ("T",))
    assert (rewritten.message, rewritten.message_number) == (outgoing, 2)
    bad = message(INNER_NUM="2", INNER_BASE="x", sys_flag=INNER | PREPARED)
    assert refusal(V533, bad, ("T",)) == "MESSAGE_ILLEGAL"


@pytest.mark.parametrize(("message", "topics"), [
    (message(INNER_NUM="2"), ("T",)), (message(INNER_NUM="2", sys_flag=INNER), ()),
    (message(INNER_NUM="x", sys_flag=INNER), ("T",)),
    (message(INNER_NUM="32768", sys_flag=INNER), ("T",)),
    (message(INNER_NUM="2", DELAY="1", sys_flag=INNER), ("T",)),
])
def test_inner_batches_that_cannot_be(message: Outgoing, topics: tuple[str, ...]) -> None:
    assert refusal(V533, message, topics) == "MESSAGE_ILLEGAL"
    if "DELAY" not in message.properties:
        assert stored(V493, message).message is message


# -- appended CRC, batches --------------------------------------------------------------------

CRC = "__CRC32#"


@pytest.mark.parametrize(("raw", "left"), [
    ("a\x011\x02__CRC32#\x01123\x02", "a\x011\x02"), ("__CRC32#\x01123\x02b\x012", "b\x012"),
    ("a\x011\x02__CRC32#\x011", "a\x011\x02"), ("__CRC32#\x011\x02__CRC32#\x012\x02", ""),
    ("x__CRC32#\x01123\x02", "x__CRC32#\x01123\x02"), ("__CRC32#x\x011\x02", "__CRC32#x\x011\x02"),
    ("a\x01__CRC32#\x01\x02b\x011", "a\x01__CRC32#\x01\x02b\x011"),
    ("__CRC32#\x011\n2\x02c\x011\x02", "c\x011\x02"),
])
def test_an_old_crc_goes(raw: str, left: str) -> None:
    assert delete_property(raw, CRC) == left
    with_crc = replace(V533, append_properties_crc=True)
    assert stored(with_crc, Outgoing("T", b"", raw)).message.properties == left
    assert stored(V533, Outgoing("T", b"", raw)).message.properties == raw


def test_an_old_crc_goes_from_rebuilt_strings() -> None:
    settings = replace(LMQ533, append_properties_crc=True)
    rewritten = stored(settings, message(**{CRC: "1", NAMES: "%LMQ%a"}))
    assert CRC not in rewritten.message.properties
    delayed = stored(settings, message(**{CRC: "1", "DELAY": "1"}))
    assert parse(delayed.message.properties) == {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "3"}


@pytest.mark.parametrize(("own", "shared", "both"), [
    ("", "", b""), ("a\x011", "", b"a\x011"), ("", "b\x012", b"b\x012"),
    ("a\x011", "b\x012", b"a\x011\x02b\x012"), ("a\x011\x02", "b\x012", b"a\x011\x02b\x012"),
    ("a\x01\udcff", "b\x01\u20ac", b"a\x01\xff\x02b\x01\xe2\x82\xac"),
])
def test_batch_properties(own: str, shared: str, both: bytes) -> None:
    assert batch_properties(own, shared) == both


def test_the_string_of_a_batch_is_rebuilt() -> None:
    batch = OutgoingBatch("T", [BatchItem(b"")], "WAIT\x01true\x02x\x01\x02KEYS\x01k")
    for settings in (V493, V533):
        got = Rewriter(settings).apply_batch(batch, NOW)
        assert isinstance(got, OutgoingBatch)
        assert parse(got.properties) == {"WAIT": "true", "KEYS": "k"}
        assert got.properties.endswith("\x02") == settings.profile.trailing_separator
    timed = structs.replace(batch, properties="TIMER_DELAY_SEC\x014")
    got = Rewriter(V533).apply_batch(timed, NOW)
    assert isinstance(got, OutgoingBatch)
    assert (got.topic, got.queue_id) == (TIMER, 0)
    wrong = structs.replace(batch, properties="TIMER_DELAY_SEC\x01x")
    assert isinstance(Rewriter(V533).apply_batch(wrong, NOW), PutResult)


# -- anything ---------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]),
               min_size=1, max_size=8)
VALUES = st.one_of(TEXT, st.integers(-5, 1 << 64).map(str))
PROPERTIES = st.dictionaries(st.one_of(TEXT, st.sampled_from(
    ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY", "WAIT", "INNER_NUM",
     "INNER_BASE", CRC])), VALUES, max_size=14)


@given(PROPERTIES, st.sampled_from([V493, V533, LMQ493, LMQ533,
                                    replace(V533, append_properties_crc=True)]),
       st.sampled_from(["T", SCHEDULE, TIMER, "%RETRY%g"]), st.integers(0, 0xFF),
       st.one_of(st.none(), st.lists(TEXT.map(lambda name: f"%LMQ%{name}")).map(",".join)))
def test_nothing_is_lost(properties: dict[str, str], settings: Settings, topic: str,
                         sys_flag: int, names: str | None) -> None:
    if names is not None:
        properties[NAMES] = names
    message = Outgoing(topic, b"", build(properties), 2, sys_flag=sys_flag)
    result = apply(settings, message, {}, ("T",))
    if isinstance(result, PutResult):
        assert result.reason
        return
    got = result.message
    expected = parse(message.properties)
    if got.topic != topic:
        expected |= {"REAL_TOPIC": topic, "REAL_QID": "2"}
        assert got.topic in (SCHEDULE, TIMER)
    added_names = {"INNER_BASE", "INNER_MULTI_QUEUE_OFFSET", "TIMER_OUT_MS", "DELAY", "WAIT", CRC,
                   "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"}
    assert {name: value for name, value in parse(got.properties).items()
            if name not in added_names} == {
                name: value for name, value in expected.items() if name not in added_names}
    assert (got.body, got.flag, got.sys_flag) == (message.body, message.flag, message.sys_flag)
