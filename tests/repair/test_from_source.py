"""`recover --from`: lost bytes come back from another store, if it has the same log."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.formats.local import message
from tests.adversary.writer import Layout, Writer, frame, framed
from tests.conftest import GoldenFolder
from tests.repair import damage
from tests.support import snapshot
from tests.support.cli import Result, run
from tests.support.holder import held
from tests.support.share import sample

JSON = ("-o", "json")
APPLY = ("--apply", "--yes", *JSON)
STORES = ["4.9.3/basic/store", "5.3.3/basic/store", "5.3.3/appendcrc/store",
          "5.3.3/multipath/store", "5.3.3/batchcq/store", "4.9.3/transaction/store",
          "5.3.3/ipv6/store", "5.3.3/lmq/store"]
SIZES = ("--index-slots", "16", "--index-max", "64")
SMALL = Layout(log_file_size=8 << 10, queue_file_units=20)


def recover(store: Path, *sources: Path, options: tuple[str, ...] = JSON) -> Result:
    named = [word for source in sources for word in ("--from", str(source))]
    return run("recover", store, *named, *options)


def log_of(root: Path) -> dict[str, bytes]:
    """The files of the log, by name."""
    return {f"{folder}/{path.name}": path.read_bytes() for folder in ("commitlog", "cl1", "cl2")
            for path in sorted((root / folder).glob("[0-9]*"))}


def actions(document: dict[str, Any], verb: str) -> list[dict[str, Any]]:
    return [action for action in document["actions"] if action["action"] == verb]


def log_files(root: Path) -> list[Path]:
    """The files that hold anything, in the order of the log."""
    return sorted((root / name for name, data in log_of(root).items() if any(data)),
                  key=lambda path: path.name)


# -- what comes back ------------------------------------------------------------------------------


def flipped(root: Path) -> None:
    """A bit of a body in each file, what a CRC tells."""
    for number, path in enumerate(log_files(root)):
        data = bytearray(path.read_bytes())
        starts = [0]
        while data[starts[-1] + 4:starts[-1] + 8] == b"\xda\xa3\x20\xa7":
            starts.append(starts[-1] + int.from_bytes(data[starts[-1]:starts[-1] + 4]))
        data[starts[min(1 + number % 3, len(starts) - 2)] + 120] ^= 4
        path.write_bytes(data)


def zeroed_pages(root: Path) -> None:
    path = log_files(root)[0]
    data = bytearray(path.read_bytes())
    data[4096:12288] = bytes(8192)
    path.write_bytes(data)


def first_file_gone(root: Path) -> None:
    log_files(root)[0].unlink()


def middle_file_gone(root: Path) -> None:
    log_files(root)[1].unlink()


def last_files_gone(root: Path) -> None:
    for path in log_files(root)[2:]:
        path.unlink()


def torn_tail(root: Path) -> None:
    """The last file with anything ends in the midst of a message, and is shorter than it was."""
    path = log_files(root)[-1]
    os.truncate(path, len(path.read_bytes().rstrip(b"\0")) * 2 // 3)


def zeroed_tail(root: Path) -> None:
    path = log_files(root)[-1]
    data = path.read_bytes()
    half = len(data.rstrip(b"\0")) // 2
    path.write_bytes(data[:half] + bytes(len(data) - half))


KINDS = [flipped, zeroed_pages, first_file_gone, middle_file_gone, last_files_gone, torn_tail,
         zeroed_tail]


@pytest.mark.parametrize(("name", "kind"), sample(
    [(name, kind) for name in STORES for kind in KINDS
     # A folder with a file that is too short is none of the log, unless it is named.
     if (name, kind) != ("5.3.3/multipath/store", torn_tail)], 5, "recover from",
    always=lambda case: case[0] == "5.3.3/basic/store"))
def test_the_log_is_the_engines_again(name: str, kind: Callable[[Path], None],
                                      golden: GoldenFolder, golden_copy: GoldenFolder) -> None:
    store, source = golden_copy(name), golden(name)
    whole = log_of(source)
    kind(store)
    damaged = log_of(store)
    assert damaged != whole
    with snapshot.assert_unchanged(source, store):
        plan = recover(store, source).expect(0).json()
    copied = actions(plan, "copy")
    for action in copied:
        assert action["proof"]["source"] == str(source)
        assert action["proof"]["contradicted"] == 0
        neighbours = action["proof"]["neighbours"]
        assert {*neighbours.values()} != {None}
        if kind in (flipped, zeroed_pages, middle_file_gone):
            assert neighbours["before"] < action["offset"] < neighbours["after"]
    with snapshot.assert_unchanged(source):
        done = recover(store, source, options=APPLY).expect(0).json()
    assert (done["messages_lost"], actions(done, "copy")) == ([], copied)
    assert log_of(store) == whole
    assert run("verify", store, *JSON).expect(0).json()["ok"]
    assert run("diff", store, source, *JSON).expect(0).json()["summary"]["equal"] > 0
    assert recover(store, source).expect(0).json()["actions"] == []
    run("undo", store, "--yes").expect(0)
    assert log_of(store) == damaged


def campaign(golden: GoldenFolder, folder: Path, seed: int, count: int) -> None:
    """Whatever is damaged, with an intact replica every byte of it comes back, and nothing else."""
    luck = random.Random(seed)
    for number in range(count):
        name = luck.choice(STORES)
        store = snapshot.copy_tree(golden(name), folder / f"s{number}")
        folders = ("cl1", "cl2") if "multipath" in name else ()
        done = damage.do(store, luck.getrandbits(32), commitlog_dirs=folders)
        named = [word for folder in folders for word in ("--commitlog-dir", folder)]
        prefer = ("--prefer", str(golden(name)))
        result = recover(store, golden(name), options=(*named, *prefer, *APPLY))
        data, whole = ({path.rpartition("/")[2]: data for path, data in log_of(root).items()}
                       for root in (store, golden(name)))
        assert data == whole, (seed, number, name, done, result.err)
        result.expect(0)
        shutil.rmtree(store)


def test_a_campaign_of_damage_with_a_replica(golden: GoldenFolder, tmp_path: Path,
                                             seed: int) -> None:
    campaign(golden, tmp_path, seed, 5)


def test_all_that_is_left_of_ours_is_a_message_with_a_turned_bit(golden: GoldenFolder,
                                                                 tmp_path: Path) -> None:
    """The index still knows the keys of the messages that are gone: the replica is of this log."""
    campaign(golden, tmp_path, 2753645205, 4)


def test_all_that_is_left_of_ours_is_damaged(golden: GoldenFolder, tmp_path: Path) -> None:
    """One message has another topic by one bit; queues and index know the one of the replica."""
    campaign(golden, tmp_path, 3239164710, 6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(10))
def test_a_long_campaign_of_damage_with_a_replica(golden: GoldenFolder, tmp_path: Path, seed: int,
                                                  part: int) -> None:
    campaign(golden, tmp_path, seed + 1000 * part, 40)


def test_fillers_of_an_earlier_repair_give_way(golden: GoldenFolder,
                                               golden_copy: GoldenFolder) -> None:
    """The replica was found after the repair. Its messages are no conflict with fillers."""
    store, source = golden_copy("5.3.3/basic/store"), golden("5.3.3/basic/store")
    middle_file_gone(store)
    zeroed_pages(store)
    assert recover(store, options=APPLY).expect(1).json()["messages_lost"]
    filled = log_of(store)
    done = recover(store, source, options=APPLY).expect(0).json()
    assert actions(done, "conflict") == []
    assert log_of(store) == log_of(source)
    assert run("diff", store, source, *JSON).expect(0)
    # And a source with fillers is one that has lost them, too.
    run("undo", store, "--yes").expect(0)
    assert log_of(store) == filled
    again = snapshot.copy_tree(source, store.parent / "again")
    zeroed_pages(again)
    result = recover(again, store).expect(1).json()
    assert (actions(result, "conflict"), actions(result, "copy")) == ([], [])
    whole = snapshot.copy_tree(source, store.parent / "whole")
    assert recover(whole, store).expect(0).json()["actions"] == []


@pytest.mark.parametrize("name", ["5.3.3/basic/store", "5.3.3/appendcrc/store",
                                  "4.9.3/basic/store"])
def test_messages_kept_damaged_give_way(name: str, golden: GoldenFolder, golden_copy: GoldenFolder,
                                        seed: int) -> None:
    """What an earlier repair delivers with its damage is no conflict with the original, be it in
    the midst of the log or its last message; and it is no original itself.
    """
    store, source = golden_copy(name), golden(name)
    luck = random.Random(seed)
    last = len(log_files(store)) - 1
    for number, path in enumerate(log_files(store)):
        data = bytearray(path.read_bytes())
        starts = [0]
        while data[starts[-1] + 4:starts[-1] + 8] == b"\xda\xa3\x20\xa7":
            starts.append(starts[-1] + int.from_bytes(data[starts[-1]:starts[-1] + 4]))
        starts = starts[:-1]
        for start in ({starts[-1]} if number == last else set()) | {luck.choice(starts)}:
            length = int.from_bytes(data[start + 84:start + 88])
            for at in range(start + 88, start + 88 + length, 7):
                data[at] ^= 0x15
        path.write_bytes(data)
    kept = recover(store, options=("--correct", "off", "--keep-damaged", *APPLY)).expect(1).json()
    assert kept["kept_damaged"] > 1
    ours = log_of(store)
    done = recover(store, source, options=APPLY).expect(0).json()
    assert actions(done, "conflict") == []
    assert log_of(store) == log_of(source)
    run("undo", store, "--yes").expect(0)
    assert log_of(store) == ours
    whole = snapshot.copy_tree(source, store.parent / "whole")
    assert recover(whole, store).expect(0).json()["actions"] == []


@pytest.mark.parametrize("length", [4, 90])
def test_what_a_repair_put_into_another_branch_stays(length: int, tmp_path: Path) -> None:
    """Fillers (of short bodies) and kept messages: the mark alone says nothing, all that a repair
    leaves as it was must be the same.
    """
    writers = []
    for mark in (b"a", b"b"):
        writer = Writer(SMALL, seed=1)
        for number in range(60):
            who = b"c" if number < 30 else mark
            writer.put("orders", b"%s%d " % (who, number) + who * length,
                       keys=f"{who.decode()}{number:04d}", unique_key=f"{who.decode()}{number}")
        writers.append(writer)
    ours, other = writers
    for number in (40, 59):
        ours.patch(ours.puts[number].physical + 90, b"\xfe\xfd\xfc\xfb")
    store, source = ours.write(tmp_path / "ours"), other.write(tmp_path / "other")
    options = ("--correct", "off", "--keep-damaged", *APPLY)
    done = recover(store, options=(*SIZES, *options)).expect(1).json()
    assert ("kept_damaged" in done) == (length > 4)
    before = log_of(store)
    plan = recover(store, source, options=(*SIZES, "--prefer", "ours", *APPLY)).expect(0).json()
    assert {action["action"] for action in plan["actions"]} == {"conflict"}
    assert log_of(store) == before


@pytest.mark.parametrize("left", ["no file", "nothing in them"])
def test_a_log_of_which_nothing_is_left(left: str, tmp_path: Path) -> None:
    """The index tells that a source has it; without one nothing does."""
    store, source = filled().write(tmp_path / "ours"), filled().write(tmp_path / "source")
    other = filled(split=0).write(tmp_path / "other")
    whole = log_of(store)
    for path in log_files(store):
        if left == "no file":
            path.unlink()
        else:
            path.write_bytes(bytes(len(path.read_bytes())))
    result = recover(store, other, options=(*SIZES, *JSON)).expect(6)
    assert "unknown whether it belongs to this log" in result.err
    recover(store, source, options=(*SIZES, *APPLY)).expect(0)
    assert log_of(store) == whole
    assert run("verify", store, *SIZES, *JSON).expect(0).json()["ok"]
    run("undo", store, "--yes").expect(0)
    shutil.rmtree(store / "index")
    recover(store, source, options=(*SIZES, *JSON)).expect(6)


def test_lost_configuration(tmp_path: Path) -> None:
    writer = filled()
    writer.offsets["orders", "billing"] = {0: 7, 1: 2}
    store, source = writer.write(tmp_path / "ours"), writer.write(tmp_path / "source")
    names = sorted(path.name for path in (source / "config").iterdir())
    assert {"topics.json", "consumerOffset.json"} <= {*names}
    (store / "config/topics.json").unlink()
    (store / "config/consumerOffset.json").write_bytes(b'{"offsetTable":{"ord')
    for path in (store / "config").glob("*.bak"):
        path.unlink()
    before = snapshot.take(store)
    plan = recover(store, source, options=(*SIZES, *APPLY)).expect(0).json()
    assert {action["target"] for action in actions(plan, "copy")} == {
        "config/topics.json", "config/consumerOffset.json"}
    for name in ("topics.json", "consumerOffset.json"):
        assert (store / "config" / name).read_bytes() == (source / "config" / name).read_bytes()
    run("undo", store, "--yes").expect(0)
    assert [line for line in before.differences(snapshot.take(store))
            if ".rmqctl" not in line and "mtime_ns" not in line] == []
    # What a backup still has is not lost.
    shutil.copy(source / "config/topics.json", store / "config/topics.json.bak")
    plan = recover(store, source, options=(*SIZES, *JSON)).expect(0).json()
    assert [action["target"] for action in actions(plan, "copy")] == ["config/consumerOffset.json"]


def test_much_of_a_file_is_not_held_in_memory(golden: GoldenFolder, golden_copy: GoldenFolder,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes a new file, with the name, time and mode of the old one."""
    from rmqctl.repair.sources import copying

    monkeypatch.setattr(copying, "_MAX_IN_MEMORY", 1000)
    store, source = golden_copy("5.3.3/multipath/store"), golden("5.3.3/multipath/store")
    zeroed_pages(store)
    zeroed_tail(store)
    damaged = log_of(store)
    times = {path: path.stat().st_mtime_ns for path in log_files(store)}
    recover(store, source, options=APPLY).expect(0)
    assert log_of(store) == log_of(source)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    run("undo", store, "--yes").expect(0)
    assert log_of(store) == damaged


