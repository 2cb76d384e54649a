"""Stores whose log, consumequeue or configuration does not lie in the usual files.

Each layout is recognised from the files; what cannot be judged is said (exit code 3), what can be
is judged, and nothing is ever planned or written into a store of which a part cannot be read.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmqctl.errors import MissingExtraError, UnsupportedError
from rmqctl.sql.options import ReadOptions
from rmqctl.sql.planning import plan
from rmqctl.sql.pushdown import Filters
from rmqctl.store.store import Store
from tests.adversary.writer import Layout, Writer
from tests.support.cli import Result, run
from tests.support.layouts import layout_set
from tests.support.snapshot import assert_unchanged

DERIVED = [("recover", "--only", "consumequeue"), ("recover", "--only", "index"),
           ("pipeline", "rebuild")]
"""What is done for a DLedger store wherever its data lie."""
MENDED = [*DERIVED, ("recover",), ("recover", "--only", "commitlog")]
"""What is done for one that has them in dledger-<id>/data."""
WRITING = [("recover",), ("recover", "--only", "commitlog"), ("recover", "--only", "consumequeue"),
           ("recover", "--only", "index"), ("recover", "--strategy", "broker"),
           ("truncate", "--to-phy", "0"), ("expire", "--older-than", "1s"),
           ("flush",), ("write", "--topic", "orders", "--body", "x"), ("append",),
           ("pipeline", "rebuild")]


TWICE = tuple(words for words in WRITING if words[0] == "recover" and "broker" not in words)
"""What is done for one with queues in files and their copy in RocksDB."""
MENDING = ("recover", "truncate", "expire", "pipeline")
"""What makes a data base of consumequeues anew."""


def layout_of(store: Path) -> dict[str, str]:
    layout: dict[str, str] = run("info", store, "-o", "json").expect(0).json()["layout"]
    return layout


def categories(result: Result) -> set[str]:
    return {finding["category"] for finding in result.json()["findings"]
            if finding["severity"] != "info"}


@pytest.fixture(scope="session")
def unpacked() -> Callable[[str], Path]:
    """A golden set of another layout: its store."""
    return lambda name: layout_set(name) / "store"


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the extra [rocksdb]."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)


def orders(layout: Layout | None = None, count: int = 60) -> Writer:
    writer = Writer(layout or Layout(log_file_size=4096, queue_file_units=20), seed=5)
    for number in range(count):
        writer.put("orders", b"body %d" % number, queue_id=number % 3, keys=f"k{number}")
    return writer


def database(folder: Path) -> None:
    """The files of a RocksDB data base, as far as a layout is told by them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    for name in ("MANIFEST-000005", "000009.sst", "000004.log", "IDENTITY", "LOCK",
                 "OPTIONS-000007"):
        (folder / name).write_bytes(b"\0" * 16)


def without_library(package: str) -> None:
    raise MissingExtraError(package)


def rocksdb_store(folder: Path) -> Path:
    store = orders().write(folder)
    shutil.rmtree(store / "consumequeue")
    database(store / "consumequeue")
    return store


def nothing_is_planned(store: Path, but: Sequence[tuple[str, ...]] = ()) -> None:
    """But by those of `MENDING`, which leave a configuration alone that is not written; and what is
    in ``but``.
    """
    layout = layout_of(store)
    mended = layout["consumequeue"] == "rocksdb" or (
        layout["consumequeue"] == "file" and layout["config"] != "json")
    with assert_unchanged(store):
        for command, *rest in (words for words in WRITING if words not in but):
            if mended and command in MENDING:
                continue
            more = ["-"] if command == "append" else []
            applied = ["--apply"] if command in ("recover", "truncate", "expire") else []
            words = [command, *rest[:1], store, *rest[1:]] if command == "pipeline" else [
                command, store, *more, *rest, *applied]
            result = run(*words, stdin=b'{"topic": "orders", "body": "x"}\n').expect(3)
            assert result.out == ""
        # The configuration alone is written where it is in files, and proves nothing of the rest.
        with Store.open(store) as opened:
            own = layout["config"] == "json" and all(
                map(opened.layout.reads, ("commitlog", "consumequeue")))
        run("topic", "create", store, "new", "--dry-run").expect(0 if own else 3)


