"""Logs whose head has expired: what tells of expired messages stays, the rest follows the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rmqctl.formats.local import consume_queue
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.formats.local.index_file import ENTRY, HEADER, IndexShape
from rmqctl.repair.rebuild.index import matched
from rmqctl.repair.rebuild.steps import derived_steps
from rmqctl.repair.scratch import Scratch
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.index.files import open_index, select
from tests.adversary.writer import Layout, Writer
from tests.repair.rebuilding import (
    DERIVED,
    SETS,
    carry_out,
    derived,
    mend,
    parts_of,
    planned,
    run,
    settings_of,
)
from tests.support import snapshot
from tests.support.share import sample

each_set = pytest.mark.parametrize("golden_set", sample(SETS, 12, "expired heads of sets"),
                                   ids=lambda golden_store: golden_store.id)
UNIT = consume_queue.dtype()


@each_set
def test_what_is_right_stays_after_the_head_expired(golden_set, golden, tmp_path):
    folder = golden(golden_set.id)
    store, settings = folder / "store", settings_of(folder, golden_set.version)
    parts = parts_of(store, golden_set.kind)
    with snapshot.assert_unchanged(store):
        for number in range(1, len(parts)):
            with Scratch(str(tmp_path)) as scratch:
                assert planned(store, settings, scratch, golden_set.kind,
                               parts=parts[number:]) == ([], []), number


def rows_of(folder: Path) -> dict[int, tuple[int, ...]]:
    """Rows of a queue by queue offset, without fillers and unused ones."""
    data = {}
    for file in sorted(folder.iterdir()):
        for number, row in enumerate(np.frombuffer(file.read_bytes(), UNIT)):
            if row["size"] > 0 and tuple(row.tolist()) != tuple(FILLER):
                data[int(file.name) // UNIT.itemsize + number] = tuple(row.tolist())
    return data


@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/basic", "5.3.3/lmq", "4.9.3/delay"])
def test_deleted_queues_begin_with_fillers(name, golden, golden_copy, tmp_path):
    folder = golden(name)
    store = golden_copy(f"{name}/store")
    settings = settings_of(folder, name[:5])
    logs = sorted((store / "commitlog").iterdir())
    for file in logs[:len(logs) // 2]:
        file.unlink()
    start = int(logs[len(logs) // 2].name)
    before = {str(queue.relative_to(store)): rows_of(queue)
              for queue in (store / "consumequeue").glob("*/*")}
    shutil.rmtree(store / "consumequeue")
    done = mend(store, settings, tmp_path)
    checked = 0
    for queue, rows in before.items():
        alive = {offset: row for offset, row in rows.items() if row[0] >= start}
        assert rows_of(store / queue) == alive if alive else not (store / queue).exists()
        if alive and min(alive) * UNIT.itemsize % settings.consumequeue_file_size:
            first = min((store / queue).iterdir()).read_bytes()
            assert first.startswith(consume_queue.build(FILLER))
            checked += 1
    assert checked
    assert len(done) == sum(
        any(row[0] >= start for row in rows.values()) for rows in before.values())
    assert mend(store, settings, tmp_path) == []


@each_set
def test_damage_behind_the_expired_rows_is_mended_and_they_stay(golden_set, golden, golden_copy,
                                                                tmp_path):
    folder = golden(golden_set.id)
    store, settings = golden_copy(f"{golden_set.id}/store"), settings_of(folder, golden_set.version)
    parts = parts_of(store, golden_set.kind)
    kept = parts[len(parts) // 2:]
    wanted = derived(store)
    harmed = []
    for name, data in wanted.items():
        if name.startswith("consumequeue/") and len(data) > 60:
            rows = np.frombuffer(data, UNIT).copy()
            alive = np.flatnonzero(rows["physical_offset"] >= max(kept[0].base, 1))
            if len(alive):
                rows["tags_code"][alive[-1]] ^= 1
                (store / name).write_bytes(rows.tobytes())
                harmed.append(name)
        elif name.startswith("index/") and data[24:32] > kept[0].base.to_bytes(8, "big"):
            count = int.from_bytes(data[36:40], "big")
            at = len(data) - 20 * settings.index_max + 20 * (count - 1)
            (store / name).write_bytes(data[:at] + bytes(8) + data[at + 8:])
            harmed.append(name)
    assert harmed
    with Scratch(str(tmp_path)) as scratch:
        steps, actions = planned(store, settings, scratch, golden_set.kind, parts=kept)
        carry_out(steps, store)
    assert derived(store) == wanted
    assert {step.target for step in steps} == set(harmed)
    assert all("entries" in action.reason or "index" in action.reason for action in actions)


def test_index_names_stay_and_new_ones_fit_between(golden, golden_copy, tmp_path):
    folder = golden("5.3.3/basic")
    settings = settings_of(folder, "5.3.3")
    wanted = derived(folder / "store")
    names = sorted(name for name in wanted if name.startswith("index/"))
    assert len(names) >= 3
    for gone in range(len(names)):
        store = golden_copy("5.3.3/basic/store")
        (store / names[gone]).unlink()
        done = mend(store, settings, tmp_path)
        assert len(done) == 1
        assert "index file is missing" in done[0]
        derived_files = derived(store)
        here = sorted(name for name in derived_files if name.startswith("index/"))
        assert [derived_files[name] for name in here] == [wanted[name] for name in names]
        assert set(names) - set(here) <= {names[gone]}
        assert all(len(name) == len(names[0]) for name in here)
        assert mend(store, settings, tmp_path) == []


def test_index_names_without_room_go_by_order(golden, golden_copy, tmp_path):
    """Two files one millisecond apart, and the one between them is missing."""
    folder = golden("5.3.3/basic")
    settings = settings_of(folder, "5.3.3")
    store = golden_copy("5.3.3/basic/store")
    files = sorted((store / "index").iterdir())
    wanted = [file.read_bytes() for file in files]
    files[0].rename(store / "index" / "20240102030405678")
    files[2].rename(store / "index" / "20240102030405679")
    for file in (files[1], *files[3:]):
        file.unlink()
    mend(store, settings, tmp_path)
    here = sorted((store / "index").iterdir())
    assert [file.read_bytes() for file in here] == wanted
    assert [file.name for file in here[:2]] == ["20240102030405678", "20240102030405679"]
    assert mend(store, settings, tmp_path) == []
    assert matched([], [], "") == []


def test_a_log_of_no_file_cuts_every_row(golden, golden_copy, tmp_path):
    """As a broker does, which destroys all queues of an empty log."""
    folder = golden("4.9.3/basic")
    store = golden_copy("4.9.3/basic/store")
    with Scratch(str(tmp_path)) as scratch:
        steps, _ = derived_steps(run(store, settings_of(folder, "4.9.3"), scratch, parts=[]))
        carry_out(steps, store)
    assert not any(listing(str(queue)).files for queue in (store / "consumequeue").glob("*/*"))
    assert not any((store / "index").iterdir())
    assert {name for name in DERIVED if (store / name).exists()} == {"consumequeue", "index"}


@pytest.mark.parametrize(("at", "length"), [(0, 100), (4, 96), (16, 24), (210, 61), (405, 3)])
def test_entries_of_expired_messages_without_overwritten_ones(
        at: int, length: int, tmp_path: Path, rmqctl) -> None:
    """Zeros over entries of messages that the log no longer has: the others stay, and are found."""
    writer = Writer(Layout(log_file_size=8 << 10, index_slots=16, index_entries=4096))
    for number in range(60):
        writer.put("orders", b"message " * 20, keys=f"k{number}")
    root = writer.write(tmp_path / "store")
    first = min((root / "commitlog").iterdir())
    first.unlink()
    index, = (root / "index").iterdir()
    shape = IndexShape(16, 4096)
    raw = bytearray(index.read_bytes())
    count = HEADER.decode(bytes(raw)).index_count - 1
    begin = shape.entry_position(1)
    entries = [ENTRY.decode(bytes(raw[(place := shape.entry_position(number)):place + ENTRY.size]))
               for number in range(1, count + 1)]
    raw[begin + at:begin + at + length] = bytes(length)
    index.write_bytes(raw)
    hit = range(at // ENTRY.size, -(-(at + length) // ENTRY.size))
    rmqctl("recover", root, "--apply", "--yes").expect(0, 1)
    answer = rmqctl("verify", root, "-o", "json").json()
    assert not [finding for finding in answer["findings"] if finding["structure"] == "index"]
    index, = (root / "index").iterdir()
    index_file = open_index(StoreFile(str(index), index.name, 0, index.stat().st_size), 16, 4096)
    for number, entry in enumerate(entries):
        places = list[int]()
        select(index_file, entry.key_hash, count, 0, 1 << 62, places)
        assert entry.physical_offset in places or number in hit, number
    index_file.close()
    assert "nothing to do" in rmqctl("recover", root).out