def test_the_source_tells_how_long_files_are(golden: GoldenFolder,
                                             golden_copy: GoldenFolder) -> None:
    """All of ours were cut, and one of two is left."""
    store, source = golden_copy("5.3.3/ipv6/store"), golden("5.3.3/ipv6/store")
    first, *_, last = log_files(store)
    os.truncate(first, 9000)
    os.truncate(last, 5000)
    for path in log_files(store)[1:-1]:
        path.unlink()
    recover(store, source, options=APPLY).expect(0)
    assert log_of(store) == log_of(source)


def test_two_damaged_copies_make_one_whole(golden: GoldenFolder, golden_copy: GoldenFolder,
                                           tmp_path: Path) -> None:
    """A source's own damage is not copied; what another source has of it is."""
    name = "5.3.3/basic/store"
    whole = log_of(golden(name))
    store = golden_copy(name)
    first = snapshot.copy_tree(golden(name), tmp_path / "first")
    second = snapshot.copy_tree(golden(name), tmp_path / "second")
    zeroed_pages(store)
    for source, low, high in ((first, 5000, 9000), (second, 10000, 14000)):
        path = log_files(source)[0]
        data = bytearray(path.read_bytes())
        data[low:high] = os.urandom(high - low)
        path.write_bytes(data)
    # The first alone leaves what is damaged in both.
    plan = recover(store, first).expect(1).json()
    assert 0 < len(plan["messages_lost"]) < 8
    lost = [message["physical_offset"] for message in plan["messages_lost"]]
    assert not any(action["offset"] <= place < action["offset"] + action["length"]
                   for place in lost for action in actions(plan, "copy"))
    recover(store, first, second, options=APPLY).expect(0)
    assert log_of(store) == whole


