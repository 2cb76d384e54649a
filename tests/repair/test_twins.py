"""A damaged body comes back from another message of the log that has the same one."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from rmqctl.damage.records import body_at
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record, decode, message_id
from rmqctl.repair.rebuild.derived_range import log_as_it_is
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.support import tiny
from tests.support.cli import run
from tests.support.share import RUN

BODY = b"tea, milk and a pound of sugar, please"
OPTIONS = ("--index-slots", "8", "--index-max", "32", "-o", "json")


def messages(root: Path) -> dict[int, Record]:
    texts = {}
    with Store.open(root) as store:
        for part in log_as_it_is(store):
            with part.open() as source:
                for batch in Walk(source):
                    for row in range(len(batch)):
                        texts[int(batch.offset[row])] = decode(batch.bytes_at(row))
    return texts


def damage(root: Path, record: Record, luck: Random) -> None:
    """Every byte of its body becomes another one."""
    with Store.open(root) as store:
        file = store.log.file_of(record.physical_offset)
        assert file is not None
        path, position = Path(file.path), record.physical_offset - file.base + body_at(record)
    content = bytearray(path.read_bytes())
    for at in range(position, position + len(record.body)):
        content[at] ^= luck.randrange(1, 256)
    path.write_bytes(content)


def logs(root: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}


@pytest.mark.parametrize("name", ["4.9.3/transaction", "5.3.3/transaction"])
def test_copies_that_a_broker_makes(name: str, golden_copy: GoldenFolder) -> None:
    """Half messages and their ends: each of the two comes back from the other."""
    store = golden_copy(f"{name}/store")
    whole, alike = logs(store), defaultdict(list)
    for record in messages(store).values():
        key = props.parse(record.properties.decode()).get(props.UNIQUE_KEY)
        alike[key, record.body].append(record)
    pairs = [group for (key, body), group in alike.items() if key and body and len(group) > 1
             and group[-1].prepared_transaction_offset]  # 0 names nothing: every message has it
    luck = Random(RUN.number(name))
    first, other = luck.sample(pairs, 2)
    for record in (first[0], other[-1]):
        damage(store, record, luck)
    plan = run("recover", store, "--correct", "off", "--apply", "--yes", "-o",
               "json").expect(0).json()
    mended = [action for action in plan["actions"] if action["action"] == "mend record"]
    assert len(mended) == 2
    for action in mended:
        assert action["proof"]["fields"] == ["body"]
        assert "the body's CRC" in action["proof"]["witnesses"]
        assert action["proof"]["by"][0].startswith("body copied from the ")
    assert logs(store) == whole


def build(root: Path, copy: bytes = BODY, key: str = "0A01", **properties: str) -> tiny.Tiny:
    return tiny.build(root, [
        tiny.Spec("other", 0, b"before"),
        tiny.Spec("orders", 0, BODY, {"UNIQ_KEY": "0A01"}),
        tiny.Spec("orders", 0, b"between", {"UNIQ_KEY": "0A02"}),
        tiny.Spec("%RETRY%billing", 0, copy, {"UNIQ_KEY": key, **properties})])


@pytest.mark.parametrize("index", [True, False])
def test_a_retry_and_its_origin(index: bool, tmp_path: Path) -> None:
    """The damaged message names its origin. That another one names it as origin is no proof."""
    origin = build(tmp_path / "measured").messages[1].record
    name = message_id(*origin.store_host, origin.physical_offset)
    for number in (1, 3):
        built = build(tmp_path / f"store{number}", ORIGIN_MESSAGE_ID=name)
        whole = logs(built.root)
        damage(built.root, built.messages[number].record, Random(number))
        if not index:
            for path in (built.root / "index").iterdir():
                path.unlink()
        result = run("recover", built.root, *OPTIONS, "--apply", "--yes")
        is_back = number == 3
        assert result.code == (0 if is_back else 1)
        assert (logs(built.root) == whole) == is_back


@pytest.mark.parametrize("apart", [False, True])
def test_every_byte_that_survived_is_the_copys(apart: bool, tmp_path: Path) -> None:
    """Between two damaged places the body is of another message than the copy."""
    origin = build(tmp_path / "measured").messages[1].record
    name = message_id(*origin.store_host, origin.physical_offset)
    built = build(tmp_path / "store", ORIGIN_MESSAGE_ID=name)
    whole, record = logs(built.root), built.messages[3].record
    path, at = next((path, path.read_bytes().rindex(BODY)) for path in (
        built.root / "commitlog").iterdir() if path.read_bytes().count(BODY) == 2)
    content = bytearray(path.read_bytes())
    for start in (0, len(BODY) - 6) if apart else (0, 6):
        content[at + start:at + start + 6] = b"######"
    path.write_bytes(content)
    assert record.body == BODY
    run("recover", built.root, *OPTIONS, "--apply", "--yes").expect(1 if apart else 0)
    assert (logs(built.root) == whole) == (not apart)


@pytest.mark.parametrize(("copy", "key"), [
    (BODY[:-1] + b"!", "0A01"), (BODY + b"!", "0A01"), (BODY, "0A0F")])
def test_another_body_or_key_is_no_copy(copy: bytes, key: str, tmp_path: Path) -> None:
    built = build(tmp_path / "store", copy, key)
    damage(built.root, built.messages[1].record, Random(1))
    plan = run("recover", built.root, *OPTIONS).expect(1).json()
    assert len(plan["messages_lost"]) == 1


def forged(length: int, crc: int) -> bytes:
    """A body of this length with this CRC-32: four bytes in it are computed."""
    table = [0] * 256
    for number in range(256):
        value = number
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        table[number] = value
    by_top = {value >> 24: number for number, value in enumerate(table)}
    start, wanted = b"all of it to mallory".ljust(length - 4, b"!"), crc ^ 0xFFFFFFFF
    numbers = []
    for _ in range(4):
        numbers.insert(0, by_top[wanted >> 24])
        wanted = (wanted ^ table[numbers[0]]) << 8 & 0xFFFFFFFF | numbers[0]
    state, end = zlib.crc32(start) ^ 0xFFFFFFFF, b""
    for number in numbers:
        end += bytes([state & 0xFF ^ number])
        state = table[number] ^ state >> 8
    assert zlib.crc32(start + end) == crc
    return start + end


@pytest.mark.parametrize(("topic", "more"), [
    ("orders", {}), ("%RETRY%billing", {"RETRY_TOPIC": "orders"}),
    ("RMQ_SYS_TRANS_HALF_TOPIC", {"REAL_TOPIC": "orders", "REAL_QID": "0"}),
    ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "orders", "REAL_QID": "0", "DELAY": "1"})])
@pytest.mark.parametrize("harm", ["two bits", "zeros", "everything"])
def test_a_forged_body_of_a_stranger_is_none(topic: str, more: dict[str, str], harm: str,
                                             tmp_path: Path) -> None:
    """Its sender chose unique key, length, CRC and properties; the damaged message is another."""
    origin = build(tmp_path / "measured").messages[1].record
    name = message_id(*origin.store_host, origin.physical_offset)
    evil = forged(len(BODY), zlib.crc32(BODY))
    built = tiny.build(tmp_path / "store", [
        tiny.Spec("other", 0, b"before"),
        tiny.Spec("orders", 0, BODY, {"UNIQ_KEY": "0A01"}),
        tiny.Spec("orders", 0, b"between", {"UNIQ_KEY": "0A02"}),
        tiny.Spec(topic, 0, evil, {"UNIQ_KEY": "0A01", "ORIGIN_MESSAGE_ID": name, **more})])
    record = built.messages[1].record
    if harm == "everything":
        damage(built.root, record, Random(1))
    else:
        with Store.open(built.root) as store:
            file = store.log.file_of(record.physical_offset)
            assert file is not None
            path, at = Path(file.path), record.physical_offset - file.base + body_at(record)
        content = bytearray(path.read_bytes())
        if harm == "zeros":
            content[at + 6:at + 25] = bytes(19)
        else:
            content[at + 3] ^= 4
            content[at + 20] ^= 16
        path.write_bytes(content)
    run("recover", built.root, *OPTIONS, "--apply", "--yes").expect(0, 1)
    read = run("read", built.root, "--topic", "orders", "-o", "jsonl").jsonl()
    assert [row["body"] for row in read if row["queue_offset"] == 1 or "mallory" in row["body"]
            ] == ["between"]
