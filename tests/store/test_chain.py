"""The chain of a DLedger log: over damage, and up to where a cut member ends."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rmqctl.store.log.chain import Chain, ChainEntries
from rmqctl.store.log.dledger import UnitReader
from rmqctl.store.store import Store
from tests.support import members
from tests.support.cli import run
from tests.support.layouts import layout_set


def chain_of(root: Path) -> tuple[Chain, ChainEntries]:
    with Store.open(root) as store, UnitReader(store.nodes[0]) as units:
        chain = Chain(store.log.files, units)
        pages = list(chain)
    chain_entries = pages[0]
    for page in pages[1:]:
        chain_entries = chain_entries.plus(page)
    return chain, chain_entries


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_the_engines(version: str) -> None:
    root = layout_set(f"{version}/dledger3") / "store"
    chain, chain_entries = chain_of(root)
    assert chain_entries.number.tolist() == list(range(123))
    assert chain_entries.whole.all()
    assert set(chain_entries.term.tolist()) == {1, 2}
    assert chain.last is not None
    assert (chain.last.number, chain.left) == (122, 0)


@pytest.mark.parametrize("length", [20, 52, 8])
@pytest.mark.parametrize("index", [True, False])
def test_what_a_cut_left_is_not_read(tmp_path: Path, length: int, index: bool) -> None:
    """Also where the entries that are left begin just behind the last new one (20: equal sizes)."""
    old = members.bodies(58)
    members.write(tmp_path, old)
    new = [*old[:50], *members.bodies(3, term=2, length=length)]
    members.write(tmp_path, new, start=50)
    if not index:
        (tmp_path / f"dledger-n0/index/{0:020d}").unlink()
    read = run("read", tmp_path, "-o", "jsonl").expect(0)
    assert [row["body"].encode() for row in read.jsonl()] == [body for _, body in new]
    assert "entry 52 of term 2" in read.err
    judged = run("verify", tmp_path, "--only", "commitlog", "-o", "json").expect(0, 1)
    categories = {finding["category"] for finding in judged.json()["findings"]}
    assert "dledger-left-over" in categories
    assert not categories & {"dledger-chain", "record-damaged", "torn-tail"}
    # The next entries are written over it.
    members.write(tmp_path, [*new, *members.bodies(30, term=2)], start=53)
    with Store.open(tmp_path) as store:
        assert store.left_over is None


@pytest.mark.parametrize(("field", "value"), [
    ((8, ">q"), 4000), ((8, ">q"), 3), ((16, ">q"), 1 << 40), ((16, ">q"), 0)])
@pytest.mark.parametrize("number", [0, 30, 59])
@pytest.mark.parametrize("index", [True, False])
def test_a_damaged_head_ends_nothing(tmp_path: Path, field: tuple[int, str], value: int,
                                     number: int, index: bool) -> None:
    starts = members.write(tmp_path, members.bodies(60))
    members.lay(tmp_path / "dledger-n0/data", starts[number] + field[0],
                struct.pack(field[1], value))
    if not index:
        (tmp_path / f"dledger-n0/index/{0:020d}").unlink()
    rows = run("read", tmp_path, "-o", "jsonl").expect(0).jsonl()
    assert len(rows) == 60 - (number == 59 and not index and value != 1 << 40)
    _, chain_entries = chain_of(tmp_path)
    others = [index for index in range(60) if index != number]
    assert [data for data in chain_entries.number.tolist() if data in others] == others


def test_an_entry_without_its_head(tmp_path: Path) -> None:
    starts = members.write(tmp_path, members.bodies(60))
    members.lay(tmp_path / "dledger-n0/data", starts[30], bytes(60))
    chain, chain_entries = chain_of(tmp_path)
    assert chain_entries.number.tolist() == [*range(30), *range(31, 60)]
    assert chain.left == 0