def test_a_source_that_is_held_is_read_to_a_fixed_end(golden: GoldenFolder,
                                                      golden_copy: GoldenFolder,
                                                      tmp_path: Path) -> None:
    store = golden_copy("5.3.3/basic/store")
    whole = log_of(store)
    source = snapshot.copy_tree(golden("5.3.3/basic/store"), tmp_path / "slave")
    middle_file_gone(store)
    assert "locked by" not in recover(store, source).expect(0).err
    with held(source) as holder:
        result = recover(store, source, options=APPLY).expect(0)
        assert f"locked by process {holder.pid}" in result.err
    assert log_of(store) == whole


# -- what is not copied ---------------------------------------------------------------------------


def filled(count: int = 120, *, split: int = 1 << 30, layout: Layout = SMALL) -> Writer:
    """Messages of equal sizes; from number ``split`` on they are others."""
    writer = Writer(layout, seed=1)
    for number in range(count):
        mark = "a" if number < split else "b"
        writer.put("orders" if number % 3 else "pays!!", b"%s body %04d" % (mark.encode(), number),
                   queue_id=number % 4, keys=f"{mark}{number:04d}",
                   unique_key=f"{mark}{number:06d}")
    return writer


def test_another_brokers_store_of_equal_sizes(tmp_path: Path) -> None:
    ours, other = filled(), filled(split=0)
    assert [put.physical for put in ours.puts] == [put.physical for put in other.puts]
    store, source = ours.write(tmp_path / "ours"), other.write(tmp_path / "other")
    middle_file_gone(store)
    with snapshot.assert_unchanged(store, source):
        result = recover(store, source, options=(*SIZES, *JSON)).expect(6)
    assert "another broker or another log" in result.err


