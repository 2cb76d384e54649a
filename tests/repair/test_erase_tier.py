"""`delete` in a store with a tier: nothing leads to erased messages, everything else is found."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.tiered.index.index_file import examine
from rmqctl.ext.tiered.index.keys import key_set
from rmqctl.formats.tiered.index import NO_TOPIC, both_hashes
from tests.conftest import GoldenFolder
from tests.support import snapshot
from tests.support.cli import run

TOPIC, KEY = "TP_user_Topic", "cart-97"


@pytest.fixture(params=["store", "store-live"])
def root(request: pytest.FixtureRequest, golden: GoldenFolder, tmp_path: Path) -> Path:
    root = tmp_path / "store"
    shutil.copytree(golden(f"5.3.3/tiered/{request.param}"), root)
    (root / "abort").unlink(missing_ok=True)
    return root


def messages(root: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = run("tiered", "read", root, "-o", "jsonl").expect(0).jsonl()
    return rows


def keys(row: dict[str, Any]) -> list[tuple[str, str]]:
    properties = row["properties"]
    return [(row["topic"], key)
            for key in key_set(properties.get("UNIQ_KEY"), properties.get("KEYS"))]


def items(root: Path) -> list[tuple[int, int]]:
    """(topic id, key hash) of the items of all index files."""
    items = []
    for path in (*root.rglob("INDEX/*"), *root.glob("tiered_index_file/[0-9]*")):
        data = path.read_bytes()
        file = examine(lambda at, size, data=data: data[at:at + size], len(data), path.name,
                       status="UPLOADED" if path.parent.name == "INDEX" else "UNSEALED")
        for _, block in file.blocks():
            items += zip(block["topic_id"].tolist(), block["key_hash"].tolist(), strict=True)
    return items


def hashes(pairs: set[tuple[str, str]]) -> set[int]:
    return {number for pair in pairs for number in both_hashes(*pair)}


def test_a_key_of_an_erased_message_leads_nowhere(root: Path) -> None:
    before = messages(root)
    gone = [row for row in before if (TOPIC, KEY) in keys(row)]
    left = {pair for row in before if row not in gone for pair in keys(row)}
    lost = {pair for row in gone for pair in keys(row)} - left
    assert gone
    assert hashes(lost) & {key_hash for _, key_hash in items(root)}
    count, taken = len(items(root)), snapshot.take(root)
    run("delete", "key", root, KEY, "--topic", TOPIC, "--apply", "--yes").expect(0)
    for topic, key in lost:
        run("tiered", "query", "key", root, "--topic", topic, "--key", key).expect(1)
    topic, key = next(iter(left - lost))
    run("tiered", "query", "key", root, "--topic", topic, "--key", key).expect(0)
    after = items(root)
    assert len(after) == count
    assert not {key_hash for number, key_hash in after if number != NO_TOPIC} & (
        hashes(lost) - hashes(left))
    for words in (("tiered", "verify"), ("verify",)):
        assert "no damage found" in run(*words, root).expect(0).out
    assert "nothing to do" in run("tiered", "recover", root).expect(0).out
    run("undo", root, "--yes").expect(0)
    assert items(root) != after
    assert [line for line in taken.differences(snapshot.take(root))
            if ".rmqctl" not in line and ": . (" not in line] == []


def test_a_topic_goes_from_the_tier(root: Path) -> None:
    left = [row for row in messages(root) if row["topic"] != TOPIC]
    lost = {key_hash for row in messages(root) if row["topic"] == TOPIC
            for key_hash in hashes({*keys(row)})} - hashes({
                pair for row in left for pair in keys(row)})
    done = run("delete", "topic", root, TOPIC, "--apply", "--yes", "--purge", "-o", "json")
    assert any("tieredstore" in line["file"] for line in done.expect(0).json()["erased"])
    assert messages(root) == left
    assert not lost & {key_hash for number, key_hash in items(root) if number != NO_TOPIC}
    assert not [path for path in root.rglob("*") if TOPIC in path.name]
    assert not [path for path in (root / "config").iterdir() if TOPIC in path.read_text()]
    assert "no damage found" in run("tiered", "verify", root).expect(0).out
    assert "nothing to do" in run("tiered", "recover", root).expect(0).out


def test_a_damaged_index_file_of_a_tier_is_named(root: Path) -> None:
    [path, *_] = root.rglob("INDEX/*")
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])
    done = run("delete", "key", root, KEY, "--topic", TOPIC).expect(0)
    assert path.name in done.err
    assert "tiered recover" in done.err
