"""preflight on oddities that users reported: empty files, names that are there twice, an index
of another log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqctl.checks.preflight.preflight import preflight
from rmqctl.checks.preflight.types import Prediction
from rmqctl.repair.broker import plan_broker
from rmqctl.repair.executor.executor import Repair
from rmqctl.repair.scratch import Scratch
from rmqctl.scan import walk
from rmqctl.scan.damage.classify import classify
from rmqctl.store import Store
from rmqctl.store.files import StoreFile
from tests.scan.test_walk import message
from tests.support import damage
from tests.track_record import anatomy, build, stores

SOUND = "5.3.3/basic/store"
TWO = ("cl1", "cl2")


def ask(root: Path, version: str, dirs: tuple[str, ...] = ()) -> Prediction:
    with Store.open(root, dirs) as store:
        return preflight(store, version)


def files(root: Path, folder: str) -> list[Path]:
    return sorted((root / folder).iterdir())


def empty_next_file(root: Path) -> Path:
    """A queue goes on with a file that has no row yet: its last file is full otherwise."""
    queue = next(path for path in sorted((root / "consumequeue").glob("*/*"))
                 if len(files(path, ".")) > 1)
    last = files(queue, ".")[-1]
    last.write_bytes(bytes(last.stat().st_size))
    return last


def test_a_queue_that_goes_on_with_an_empty_file_stops_5x(golden, tmp_path):
    """9728: no queue leads up to the end of the log, so that the queues are not cut again."""
    case = stores.find("9728")
    root = build.build(case, golden(case.base), tmp_path / "store")
    empty = [queue[-1] for queue in anatomy.queues(root).values()
             if len(queue) > 1 and not anatomy.rows(root, queue[-1])]
    prediction = ask(root, "5.3.3")
    assert not prediction.starts
    assert not prediction.harmless
    assert [refusal.split(":")[0] for refusal in prediction.broker.refusals] == empty
    assert "correctMinOffset" in prediction.broker.refusals[0]
    assert any("5.0.0" in difference for difference in prediction.broker.differences)
    assert ask(root, "4.9.3").starts


def test_a_queue_that_is_cut_again_has_a_unit_that_saves_the_start(golden_copy):
    """Cutting takes the first unit of a file untested: then the file is not empty."""
    root = golden_copy(SOUND)
    empty_next_file(root)
    assert ask(root, "5.3.3").starts


def test_a_queue_whose_only_file_is_empty_stops_nobody_if_it_is_the_first(golden_copy):
    root = golden_copy(SOUND)
    queue = min((root / "consumequeue").glob("*/*"), key=lambda path: len(files(path, ".")))
    for path in files(queue, "."):
        path.write_bytes(bytes(path.stat().st_size))
    assert ask(root, "5.3.3").starts


def test_rows_that_come_again_save_the_start(golden_copy):
    root = golden_copy(SOUND)
    empty_next_file(root)
    (root / "abort").touch()
    damage.checkpoint_zero(root)
    prediction = ask(root, "5.3.3")
    assert prediction.starts
    assert prediction.queues.added > 0


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue"])
@pytest.mark.parametrize(("name", "data", "starts"), [
    ("zz-stray", b"", True), ("zz-stray", b"x", False), ("-first", b"", False)])
def test_an_empty_file_that_sorts_last_is_deleted_whatever_its_name(
        golden_copy, folder: str, name: str, data: bytes, starts: bool):
    """3257: MappedFileQueue.doLoad of 5.1.3 and later."""
    root = golden_copy(SOUND)
    where = root / folder
    if folder == "consumequeue":
        where = min(where.glob("*/*"))
    (where / name).write_bytes(data)
    target = str((where / name).relative_to(root))
    prediction = ask(root, "5.3.3")
    assert prediction.starts == starts
    assert (target in prediction.broker.doomed) == starts
    assert not ask(root, "4.9.3").starts
    if starts:
        assert prediction.harmless
        with (Repair(str(root), "recover") as repair, Store.open(root) as store,
              Scratch(repair.scratch_folder) as scratch):
            repair.apply(plan_broker(store, "5.3.3", scratch, lambda: 1_800_000_000_000))
        assert not (where / name).exists()


def twin(root: Path, *, empty: bool) -> int:
    """The newest log file once more in the other folder; how many messages start in it."""
    newest = max((path for name in TWO for path in files(root, name)), key=lambda path: path.name)
    other = root / TWO[newest.parent.name == TWO[0]] / newest.name
    if empty:
        other.write_bytes(bytes(newest.stat().st_size))
    else:
        shutil.copy(newest, other)
    with Store.open(root, (newest.parent.name,)) as store:
        return sum(int((batch.offset >= int(newest.name)).sum()) for batch in store.log.walk())


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_files_of_one_name_that_differ_are_a_risk(golden_copy, version: str):
    """8859: which of the two a broker reads cannot be told from the store."""
    root = golden_copy("5.3.3/multipath/store")
    count = twin(root, empty=True)
    prediction = ask(root, version, TWO)
    assert count > 0
    assert prediction.log.cut.count + prediction.log.shadowed == count
    assert not prediction.harmless
    assert any("same name" in note for note in prediction.notes)


def test_files_of_one_name_and_content_cost_nothing(golden_copy):
    root = golden_copy("5.3.3/multipath/store")
    twin(root, empty=False)
    prediction = ask(root, "5.3.3", TWO)
    assert prediction.log.shadowed == 0
    assert any("same name" in note for note in prediction.notes)
    assert not any("not all of them hold" in note for note in prediction.notes)


def test_an_index_that_reaches_behind_the_log_is_named(golden_copy):
    """8041: IndexService.buildIndex leaves out what lies before the last file's end."""
    root = golden_copy("5.3.3/crash-base/store")
    assert not any("index" in note for note in ask(root, "5.3.3").notes)
    last = max(files(root, "index"))
    damage.index_header(root, f"index/{last.name}", end_offset=10 << 30)
    prediction = ask(root, "5.3.3")
    assert prediction.harmless
    assert any(f"the index ends at {10 << 30}" in note and "no index entry" in note
               for note in prediction.notes)


def test_files_beyond_the_end_are_not_looked_up_in_each_other(golden_copy, monkeypatch):
    """A stranger's log may have as many sparse files as its folder takes."""
    root = golden_copy(SOUND)
    size = files(root, "commitlog")[0].stat().st_size
    last = int(files(root, "commitlog")[-1].name)
    for number in range(1, 101):
        with open(root / "commitlog" / f"{last + number * size:020d}", "wb") as file:
            file.truncate(size)
    compared = []
    monkeypatch.setattr(StoreFile, "__eq__", lambda self, other: compared.append(self) or (
        self is other))
    doomed = ask(root, "5.3.3").broker.doomed
    assert len([path for path in doomed if "commitlog" in path]) >= 100
    assert len(compared) < 500


@pytest.mark.parametrize("count", [20, 60])
def test_damage_between_all_records_is_judged_once_each(golden_copy, monkeypatch, count):
    """Records of a stranger's file that nothing leads to, with a few bytes between them."""
    root = golden_copy(SOUND)
    last = files(root, "commitlog")[-1]
    base, data = int(last.name) + last.stat().st_size, b""
    for number in range(count):
        data += message(base + len(data), b"body %d" % number) + b"\xff" * 5
    (root / "commitlog" / f"{base:020d}").write_bytes(data.ljust(last.stat().st_size, b"\0"))
    judged = []
    monkeypatch.setattr(walk, "classify", lambda *words: judged.append(words) or classify(*words))
    assert not ask(root, "5.3.3").is_so_alone
    assert len(judged) < 12 * count + 100
