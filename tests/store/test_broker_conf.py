"""A broker's own configuration file: what is taken from it, and what is said of it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from rmqctl.errors import StoreIOError, UsageError
from rmqctl.store.broker_conf import BrokerConf, read_conf
from tests.conftest import GoldenFolder, Runner
from tests.support import golden as golden_sets

SIZES = ("mappedFileSizeCommitLog=32768", "mappedFileSizeConsumeQueue=440",
         "maxHashSlotNum=100", "maxIndexNum=200")
"""Those of the stores of the crash sets."""
CRASHED = "5.3.3/crash-base/store"
MULTI = "5.3.3/multipath/store"


def conf(folder: Path, *lines: str) -> Path:
    path = folder / "broker.conf"
    path.write_text("\n".join(("brokerName=a", "somethingElse=7", *lines)))
    return path


def read(folder: Path, *lines: str) -> BrokerConf:
    return read_conf(str(conf(folder, *lines)))


def test_what_matters_is_taken(tmp_path: Path) -> None:
    conf = read(tmp_path, "storePathRootDir=/data/store", "mappedFileSizeCommitLog=65536",
                "mappedFileSizeConsumeQueue=399", "maxHashSlotNum=10", "maxIndexNum=40",
                "enableLmq=TRUE", "messageIndexSafe=true", "storeType=defaultRocksDB",
                "enableDLegerCommitLog=true", "brokerRole=SLAVE", "messageDelayLevel=1s 5s")
    assert conf.values == {
        "commitlog_file_size": 65536, "consumequeue_file_size": 400, "index_slots": 10,
        "index_max": 40, "lmq": True, "role": "SLAVE", "message_delay_level": "1s 5s"}
    assert (conf.root, conf.store_type, conf.dledger) == ("/data/store", "defaultRocksDB", True)
    assert (conf.message_index_safe, conf.message_index, conf.notes) == (True, None, ())
    assert pickle.loads(pickle.dumps(conf)) == conf
    hash(conf)


def test_what_java_reads_otherwise_is_said(tmp_path: Path) -> None:
    conf = read(tmp_path, "mappedFileSizeCommitLog=1GiB", "maxHashSlotNum=10 ", "enableLmq=true ",
                "maxIndexNum=40", "maxIndexNum=50", "brokerRole=KING", "messageDelayLevel=x")
    assert conf.values == {"index_max": 50, "lmq": False}
    text = "\n".join(conf.notes)
    assert "mappedFileSizeCommitLog is '1GiB', which Java does not read as a number" in text
    assert "maxHashSlotNum is '10 '" in text
    assert "enableLmq is 'true ', which Java reads as false" in text
    assert "maxIndexNum is set twice: line 7 ('50') counts, not '40'" in text
    assert "'KING', which is not a broker role" in text
    assert "messageDelayLevel" in text


def test_paths_below_the_files_root_are_below_the_store(tmp_path: Path) -> None:
    root, other = tmp_path / "copy", tmp_path / "disk2"
    for path in (root / "commitlog", root / "more" / "log", other):
        path.mkdir(parents=True)
    (other / f"{0:020d}").write_bytes(b"\0")
    conf = read(tmp_path, "storePathRootDir=/data/store/",
                f"storePathCommitLog=/data/store/commitlog,/data/store/more/log,{other},/gone/log",
                "readOnlyCommitLogStorePaths=/data/store/commitlog")
    assert conf.folders(str(root)) == ("commitlog", "more/log", str(other))
    assert conf.multi_path
    text = "\n".join(conf.remarks(str(root)))
    assert "missing log folder /gone/log" in text
    assert f"belongs to the store /data/store/, not to {root}: {other} may also belong" in text


@pytest.mark.parametrize(("data", "expected_text"), [
    (b"", "no line NAME=VALUE"), (b"\0" * 100, "no line"), (b"\x7fELF\0=1", "no line"),
    (b"a=\\u12", "hexadecimal")])
def test_what_is_no_configuration(tmp_path: Path, data: bytes, expected_text: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=expected_text):
        read_conf(str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StoreIOError):
        read_conf(str(tmp_path / "nix"))
    os.truncate(conf(tmp_path), 2 << 20)
    with pytest.raises(UsageError, match="the limit is"):
        read_conf(str(tmp_path / "broker.conf"))


# -- in commands ----------------------------------------------------------------------------------


def test_an_option_wins_over_the_file_and_that_over_the_files(golden: GoldenFolder,
                                                              tmp_path: Path,
                                                              rmqctl: Runner) -> None:
    root = golden(CRASHED)
    file = conf(tmp_path, *SIZES, "mappedFileSizeCommitLog=131072")
    words = ["preflight", root, "-o", "json"]
    assert rmqctl(*words).expect(0, 1).json()["starts"]
    done = rmqctl(*words, "--broker-conf", file).expect(1)
    assert not done.json()["starts"]
    refusals = done.json()["refusals"]
    assert refusals[0] == ("mappedFileSizeCommitLog=131072: the broker expects log files of "
                           "131,072 bytes, but the files have 32,768; it does not start")
    assert "32768 bytes, expected 131072" in refusals[1]
    done = rmqctl(*words, "--broker-conf", file, "--commitlog-file-size", "32KiB")
    assert done.expect(0, 1).json()["starts"]


def test_preflight_knows_whether_the_index_counts(golden: GoldenFolder, tmp_path: Path,
                                                  rmqctl: Runner) -> None:
    root = golden("5.3.3/crash-crc/before")
    words = ["preflight", root, "-o", "json"]
    alone = rmqctl(*words).expect(1).json()
    assert any("messageIndexSafe" in difference for difference in alone["differences"])
    off = rmqctl(*words, "--broker-conf", conf(tmp_path, *SIZES)).expect(1).json()
    assert not any("messageIndexSafe" in difference for difference in off["differences"])
    assert off["next"] == [f"{alone['next'][0]} --broker-conf {conf(tmp_path, *SIZES)}"]
    same = {"differences": 0, "next": 0, "steps": 0, "assumed": 0, "configuration": 0}
    assert {**off, **same} == {**alone, **same}
    safe = rmqctl(*words, "--broker-conf", conf(
        tmp_path, *SIZES, "messageIndexSafe=true")).expect(1).json()
    assert safe["dispatch_from"] <= off["dispatch_from"]
    assert safe["index"]["entries_lost"] <= off["index"]["entries_lost"]
    none = rmqctl(*words, "--broker-conf", conf(
        tmp_path, *SIZES, "messageIndexEnable=false"))
    assert none.expect(1).json()["index"]["entries_added"] == 0 < off["index"]["entries_added"]


def test_several_folders_are_found_by_the_file(golden_copy: GoldenFolder, tmp_path: Path,
                                               rmqctl: Runner) -> None:
    root = golden_copy(MULTI)
    names = golden_sets.MULTI_PATH
    file = conf(tmp_path, "storePathRootDir=/there", "storePathCommitLog=" + ",".join(
        f"/there/{name}" for name in names))
    options = [word for name in names for word in ("--commitlog-dir", name)]
    words = ["read", root, "-o", "jsonl", "--body", "none"]
    assert rmqctl(*words, "--broker-conf", file).expect(0).out == rmqctl(
        *words, *options).expect(0).out != ""


def test_a_store_is_made_as_the_broker_will_have_it(tmp_path: Path, rmqctl: Runner) -> None:
    file = conf(tmp_path, "mappedFileSizeCommitLog=65536", "maxHashSlotNum=10", "maxIndexNum=40",
                "enableLmq=true")
    answer = rmqctl("init", tmp_path / "store", "--broker-conf", file, "--index-max", "80", "-o",
                    "json").expect(0).json()
    assert (answer["commitlog_file_size"], answer["index_slots"], answer["index_max"],
            answer["lmq"]) == (
                65536, 10, 80, True)


def test_every_command_with_such_options_takes_the_file(rmqctl: Runner) -> None:
    for row in rmqctl("commands", "-o", "json").expect(0).json():
        names = {name for option in row["options"] for name in option["names"]}
        if names & {"--consumequeue-file-size", "--index-slots", "--commitlog-file-size"} and (
                not row["name"].startswith(("tiered", "pipeline"))):
            assert "--broker-conf" in names, row["name"]


@pytest.mark.parametrize(("store", "line", "expected_text"), [
    (MULTI, "storePathCommitLog=/a/store/commitlog", "does not name several folders"),
    (CRASHED, "storeType=defaultRocksDB", "but the consume queues are files"),
    (CRASHED, "enableDLegerCommitLog=true", "this is not a DLedger log"),
    (CRASHED, "maxHashSlotNum=5000000", "maxHashSlotNum=5000000, but the files have 100")])
def test_where_file_and_store_differ_a_warning_says_so(store: str, line: str, expected_text: str,
                                                       golden: GoldenFolder, tmp_path: Path,
                                                       rmqctl: Runner) -> None:
    done = rmqctl("info", golden(store), "-q", "--broker-conf", conf(tmp_path, line))
    assert expected_text in done.expect(0, 1).err
    assert "differ" not in rmqctl("info", golden(CRASHED), "--broker-conf", conf(
        tmp_path, "mappedFileSizeCommitLog=32768")).expect(0).err
