"""Names, sizes and gaps: every legal oddity passes, every kind of damage is told at its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify import files
from rmqctl.store import Sizes, Store
from tests.checks.small_checks import CLEAN, IDS, brief, one_of, run_golden
from tests.conftest import GoldenFolder
from tests.support import damage, golden
from tests.support import tiny as tiny_stores
from tests.support.golden import golden_stores

LOG = "commitlog/{:020d}"
ROWS = "consumequeue/orders/0/{:020d}"
INDEX = f"index/{tiny_stores.INDEX_NAME}"
SIZE = 1024


def check(root: Path, dirs: tuple[str, ...] = (), sizes: Sizes | None = None) -> list[Finding]:
    with Store.open(root, dirs, sizes) as store:
        return list(files.check(store))


# -- legal ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("golden_store", CLEAN, ids=IDS)
def test_no_finding_on_a_cleanly_closed_store(golden_store: golden.GoldenStore,
                                              golden: GoldenFolder) -> None:
    assert run_golden("files", golden_store, golden(golden_store.id)) == []


@pytest.mark.parametrize("golden_store", [golden_store for golden_store in golden_stores()
                                          if not golden_store.is_clean],
                         ids=lambda golden_store: golden_store.id)
def test_what_is_wrong_with_the_files_of_a_damaged_store(golden_store: golden.GoldenStore,
                                                         golden: GoldenFolder) -> None:
    """Only one kind of damage of the golden sets changes a file's length."""
    root = golden(golden_store.id)
    briefs = brief(run_golden("files", golden_store, root), root)
    if golden_store.kind != "crash-shortfile":
        assert briefs == []
        return
    file = root / "commitlog/00000000000000163840"
    assert briefs == [("file-size", "commitlog/00000000000000163840",
                       163840 + file.stat().st_size)]


@pytest.mark.parametrize("name", tiny_stores.VARIANTS)
def test_no_finding_on_a_tiny_store(name: str, tmp_path: Path) -> None:
    store = tiny_stores.variant(tmp_path / "store", name)
    dirs = store.options.commitlog_dirs
    assert check(store.root, dirs if dirs != ("commitlog",) else ()) == []


@pytest.mark.parametrize("name", ["000001.sst", "CURRENT", "LOG.old.1700000000000000", "LOCK",
                                  "MANIFEST-000004", "OPTIONS-000007", "IDENTITY", "12.log"])
def test_rocksdb_beside_the_topics_is_legal(name: str, root: Path) -> None:
    damage.add_file(root, f"consumequeue/{name}")
    assert check(root) == []


def test_sub_folders_are_legal_from_5_1_on(root: Path) -> None:
    (root / "commitlog/lost+found").mkdir()
    finding, what = one_of(check(root), root)
    assert (what, finding.severity) == (("file-name", "commitlog/lost+found", None), "info")
    (root / "abort.bak").touch()
    assert check(root) == []


def test_a_linked_file_is_legal(root: Path, tmp_path: Path) -> None:
    damage.symlink_to_copy(root, LOG.format(0), tmp_path / "elsewhere")
    assert check(root) == []


def test_an_empty_store_is_legal(tmp_path: Path) -> None:
    for name in ("commitlog", "consumequeue", "index", "config"):
        (tmp_path / name).mkdir()
    assert check(tmp_path) == []


def test_any_size_is_legal(tmp_path: Path) -> None:
    store = tiny_stores.build(tmp_path / "store", commitlog_file_size=1111,
                              consumequeue_file_size=140, index_slots=7, index_max=33)
    assert check(store.root) == []


# -- commitlog -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("delta", [-1, -500, 1, 4096])
def test_a_log_file_of_the_wrong_length(number: int, delta: int, root: Path) -> None:
    damage.change_length(root, LOG.format(number * SIZE), delta)
    finding, what = one_of(check(root), root)
    end = number * SIZE + SIZE + min(delta, 0)
    assert what == ("file-size", LOG.format(number * SIZE), end)
    assert (finding.severity, finding.length, finding.position) == (
        "error", abs(delta), end - number * SIZE)
    assert str(SIZE) in finding.detail


def test_a_given_size_is_what_files_are_held_against(root: Path) -> None:
    assert check(root, sizes=Sizes(commitlog_file=SIZE)) == []
    findings = check(root, sizes=Sizes(commitlog_file=512))
    assert brief(findings, root) == [("file-size", LOG.format(0), 512),
                                     ("file-size", LOG.format(SIZE), SIZE + 512)]


def test_a_terabyte(root: Path) -> None:
    damage.huge_sparse(root, LOG.format(SIZE))
    _, what = one_of(check(root), root)
    assert what == ("file-size", LOG.format(SIZE), 2 * SIZE)


