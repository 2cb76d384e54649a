"""Checkpoint, abort and lock: what is legal, and each kind of damage at its field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.formats.local import checkpoint as layout
from tests.checks.small_checks import (
    CLEAN,
    IDS,
    Log,
    brief,
    log_of,
    one_of,
    run,
    run_golden,
    trouble,
)
from tests.conftest import GoldenFolder
from tests.support import damage, golden
from tests.support import tiny as tiny_stores
from tests.support.cli import Result

LAST = 1_700_000_000_000
LOG = Log(LAST, 5000)


def page(*values: int) -> bytes:
    return layout.build(layout.CheckpointRecord(*values))


def put(root: Path, data: bytes | None, log: Log = LOG, *, live: bool = False):
    """The findings for a store whose checkpoint holds ``data``."""
    path = root / "checkpoint"
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)
    return run("checkpoint", root, log=log, live=live)


# -- legal ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("golden_store", CLEAN, ids=IDS)
def test_no_finding_on_a_cleanly_closed_store(golden_store: golden.GoldenStore,
                                              golden: GoldenFolder) -> None:
    assert run_golden("checkpoint", golden_store, golden(golden_store.id)) == []


@pytest.mark.parametrize("name", tiny_stores.VARIANTS)
def test_no_trouble_on_a_tiny_store(name: str, tmp_path: Path) -> None:
    store = tiny_stores.variant(tmp_path / "store", name)
    dirs = store.options.commitlog_dirs
    findings = run("checkpoint", store.root, dirs if dirs != ("commitlog",) else ())
    assert [finding.category for finding in findings] == ["unclean-shutdown"] * store.options.abort


@pytest.mark.parametrize("values", [
    (LAST, LAST, LAST), (1, 1, 0), (0, LAST, 0), (LAST, 0, 0), (LAST, LAST, 0, 5000, 5000),
    (LAST, LAST, 0, -1, -1)], ids=str)
def test_legal_values(values: tuple[int, ...], root: Path) -> None:
    assert put(root, page(*values)) == []


def test_a_store_without_messages_needs_no_checkpoint(root: Path) -> None:
    empty = Log(None, 0)
    assert put(root, None, empty) == []
    assert put(root, page(0, 0, 0), empty) == []


# -- damage --------------------------------------------------------------------------------------


def test_missing(root: Path) -> None:
    damage.remove(root, "checkpoint")
    finding, what = one_of(run("checkpoint", root), root)
    assert what == ("checkpoint-missing", "checkpoint", 0)
    assert finding.severity == "info", "a broker walks the whole log and writes a new one"


@pytest.mark.parametrize(("size", "severity"), [
    (0, "info"), (1, "info"), (8, "info"), (10, "info"), (11, "error"), (17, "error"),
    (23, "error")])
def test_too_short_for_the_fields(size: int, severity: str, root: Path) -> None:
    """As zeros both times make a broker walk the whole log; of an index time alone it does not."""
    finding, what = one_of(put(root, page(LAST, LAST, 0)[:size]), root)
    assert what == ("checkpoint-damaged", "checkpoint", size)
    assert finding.severity == severity


@pytest.mark.parametrize(("size", "offset", "severity"), [
    (24, 24, "warning"), (39, 39, "warning"), (40, 40, "info"), (4095, 4095, "info"),
    (4097, 4096, "warning")])
def test_a_wrong_size_that_costs_no_time(size: int, offset: int, severity: str,
                                         root: Path) -> None:
    finding, what = one_of(put(root, page(LAST, LAST, 0).ljust(size, b"\0")[:size]), root)
    assert what == ("checkpoint-damaged", "checkpoint", offset)
    assert finding.severity == severity, "a broker makes a short page whole when it maps it"


@pytest.mark.parametrize("abort", [False, True])
def test_an_empty_one_heals_at_a_start_and_is_no_alarm(rmqctl: Callable[..., Result],
                                                       root: Path, abort: bool) -> None:
    (root / "checkpoint").write_bytes(b"")
    if abort:
        (root / "abort").touch()
    findings = rmqctl("verify", root, "-o", "json").expect(0).json()["findings"]
    assert ("checkpoint-damaged", "info") in [(finding["category"], finding["severity"])
                                              for finding in findings]
    assert rmqctl("recover", root, "-o", "json").expect(0).json()["actions"], "and still mended"


def test_a_terabyte_is_only_a_wrong_size(root: Path) -> None:
    damage.huge_sparse(root, "checkpoint")
    _, what = one_of(run("checkpoint", root), root)
    assert what == ("checkpoint-damaged", "checkpoint", 4096)


@pytest.mark.parametrize("at", [40, 41, 2000, 4095])
def test_something_behind_the_fields(at: int, root: Path) -> None:
    damage.write(root, "checkpoint", at, b"\x01")
    finding, what = one_of(run("checkpoint", root), root)
    assert what == ("checkpoint-damaged", "checkpoint", at)
    assert finding.length == 1


def test_zero(root: Path) -> None:
    damage.checkpoint_zero(root)
    finding, what = one_of(run("checkpoint", root), root)
    assert what == ("checkpoint-zero", "checkpoint", 0)
    assert finding.severity == "info", "a broker walks the whole log and writes it anew"
    (root / "abort").touch()
    assert run("checkpoint", root)[0].severity == "info"
    assert run("checkpoint", root, live=True)[0].severity == "info", "a broker's first minute"


@pytest.mark.parametrize(("field", "offset"), [("physic", 0), ("logics", 8), ("index", 16)])
@pytest.mark.parametrize(("value", "category"), [
    (LAST + 1, "checkpoint-ahead"), (-1, "checkpoint-damaged"),
    (damage.HUGE, "checkpoint-damaged"), (-(1 << 63), "checkpoint-damaged")])
def test_a_time_that_cannot_be(field: str, offset: int, value: int, category: str,
                               root: Path) -> None:
    (root / "checkpoint").write_bytes(page(LAST, LAST, 0))
    damage.checkpoint(root, **{field: value})
    finding, what = one_of(run("checkpoint", root, log=LOG), root)
    assert what == (category, "checkpoint", offset)
    assert finding.length == 8


@pytest.mark.parametrize(("field", "offset", "value", "category", "severity"), [
    ("confirm", 32, 5001, "checkpoint-ahead", "warning"),
    ("confirm", 32, -2, "checkpoint-damaged", "error"),
    ("master_flushed", 24, 5001, "checkpoint-ahead", "info"),
    ("master_flushed", 24, -2, "checkpoint-damaged", "error")])
def test_an_offset_behind_the_log(field: str, offset: int, value: int, category: str,
                                  severity: str, root: Path) -> None:
    (root / "checkpoint").write_bytes(page(LAST, LAST, 0))
    damage.checkpoint(root, **{field: value})
    finding, what = one_of(run("checkpoint", root, log=LOG), root)
    assert (what, finding.severity) == ((category, "checkpoint", offset), severity)


def test_a_running_broker_has_gone_on_since_the_log_was_walked(root: Path) -> None:
    later = page(LAST + 60_000, LAST + 60_000, 0, 9000, 9000)
    assert len(put(root, later)) == 4
    assert put(root, later, live=True) == []


def test_every_damage_is_reported_together(root: Path) -> None:
    data = bytearray(page(-5, LAST + 9, 0, 0, 6000))
    data[100] = 1
    assert [item.offset for item in put(root, bytes(data))] == [100, 0, 8, 32]


# -- abort and lock ------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"4711", b"4711\n"])
def test_the_abort_file(content: bytes, root: Path) -> None:
    (root / "abort").write_bytes(content)
    finding, what = one_of(run("checkpoint", root), root)
    assert (what, finding.severity) == (("unclean-shutdown", "abort", None), "info")
    assert run("checkpoint", root, live=True) == [], "a running broker has one"


@pytest.mark.parametrize(("content", "offset"), [
    (b"pid", 0), (b"47x", 2), (b"\n", 0), (b"1" * 1000, 19)])
def test_an_abort_file_that_no_broker_wrote(content: bytes, offset: int, root: Path) -> None:
    (root / "abort").write_bytes(content)
    findings = run("checkpoint", root)
    assert brief(findings, root) == [("unclean-shutdown", "abort", None),
                                     ("small-file", "abort", offset)]


@pytest.mark.parametrize(("content", "offset"), [
    (b"", None), (b"lock", None), (b"lick", 1), (b"locked", 4), (b"lo", 2)])
def test_the_lock_file(content: bytes, offset: int | None, root: Path) -> None:
    (root / "lock").write_bytes(content)
    expected = [] if offset is None else [("small-file", "lock", offset)]
    assert brief(run("checkpoint", root), root) == expected


def test_no_lock_file_is_legal(root: Path) -> None:
    damage.remove(root, "lock")
    assert run("checkpoint", root) == []


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [damage.fifo, damage.directory, damage.symlink,
                                  damage.symlink_to_itself])
@pytest.mark.parametrize("name", ["checkpoint", "abort", "lock"])
def test_no_regular_file(name: str, kind, root: Path) -> None:
    (root / name).write_bytes(b"")
    kind(root, name)
    findings = run("checkpoint", root)
    assert {finding.file for finding in findings} == {str(root / name)}
    assert findings[-1].category == "file-unreadable" if name == "checkpoint" else trouble(findings)


@pytest.mark.skipif(not damage.can_deny(), reason="root may read everything")
def test_permission_denied(root: Path) -> None:
    damage.unreadable(root, "checkpoint")
    assert brief(run("checkpoint", root), root) == [("file-unreadable", "checkpoint", None)]


@pytest.mark.long
@settings(max_examples=150, derandomize=True)
@given(data=st.binary(max_size=5000), last=st.none() | st.integers(0, 1 << 62),
       end=st.integers(0, 1 << 62), live=st.booleans())
def test_random_bytes(data: bytes, last: int | None, end: int, live: bool,
                      tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp() / "random-checkpoint"
    (root / "commitlog").mkdir(parents=True, exist_ok=True)
    for name in ("checkpoint", "abort", "lock"):
        (root / name).write_bytes(data)
    for finding in run("checkpoint", root, log=Log(last, end), live=live):
        assert finding.offset is None or 0 <= finding.offset <= len(data)


def test_the_log_facts_are_those_of_the_store(tiny_base: tiny_stores.Tiny) -> None:
    """The other tests stand on `log_of`."""
    from rmqctl.store import Store

    with Store.open(tiny_base.root) as store:
        assert log_of(store) == Log(tiny_base.messages[-1].record.store_timestamp,
                                    tiny_base.log_end)
