"""Names and sizes of queue, timer and index files; and folders full of anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.store import Sizes
from tests.checks.small_checks import brief, one_of
from tests.checks.test_files import check
from tests.conftest import GoldenFolder
from tests.support import damage
from tests.support import tiny as tiny_stores

ROWS = "consumequeue/orders/0/{:020d}"
INDEX = f"index/{tiny_stores.INDEX_NAME}"


# -- queues --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [-20, -1, 20, 7])
def test_a_queue_file_of_the_wrong_length(delta: int, root: Path) -> None:
    damage.change_length(root, ROWS.format(0), delta)
    finding, what = one_of(check(root), root)
    assert what == ("file-size", ROWS.format(0), 60 + min(delta, 0))
    assert (finding.structure, finding.topic, finding.queue_id) == ("consumequeue", "orders", 0)
    assert finding.queue_offset == (60 + min(delta, 0)) // 20


def test_the_only_file_of_all_queues_may_be_wrong_too(tmp_path: Path) -> None:
    store = tiny_stores.variant(tmp_path / "store", "one message")
    damage.change_length(store.root, ROWS.format(0), -7)
    _, what = one_of(check(store.root), store.root)
    assert what[:2] == ("file-size", ROWS.format(0))


def test_a_length_of_no_whole_rows_is_no_candidate(tmp_path: Path) -> None:
    """One file in each of two queues: whole rows decide which of the lengths is right."""
    specs = [tiny_stores.Spec("orders", queue, b"one") for queue in (0, 1)]
    store = tiny_stores.build(tmp_path / "store", specs)
    damage.change_length(store.root, ROWS.format(0), 7)
    _, what = one_of(check(store.root), store.root)
    assert what == ("file-size", ROWS.format(0), 60)


def test_a_missing_queue_file(long_log: Path) -> None:
    damage.remove(long_log, ROWS.format(60))
    finding, what = one_of(check(long_log), long_log)
    assert what == ("file-missing", ROWS.format(60), 0)
    assert (finding.queue_offset, finding.length) == (3, 60)


def test_an_empty_last_queue_file(root: Path) -> None:
    damage.add_file(root, ROWS.format(120), b"")
    finding, what = one_of(check(root), root)
    assert (what, finding.severity) == (("file-empty", ROWS.format(120), 0), "warning")


@pytest.mark.parametrize("name", ["consumequeue/notes.txt", "consumequeue/orders/readme",
                                  f"consumequeue/orders/{0:020d}"])
def test_files_among_folders_are_passed_over_by_a_broker(name: str, root: Path) -> None:
    damage.add_file(root, name)
    finding, what = one_of(check(root), root)
    assert (what[:2], finding.severity) == (("file-name", name), "info")


@pytest.mark.parametrize("name", ["old", "1.5", "007", "-1", "99999999999", "١"])
def test_a_folder_that_is_no_queue(name: str, root: Path) -> None:
    (root / "consumequeue/orders" / name).mkdir()
    finding, what = one_of(check(root), root)
    assert (what, finding.severity) == (("file-name", f"consumequeue/orders/{name}", None), "info")


def test_a_strange_name_among_rows(root: Path) -> None:
    damage.add_file(root, "consumequeue/orders/0/junk")
    finding, what = one_of(check(root), root)
    assert (what, finding.severity) == (("file-name", "consumequeue/orders/0/junk", None),
                                        "warning")


@pytest.mark.parametrize(("set_", "folder", "structure"), [
    ("5.3.3/cqext/store", "consumequeue_ext", "consumequeue_ext"),
    ("5.3.3/batchcq/store", "batchconsumequeue", "batchconsumequeue"),
    ("5.3.3/compaction/store", "compaction/compactionLog", "compaction"),
    ("5.3.3/compaction/store", "compaction/compactionCq", "compaction"),
    ("5.3.3/timer/store", "timerlog", "timer")])
def test_other_sequences(set_: str, folder: str, structure: str,
                         golden_copy: GoldenFolder) -> None:
    root = golden_copy(set_)
    file = max(path for path in (root / folder).rglob("*") if path.is_file())
    name = os.path.relpath(file, root)
    size = file.stat().st_size
    damage.change_length(root, name, -10)
    finding, what = one_of(check(root), root)
    assert what == ("file-size", name, size - 10)
    assert finding.structure == structure


def test_a_missing_timer_log_file(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/timer/store")
    damage.remove(root, f"timerlog/{896:020d}")
    _, what = one_of(check(root), root)
    assert what == ("file-missing", f"timerlog/{896:020d}", 0)


def test_traces_of_a_compaction_are_legal(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/compaction/store")
    queue = root / "compaction/compactionLog/TP_user_Topic/0"
    (queue / "compacting").mkdir()
    (queue / "compacting" / f"{0:020d}").write_bytes(b"half done")
    (queue / f"{33120:020d}.delete").write_bytes(b"old")
    assert check(root) == []


def test_the_empty_timer_log_of_another_implementation(root: Path) -> None:
    (root / "timerlog").mkdir()
    damage.add_file(root, f"timerlog/{0:020d}", b"")
    finding, _ = one_of(check(root), root)
    assert (finding.category, finding.severity) == ("file-empty", "info")


# -- index ---------------------------------------------------------------------------------------


def test_an_index_file_no_shape_makes(root: Path) -> None:
    damage.change_length(root, INDEX, -3)
    _, what = one_of(check(root), root)
    assert what == ("file-size", INDEX, (root / INDEX).stat().st_size)


def test_a_shorter_index_file_among_others(golden_copy: GoldenFolder) -> None:
    root = golden_copy("4.9.3/basic/store")
    first, *_, last = sorted(os.listdir(root / "index"))
    damage.change_length(root, f"index/{first}", -400)
    assert brief(check(root), root) == [("file-size", f"index/{first}", 8040)]
    damage.change_length(root, f"index/{first}", 400)
    damage.change_length(root, f"index/{last}", 4000)
    assert check(root) == [], "from here on with another configuration"


def test_index_sizes_that_were_given(root: Path) -> None:
    assert check(root, sizes=Sizes(index_slots=8, index_max=32)) == []
    finding, what = one_of(check(root, sizes=Sizes(index_slots=8, index_max=33)), root)
    assert (what[:2], finding.length) == (("file-size", INDEX), 20)


def test_an_empty_index_file(root: Path) -> None:
    damage.add_file(root, "index/20231114221320001", b"")
    _, what = one_of(check(root), root)
    assert what == ("file-empty", "index/20231114221320001", 0)


@pytest.mark.parametrize("name", ["20231114", "notes", f"{0:020d}"])
def test_a_name_no_index_has(name: str, root: Path) -> None:
    damage.add_file(root, f"index/{name}")
    _, what = one_of(check(root), root)
    assert what == ("file-name", f"index/{name}", None)


# -- bad input -----------------------------------------------------------------------------------


def test_a_thousand_strange_names_are_counted(root: Path) -> None:
    for number in range(1000):
        (root / f"commitlog/{number}.tmp").touch()
    findings = check(root)
    assert len(findings) == 101
    assert sum(finding.count for finding in findings) == 1000


NAMES = st.text("0123456789abx.-", min_size=1, max_size=22) | st.integers(
    0, 10 ** 20 - 1).map("{:020d}".format)


@settings(max_examples=60, derandomize=True)
@given(entries=st.dictionaries(NAMES.filter(lambda name: name.strip(".")),
                               st.integers(0, 3000), max_size=6),
       where=st.sampled_from(["commitlog", "consumequeue/t/0", "consumequeue/t", "index",
                              "timerlog", "compaction/compactionLog/t/0"]))
def test_any_names_and_sizes(entries: dict[str, int], where: str,
                             tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("names")
    (root / "commitlog").mkdir()
    (root / where).mkdir(parents=True, exist_ok=True)
    for name, size in entries.items():
        with (root / where / name).open("wb") as file:
            file.truncate(size)
    for finding in check(root):
        assert finding.detail