def test_split_brain_is_decided_by_the_user_only(tmp_path: Path) -> None:
    """The same log up to message 70; from then on both went on by themselves."""
    ours, other = filled(), filled(140, split=70)
    store, source = ours.write(tmp_path / "ours"), other.write(tmp_path / "other")
    whole, theirs = log_of(store), log_of(source)
    for path in log_files(store)[:1]:
        data = bytearray(path.read_bytes())
        data[300] ^= 1
        path.write_bytes(data)
    result = recover(store, source, options=(*SIZES, *JSON)).expect(1)
    (conflict,) = actions(result.json(), "conflict")
    assert conflict["offset"] == ours.puts[70].physical
    assert conflict["proof"]["topics"] == {"orders": 34, "pays!!": 16}
    assert "split brain" in result.err
    # What is damaged before it is copied all the same; behind it ours stays.
    recover(store, source, options=(*SIZES, *APPLY)).expect(1)
    assert log_of(store) == whole
    run("undo", store, "--yes").expect(0)
    recover(store, source, options=(*SIZES, "--prefer", "ours", *APPLY)).expect(0)
    assert log_of(store) == whole
    run("undo", store, "--yes").expect(0)
    recover(store, source, options=(*SIZES, "--prefer", str(source), *APPLY)).expect(0)
    assert log_of(store) == theirs
    assert run("verify", store, *SIZES, *JSON).expect(0).json()["ok"]
    run("undo", store, "--yes").expect(0)


