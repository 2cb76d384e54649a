"""Members of a DLedger group as sources: what is left of our entry decides, else the majority."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.formats.dledger import HEAD_SIZE
from rmqctl.formats.local.message import MAGIC_V1, variant
from tests.repair.test_members import flip
from tests.support import members
from tests.support.cli import run

OURS, THEIRS, THIRD = (word * 20 for word in (b"ours  ", b"other ", b"third "))
TERMS = {OURS: 1, THEIRS: 2, THIRD: 3}
VICTIM, ENTRIES = 10, 40
SIZE = len(members.of(0, 1, 0, bytes(120)))
BODY = HEAD_SIZE + variant(0, MAGIC_V1).head_size
Hurt = Callable[[Path, int], object]


def lay(store: Path, at: int, raw: bytes) -> None:
    members.lay(store / "dledger-n0/data", at, raw)


def bit(store: Path, at: int) -> None:
    path = store / "dledger-n0/data" / f"{at - at % members.SIZE:020d}"
    flip(path, at % members.SIZE)


LEFT: dict[str, Hurt] = {
    "one bit": lambda store, at: bit(store, at + BODY),
    "two bits": lambda store, at: (bit(store, at + BODY), bit(store, at + BODY + 50)),
    "20 bytes": lambda store, at: lay(store, at + BODY, b"x" * 20),
    "zeros": lambda store, at: lay(store, at + BODY, bytes(64)),
    "no body": lambda store, at: lay(store, at + BODY, bytes(120)),
    "the head of the message": lambda store, at: lay(store, at + HEAD_SIZE, bytes(84)),
    "the head of the entry": lambda store, at: lay(store, at, bytes(HEAD_SIZE)),
    "all": lambda store, at: lay(store, at, bytes(SIZE))}


def member(folder: Path, body: bytes, term: int = 1) -> int:
    """A member with another body, or term, in one of its entries; where that is."""
    log = [(1 if number < VICTIM else 3, b"entry %04d" % number) for number in range(ENTRIES)]
    log[VICTIM] = term, body.ljust(120)
    return members.write(folder, log)[VICTIM]


def recovered(store: Path, sources: list[Path], *options: object, code: int = 0) -> dict[str, Any]:
    words = [word for source in sources for word in ("--from", source)]
    done: dict[str, Any] = run("recover", store, *words, *options, "--only", "commitlog", "-o",
                               "json", "--apply", "--yes").expect(code).json()
    return done


def content(store: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((store / "dledger-n0/data").iterdir()))


@pytest.mark.parametrize("hurt", LEFT)
@pytest.mark.parametrize("same", [False, True])
def test_what_is_left_of_ours_decides(hurt: str, same: bool, tmp_path: Path) -> None:
    store, other = tmp_path / "ours", tmp_path / "other"
    at = member(store, OURS)
    whole = content(store)
    member(other, OURS if same else THEIRS)
    LEFT[hurt](store, at)
    before = content(store)
    result = hurt != "all"
    done = recovered(store, [other], code=0 if same or not result else 1)
    if same:
        assert content(store) == whole
        return
    if not result:
        assert content(store) == content(other)
        return
    assert done.get("conflicts", 0) == 1
    assert content(store) == (whole if hurt == "one bit" else before)
    if hurt != "one bit":
        recovered(store, [other], "--prefer", other)
        assert content(store) == content(other)


@pytest.mark.parametrize("order", [(THEIRS, OURS), (OURS, THEIRS)],
                         ids=["other first", "ours first"])
@pytest.mark.parametrize("hurt", ["20 bytes", "zeros", "the head of the message",
                                  "the head of the entry"])
def test_of_two_sources_the_one_counts_that_ours_is_like(
        order: tuple[bytes, bytes], hurt: str, tmp_path: Path) -> None:
    store = tmp_path / "ours"
    at = member(store, OURS)
    whole = content(store)
    LEFT[hurt](store, at)
    sources = [tmp_path / f"other{number}" for number in range(2)]
    for source, body in zip(sources, order, strict=True):
        member(source, body)
    recovered(store, sources)
    assert content(store) == whole
    assert not recovered(store, sources, "--prefer", "ours").get("conflicts", 0)


@pytest.mark.parametrize(("bodies", "chosen"), [
    ((THEIRS, OURS), None), ((OURS, THEIRS), None), ((THEIRS, OURS, OURS), OURS),
    ((OURS, THEIRS, OURS), OURS), ((OURS, OURS, THEIRS), OURS), ((THEIRS, OURS, THIRD), None)],
    ids=lambda value: "-".join(text.split()[0].decode() for text in value)
    if isinstance(value, tuple) else "")
@pytest.mark.parametrize("differs", ["body", "term"])
def test_where_ours_does_not_tell_the_majority_does(
        bodies: tuple[bytes, ...], chosen: bytes | None, differs: str, tmp_path: Path) -> None:
    store = tmp_path / "ours"
    at = member(store, OURS)
    sources = {tmp_path / f"other{number}": body for number, body in enumerate(bodies)}
    for source, body in sources.items():
        if differs == "term":
            member(source, OURS, TERMS[body])
        else:
            member(source, body)
    lay(store, at, bytes(SIZE))
    before = content(store)
    done = recovered(store, [*sources], code=0 if chosen else 1)
    wanted = next((content(source) for source, body in sources.items() if body == chosen), before)
    assert content(store) == wanted
    assert bool(done.get("conflicts", 0)) == (chosen is None)
    if chosen is None:
        for source in sources:
            recovered(store, [*sources], "--prefer", source)
            assert content(store) == content(source)
            run("undo", store, "--yes").expect(0)
