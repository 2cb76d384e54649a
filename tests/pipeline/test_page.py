"""docs/explanation/pipeline.md: its programs run, its tables and lists are those of the program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rmqctl.sql import options
from tests.support import snapshot

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "pipeline.md").read_text()
STORE = ROOT / "examples" / "store"
_PROGRAM = re.compile(r"```py\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)
_SHELL = re.compile(r"```sh\n(rmqctl[^`]*?)```\n+```text\n(.*?)```", re.DOTALL)


def section(title: str) -> str:
    """What stands below a heading of the page."""
    result = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert result is not None, title
    return result[1]


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def rows(text: str) -> list[list[str]]:
    """The cells of the Markdown tables in a text, without their heads."""
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
             for line in text.splitlines() if line.startswith("|")]
    heads = {number for number, cells in enumerate(cells) if set(cells[0]) <= set("-: ")}
    return [cells for number, cells in enumerate(cells)
            if number not in heads and number + 1 not in heads]


def test_all_options_of_reading_are_there():
    named = {name for cells in rows(section("Options of reading")) for name in spans(cells[0])}
    assert named == {*options.NAMES, *options.FOLLOWING} - {"paths"}


def test_what_is_pushed_down_is_what_the_table_says():
    from rmqctl.sql.pushdown import Filters

    named = {spans(cells[0])[0] for cells in rows(section("What is not read")) if "`" in cells[0]}
    assert named == set(Filters(frozenset([b"t"]), frozenset([0]), 0, 0, 0, 0).columns)


def test_all_options_of_writing_are_there():
    from rmqctl.ext.spark.source.write import OPTIONS

    named = {span.split("=")[0] for span in spans(section("Writing"))}
    assert {*OPTIONS} - {"path"} <= named


def test_all_settings_of_a_session_are_there(tmp_path):
    from rmqctl.ext.spark import session

    text = section("Settings of rmqctl")
    for name, value in session._settings(str(tmp_path), "log", 2, {}).items():
        if name == "spark.driver.extraJavaOptions":
            shown = [part for part in value.split() if part.startswith("-XX")]
            assert shown
            assert all(part in text for part in shown)
        else:
            assert name in text, name
        if f"`{name}=" in text:
            assert f"{name}={value}" in text, name


def test_the_bounds_are_those_of_the_program():
    from rmqctl.commands.shared.spark_options import AUTO_FROM
    from rmqctl.sql import planning

    assert f"{AUTO_FROM >> 30} GiB or more" in PAGE
    assert (f"at least {planning.MIN_SIZE >> 20} MiB and at most {planning.MAX_SIZE >> 30} GiB"
            in PAGE)
    assert "an hour's allowance" in PAGE
    assert planning.CLOCK_SKEW == 3_600_000


@pytest.mark.exhaustive
def test_the_programs_run(spark, tmp_path, capfd):
    for name in ("a", "b"):
        snapshot.copy_tree(STORE, tmp_path / "brokers" / name / "store")
    (tmp_path / "data").mkdir()
    places = {"/mnt/brokers": str(tmp_path / "brokers"), "/data": str(tmp_path / "data"),
              "examples/store": str(STORE)}
    names_in_program: dict[str, object] = {}
    compared = 0
    for program, text in _PROGRAM.findall(PAGE):
        code = program
        for shown, real in places.items():
            code = code.replace(shown, real)
        capfd.readouterr()
        exec(compile(code, "pipeline.md", "exec"), names_in_program)
        if text:
            assert capfd.readouterr().out.strip() == text.strip()
            compared += 1
    assert compared
    assert names_in_program["spark"] is not None
    followed = spark.read.parquet(str(tmp_path / "data" / "messages"))
    assert followed.count() == 1200
    assert followed.select("store").distinct().count() == 2
    written = spark.read.format("rocketmq").schema("topic string").load(
        str(tmp_path / "data" / "new"))
    assert [tuple(row) for row in written.groupBy("topic").count().collect()] == [
        ("TP_fraud_Topic", 195)]


@pytest.mark.exhaustive
@pytest.mark.xdist_group("spark-cluster")
def test_the_query_says_what_the_page_shows():
    (command,) = _SHELL.findall(PAGE)
    done = subprocess.run(
        ["sh", "-c", command[0].replace("rmqctl ", f"{sys.executable} -m rmqctl ", 1)], cwd=ROOT,
        text=True, capture_output=True, timeout=300,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rstrip() for line in done.stdout.splitlines()] == command[1].splitlines()
