"""Log files that somebody compressed, to free space: `recover` does not count their messages as
lost.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pytest

from tests.repair.accidents import bytes_of
from tests.repair.test_renamed_files import log_of
from tests.support import cli

PACKERS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


def packed(path: Path, how: str) -> Path:
    result = path.with_name(f"{path.name}.{how}")
    result.write_bytes(PACKERS[how](path.read_bytes()))
    path.unlink()
    return result


@pytest.mark.parametrize("how", PACKERS)
@pytest.mark.parametrize("which", [[0], [2], [0, 1], [0, 1, 2, 3, 4]])
def test_recover_refuses(golden_copy, how: str, which: list[int]) -> None:
    store = golden_copy("5.3.3/basic/store")
    files = log_of(store)
    paths = [packed(files[number], how) for number in which]
    before = bytes_of(store)
    for only in ((), ("--only", "consumequeue,index")):
        refused = cli.run("recover", str(store), *only, "--apply", "--yes").expect(6)
        assert f"{paths[0].name}: compressed with {how}" in refused.err
        assert "Uncompress it first" in refused.err
    assert bytes_of(store) == before
    findings = cli.run("verify", str(store), "-o", "json").json()["findings"]
    assert sum(f"compressed with {how}" in finding["detail"] for finding in findings) == len(which)
    doctor = " ".join(cli.run("doctor", str(store)).out.split())
    assert "Uncompress it first" in doctor


def test_a_copy_beside_its_file_is_moved_aside(golden_copy) -> None:
    """Nothing is missing."""
    store = golden_copy("5.3.3/basic/store")
    path = log_of(store)[0]
    data = path.read_bytes()
    packed(path, "gzip")
    path.write_bytes(data)
    plan = cli.run("recover", str(store), "--apply", "--yes", "-o", "json").expect(0).json()
    assert [action["action"] for action in plan["actions"]] == ["move aside"]
