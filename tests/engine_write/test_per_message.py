"""Messages by column, and the whole way for each, lead to the same bytes."""

from __future__ import annotations

import copy
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.broker.settings import Settings
from rmqctl.engine.put import columns
from rmqctl.engine.put.cursor import AppendCursor
from rmqctl.engine.put.encoder import Encoder
from rmqctl.engine.put.message import Outgoing, OutgoingList, PutResults
from rmqctl.engine.put.per_message import SingleMessages
from rmqctl.engine.put.rewrite import Rewriter
from tests.support.kernels import compiled_only, using
from tests.support.share import examples

FILE = 2048
V4, V6 = bytes([10, 0, 0, 1]), bytes(15) + b"\x01"


class Log:
    """A log that keeps its bytes in memory."""

    def __init__(self, file_size: int = FILE) -> None:
        self.file_size = file_size
        self.data = bytearray()
        self.current: object | None = None
        self.files: list[object] = []

    @property
    def position(self) -> int:
        return len(self.data)

    def room(self) -> int:
        size = self.file_size
        return size - self.position % size if self.current else size

    def append(self, parts) -> None:
        self.current = self
        self.data += b"".join(parts)

    def close_with_blank(self) -> None:
        self.data += b"\xcb" * (self.file_size - self.position % self.file_size)

    def roll(self) -> None:
        self.current = self

    def start_at(self, physical: int) -> None:
        raise AssertionError


def appended(config: Settings, groups: list[list[Outgoing]], *, fast: bool, stop: bool = False,
             by_column: bool = False):
    """(bytes, results, counters) of groups of messages."""
    log, table = Log(config.commitlog_file_size), {("a", 1): 3}
    cursor = AppendCursor(log, lambda: None)
    singles = SingleMessages(config, Encoder(config), cursor, table, lambda topic: topic == "batch",
                      lambda: 1_700_000_000_000, Rewriter(config))
    if not fast:
        singles._columns = lambda messages, kernel: None
    results = PutResults()
    for messages in groups:
        cursor.start()
        given = copy.deepcopy(messages)
        singles.put_all(OutgoingList.of(given) if by_column else given, results, stop=stop)
        cursor.write()
    return bytes(log.data), results, table, cursor.last_timestamp


HOSTS = st.sampled_from([None, (V4, 10911), (V6, 1), (V4, -1), (b"bad", 1)])
NUMBERS = st.sampled_from([0, 1, 7, -1, (1 << 31) - 1, -(1 << 31), 1 << 31, 1 << 63])
MESSAGES = st.builds(
    Outgoing, topic=st.sampled_from(["a", "b", "batch", "SCHEDULE_TOPIC_XXXX", "x" * 127,
                                     "%RETRY%" + "y" * 130, "z" * 128, "a/b", ""]),
    body=st.binary(max_size=40) | st.sampled_from([b"x" * 999, b"x" * 3000]),
    properties=st.sampled_from([
        "", "KEYS\x01k\x02", "TAGS\x01é\x02", "DELAY\x013\x02", "DELAY\x01x\x02",
        "TIMER_DELIVER_MS\x011700000009000\x02", "INNER_NUM\x013\x02", "note\x01MODEL\x02",
        "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02", "p\x01" + "v" * 600, "\ud800"]),
    queue_id=NUMBERS, flag=NUMBERS, sys_flag=st.sampled_from([0, 1, 4, 8, 12, 0x10, 0x20, 0xC0]),
    born_timestamp=st.none() | NUMBERS, born_host=HOSTS,
    store_timestamp=st.none() | NUMBERS, store_host=HOSTS, reconsume_times=NUMBERS,
    prepared_transaction_offset=NUMBERS)


