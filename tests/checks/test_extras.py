"""Epoch file and identity; and that no legal store has a finding, nor random bytes an error."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.checks.verify.queue.ext_units import ExtReader
from rmqctl.errors import FormatError
from rmqctl.formats.config import epoch
from rmqctl.formats.local import batch_consume_queue as batch
from rmqctl.formats.local import consume_queue_ext as ext
from rmqctl.formats.local.batch_consume_queue import UNIT
from rmqctl.store import Store
from tests.checks.small_checks import CLEAN, IDS, Log, brief, one_of, run, run_golden, trouble
from tests.conftest import GoldenFolder
from tests.support import damage, golden
from tests.support import tiny as tiny_stores

EPOCHS, IDENTITY = "epochFileCheckpoint", "brokerIdentity"
BATCH_FILE = ("5.3.3/batchcq/store", f"batchconsumequeue/TP_pay_Topic/0/{736:020d}")
EXT_FILE = ("4.9.3/cqext/store", f"consumequeue_ext/TP_order_Topic/0/{2048:020d}")


@pytest.mark.parametrize("golden_store", CLEAN, ids=IDS)
def test_no_finding_on_a_cleanly_closed_store(golden_store: golden.GoldenStore,
                                              golden: GoldenFolder) -> None:
    assert run_golden("extras", golden_store, golden(golden_store.id)) == []


@pytest.mark.parametrize("name", tiny_stores.VARIANTS)
def test_no_finding_on_a_tiny_store(name: str, tmp_path: Path) -> None:
    store = tiny_stores.variant(tmp_path / "store", name)
    dirs = store.options.commitlog_dirs
    assert run("extras", store.root, dirs if dirs != ("commitlog",) else ()) == []


# -- epoch file and identity -----------------------------------------------------------------------


def test_an_epoch_file(tiny: tiny_stores.Tiny) -> None:
    root, good = tiny.root, epoch.build([epoch.Epoch(1, 0), epoch.Epoch(3, 900)])
    (root / EPOCHS).write_bytes(good)
    assert run("extras", root) == []
    bad = good.replace(b"3-900", b"3-901")
    (root / EPOCHS).write_bytes(bad)
    finding, what = one_of(run("extras", root), root)
    assert (what, finding.severity) == (("epoch-file", EPOCHS, good.index(b"\n") + 1), "error")
    (root / f"{EPOCHS}.bak").write_bytes(good)
    finding, what = one_of(run("extras", root), root)
    assert (what[0], finding.severity) == ("epoch-file", "warning")
    (root / f"{EPOCHS}.bak").write_bytes(bad)
    assert run("extras", root)[0].severity == "error"


@pytest.mark.parametrize(("data", "offset"), [
    (b"", 0), (b"x\n0\n", 0), (b"2\n0\n1-0\n", 0), (b"1\n0\n1_0\n", 4), (b"1\n", 2)])
def test_a_damaged_epoch_file(data: bytes, offset: int, tiny: tiny_stores.Tiny) -> None:
    (tiny.root / EPOCHS).write_bytes(data)
    _, what = one_of(run("extras", tiny.root), tiny.root)
    assert what == ("epoch-file", EPOCHS, offset)


@pytest.mark.parametrize(("data", "offset"), [
    (b"cluster#broker-a#1", None), (b"cluster#broker-a#1\n", None), (b"", 0), (b"c#b", 3),
    (b"c#b#x", 4), (b"c##1", 2)])
def test_the_identity(data: bytes, offset: int | None, tiny: tiny_stores.Tiny) -> None:
    (tiny.root / IDENTITY).write_bytes(data)
    expected = [] if offset is None else [("small-file", IDENTITY, offset)]
    assert brief(run("extras", tiny.root), tiny.root) == expected


@pytest.mark.parametrize("name", [EPOCHS, IDENTITY, "brokerIdentity-temp"])
def test_no_regular_file(name: str, tiny: tiny_stores.Tiny) -> None:
    (tiny.root / name).mkdir()
    assert brief(run("extras", tiny.root), tiny.root) == [("file-unreadable", name, None)]


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [damage.huge_sparse, damage.fifo, damage.symlink])
@pytest.mark.parametrize(("name", "file"), [BATCH_FILE, EXT_FILE])
def test_strange_files(kind, name: str, file: str, golden_copy: GoldenFolder) -> None:
    """Names and kinds are told by the check of files; here nothing may hang or raise."""
    root = golden_copy(name)
    kind(root, file)
    assert {finding.category
            for finding in trouble(run("extras", root))} <= {"cq-ext", "file-unreadable"}


@settings(max_examples=60, derandomize=True)
@given(rows=st.binary(max_size=300), units=st.binary(max_size=200), log=st.binary(max_size=300),
       built=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(-1, 5),
                                st.integers(-1, 3)), max_size=4),
       sizes=st.lists(st.integers(-3, 60), max_size=6), code=st.integers(0, 250))
def test_random_bytes(rows: bytes, units: bytes, log: bytes,
                      built: list[tuple[int, int, int, int]], sizes: list[int], code: int,
                      tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp() / "random-extras"
    joined = b"".join(UNIT.build(batch.UnitRecord(at, size, 0, 0, base, count))
                      for at, size, base, count in built)
    chain = b"".join(struct.pack(">hqqh", size, 1, 1, size - 20).ljust(max(size, 20), b"\1")
                     for size in sizes)
    name = f"t/0/{0:020d}"
    for path, data in ((f"batchconsumequeue/{name}", joined + rows),
                       (f"consumequeue_ext/{name}", chain + units),
                       (f"consumequeue/{name}", struct.pack(">qiq", 0, 100, code - (1 << 63))),
                       (f"commitlog/{0:020d}", log), (EPOCHS, rows), (IDENTITY, units)):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    for finding in run("extras", root, log=Log(None, 1000)):
        assert finding.detail
    with Store.open(root) as store, ExtReader(store, "t", 0) as reader:
        for at in range(0, len(chain) + len(units), 7):
            unit = reader.unit(ext.address(at))
            try:
                assert unit == ext.decode(chain + units, at)
            except FormatError:
                assert unit is None