def test_a_preferred_source_and_a_file_that_is_gone(tmp_path: Path) -> None:
    """What gives way in a missing file are zeros in a file that is made."""
    store = filled(190).write(tmp_path / "ours")
    source = filled(200, split=70).write(tmp_path / "other")
    log_files(store)[1].unlink()
    recover(store, source, options=(*SIZES, "--prefer", str(source), *APPLY)).expect(0)
    assert log_of(store) == log_of(source)


def test_damage_behind_a_split_is_none_of_the_sources(tmp_path: Path) -> None:
    ours, other = filled(), filled(split=70)
    ours.flip(ours.puts[90].physical + 95)
    store, source = ours.write(tmp_path / "ours"), other.write(tmp_path / "other")
    plan = recover(store, source, options=(*SIZES, "--prefer", "ours", "--correct", "off",
                                           *JSON)).expect(1).json()
    assert actions(plan, "copy") == []
    assert len(plan["messages_lost"]) == 1


def test_a_torn_tail_goes_on_only_as_far_as_ours_knows(tmp_path: Path) -> None:
    """Our log ends at the split; our rows and keys tell that the source went another way."""
    ours, other = filled(), filled(split=70)
    start = ours.puts[70].physical
    for base in ours.log:
        if base + SMALL.log_file_size > start:
            low = max(base, start)
            ours.patch(low, bytes(base + SMALL.log_file_size - low))
    store, source = ours.write(tmp_path / "ours"), other.write(tmp_path / "other")
    plan = recover(store, source, options=(*SIZES, *JSON)).expect(1)
    assert actions(plan.json(), "copy") == []
    assert "contradict it" in plan.err
    # The right one's comes back.
    right = filled().write(tmp_path / "right")
    recover(store, right, options=(*SIZES, *APPLY)).expect(0)
    assert log_of(store) == log_of(right)