# -- RocksDB --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_library")
def test_rocksdb_consumequeue(tmp_path: Path) -> None:
    store = rocksdb_store(tmp_path / "s")
    assert layout_of(store) == {"commitlog": "plain", "consumequeue": "rocksdb", "config": "json"}
    assert run("info", store, "-o", "json").json()["messages"] is None
    judged = run("verify", store, "-o", "json").expect(3)
    document = judged.json()
    assert categories(judged) == set()
    assert [structure["structure"] for structure in document["not_judged"]] == ["consumequeue"]
    assert "consumequeue" not in {structure["structure"] for structure in document["checked"]}
    assert document["coverage"]["messages"] == 60
    assert judged.err.count("\n") == 1
    run("verify", store, "--only", "commitlog,index,checkpoint,config").expect(0)
    assert len(run("read", store, "-o", "jsonl").expect(0).jsonl()) == 60
    rows = run("read", store, "--topic", "orders", "--queue", "1", "--from-offset", "15",
               "-o", "jsonl").expect(0).jsonl()
    assert [row["queue_offset"] for row in rows] == list(range(15, 20))
    assert run("stats", store, "-o", "json").expect(0).json()["total"]["messages"] == 60
    assert len(run("tail", store, "-n", "3", "-o", "jsonl").expect(0).jsonl()) == 3
    assert run("recover", "table", store, "-o", "json").expect(0).json() == {
        "orders-0": 20, "orders-1": 20, "orders-2": 20}
    run("query", "key", store, "--topic", "orders", "--key", "k7").expect(0)
    for words in (("offsets", store),
                  ("query", "time", store, "--topic", "orders", "--queue", "0", "--time",
                   "1700000000000")):
        assert "RocksDB" in run(*words).expect(3).err
    nothing_is_planned(store)


# -- preflight: what follows from the log alone ---------------------------------------------------


def predicted(store: Path, *more: str) -> dict[str, Any]:
    with assert_unchanged(store):
        result = run("preflight", store, *more, "-o", "json").expect(3)
    assert "not checked: consumequeue, index" in result.err
    assert "RocksDB" in result.err
    answer: dict[str, Any] = result.json()
    assert [structure["structure"]
            for structure in answer["not_judged"]][:2] == ["consumequeue", "index"]
    assert answer["next"] == [f"rmqctl verify {store}"]
    return answer


def without_rows(writer: Writer, folder: Path) -> Path:
    store = writer.write(folder)
    shutil.rmtree(store / "consumequeue")
    database(store / "consumequeue")
    return store


@pytest.mark.usefixtures("no_library")
def test_preflight_judges_the_log_under_rocksdb(tmp_path: Path) -> None:
    writer = orders()
    store = without_rows(writer, tmp_path / "s")
    end = writer.puts[-1].end
    plan = predicted(store)
    assert (plan["starts"], plan["truncate_to"], plan["messages"]) == (True, end, 60)
    assert (plan["messages_lost"], plan["impact"], plan["actions"]) == (0, None, [])
    lines = run("preflight", store).expect(3).out.splitlines()
    assert lines[0] == "as far as known, a 5.3.3 broker would start and truncate no message"
    assert lines[1] == "not checked: consumequeue, index"
    # An unclean end, and a file that no broker loads.
    (store / "abort").touch()
    assert predicted(store)["recovery"] == "abnormal"
    (store / "commitlog/00000000000000000001").write_bytes(b"x")
    assert predicted(store)["starts"] is False


