"""recover of a DLedger store: what follows from its log is made anew, the log is left as it is."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rmqctl.checks.preflight.preflight import preflight
from rmqctl.store.store import Store
from tests.support import engine
from tests.support.cli import run
from tests.support.layouts import layout_copy, layout_set

ONLY = ("--only", "consumequeue,index")


def log_of(store: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(
        (store / "dledger-n0/data").iterdir()))).hexdigest()


@pytest.mark.parametrize(("name", "state", "version"), [
    ("5.3.3/dledger-crash-idle", "before", "5.3.3"),
    ("5.3.3/dledger-crash-idle", "after", "5.3.3"),
    ("5.3.3/dledger-clean-nocq", "after", "5.3.3"),
    ("4.9.3/dledger-crash-nocq", "before", "4.9.3")])
def test_rows_come_back_and_stay(tmp_path: Path, name: str, state: str, version: str) -> None:
    store = layout_copy(name, tmp_path, state)
    log = log_of(store)
    sizes = ("--consumequeue-file-size", "440", "--index-slots", "100", "--index-max", "400")
    run("recover", store, *ONLY, *sizes, "--apply", "--yes").expect(0, 1)
    assert log_of(store) == log
    run("verify", store, "--only", "commitlog,consumequeue,index").expect(0)
    with Store.open(store) as opened:
        predicted = preflight(opened, version)
    assert predicted.unreachable == predicted.rows_cut == 0
    # As 4.9.3 has them, which loses none.
    expect = engine.load(layout_set(f"{version}/dledger-crash-nocq") / "expect.json")
    assert {key: end for key, end in predicted.table.items() if end} == {
        f"{queue.topic}-{queue.queue_id}": queue.max for queue in expect.queues if queue.max}
    run("undo", store, "--yes").expect(0)
    assert log_of(store) == log


def test_what_is_refused(tmp_path: Path) -> None:
    store = layout_copy("5.3.3/dledger-crash-crc", tmp_path, "before")
    assert "another node of the group" in run("recover", store, *ONLY).expect(6, 4).err
    run("recover", store, "--strategy", "broker").expect(3)


def test_it_is_no_source_for_a_plain_log(tmp_path: Path) -> None:
    plain = layout_copy("5.3.3/controller", tmp_path)
    source = layout_set("5.3.3/dledger") / "store"
    assert "is no source" in run("recover", plain, "--from", source).expect(3).err