def test_an_older_source_gives_what_it_has(tmp_path: Path) -> None:
    ours, old = filled(), filled(60)
    store, source = ours.write(tmp_path / "ours"), old.write(tmp_path / "old")
    for number in (20, 100):
        with next(path for path in log_files(store) if int(path.name) <= ours.puts[
                number].physical < int(path.name) + SMALL.log_file_size).open("r+b") as file:
            file.seek(ours.puts[number].physical % SMALL.log_file_size + 20)
            file.write(bytes(60))
    plan = recover(store, source, options=(*SIZES, *JSON)).expect(1).json()
    assert [action["offset"] for action in actions(plan, "copy")] == [ours.puts[20].physical]
    assert [lost["physical_offset"] for lost in plan["messages_lost"]] == [ours.puts[100].physical]
    # A source whose own writing ended within our damage and went another way there gives nothing.
    low = ours.puts[55].physical
    for path in log_files(store):
        base = int(path.name)
        if base <= low < base + SMALL.log_file_size:
            data = bytearray(path.read_bytes())
            data[low - base:] = bytes(len(data) - (low - base))
            path.write_bytes(data)
    gone = filled(60, split=55).write(tmp_path / "gone")
    plan = recover(store, gone, options=(*SIZES, *JSON)).expect(1).json()
    assert [action["offset"] for action in actions(plan, "copy")] == [ours.puts[20].physical]


def test_what_has_expired_is_not_fetched_back(tmp_path: Path) -> None:
    """Nothing of ours tells of it. Where rows do, it is a head that was lost."""
    source = filled().write(tmp_path / "source")
    store = shutil.copytree(source, tmp_path / "store")
    log_files(store)[0].unlink()
    assert actions(recover(store, source, options=(*SIZES, *JSON)).expect(0).json(), "copy")
    for parts in ("consumequeue", "index"):
        shutil.rmtree(store / parts)
    recover(store, options=(*SIZES, *APPLY)).expect(0)
    result = recover(store, source, options=(*SIZES, *JSON)).expect(0)
    assert actions(result.json(), "copy") == []
    assert "expired" in result.err
    result = recover(store, source, options=(*SIZES, "--prefer", str(source), *JSON)).expect(0)
    assert actions(result.json(), "copy") == []


def hurt(root: Path, physical: int, size: int) -> None:
    """Zeros over bytes of the log."""
    path = next(path for path in log_files(root)
                if int(path.name) <= physical < int(path.name) + SMALL.log_file_size)
    with path.open("r+b") as file:
        file.seek(physical - int(path.name))
        file.write(bytes(size))


