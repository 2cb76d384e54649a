"""recover of a DLedger member from another one: bytes as they were, and nothing where logs part."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.store.log.chain import Chain
from rmqctl.store.store import Store
from tests.support import members
from tests.support.cli import run
from tests.support.layouts import layout_copy, layout_set
from tests.support.snapshot import assert_unchanged

LOG = ("--only", "commitlog")


def data_of(store: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(next(store.glob("dledger-*/data")).iterdir())}


def actions(store: Path, *words: object, code: int = 0) -> list[dict[str, Any]]:
    plan: list[dict[str, Any]] = run("recover", store, *words, "-o", "json").expect(
        code).json()["actions"]
    return plan


def flip(file: Path, at: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 8]))


def lose(store: Path, name: str) -> None:
    (next(store.glob("dledger-*/data")) / name).unlink()


def damage(store: Path, number: int, at: int, length: int = 1) -> None:
    file = sorted(next(store.glob("dledger-*/data")).iterdir())[number]
    for position in range(at, at + length):
        flip(file, position)


def mark_of(store: Path) -> int:
    with Store.open(store) as opened:
        chain = Chain(opened.log.files)
        for _ in chain:
            pass
    return min(chain.marks)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a body": lambda store: damage(store, 1, 9000),
    "a head": lambda store: damage(store, 0, 2, 40),
    "a page": lambda store: damage(store, 1, 4096, 4096),
    "properties, which no CRC covers": lambda store: damage(store, 0, 24112, 10),
    "the end mark of a file": lambda store: damage(store, 0, mark_of(store), 8),
    "the first file": lambda store: lose(store, f"{0:020d}"),
    "a file in the middle": lambda store: lose(store, f"{24576:020d}"),
    "the last file": lambda store: lose(store, f"{49152:020d}"),
    "the last two": lambda store: (lose(store, f"{24576:020d}"), lose(store, f"{49152:020d}"))[0],
    "a torn tail": lambda store: damage(store, 2, 16800, 57),
    "the index": lambda store: shutil.rmtree(next(store.glob("dledger-*/index")))}


@pytest.mark.parametrize(("kind", "version"), [
    (kind, ("4.9.3", "5.3.3")[number % 2]) for number, kind in enumerate(DAMAGES)])
def test_what_is_damaged_comes_back(tmp_path: Path, kind: str, version: str) -> None:
    sound = layout_set(f"{version}/dledger3") / "store"
    store = layout_copy(f"{version}/dledger3", tmp_path)
    DAMAGES[kind](store)
    with assert_unchanged(sound):
        prefer = ["--prefer", sound] if kind == "the first file" else []
        run("recover", store, "--from", sound, *prefer, "--apply", "--yes").expect(0)
    assert data_of(store) == data_of(sound)
    run("verify", store).expect(0)
    run("diff", store, sound).expect(0)
    index, other = (next(root.glob("dledger-*/index")) / f"{0:020d}" for root in (store, sound))
    with index.open("rb") as ours, other.open("rb") as theirs:
        assert ours.read(8192) == theirs.read(8192)
    assert index.stat().st_size == other.stat().st_size
    assert index.stat().st_blocks < 1000
    assert actions(store, "--from", sound) == []
    run("undo", store, "--yes").expect(0)
    assert data_of(store) != data_of(sound) or kind == "the index"


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_the_index_is_the_engines(tmp_path: Path, version: str) -> None:
    """What DLedger makes anew at its start."""
    store = layout_copy(f"{version}/dledger-crash-noindex", tmp_path, "before")
    after = layout_set(f"{version}/dledger-crash-noindex") / "after"
    run("recover", store, *LOG, "--apply", "--yes").expect(0)
    path, engines = (root / f"dledger-n0/index/{0:020d}" for root in (store, after))
    with path.open("rb") as ours, engines.open("rb") as theirs:
        assert ours.read(1 << 20) == theirs.read(1 << 20)
    assert path.stat().st_size == engines.stat().st_size
    flip(path, 32 * 20 + 7)
    action, = actions(store, *LOG)
    assert (action["action"], action["to"]) == ("rebuild", 1)


def test_behind_the_plain_files_of_before(tmp_path: Path) -> None:
    sound = layout_set("5.3.3/dledger-mixed") / "store"
    store = layout_copy("5.3.3/dledger-mixed", tmp_path)
    lose(store, f"{98304:020d}")
    damage(store, 1, 3000)
    run("recover", store, *LOG, "--from", sound, "--apply", "--yes").expect(0)
    assert data_of(store) == data_of(sound)
    assert len(list((store / "commitlog").iterdir())) == 2


def test_only_what_is_committed_goes_behind_the_end(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    log = members.bodies(60)
    members.write(a, log[:40])
    members.write(b, log, committed=49)
    result = run("recover", a, *LOG, "--from", b, "--apply", "--yes").expect(0)
    assert "10 entries after its last committed entry" in result.err
    assert len(run("read", a, "-o", "jsonl").expect(0).jsonl()) == 50
    assert actions(a, *LOG, "--from", b) == []


def test_where_the_logs_part_a_person_decides(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    log = members.bodies(40)
    ours, theirs = ([*log, *members.bodies(60, term, length)] for term, length in ((2, 20), (3, 8)))
    starts = members.write(a, ours)
    members.write(b, theirs[:60])
    members.lay(a / "dledger-n0/data", starts[10] + 136, b"?" * 8)
    before = data_of(a)
    plan = actions(a, *LOG, "--from", b, code=1)
    assert [action["action"] for action in plan] == ["conflict", "copy"]
    assert plan[0]["proof"]["terms"] == [2, 3]
    run("recover", a, *LOG, "--from", b, "--apply", "--yes").expect(1)
    assert [row["body"].encode() for row in run("read", a, "-o", "jsonl").expect(0).jsonl()] == [
        body for _, body in ours]
    run("undo", a, "--yes").expect(0)
    assert data_of(a) == before
    run("recover", a, *LOG, "--from", b, "--prefer", "ours", "--apply", "--yes").expect(0)
    run("undo", a, "--yes").expect(0)
    run("recover", a, *LOG, "--from", b, "--prefer", b, "--apply", "--yes").expect(0)
    assert [row["body"].encode() for row in run("read", a, "-o", "jsonl").expect(0).jsonl()] == [
        body for _, body in theirs[:60]]
    run("diff", a, b).expect(0, 1)
    assert data_of(a) == data_of(b)
    run("undo", a, "--yes").expect(0)
    assert data_of(a) == before


def test_nothing_is_put_in_place_of_what_is_lost(tmp_path: Path) -> None:
    store = layout_copy("5.3.3/dledger3", tmp_path)
    damage(store, 1, 9000, 20)
    assert "--from" in run("recover", store).expect(6).err
    plan = run("recover", store, *LOG, "-o", "json").expect(1).json()
    assert plan["actions"] == []
    assert [message["known_by"] for message in plan["messages_lost"]] == ["entry"]


def test_what_is_no_source(tmp_path: Path) -> None:
    store = layout_copy("5.3.3/dledger3", tmp_path)
    plain = layout_set("5.3.3/controller") / "store"
    assert "another member" in run("recover", store, "--from", plain).expect(3).err
    other = layout_set("5.3.3/dledger") / "store"
    assert "another group" in run("recover", store, "--from", other).expect(6).err
    run("recover", store, "--from", store).expect(2)


@pytest.mark.parametrize("only", [LOG, ()])
def test_who_named_a_member_is_not_told_to_name_one(tmp_path: Path, only: tuple[str, ...]) -> None:
    ours, theirs = (layout_copy("5.3.3/dledger3", tmp_path / name) for name in ("a", "b"))
    for store in (ours, theirs):
        damage(store, 1, 9000, 20)
    alone = run("recover", ours, *only).expect(1, 6)
    assert "--from" in alone.out + alone.err, alone.describe()
    named = run("recover", ours, *only, "--from", theirs).expect(1, 6)
    text = " ".join((named.out + named.err).replace(f"--from {theirs}", "").split())
    assert "further member of the group" in text, named.describe()
    assert "--from" not in text, named.describe()
