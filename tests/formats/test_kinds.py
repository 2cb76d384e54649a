"""What a file is: from its path, and from its content alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.formats import dledger, kinds
from rmqctl.formats.config import epoch
from rmqctl.formats.local import consume_queue
from rmqctl.formats.local.message import MAGIC_BLANK, Blank
from rmqctl.formats.timer import timer_wheel
from tests.formats.test_dledger import HEAD
from tests.formats.test_message import SMALL

TWENTY = "00000000000000000000"
SETS = ("4.9.3/basic", "4.9.3/cqext", "4.9.3/delay-delivered", "4.9.3/crash-base",
        "5.3.3/batchcq", "5.3.3/compaction", "5.3.3/timer", "5.3.3/crash-base", "5.3.3/ipv6")


@pytest.mark.parametrize(("path", "kind"), [
    (f"/s/commitlog/{TWENTY}", "commitlog"),
    (f"commitlog/{TWENTY}", "commitlog"),
    ("/s/commitlog/0000", None),
    (f"/s/commitlog/{'9' * 20}", None),
    (f"/s/consumequeue/T/0/{TWENTY}", "consumequeue"),
    (f"/s/consumequeue/commitlog/3/{TWENTY}", "consumequeue"),
    (f"/s/consumequeue/T/x/{TWENTY}", None),
    (f"/s/consumequeue_ext/%RETRY%g/0/{TWENTY}", "consumequeue_ext"),
    (f"/s/batchconsumequeue/T/0/{TWENTY}", "batchconsumequeue"),
    ("/s/index/20261121040122099", "index"),
    ("/s/other/20261121040122099", None),
    ("/s/checkpoint", "checkpoint"),
    ("/s/abort", "abort"),
    ("/s/abort.bak", "abort"),
    ("/s/lock", "lock"),
    ("/s/timerwheel", "timerwheel"),
    (f"/s/timerlog/{TWENTY}", "timerlog"),
    ("/s/config/timercheck", "timercheck"),
    ("/s/config/timermetrics.bak", "config"),
    ("/s/config/transactionMetrics", "config"),
    ("/h/10.0.0.1@DEFAULT/g/offsets.json.bak", "client_offsets"),
    ("/h/g/offsets.json", "config"),
    ("/s/config/topics.json", "config"),
    ("/s/config/consumerOffset.json.bak", "config"),
    ("/s/config/topics.json.tmp", "config"),
    (f"/s/compaction/compactionLog/T/0/{TWENTY}", "compaction_log"),
    (f"/s/compaction/compactionLog/T/0/compacting/{TWENTY}", "compaction_log"),
    (f"/s/compaction/compactionCq/T/0/replicating/{TWENTY}", "compaction_cq"),
    (f"/s/compaction/compactionCq/T/0/{TWENTY}.delete", "compaction_cq"),
    ("/s/compaction/position-checkpoint", "config"),
    ("/s/compaction/position-checkpoint.bak", "config"),
    ("/s/epochFileCheckpoint", "epoch"),
    ("/s/epochFileCheckpoint.bak", "epoch"),
    ("/s/brokerIdentity-temp", "broker_identity"),
    (f"/s/dledger-n0/data/{TWENTY}", "dledger"),
    (f"/s/dledger-n0/index/{TWENTY}", "dledger_index"),
    ("/s/dledger-n0/checkpoint", "dledger_checkpoint"),
    (f"/s/dledger-n0/other/{TWENTY}", None),
    (f"/evidence/{TWENTY}", None),
    ("/evidence/foo", None),
    ("", None),
])
def test_from_path(path: str, kind: str | None) -> None:
    assert kinds.from_path(path.split("/") if path else []) == kind


def test_base_offsets() -> None:
    assert kinds.base_offset("00000000000000065536") == 65536
    assert kinds.base_offset("00000000000000065536.delete") == 65536
    assert kinds.base_offset("checkpoint") is None


def files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()
            and path.relative_to(folder).parts[0] in ("store", "before")]


@pytest.mark.parametrize("name", SETS)
def test_content_alone_tells_what_the_path_tells(name: str,
                                                 golden: Callable[[str], Path]) -> None:
    twins = {"compaction_log": "commitlog", "compaction_cq": "batchconsumequeue"}
    seen = set()
    for path in files(golden(name)):
        head = path.read_bytes()[:4096]
        kind = kinds.recognise(path.parts, head, path.stat().st_size)
        assert kind in kinds.KINDS, path
        seen.add(kind)
        alone = kinds.recognise(("evidence", "foo"), head, path.stat().st_size)
        if head.strip(b"\0"):
            assert alone == twins.get(kind, kind), path
        else:
            assert alone == ("timerwheel" if kind == "timerwheel" else None)
    assert len(seen) >= 5


def test_what_no_golden_store_holds() -> None:
    framed = HEAD + SMALL
    assert kinds.from_content(framed, 1 << 20) == "dledger"
    unit = dledger.INDEX_UNIT.build(dledger.IndexUnitRecord(1, 0, 153, 0, 1))
    more = dledger.INDEX_UNIT.build(dledger.IndexUnitRecord(1, 153, 153, 1, 1))
    assert kinds.from_content(unit + more + bytes(64), 128) == "dledger_index"
    raw = epoch.build([epoch.Epoch(1, 0), epoch.Epoch(2, 500)])
    assert kinds.from_content(raw, len(raw)) == "epoch"
    assert kinds.from_content(b"c#b#1", 5) == "broker_identity"
    raw = dledger.build_checkpoint(5, 4)
    assert kinds.from_content(raw, len(raw)) == "dledger_checkpoint"
    assert kinds.from_content(b"lock", 4) == "lock"
    assert kinds.from_content(b"15194", 5) == "abort"
    assert kinds.from_content(b"15194", 6) is None
    assert kinds.from_content(b"1" * 11, 11) is None
    assert kinds.from_content(bytes(4096), timer_wheel.FILE_SIZE) == "timerwheel"
    blank = Blank.build({"total_size": 4096, "magic": MAGIC_BLANK})
    assert kinds.from_content(blank.ljust(4096, b"\0"), 4096) == "commitlog"
    assert kinds.from_content(blank.ljust(4096, b"\0"), 4097) is None


def test_a_queue_that_begins_with_fillers() -> None:
    filler, row = consume_queue.build(consume_queue.FILLER), consume_queue.build(
        consume_queue.UnitRecord(500, 91, 0))
    assert kinds.from_content(filler * 3 + row + bytes(40), 120) == "consumequeue"
    assert kinds.from_content(row * 6, 120) is None  # a log never goes back
    assert kinds.from_content(row + bytes(99), 119) is None


def test_a_dledger_folder_of_another_name_and_plain_records_in_one() -> None:
    assert kinds.recognise(("commitlog", TWENTY), HEAD + SMALL, 1 << 20) == "dledger"
    assert kinds.recognise(("commitlog", TWENTY), SMALL, 1 << 20) == "commitlog"
    assert kinds.recognise(("dledger-n0", "data", TWENTY), SMALL, 1 << 20) == "commitlog"
    assert kinds.recognise(("dledger-n0", "data", TWENTY), HEAD + SMALL, 1 << 20) == "dledger"


@pytest.mark.parametrize("raw", [b"", b"\0" * 4096, b"\x7fELF" + bytes(200), b"PK\x03\x04" * 99,
                                 b"#!/bin/sh\necho hi\n", b"key=value\n", b"hello world",
                                 b"\x89PNG\r\n\x1a\n" + bytes(100)])
def test_files_of_other_worlds(raw: bytes) -> None:
    assert kinds.from_content(raw[:4096], len(raw)) is None


@given(st.binary(max_size=200), st.integers(0, 1 << 30))
def test_any_bytes(raw: bytes, more: int) -> None:
    assert kinds.from_content(raw, len(raw) + more) in (None, *kinds.KINDS)
