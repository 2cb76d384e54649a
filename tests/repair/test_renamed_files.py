"""Log files that somebody renamed: the log is read with them, and `recover` renames them back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rmqctl.formats import layout
from rmqctl.formats.local.message import Message, is_magic, magic_at, total_size_at
from tests.repair.accidents import bytes_of
from tests.support import cli

STORES = ["4.9.3/basic/store", "5.3.3/basic/store"]
NAMES = ["{}.bak", "{}.1", "x{}", "old {}"]


def log_of(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def messages(store: Path) -> list[int]:
    return [row["physical_offset"] for row in cli.run(
        "read", str(store), "-o", "jsonl", "--body", "none").expect(0, 1).jsonl()]


def renamed(path: Path, pattern: str = "{}.bak") -> Path:
    return path.rename(path.with_name(pattern.format(path.name)))


def with_host(path: Path, host: bytes) -> Path:
    """Gives all records of a log file the address of another broker."""
    data, at = bytearray(path.read_bytes()), 0
    while is_magic(magic_at(data, at)):
        place = at + layout.field(Message, "born_timestamp").offset + 8 + 8 + 8
        data[place:place + 4] = host
        at += total_size_at(data, at)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("number", [0, 2, -1])
@pytest.mark.parametrize("pattern", NAMES)
def test_nothing_is_lost(golden_copy, name: str, number: int, pattern: str) -> None:
    store = golden_copy(name)
    before, wanted = bytes_of(store), messages(store)
    path = renamed(log_of(store)[number], pattern)
    assert messages(store) == wanted
    report = cli.run("verify", str(store), "-o", "json").expect(1).json()
    assert [(finding["category"], finding["file"]) for finding in report["findings"]] == [
        ("file-name", str(path))]
    # The broker does not start, and has lost nothing.
    start = cli.run("preflight", str(store), "-o", "json").json()
    assert [text.split(":")[0] for text in start["refusals"]] == [f"commitlog/{path.name}"]
    assert start["messages_already_lost"] == 0
    plan = cli.run("recover", str(store), "--apply", "--yes", "-o", "json").recovered()
    assert [(action["action"], action["from"]) for action in plan["actions"]] == [
        ("rename", f"commitlog/{path.name}")]
    kept = store / ".rmqctl"
    cli.run("doctor", str(store)).expect(0)
    (run_id,) = (folder.name for folder in (kept / "repairs").iterdir())
    assert {key: data for key, data in bytes_of(store).items()
            if not key.startswith(".rmqctl")} == before
    cli.run("undo", str(store), run_id, "--yes").expect(0)
    assert path.exists()
    assert len(log_of(store)) == len([key for key in before if key.startswith("commitlog/")])


def test_several_files_and_all_files(golden_copy) -> None:
    store = golden_copy("5.3.3/basic/store")
    before, wanted = bytes_of(store), messages(store)
    for count in (2, 5):
        for path in log_of(store)[:count]:
            renamed(path)
        assert messages(store) == wanted
        cli.run("recover", str(store), "--apply", "--yes").expect(0)
        shutil.rmtree(store / ".rmqctl")
        assert bytes_of(store) == before


@pytest.mark.parametrize("left", [1, 2])
def test_few_files_are_left(golden_copy, left: int) -> None:
    """Of two, one is shorter: the names show how long a file is."""
    store = golden_copy("5.3.3/basic/store")
    for path in log_of(store)[:4 - left]:
        path.unlink()
    wanted = messages(store)
    path = renamed(log_of(store)[0])
    if left == 2:
        os.truncate(log_of(store)[0], 65000)
    assert messages(store)[0] == wanted[0]
    plan = cli.run("recover", str(store), "--apply", "--yes", "-o", "json").json()
    assert "rename" in {action["action"] for action in plan["actions"]}
    assert not path.exists()


def test_files_of_another_size_stay_beside_a_name_that_is_not_one(golden_copy) -> None:
    """The size of the files was changed once: no file is inside another."""
    store = golden_copy("5.3.3/basic/store")
    *_, last = log_of(store)
    data = last.read_bytes()
    last.write_bytes(data[:16384])
    last.with_name(f"{int(last.name) + 16384:020d}").write_bytes(data[16384:])
    wanted = messages(store)
    (store / "commitlog/note").write_text("x")
    assert messages(store) == wanted
    assert any(place > int(last.name) + 16384 for place in wanted)


def test_damage_in_a_renamed_file_is_repaired_as_well(golden_copy) -> None:
    store = golden_copy("5.3.3/basic/store")
    path = log_of(store)[1]
    with path.open("r+b") as file:
        file.seek(20480)
        file.write(bytes(4096))
    again = golden_copy("5.3.3/basic/store")
    shutil.copy(path, again / "commitlog" / path.name)
    renamed(path)
    for root in (store, again):
        cli.run("recover", str(root), "--apply", "--yes").expect(1)
        shutil.rmtree(root / ".rmqctl")
    assert bytes_of(store) == bytes_of(again)


def test_a_source_completes_a_renamed_file(golden_copy) -> None:
    store, source = golden_copy("5.3.3/basic/store"), golden_copy("5.3.3/basic/store")
    before = bytes_of(store)
    path = log_of(store)[1]
    with path.open("r+b") as file:
        file.seek(20480)
        file.write(bytes(4096))
    renamed(path)
    cli.run("recover", str(store), "--from", str(source), "--apply", "--yes").expect(0)
    shutil.rmtree(store / ".rmqctl")
    assert bytes_of(store) == before


def test_a_shorter_copy_is_extended(golden_copy) -> None:
    store = golden_copy("5.3.3/basic/store")
    path = log_of(store)[-1]
    os.truncate(path, 60_000)
    size = path.stat().st_size
    wanted = messages(store)
    renamed(path)
    assert messages(store) == wanted
    plan = cli.run("recover", str(store), "--apply", "--yes", "-o", "json").json()
    assert {"rename", "extend"} <= {action["action"] for action in plan["actions"]}
    assert path.stat().st_size == 65536 > size


@pytest.mark.parametrize("name", ["next", "next.bak"])
def test_the_next_file_of_another_broker(golden_copy, name: str) -> None:
    """It would follow the last file, but its messages are of another broker."""
    store, other = golden_copy("5.3.3/basic/store"), golden_copy("5.3.3/basic/store")
    for path in log_of(store)[3:]:
        path.unlink()
    path = with_host(log_of(other)[3], bytes((10, 1, 1, 1)))
    wanted = messages(store)
    shutil.copy(path, store / "commitlog" / name)
    assert messages(store) == wanted
    plan = cli.run("recover", str(store), "-o", "json").json()
    assert "rename" not in {action["action"] for action in plan["actions"]}


@pytest.mark.parametrize("case", ["there", "two", "far", "other"])
def test_what_does_not_belong_there_is_not_read(golden, golden_copy, case: str) -> None:
    """The file is there; two have its messages; it is not next to the log; another broker's."""
    store = golden_copy("5.3.3/basic/store")
    files = log_of(store)
    if case == "there":
        shutil.copy(files[1], files[1].with_name("copy"))
    elif case == "two":
        shutil.copy(renamed(files[-1]), files[-1].with_name("copy"))
    elif case == "far":
        renamed(files[0])
        files[1].unlink()
    else:
        shutil.copy(min((golden("5.3.3/delay") / "store/commitlog").iterdir()),
                    files[0].with_name("copy"))
    shown = {int(path.name) for path in log_of(store) if path.name.isdigit()}
    assert {place - place % 65536 for place in messages(store)} <= shown
    plan = cli.run("recover", str(store), "--apply", "--yes", "-o", "json").expect(0, 1).json()
    assert "rename" not in {action["action"] for action in plan["actions"]}
    assert {action["target"].split("/")[-1] for action in plan["actions"]
            if action["action"] == "move aside"} == {
        path.split("/")[-1] for path in (
            {"there": ["copy"], "two": ["copy", f"{files[-1].name}.bak"],
             "far": [f"{files[0].name}.bak"], "other": ["copy"]}[case])}
