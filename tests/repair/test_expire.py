"""Expiry by the rules of a broker's cleaner, held against the rules written out once more."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from rmqctl.broker.versions import version_for
from rmqctl.broker.view import broker_view
from rmqctl.formats.local import batch_consume_queue, consume_queue
from rmqctl.repair.expire import Expiry, ExpiryLimits, expire
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.engine_write.dispatching import SETS
from tests.repair.cutting import GENERATION, applied_and_undone, dirs, offsets, troubles
from tests.repair.test_truncate import cut
from tests.support import damage
from tests.support import golden as golden_sets
from tests.support.share import sample

NOW = 1_800_000_000_000
HOUR = 3_600_000
LIMIT = 72 * HOUR


def run(root: Path, limits: ExpiryLimits | None = None, kind: str = "") -> Expiry:
    with Store.open(root, dirs(kind)) as store:
        return expire(store, NOW, limits or ExpiryLimits(LIMIT))


def age(root: Path, hours: list[float], kind: str = "") -> list[Path]:
    """Gives the log's files these ages, the last one for all that follow."""
    files = sorted((path for folder in dirs(kind) or ("commitlog",)
                    for path in (root / folder).iterdir()), key=lambda path: path.name)
    for number, path in enumerate(files):
        when = NOW * 1_000_000 - int(hours[min(number, len(hours) - 1)] * HOUR * 1_000_000)
        os.utime(path, ns=(when, when))
    return files


def log_names(root: Path, kind: str = "") -> list[str]:
    return sorted(path.name for folder in dirs(kind) or ("commitlog",)
                  for path in (root / folder).iterdir())


def expected(root: Path, after: int) -> set[str]:
    """The derived files a broker's cleaner deletes (MappedFileQueue, ConsumeQueueExt and
    IndexService of 4.9.3 and 5.3.3, written out)."""
    gone: set[str] = set()
    for tree, unit in (("consumequeue", 20), ("batchconsumequeue", 46)):
        for folder in sorted((root / tree).glob("*/*")):
            files = sorted(folder.iterdir())
            for file in files[:-1]:
                if struct.unpack(">q", file.read_bytes()[-unit:][:8])[0] >= after:
                    break
                gone.add(str(file.relative_to(root)))
            left = [file for file in files if str(file.relative_to(root)) not in gone]
            if tree == "consumequeue" and left:
                gone |= expected_ext(root, folder.relative_to(root / tree), left[0], after)
    index = sorted((root / "index").iterdir()) if (root / "index").exists() else []
    for file in index[:-1]:
        if struct.unpack(">q", file.read_bytes()[24:32])[0] >= after:
            break
        gone.add(str(file.relative_to(root)))
    return gone


def expected_ext(root: Path, queue: Path, first: Path, after: int) -> set[str]:
    for unit in consume_queue.UNIT.decode_all(first.read_bytes()):
        if unit.is_valid and unit.physical_offset >= after:
            if unit.tags_code > -(1 << 31) - 1:
                return set()
            at = unit.tags_code + (1 << 63)
            files = sorted((root / "consumequeue_ext" / queue).iterdir())
            return {str(file.relative_to(root)) for file in files
                    if int(file.name) + file.stat().st_size < at}
    return set()


