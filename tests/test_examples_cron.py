"""The recipes of examples/cron: scripts are run on small stores, units are read by systemd."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rmqctl.commands import REGISTRY
from tests.adversary.writer import Layout, Writer
from tests.support import snapshot
from tests.test_examples import EXAMPLES, ROOT, STORE, needs_bash, run
from tests.track_record import build, stores

CRON = EXAMPLES / "cron"
SCRIPTS = sorted(CRON.glob("*.sh"))
UNITS = sorted(path for path in (CRON / "systemd").rglob("*") if path.is_file())
COMMANDS = {spec.name for spec in REGISTRY}
needs_recover = pytest.mark.skipif(("recover",) not in COMMANDS, reason="there is no recover yet")
pytestmark = needs_bash


@pytest.fixture
def script(tmp_path):
    """``script("kept.sh", "30", store=S, RMQCTL_X="y")``: runs it, with a program of one word."""
    program = tmp_path / "bin" / "rmqctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmqctl "$@"\n')
    program.chmod(0o755)

    def once(name, *words, store=STORE, **variables):
        return run(CRON / name, *words, cwd=tmp_path, PYTHONPATH=str(ROOT),
                   **{"RMQCTL": str(program), "RMQCTL_STORE": str(store), **variables})

    return once


@pytest.fixture
def fake(tmp_path):
    """A program that says something and ends with an exit code."""
    def make_program(code, output="said"):
        program = tmp_path / f"fake-{code}"
        echo = f"echo '{output}'\n" if output else ""
        program.write_text(f'#!/bin/sh\necho "$@" >>"{tmp_path}/called"\n{echo}exit {code}\n')
        program.chmod(0o755)
        return str(program)

    return make_program


@pytest.fixture
def record(golden, tmp_path):
    """A store of the track record."""
    def build_store(word):
        case = stores.find(word)
        return build.build(case, golden(case.base), tmp_path / case.name)

    return build_store


# -- all scripts -----------------------------------------------------------------------------------


def test_all_are_covered_here_or_in_test_examples():
    here = Path(__file__).read_text() + (ROOT / "tests" / "test_examples.py").read_text()
    for script in (*SCRIPTS, *UNITS):
        assert script.name in here, script
        assert script.name in (CRON / "README.md").read_text(), script


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_can_be_run_and_stops_at_what_is_not_set(path, script):
    assert os.access(path, os.X_OK)
    text = path.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert re.search(r"^set -e?uo pipefail$", text, re.MULTILINE)
    done = script(path.name, RMQCTL_STORE="")
    assert done.returncode != 0
    assert "name the store" in done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_is_content(path):
    done = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


# -- preflight.sh ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["warn", "refuse"])
def test_a_start_that_costs_nothing_goes_on_in_silence(script, mode):
    with snapshot.assert_unchanged(STORE):
        done = script("preflight.sh", mode)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_start_that_would_destroy_is_refused(script, record):
    root = record("1231")
    with snapshot.assert_unchanged(root):
        warned = script("preflight.sh", "warn", store=root)
        refused = script("preflight.sh", "refuse", store=root)
    assert warned.returncode == 0
    assert refused.returncode == 1
    for done in (warned, refused):
        assert f"preflight of {root}: this start costs something" in done.stdout
        assert "delete all consume queues" in done.stdout
    assert "The broker is not started" in refused.stdout
    assert "The broker is not started" not in warned.stdout
    switched = script("preflight.sh", "refuse", store=root, RMQCTL_PREFLIGHT="off")
    assert switched.returncode == 0
    assert "switched off" in switched.stdout


def test_what_is_lost_already_is_said_and_refused_while_rows_tell_of_it(script, tmp_path):
    writer = Writer(Layout(abort=True))
    for number in range(60):
        writer.put("orders", b"body %d" % number)
    writer.offsets["orders", "billing"] = {0: 60}
    writer.tear(writer.puts[40].physical + 30)
    torn = writer.write(tmp_path / "torn")
    for mode, code in (("warn", 0), ("refuse", 1)):
        done = script("preflight.sh", mode, store=torn)
        assert done.returncode == code
        assert "20 messages are already lost (orders 20)" in done.stdout
        assert "offsets of 1 group would be beyond the end of a queue" in done.stdout
    writer.rows["orders", 0] = {at: unit for at, unit in writer.rows["orders", 0].items()
                                if at < 40}
    cut = writer.write(tmp_path / "cut")
    for mode in ("warn", "refuse"):
        done = script("preflight.sh", mode, store=cut)
        assert done.returncode == 0
        assert "this start costs nothing more" in done.stdout
        assert "20 messages are already lost" in done.stdout


def test_the_version_of_the_broker_counts(script, record):
    root = record("6904")
    assert script("preflight.sh", "refuse", store=root,
                  RMQCTL_BROKER_VERSION="4.9.3").returncode == 1
    assert script("preflight.sh", "refuse", store=root,
                  RMQCTL_BROKER_VERSION="5.3.3").returncode == 0


@pytest.mark.parametrize(("code", "expected_text"), [
    (3, "no store"), (5, "exit code 5"), (6, "exit code 6"), (70, "exit code 70")])
def test_what_cannot_be_found_out_keeps_no_broker_from_starting(script, fake, code, expected_text):
    done = script("preflight.sh", "refuse", RMQCTL=fake(code))
    assert done.returncode == 0
    assert expected_text in done.stdout


@pytest.mark.long
def test_a_preflight_that_takes_too_long_or_is_missing_is_given_up(script, tmp_path):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    done = script("preflight.sh", "refuse", RMQCTL=str(slow), RMQCTL_SECONDS="1")
    assert done.returncode == 0
    assert "took too long" in done.stdout
    assert script("preflight.sh", "refuse", RMQCTL=str(tmp_path / "none")).returncode == 0
    assert script("preflight.sh", "rufuse").returncode == 2


# -- recover.sh ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "expected_text", "ends", "shown"), [
    (0, "", 0, ""), (0, "moved", 0, "rmqctl repaired"), (1, "lost", 1, "messages are lost"),
    (3, "x", 3, "no store"), (4, "held", 0, ""), (5, "full", 5, "could not finish"),
    (6, "no", 6, "refused"), (70, "bug", 70, "exit code 70"), (143, "", 143, "interrupted")])
def test_the_exit_codes_of_a_repair(script, fake, tmp_path, code, expected_text, ends, shown):
    done = script("recover.sh", store="/data/s", RMQCTL=fake(code, expected_text))
    assert done.returncode == ends
    assert shown in done.stdout
    assert bool(done.stdout) == bool(shown)
    if shown:
        assert expected_text in done.stdout
    assert (tmp_path / "called").read_text().split() == [
        "recover", "/data/s", "--strategy", "salvage", "--apply", "--yes", "--no-progress"]


@pytest.mark.long
@needs_recover
def test_a_repair_says_what_it_did_and_the_next_one_nothing(script, record, rmqctl):
    root = record("467")
    done = script("recover.sh", store=root)
    assert done.returncode == 0, done.stdout
    assert f"rmqctl repaired {root}" in done.stdout
    answer = rmqctl("verify", root, "-o", "json").expect(0).json()
    assert answer["ok"]
    lines = [json.loads(line) for line in
             (root / ".rmqctl" / "log.jsonl").read_text().splitlines()]
    assert {line["command"] for line in lines} == {"recover"}
    again = script("recover.sh", store=root)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


# -- metrics.sh ------------------------------------------------------------------------------------


def test_metrics_are_what_info_and_offsets_say(script, record, tmp_path, rmqctl):
    root, metrics = record("551"), tmp_path / "store.prom"
    with snapshot.assert_unchanged(root):
        done = script("metrics.sh", store=root, RMQCTL_METRICS=str(metrics))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    listed_samples = samples(metrics.read_text())
    info = rmqctl("info", root, "-o", "json").json()
    assert listed_samples["rmqctl_store_messages", ""] == info["messages"]
    assert listed_samples["rmqctl_store_max_phy_offset", ""] == info["max_phy_offset"]
    assert listed_samples["rmqctl_store_abort", ""] == 0
    assert listed_samples["rmqctl_store_bytes", "commitlog"] > 0
    diffs = rmqctl("offsets", root, "--group", "billing", "-o", "json").json()
    assert [value for (name, _), value in listed_samples.items()
            if name == "rmqctl_group_diff"] == [
                sum(row["diff"] for row in rows_of(diffs))]


def rows_of(document):
    """The rows of `offsets`, wherever the document has them."""
    rows = document if isinstance(document, list) else next(
        value for value in document.values() if isinstance(value, list) and "diff" in value[0])
    return [row for row in rows if row["diff"] is not None]


def samples(text):
    """(metric, structure if it has one) -> value; every line must be a sample or a comment."""
    numbers = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = re.fullmatch(r'(\w+)\{((?:\w+="[^"]*",?)+)\} (-?[0-9.e+]+)', line)
            assert match, line
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
            assert labels.pop("store")
            numbers[match[1], labels.get("structure", "")] = float(match[3])
    return numbers


@pytest.mark.long
def test_metrics_of_a_broken_store_and_of_none(script, record, tmp_path):
    metrics = tmp_path / "store.prom"
    done = script("metrics.sh", store=record("1231"), RMQCTL_METRICS=str(metrics))
    assert done.returncode == 0
    before = metrics.read_text()
    assert samples(before)["rmqctl_store_troubles", ""] > 0
    done = script("metrics.sh", store=tmp_path / "none", RMQCTL_METRICS=str(metrics))
    assert done.returncode == 3
    assert metrics.read_text() == before
    assert script("metrics.sh").returncode != 0
    assert script("metrics.sh", RMQCTL_METRICS=str(tmp_path / "no" / "m")).returncode != 0


# -- kept.sh ---------------------------------------------------------------------------------------


def test_what_repairs_keep_is_listed_and_nothing_is_removed(script, tmp_path, rmqctl):
    root = snapshot.copy_tree(STORE, tmp_path / "store with space")
    assert "repair" in script("kept.sh", store=root).stdout
    last = (root / "commitlog" / "00000000000000262144").stat().st_size
    rmqctl("expire", root, "--keep-bytes", str(last), "--apply", "--yes").expect(0)
    entry = rmqctl("undo", root, "--list", "-o", "json").json()
    name = (entry[0] if isinstance(entry, list) else next(iter(entry.values()))[0])["id"]
    with snapshot.assert_unchanged(root):
        young = script("kept.sh", "30", store=root)
        old = script("kept.sh", "0", store=root, RMQCTL=aged(tmp_path, rmqctl, root))
    for done in (young, old):
        assert done.returncode == 0, done.stderr
        assert re.search(rf"^{name} +expire +applied +[0-9.]+[KM]$", done.stdout, re.MULTILINE)
    assert "rm -r" not in young.stdout
    command = re.search(r"^rm -r -- (.*)$", old.stdout, re.MULTILINE)[0]
    subprocess.run(["bash", "-c", command], check=True)
    assert list((root / ".rmqctl" / "repairs").iterdir()) == []


def aged(tmp_path, rmqctl, root):
    """A program that answers as rmqctl does, but a day later than it was."""
    output = rmqctl("undo", root, "--list", "-q", "-o", "tsv").out
    output = re.sub(r"\b1[0-9]{12}\b", lambda time: str(int(time[0]) - 86_400_000), output)
    (tmp_path / "said").write_text(output)
    program = tmp_path / "aged"
    program.write_text(f'#!/bin/sh\ncat "{tmp_path}/said"\n')
    program.chmod(0o755)
    return str(program)


def test_an_unfinished_repair_is_never_offered_for_removal(script, tmp_path):
    program = tmp_path / "listing"
    rows = "".join(f"R-{state}\\t1000\\trecover\\t{state}\\t1\\t1\\n" for state in (
        "interrupted", "undoing", "damaged", "applied", "undone"))
    names = "id\\ttime\\tcommand\\tstate\\tactions\\tfiles\\n"
    program.write_text(f'#!/bin/sh\nprintf "{names}{rows}"\n')
    program.chmod(0o755)
    done = script("kept.sh", "7", RMQCTL=str(program))
    assert done.returncode == 0, done.stderr
    assert [line.rpartition("R-")[2] for line in done.stdout.splitlines()
            if line.startswith("rm ")] == ["applied", "undone"]
    assert script("kept.sh", "-1").returncode == 2
    assert script("kept.sh", store=tmp_path / "none").returncode == 3


# -- units and logrotate.conf ----------------------------------------------------------------------

BROKER = "[Service]\nType=simple\nExecStart=/bin/true\n"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", ["rmqctl-verify.service", "rmqctl-verify.timer",
                                  "rmqctl-backup.service", "rmqctl-backup.timer",
                                  "rmqctl-warn.conf", "rmqctl-refuse.conf"])
def test_systemd_reads_the_units(tmp_path, name):
    for path in UNITS:
        text = path.read_text().replace("/opt/rmqctl", str(ROOT))
        (tmp_path / path.name).write_text(text)
    unit = tmp_path / name
    if name.endswith(".conf"):
        unit = tmp_path / "rocketmq-broker.service"
        unit.write_text(BROKER)
        (tmp_path / "rocketmq-broker.service.d").mkdir()
        (tmp_path / name).rename(tmp_path / "rocketmq-broker.service.d" / name)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)],
                          capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if str(tmp_path) in line or name in line]
    assert lines == []
    broken = unit.with_name(f"broken-{unit.name}")
    broken.write_text(unit.read_text().replace("ExecStart=", "ExecStrt=")
                      .replace("OnCalendar=", "OnCalender="))
    lines = subprocess.run(["systemd-analyze", "verify", "--man=no", str(broken)],
                           capture_output=True, text=True).stderr
    assert "Unknown" in lines, "systemd-analyze finds nothing wrong with anything here"


def test_the_units_name_scripts_that_exist():
    named = {script for unit in UNITS for script in
             re.findall(r"/opt/rmqctl/(examples/\S+?\.sh)", unit.read_text())}
    assert named == {"examples/cron/verify.sh", "examples/cron/preflight.sh"}
    assert all((ROOT / script).exists() for script in named)


def test_the_log_s_rotation_lets_rmqctl_make_the_file_anew():
    text = (CRON / "logrotate.conf").read_text()
    rules = re.fullmatch(r"(?:#.*\n)*(\S+) \{\n((?:  [a-z]+.*\n)+)\}\n", text)
    assert rules[1].endswith("/.rmqctl/log.jsonl")
    assert "nocreate" in rules[2].split()
    assert "copytruncate" not in rules[2].split()
