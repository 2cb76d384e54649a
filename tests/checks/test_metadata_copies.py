"""Committed offsets of two copies: `diff` names groups, ``recover --from`` says who is ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.support import snapshot
from tests.support.cli import run
from tests.support.config_tables import GROUP, OFFSETS, committed, offset_table, put, whole

Pair = tuple[Path, Path]


@pytest.fixture
def pair(golden: GoldenFolder, tmp_path: Path) -> Pair:
    """A master and its slave with the same offsets."""
    stores = [whole(snapshot.copy_tree(golden("5.3.3/basic/store"), tmp_path / name), five=True)
              for name in ("master", "slave")]
    return stores[0], stores[1]


def test_equal_offsets_are_no_difference(pair: Pair) -> None:
    master, slave = pair
    answer = run("diff", master, slave, "--whole", "-o", "json").expect(0).json()
    assert answer["summary"]["offsets"] == []
    assert "offsets" not in run("recover", master, "--from", slave).expect(0).err


def test_a_group_that_is_ahead_on_the_slave(pair: Pair) -> None:
    master, slave = pair
    table = committed(slave)
    table[next(iter(table))] |= {"0": 12, "1": 7}
    put(slave, OFFSETS, offset_table(table, five=True))
    answer = run("diff", master, slave, "--whole", "-o", "json").expect(1).json()
    assert answer["summary"]["offsets"] == [
        {"group": GROUP, "a_ahead": 0, "a_messages": 0, "b_ahead": 2, "b_messages": 15}]
    assert any(GROUP in difference["detail"] for difference in answer["differences"])
    assert "differ: billing" in run("diff", master, slave).expect(0).out
    with snapshot.assert_unchanged(master, slave):
        document = run("recover", master, "--from", slave, "-o", "json").expect(0).json()
    note, = [item for item in document["notes"] if "greater committed offsets" in item]
    assert f"{GROUP} (by 15)" in note
    assert not any("greater" in note for note in run(
        "recover", slave, "--from", master, "-o", "json").expect(0).json()["notes"])


def test_offsets_that_come_from_a_copy_are_not_older_than_it(pair: Pair) -> None:
    master, slave = pair
    put(master, OFFSETS, b"")
    answer = run("recover", master, "--from", slave, "-o", "json").expect(0).json()
    assert "config/consumerOffset.json" in {action["target"] for action in answer["actions"]}
    assert not any("greater" in note for note in answer["notes"])
