"""`diff` of members of a DLedger group: who has which entries, where they part, what is damage."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support import members
from tests.support.cli import run
from tests.support.layouts import layout_copy

OLD = [*members.bodies(50), *members.bodies(8, term=2)]


def diff(*stores: Path, code: int = 1) -> dict[str, Any]:
    document: dict[str, Any] = run("diff", *stores, "-o", "json").expect(code).json()
    return document


def entries(document: dict[str, Any]) -> list[str]:
    return [difference["detail"] for difference in document["differences"]
            if difference["kind"] == "entry"]


def test_equal_ones(tmp_path: Path) -> None:
    for name in "abc":
        members.write(tmp_path / name, OLD)
    for stores in ("ab", "abc"):
        document = diff(*(tmp_path / name for name in stores), code=0)
        entry_counts = document["summary"]["entries"]
        assert (entry_counts["equal"], entry_counts["different"],
                entry_counts["divergence"]) == (58, 0, None)
        assert entry_counts["common"]["index"] == 57
        assert document["summary"]["remarks"] == []


def test_three_that_part(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    members.write(a, [*OLD, *members.bodies(6, term=3, length=40)], committed=55)
    starts = members.write(b, [*OLD, *members.bodies(3, term=2, length=40)], committed=52)
    members.write(c, OLD[:54], committed=50)
    members.lay(b / "dledger-n0/data", starts[20] + members.HEAD + 90, b"???")
    document = diff(a, b, c)
    entry_counts = document["summary"]["entries"]
    assert entry_counts["common"] == {"index": 53, "term": 2, "offset": starts[53]}
    assert entry_counts["divergence"] == {"index": 58, "offset": starts[58],
                                          "terms": {"a": 3, "b": 2}}
    assert (entry_counts["newest"], entry_counts["electable"]) == (["a"], ["a", "b"])
    assert entry_counts["committed_index"] == 55
    assert [entry_counts["members"][name]["behind"] for name in "abc"] == [0, 3, 10]
    assert [entry_counts["members"][name]["damaged"] for name in "abc"] == [0, 1, 0]
    assert entry_counts["members"]["b"]["terms"] == [
        {"term": 1, "first_index": 0, "last_index": 49, "start_offset": 0},
        {"term": 2, "first_index": 50, "last_index": 60, "start_offset": starts[50]}]
    assert entries(document) == [
        "entry 20: a: term 1, b: damaged, c: as a",
        "entries 54 to 57: a: term 2, b: as a, c: missing",
        "entries 58 to 60: a: term 3, b: term 2, c: missing",
        "entries 61 to 63: a: term 3, b: missing, c: missing"]
    text = " ".join(document["summary"]["remarks"])
    assert "diverge at entry 58" in text
    assert "2 of them marked as committed" in text
    # Two of them: the messages as well.
    document = diff(a, b)
    assert document["counts"] == [{"kind": "different", "count": 1}, {"kind": "entry", "count": 3},
                                  {"kind": "missing-in-b", "count": 3}]
    assert document["summary"]["entries"]["divergence"]["index"] == 58


def test_committed_on_both_sides_is_no_group(tmp_path: Path) -> None:
    for name, term in (("a", 3), ("b", 4)):
        members.write(tmp_path / name, [*OLD, *members.bodies(6, term=term)])
    text = " ".join(diff(tmp_path / "a", tmp_path / "b")["summary"]["remarks"])
    assert "marked as committed in a and b" in text


def test_a_damaged_head_and_a_field_without_a_checksum(tmp_path: Path) -> None:
    starts = []
    for name in "ab":
        starts = members.write(tmp_path / name, OLD)
    data = tmp_path / "b/dledger-n0/data"
    members.lay(data, starts[30] + 16, struct.pack(">q", 1 << 40))  # the term
    members.lay(data, starts[40] + 40, b"\x77")  # the head's CRC, which nobody computes
    texts = entries(diff(tmp_path / "a", tmp_path / "b"))
    assert texts[0] == "entry 30: a: term 1, b: damaged"
    assert texts[1].startswith("entry 40: a: term 1, b: term 1; their bytes differ")


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_an_engines_member_without_a_file(tmp_path: Path, version: str) -> None:
    store = layout_copy(f"{version}/dledger3", tmp_path)
    other = layout_copy(f"{version}/dledger3", tmp_path / "other")
    (next(other.glob("dledger-*/data")) / f"{24576:020d}").unlink()
    entry_counts = diff(store, other)["summary"]["entries"]
    assert entry_counts["members"]["b"]["damaged"] == entry_counts["different"] > 0
    assert entry_counts["equal"] + entry_counts["different"] == 123
    assert entry_counts["divergence"] is None


def test_what_a_third_must_be(tmp_path: Path) -> None:
    plain = layout_copy("5.3.3/controller", tmp_path)
    result = run("diff", plain, plain, plain).expect(2)
    assert "members of a DLedger group" in result.err
    assert diff(plain, plain, code=0)["summary"]["entries"] is None
