"""``rmqctl pipeline rebuild`` as a user runs it, with processes of this machine."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.files import durable
from rmqctl.store import Store
from tests.repair.accidents import bytes_of
from tests.repair.rebuilding import derived
from tests.support import snapshot
from tests.support.cli import Result
from tests.support.share import sample

Run = Callable[..., Result]
Folder = Callable[[str], Path]
NAMES = ["4.9.3/basic", "5.3.3/lmq", "5.3.3/batchcq", "5.3.3/cqext"]
HERE = ("--engine", "local", "--jobs", "2", "-o", "json")
SIZES = ("--index-slots", "100", "--index-max", "200", "--consumequeue-file-size", "440")


def without_next(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan but for the command that carries it out."""
    return {name: value for name, value in plan.items() if name not in ("next", "steps")}


def harm(store: Path) -> None:
    """Every second file of queues and index is damaged or gone; what no log tells stays."""
    for kind in ("consumequeue/", "batchconsumequeue/", "index/"):
        names = [file for file in sorted(derived(store)) if file.startswith(kind)]
        for number, name in enumerate(names):
            path = store / name
            if number % 4 == 2:
                path.unlink()
            elif number % 4 == 0:
                data = bytearray(path.read_bytes())
                data[9] ^= 1
                path.write_bytes(data)


@pytest.mark.long
@pytest.mark.parametrize("name", sample(NAMES, 2, "rebuilt by command"))
def test_the_plan_of_recover_carried_out_and_taken_back(rmqctl: Run, golden_copy: Folder,
                                                        name: str) -> None:
    root = golden_copy(f"{name}/store")
    wanted = derived(root)
    harm(root)
    was, before = snapshot.take(root), bytes_of(root)
    theirs = rmqctl("recover", root, "--only", "consumequeue,index", "-o", "json").expect(0).json()
    mine = rmqctl("pipeline", "rebuild", root, *HERE, "--partitions", "9").expect(0).json()
    assert without_next(mine) == without_next(theirs)
    assert mine["actions"]
    assert snapshot.take(root) == was, "a plan changes nothing"
    done = rmqctl("pipeline", "rebuild", root, *HERE, "--apply", "--yes").expect(0).json()
    assert done["applied"]
    assert done["actions"] == theirs["actions"]
    derived_files = derived(root)
    assert {name: derived_files[name] for name in derived_files if name[:5] != "index"} == {
        name: wanted[name] for name in wanted if name[:5] != "index"}
    assert sorted(derived_files[derived_file] for derived_file in derived_files
                  if derived_file[:5] == "index") == sorted(
                      wanted[file] for file in wanted if file[:5] == "index")
    assert not (root / ".rmqctl" / "scratch").exists()
    again = rmqctl("pipeline", "rebuild", root, *HERE, "--apply", "--yes").expect(0).json()
    assert again["actions"] == []
    assert not again["applied"]
    rmqctl("undo", root, "--yes").expect(0)
    assert bytes_of(root) == before


@pytest.mark.parametrize("options", [
    ("--only", "consumequeue"), ("--only", "index"), ("--topic", "TP"),
    ("--topic", "TP", "--queue", "0")], ids=str)
def test_a_part_of_it(rmqctl: Run, golden_copy: Folder, options: tuple[str, ...]) -> None:
    root = golden_copy("5.3.3/basic/store")
    topic = min(path.name for path in (root / "consumequeue").iterdir() if path.name[0] == "T")
    given = [topic if option == "TP" else option for option in options]
    harm(root)
    theirs = rmqctl("recover", root, *(given if "--only" in given else
                                       ["--only", "consumequeue", *given]), "-o", "json").json()
    mine = rmqctl("pipeline", "rebuild", root, *given, *HERE).expect(0).json()
    assert without_next(mine) == without_next(theirs)
    assert theirs["actions"]


