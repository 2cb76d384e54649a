"""A dispatch to a second tier, and to places where no tier may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import read as read_metadata
from tests.conftest import GoldenFolder, Runner

ID = "5.3.3/tiered/store"
METADATA = f"config/{names.METADATA_NAME}"


@pytest.fixture
def store(golden_copy: GoldenFolder) -> Path:
    return golden_copy(ID)


def _bytes(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("lost", [False, True], ids=["with its own", "its own is elsewhere"])
def test_a_second_tier_leaves_the_first_its_map(rmqctl: Runner, store: Path, tmp_path: Path, *,
                                                lost: bool) -> None:
    if lost:
        (store / names.TIER_FOLDER).rename(tmp_path / "mounted")
    before = _bytes(store)
    second = tmp_path / "second"
    for count in (300, 0):
        report = rmqctl("tiered", "dispatch", str(store), str(second), "--index-slots", "64",
                        "--index-max", "180", "-o", "json").expect(0)
        assert report.json()["messages"] == count
        assert f"uses the metadata in {second / METADATA}" in report.err
    assert _bytes(store) == before
    rmqctl("tiered", "verify", str(second), "--local", str(store)).expect(0)
    assert read_metadata((second / METADATA).read_bytes()).segments[names.COMMIT_LOG]


def test_a_second_tier_that_was_begun_is_known_again(rmqctl: Runner, store: Path,
                                                     tmp_path: Path) -> None:
    """Killed before its metadata was there: the folder is enough."""
    before = _bytes(store)
    second = tmp_path / "second"
    rmqctl("tiered", "dispatch", str(store), str(second), "--no-index").expect(0)
    for path in (second / "config").iterdir():
        path.unlink()
    assert rmqctl("tiered", "dispatch", str(store), str(second), "--no-index", "--broker",
                  "broker-a").code in (0, 6)
    assert _bytes(store) == before


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/x", "config", "index",
                                    names.LOCAL_INDEX_FOLDER])
@pytest.mark.parametrize("dry", [False, True])
def test_a_tier_in_the_stores_own_folders_is_refused(rmqctl: Runner, store: Path, folder: str, *,
                                                     dry: bool) -> None:
    before = _bytes(store)
    report = rmqctl("tiered", "dispatch", str(store), str(store / folder),
                    *(["--dry-run"] if dry else [])).expect(6)
    assert "of the store itself" in report.err
    assert _bytes(store) == before


@pytest.mark.parametrize("command", [
    ["ls"], ["verify"], ["read"], ["stats"], ["query", "key", "--topic", "T", "--key", "k"],
    ["query", "time", "--topic", "T", "--queue", "0", "--time", "0"],
    ["query", "offset", "--topic", "T", "--queue", "0", "--offset", "0"]])
def test_a_broker_that_is_not_there_is_said(rmqctl: Runner, store: Path,
                                            command: list[str]) -> None:
    report = rmqctl("tiered", *command, str(store), "--broker", "nope").expect(2)
    assert "its brokers: broker-a" in report.err


def test_the_kinds_of_bytes_add_up_as_in_verify(rmqctl: Runner, store: Path) -> None:
    answer = rmqctl("tiered", "verify", str(store), "-o", "json").expect(0).json()
    local = rmqctl("verify", str(store), "--only", "commitlog,consumequeue,index", "-o",
                   "json").expect(0).json()
    cover = answer["coverage"]
    assert set(local["coverage"]) - {"index_entries", "messages_lost_in_repairs",
                                     "tiered"} <= set(cover)
    assert cover["bytes_total"] == sum(cover[f"bytes_{kind}"] for kind in (
        "in_messages", "blank", "zero", "damaged"))
    # The same messages with the same witnesses.
    assert cover["bytes_unverifiable"] == local["coverage"]["bytes_unverifiable"]