@pytest.mark.usefixtures("no_library")
def test_preflight_under_rocksdb_says_what_is_sure_and_what_may_be(tmp_path: Path) -> None:
    """Damage in the last file ends the log wherever recovery begins; in an older one it depends."""
    writer = orders()
    last = [put for put in writer.puts if put.physical >= writer.puts[-1].physical // 4096 * 4096]
    assert len(last) >= 3
    writer.flip(last[1].body_at, 3)
    plan = predicted(without_rows(writer, tmp_path / "sure"))
    assert (plan["truncate_to"], plan["messages_lost"]) == (last[1].physical, len(last) - 2)
    assert plan["impact"] == {"messages": len(last) - 2, "of": 59,
                              "topics": {"orders": len(last) - 2}, "from": plan["impact"]["from"],
                              "to": plan["impact"]["to"], "complete": True}
    assert None not in (plan["impact"]["from"], plan["impact"]["to"])
    writer = orders()
    early = writer.puts[5]
    writer.flip(early.body_at, 3)
    plan = predicted(without_rows(writer, tmp_path / "open"))
    assert (plan["truncate_to"], plan["messages_lost"]) == (None, 0)
    notes = " ".join(plan["notes"])
    assert f"if it begins in commitlog/{0:020}, the log ends at {early.physical} " in notes
    assert "truncates 54 intact messages" in notes
    assert "truncates 0 intact messages" in notes
    assert "1 place in the log is damaged" in notes
    output = run("preflight", tmp_path / "open").expect(3).out
    assert "would start and possibly truncate messages" in output


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("state", ["before", "after"])
def test_preflight_ends_a_rocksdb_log_where_the_engine_did(
        unpacked: Callable[[str], Path], state: str) -> None:
    """A torn record behind which nothing lies, before and after the engine has cut it off."""
    root = unpacked("5.3.3/rocksdb-crash-trunc").parent
    plan = predicted(root / state)
    expected = json.loads((root / "expect.json").read_text())["maxPhyOffsetAfterLoad"]
    assert (plan["truncate_to"], plan["messages_lost"]) == (expected, 0)
    # Behind damage rows would be asked: that they are not read is no reason to judge nothing.
    judged = run("verify", root / state, "-o", "json").expect(1).json()
    assert expected in [finding["offset"] for finding in judged["findings"]
                        if finding["severity"] != "info"]
    assert run("read", root / state, "-o", "jsonl").jsonl()


def test_the_data_source_does_not_call_them_empty(tmp_path: Path) -> None:
    options = ReadOptions((str(rocksdb_store(tmp_path / "s")),), table="consumequeue")
    with pytest.raises(UnsupportedError, match="RocksDB"):
        plan(options, Filters())


@pytest.mark.usefixtures("no_library")
def test_damage_of_the_log_under_rocksdb_is_found(tmp_path: Path) -> None:
    writer = orders()
    writer.flip(writer.puts[30].body_at, 3)
    store = writer.write(tmp_path / "s")
    shutil.rmtree(store / "consumequeue")
    database(store / "consumequeue")
    judged = run("verify", store, "-o", "json").expect(1)
    assert categories(judged) == {"body-crc"}
    assert [finding["next"] for finding in judged.json()["findings"]] == [None, None]


@pytest.mark.parametrize("make", ["rocksdb", "double", "older queues"])
def test_what_lies_behind_damage_is_read(tmp_path: Path, make: str) -> None:
    """No command needs rows to go on behind a record without a head."""
    makes = {"rocksdb": rocksdb_store, "double": orders().write, "older queues": older_queues}
    store = makes[make](tmp_path / "s")
    database(store / "consumequeue")
    places = [row["physical_offset"] for row in run("read", store, "-o", "jsonl").jsonl()]
    for place in (places[30], places[50]):
        with (store / f"commitlog/{place // 4096 * 4096:020d}").open("r+b") as file:
            file.seek(place % 4096)
            file.write(bytes(20))
    left = [place for place in places if place not in (places[30], places[50])]
    rows = run("read", store, "-o", "jsonl").expect(1).jsonl()
    assert [row["physical_offset"] for row in rows] == left
    for words in (("stats",), ("info",), ("verify",), ("tail", "-n", "50"), ("carve",)):
        run(words[0], store, *words[1:]).expect(0, 1, 3 if words[0] == "verify" else 0)


def test_a_killed_young_data_base_and_a_damaged_one(tmp_path: Path) -> None:
    young = rocksdb_store(tmp_path / "young")
    (young / "consumequeue/000009.sst").unlink()
    assert layout_of(young)["consumequeue"] == "rocksdb"
    damaged = rocksdb_store(tmp_path / "damaged")
    (damaged / "consumequeue/CURRENT").unlink()
    assert layout_of(damaged)["consumequeue"] == "rocksdb"
    nothing_is_planned(damaged)
    no_database = orders().write(tmp_path / "none")
    (no_database / "consumequeue/CURRENT").write_bytes(b"hello\n")
    assert layout_of(no_database)["consumequeue"] == "file"
    run("verify", no_database).expect(0)


def test_double_write(tmp_path: Path) -> None:
    store = orders().write(tmp_path / "s")
    database(store / "consumequeue")
    assert layout_of(store)["consumequeue"] == "double"
    judged = run("verify", store, "-o", "json").expect(0)
    assert judged.json()["coverage"]["consumequeue_rows"] == 60
    assert "the database is only compared" in judged.json()["findings"][0]["detail"]
    run("preflight", store).expect(0)
    run("offsets", store).expect(0)
    nothing_is_planned(store, TWICE)
    run("recover", store).expect(0)


def older_queues(folder: Path) -> Path:
    """A store whose consumequeue files end before its log does, beside a data base."""
    writer = orders(count=40)
    writer.write(folder)
    for number in range(40, 60):
        writer.put("orders", b"later %d" % number, queue_id=number % 3, row=False)
    writer.layout = Layout(log_file_size=4096, queue_file_units=20, with_queues=False)
    store = writer.write(folder)
    database(store / "consumequeue")
    return store


@pytest.mark.usefixtures("no_library")
def test_a_store_that_went_over_to_rocksdb(tmp_path: Path) -> None:
    store = older_queues(tmp_path / "s")
    database(store / "config/topics")
    assert layout_of(store) == {"commitlog": "plain", "consumequeue": "rocksdb",
                                "config": "rocksdb-v1"}
    judged = run("verify", store, "-o", "json").expect(3)
    assert categories(judged) == set()
    assert any("left over" in finding["detail"] for finding in judged.json()["findings"])
    assert "out of date" in run("config", store, "topics").expect(3).err
    nothing_is_planned(store)


def test_preflight_of_a_configuration_that_is_not_read(tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues in files, offsets of groups in RocksDB, and no library: these are not judged."""
    whole = Writer(Layout(), seed=3)
    for number in range(20):
        whole.put("orders", b"body %d" % number)
    store = whole.write(tmp_path / "s")
    run("preflight", store).expect(0)
    database(store / "config/rdb")
    monkeypatch.setattr("rmqctl.store.layout.require", without_library)
    judged = run("preflight", store, "-o", "json").expect(3)
    assert [structure["structure"] for structure in judged.json()["not_judged"]] == ["config"]
    assert "not checked: config" in judged.err
    assert "as far as known" in run("preflight", store).expect(3).out
    # What queues tell of lost messages is no less true.
    for file in (store / "commitlog").iterdir():
        with file.open("r+b") as log:
            log.seek(whole.puts[15].physical)
            log.write(bytes(file.stat().st_size - whole.puts[15].physical))
    lost = run("preflight", store, "-o", "json").expect(1).json()
    assert lost["messages_already_lost"] == 5
    assert [structure["structure"] for structure in lost["not_judged"]] == ["config"]


def test_files_that_lag_beside_a_data_base(tmp_path: Path) -> None:
    """A double-writing broker that was killed reads its files; without topics nothing says so."""
    lagging = older_queues(tmp_path / "s")
    assert layout_of(lagging)["consumequeue"] == "double"
    run("verify", lagging).expect(1)
    shutil.rmtree(lagging / "config")
    judged = run("verify", lagging, "-o", "json").expect(3)
    assert "it is unknown which" in judged.json()["not_judged"][0]["reason"]
    nothing_is_planned(lagging)


@pytest.mark.parametrize(("name", "expected"), [
    ("5.3.3/rocksdb-config-v1", ("plain", "rocksdb", "rocksdb-v1")),
    ("5.3.3/rocksdb-config-v1-kill", ("plain", "rocksdb", "rocksdb-v1")),
    ("5.3.3/rocksdb-config-v2", ("plain", "file", "rocksdb-v2")),
    ("5.3.3/rocksdb-import", ("plain", "rocksdb", "rocksdb-v1")),
    ("5.3.3/controller", ("plain", "file", "json")),
    ("5.3.3/dledger", ("dledger", "file", "json")),
    ("4.9.3/dledger", ("dledger", "file", "json"))])
def test_stores_of_the_engine(unpacked: Callable[[str], Path], name: str,
                              expected: tuple[str, str, str]) -> None:
    store = unpacked(name)
    assert tuple(layout_of(store).values()) == expected
    rowless = name.endswith("import")  # the record at 0 gets no row (spec: rocksdb.md §4)
    judged = run("verify", store, "-o", "json").expect(1 if rowless else 0)
    assert categories(judged) == ({"cq-missing-entry"} if rowless else set())
    if name.endswith("controller"):
        action, = run("preflight", store, "-o", "json").expect(0).json()["actions"]
        assert action["to"] == {"confirm_phy_offset": 42709}  # as the engine left it
    else:
        nothing_is_planned(store, MENDED if "dledger" in name else ())


# -- DLedger --------------------------------------------------------------------------------------


def entries(writer: Writer, base: int) -> bytes:
    """The records as DLedger entries from ``base`` on."""
    out = b""
    for number, put in enumerate(writer.puts):
        at = base + len(out)
        raw = put.raw[:28] + struct.pack(">q", at + 48) + put.raw[36:]
        out += struct.pack(">iiqqqiiii", 1, 48 + len(raw), number, 1, at, 0, 0, 0, len(raw)) + raw
    return out


@pytest.mark.parametrize("beside", ["dledger", "mixed", "elsewhere"])
def test_dledger(tmp_path: Path, beside: str) -> None:
    store = orders().write(tmp_path / "s")
    shutil.rmtree(store / "consumequeue")
    log = store / "commitlog"
    base = 0
    if beside == "mixed":
        last = max(os.listdir(log))
        base, used = int(last) + 4096, orders().end - int(last)
        with (log / last).open("r+b") as file:  # a broker closes it when it goes over to DLedger
            file.seek(used)
            file.write(struct.pack(">iI", 4096 - used, 0xCBD43194))
    else:
        shutil.rmtree(log)
    data = log if beside == "elsewhere" else store / "dledger-n0/data"
    data.mkdir(parents=True)
    (data / f"{base:020d}").write_bytes(entries(orders(), base).ljust(1 << 16, b"\0"))
    assert layout_of(store)["commitlog"] == ("mixed" if beside == "mixed" else "dledger")
    count = 120 if beside == "mixed" else 60
    rows = run("read", store, "-o", "jsonl").expect(0).jsonl()
    assert [row["physical_offset"] for row in rows][-60] == base + 48
    assert len(rows) == count
    assert run("stats", store, "-o", "json").expect(0).json()["total"]["messages"] == count
    last, = run("tail", store, "-n", "1", "-o", "jsonl").expect(0).jsonl()
    assert last == rows[-1]
    run("diff", store, store).expect(0)
    run("config", store, "topics").expect(0)
    nothing_is_planned(store, DERIVED if beside == "elsewhere" else MENDED)


def test_of_several_nodes_none_is_guessed(tmp_path: Path) -> None:
    store = tmp_path / "s"
    for number in range(2):
        data = store / f"dledger-n{number}/data"
        data.mkdir(parents=True)
        (data / f"{0:020d}").write_bytes(entries(orders(count=20 + number), 0).ljust(
            1 << 15, b"\0"))
    for words in (("read", store), ("stats", store), ("tail", store), ("diff", store, store),
                  ("offsets", store), ("recover", "table", store)):
        result = run(*words).expect(3)
        assert "--commitlog-dir dledger-n0/data" in result.err
        assert result.out == ""
    answer = run("doctor", store, "-o", "json").expect(3).json()
    assert "--commitlog-dir dledger-n0/data" in answer["verdict"]
    assert (answer["sound"], answer["starts"], answer["messages"]) == (None, None, None)
    assert {structure["structure"]
            for structure in answer["not_judged"]} >= {"commitlog", "consumequeue"}
    assert "lost" not in run("doctor", store).expect(3).out
    nothing_is_planned(store)
    for number in range(2):
        rows = run("read", store, "--commitlog-dir", f"dledger-n{number}/data",
                   "-o", "jsonl").expect(0).jsonl()
        assert len(rows) == 20 + number
    conf = tmp_path / "broker.conf"
    conf.write_text("enableDLegerCommitLog=true\ndLegerSelfId=n1\n")
    assert len(run("read", store, "--broker-conf", conf, "-o", "jsonl").expect(0).jsonl()) == 21


# -- a log in several folders ---------------------------------------------------------------------


def spread(store: Path, places: list[Path]) -> None:
    """Moves the files of the log to several folders, in turn."""
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(sorted((store / "commitlog").iterdir())):
        place = places[number % len(places)]
        if place != store / "commitlog":
            file.rename(place / file.name)
    if store / "commitlog" not in places:
        (store / "commitlog").rmdir()


SPREADS = {
    "in the root": lambda s: [s / "cl1", s / "cl2"],
    "disks in the root": lambda s: [s / "disk1/commitlog", s / "disk2/commitlog"],
    "one beside": lambda s: [s / "commitlog", s.parent / "commitlog2"],
    "two disks beside": lambda s: [s.parent / "disk1/commitlog", s.parent / "disk2/commitlog"],
    "other disk, same names": lambda s: [s / "commitlog", s.parent / "disk2" / s.name
                                         / "commitlog"],
    "one folder of another name": lambda s: [s / "log"],
    "one folder beside": lambda s: [s.parent / "commitlog"],
}


@pytest.mark.parametrize("name", SPREADS)
@pytest.mark.parametrize("queues", [True, False])
def test_multi_path(tmp_path: Path, name: str, queues: bool) -> None:
    layout = Layout(log_file_size=4096, queue_file_units=20, with_queues=queues)
    store = orders(layout).write(tmp_path / "data/store")
    places = SPREADS[name](store)
    beside = [place for place in places if store not in place.parents]
    spread(store, places)
    if not queues and len(beside) == len(places):
        # Nothing ties these folders to this store but that they lie there: they must be named.
        assert run("verify", store, "-o", "json").json()["coverage"]["messages"] == 0
        return
    assert layout_of(store)["commitlog"] == ("multi-path" if len(places) > 1 else "plain")
    assert len(run("read", store, "-o", "jsonl").expect(0).jsonl()) == 60
    if queues:
        run("verify", store).expect(0)
        run("preflight", store).expect(0)
        assert run("recover", store, "-o", "json").expect(0).json()["actions"] == []
        new = ("write", store, "--topic", "orders", "--body", "x")
        if beside:
            run(*new).expect(6)  # only what lies there names the folders
        run(*new, *(word for place in beside for word in ("--write-outside", place))).expect(0)
        run("verify", store).expect(0)


@pytest.mark.parametrize("place", ["", "conf", "../conf"])
def test_multi_path_by_configuration(tmp_path: Path, place: str) -> None:
    """The folders of a broker.conf, moved with the store or where it says."""
    layout = Layout(log_file_size=4096, with_queues=False)
    store = orders(layout).write(tmp_path / "data/store")
    far = tmp_path / "elsewhere/very/far"
    spread(store, [store / "a/b/c", far])
    folder = store / place
    folder.mkdir(exist_ok=True)
    (folder / "broker.conf").write_text(
        "brokerName = broker-a\nstorePathRootDir=/home/rocketmq/store\n"
        f"storePathCommitLog=/home/rocketmq/store/a/b/c,{far}\n")
    assert layout_of(store)["commitlog"] == "multi-path"
    assert len(run("read", store, "-o", "jsonl").expect(0).jsonl()) == 60


def other_logs(store: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Folders with the files of a log that are none of this store's."""
    above = store.parent

    def of_another_store() -> None:
        other = Writer(Layout(log_file_size=4096, first_file=orders().end // 4096 * 4096 + 4096))
        for number in range(30):
            other.put("orders", b"other %d" % number)
        other.write(above / "store-b")

    def copies() -> None:
        shutil.copytree(store / "commitlog", store / "commitlog.bak")
        shutil.copytree(store / "commitlog", above / "commitlog-copy")

    def alone_and_continuing() -> None:
        of_another_store()
        (above / "store-b/commitlog").rename(above / "commitlog-b")
        shutil.rmtree(above / "store-b")

    def lying() -> None:
        (store / "junk").mkdir()
        (store / "junk" / f"{1 << 20:020d}").write_bytes(b"\1" * 4096)

    yield "another store", of_another_store
    yield "copies", copies
    yield "continues, but nothing leads there", alone_and_continuing
    yield "no log at all", lying


@pytest.mark.parametrize("number", range(4))
def test_what_is_no_part_of_the_log(tmp_path: Path, number: int) -> None:
    store = orders().write(tmp_path / "data/store")
    name, make = list(other_logs(store))[number]
    make()
    assert layout_of(store)["commitlog"] == "plain", name
    judged = run("verify", store, "-o", "json").expect(0)
    assert judged.json()["coverage"]["messages"] == 60


def test_two_copies_of_all_folders_are_not_guessed_at(tmp_path: Path) -> None:
    store = orders().write(tmp_path / "data/store")
    spread(store, [store / "cl1", store / "cl2"])
    shutil.copytree(store / "cl1", store / "cl1.bak")
    judged = run("info", store, "-o", "json").expect(0).json()
    assert "--commitlog-dir" in str(judged["troubles"])
    run("verify", store, "--commitlog-dir", "cl1", "--commitlog-dir", "cl2").expect(0)
