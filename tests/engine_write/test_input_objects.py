"""Message objects for the put path: fields, defaults, reasons, batches."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from rmqctl.broker.settings import Settings
from rmqctl.engine.input import objects
from rmqctl.engine.input.lines import parse
from rmqctl.engine.input.objects import ClientMessages, InputError, Recorded, Replay, joined
from rmqctl.engine.put.encoder import Encoder, raw_text
from rmqctl.engine.put.ingest import batches
from rmqctl.engine.put.message import BatchItem, Outgoing, OutgoingBatch
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import HOST_BITS, MAGIC_V2, Record

PLAIN = ClientMessages(joined(trailing=False))
REPLAY = Replay(trailing=True)
LEAST = {"topic": "T", "body": "b"}


def line(message_object: object) -> bytes:
    return json.dumps(message_object, ensure_ascii=True).encode()


def both(way, message_object):
    """The answer for a line, which is the same as that for the parsed object."""
    for text in (line(message_object), json.dumps(message_object, ensure_ascii=False).encode(
            "utf-8", "backslashreplace")):
        assert way.line(text) == way.object(message_object)
        assert list(way.lines([text, text])) == [way.object(message_object)] * 2
    return way.object(message_object)


def reason(way, text: bytes) -> str:
    with pytest.raises(InputError) as caught:
        way.line(text)
    with pytest.raises(InputError):
        way.lines([text, text])
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert len(message) < 300
    return message


# -- what a field becomes ---------------------------------------------------------------------

def test_topic_and_body_are_enough():
    assert both(PLAIN, LEAST) == Outgoing("T", b"b")
    assert both(REPLAY, LEAST) == Outgoing("T", b"b")


def test_every_field():
    message_object = {
        "topic": "T", "body": "aGk=", "body_encoding": "base64", "queue_id": 3, "flag": -4,
        "sys_flag": 0x11, "born_timestamp": 1, "born_host": "[::1]:2", "store_timestamp": 3,
        "store_host": "10.0.0.1:10911", "reconsume_times": 4, "prepared_transaction_offset": 5,
        "properties_raw": "a\x01b", "filter_bit_map": "00ff",
    }
    message = Outgoing("T", b"hi", "a\x01b", 3, -4, 0x11, 1, (bytes(15) + b"\1", 2), 3,
                       (b"\n\0\0\1", 10911), 4, 5, b"\x00\xff")
    assert both(REPLAY, message_object) == message
    assert both(PLAIN, message_object) == replace(message, store_timestamp=None)


def test_what_a_broker_sets_is_not_looked_at():
    wild = {name: ["no", {"type": 1.5}] for name in (
        "physical_offset", "queue_offset", "msg_id", "store_timestamp", "body_crc", "crc_ok",
        "total_size", "magic", "unique_key", "tomorrow")}
    assert both(PLAIN, LEAST | wild) == Outgoing("T", b"b")


def test_null_is_absent():
    empty = dict.fromkeys(("queue_id", "properties", "properties_raw", "tags", "keys", "flag",
                           "sys_flag", "born_timestamp", "born_host", "store_host", "messages",
                           "delay_level", "body_encoding", "filter_bit_map", "reconsume_times",
                           "prepared_transaction_offset", "store_timestamp"))
    assert both(PLAIN, LEAST | empty) == Outgoing("T", b"b")
    assert both(REPLAY, LEAST | empty) == Outgoing("T", b"b")


@given(st.dictionaries(
    st.text(st.characters(blacklist_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=5),
    st.text(st.characters(blacklist_characters="\x02", codec="utf-8"), min_size=1, max_size=5)))
def test_properties_are_joined_in_their_order(pairs):
    record = both(REPLAY, LEAST | {"properties": pairs})
    assert record.properties == props.build(pairs, trailing=True)
    assert props.parse(record.properties) == pairs


@pytest.mark.parametrize(("given", "string"), [
    ({"properties": {"b": "1", "a": "2"}}, "b\x011\x02a\x012"),
    ({"properties": {"a": "x\x01y"}}, "a\x01x\x01y"),
    ({"properties_raw": "a\x011\x02\x02", "properties": {"b": "2"}, "tags": "t"}, "a\x011\x02\x02"),
    ({"properties_raw": ""}, ""),
    ({"tags": "t", "keys": "k1  k2"}, "TAGS\x01t\x02KEYS\x01k1  k2"),
    ({"keys": ["k1", "", "k2"]}, "KEYS\x01k1 k2"),
    ({"tags": "", "keys": []}, ""),
    ({"properties": {"TAGS": "p", "KEYS": "q"}, "tags": "t", "keys": ["k"]},
     "TAGS\x01p\x02KEYS\x01q"),
    ({"delay_level": 3}, "DELAY\x013"),
    ({"delay_level": 0}, ""),
    ({"delay_level": 3, "properties": {"DELAY": "4"}}, "DELAY\x014"),
])
def test_where_properties_come_from(given, string):
    assert both(PLAIN, LEAST | given).properties == string


def test_an_object_is_left_as_it_is():
    message_object = LEAST | {"properties": {"a": "1"}, "tags": "t", "messages": None}
    before = json.dumps(message_object)
    PLAIN.object(message_object)
    assert json.dumps(message_object) == before


def test_prepare_makes_the_string_of_a_plain_message():
    seen = []
    way = ClientMessages(lambda given: seen.append(given) or "made")
    assert both(way, LEAST | {"properties": {"a": "1"}}).properties == "made"
    assert both(way, LEAST | {"properties_raw": "raw"}).properties == "made"
    assert seen[0] == {"a": "1"}
    assert seen[-1] == "raw"


def test_what_prepare_refuses_is_a_reason():
    def no(given):
        raise ValueError("not like this")

    assert reason(ClientMessages(no), line(LEAST)) == "field properties: not like this"


@given(st.binary(max_size=50), st.sampled_from(["topic", "properties_raw", "tags"]))
@example(b"\xed\xb2\x80", "topic")
@example(b"\xff\xfe\x80", "properties_raw")
@example("𝄞\U0001f480".encode(), "topic")
def test_bytes_that_are_no_utf_8_come_back(raw, field):
    if field == "tags":
        raw = raw.replace(b"\x02", b"")  # separates properties
    record = both(REPLAY, LEAST | {field: raw.decode("utf-8", "surrogateescape")})
    if field == "tags":
        assert raw_text(record.properties) == (b"TAGS\x01" + raw + b"\x02" if raw else b"")
    else:
        assert raw_text(record.topic if field == "topic" else record.properties) == raw


@given(st.binary(max_size=100))
def test_bodies(raw):
    message_object = LEAST | {"body": base64.b64encode(raw).decode(), "body_encoding": "base64"}
    assert both(REPLAY, message_object).body == raw


@given(st.text(st.characters(codec="utf-8"), max_size=50))
def test_text_bodies(text):
    assert both(REPLAY, LEAST | {"body": text}).body == text.encode()
    assert both(REPLAY, LEAST | {"body": text, "body_encoding": "utf-8"}).body == text.encode()


@pytest.mark.parametrize("number", [0, 1, -1, (1 << 31) - 1, -(1 << 31)])
def test_numbers_at_the_limits(number):
    assert both(PLAIN, LEAST | {"flag": number}).flag == number
    far = number << 32
    assert both(PLAIN, LEAST | {"born_timestamp": far}).born_timestamp == far


# -- bad input ----------------------------------------------------------------------------------

ADDRESS = "expected ADDRESS:PORT"
HALF = "contains an unpaired surrogate (U+D800)"
BAD = [
    ({"topic": None}, "field topic: missing"),
    ({"body": None}, "field body: missing"),
    ({"topic": None, "body": None}, "fields topic, body: missing"),
    ({"topic": 5}, "field topic: expected text, got an integer"),
    ({"body": ["b"]}, "field body: expected text, got a list"),
    ({"queue_id": "1"}, "field queue_id: expected an integer, got text"),
    ({"queue_id": True}, "field queue_id: expected an integer, got true or false"),
    ({"queue_id": 1.0}, "field queue_id: expected an integer, got a number with a fraction"),
    ({"queue_id": 1 << 31}, "field queue_id: expected an integer <= 2147483647"),
    ({"queue_id": -(1 << 31) - 1}, "field queue_id: expected an integer >= -2147483648"),
    ({"flag": 10 ** 30}, "field flag: expected an integer <= 2147483647"),
    ({"born_timestamp": 1 << 63}, "field born_timestamp: expected an integer <= 92233720"),
    ({"born_timestamp": -(10 ** 60)}, "field born_timestamp: expected an integer >= -92233"),
    ({"born_timestamp": "2024-01-01"}, "field born_timestamp: expected an integer, got text"),
    ({"born_timestamp": 1e3}, "field born_timestamp: expected an integer, got a number with"),
    ({"properties": [1]}, "field properties: expected an object, got a list"),
    ({"properties": {"a": 1}}, "field properties: expected text, got an integer"),
    ({"properties": {"a": None}}, "field properties: expected text, got null"),
    ({"properties": {"": "v"}}, "field properties: '' cannot be a name"),
    ({"properties": {"a\x01": "v"}}, r"field properties: 'a\x01' cannot be a name"),
    ({"properties": {"a\x02": "v"}}, r"field properties: 'a\x02' cannot be a name"),
    ({"properties": {"a": "v\x02"}}, "field properties: the value of 'a' contains the separator"),
    ({"tags": "v\x02"}, "field properties: the value of 'TAGS' contains the separator"),
    ({"properties_raw": {}}, "field properties_raw: expected text, got an object"),
    ({"properties_raw": "", "delay_level": 1}, "field delay_level: cannot be combined with"),
    ({"keys": 5}, "field keys: expected text or a list, got an integer"),
    ({"keys": ["a", 5]}, "field keys[1]: expected text, got an integer"),
    ({"body_encoding": "hex"}, "field body_encoding: 'hex' is neither utf-8 nor base64"),
    ({"body_encoding": "base64", "body": "YQ"}, "field body: not base64: Incorrect padding"),
    ({"body_encoding": "base64", "body": "Y Q="}, "field body: not base64: "),
    ({"body_encoding": "base64", "body": "YQ==\n"}, "field body: not base64: "),
    ({"body_encoding": "base64", "body": "ü==="}, "field body: not base64: "),
    ({"body_encoding": "base64", "body": "\udc80==="}, "field body: not base64: "),
    ({"filter_bit_map": "xy"}, "field filter_bit_map: not hexadecimal"),
    ({"born_host": "10.0.0.1"}, "field born_host: expected ADDRESS:PORT, got '10.0.0.1'"),
    ({"born_host": "10.0.0.300:1"}, "field born_host: expected ADDRESS:PORT, got '10.0.0.300:1'"),
    ({"born_host": "host:1"}, "field born_host: expected ADDRESS:PORT, got 'host:1'"),
    ({"born_host": "10.0.0.1:"}, "field born_host: expected ADDRESS:PORT, got '10.0.0.1:'"),
    ({"born_host": "10.0.0.1: 5"}, "field born_host: expected ADDRESS:PORT, got '10.0.0.1: 5'"),
    ({"born_host": "10.0.0.1:1_0"}, "field born_host: expected ADDRESS:PORT, got '10.0.0.1:1_0'"),
    ({"born_host": "10.0.0.1:2147483648"}, f"field born_host: {ADDRESS}, got '10.0.0.1:2"),
    ({"born_host": "10.0.0.1:" + "9" * 5000}, f"field born_host: {ADDRESS}, got '10.0.0.1:9"),
    ({"born_host": "[fe80::1%eth0]:1"}, "field born_host: expected ADDRESS:PORT, got '[fe80::1"),
    ({"store_host": "a\nb\x1b[31m"}, rf"field store_host: {ADDRESS}, got 'a\nb\x1b[31m'"),
    ({"store_host": "\udc80:1"}, r"field store_host: expected ADDRESS:PORT, got '\udc80:1'"),
    ({"topic": "\ud800"}, f"field topic: {HALF}"),
    ({"topic": "\udc80\ud800"}, f"field topic: {HALF}"),
    ({"topic": "\udc80\udcff\udd00"}, "field topic: contains an unpaired surrogate (U+DD00)"),
    ({"properties_raw": "a\x01\ud800"}, f"field properties_raw: {HALF}"),
    ({"properties": {"a": "\ud800"}}, f"field properties: {HALF}"),
    ({"properties": {"\ud800": "a"}}, f"field properties: {HALF}"),
    ({"tags": "\ud800"}, f"field tags: {HALF}"),
    ({"keys": ["\ud800"]}, f"field keys[0]: {HALF}"),
    ({"body": "a\ud800"}, f"field body: {HALF}"),
    ({"body": "\udc80"},
     "field body: contains an unpaired surrogate (U+DC80); encode binary data as base64"),
    ({"messages": [{"body": "b"}]}, "field messages: cannot be combined with body"),
    ({"messages": {}}, "field messages: expected a list, got an object"),
    ({"body": None, "messages": []}, "field messages: a batch without messages"),
    ({"body": None, "messages": [1]}, "field messages[0]: expected an object, got an integer"),
    ({"body": None, "messages": [{"body": "b"}, {}]}, "field messages[1].body: missing"),
    ({"body": None, "messages": [{"body": 5}]}, "field messages[0].body: expected text, got a"),
    ({"body": None, "messages": [{"body": "\ud800"}]}, f"field messages[0].body: {HALF}"),
    ({"body": None, "messages": [{"body": "b", "tags": "\ud800"}]},
     f"field messages[0].tags: {HALF}"),
    ({"body": None, "messages": [{"body": "b", "properties": {"": "v"}}]},
     "field messages[0].properties: '' cannot be a name"),
    ({"body": None, "messages": [{"body": "b", "filter_bit_map": "0"}]},
     "field messages[0].filter_bit_map: not hexadecimal"),
    ({"body": None, "messages": [{"body": "b"}], "prepared_transaction_offset": 5},
     "field messages: cannot be combined with"),
]


@pytest.mark.parametrize(("given", "words"), BAD, ids=[words[:50] for _, words in BAD])
def test_what_is_refused_and_why(given, words):
    message_object = {name: value for name, value in (LEAST | given).items() if value is not None}
    for way in (PLAIN, REPLAY):
        assert reason(way, line(message_object)).startswith(words)
        with pytest.raises(InputError) as caught:
            way.object(message_object)
        assert str(caught.value).startswith(words)


@pytest.mark.parametrize(("text", "words"), [
    (b"", "empty"),
    (b" \r", "empty"),
    (b"[]", "not a JSON object"),
    (b"null", "not a JSON object"),
    (b'"text"', "not a JSON object"),
    (b"hello", "column 1: not JSON: expecting value"),
    (b'{"topic":"T","body":"b"', "column 24: not JSON: expecting ',' delimiter"),
    (b'{"topic":"T","body":"b', "column 21: not JSON: unterminated string starting at"),
    (b'{"topic":"T","body":', "column 21: not JSON: expecting value"),
    (b'{"topic":"T","body":"b"} x', "column 26: not JSON: extra data"),
    (b'{"topic":"T","body":"b"}{}', "column 25: not JSON: extra data"),
    (b'{"topic":"T","body":"b\x00"}', "column 23: not JSON: invalid control character at"),
    (b'{"topic":"\xc3\xa9\xff","body":"b"}', "column 12: not UTF-8"),
    (b'{"topic":"T","body":"\xed\xa0\x80"}', "column 22: not UTF-8"),
    ('{"topic":"T","body":"b"}'.encode("utf-16"), "column 1: not UTF-8"),
    (b'{"topic":"T","body":"b","flag":NaN}', "not JSON: NaN is not a number"),
    (b'{"topic":"T","body":"b","flag":-Infinity}', "not JSON: -Infinity is not a number"),
    (b'{"topic":"T","body":"b","flag":1e999}', "field flag: expected an integer, got a"),
    (b'{"topic":"T","body":"b","flag":1' + b"0" * 5000 + b"}", "field flag: expected an integer "),
    (b'{"topic":"T","body":"b","flag":-1' + b"0" * 5000 + b"}", "field flag: expected an integer "),
    (b"[" * 100_000, "cannot be read: nested too deeply"),
    (b'{"x":' * 100_000, "cannot be read: nested too deeply"),
])
def test_lines_that_are_no_object(text, words):
    for way in (PLAIN, REPLAY, Recorded()):
        assert reason(way, text).startswith(words)


def test_the_last_of_equal_names_counts():
    assert PLAIN.line(b'{"topic":5,"topic":"T","body":"a","body":"b"}') == Outgoing("T", b"b")


def test_numbers_nobody_asks_for_may_be_of_any_size():
    text = b'{"topic":"T","body":"b","x":[1e999,1' + b"0" * 5000 + b'],"tags":"\\udc80"}'
    assert PLAIN.line(text).properties == "TAGS\x01\udc80"


def test_a_line_that_could_not_be_held_is_its_error():
    error = InputError("longer than 5 bytes")
    with pytest.raises(InputError, match="longer than 5 bytes"):
        PLAIN.line(error)


@given(st.binary(max_size=40) | st.lists(st.sampled_from(
    ['{"topic":"T"', ',"body":"b"', "}", '"', ",", "\\ud800", "\\u", "[", "1e5", "\x00", "é",
     ',"queue_id":', "-", ',"properties":{',
     "null"])).map(lambda outgoing: "".join(outgoing).encode()))
def test_no_line_leads_to_another_exception(text):
    for way in (PLAIN, REPLAY, Recorded()):
        for take in (way.line, lambda text, way=way: way.lines([text, text])):
            try:
                take(text)
            except InputError as error:
                assert "\n" not in str(error)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner,
                                                                max_size=3)), st.data())
def test_any_value_in_any_field(value, data):
    field = data.draw(st.sampled_from(objects._Stored.__struct_fields__))
    message_object = LEAST | {field: value}
    for way in (PLAIN, REPLAY, Recorded()):
        try:
            text_line = way.line(line(message_object))
        except InputError as error:
            text = str(error)
            assert "\n" not in text
            with pytest.raises(InputError) as caught:
                way.object(message_object)
            assert str(caught.value) == text
            with pytest.raises(InputError):
                way.lines([line(message_object)])
        else:
            assert way.object(message_object) == text_line
            assert list(way.lines([line(message_object)])) == [text_line]


def test_both_readings_agree():
    """What the fast way takes, the slow one takes the same."""
    message_object = {"topic": "Tü\U0001f480", "body": "b\\\"\t", "queue_id": 7, "keys": ["a", "b"],
                      "properties": {"x": "y"}, "messages": None, "born_timestamp": -5}
    assert PLAIN.line(line(message_object)) == PLAIN.object(parse(line(message_object)))


# -- batches ------------------------------------------------------------------------------------

BATCH = {
    "topic": "T", "queue_id": 2, "sys_flag": 1, "born_timestamp": 5, "born_host": "10.0.0.1:2",
    "store_timestamp": 6, "store_host": "10.0.0.2:3", "reconsume_times": 1,
    "properties": {"CLUSTER": "c"},
    "messages": [{"body": "a", "flag": 7, "properties": {"KEYS": "k"}},
                 {"body": "Yg==", "body_encoding": "base64", "tags": "t", "filter_bit_map": "01"},
                 {"body": "", "properties_raw": "x\x01y"}],
}


def test_an_object_with_messages_is_a_batch():
    outgoing_batch = OutgoingBatch(
        "T", [BatchItem(b"a", "KEYS\x01k\x02", 7), BatchItem(b"b", "TAGS\x01t\x02", 0, b"\1"),
              BatchItem(b"", "x\x01y")], "CLUSTER\x01c\x02", 2, 1, 5, (b"\n\0\0\1", 2), 6,
        (b"\n\0\0\2", 3), 1)
    assert both(REPLAY, BATCH) == outgoing_batch
    way = ClientMessages(lambda given: f"one {given}", item=lambda given: f"item {given}",
                         batch=lambda given: f"batch {given}")
    record = both(way, BATCH)
    assert record.properties == "batch {'CLUSTER': 'c'}"
    assert [message.properties for message in record.messages] == [
        "item {'KEYS': 'k'}", "item {'TAGS': 't'}", "item x\x01y"]
    assert record.store_timestamp is None


def outgoing(body: bytes = b"b", **fields) -> Outgoing:
    return Outgoing(fields.pop("topic", "T"), body, **fields)


def test_equal_neighbours_become_batches():
    items = [outgoing(b"1", flag=1, properties="a\x01b"), outgoing(b"2", filter_bit_map=b"\1"),
             outgoing(b"3", queue_id=1), outgoing(b"4", queue_id=1), outgoing(b"5")]
    grouped = list(batches(items, 100))
    assert grouped == [
        OutgoingBatch("T", [BatchItem(b"1", "a\x01b", 1), BatchItem(b"2", "", 0, b"\1")]),
        OutgoingBatch("T", [BatchItem(b"3"), BatchItem(b"4")], queue_id=1),
        items[4],
    ]
    assert grouped[2] is items[4]


@pytest.mark.parametrize(("limit", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (3, [3, 2]), (9, [5])])
def test_a_batch_has_at_most_so_many_messages(limit, sizes):
    grouped = list(batches([outgoing() for _ in range(5)], limit))
    assert [len(getattr(batch, "messages", "x")) for batch in grouped] == sizes


@pytest.mark.parametrize("other", [
    {"topic": "U"}, {"queue_id": 1}, {"sys_flag": 1}, {"born_timestamp": 1},
    {"born_host": (b"\n\0\0\1", 1)}, {"store_timestamp": 1}, {"store_host": (b"\n\0\0\1", 1)},
    {"reconsume_times": 1},
])
def test_what_a_batch_shares_must_be_equal(other):
    items = [outgoing(), outgoing(**other)]
    assert list(batches(items, 9)) == items


@pytest.mark.parametrize("alone", [
    {"properties": "DELAY\x013"}, {"properties": "a\x01b\x02DELAY\x013\x02"},
    {"properties": "INNER_MULTI_DISPATCH\x01%LMQ%a"}, {"properties": "INNER_NUM\x012"},
    {"properties": "TIMER_DELAY_SEC\x012"}, {"properties": "TIMER_DELIVER_MS\x012"},
    {"sys_flag": 4}, {"sys_flag": 8}, {"sys_flag": 12}, {"sys_flag": 0x40}, {"sys_flag": 0x80},
    {"prepared_transaction_offset": 5}, {"topic": "%RETRY%group"},
])
def test_what_never_joins_a_batch(alone):
    items = [outgoing(**alone), outgoing(**alone), outgoing(**alone)]
    assert list(batches(items, 9)) == items


@pytest.mark.parametrize("text", ["KEYS\x01DELAY", "MY_DELAY\x013", "x\x01INNER_NUM TIMER_X",
                                  "NO_TIMER_DELAY\x011\x02"])
def test_only_the_names_of_properties_decide(text):
    assert len(list(batches([outgoing(properties=text), outgoing(properties=text)], 9))) == 1


def test_others_pass_through():
    record = Record(0, 0, 0, 0, 0, 0, 0, 0, 0, (b"", 0), 0, (b"", 0), 0, 0, b"", b"", b"")
    batch = OutgoingBatch("T", [BatchItem(b"x")])
    grouped = list(batches([outgoing(), outgoing(), batch, outgoing(), record], 9))
    assert [type(read_batch)
            for read_batch in grouped] == [OutgoingBatch, OutgoingBatch, Outgoing, Record]
    assert grouped[1] is batch


@given(st.lists(st.tuples(st.integers(0, 400), st.text(st.characters(codec="utf-8"), max_size=40)),
                max_size=12), st.integers(300, 1500), st.booleans(),
       st.sampled_from(["T", "T" * 200, "Tü" * 20]))
@example([(0, "a\x01b")] * 5, 3 * (91 + 24 + 1 + 1 + 3 + 21), True, "T")
@example([(0, "a\x01b")] * 5, 3 * (91 + 24 + 1 + 1 + 3 + 21) - 1, True, "T")
def test_the_records_of_a_batch_fit_the_room(shapes, room, with_crc, name):
    items = [outgoing(bytes(size), properties=text, topic=name) for size, text in shapes]
    encoder = Encoder(Settings(append_properties_crc=with_crc))
    topic = encoder.topic_part(name, MAGIC_V2)
    seen = []
    for batch in batches(items, 5, room):
        if isinstance(batch, OutgoingBatch):
            sizes = [encoder.size(HOST_BITS, topic, len(message.body),
                                  len(encoder.properties_part(message.properties)))
                     for message in batch.messages]
            assert sum(sizes) <= room
            assert 2 <= len(sizes) <= 5
            seen += [(len(message.body), message.properties) for message in batch.messages]
        else:
            seen.append((len(batch.body), batch.properties))
    assert seen == [(size, text) for size, text in shapes]


def test_batches_come_as_soon_as_they_are_complete():
    def feed():
        yield outgoing(b"1")
        yield outgoing(b"2")
        yield outgoing(b"3", topic="U")
        raise AssertionError("asked for more than is needed")

    assert next(batches(feed(), 2)) == OutgoingBatch("T", [BatchItem(b"1"), BatchItem(b"2")])