@pytest.mark.parametrize("side", ["ours", "source"])
def test_frames_in_the_bodies_of_damaged_messages(side: str, tmp_path: Path) -> None:
    """Whole records, their physical offsets right, in bodies: they are never copied, and never a
    conflict with the message around them.
    """
    writer = Writer(SMALL, seed=1)
    for number in range(60):
        body = framed([frame("orders", b"forged %d" % index, index, queue_id=number % 4)
                       for index in (number // 4, number)], before=b"x" * 9, after=b"y" * 9)
        writer.put("orders", body, queue_id=number % 4, keys=f"k{number}")
    store, source = writer.write(tmp_path / "ours"), writer.write(tmp_path / "source")
    whole = log_of(source)
    for number in (10, 11, 30, 59):
        hurt(store if side == "ours" else source, writer.puts[number].physical, 100)
    done = recover(store, source, options=(*SIZES, *APPLY)).expect(0).json()
    assert log_of(store) == whole
    if side == "source":
        assert done["actions"] == []
        # Both: what the source has lost is not copied from the bodies.
        for number in (9, 10, 31):
            hurt(store, writer.puts[number].physical, 100)
        plan = recover(store, source, options=(*SIZES, "--correct", "off", *JSON)).expect(0, 1)
        assert {action["offset"] for action in actions(plan.json(), "copy")} == {
            writer.puts[number].physical for number in (9, 31)}


def test_what_may_be_ours_is_not_written_over(tmp_path: Path) -> None:
    """Without rows and keys nothing proves our messages behind damage; they speak against others'
    all the same.
    """
    ours, other = filled(), filled(split=70)
    store, source = ours.write(tmp_path / "ours"), other.write(tmp_path / "other")
    for parts in ("consumequeue", "index"):
        shutil.rmtree(store / parts)
    hurt(store, ours.puts[61].physical, ours.puts[75].physical - ours.puts[61].physical)
    for ambiguous in ("leave-out", "keep"):
        options = ("--ambiguous", ambiguous)
        done = recover(store, source, options=(*SIZES, *options, *APPLY)).expect(1).json()
        log_bytes = b"".join(log_of(store).values())
        assert not [put for put in other.puts[70:] if put.raw in log_bytes]
        assert actions(done, "copy") == []
        assert (ours.puts[80].raw in log_bytes) == (ambiguous == "keep")
        run("undo", store, "--yes").expect(0)


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_the_index_tells_whose_store_time_is_right(whose: str, tmp_path: Path) -> None:
    """No CRC covers it: of two intact messages that differ in nothing else, one is not damaged."""
    writer = filled()
    ours, theirs = (writer.write(tmp_path / name) for name in ("ours", "theirs"))
    whole, put = log_of(theirs), writer.puts[50]
    base = max(log_file for log_file in writer.log if log_file <= put.physical)
    place = put.physical - base + message.fixed_field("store_timestamp").offset
    hurt_root = ours if whose == "ours" else theirs
    log = hurt_root / "commitlog" / f"{base:020d}"
    data = bytearray(log.read_bytes())
    data[place + 4] ^= 0x31
    data[place + 5] ^= 0x31
    log.write_bytes(data)
    recover(ours, theirs, options=(*SIZES, *APPLY)).expect(0, 1)
    assert log_of(ours) == whole if whose == "ours" else log_of(ours) != log_of(theirs)
    assert put.raw in b"".join(log_of(ours).values())


def test_damage_of_the_source_does_not_replace_what_is_ours(tmp_path: Path) -> None:
    """Without rows and keys nothing proves our message behind damage, until what is around it was
    copied. In the source bytes of it are damaged that no CRC covers.
    """
    writer = filled()
    store, source = writer.write(tmp_path / "ours"), writer.write(tmp_path / "source")
    whole = log_of(store)
    for parts in ("consumequeue", "index"):
        shutil.rmtree(store / parts)
    hurt(store, writer.puts[20].physical, 200)
    hurt(source, writer.puts[24].physical + 40, 8)
    hurt(store, writer.puts[30].physical, 200)
    recover(store, source, options=(*SIZES, "--consumequeue-file-size", "400", *APPLY))
    assert log_of(store) == whole


def test_no_message_comes_from_another_branch(tmp_path: Path, seed: int) -> None:
    """Random damage, and a source that went its own way: every message is ours or is lost."""
    luck = random.Random(seed)
    for number in range(3):
        split = luck.randrange(1, 119)
        ours, other = filled(), filled(luck.randrange(60, 140), split=split)
        store = ours.write(tmp_path / f"ours{number}")
        source = other.write(tmp_path / f"other{number}")
        theirs = {put.raw for put in other.puts[split:]}
        done = damage.do(store, luck.getrandbits(32), count=luck.randint(1, 6))
        for options in ((), ("--prefer", "ours")):
            result = recover(store, source, options=(*SIZES, *options, *APPLY))
            result.expect(0, 1, 6)
            if result.code == 6:
                continue
            log_bytes = b"".join(log_of(store).values())
            assert not [raw for raw in theirs if raw in log_bytes], (seed, number, split, done)
            run("undo", store, "--yes").expect(0, 6)


def test_a_damaged_row_of_ours_does_not_keep_a_message_away(tmp_path: Path) -> None:
    writer = filled()
    store, source = writer.write(tmp_path / "ours"), filled().write(tmp_path / "source")
    whole = log_of(store)
    first_file_gone(store)
    row = store / "consumequeue/orders/1/00000000000000000000"
    data = bytearray(row.read_bytes())
    data[27] ^= 2
    row.write_bytes(data)
    recover(store, source, options=(*SIZES, *APPLY)).expect(0)
    assert log_of(store) == whole
    assert run("verify", store, *SIZES, *JSON).expect(0).json()["ok"]


def test_a_file_far_away_is_not_of_the_log(tmp_path: Path) -> None:
    """A source with one whole message at the end of all offsets."""
    store, source = filled().write(tmp_path / "ours"), filled().write(tmp_path / "source")
    far = (1 << 62) // SMALL.log_file_size * SMALL.log_file_size
    writer = Writer(dataclasses.replace(SMALL, first_file=far))
    writer.put("orders", b"far away", keys="far")
    other = writer.write(tmp_path / "far")
    shutil.copy(log_files(other)[0], source / "commitlog")
    middle = log_files(store)[-1]
    whole = log_of(store)
    middle.unlink()
    result = recover(store, source, options=(*SIZES, *APPLY)).expect(0)
    assert "probably in another log" in result.err
    assert log_of(store) == whole


def test_files_of_another_length(tmp_path: Path) -> None:
    """The same messages at the same places, in one file twice as long: no blank is between them."""
    ours = filled(40, layout=dataclasses.replace(SMALL, log_file_size=16 << 10))
    store, source = ours.write(tmp_path / "ours"), ours.write(tmp_path / "source")
    short = filled(20).write(tmp_path / "short")
    result = recover(short, source, options=(*SIZES, "--commitlog-file-size", "4096", *JSON))
    assert result.code in (0, 1, 6), result.describe()
    assert actions(recover(store, short, options=(*SIZES, *JSON)).expect(0).json(), "copy") == []


# -- what is refused ------------------------------------------------------------------------------


def test_sources_that_are_none(tmp_path: Path) -> None:
    store = filled().write(tmp_path / "store")
    other = filled().write(tmp_path / "other")
    empty = tmp_path / "empty"
    (empty / "commitlog").mkdir(parents=True)
    linked = tmp_path / "linked"
    shutil.copytree(store, linked, copy_function=os.link)
    (tmp_path / "link").symlink_to(store)
    for code, words, expected_text in (
            (2, ("--from", str(store)), "is the store itself"),
            (2, ("--from", str(tmp_path / "link")), "is the store itself"),
            (2, ("--from", str(linked)), "hard links"),
            (3, ("--from", str(tmp_path / "nowhere")), "not a store"),
            (3, ("--from", str(empty)), "no commitlog"),
            (2, ("--from", str(log_files(store)[0])), "to the store itself"),
            (2, ("--prefer", "ours"), "--prefer requires --from"),
            (2, ("--from", str(other), "--prefer", str(store)), "one of the --from sources"),
            (2, ("--from", str(other), "--only", "index"), "commitlog"),
            (2, ("--from", str(other), "--strategy", "broker"), "cannot be combined")):
        with snapshot.assert_unchanged(store, other):
            assert expected_text in run("recover", store, *SIZES, *words).expect(code).err, words