COMMON = st.builds(
    Outgoing, topic=st.sampled_from(["a", "b", "x" * 127, "%RETRY%" + "y" * 130, "命"]),
    body=st.binary(max_size=40), properties=st.sampled_from(
        ["", "KEYS\x01k\x02", "TAGS\x01é\x02", "note\x01MODEL\x02", "k\x01\udc80\x02"]),
    queue_id=st.integers(0, 2), flag=st.sampled_from([0, 0, 7]),
    born_timestamp=st.none() | st.just(1_700_000_000_001), born_host=st.sampled_from(
        [None, None, (V4, 10911), (V6, 1), (V4, -1)]),
    store_timestamp=st.none() | st.just(1_700_000_000_002),
    store_host=st.sampled_from([None, None, (V4, 10911), (V6, -(1 << 31))]),
    reconsume_times=st.sampled_from([0, 0, 2]),
    prepared_transaction_offset=st.sampled_from([0, 0, 1 << 40]))
GROUPS = st.lists(
    st.builds(lambda common, odd, place: common[:place] + odd + common[place:],
              st.lists(COMMON, min_size=30, max_size=60), st.lists(MESSAGES, max_size=3),
              st.integers(0, 60)), min_size=1, max_size=3)


@settings(max_examples=examples(60))
@given(GROUPS, st.sampled_from(["4.9.3", "5.3.3"]), st.booleans(), st.booleans(), st.booleans())
def test_both_ways_are_one(groups, version, crc, light, stop):
    """By column, with the kernel and without, and singly: bytes, results, refusals, counters."""
    config = Settings(version=version, append_properties_crc=crc and version == "5.3.3",
                      lmq=light, multi_dispatch=light, commitlog_file_size=FILE,
                      max_message_size=1000)
    singly = appended(config, groups, fast=False, stop=stop)
    for kernel in ("", "python"):
        with using(kernel):
            assert appended(config, groups, fast=True, stop=stop) == singly
            assert appended(config, groups, fast=True, stop=stop, by_column=True) == singly


STRANGE = (("body", "text"), ("body", None), ("body", memoryview(bytes(8)).cast("q")),
           ("topic", None), ("topic", ["t"]), ("properties", b"KEYS\x01k\x02"),
           ("properties", None), ("queue_id", 1.5), ("queue_id", "1"), ("flag", 2.5),
           ("sys_flag", 0.5), ("born_timestamp", "now"), ("reconsume_times", None),
           ("born_host", ("127.0.0.1", 1)), ("store_host", [1]))


@pytest.mark.parametrize(("name", "value"), STRANGE)
def test_what_is_no_message_fails_as_it_does_alone(name, value):
    """A program may hand over anything; what it does to other messages does not depend on us."""
    messages = [Outgoing("t", b"x", f"KEYS\x01{number}\x02") for number in range(40)]
    setattr(messages[20], name, value)

    def outcome(fast: bool):
        try:
            return appended(Settings(commitlog_file_size=FILE), [messages], fast=fast)
        except (TypeError, ValueError, AttributeError, struct.error) as error:
            return type(error)

    singly = outcome(fast=False)
    for kernel in ("", "python"):
        with using(kernel):
            assert outcome(fast=True) == singly


@compiled_only
def test_ordinary_messages_take_the_fast_way(monkeypatch):
    log, results = Log(1 << 20), PutResults()
    config = Settings(commitlog_file_size=1 << 20)
    cursor = AppendCursor(log, lambda: None)
    singles = SingleMessages(config, Encoder(config), cursor, {}, lambda topic: False, lambda: 1,
                      Rewriter(config))
    messages = [Outgoing("t", b"x", f"KEYS\x01{number}é\x02") for number in range(50)]
    singly = []
    put = singles.put
    monkeypatch.setattr(singles, "put", lambda message: singly.append(message) or put(message))
    messages[30].properties = "DELAY\x013\x02"
    cursor.start()
    with using("compiled"):
        singles.put_all(messages, results, stop=False)
    assert singly == [messages[30]]
    assert [result.queue_offset for result in results] == [*range(30), 0, *range(30, 49)]


def test_many_lanes():
    """More kinds of messages than are remembered, in one group and over many."""
    config = Settings(commitlog_file_size=1 << 20)
    groups = [[Outgoing(f"t{number % 50}", b"x", "", number)
               for number in range(first, first + 900)] for first in (0, 500, 900)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "MAX_LANES", 1000)
        assert appended(config, groups, fast=True) == appended(config, groups, fast=False)
