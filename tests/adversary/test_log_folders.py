"""A damaged multi-path log is still one: no folder of it goes missing with one of its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl.formats.local import message
from rmqctl.store import log_folders
from tests.adversary.writer import Layout, Writer
from tests.conftest import GoldenFolder, Runner

STORE = "5.3.3/multipath/store"
PLACE = message.fixed_field("physical_offset").offset


def shorten(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:10_000])


def flip_the_first_place(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[PLACE + 5] ^= 4
    path.write_bytes(data)


def blank_the_first_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[:4096] = bytes(4096)
    path.write_bytes(data)


def blank(path: Path) -> None:
    path.write_bytes(bytes(len(path.read_bytes())))


def log_folders_of(store: Path) -> list[str]:
    """The log's folders, relative to the store."""
    return [str(Path(folder).relative_to(store)) for folder in log_folders.find(str(store))]


@pytest.mark.parametrize("harm", [shorten, flip_the_first_place, blank_the_first_page, blank])
@pytest.mark.parametrize("name", ["cl1/00000000000000000000", "cl1/00000000000000098304",
                                  "cl1/00000000000000147456", "cl2/00000000000000024576",
                                  "cl2/00000000000000122880", "cl2/00000000000000172032"])
def test_one_damaged_file_costs_no_other(name: str, harm: Callable[[Path], None],
                                         golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    store = golden_copy(STORE)
    path = store / name
    path.chmod(0o600)
    inside = range(int(path.name), int(path.name) + path.stat().st_size)
    harm(path)
    assert log_folders_of(store) == ["cl1", "cl2"]
    plan = rmqctl("recover", store, "-o", "json").json()
    assert all(row["physical_offset"] in inside for row in plan["messages_lost"])
    targets = {row["target"] for row in plan["actions"] if row["target"].startswith("cl")}
    assert targets <= {name}


def test_another_log_beside_is_none_of_it(golden_copy: GoldenFolder) -> None:
    """Its places are not those of its names, in most of its files."""
    store = golden_copy(STORE)
    other = store / "copies"
    other.mkdir()
    for number in range(3):
        data = (store / "cl1/00000000000000000000").read_bytes()
        (other / f"{196608 + number * 24576:020}").write_bytes(data)
    assert log_folders_of(store) == ["cl1", "cl2"]


@pytest.mark.parametrize("left", ["all", "the log alone"])
def test_the_folder_around_a_store_is_none(left: str, golden_copy: GoldenFolder, rmqctl: Runner,
                                           tmp_path: Path) -> None:
    store = golden_copy("5.3.3/basic/store")
    if left != "all":
        away = tmp_path / "elsewhere" / "away"
        away.mkdir(parents=True)
        for path in store.iterdir():
            if path.name != "commitlog":
                path.rename(away / path.name)
    around = store.parent
    for command in ("info", "verify", "recover", "preflight"):
        assert f"did you mean {store}?" in rmqctl(command, around).expect(3).err


def test_a_folder_that_is_not_mounted_gets_no_fillers(tmp_path: Path, rmqctl: Runner) -> None:
    """Its files may be there tomorrow; who names the folders says that they are all."""
    writer = Writer(Layout(log_file_size=4096, index_slots=16, index_entries=64))
    for number in range(70):
        writer.put("orders", b"x" * 100, keys=f"k{number}")
    store = writer.write(tmp_path / "store")
    folders = store / "disk1", tmp_path / "disk2"
    for folder in folders:
        folder.mkdir()
    for number, path in enumerate(sorted((store / "commitlog").iterdir())):
        path.rename(folders[number % 2] / path.name)
    (store / "commitlog").rmdir()
    (tmp_path / "far" / "away").mkdir(parents=True)
    folders[1].rename(tmp_path / "far" / "away" / "disk2")
    assert log_folders_of(store) == ["disk1"]
    stderr = rmqctl("recover", store).expect(6).err
    assert "not mounted" in stderr
    assert "physical offsets 4096 to 8192" in stderr
    plan = rmqctl("recover", store, "--commitlog-dir", folders[0], "-o", "json").expect(1).json()
    assert plan["messages_lost"]
