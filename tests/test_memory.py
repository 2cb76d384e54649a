"""No command needs more memory of its own than 200 MiB, on a store that is larger than that.

Its own is what is not pages of mapped files: these the system takes back when it needs them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import process
from benchmarks.writing import json_lines
from tests.support.kernels import compiled_only
from tests.support.share import sample

MOST_MIB = 200
LOG_SIZE = "288MiB"
BODY = 100
"""Bytes of a body: of small messages there are more, with more keys and rows."""
LINES = 60_000
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("memory"), compiled_only]

COMMANDS = {
    "verify": "verify {store} --jobs 2",
    "stats": "stats {store} --by key --jobs 2",
    "recover": "recover {bare} --only consumequeue,index --jobs 2",
    "read": "read {store} -o jsonl",
    "carve": "carve {store}/commitlog/00000000000000000000 --summary",
    "export": "pipeline export {store} --out {new} --engine local --jobs 2",
    "dispatch and compaction": "tiered dispatch {store} {new}/tier --broker b --seal-index"
                               " --metadata {new}/root/config/tieredStoreMetadata.json",
    "append": "append {empty} {lines} --disk-watermark 100%",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    root = tmp_path_factory.mktemp("memory")
    paths_by_name = {name: root / name for name in ("store", "bare", "empty", "lines")}
    result = process.run(process.python("-m", "benchmarks.make_store", "--profile", str(BODY),
                                        "--out", str(paths_by_name["store"]), "--log-size",
                                        LOG_SIZE))
    assert not result.exit_code, result.stderr
    paths_by_name["bare"].mkdir()
    for name in ("commitlog", "config"):
        (paths_by_name["bare"] / name).symlink_to(paths_by_name["store"] / name)
    json_lines(paths_by_name["lines"], LINES, BODY)
    yield paths_by_name
    shutil.rmtree(root)


@pytest.mark.parametrize("name", sample(COMMANDS, 2, "commands whose memory is measured"))
def test_memory(places: dict[str, Path], tmp_path: Path, name: str,
                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SAMPLE_S", 0.005)
    command = process.python("-m", "rmqctl")
    if name == "append":
        assert not process.run([*command, "init", str(places["empty"])]).exit_code
    used = process.run([*command, *COMMANDS[name].format_map(
        {**places, "new": tmp_path / "new"}).split()], discards=True)
    assert used.exit_code in (0, 1), used.stderr
    assert 15 < used.anon_mib < MOST_MIB
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