def test_an_empty_last_file_is_a_warning(root: Path) -> None:
    damage.add_file(root, LOG.format(2 * SIZE), b"")
    finding, what = one_of(check(root), root)
    assert (what, finding.severity) == (("file-empty", LOG.format(2 * SIZE), 2 * SIZE), "warning")


def test_an_empty_file_among_others_is_an_error(root: Path) -> None:
    damage.empty_file(root, LOG.format(0))
    _, what = one_of(check(root), root)
    assert what == ("file-size", LOG.format(0), 0)


def test_only_an_empty_file(tiny: tiny_stores.Tiny) -> None:
    damage.remove(tiny.root, LOG.format(SIZE))
    damage.empty_file(tiny.root, LOG.format(0))
    assert brief(check(tiny.root), tiny.root) == [("file-empty", LOG.format(0), 0)]


@pytest.mark.parametrize(("gone", "start", "end"), [
    ((1,), 1, 2), ((1, 2), 1, 3), ((1, 3), 1, 2), ((4,), 4, 5)])
def test_missing_log_files(gone: tuple[int, ...], start: int, end: int, long_log: Path) -> None:
    for number in gone:
        damage.remove(long_log, LOG.format(number * SIZE))
    findings = check(long_log)
    assert brief(findings, long_log)[0] == ("file-missing", LOG.format(start * SIZE), start * SIZE)
    assert (findings[0].length, findings[0].count) == ((end - start) * SIZE, end - start)
    assert len(findings) == (2 if gone == (1, 3) else 1)


def test_missing_first_files_have_expired(long_log: Path) -> None:
    damage.remove(long_log, LOG.format(0))
    damage.remove(long_log, LOG.format(SIZE))
    assert check(long_log) == []


def test_a_missing_last_file_is_none_of_the_names(long_log: Path) -> None:
    """What leads into it tells: consumequeue and index."""
    damage.remove(long_log, LOG.format(5 * SIZE))
    assert check(long_log) == []


def test_the_whole_log_missing(root: Path) -> None:
    damage.remove_folder(root, "commitlog")
    _, what = one_of(check(root), root)
    assert what == ("file-missing", "commitlog", None)


@pytest.mark.parametrize("name", [".DS_Store", "0000000000000000102x", "1024", "x" * 200,
                                  "00000000000000001024.bak"])
def test_a_strange_name(name: str, root: Path) -> None:
    damage.add_file(root, f"commitlog/{name}")
    finding, what = one_of(check(root), root)
    assert (what, finding.severity) == (("file-name", f"commitlog/{name}", None), "warning")


def test_a_number_no_offset_can_be(root: Path) -> None:
    damage.add_file(root, f"commitlog/{'9' * 20}", bytes(SIZE))
    _, what = one_of(check(root), root)
    assert what == ("file-name", f"commitlog/{'9' * 20}", None)


def test_a_name_between_two_files(long_log: Path) -> None:
    (long_log / LOG.format(2 * SIZE)).rename(long_log / LOG.format(2 * SIZE + 1))
    assert sorted(brief(check(long_log), long_log)) == [
        ("file-missing", LOG.format(2 * SIZE), 2 * SIZE),
        ("file-name", LOG.format(2 * SIZE + 1), 2 * SIZE + 1)]


def test_the_same_name_in_two_folders(tmp_path: Path) -> None:
    store = tiny_stores.variant(tmp_path / "store", "multi-path")
    damage.add_file(store.root, f"cl2/{0:020d}", bytes(SIZE))
    finding, what = one_of(check(store.root, ("cl1", "cl2")), store.root)
    assert (what, finding.severity) == (("file-name", f"cl2/{0:020d}", 0), "error")


@pytest.mark.parametrize("kind", [damage.fifo, damage.directory, damage.symlink,
                                  damage.symlink_to_itself])
@pytest.mark.parametrize("file", [LOG.format(SIZE), ROWS.format(0)])
def test_no_regular_file_is_unreadable_and_not_missing(kind, file: str, long_log: Path) -> None:
    kind(long_log, file)
    _, what = one_of(check(long_log), long_log)
    assert what == ("file-unreadable", file, None)


@pytest.mark.skipif(not damage.can_deny(), reason="root may read everything")
@pytest.mark.parametrize("file", [LOG.format(0), ROWS.format(0), INDEX, "commitlog", "index",
                                  "consumequeue/orders"])
def test_permission_denied(file: str, root: Path) -> None:
    damage.unreadable(root, file)
    briefs = brief(check(root), root)
    (root / file).chmod(0o755)
    assert ("file-unreadable", file, None) in briefs


def test_a_file_where_a_folder_belongs(root: Path) -> None:
    damage.remove_folder(root, "index")
    (root / "index").write_bytes(b"x")
    _, what = one_of(check(root), root)
    assert what == ("file-unreadable", "index", None)
