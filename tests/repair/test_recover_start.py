"""``rmqctl recover`` clears away what keeps a broker from starting, or says that it does not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.repair.accidents import bytes_of
from tests.support.cli import Result
from tests.support.share import sample

Run = Callable[..., Result]
Folder = Callable[[str], Path]
JSON = ("-o", "json")
VERSIONS = ["4.9.3", "5.3.3"]


def queue_of(root: Path) -> Path:
    return next(path for path in sorted((root / "consumequeue").glob("*/*")) if any(path.iterdir()))


def recovered(run: Run, root: Path) -> dict:
    """The document of a repair after which both brokers start, and which undo takes back."""
    was = {name: data for name, data in bytes_of(root).items() if ".rmqctl" not in name}
    done = run("recover", root, "--apply", "--yes", *JSON).recovered()
    assert done["applied"]
    run("verify", root).expect(0)
    generation = "5.3.3" if (root / "abort.bak").exists() or "5.3.3" in str(root) else "4.9.3"
    answer = run("preflight", root, "--broker-version", generation, *JSON).expect(0).json()
    assert answer["starts"]
    assert answer["messages_lost"] == 0
    assert run("recover", root, *JSON).recovered()["actions"] == []
    here = bytes_of(root)
    run("undo", root, "--yes").expect(0)
    assert bytes_of(root) == was
    return {**done, "files": sorted(here)}


@pytest.mark.parametrize(("version", "where", "name", "content"), sample(product(
    VERSIONS, ["commitlog", "queue"], [".DS_Store", "00000000000000000000.bak", "zzz.tmp"],
    [b"", b"something"]), 5, "stray files"))
def test_a_stray_file_goes_aside(rmqctl: Run, golden_copy: Folder, version: str, where: str,
                                 name: str, content: bytes) -> None:
    root = golden_copy(f"{version}/basic/store")
    folder = root / "commitlog" if where == "commitlog" else queue_of(root)
    (folder / name).write_bytes(content)
    target = str((folder / name).relative_to(root))
    done = recovered(rmqctl, root)
    assert target not in done["files"]
    about = [action for action in done["actions"] if target.startswith(action["target"])]
    assert about
    assert done["messages_lost"] == []
    if where == "commitlog":
        assert [(action["action"], action["target"], action["from"], action["reason"])
                for action in about] == [
                    ("move aside", target, len(content), "a broker does not start on it")]


@pytest.mark.parametrize("where", ["commitlog", "queue"])
@pytest.mark.parametrize("filled", [False, True])
def test_a_folder_among_the_files(rmqctl: Run, golden_copy: Folder, where: str,
                                  filled: bool) -> None:
    """lost+found: 5.1.3 and later brokers skip it, 4.x ones do not start."""
    for version in VERSIONS:
        root = golden_copy(f"{version}/basic/store")
        folder = (root / "commitlog" if where == "commitlog" else queue_of(root)) / "lost+found"
        folder.mkdir()
        if filled:
            (folder / "#1234").write_bytes(b"x")
        if version == "5.3.3" and (where == "commitlog" or not filled):
            assert rmqctl("recover", root, *JSON).recovered()["actions"] == []
        elif version == "4.9.3":
            done = recovered(rmqctl, root)
            assert [action["action"] for action in done["actions"]] == ["move aside"]
            assert not [name for name in done["files"] if "lost+found" in name]


@pytest.mark.parametrize("kind", ["fifo", "dangling"])
def test_things_that_are_no_files(rmqctl: Run, golden_copy: Folder, kind: str) -> None:
    root = golden_copy("4.9.3/basic/store")
    path = root / "commitlog" / "strange"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    done = rmqctl("recover", root, "--apply", "--yes", *JSON).recovered()
    assert [action["target"] for action in done["actions"]] == ["commitlog/strange"]
    assert not os.path.lexists(path)
    rmqctl("verify", root).expect(0)
    rmqctl("undo", root, "--yes").expect(0)
    assert os.path.lexists(path)


@pytest.mark.parametrize("version", VERSIONS)
def test_numbers_in_the_index_folder(rmqctl: Run, golden_copy: Folder, version: str) -> None:
    """`IndexService.load` passes over a name that is no number, and takes the others."""
    root = golden_copy(f"{version}/basic/store")
    (root / "index" / ".DS_Store").write_bytes(b"x")
    (root / "index" / "123").mkdir()
    (root / "index" / "7").write_bytes(b"")
    (root / "index" / "old").mkdir()
    done = recovered(rmqctl, root)
    assert {(action["target"], action["reason"]) for action in done["actions"]} == {
        ("index/123", "a broker does not start on it"), ("index/.DS_Store", "not an index file"),
        ("index/old", "not an index file"),
        ("index/7", "a broker treats it as an index file")}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_empty_last_file(rmqctl: Run, golden_copy: Folder, version: str) -> None:
    root = golden_copy(f"{version}/basic/store")
    log = sorted((root / "commitlog").iterdir())
    size = log[0].stat().st_size
    path = log[-1].with_name(f"{int(log[-1].name) + size:020d}")
    path.touch()
    done = recovered(rmqctl, root)
    assert [(action["action"], action["target"]) for action in done["actions"]] == [
        ("move aside", f"commitlog/{path.name}")]
    # Not the next one: what would lie between them is missing from nothing.
    path.rename(path.with_name(f"{int(path.name) + 2 * size:020d}"))
    assert len(recovered(rmqctl, root)["actions"]) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_last_file_that_lost_its_bytes_keeps_its_rows(rmqctl: Run, golden_copy: Folder,
                                                        version: str) -> None:
    root = golden_copy(f"{version}/basic/store")
    path = max((root / "commitlog").iterdir())
    if not any(path.read_bytes()):
        pytest.skip("nothing was in it")
    os.truncate(path, 0)
    done = recovered(rmqctl, root)
    assert done["messages_lost"]
    assert "move aside" not in {action["action"] for action in done["actions"]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 20, 33])
def test_a_queue_file_of_another_length(rmqctl: Run, golden_copy: Folder, version: str,
                                        size: int) -> None:
    root = golden_copy(f"{version}/basic/store")
    path = max(queue_of(root).iterdir())
    os.truncate(path, size)
    recovered(rmqctl, root)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_empty_file_of_a_queue_without_messages(rmqctl: Run, golden_copy: Folder,
                                                   version: str) -> None:
    root = golden_copy(f"{version}/basic/store")
    folder = root / "consumequeue" / "Nobody" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").touch()
    document = rmqctl("recover", root, *JSON).recovered()
    if document["actions"]:
        recovered(rmqctl, root)
    else:
        answer = rmqctl("preflight", root, "--broker-version", version, *JSON).json()
        assert answer["starts"] or any("would not start" in note for note in document["notes"])


@pytest.mark.parametrize("version", VERSIONS)
def test_what_stays_is_said(rmqctl: Run, golden_copy: Folder, version: str) -> None:
    """A configuration that cannot be read: nothing of the store could bring it back."""
    root = golden_copy(f"{version}/basic/store")
    (root / "config").mkdir(exist_ok=True)
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_bytes(b"\0\0{")
    if rmqctl("preflight", root, "--broker-version", version, *JSON).json()["starts"]:
        pytest.skip("this broker starts without it")
    document = rmqctl("recover", root, *JSON).recovered()
    assert any("does not start" in note and "config/topics.json" in note
               for note in document["notes"])


@pytest.mark.parametrize(("gone", "says", "options"), [
    ("consumequeue", "A broker with another mappedFileSizeConsumeQueue does not start on",
     ("--consumequeue-file-size", "480")),
    ("batchconsumequeue", "A broker with another mapperFileSizeBatchConsumeQueue does not start",
     ("--batch-consumequeue-file-size", "736")),
    ("index", "A broker with another maxHashSlotNum finds no keys in such files",
     ("--index-slots", "100", "--index-max", "200"))])
def test_what_happens_when_an_assumed_size_is_wrong_is_said(
        rmqctl: Run, golden_copy: Folder, gone: str, says: str, options: tuple[str, ...]) -> None:
    """Nothing in the store says the sizes that its broker has."""
    root = golden_copy("5.3.3/batchcq/store")
    assert says not in rmqctl("recover", root).expect(0).err
    shutil.rmtree(root / gone)
    assert says in rmqctl("recover", root).expect(0).err
    assert says not in rmqctl("recover", root, *options).expect(0).err
