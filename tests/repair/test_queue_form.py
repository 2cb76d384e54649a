"""Consume queues of a store that has none left: the form is proven, or asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqctl.broker.queue_form import is_unproven
from rmqctl.store import Sizes, Store
from tests.support import snapshot
from tests.support.cli import run


def without_queues(golden_copy, name: str, *gone: str) -> Path:
    store = golden_copy(name)
    for word in ("consumequeue", *gone):
        shutil.rmtree(store / word, ignore_errors=True)
    return store


@pytest.mark.parametrize("name", ["rocksdb-crash-nocq/before", "rocksdb-clean-nocq/before"])
@pytest.mark.parametrize("strategy", ["salvage", "broker"])
def test_a_form_that_nothing_proves_is_asked_for(golden_copy, name: str, strategy: str):
    """Files in the place of a data base made a 5.3.3 broker serve one message less."""
    store = golden_copy(f"5.3.3/{name}")
    words = ("recover", store, "--strategy", strategy)
    before = snapshot.take(store)
    plan = run(*words, "-o", "json").expect(1).json()
    refused = run(*words, "--apply", "--yes").expect(6)
    assert [line for line in before.differences(snapshot.take(store))
            if not line.startswith("changed: . ")] == []
    assert "--consumequeue file" in refused.err
    assert "--consumequeue rocksdb" in refused.err
    assert plan["consumequeue_unproven"] is True
    assert [" ".join(step["command"].split()[-2:]) for step in plan["steps"]] == [
        "--consumequeue file", "--consumequeue rocksdb"]


def test_the_form_asked_for_is_made(golden_copy):
    store = golden_copy("5.3.3/rocksdb-crash-nocq/before")
    in_files = golden_copy("5.3.3/rocksdb-crash-nocq/before")
    run("recover", in_files, "--consumequeue", "file", "--apply", "--yes").expect(0)
    assert (in_files / "consumequeue/TP_audit_Topic/0").is_dir()
    run("recover", store, "--consumequeue", "rocksdb", "--apply", "--yes").expect(0)
    assert info(store)["layout"]["consumequeue"] == "rocksdb"
    assert run("recover", store, "-o", "json").expect(0).json()["actions"] == []
    # It is no way from one form to the other.
    for place, other in ((store, "file"), (in_files, "rocksdb")):
        result = run("recover", place, "--consumequeue", other).expect(2)
        assert f"rmqctl convert {place} --consumequeue {other}" in result.err


def test_doctor_asks_for_the_form(golden_copy):
    store = golden_copy("5.3.3/rocksdb-crash-nocq/before")
    log = store / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[5000:5200] = bytes(200)
    log.write_bytes(data)
    steps = [step["command"].split() for step in run(
        "doctor", store, "-o", "json").expect(1).json()["steps"]]
    assert [words[-2:] for words in steps[:3]] == [
        ["--from", "COPY"], ["--consumequeue", "file"], ["--consumequeue", "rocksdb"]]
    run(*steps[2][1:], "--apply", "--yes").expect(1)
    assert info(store)["layout"]["consumequeue"] == "rocksdb"


@pytest.mark.parametrize(("store_type", "form"), [
    ("storeType=defaultRocksDB", "rocksdb"), ("storeType=default", "file"), ("", "file")])
def test_the_configuration_file_proves_the_form(golden_copy, tmp_path: Path, store_type: str,
                                                form: str):
    store = golden_copy("5.3.3/rocksdb-crash-nocq/before")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=b\n{store_type}\n")
    run("recover", store, "--broker-conf", conf, "--apply", "--yes").expect(0)
    assert ((store / "consumequeue/CURRENT").exists()) == (form == "rocksdb")
    assert not (store / "abort").exists()


def test_a_configuration_in_rocksdb_proves_the_form(golden_copy):
    store = without_queues(golden_copy, "5.3.3/rocksdb-config-v1-kill/store")
    run("recover", store, "--apply", "--yes").expect(0)
    assert (store / "consumequeue/CURRENT").exists()


def test_config_rdb_proves_no_form(golden_copy):
    """configManagerVersion=v2 goes with both storeTypes."""
    store = without_queues(golden_copy, "5.3.3/rocksdb-config-v2/store")
    with Store.open(store) as opened:
        assert is_unproven(opened)
        assert not is_unproven(opened, "5.1.4")
        assert is_unproven(opened, "5.2.0")


def test_what_rocksdb_left_in_the_folder_proves_the_form(golden_copy):
    store = golden_copy("5.3.3/rocksdb-crash/before")
    for path in (store / "consumequeue").iterdir():
        if path.name == "CURRENT" or path.name.startswith("MANIFEST") or path.suffix == ".sst":
            path.unlink()
    assert info(store)["layout"]["consumequeue"] == "rocksdb"


@pytest.mark.parametrize("proof", ["topics.json", "consumerOffset.json.bak", "size"])
def test_files_are_proven(golden_copy, proof: str):
    store = golden_copy("5.3.3/rocksdb-crash-nocq/before")
    sizes = Sizes(consumequeue_file=300) if proof == "size" else Sizes()
    if proof != "size":
        (store / "config").mkdir()
        (store / "config" / proof).write_text("{}")
    with Store.open(store, (), sizes) as opened:
        assert not is_unproven(opened)


def test_releases_without_rocksdb_are_not_asked(golden_copy):
    store = golden_copy("4.9.3/crash-nocq/before")
    with Store.open(store) as opened:
        assert not is_unproven(opened)


def test_the_abort_file_stays_where_only_the_checkpoint_speaks_for_files(golden_copy):
    """With it a broker with RocksDB makes all queues; 5.2.0 to 5.3.2 note the same time."""
    store = golden_copy("5.3.3/crash-nocq/before")
    done = run("recover", store, "--apply", "--yes", "-o", "json").expect(0).json()
    assert (store / "abort").exists()
    assert any("that is the default" in note for note in done["notes"])
    assert (store / "consumequeue").is_dir()
    # The next repair leaves it there too, until the form is named: nobody has proven more since.
    again = run("recover", store, "--apply", "--yes", "-o", "json").expect(0).json()
    assert (again["applied"], again["actions"]) == (False, [])
    assert (store / "abort").exists()
    run("recover", store, "--consumequeue", "file", "--apply", "--yes").expect(0)
    assert not (store / "abort").exists()
    sure = golden_copy("5.3.3/crash-nocq/before")
    run("recover", sure, "--consumequeue", "file", "--apply", "--yes").expect(0)
    assert not (sure / "abort").exists()


@pytest.mark.parametrize("name", [
    "5.3.3/crash-nocq-noindex-nocheckpoint", "5.3.3/dledger-crash-nocq"])
def test_a_start_loses_nothing_behind_the_abort_file_that_stays(golden_copy, name: str):
    """The checkpoint vouches for the new index; DLedger's log gets no abort file, behind which a
    broker with files cuts entries off.
    """
    store = golden_copy(f"{name}/before")
    shutil.rmtree(store / "index", ignore_errors=True)
    run("recover", store, "--apply", "--yes").expect(0)
    assert (store / "abort").exists() == ("dledger" not in name)
    start = run("preflight", store, "-o", "json").expect(0).json()
    assert start["losses"] == []
    assert run("recover", store, "--consumequeue", "file", "-o", "json").expect(0)


@pytest.mark.parametrize("gone", ["checkpoint", "everything"])
def test_files_are_the_default_where_nothing_speaks_for_rocksdb(golden_copy, gone: str):
    """A log that was saved alone, or without its checkpoint, is repaired without a question."""
    store = golden_copy("5.3.3/basic/store")
    for path in store.iterdir():
        if path.name != "commitlog" and (gone == "everything" or path.name == "checkpoint"
                                         or path.name in ("consumequeue", "index", "config")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = run("recover", store, "--apply", "--yes", "-o", "json").expect(0).json()
    assert (store / "consumequeue/TP_fraud_Topic/0").is_dir()
    assert "consumequeue_unproven" not in done


def info(store: Path) -> dict:
    return run("info", store, "-o", "json").expect(0).json()


@pytest.mark.parametrize("words", [
    ("write", "--topic", "orders", "--body", "x"), ("append", "-"), ("flush",),
    ("serve", "--writable", "--listen", "127.0.0.1:0")], ids=lambda words: words[0])
def test_nothing_is_put_into_a_store_whose_queues_may_be_in_rocksdb(golden_copy, words) -> None:
    """Queues in files would be invisible to a broker that keeps them in RocksDB."""
    store = without_queues(golden_copy, "5.3.3/rocksdb/store")
    before = snapshot.take(store)
    command, *more = words
    refused = run(command, store, *more).expect(6)
    assert "--consumequeue rocksdb" in refused.err
    assert [line for line in before.differences(snapshot.take(store))
            if not line.startswith("changed: . ")] == []