def leads(queue: ConsumeQueue, after: int) -> bool:
    rows = queue.units(queue.first_index, queue.files[0].size // 20)
    return bool(((rows["physical_offset"] >= after) & (rows["size"] > 0)).any())


def derived(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for tree in (
        "consumequeue", "consumequeue_ext", "batchconsumequeue", "index")
        for path in (root / tree).rglob("*") if path.is_file()}


MANY = [golden_set for golden_set in SETS if golden_set.kind != "tiered"]


@pytest.mark.parametrize("golden_set", sample(MANY, 10, "a cleaner's rules"),
                         ids=lambda golden_store: golden_store.id)
def test_the_cleaners_rules(golden_set: golden_sets.GoldenSet, golden_copy: GoldenFolder) -> None:
    root = golden_copy(golden_set.id + "/store")
    names = log_names(root, golden_set.kind)
    for count in sorted({1, len(names) // 2, len(names) - 1} - {0}):
        age(root, [100.0] * count + [1.0], golden_set.kind)
        done = run(root, kind=golden_set.kind)
        kept = names[count:] if count < len(names) else names[-1:]
        assert done.min_after == int(kept[0])
        before, gone = derived(root), expected(root, done.min_after)
        with applied_and_undone(done.plan):
            assert log_names(root, golden_set.kind) == kept
            assert derived(root) == before - gone
            assert troubles(root, golden_set.kind) == []
            with Store.open(root, dirs(golden_set.kind)) as store:
                assert store.log.min_offset == done.min_after
                view = broker_view(store, version_for(GENERATION[golden_set.version]))
                for queue in store.queues.by_key.values():
                    bounds = view.bounds(queue)
                    unit = queue.unit(bounds.first) if bounds.first < bounds.end else None
                    # 4.x leaves the beginning of a queue without any message where it was.
                    assert (unit is None or unit.physical_offset >= done.min_after
                            or (golden_set.version == "4.9.3" and not leads(queue, done.min_after)))
            again = run(root, kind=golden_set.kind)
            assert (again.plan.actions, again.plan.steps, again.rows) == ((), (), {})


@pytest.mark.parametrize("golden_set", MANY, ids=lambda golden_store: golden_store.id)
def test_rows_that_expire_are_counted(golden_set: golden_sets.GoldenSet,
                                      golden_copy: GoldenFolder) -> None:
    root = golden_copy(golden_set.id + "/store")
    names = log_names(root, golden_set.kind)
    age(root, [100.0] * (len(names) - 1) + [1.0], golden_set.kind)
    wanted: dict[str, int] = {}
    for folder in (root / "consumequeue").glob("*/*"):
        for file in folder.iterdir():
            for unit in consume_queue.UNIT.decode_all(file.read_bytes()):
                if unit.is_valid and not unit.is_filler and unit.physical_offset < int(names[-1]):
                    topic = folder.parent.name
                    wanted[topic] = wanted.get(topic, 0) + 1
    for folder in (root / "batchconsumequeue").glob("*/*"):
        for file in folder.iterdir():
            for row in batch_consume_queue.UNIT.decode_all(
                    file.read_bytes()[:file.stat().st_size // 46 * 46]):
                if row.is_valid and row.physical_offset < int(names[-1]):
                    topic = folder.parent.name
                    wanted[topic] = wanted.get(topic, 0) + row.batch_size
    assert run(root, kind=golden_set.kind).rows == wanted


def test_it_stops_at_the_first_file_that_is_kept(golden_copy: GoldenFolder) -> None:
    root = golden_copy("4.9.3/basic/store")
    age(root, [100.0, 71.9, 100.0])
    assert [action.target for action in run(root).plan.actions
            if action.target.startswith("commitlog")] == [
                f"commitlog/{0:020d}"]


def test_the_limit_itself_expires(golden_copy: GoldenFolder) -> None:
    root = golden_copy("4.9.3/basic/store")
    age(root, [72.0, 1.0])
    assert run(root).min_after == 65536
    assert run(root, ExpiryLimits(LIMIT + 1)).min_after == 0


def test_never_the_last_file_nor_the_one_in_use(golden_copy: GoldenFolder) -> None:
    """A file laid out ahead is not the last: else the newest messages would go."""
    root = golden_copy("4.9.3/basic/store")
    names = log_names(root)
    (root / "commitlog" / f"{int(names[-1]) + 65536:020d}").write_bytes(bytes(65536))
    age(root, [1000.0])
    assert run(root).min_after == int(names[-1])
    assert run(root, ExpiryLimits(None, 0)).min_after == int(names[-1])


def test_keep_bytes_takes_young_files_too(golden_copy: GoldenFolder) -> None:
    root = golden_copy("4.9.3/basic/store")
    count = len(log_names(root))
    age(root, [1.0])
    assert run(root, ExpiryLimits(None, count * 65536)).plan.empty
    assert run(root, ExpiryLimits(None, count * 65536 - 1)).min_after == 65536
    assert run(root, ExpiryLimits(None, 2 * 65536)).min_after == (count - 2) * 65536
    age(root, [100.0, 100.0, 100.0, 1.0])
    assert run(root, ExpiryLimits(LIMIT, 4 * 65536)).min_after == 3 * 65536


def test_so_much_is_freed(golden_copy: GoldenFolder) -> None:
    root = golden_copy("4.9.3/basic/store")
    count = len(log_names(root))
    age(root, [1.0])
    assert run(root, ExpiryLimits(free_bytes=0)).plan.empty
    assert run(root, ExpiryLimits(free_bytes=65536)).min_after == 65536
    assert run(root, ExpiryLimits(free_bytes=65537)).min_after == 2 * 65536
    all_of_it = run(root, ExpiryLimits(free_bytes=1 << 40))
    assert all_of_it.min_after == (count - 1) * 65536
    assert any("the last file in use is kept" in note for note in all_of_it.plan.notes)


def test_what_an_earlier_deletion_left_goes(golden_copy: GoldenFolder) -> None:
    """Log files that were deleted by hand: a broker cleans up when it starts."""
    root = golden_copy("5.3.3/basic/store")
    for name in log_names(root)[:3]:
        damage.remove(root, f"commitlog/{name}")
    age(root, [1.0])
    done = run(root)
    assert done.min_before == done.min_after == 196608
    assert {action.target for action in done.plan.actions} == expected(root, 196608) != set()


def test_a_queue_file_with_a_damaged_last_row_stays(golden_copy: GoldenFolder) -> None:
    """A broker looks at the last unit only, and would delete rows of messages that stay."""
    root = golden_copy("5.3.3/basic/store")
    age(root, [100.0, 1.0])
    folder = next(path for path in sorted((root / "consumequeue").glob("*/*"))
                  if len(list(path.iterdir())) > 3)
    files = sorted(folder.iterdir())
    damage.write(root, str(files[1].relative_to(root)), 360, bytes(20))
    damage.write(root, str(files[0].relative_to(root)), 360, bytes(20))
    done = run(root)
    gone = {action.target for action in done.plan.actions}
    with Store.open(root) as store:
        rows = store.queues.by_key[folder.parent.name, int(folder.name)].units(0, 19)
    stays = bool((rows["physical_offset"] >= done.min_after).any())
    assert (str(files[0].relative_to(root)) in gone) is not stays
    assert str(files[1].relative_to(root)) not in gone
    assert any("other entries point to messages that stay" in note for note in done.plan.notes)


def test_a_zero_last_queue_file_does_not_count(golden_copy: GoldenFolder) -> None:
    """Else the file in use, whose unused last unit leads to 0, would go with all its rows."""
    root = golden_copy("5.3.3/basic/store")
    age(root, [100.0, 100.0, 100.0, 100.0, 1.0])
    for folder in (root / "consumequeue").glob("*/*"):
        files = sorted(folder.iterdir())
        (folder / f"{int(files[-1].name) + 380:020d}").write_bytes(bytes(380))
    wanted = expected_without_zero_files(root)
    assert {action.target for action in run(root).plan.actions
            if action.target.startswith("consumequeue")} == wanted


def expected_without_zero_files(root: Path) -> set[str]:
    after = run(root).min_after
    gone: set[str] = set()
    for folder in (root / "consumequeue").glob("*/*"):
        files = sorted(folder.iterdir())[:-1]
        for file in files[:-1]:
            if struct.unpack(">q", file.read_bytes()[-20:][:8])[0] >= after:
                break
            gone.add(str(file.relative_to(root)))
    return gone


def test_groups_and_delays_that_lose_messages_are_reported(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/delay/store")
    names = log_names(root)
    age(root, [100.0] * (len(names) - 1) + [1.0])
    (root / "config").mkdir(exist_ok=True)
    with Store.open(root) as store:
        topics = sorted({topic for topic, _ in store.queues.by_key
                         if not topic.startswith("SCHEDULE")})
    expired = {}
    for folder in (root / "consumequeue").glob("*/*"):
        units = [unit for file in sorted(folder.iterdir())
                 for unit in consume_queue.UNIT.decode_all(file.read_bytes()) if unit.is_valid]
        expired[folder.parent.name, int(folder.name)] = sum(
            unit.physical_offset < int(names[-1]) for unit in units)
    key = max((file for file in expired if file[0] in topics), key=lambda name: expired[name])
    assert expired[key] > 2
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": {
        f"{key[0]}@behind": {str(key[1]): 1}, f"{key[0]}@done": {str(key[1]): expired[key]}}}))
    level = max((file for file in expired if file[0].startswith("SCHEDULE")),
                key=lambda name: expired[name])
    others = {str(queue + 1): 1 << 40 for topic, queue in expired if topic.startswith("SCHEDULE")}
    (root / "config" / "delayOffset.json").write_text(json.dumps({"offsetTable": {
        **others, str(level[1] + 1): 0}}))
    notes = run(root).plan.notes
    assert any(f"{expired[key] - 1} messages not yet consumed expire: behind, {key[0]}" in note
               for note in notes), notes
    assert any(f"{expired[level]} delayed messages not yet delivered expire: the delay service"
               in note for note in notes), notes
    assert not any("done," in note for note in notes)


def test_half_messages_and_timers_are_reported(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/transaction/store")
    names = log_names(root)
    age(root, [100.0] * (len(names) - 1) + [1.0])
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": {
        "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 2}}}))
    assert any("half messages neither committed nor rolled back expire: CID_RMQ_SYS_TRANS" in note
               for note in run(root).plan.notes)
    root = golden_copy("5.3.3/timer/store")
    age(root, [100.0, 1.0])
    damage.write(root, "config/timercheck", 0, bytes(8))
    assert any("timer messages not yet delivered expire" in note for note in run(root).plan.notes)


def test_files_copied_without_their_times_are_reported(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    age(root, [1.0])
    done = run(root)
    assert done.plan.empty
    assert any("copied without its time" in note for note in done.plan.notes)


@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/lmq", "5.3.3/cqext"])
def test_an_expired_log_can_be_cut(name: str, golden_copy: GoldenFolder) -> None:
    """At any border that is left, the first one included."""
    version, kind = name.split("/")
    root = golden_copy(name + "/store")
    names = log_names(root)
    age(root, [100.0] * (len(names) // 2) + [1.0])
    with applied_and_undone(run(root).plan):
        places = offsets(root, kind)
        for to in (places[0], places[len(places) // 2], places[-1]):
            with applied_and_undone(cut(root, to, version, kind).plan):
                assert troubles(root) == []
                assert cut(root, to, version, kind).plan.empty


def test_a_queue_that_loses_all_it_had_left_is_reported(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    names = log_names(root)
    age(root, [100.0] * (len(names) - 2) + [1.0])
    with applied_and_undone(run(root).plan):
        done = cut(root, offsets(root, "")[0])
        with Store.open(root) as store:
            late = [key for key, queue in store.queues.by_key.items() if queue.files
                    and queue.first_index > 0 and (queue.unit(queue.first_index) is not None)]
        notes = [note for note in done.plan.notes if "start at 0 again" in note]
        empty = [key for key in late if f"{key[0]}-{key[1]}" not in done.plan.topic_queue_table]
        assert bool(notes) is bool(empty)


def test_a_missing_store_has_nothing_to_expire(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    done = run(tmp_path)
    assert (done.plan.empty, done.min_after, done.bytes) == (True, 0, 0)
