"""No check raises, hangs or changes anything, whatever lies in the place of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checks.small_checks import Log, run
from tests.conftest import GoldenFolder
from tests.support import damage, snapshot
from tests.support.share import sample

CHECKS = ("checkpoint", "files", "config", "timer", "compaction", "extras")
SETS = {
    "timer": ("5.3.3/timer/store", f"timerlog/{896:020d}"),
    "wheel": ("5.3.3/timer/store", "timerwheel"),
    "compacted log": ("5.3.3/compaction/store",
                      f"compaction/compactionLog/TP_user_Topic/0/{0:020d}"),
    "compacted queue": ("5.3.3/compaction/store",
                        f"compaction/compactionCq/TP_user_Topic/0/{0:020d}"),
    "batch": ("5.3.3/batchcq/store", f"batchconsumequeue/TP_pay_Topic/0/{0:020d}"),
    "extension": ("5.3.3/cqext/store", f"consumequeue_ext/TP_order_Topic/0/{0:020d}"),
    "log of a timer": ("5.3.3/timer/store", f"commitlog/{0:020d}"),
    "queue of a timer": ("5.3.3/timer/store", f"consumequeue/rmq_sys_wheel_timer/0/{0:020d}"),
}
LOG = Log(1_800_000_000_000, 60_000)
LONG_MAX = (1 << 63) - 1


def all_checks(root: Path, *, live: bool = False) -> None:
    for check in CHECKS:
        for finding in run(check, root, log=LOG, live=live):
            assert finding.detail
            assert finding.severity


@pytest.mark.parametrize("kind", [damage.fifo, damage.directory, damage.symlink,
                                  damage.symlink_to_itself, damage.huge_sparse,
                                  damage.empty_file, damage.remove])
@pytest.mark.parametrize("name", sample(SETS, 4, "places of files"))
def test_something_else_in_the_place_of_a_file(name: str, kind,
                                               golden_copy: GoldenFolder) -> None:
    set_, file = SETS[name]
    root = golden_copy(set_)
    kind(root, file)
    with snapshot.assert_unchanged(*([] if kind is damage.huge_sparse else [root])):
        all_checks(root)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_in_the_place_of_a_file(name: str, seed: int,
                                             golden_copy: GoldenFolder) -> None:
    set_, file = SETS[name]
    root = golden_copy(set_)
    if name == "wheel":
        damage.garbage_tail(root, file, 187_365 * 32, seed, 100_000)
    else:
        damage.random_bytes(root, file, seed)
    all_checks(root)
    all_checks(root, live=True)


@pytest.mark.parametrize("base", [LONG_MAX, LONG_MAX - 900, 1 << 62, 3])
@pytest.mark.parametrize("name", [name for name in SETS if name != "wheel"])
def test_a_name_far_away(name: str, base: int, golden_copy: GoldenFolder) -> None:
    set_, file = SETS[name]
    root = golden_copy(set_)
    (root / file).rename((root / file).with_name(f"{base:020d}"))
    all_checks(root)


@pytest.mark.parametrize("name", SETS)
def test_folders_that_are_files(name: str, golden_copy: GoldenFolder) -> None:
    set_, file = SETS[name]
    root = golden_copy(set_)
    top = Path(file).parts[0]
    if top != file:
        damage.remove_folder(root, top)
    (root / top).write_bytes(b"no folder")
    all_checks(root)


def test_nothing_but_a_commitlog_folder(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for check in CHECKS:
        assert run(check, tmp_path) == []
