"""Rebuilding what is wrong in a store, from logs that are damaged or are only planned."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.formats.local import consume_queue
from rmqctl.repair.plan import MoveAside
from rmqctl.repair.rebuild.rebuild import rebuild
from rmqctl.repair.rebuild.steps import derived_steps, topic_queue_table
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.overlay import LogPart, OverlayPiece
from rmqctl.store.store import Store
from tests.repair.rebuilding import carry_out, derived, mend, parts_of, run, settings_of, unnamed
from tests.support import snapshot

UNIT = consume_queue.dtype()


def last_record(store: Path) -> tuple[int, int]:
    """(start, end) of the last message."""
    with Store.open(store) as opened:
        batch = [node for node in opened.log.walk() if len(node)][-1]
        start = int(batch.offset[-1])
        return start, start + int(batch.column("total_size")[-1])


@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/lmq", "5.3.3/batchcq", "4.9.3/batch"])
def test_one_queue_alone_comes_back(name, golden, golden_copy, tmp_path):
    folder = golden(name)
    settings = settings_of(folder, name[:5])
    store = golden_copy(f"{name}/store")
    wanted = derived(store)
    structure = "batchconsumequeue" if name.endswith("batchcq") else "consumequeue"
    topic = min(path.name for path in (store / structure).iterdir())
    shutil.rmtree(store / structure / topic / "0")
    other = next(path for path in (store / structure).iterdir() if path.name != topic)
    shutil.rmtree(other)
    shutil.rmtree(store / "index")
    done = mend(store, settings, tmp_path, topic=topic, queue=0)
    assert [line.partition(":")[0] for line in done] == [f"rebuild {structure}/{topic}/0"]
    assert {n: d for n, d in derived(store).items() if n.startswith(f"{structure}/{topic}/")} == {
        n: d for n, d in wanted.items() if n.startswith(f"{structure}/{topic}/")}
    assert not other.exists()
    assert not (store / "index").exists()
    mend(store, settings, tmp_path, topic=other.name)
    mend(store, settings, tmp_path, only={"index"})
    assert unnamed(derived(store)) == unnamed(wanted)
    assert mend(store, settings, tmp_path) == []


def test_a_topic_has_no_index_of_its_own(golden, tmp_path):
    folder = golden("4.9.3/basic")
    with Scratch(str(tmp_path)) as scratch, pytest.raises(RefusedError, match="index"):
        run(folder / "store", settings_of(folder, "4.9.3"), scratch, only={"index"}, topic="T")


def test_every_kind_of_wrong_row_is_reported_and_mended(golden, golden_copy, tmp_path):
    folder = golden("5.3.3/basic")
    store, settings = golden_copy("5.3.3/basic/store"), settings_of(folder, "5.3.3")
    wanted = derived(store)
    queues = sorted(path for path in (store / "consumequeue").glob("*/*")
                    if len(list(path.iterdir())) > 2)
    # lags: the last file is gone; ahead: rows behind the log's end; wrong: another tags code
    lags, ahead, wrong, strange = queues[:4]
    max(lags.iterdir()).unlink()
    last = max(ahead.iterdir())
    rows = np.frombuffer(last.read_bytes(), UNIT).copy()
    free = np.flatnonzero(rows["size"] == 0)
    rows[free[0]] = (1 << 40, 100, 5)
    last.write_bytes(rows.tobytes())
    first = min(wrong.iterdir())
    data = bytearray(first.read_bytes())
    data[19] ^= 0xFF
    first.write_bytes(data)
    (strange / "notes.txt").write_text("x")
    done = dict(line.removeprefix("rebuild ").split(": ", 1)
                for line in mend(store, settings, tmp_path))
    assert derived(store) == wanted
    by_queue = {Path(key).relative_to("consumequeue"): value for key, value in done.items()}
    assert {path.relative_to(store / "consumequeue") for path in queues[:4]} == by_queue.keys()
    reasons = [by_queue[path.relative_to(store / "consumequeue")].rpartition("; ")[2]
               for path in queues[:4]]
    assert reasons == [
        "consumequeue lags behind the log",
        "consumequeue has entries for messages that are not in the log",
        "consumequeue has wrong entries",
        "consumequeue has files that do not belong there"]
    assert (store / "aside" / strange.relative_to(store) / "notes.txt").exists()


def test_rows_behind_the_end_of_the_log_go_also_in_queues_without_a_message(golden, golden_copy,
                                                                            tmp_path):
    folder = golden("5.3.3/basic")
    store, settings = golden_copy("5.3.3/basic/store"), settings_of(folder, "5.3.3")
    parts = parts_of(store)
    end = parts[1].base
    before = derived(store)
    with Scratch(str(tmp_path)) as scratch:
        rebuilt = run(store, settings, scratch, parts=parts, log_end=end)
        assert rebuilt.log_end == end
        steps, _ = derived_steps(rebuilt)
        table = topic_queue_table(rebuilt)
    short = golden_copy("5.3.3/basic/store")
    for file in sorted((short / "commitlog").iterdir())[1:]:
        file.unlink()
    with Scratch(str(tmp_path)) as scratch:
        rebuilt = run(short, settings, scratch)
        assert topic_queue_table(rebuilt) == table
        steps, _ = derived_steps(rebuilt)
        carry_out(steps, short)
    for name, data in derived(short).items():
        if name.startswith("consumequeue/"):
            rows = np.frombuffer(data, UNIT)
            assert (rows["physical_offset"] + rows["size"] <= end).all()
            alive = int((np.frombuffer(before[name], UNIT)["physical_offset"] < end).argmin())
            assert data[:alive * 20] == before[name][:alive * 20]
    assert mend(short, settings, tmp_path) == []
    # A queue the log holds no message of: a row to another queue's message, others behind the end.
    lost = short / "consumequeue" / "Gone" / "3"
    lost.mkdir(parents=True)
    rows = np.zeros(settings.consumequeue_file_size // 20, UNIT)
    rows[:3] = [(end - 500, 100, 1), (end, 100, 2), (end + 100, 100, 3)]
    (lost / "00000000000000000000").write_bytes(rows.tobytes())
    (lost / f"{settings.consumequeue_file_size:020d}").write_bytes(rows[2:3].tobytes() + bytes(
        settings.consumequeue_file_size - 20))
    with Scratch(str(tmp_path)) as scratch:
        rebuilt = run(short, settings, scratch, log_end=end)
        steps, actions = derived_steps(rebuilt)
        assert "Gone-3" not in topic_queue_table(rebuilt)
        assert [type(step) for step in steps] == [MoveAside, MoveAside]
        assert (actions[0].before, actions[0].after) == (3, 0)
        carry_out(steps, short)
    assert not list(lost.iterdir())


@pytest.mark.parametrize("jobs", [1, 2])
def test_intact_messages_on_both_sides_of_damage_are_dispatched(jobs, golden, golden_copy,
                                                                tmp_path):
    folder = golden("4.9.3/basic")
    store, settings = golden_copy("4.9.3/basic/store"), settings_of(folder, "4.9.3")
    with Store.open(store) as opened:
        some = [(int(offset), int(size)) for batch in opened.log.walk() for offset, size in zip(
            batch.offset, batch.column("total_size"), strict=True)]
    body, header = some[len(some) // 3], some[len(some) // 2]
    parts = parts_of(store)
    laid = []
    for part in parts:
        pieces = []
        if part.base <= body[0] < part.end:  # a body byte: behind the fixed part
            with part.open() as source:
                at = body[0] - part.base + 100
                pieces.append(OverlayPiece.of(at, bytes([source.read(at, 1)[0] ^ 1])))
        if part.base <= header[0] < part.end:
            pieces.append(OverlayPiece(header[0] - part.base, 40))
        laid.append(LogPart(part.base, part.size, part.path, tuple(pieces)))
    with snapshot.assert_unchanged(store), Scratch(str(tmp_path)) as scratch:
        rebuilt = run(store, settings, scratch, parts=laid, jobs=jobs)
        derived_files = derived(Path(scratch.root))
        assert rebuilt.messages == len(some) - 2
        assert rebuilt.damage.count == 2
        assert rebuilt.damage.length == body[1] + header[1]
        assert [span.offset for span in rebuilt.damage.spans] == [body[0], header[0]]
        assert "2 damaged spans" in rebuilt.notes[0]
        assert rebuilt.gaps > 0
        assert "gap" in rebuilt.notes[1]
    places = {int(row["physical_offset"]) for name, data in derived_files.items()
              if name.startswith("consumequeue/") for row in np.frombuffer(data, UNIT)
              if row["size"]}
    assert places == {offset for offset, _ in some} - {body[0], header[0]}


def test_a_log_as_it_would_be(golden, golden_copy, tmp_path):
    """A part without a file, and zeros laid over the last record."""
    folder = golden("5.3.3/basic")
    store, settings = golden_copy("5.3.3/basic/store"), settings_of(folder, "5.3.3")
    start, end = last_record(store)
    parts = parts_of(store)
    with Scratch(str(tmp_path / "a")) as scratch:
        cut = run(store, settings, scratch, log_end=start)
        derived_files = derived(Path(scratch.root))
    last = parts[-1]
    planned = [*parts[:-1], LogPart(last.base, last.size, last.path,
                                    (OverlayPiece(start - last.base,
                                                  last.size - start + last.base),)),
               LogPart(last.end, last.size, None)]
    with Scratch(str(tmp_path / "b")) as scratch:
        laid = run(store, settings, scratch, parts=planned, jobs=2)
        assert derived(Path(scratch.root)) == derived_files
    assert (cut.last, cut.messages, cut.next_offsets) == (
        laid.last, laid.messages, laid.next_offsets)
    assert laid.log_end == cut.last + (start - cut.last)
    assert end > start


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_extension_units_come_back_without_their_bit_maps(version, golden, golden_copy, tmp_path):
    folder = golden(f"{version}/cqext")
    store, settings = golden_copy(f"{version}/cqext/store"), settings_of(folder, version)
    for name in ("consumequeue", "consumequeue_ext"):
        shutil.rmtree(store / name)
    assert mend(store, settings, tmp_path)
    assert mend(store, settings, tmp_path) == []
    with Store.open(store) as opened, Store.open(folder / "store") as golden_store:
        for key, queue in golden_store.queues.by_key.items():
            mine = opened.queues.find(*key)
            assert mine.written == queue.written
            assert (mine.units(0, 999)["physical_offset"]
                    == queue.units(0, 999)["physical_offset"]).all()
    assert all(file.read_bytes()[:2] == b"\0\x14"
               for file in (store / "consumequeue_ext").rglob("*") if file.is_file())


def test_damaged_units_do_not_stop_the_others(golden, golden_copy, tmp_path, seed):
    folder = golden("5.3.3/cqext")
    store, settings = golden_copy("5.3.3/cqext/store"), settings_of(folder, "5.3.3")
    random = np.random.default_rng(seed)
    for file in (store / "consumequeue_ext").rglob("*"):
        if file.is_file():
            data = bytearray(file.read_bytes())
            for at in random.integers(0, len(data), 8).tolist():
                data[at] ^= 1 << int(random.integers(8))
            file.write_bytes(data)
    mend(store, settings, tmp_path)
    assert mend(store, settings, tmp_path) == []


def test_files_of_another_size_are_replaced_or_refused(golden, golden_copy, tmp_path):
    folder = golden("5.3.3/basic")
    store, settings = golden_copy("5.3.3/basic/store"), settings_of(folder, "5.3.3")
    wanted = derived(store)
    for number, file in enumerate(sorted(path for top in ("consumequeue", "index")
                                         for path in (store / top).rglob("*") if path.is_file())):
        if number % 3 == 0:
            file.write_bytes(file.read_bytes()[:7 * number % 200])
    mend(store, settings, tmp_path)
    assert derived(store) == wanted


def test_what_cannot_be_read_is_an_error_not_a_traceback(golden, golden_copy, tmp_path):
    folder = golden("5.3.3/basic")
    store, settings = golden_copy("5.3.3/basic/store"), settings_of(folder, "5.3.3")
    parts = parts_of(store)
    Path(parts[1].path or "").unlink()
    for jobs in (1, 2):
        with Scratch(str(tmp_path)) as scratch, pytest.raises(StoreIOError):
            rebuild(parts, str(store), settings, scratch, jobs=jobs)
