"""Log files that overlap: a file whose name is inside another file, and files that are too long."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.repair.accidents import bytes_of
from tests.support import cli

SIZE = 65536
STORES = ["4.9.3/basic/store", "5.3.3/basic/store"]


def log_of(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def answers(store: Path) -> list[str]:
    """What the log says; the paths of the findings aside."""
    return [cli.run("read", str(store), "-o", "jsonl").expect(0).out,
            cli.run("query", "offset", str(store), "--phy", str(SIZE), "-o", "json").expect(0).out]


def copied(store: Path) -> Path:
    """A copy of a file under the next number, of the size of a file."""
    file = log_of(store)[1]
    copy = file.with_name(f"{int(file.name) + 1:020d}")
    shutil.copy(file, copy)
    return copy


def named_at_random(store: Path) -> Path:
    file = log_of(store)[0].with_name(f"{777:020d}")
    file.write_bytes(b"x" * 5000)
    return file


def empty(store: Path) -> Path:
    file = log_of(store)[0].with_name(f"{1:020d}")
    file.touch()
    return file


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("stray", [copied, named_at_random, empty])
def test_a_name_inside_another_file(golden_copy, name: str, stray: Callable[[Path], Path]) -> None:
    """The log is read without it, and `recover` moves it aside."""
    store = golden_copy(name)
    before, wanted = bytes_of(store), answers(store)
    path = stray(store)
    content = path.read_bytes()
    assert answers(store) == wanted
    report = cli.run("verify", str(store), "-o", "json").expect(1).json()
    assert {finding["file"] for finding in report["findings"]} == {str(path)}
    assert report["coverage"]["bytes_damaged"] == 0
    # Its effect on a start is shown: a wrong size, or messages that are looked up in it.
    start = cli.run("preflight", str(store), "-o", "json").json()
    if stray is copied:
        assert start["starts"]
        assert start["shadowed"] >= 1
    else:
        assert [text.split(":")[0] for text in start["refusals"]] == [f"commitlog/{path.name}"]
    diagnosis = cli.run("doctor", str(store)).expect(1)
    assert "recover" in diagnosis.out
    assert "loses nothing" not in diagnosis.out
    plan = cli.run("recover", str(store), "--apply", "--yes", "-o", "json").recovered()
    assert [(action["action"], action["target"]) for action in plan["actions"]] == [
        ("move aside", f"commitlog/{path.name}")]
    cli.run("verify", str(store)).expect(0)
    (run_id,) = (folder.name for folder in (store / ".rmqctl/repairs").iterdir())
    cli.run("undo", str(store), run_id, "--yes").expect(0)
    assert path.read_bytes() == content
    path.unlink()
    shutil.rmtree(store / ".rmqctl")
    assert bytes_of(store) == before


def lost(store: Path) -> int:
    result: int = cli.run("preflight", str(store), "-o", "json").json()["messages_already_lost"]
    return result


def test_a_name_inside_the_only_file(golden_copy) -> None:
    store = golden_copy("5.3.3/basic/store")
    for path in log_of(store)[1:]:
        path.unlink()
    cli.run("recover", str(store), "--apply", "--yes").expect(0, 1)
    before = lost(store)
    path = empty(store)
    assert lost(store) == before
    plan = cli.run("recover", str(store), "-o", "json").recovered()
    assert [(action["action"], action["target"]) for action in plan["actions"]] == [
        ("move aside", f"commitlog/{path.name}")]


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("size", [1, 20, 4096, 200_000])
def test_zeros_after_the_end_of_a_file(golden_copy, name: str, number: int, size: int) -> None:
    """Nothing is damaged or lost, and the plan makes the file as long as the others."""
    store = golden_copy(name)
    before, wanted = bytes_of(store), answers(store)
    path = log_of(store)[number]
    with path.open("ab") as file:
        file.write(bytes(size))
    assert answers(store) == wanted
    report = cli.run("verify", str(store), "-o", "json").expect(1).json()
    assert {finding["category"] for finding in report["findings"]} == {"file-size"}
    start = cli.run("preflight", str(store), "-o", "json").json()
    assert [text.split(":")[0] for text in start["refusals"]] == [f"commitlog/{path.name}"]
    assert start["messages_already_lost"] == 0
    plan = cli.run("recover", str(store), "--apply", "--yes", "-o", "json").recovered()
    assert [(action["action"], action["target"]) for action in plan["actions"]] == [
        ("truncate", f"commitlog/{path.name}")]
    shutil.rmtree(store / ".rmqctl")
    assert bytes_of(store) == before


@pytest.mark.parametrize("name", STORES)
def test_other_bytes_after_the_end_of_a_file(golden_copy, name: str) -> None:
    """Where the next file is there, they are not of the log."""
    store = golden_copy(name)
    before, wanted = bytes_of(store), answers(store)
    path = log_of(store)[1]
    with path.open("ab") as file:
        file.write(log_of(store)[2].read_bytes()[:3000])
    assert answers(store) == wanted
    cli.run("recover", str(store), "--apply", "--yes").expect(0)
    shutil.rmtree(store / ".rmqctl")
    assert bytes_of(store) == before


@pytest.mark.parametrize("name", STORES)
def test_two_files_joined_are_not_cut(golden_copy, name: str) -> None:
    """The bytes after the end of the first are the only copy of the second."""
    store = golden_copy(name)
    first, other = log_of(store)[-2:]
    with first.open("ab") as file:
        file.write(other.read_bytes())
    other.unlink()
    before = bytes_of(store)
    refused = cli.run("recover", str(store), "--apply", "--yes").expect(6)
    assert "rmqctl carve" in refused.err
    assert bytes_of(store) == before
