"""Tiers as older versions and mishaps leave them: codas, borders, holes, expiry, damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqctl.ext.tiered.as_broker import get_message
from rmqctl.ext.tiered.as_broker.get_message import ReadAhead
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.ext.tiered.read import messages
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.local.message import Record
from tests.conftest import GoldenFolder, Runner
from tests.tiered.tiers import TOPIC, Queue


def opened(flat_queue: Queue, root: Path) -> tuple[Tier, FlatQueue]:
    flat_queue.write(root)
    tier = Tier.open(str(root))
    queue = tier.queue(flat_queue.topic, flat_queue.queue_id)
    assert queue is not None
    return tier, queue


def read(queue: FlatQueue) -> list[Record | messages.MessageFault]:
    return list(messages.messages(queue))


def flip(path: Path, at: int, bits: int = 0xFF) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def pulled(queue: FlatQueue, count: int, *, cached: bool = False,
           limits: get_message.PullLimits = get_message.DEFAULT_LIMITS) -> list[int]:
    cache = ReadAhead() if cached else None
    seen: list[int] = []
    at = queue.min_offset
    while True:
        pulled = get_message.get(queue, at, count, cache=cache, limits=limits)
        if pulled.status not in (get_message.FOUND, get_message.NO_MATCH):
            return seen
        assert pulled.next_offset > at
        seen += [message.queue_offset for message in pulled.messages]
        at = pulled.next_offset


def rolled(codas: bool) -> Queue:
    """Five messages in each of three segments of the log, four units in each of the queue's."""
    queue = Queue()
    for number in range(15):
        if number in (5, 10):
            queue.roll_log(coda=codas)
        if number % 4 == 0 and number:
            queue.roll_units()
        queue.put(b"body %d" % number * 9)
    return queue


@pytest.mark.parametrize("codas", [False, True])
def test_borders_of_segments(codas: bool, tmp_path: Path) -> None:
    flat_queue = rolled(codas)
    tier, queue = opened(flat_queue, tmp_path)
    with tier:
        assert read(queue) == flat_queue.records
        for count in (1, 3, 32):
            for cached in (False, True):
                assert pulled(queue, count, cached=cached) == list(range(15))
        whole = get_message.get(queue, 0, 32)
        assert [message.queue_offset for message in whole.messages] == list(range(8))


def test_a_unit_may_lead_to_the_coda_in_front_of_its_message(tmp_path: Path) -> None:
    flat_queue = Queue()
    for number in range(9):
        flat_queue.put(b"x" * number, coda_first=number in (0, 4, 8))
    tier, queue = opened(flat_queue, tmp_path)
    with tier:
        assert read(queue) == flat_queue.records
        assert pulled(queue, 32) == pulled(queue, 1) == list(range(9))


def test_empty_segments(tmp_path: Path) -> None:
    flat_queue = rolled(codas=False)
    flat_queue.roll_log()
    flat_queue.roll_units()
    tier, queue = opened(flat_queue, tmp_path)
    with tier:
        assert read(queue) == flat_queue.records
        assert pulled(queue, 32, cached=True) == list(range(15))


def test_a_queue_without_anything(tmp_path: Path) -> None:
    tier, queue = opened(Queue(), tmp_path)
    with tier:
        assert read(queue) == []
        assert get_message.get(queue, 7, 1).status == get_message.NO_MESSAGE
        assert get_message.get(None, 7, 1) == get_message.GetResult(get_message.NO_QUEUE, 7)


def test_statuses_of_a_queue_that_does_not_begin_at_0(tmp_path: Path) -> None:
    flat_queue = Queue(first=100)
    for _ in range(5):
        flat_queue.put()
    tier, queue = opened(flat_queue, tmp_path)
    with tier:
        assert [(value.status, value.next_offset) for value in (
            get_message.get(queue, at, 2) for at in (-1, 99, 100, 104, 105, 106))] == [
            (get_message.TOO_SMALL, 100), (get_message.TOO_SMALL, 100), (get_message.FOUND, 102),
            (get_message.FOUND, 105), (get_message.OVERFLOW_ONE, 105),
            (get_message.OVERFLOW_BADLY, 105)]


