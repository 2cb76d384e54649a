"""The loop for ordinary messages and the whole way lead to the same bytes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.broker.settings import Settings
from rmqctl.engine.put.cursor import Cursor
from rmqctl.engine.put.encoder import Encoder
from rmqctl.engine.put.message import Outgoing
from rmqctl.engine.put.per_message import SingleMessages
from rmqctl.engine.put.rewrite import Rewriter

FILE = 2048
V4, V6 = bytes([10, 0, 0, 1]), bytes(15) + b"\x01"


class Log:
    """A log that keeps its bytes in memory."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.current: object | None = None
        self.files: list[object] = []

    @property
    def position(self) -> int:
        return len(self.data)

    def room(self) -> int:
        return FILE - self.position % FILE if self.current else FILE

    def append(self, parts) -> None:
        self.current = self
        self.data += b"".join(parts)

    def close_with_blank(self) -> None:
        self.data += b"\xcb" * (FILE - self.position % FILE)

    def roll(self) -> None:
        self.current = self

    def start_at(self, physical: int) -> None:
        raise AssertionError


def made(config: Settings, messages: list[Outgoing], *, fast: bool):
    """(bytes, results, counters) of a group."""
    log, table = Log(), {}
    cursor = Cursor(log, lambda: None)
    singles = SingleMessages(config, Encoder(config), cursor, table, lambda topic: topic == "batch",
                      lambda: 1_700_000_000_000, Rewriter(config))
    results, at = [], 0
    cursor.start()
    while at < len(messages):
        if fast:
            at = singles.run(messages, at, results)
        if at < len(messages):
            results.append(singles.put(replace(messages[at])))
            at += 1
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


@settings(max_examples=300)
@given(st.lists(MESSAGES, max_size=12), st.sampled_from(["4.9.3", "5.3.3"]), st.booleans(),
       st.booleans())
def test_both_ways_are_one(messages, version, crc, light):
    config = Settings(version=version, append_properties_crc=crc and version == "5.3.3",
                      lmq=light, multi_dispatch=light, commitlog_file_size=FILE,
                      max_message_size=1000)
    # Twice: what the first round learns about kinds of messages, the second makes use of.
    assert made(config, messages * 2, fast=True) == made(config, messages * 2, fast=False)


def test_ordinary_messages_take_the_fast_way():
    log, results = Log(), []
    config = Settings(commitlog_file_size=1 << 20)
    cursor = Cursor(log, lambda: None)
    singles = SingleMessages(config, Encoder(config), cursor, {}, lambda topic: False, lambda: 1,
                      Rewriter(config))
    messages = [Outgoing("t", b"x", f"KEYS\x01{number}\x02") for number in range(15)]
    cursor.start()
    assert singles.run(messages, 0, results) == 0  # not known yet
    singles.put(messages[0])
    assert singles.run(messages, 1, results) == 15
    assert len(results) == 14