@pytest.mark.long
def test_several_stores_and_one_that_is_none(rmqctl: Run, golden_copy: Folder,
                                             tmp_path: Path) -> None:
    roots = [golden_copy("4.9.3/basic/store"), golden_copy("5.3.3/basic/store")]
    wanted = [derived(root) for root in roots]
    shutil.rmtree(roots[1] / "index")
    none = tmp_path / "none"
    shape = ("--index-slots", "100", "--index-max", "400")
    result = rmqctl("pipeline", "rebuild", roots[0], none, roots[1], *HERE, *shape, "--apply",
                    "--yes").expect(3)
    sound, failed, mended = result.json()["stores"]
    assert (sound["store"], sound["actions"], sound["applied"]) == (str(roots[0]), [], False)
    assert failed["store"] == str(none)
    assert set(failed) == {"store", "error"}
    assert mended["applied"]
    assert len(mended["actions"]) == sum(name.startswith("index") for name in wanted[1])
    assert derived(roots[0]) == wanted[0]
    rows = rmqctl("pipeline", "rebuild", *roots, *HERE[:-1], "jsonl").expect(0).jsonl()
    assert [row["store"] for row in rows] == list(map(str, roots))
    assert not any(row["actions"] for row in rows)
    page = rmqctl("pipeline", "rebuild", *roots, *HERE[:-1], "plain").expect(0).out
    assert all(str(root) in page for root in roots)
    assert page.count("nothing to do") == 2
    rmqctl("pipeline", "rebuild", none, *HERE).expect(3)


def test_a_plan_made_in_a_named_folder(rmqctl: Run, golden_copy: Folder, tmp_path: Path) -> None:
    root = golden_copy("4.9.3/basic/store")
    shutil.rmtree(root / "consumequeue")
    folder = tmp_path / "shared"
    folder.mkdir()
    answer = rmqctl("pipeline", "rebuild", root, *HERE, *SIZES, "--scratch",
                    folder).expect(0).json()
    assert answer["actions"]
    assert list(folder.iterdir()) == []
    rmqctl("pipeline", "rebuild", root, *HERE, "--scratch", folder, "--apply").expect(2)


def test_a_full_disk_changes_nothing(rmqctl: Run, golden_copy: Folder,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden_copy("5.3.3/basic/store")
    harm(root)
    before = bytes_of(root)

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable.os, "pwritev", no_room)
    monkeypatch.setattr(durable.os, "pwrite", no_room)
    result = rmqctl("pipeline", "rebuild", root, *HERE, "--apply", "--yes").expect(5)
    assert "no space left on the device" in result.err
    assert {name: data for name, data in bytes_of(root).items()
            if not name.startswith(".rmqctl")} == before


@pytest.mark.parametrize("given", [("--queue", "1"), ("--topic", "T", "--only", "index"),
                                   ("--only", "commitlog"), ("--apply", "--dry-run"), ("--yes",)],
                         ids=str)
def test_what_makes_no_sense_is_refused(rmqctl: Run, golden: Folder,
                                        given: tuple[str, ...]) -> None:
    rmqctl("pipeline", "rebuild", golden("4.9.3/basic/store"), *HERE, *given).expect(2)


@pytest.mark.parametrize("name", ["5.3.3/rocksdb-clean-trunc-b/after",
                                  "5.3.3/dledger-crash-nocq/before"])
def test_other_layouts(rmqctl: Run, golden_copy: Folder, tmp_path: Path, name: str) -> None:
    """The plan of recover, and what it comes to."""
    root = golden_copy(name)
    shutil.rmtree(root / "index", ignore_errors=True)
    other = snapshot.copy_tree(root, tmp_path / "other")
    theirs = rmqctl("recover", other, "--only", "consumequeue,index", *SIZES, "--apply", "--yes",
                    "-o", "json").expect(0, 1).json()
    mine = rmqctl("pipeline", "rebuild", root, *HERE, *SIZES, "--partitions", "3", "--apply",
                  "--yes").expect(0, 1).json()
    assert mine["actions"] == theirs["actions"] != []
    with Store.open(root) as store, Store.open(other) as beside:
        assert {key: queue.units(0, queue.disk_end).tolist()
                for key, queue in store.queues.by_key.items()} == {
            key: queue.units(0, queue.disk_end).tolist()
            for key, queue in beside.queues.by_key.items()}
    assert {path.name: path.read_bytes() for path in (root / "index").iterdir()} == {
        path.name: path.read_bytes() for path in (other / "index").iterdir()}
