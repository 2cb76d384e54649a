"""Properties have no CRC: torn ends and holes in them are found, whatever else a store has, and a
repair loses neither the message nor what consume queues and index know of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from rmqctl.broker.recovery import refused_by_crc
from rmqctl.broker.versions import version_of
from tests.adversary.writer import (
    COMMIT,
    PREPARED,
    Header,
    Layout,
    Put,
    Writer,
    field_places,
    sealed,
)
from tests.support.cli import run

JSON = ("-o", "json")
SIZES = ("--index-slots", "101", "--index-max", "256")
LAYOUT = Layout(log_file_size=64 << 10, index_slots=101, index_entries=256)
LEAST = 8
"""Bytes of the smallest hole."""
COUNT = 12


@dataclass(frozen=True)
class World:
    """What a store is like, and which of its messages is hit."""

    name: str
    layout: Layout = LAYOUT
    victim: int = 5

    def puts(self) -> Writer:
        writer = Writer(self.layout)
        for number in range(COUNT):
            self._put(writer, number)
        return writer

    def _put(self, writer: Writer, number: int) -> None:
        body, tags, keys = b"order %d " % number * 9, f"tag{number % 3}", f"order-{number}"
        cluster = {"CLUSTER": "DefaultCluster", "WAIT": "true"}
        if self.name == "transaction":
            half = writer.put("RMQ_SYS_TRANS_HALF_TOPIC", body, tags=tags, keys=keys,
                              properties={**cluster, "REAL_TOPIC": "orders", "REAL_QID": "0",
                                          "TRAN_MSG": "true", "PGROUP": "g"},
                              header=Header(sys_flag=0))
            writer.put("orders", body, tags=tags, keys=keys, properties=cluster, header=Header(
                sys_flag=COMMIT, prepared_transaction_offset=half.physical))
        elif self.name == "prepared":
            writer.put("orders", body, tags=tags, keys=keys, properties=cluster, header=Header(
                sys_flag=PREPARED if number % 2 else 0))
        elif self.name == "delay":
            writer.put("SCHEDULE_TOPIC_XXXX", body, queue_id=2, tags=tags, keys=keys,
                       delay_level=3, properties={
                           **cluster, "REAL_TOPIC": "orders", "REAL_QID": "0"})
        elif self.name == "lmq":
            writer.put("orders", body, tags=tags, keys=keys, properties=cluster,
                       lmq=("%LMQ%a", f"%LMQ%{number % 2}"))
        else:
            writer.put("orders", body, tags=tags, keys=keys, properties=cluster)


WORLDS = {world.name: world for world in (
    World("plain"), World("no-queues", replace(LAYOUT, with_queues=False)),
    World("no-index", replace(LAYOUT, with_index=False)),
    World("bare", replace(LAYOUT, with_queues=False, with_index=False)),
    World("transaction"), World("prepared"), World("delay"), World("lmq"),
    World("version-4", replace(LAYOUT, version=4)), World("last", victim=COUNT - 1),
    World("sealed", replace(LAYOUT, sealed=True)))}


def properties_of(put: Put) -> range:
    """The physical offsets of its properties."""
    return range(put.physical + field_places(put.raw)["properties_length"][0] + 2, put.end)


def holes(put: Put) -> Iterator[tuple[str, int, bytes]]:
    """(name, where, bytes) of damage in the properties: torn ends, and holes of several kinds."""
    places = properties_of(put)
    for at in range(places.start, places.stop - 1, 7):
        yield f"torn-{at - places.start}", at, bytes(places.stop - at)
    for size in (LEAST, 24):
        for at in range(places.start, places.stop - size, 11):
            yield f"zeros-{at - places.start}-{size}", at, bytes(size)
    for at in range(places.start, places.stop - LEAST, 13):
        yield f"noise-{at - places.start}", at, b"\xf3\x9e\x02\xc1k\xff\x80\x01"


def damaged(tmp_path: Path, world: World, put: Put | None = None) -> Iterator[
        tuple[str, Path, Put]]:
    """(kind of damage, the store with it, the message)."""
    writer = world.puts()
    put = put or writer.puts[world.victim]
    store = writer.write(tmp_path / "store")
    file = store / "commitlog" / f"{0:020d}"
    intact = file.read_bytes()
    for name, at, data in holes(put):
        file.write_bytes(intact[:at] + data + intact[at + len(data):])
        yield name, store, put


def judged(store: Path) -> dict[str, Any]:
    answer: dict[str, Any] = run("verify", store, *SIZES, *JSON).expect(0, 1).json()
    return answer


@pytest.mark.long
def test_damage_in_properties_is_counted(tmp_path: Path) -> None:
    for _, store, put in damaged(tmp_path, WORLDS["plain"]):
        start = run("preflight", store, *SIZES, *JSON).expect(1).json()
        assert (start["messages"], start["messages_damaged"]) == (COUNT - 1, 1)
        assert any(str(put.physical) in note for note in start["notes"])
        answer = run("doctor", store, *SIZES, *JSON).expect(1).json()
        assert "1 message has damaged properties" in answer["verdict"]
        assert answer["next"][0].startswith("rmqctl recover ")
        break


def test_a_message_without_its_appended_crc_is_found(tmp_path: Path) -> None:
    """Its name, or what stands before it, is overwritten; a broker may have had it off for long."""
    writer = Writer(replace(LAYOUT, sealed=True))
    for number in range(COUNT):
        writer.put("orders", b"%d" % number, tags="a")
    put = writer.puts[4]
    writer.patch(put.end - 20, b"__CRC33#")
    (result,) = judged(writer.write(tmp_path / "store"))["findings"]
    assert (result["category"], result["offset"], result["count"]) == (
        "property-crc-missing", put.physical, 1)
    writer = Writer(replace(LAYOUT, sealed=True))
    for number in range(3 * COUNT):
        writer.layout = replace(LAYOUT, sealed=not COUNT <= number < 2 * COUNT)
        writer.put("orders", b"%d" % number, tags="a")
    for jobs in ("1", "3"):
        result = run("verify", writer.write(tmp_path / "switched"), *SIZES, "--jobs", jobs, *JSON)
        assert result.expect(0).json()["findings"] == []


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
def test_damage_in_properties_is_found(world: str, tmp_path: Path) -> None:
    store = WORLDS[world].puts().write(tmp_path / "sound")
    assert not {finding["category"] for finding in judged(store)["findings"]
                if finding["severity"] != "info"} - {"index-missing", "cq-missing"}
    for kind, store, put in damaged(tmp_path, WORLDS[world]):
        judgement = judged(store)
        assert any(finding["category"] in ("property-damaged", "property-crc")
                   and finding["offset"] == put.physical and finding["length"] == put.size
                   for finding in judgement["findings"]), (kind, judgement["findings"])
        assert judgement["coverage"]["messages"] == len(WORLDS[world].puts().puts) - 1
        assert not {finding["category"] for finding in judgement["findings"]} & {
            "cq-wrong-tag", "index-entry", "message-fields"}, (kind, judgement["findings"])


# -- repair ---------------------------------------------------------------------------------------


def derived(store: Path) -> dict[str, bytes]:
    """The files of consume queues and index."""
    return {str(path.relative_to(store)): path.read_bytes() for part in ("consumequeue", "index")
            for path in sorted((store / part).rglob("*")) if path.is_file()}


def sampled(tmp_path: Path, world: World, every: int = 5) -> Iterator[tuple[str, Path, Put]]:
    for number, store in enumerate(damaged(tmp_path, world)):
        if number % every == len(world.name) % every:
            yield store


def recovered(store: Path, into: Path, *options: str) -> tuple[Path, dict[str, Any]]:
    """(a copy after `recover --apply`, the plan)."""
    copytree(store, into)
    plan = run("recover", store, *SIZES, *options, *JSON).expect(0, 1).json()
    run("recover", into, *SIZES, *options, "--apply", "--yes").expect(0, 1)
    return into, plan


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
def test_the_message_and_what_entries_know_of_it_are_kept(world: str, tmp_path: Path) -> None:
    for kind, store, put in sampled(tmp_path, WORLDS[world]):
        before = derived(store)
        after, plan = recovered(store, tmp_path / kind)
        assert plan["messages_lost"] == [], kind
        assert plan["kept_damaged"] == 1, kind
        assert {name: derived(after)[name] for name in before} == before, kind
        # The message is there, body and place, and says that it is damaged.
        record = (after / "commitlog" / f"{0:020d}").read_bytes()[put.physical:put.end]
        body = slice(put.body_at - put.physical, put.body_at - put.physical + len(put.body))
        assert record[body] == put.body, kind
        assert b"RMQCTL\x01damaged\x02" in record, kind
        assert b"\0" not in record[properties_of(put).start - put.physical:], kind
        # All is well with it, it stays so, and it can be taken back.
        assert {finding["category"]
                for finding in judged(after)["findings"]} == {"kept-damaged"}, kind
        assert run("recover", after, *SIZES, *JSON).expect(0).json()["actions"] == [], kind
        assert run("preflight", after, *SIZES, *JSON).expect(0).json()["messages_replaced"] == 1
        run("undo", after, "--yes").expect(0)
        assert (after / "commitlog" / f"{0:020d}").read_bytes() == (
            store / "commitlog" / f"{0:020d}").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("world", ["plain", "lmq", "delay"])
def test_a_rebuild_of_entries_keeps_what_they_know(world: str, tmp_path: Path) -> None:
    """Whether the message was marked before or not."""
    for kind, store, _ in sampled(tmp_path, WORLDS[world], 40):
        before = derived(store)
        marked, _ = recovered(store, tmp_path / kind)
        for path in (store, marked):
            for name, data in before.items():  # something to be made anew: its first entry
                at = 40 + 101 * 4 + 20 if name.startswith("index") else 0
                (path / name).write_bytes(data[:at] + bytes(20) + data[at + 20:])
            run("recover", path, *SIZES, "--only", "consumequeue,index", "--apply", "--yes").expect(
                0, 1)
            assert derived(path) == before, kind


@pytest.mark.long
def test_a_replica_gives_the_properties_back(tmp_path: Path) -> None:
    for world in ("plain", "lmq", "delay", "sealed"):
        intact = WORLDS[world].puts().write(tmp_path / world / "intact")
        for kind, store, _ in sampled(tmp_path / world, WORLDS[world], 40):
            after, plan = recovered(store, tmp_path / world / kind, "--from", str(intact))
            assert [action["action"] for action in plan["actions"]] == ["copy"], (world, kind)
            log = Path("commitlog") / f"{0:020d}"
            assert (after / log).read_bytes() == (intact / log).read_bytes(), (world, kind)
            # What was marked before is brought back, too.
            marked, _ = recovered(store, tmp_path / world / f"{kind}-marked")
            run("recover", marked, *SIZES, "--from", intact, "--apply", "--yes").expect(0)
            assert (marked / log).read_bytes() == (intact / log).read_bytes(), (world, kind)


def test_one_byte_that_entries_prove_is_set_right(tmp_path: Path) -> None:
    """A NUL, a byte that is no text, a separator that is none: in tags, keys, and names of them."""
    writer = WORLDS["lmq"].puts()
    put = writer.puts[5]
    store = writer.write(tmp_path / "store")
    log = store / "commitlog" / f"{0:020d}"
    intact = log.read_bytes()
    before = derived(store)
    for name, shift, value in (
            (b"tag2", 1, 0), (b"TAGS", 2, 0), (b"TAGS", 4, 0), (b"order-5", 3, 0xFF),
            (b"KEYS", 4, 0x41), (b"order-5", 2, 2), (b"%LMQ%a", 5, 0), (b"UNIQ_KEY", 10, 0)):
        at = put.physical + put.raw.rindex(name) + shift
        log.write_bytes(intact[:at] + bytes([value]) + intact[at + 1:])
        plan = run("recover", store, *SIZES, *JSON).expect(0).json()
        assert [(action["action"], action["offset"])
                for action in plan["actions"]] == [("correct", at)]
        run("recover", store, *SIZES, "--apply", "--yes").expect(0)
        assert log.read_bytes() == intact
        assert derived(store) == before


def test_many_messages_with_such_properties_are_a_producers(tmp_path: Path) -> None:
    """No repair touches them: nothing says that they ever were different."""
    writer = Writer(LAYOUT)
    for number in range(300):
        writer.put("orders", b"%d" % number, properties_raw=b"bits\x01a\0b\x02TAGS\x01t\x02")
    store = writer.write(tmp_path / "store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rmqctl.repair.salvage.mend.properties._FEW", 100)
        plan = run("recover", store, *SIZES, *JSON, "--only", "commitlog").expect(1).json()
    assert plan["actions"] == []
    assert plan["left_damaged"] == ["commitlog"]


def test_a_message_without_room_for_the_mark_stays(tmp_path: Path) -> None:
    writer = Writer(LAYOUT)
    for number in range(COUNT):
        writer.put("orders", b"%d" % number, unique_key="", tags="t")
    put = writer.puts[4]
    writer.patch(put.end - 2, b"\0\0")
    store = writer.write(tmp_path / "store")
    before = derived(store)
    plan = run("recover", store, *SIZES, *JSON).expect(1).json()
    assert (plan["actions"], plan["left_damaged"]) == ([], ["commitlog"])
    assert derived(store) == before


# -- forceVerifyPropCRC ---------------------------------------------------------------------------


KNOWS = {"4.9.3": False, "5.1.4": False, "5.2.0": True, "5.3.1": True, "5.3.3": True}
"""Whether a release knows the setting."""


def forced(folder: Path, value: str = "true") -> tuple[str, ...]:
    conf = folder / "broker.conf"
    conf.write_text("brokerName = a\nmappedFileSizeCommitLog = 65536\n"
                    "mappedFileSizeConsumeQueue = 2000\nmaxHashSlotNum = 101\nmaxIndexNum = 256\n"
                    f"forceVerifyPropCRC = {value}\n")
    return "--broker-conf", str(conf)


def ends_at(store: Path, version: str, *options: str) -> int:
    start = run("preflight", store, *SIZES, "--broker-version", version, *options, *JSON)
    end: int = start.expect(0, 1).json()["truncate_to"]
    return end


@pytest.mark.parametrize("kind", ["name", "digits", "flag", "glued", "unsealed"])
def test_a_broker_that_forces_appended_crcs_ends_its_log_there(kind: str, tmp_path: Path) -> None:
    """What no other broker minds."""
    writer = Writer(replace(LAYOUT, sealed=True, abort=True))
    for number in range(COUNT):
        writer.layout = replace(writer.layout, sealed=not (kind == "unsealed" and number == 4))
        if kind == "glued" and number == 4:  # a batch does so (commitlog.md §5.4)
            writer.layout = replace(writer.layout, sealed=False)
            raw = b"TAGS\x01a__CRC32#\x010000000000\x02"
            put = writer.put("orders", b"x", properties_raw=raw)
            writer.patch(put.physical, sealed(put.raw))
        else:
            writer.put("orders", b"%d" % number, tags="a")
    put = writer.puts[4]
    if kind in ("name", "digits"):
        writer.patch(put.end - (20 if kind == "name" else 5), b"7")
    elif kind == "flag":
        writer.flip(put.physical + 19)
    store = writer.write(tmp_path / "store")
    for version, knows in KNOWS.items():
        assert ends_at(store, version) == writer.end
        assert ends_at(store, version, *forced(tmp_path, "false")) == writer.end
        assert ends_at(store, version, *forced(tmp_path)) == (
            put.physical if knows else writer.end)
    # The same by `recover --strategy broker`, and on a store that is sound nothing ends.
    plan = run("recover", store, *SIZES, *forced(tmp_path), "--strategy", "broker",
               "--broker-version", "5.3.3", *JSON).expect(0, 1).json()
    assert [action["to"] for action in plan["actions"]
            if action["action"] == "truncate"] == [put.physical]
    # `recover` sets it right, or says that it does not.
    mended = run("recover", store, *SIZES, *forced(tmp_path), "--apply", "--yes").expect(0, 1)
    assert (kind == "glued") <= (
        mended.code == 1 and "as in batches that brokers write" in mended.err)
    assert mended.code == 1 or (
        ends_at(store, "5.3.3", *forced(tmp_path)) == writer.end)
    whole = WORLDS["sealed"].puts()
    sound = whole.write(tmp_path / "sound")
    assert ends_at(sound, "5.3.3", *forced(tmp_path)) == whole.end


def test_a_body_is_covered_by_the_appended_crc_alone(tmp_path: Path) -> None:
    """A body CRC that is wrong ends the log only where a broker looks at it."""
    writer = Writer(replace(LAYOUT, sealed=True, abort=True))
    for number in range(COUNT):
        writer.put("orders", b"%d" % number, tags="a",
                   header=Header(body_crc=1) if number == 4 else None)
    store = writer.write(tmp_path / "store")
    assert ends_at(store, "5.3.3") == writer.puts[4].physical
    assert ends_at(store, "5.3.3", *forced(tmp_path)) == writer.end


def test_an_appended_crc_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(replace(LAYOUT, sealed=True))
    raw = writer.put("orders", b"x").raw[:-11] + b"0000000000\x02"
    monkeypatch.setattr("rmqctl.formats.local.append_crc.compute", lambda _raw: 0)
    assert refused_by_crc(raw, version_of("5.3.3")) == ""
    assert "no appended CRC" in refused_by_crc(raw, version_of("5.3.1"))
