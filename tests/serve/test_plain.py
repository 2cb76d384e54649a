"""Plain sends, which take a short way: to the same records and answers as by the whole one."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.serve.broker import Broker, Response
from rmqctl.ext.serve.dispatch import answer
from rmqctl.ext.serve.producing import sending
from rmqctl.ext.serve.producing.writing import QueueKey, TailQueue, Writer
from rmqctl.ext.serve.remoting.codes import CODE_OF
from rmqctl.ext.serve.remoting.command import Command, read_command, response_head, write_command
from rmqctl.ext.serve.remoting.frame import BINARY, FrameReader, Header, frame_head, write_binary
from rmqctl.ext.serve.serving import RequestedStore, ServeSettings, open_brokers
from rmqctl.formats.local import properties
from rmqctl.formats.local.javahash import tags_code
from rmqctl.formats.local.message import Record, decode
from rmqctl.parse_values import Address
from rmqctl.store.store import Store
from tests.serve.running import empty_store
from tests.support.kernels import KERNELS, MISSING, using
from tests.support.share import RUN

KEY = "UNIQ_KEY\x017F0000010A2118B4AAC2123456780000"
PLAIN = (f"KEYS\x01k\x02{KEY}\x02WAIT\x01true\x02TAGS\x01A\x02", f"{KEY}\x02TAGS\x01bb", "",
         "TAGS\x01ä\x02KEYS\x0150%", f"a\x01{{}}\"\\/\n\x02{KEY}", "CLUSTER\x01mine\x02TAGS\x01%s")
OTHER = ("DELAY\x012", f"{KEY}\x02TRAN_MSG\x01true", "INNER_NUM\x013", "TAGS\x01", "=",
         "a\x01b\x01", "TIMER_DELAY_MS\x01x", "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b",
         "UNIQ_KEY\x01\"}",
         "k\x01v\x02k\x01w", "\ud800", f"x{'y' * 5000}\x01z")
TOPICS = {"plain": 6, "made": 2, "%RETRY%g": 1, "": 1, "a/b": 1, "plän": 1, "rmq_sys_x": 1,
          "%LMQ%x": 1}


class Taker:
    """A connection that keeps its answers."""

    peer, local_host = "127.0.0.1:4000", "127.0.0.1"
    is_full = False

    def __init__(self) -> None:
        self.at_end: set[Any] = set()
        self.host = "h"
        self.answers: list[bytes] = []

    def send_bytes(self, data: bytes) -> None:
        self.answers.append(data)

    def reply(self, request: Command, response: Response) -> None:
        self.answers.append(response_head(request.opaque, response.code, response.ext or {},
                                          response.remark, sum(map(len, response.parts))))

    def send(self, command: Command) -> None: ...

    ask = None


async def answered(root: Path, frames: list[bytes], *, plain: bool) -> tuple[
        list[bytes], list[Record], dict[QueueKey, TailQueue], Broker]:
    """(answers, records, queues as the server has them, broker) of what is sent at once."""
    broker = open_brokers([RequestedStore(str(root), lambda: Store.open(str(root)),
                                  Address("127.0.0.1", 1234))], ServeSettings(writable=True),
                          lambda **_: None)[0][0]
    random.seed(1)  # by which a queue is chosen where none is said
    broker.failed = lambda _name, error: pytest.fail(repr(error))
    writer = broker.writer
    assert writer is not None
    writer.properties.unique_id = lambda: "MADE"
    writer.topics.auto_create("plain")
    broker.source.refresh(force=True)
    taker, reader, sends = Taker(), FrameReader(), broker.sends if plain else None
    for part in (frames[::2], frames[1::2]):
        reader.feed(b"".join(part))
        while True:
            if sends is None or not sends.take_all(taker, reader):
                frame = reader.next()
                if frame is None:
                    break
                answer(broker, taker, read_command(frame))  # type: ignore[arg-type]
        writer.put_now()
        await asyncio.sleep(0)
    tails = dict(writer._tails)
    writer.engine.reput()
    with Store.open(str(root)) as store:
        records = [replace(decode(bytes(batch.bytes_at(number))), store_timestamp=0)
                   for batch in store.log.walk() for number in range(len(batch))]
    return taker.answers, records, tails, broker


def some_frames(count: int) -> list[bytes]:
    """Frames of producers, most of them plain."""
    source = random.Random(RUN.seed)
    pick = source.choice
    write_commands = []
    for number in range(count):
        strange = number % 100 > 60 and source.random() < 0.5  # between runs of the same kind
        fields = {
            "a": "P", "b": pick(list(TOPICS)) if strange else "plain", "c": "TBW102", "d": "8",
            "e": pick(["0", "1", "3", "-1", "9"]) if strange else str(source.randrange(4)),
            "f": pick(["0", "1", "4", "8", "12", "64"]) if strange else str(number % 2),
            "g": pick(["0", "-5", "1" * 18, "007"]) if strange else f"17{number:011}",
            "h": pick(["0", "7", "-1", "x"]) if strange else str(number % 9),
            "i": pick(OTHER) if strange else PLAIN[number // 30 % len(PLAIN)],
            "j": pick(["0", "3", ""]) if strange else str(number % 7),
            "k": "false", "m": pick(["false", "true", "1"]) if strange else "false"}
        for name in ("h", "i", "j", "k", "m", "e"):
            if strange and source.random() < 0.1:
                del fields[name]
        if source.random() < 0.2:
            fields |= {"n": "broker-a", "bname": "x", "z": "y"}
        body = source.randbytes(source.randrange(300))
        command = Command(310, number, pick([0, 0, 0, 2]), fields, None, body)
        raw = write_command(command)
        if strange and source.random() < 0.2:
            header = write_binary(Header(310, 0, 399, number, 0, None, {
                name: text.encode("utf-8", "replace").decode() for name, text in fields.items()}))
            raw = frame_head(header, len(body), BINARY) + body
        elif strange and source.random() < 0.2:
            raw = write_command(Command(CODE_OF["GET_MAX_OFFSET"], number, 0, {
                "topic": "plain", "queueId": "0"}))
        write_commands.append(raw)
    return write_commands


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_plain_sends_lead_to_the_same_records_and_answers(
        tmp_path: Path, version: str, kernel: str) -> None:
    frames = some_frames(400)
    with using(kernel):
        messages = []
        for plain in (False, True):
            root = empty_store(tmp_path / str(plain), version)
            got = asyncio.run(answered(root, frames, plain=plain))
            taken = got[3].requests["SEND_MESSAGE_V2"]
            got[3].close()
            messages.append((*got[:3], taken))
    (answers, records, _, asked), (short_answers, short_records, _, taken) = messages
    assert short_records == records
    assert short_answers == answers
    assert asked == taken > 250
    assert len(records) > 200


def test_plain_sends_take_the_short_way_and_are_known_at_once(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[int] = []
    alone: list[int] = []
    put, real = Writer.put, sending.admitted
    monkeypatch.setattr(Writer, "put", lambda *args: (alone.append(1), put(*args))[1])
    monkeypatch.setattr(sending, "admitted", lambda broker, wanted: (
        whole.append(1), real(broker, wanted))[1])
    for kernel in ("python", ""):
        alone.clear()
        frames = [write_command(Command(310, number, 0, {
            "a": "P", "b": "plain", "c": "TBW102", "d": "8", "e": "1", "f": "0",
            "g": "1700000000000", "h": "0", "i": PLAIN[number % 2]}, None, b"body"))
            for number in range(40)]
        with using(kernel):
            root = empty_store(tmp_path / f"s{kernel}")
            answers, records, tails, broker = asyncio.run(answered(root, frames, plain=True))
            broker.close()
        assert len(answers) == len(records) == 40
        assert not whole
        assert len(alone) == (40 if kernel == "python" or MISSING else 0)  # by column otherwise
        # What the server says of its queue before it looks at the disk; it looked after the first
        # of them, which made the log's first file.
        tail = tails["plain", 1]
        assert [(record.physical_offset, record.total_size, tags_code(properties.parse(
            record.properties.decode()).get("TAGS"))) for record in records[20:]] == list(
                zip(tail.physical, tail.sizes, tail.tags, strict=True))
