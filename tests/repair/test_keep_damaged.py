"""``--keep-damaged`` and ``--fillers none``: what can be delivered is, and nothing is invented."""

from __future__ import annotations

import os
import random
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.damage.records import body_at
from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record, build, decode
from rmqctl.repair.salvage.keep import marked
from tests.conftest import GoldenFolder
from tests.repair.test_correct import record_of
from tests.support import tiny
from tests.support.cli import run

JSON = ("-o", "json")
OPTIONS = ("--index-slots", "8", "--index-max", "32")
KEEP = ("--correct", "off", "--keep-damaged")
SETS = [f"{version}/{name}" for version in ("4.9.3", "5.3.3")
        for name in ("crash-crc", "clean-crc")]


def noise(size: int, seed: int = 3) -> bytes:
    return random.Random(seed).randbytes(size)


def specs(body: bytes, **more: str) -> list[tiny.Spec]:
    return [tiny.Spec("orders", number % 2, body + b"%d" % number,
                      {"UNIQ_KEY": f"0A{number:04X}", "KEYS": f"k{number}", "TAGS": "t", **more})
            for number in range(6)]


def hit(built: tiny.Tiny, number: int, count: int = 9) -> bytes:
    """Overwrites bytes in the middle of a body; returns what the body is then."""
    message = built.messages[number]
    at = body_at(message.record) + 3
    name, position = built.place(message.start + at)
    path = built.root / name
    content = bytearray(path.read_bytes())
    content[position:position + count] = bytes(byte ^ 0xA5 for byte in
                                               content[position:position + count])
    path.write_bytes(content)
    start = position - 3
    return bytes(content[start:start + len(message.record.body)])


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(("body", "more", "how"), [
    (noise(60), {"CLUSTER": "DefaultCluster"}, "CLUSTER"),
    (b"the same again " * 9, {}, "compressing"),
    (noise(60), {}, "the last 15 bytes"),
], ids=["properties", "compressed", "cut"])
def test_delivered_as_it_is(body: bytes, more: dict[str, str], how: str, sealed: bool,
                            tmp_path: Path) -> None:
    built = tiny.build(tmp_path / "store", specs(body, **more), append_crc=sealed)
    store, whole = built.root, {number: message.record for number, message in
                                enumerate(built.messages)}
    damaged = {number: hit(built, number) for number in (2, 5)}
    before = {path: path.read_bytes() for path in (store / "commitlog").iterdir()}
    plan = run("recover", store, *OPTIONS, *KEEP, *JSON).expect(1).json()
    assert plan["kept_damaged"] == 2
    assert plan["messages_lost"] == []
    kept = [action for action in plan["actions"] if action["action"] == "keep damaged"]
    assert len(kept) == 2
    assert all(how in action["reason"] for action in kept)
    run("recover", store, *OPTIONS, *KEEP, "--apply", "--yes").expect(1)
    rows = run("read", store, "-o", "jsonl", "--body", "base64").expect(0).jsonl()
    assert len(rows) == 6
    for number, row in enumerate(rows):
        record = whole[number]
        assert (row["queue_offset"], row["physical_offset"], row["tags"], row["keys"]) == (
            record.queue_offset, record.physical_offset, "t", [f"k{number}"])
        name, position = built.place(record.physical_offset)
        now = decode((store / name).read_bytes()[position:position + record.total_size])
        content = zlib.decompress(now.body) if now.sys_flag & sysflag.COMPRESSED else now.body
        assert now.crc_ok
        assert now.total_size == record.total_size
        assert row["properties"].get("RMQCTL") == ("damaged" if number in damaged else None)
        wanted = damaged.get(number, record.body)
        assert content == (wanted[:-15] if number in damaged and "last" in how else wanted)
    # The store is whole now, for brokers with their strictest check too, and can go back.
    judged = run("verify", store, *OPTIONS, *JSON).expect(0).json()
    assert {finding["category"] for finding in judged["findings"]} == {"kept-damaged"}
    assert judged["coverage"]["messages_replaced"] > 0
    assert run("recover", store, *OPTIONS, *JSON).expect(0).json()["actions"] == []
    run("undo", store, "--yes").expect(0)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("name", SETS)
def test_stores_of_the_engine(name: str, golden_copy: GoldenFolder) -> None:
    store = golden_copy(f"{name}/before")
    plan = run("recover", store, *KEEP, "--apply", "--yes", *JSON).expect(1).json()
    assert plan["kept_damaged"] == 1
    assert plan["messages_lost"] == []
    assert not any(action["action"] == "fill" for action in plan["actions"])
    findings = run("verify", store, *JSON).expect(0).json()["findings"]
    assert "fillers" not in {finding["category"] for finding in findings}
    rows = run("read", store, "-o", "jsonl").expect(0).jsonl()
    assert sum(row["properties"].get("RMQCTL") == "damaged" for row in rows) == 1
    assert run("recover", store, *JSON).expect(0).json()["actions"] == []