def test_limits_of_one_read(tmp_path: Path) -> None:
    flat_queue = Queue()
    for _ in range(12):
        flat_queue.put(b"x" * 1000)
    size = flat_queue.records[0].total_size
    tier, queue = opened(flat_queue, tmp_path)
    with tier:
        def ends(**limits: int) -> tuple[int, int]:
            pulled = get_message.get(queue, 0, 32, limits=get_message.PullLimits(**limits))
            return len(pulled.messages), pulled.next_offset

        assert ends(count=5) == (5, 5)
        assert ends(size=3 * size) == (3, 3)
        assert ends(size=3 * size - 1) == (2, 2)
        assert ends(size=1) == (1, 1)
        cache = ReadAhead()
        get_result = get_message.get(queue, 0, 32, cache=cache,
                                     limits=get_message.PullLimits(transfer=2 * size + 1))
        assert len(get_result.messages) == 3
        limits = get_message.PullLimits(count=2)
        assert pulled(queue, 32, cached=True, limits=limits) == list(range(12))


def test_expired_messages_are_passed_over(tmp_path: Path) -> None:
    flat_queue = rolled(codas=False)
    flat_queue.write(tmp_path)
    flat_queue.log_path(tmp_path, 0).unlink()
    with Tier.open(str(tmp_path)) as tier:
        queue = tier.queue(TOPIC, 0)
        assert queue is not None
        assert (queue.cq_start, queue.min_offset, messages.held_from(queue)) == (0, 5, 5)
        assert read(queue) == flat_queue.records[5:]
        assert (get_message.get(queue, 4, 1).status, get_message.get(queue, 4, 1).next_offset) == (
            get_message.TOO_SMALL, 5)
        gone = list(messages.messages(queue, 3, 6))
        assert [type(message)
                for message in gone] == [messages.MessageFault, messages.MessageFault, Record]
        assert "expired" in str(gone[0])


def test_a_damaged_first_message_hides_no_other(tmp_path: Path) -> None:
    """A broker takes its queue offset for the queue's first, and shows nothing before that."""
    flat_queue = rolled(codas=False)
    flat_queue.write(tmp_path)
    flip(flat_queue.log_path(tmp_path), 20)
    with Tier.open(str(tmp_path)) as tier:
        queue = tier.queue(TOPIC, 0)
        assert queue is not None
        records = read(queue)
        assert records[1:] == flat_queue.records[1:]
        assert isinstance(records[0], messages.MessageFault)
        assert (records[0].queue_offset, records[0].field) == (0, "queue_offset")


@pytest.mark.parametrize("where", ["log", "units"])
def test_a_missing_segment_in_the_middle(where: str, tmp_path: Path) -> None:
    flat_queue = rolled(codas=False)
    flat_queue.write(tmp_path)
    (flat_queue.log_path if where == "log" else flat_queue.units_path)(tmp_path, 1).unlink()
    lost = range(5, 10) if where == "log" else range(4, 8)
    with Tier.open(str(tmp_path)) as tier:
        queue = tier.queue(TOPIC, 0)
        assert queue is not None
        records = read(queue)
        assert [record for record in records if isinstance(record, Record)] == [
            record for record in flat_queue.records if record.queue_offset not in lost]
        faults = [record for record in records if isinstance(record, messages.MessageFault)]
        assert [(fault.queue_offset, fault.count) for fault in faults] == (
            [(number, 1) for number in lost] if where == "log" else [(4, 4)])


