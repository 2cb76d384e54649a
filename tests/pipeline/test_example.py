"""examples/pipeline runs as its README says; its figures are those of the local engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support import snapshot

pytestmark = [pytest.mark.xdist_group("spark-cluster"), pytest.mark.exhaustive]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "pipeline"
STORE = ROOT / "examples" / "store"
PICTURE = "messages_over_time.png"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(what the example says, the picture it makes)."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("example")
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("SPARK", "PYSPARK", "MPL"))}
    with snapshot.assert_unchanged(STORE):
        done = subprocess.run(
            [sys.executable, str(FOLDER / "messages_over_time.py"), str(STORE), "--png", PICTURE],
            cwd=folder, text=True, capture_output=True, timeout=400,
            env={**environment, "PYTHONPATH": str(ROOT), "MPLCONFIGDIR": str(folder),
                 "SPARK_LOCAL_IP": "127.0.0.1"})
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, folder / PICTURE


def test_it_says_what_the_readme_shows(run):
    readme = (FOLDER / "README.md").read_text()
    assert run[0].strip() == re.search(r"```text\n(.*?)```", readme, re.DOTALL)[1].strip()


def test_the_figures_are_those_of_the_local_engine(run, rmqctl):
    cells = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in run[0].splitlines() if line.startswith("|")]
    by_topic = rmqctl("stats", STORE, "--by", "topic", "-o", "jsonl").jsonl()
    assert {(cell[0], int(cell[2]), int(cell[3])) for cell in cells if len(cell) == 4
            and cell[2].isdigit() and cell[1].startswith("2024-")} == {
        (row["topic"], row["messages"], row["bytes"]) for row in by_topic}
    messages = rmqctl("read", STORE, "-o", "jsonl", "--body", "none").jsonl()
    last = max(STORE.glob("commitlog/*")).name
    late = Counter(message["physical_offset"] >= int(last) for message in messages)
    assert re.findall(r"stream, \w+ run: +(\d+)", run[0]) == [str(late[False]), str(late[True])]


def test_the_picture_is_one_and_the_committed_one_is_small(run):
    from matplotlib import image

    picture, shown = image.imread(run[1]), image.imread(FOLDER / PICTURE)
    assert picture.shape == shown.shape == (420, 900, 4)
    colours = Counter(map(tuple, (picture[:, :, :3] * 255).round().astype(int).reshape(-1, 3)))
    for topic in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00), (0x00, 0x9E, 0x73)):
        assert colours[topic] > 3000, "a topic is not drawn"
    # Fonts differ a little between versions of matplotlib; bars do not.
    bars = {name: (abs(array[:, :, :3] - 1) > 0.3).mean() for name, array in
            {"made": picture, "shown": shown}.items()}
    assert bars["made"] == pytest.approx(bars["shown"], rel=0.05)
    assert (FOLDER / PICTURE).stat().st_size < 60_000