def test_a_packed_body_that_cannot_be_unpacked_is_no_longer_called_packed(tmp_path: Path) -> None:
    packed = zlib.compress(noise(90))
    built = tiny.build(tmp_path / "store", [
        *specs(noise(50)), tiny.Spec("orders", 0, packed, {"CLUSTER": "DefaultCluster"},
                                     sys_flag=sysflag.COMPRESSED)])
    damaged = hit(built, 6)
    run("recover", built.root, *OPTIONS, *KEEP, "--apply", "--yes").expect(1)
    *_, row = run("read", built.root, "-o", "jsonl").expect(0).jsonl()
    assert row["sys_flag"] == 0
    name, position = built.place(built.messages[6].start)
    assert decode((built.root / name).read_bytes()[position:]).body == damaged


def test_no_frame_in_a_damaged_body_becomes_a_message(tmp_path: Path) -> None:
    inner, _ = record_of(b"forged")
    built = tiny.build(tmp_path / "store", specs(inner * 2))
    hit(built, 3)
    run("recover", built.root, *OPTIONS, *KEEP, "--apply", "--yes").expect(1)
    assert len(run("read", built.root, "-o", "jsonl").expect(0).jsonl()) == 6


def test_a_damaged_head_is_not_delivered(tmp_path: Path) -> None:
    """Nobody knows whose message that is: the row of the queue says another one."""
    built = tiny.build(tmp_path / "store", specs(noise(50)))
    hit(built, 3)
    name, position = built.place(built.messages[3].start + 12)  # the queue id
    content = bytearray((built.root / name).read_bytes())
    content[position + 3] ^= 1
    (built.root / name).write_bytes(content)
    plan = run("recover", built.root, *OPTIONS, *KEEP, *JSON).expect(1).json()
    assert "kept_damaged" not in plan
    assert len(plan["messages_lost"]) == 1


def test_no_fillers(tmp_path: Path) -> None:
    built = tiny.build(tmp_path / "store", specs(noise(50)))
    store = built.root
    none = (*OPTIONS, "--fillers", "none")
    run("recover", store, *none).expect(0)
    hit(built, 3)
    content = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    refused = run("recover", store, *none, "--apply", "--yes").expect(6)
    assert f"1 damaged part of the log, the first at physical offset {built.messages[3].start}" in (
        refused.err)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == content
    # Nothing is invented where the message is delivered as it is.
    run("recover", store, *none, "--keep-damaged", "--apply", "--yes").expect(1)
    run("verify", store, *OPTIONS).expect(0)


def test_what_one_byte_explains_is_told(golden: GoldenFolder) -> None:
    result = run("recover", golden("5.3.3/crash-crc/before"), "--correct", "bit", *JSON).expect(1)
    assert "--correct byte restores the original" in result.err


@given(body=st.binary(max_size=200), cluster=st.booleans(), wait=st.booleans(),
       trailing=st.booleans(), sealed=st.booleans(), flag=st.sampled_from([0, 1, 0x101, 4]))
def test_the_size_stays(body: bytes, cluster: bool, wait: bool, trailing: bool, sealed: bool,
                        flag: int) -> None:
    values = {"KEYS": "k", "TAGS": "t"}
    values |= {"CLUSTER": "DefaultCluster"} if cluster else {}
    values |= {"WAIT": "true"} if wait else {}
    text = props.build(values, trailing=trailing or sealed).encode()
    _, record = record_of(b"")
    record = replace(record, body=body, body_crc=5, sys_flag=flag,
                     properties=text + bytes(append_crc.SIZE * sealed))
    raw = build(replace(record, total_size=len(build(record))))
    raw = append_crc.seal(raw) if sealed else raw
    result = marked(decode(raw), sealed)
    if result is None:
        assert len(body) <= 15
        assert not cluster
        return
    now: Record = decode(result[0])
    assert len(result[0]) == len(raw) == now.total_size
    assert now.crc_ok
    assert build(now) == result[0]
    assert append_crc.verify(result[0]) is (True if sealed else None)
    read = props.parse(os.fsdecode(now.properties))
    assert read["RMQCTL"] == "damaged"
    assert read["KEYS"] == "k"
    assert read["TAGS"] == "t"
    if now.sys_flag & sysflag.COMPRESSED and not flag & 1:
        assert zlib.decompress(now.body) == body
    else:
        assert body.startswith(now.body)
        assert len(body) - len(now.body) in (0, 15)