@pytest.mark.parametrize("size", [1, 19, 27])
def test_a_torn_consumequeue(size: int, tmp_path: Path) -> None:
    flat_queue = rolled(codas=False)
    flat_queue.write(tmp_path)
    path = flat_queue.units_path(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:size])
    with Tier.open(str(tmp_path)) as tier:
        queue = tier.queue(TOPIC, 0)
        assert queue is not None
        assert read(queue) == flat_queue.records[:12 + size // 20]


def test_orphans_are_not_shown(tmp_path: Path) -> None:
    flat_queue = Queue()
    for _ in range(6):
        flat_queue.put()
        flat_queue.orphan()
    tier, queue = opened(flat_queue, tmp_path)
    with tier:
        assert read(queue) == flat_queue.records
        assert pulled(queue, 32) == list(range(6))


@pytest.mark.parametrize(("at", "field"), [(0, "total_size"), (4, "magic"), (20, "queue_offset"),
                                           (28, None), (84, "total_size")])
def test_a_flipped_byte_costs_one_message(at: int, field: str | None, tmp_path: Path,
                                          rmqctl: Runner) -> None:
    queue = rolled(codas=True)
    queue.write(tmp_path)
    flip(queue.log_path(tmp_path), queue.records[2].physical_offset + at)
    result = rmqctl("tiered", "read", tmp_path, "--topic", TOPIC, "-o", "jsonl")
    seen = [row["queue_offset"] for row in result.jsonl()]
    if field is None:  # a place that is not its own: what verify is for
        assert seen == list(range(15))
        return
    result.expect(1)
    assert seen == [number for number in range(15) if number != 2]
    path = os.fspath(queue.log_path(tmp_path))
    assert f"{TOPIC}/0: queue offset 2: {path} @{queue.records[2].physical_offset} field" in (
        result.err)


def test_a_flipped_byte_in_a_body_is_named(tmp_path: Path, rmqctl: Runner) -> None:
    queue = rolled(codas=False)
    queue.write(tmp_path)
    flip(queue.log_path(tmp_path), queue.records[2].physical_offset + 90)
    result = rmqctl("tiered", "read", tmp_path, "-o", "jsonl").expect(1)
    assert [row["queue_offset"] for row in result.jsonl() if not row["crc_ok"]] == [2]
    assert "1 message has a body CRC mismatch" in result.err


def test_every_byte_of_a_unit(tmp_path: Path, rmqctl: Runner) -> None:
    queue = rolled(codas=False)
    queue.write(tmp_path)
    for at in range(20, 32):
        flip(queue.units_path(tmp_path), at)
        result = rmqctl("tiered", "read", tmp_path, "-o", "jsonl").expect(1)
        assert [row["queue_offset"] for row in result.jsonl()] == [
            number for number in range(15) if number != 1], at
        assert "queue offset 1" in result.err
        flip(queue.units_path(tmp_path), at)


def test_much_damage_is_reported_in_few_words(tmp_path: Path, rmqctl: Runner) -> None:
    queue = Queue()
    for _ in range(50):
        queue.put()
    queue.write(tmp_path)
    queue.log_path(tmp_path).write_bytes(b"\xff" * queue.log_end)
    result = rmqctl("tiered", "read", tmp_path).expect(1)
    assert len(result.err.splitlines()) <= 13
    assert "40 more queue offsets up to 49 do not point to a message" in result.err


def test_a_segment_that_may_not_be_read(tmp_path: Path, rmqctl: Runner) -> None:
    queue = rolled(codas=False)
    queue.write(tmp_path)
    path = queue.log_path(tmp_path, 1)
    path.unlink()
    os.mkfifo(path)
    result = rmqctl("tiered", "read", tmp_path, "-o", "jsonl").expect(1, 5)
    assert [row["queue_offset"] for row in result.jsonl()] == [*range(5), *range(10, 15)]


def test_ipv6_messages(tmp_path: Path) -> None:
    flat_queue = Queue()
    for number in range(6):
        flat_queue.put(b"six", v6=number % 2 == 0)
    tier, queue = opened(flat_queue, tmp_path)
    with tier:
        assert read(queue) == flat_queue.records
        assert pulled(queue, 2, cached=True) == list(range(6))


def test_a_large_run_is_read_in_bounded_parts(tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    flat_queue = Queue()
    for _ in range(40):
        flat_queue.put(b"x" * 1000)
    tier, queue = opened(flat_queue, tmp_path)
    lengths = []
    real = queue.commit_log.reader.read

    def watched(path: str, position: int, length: int) -> bytes:
        lengths.append(length)
        return real(path, position, length)

    monkeypatch.setattr(queue.commit_log.reader, "read", watched)
    with tier:
        assert list(messages.messages(queue, span=5000)) == flat_queue.records
    assert max(lengths) <= 5000 + 16


@pytest.mark.long
def test_bytes_at_random(golden_copy: GoldenFolder, seed: int, rmqctl: Runner) -> None:
    """Whatever stands in the files: an end, an exit code, no traceback."""
    import random

    chance = random.Random(seed)
    root = golden_copy("5.3.3/tiered/store-live")
    files = [path for path in (root / "tieredstore").rglob("*") if path.is_file()]
    files += list((root / "tiered_index_file").glob("[0-9]*"))
    rows = rmqctl("tiered", "read", root, "-o", "jsonl").jsonl()
    keyed = next(row for row in rows if row["keys"])
    for _ in range(12):
        for path in chance.sample(files, 6):
            data = bytearray(path.read_bytes())
            for _ in range(chance.randint(1, 9)):
                at = chance.randrange(len(data))
                part = chance.randbytes(chance.choice((1, 4, 8)))
                data[at:at + len(part)] = part
            path.write_bytes(data[:chance.choice((len(data), chance.randrange(len(data))))]
                             or b"\0")
        place = ["--topic", keyed["topic"], "--queue", str(keyed["queue_id"])]
        rmqctl("tiered", "read", root, "-o", "jsonl").expect(0, 1)
        rmqctl("tiered", "read", root, *place[:2], "--local", root, "--strategy",
               "force").expect(0, 1)
        for broker in ([], ["--as-broker"]):
            rmqctl("tiered", "query", "key", root, *place[:2], "--key", keyed["keys"][0],
                   *broker).expect(0, 1)
            rmqctl("tiered", "query", "time", root, *place, "--time",
                   str(keyed["store_timestamp"]), *broker).expect(0, 1)
            rmqctl("tiered", "query", "offset", root, *place, "--offset", "3",
                   *broker).expect(0, 1)
        rmqctl("tiered", "query", "offset", root, *place, "--phy", "900",
               "--containing").expect(0, 1)


def test_several_brokers_and_numbers_beyond_all(tmp_path: Path, rmqctl: Runner) -> None:
    for broker in ("broker-a", "broker-b"):
        queue = Queue(broker=broker)
        queue.put(broker.encode())
        queue.write(tmp_path)
    words = ["tiered", "read", tmp_path, "--topic", TOPIC, "-o", "jsonl"]
    assert [row["body"] for row in rmqctl(*words).expect(0).jsonl()] == ["broker-a", "broker-b"]
    assert [row["body"] for row in rmqctl(*words, "--broker", "broker-b").jsonl()] == ["broker-b"]
    place = ["--topic", TOPIC, "--queue", "0"]
    both = rmqctl("tiered", "query", "offset", tmp_path, *place, "--offset", "0").expect(2)
    assert "choose one with --broker" in both.err
    names = [*place, "--broker", "broker-a"]
    for number in (1 << 62, (1 << 63) - 1):
        rmqctl("tiered", "read", tmp_path, *names, "--offset", str(number)).expect(0)
        rmqctl("tiered", "query", "offset", tmp_path, *names, "--offset", str(number)).expect(1)
        rmqctl("tiered", "query", "offset", tmp_path, *names, "--phy", str(number)).expect(1)
        rmqctl("tiered", "query", "offset", tmp_path, *names, "--offset", str(number),
               "--as-broker").expect(1)
    for when in ("0", str((1 << 63) - 1)):
        rmqctl("tiered", "query", "time", tmp_path, *names, "--time", when).expect(0)
