"""A cut log whose index files are out of order by name: a clock was set back between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adversary.writer import EPOCH, Writer
from tests.repair.test_mend_time import HOURS_AHEAD, SIZES, filled
from tests.support.cli import run

COUNT = 63
"""Messages that fill two index files to the last entry."""


def of(count: int) -> Writer:
    """The second index file has the name of an earlier time than the first, a third one a name
    between theirs.
    """
    times = {0: EPOCH + HOURS_AHEAD, COUNT: EPOCH + HOURS_AHEAD // 2}
    return filled(times={number: when for number, when in times.items() if number < count},
                  count=count)


def index(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store / "index").iterdir()}


@pytest.mark.parametrize(("count", "kept"), [
    *((COUNT, kept) for kept in (1, 20, 31, 32, 50, 62)),
    *((COUNT + 10, kept) for kept in (20, 33, 62, 63, 64, 66))])
def test_cut_as_if_never_put(tmp_path: Path, count: int, kept: int) -> None:
    store = of(count).write(tmp_path / "s")
    files = sorted((store / "index").iterdir())
    begins = [int.from_bytes(path.read_bytes()[16:24], "big") for path in files]
    assert begins != sorted(begins)
    to = of(count).puts[kept].physical
    before = index(store)

    run("truncate", store, "--to-phy", str(to), "--apply", "--yes", *SIZES).expect(0)
    assert index(store) == index(of(kept).write(tmp_path / "wanted"))
    findings = run("verify", store, *SIZES, "-o", "json").expect(0).json()["findings"]
    assert {finding["category"] for finding in findings} <= {"lost-in-repair"}
    assert run("recover", store, *SIZES, "-o", "json").expect(0).json()["actions"] == []

    run("undo", store, "--yes").expect(0)
    assert index(store) == before
