"""preflight and doctor follow a broker's configuration file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GoldenFolder, Runner
from tests.support.cli import run

OLD, NEW = "4.9.3", "5.3.3"
BOTH = pytest.mark.parametrize("release", [OLD, NEW])
Settings = dict[str, object]
Change = Callable[[Settings, Path], Any]


class Case:
    """A copy of a sound store, with the configuration file that it was written with."""

    def __init__(self, folder: Path, golden: GoldenFolder, rmqctl: Runner, release: str,
                 name: str = "basic") -> None:
        self.folder, self.release, self._run = folder, release, rmqctl
        self.root = folder / "store"
        shutil.copytree(golden(f"{release}/{name}/store"), self.root)
        written = json.loads((golden(f"{release}/{name}") / "expect.json").read_text())["config"]
        self.sizes: Settings = {key: value for key, value in written.items()
                                if key.startswith(("mapp", "max"))}
        self.settings: Settings = {"storePathRootDir": self.root,
                                   "storePathCommitLog": self.root / "commitlog", **self.sizes}
        self.conf = folder / "broker.conf"

    def run(self, command: str, *words: str) -> Any:
        self.conf.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        version = () if command == "verify" else ("--broker-version", self.release)
        return self._run(command, self.root, "--broker-conf", self.conf, *version, *words, "-o",
                         "json")

    def preflight(self, code: int) -> dict[str, Any]:
        return self.run("preflight").expect(code).json()

    def told(self, effect: str) -> dict[str, Any]:
        """What a start costs, which preflight and doctor agree on."""
        made = self.preflight(1)
        found = self.run("doctor").expect(1).json()
        assert not found["sound"]
        assert found["configuration"] == made["configuration"]
        assert effect in {one["effect"] for one in made["configuration"]}
        assert made["next"][0].startswith(f"rmqctl config check {self.conf}")
        assert made["starts"] == (effect != "refuses")
        return made


@pytest.fixture
def case(tmp_path: Path, golden: GoldenFolder, rmqctl: Runner) -> Callable[..., Case]:
    return lambda release, name="basic": Case(tmp_path, golden, rmqctl, release, name)


@BOTH
def test_the_file_that_the_store_was_written_with(case: Callable[..., Case],
                                                  release: str) -> None:
    made = case(release).preflight(0)
    assert (made["starts"], made["configuration"], made["assumed"]) == (True, [], {})


@BOTH
@pytest.mark.parametrize("place", ["missing", "empty", "misspelt", "quoted", "blank before slash"])
def test_a_log_in_another_folder_is_not_read(case: Callable[..., Case], release: str,
                                             place: str) -> None:
    one = case(release)
    folder = {"missing": one.folder / "disk2" / "log", "empty": one.folder / "empty",
              "misspelt": one.root / "commit-log", "quoted": f'"{one.root}/commitlog"',
              "blank before slash": f"{one.root}/commitlog /x"}[place]
    if place == "empty":
        Path(str(folder)).mkdir()
    one.settings["storePathCommitLog"] = folder
    made = one.told("loses")
    assert made["messages_lost"] == made["messages"] == 600
    assert made["rows_lost"] == 600
    assert made["messages_already_lost"] == 0
    told = next(told for told in made["configuration"] if told["effect"] == "loses")
    assert told["setting"] == "storePathCommitLog"
    assert str(folder) in told["detail"]


@BOTH
@pytest.mark.parametrize("setting", ["storePathRootDir", "storePathCommitLog"])
def test_blanks_after_a_path_are_part_of_it_before_5_2(case: Callable[..., Case], release: str,
                                                       setting: str) -> None:
    one = case(release)
    one.settings[setting] = f"{one.settings[setting]} "
    if release == NEW:
        assert one.preflight(0)["configuration"] == []
        return
    assert setting in {told["setting"] for told in one.told("loses")["configuration"]}


@pytest.mark.parametrize(("release", "code"), [("4.9.3", 1), ("4.9.4", 0), ("5.3.3", 0)])
def test_the_log_is_below_the_root_since_4_9_4(case: Callable[..., Case], release: str,
                                               code: int) -> None:
    one = case(OLD if release < "5" else NEW)
    del one.settings["storePathCommitLog"]
    one.release = release
    made = one.preflight(code)
    assert bool(made["configuration"]) == bool(code)


@BOTH
@pytest.mark.parametrize("root", ["{empty}", "{beside}", "'{store}'", "${{HOME}}/store", "~/store",
                                  ""])
def test_another_root_serves_nothing_of_the_store(case: Callable[..., Case], release: str,
                                                  root: str) -> None:
    one = case(release)
    (one.folder / "empty").mkdir()
    one.settings["storePathRootDir"] = root.format(
        empty=one.folder / "empty", beside=one.folder / "stroe", store=one.root)
    made = one.told("loses")
    assert made["messages_lost"] == 0
    assert made["actions"] == []
    del one.settings["storePathCommitLog"]
    assert one.told("loses")["messages_lost"] == 600


@BOTH
def test_a_store_from_another_machine_stands_in_its_place(case: Callable[..., Case],
                                                          release: str) -> None:
    one = case(release)
    one.settings |= {"storePathRootDir": "/srv/rocketmq/a",
                     "storePathCommitLog": "/srv/rocketmq/a/commitlog"}
    made = one.preflight(0)
    assert (made["configuration"], made["assumed"]) == ([], {"storePathRootDir": str(one.root)})
    one.settings["storePathCommitLog"] = "/srv/log"
    assert one.told("loses")["messages_lost"] == 600


def test_a_root_that_exists_is_a_copy_or_another_store(case: Callable[..., Case],
                                                       golden: GoldenFolder) -> None:
    one = case(OLD)
    other = one.folder / "other" / "data"
    one.settings |= {"storePathRootDir": other, "storePathCommitLog": other / "commitlog"}
    shutil.copytree(one.root, other)
    assert one.preflight(0)["assumed"] == {"storePathRootDir": str(one.root)}
    shutil.rmtree(other)
    shutil.copytree(golden("4.9.3/delay-delivered/store"), other)
    assert one.told("loses")["configuration"][0]["setting"] == "storePathRootDir"


_SIZES = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue")


def _renamed(name: str, other: str) -> Change:
    def change(settings: Settings, _: Path) -> None:
        settings[other] = settings.pop(name)
    return change


@BOTH
@pytest.mark.parametrize("setting", _SIZES)
@pytest.mark.parametrize("way", ["absent", "blank", "tab", "comment", "quotes", "decimal", "unit",
                                 "case", "old name", "other"])
def test_a_size_that_the_broker_does_not_read(case: Callable[..., Case], release: str,
                                              setting: str, way: str) -> None:
    one = case(release)
    value = one.settings[setting]
    if way in ("absent", "case", "old name"):
        del one.settings[setting]
        if way != "absent":
            one.settings[setting.lower() if way == "case"
                         else setting.replace("mapped", "maped")] = value
    else:
        one.settings[setting] = {
            "blank": f"{value} ", "tab": f"{value}\t", "comment": f"{value} # bytes",
            "quotes": f'"{value}"', "decimal": f"{value}.0", "unit": f"{value}B",
            "other": 1 << 20}[way]
    made = one.told("refuses")
    assert setting in made["refusals"][0]
    assert "does not start" in made["refusals"][0]


@pytest.mark.parametrize("given", ["+65536", "0065536"])
def test_numbers_that_java_reads(case: Callable[..., Case], given: str) -> None:
    one = case(NEW)
    one.settings["mappedFileSizeCommitLog"] = given
    one.preflight(0)


def test_the_old_names_counted_up_to_4_5_1(case: Callable[..., Case]) -> None:
    one = case(OLD)
    for setting in _SIZES:
        _renamed(setting, setting.replace("mapped", "maped"))(one.settings, one.root)
    one.release = "4.5.1"
    assert one.preflight(0)["starts"]
    one.release = "4.5.2"
    assert not one.preflight(1)["starts"]


def test_an_option_wins_over_the_file(case: Callable[..., Case]) -> None:
    one = case(OLD)
    one.settings["mappedFileSizeCommitLog"] = 1 << 20
    one.settings["storePathCommitLog"] = "/gone"
    made = one.run("preflight", "--commitlog-file-size", "65536", "--commitlog-dir",
                   "commitlog").expect(0).json()
    assert made["starts"]
    assert made["messages_lost"] == 0


@BOTH
def test_an_index_of_another_shape_finds_nothing(case: Callable[..., Case], release: str) -> None:
    one = case(release)
    del one.settings["maxHashSlotNum"]
    assert "key lookups find nothing" in one.told("loses")["configuration"][0]["detail"]


@BOTH
@pytest.mark.parametrize("value", [None, "false", "true ", "yes"])
def test_a_dledger_log_without_dledger(case: Callable[..., Case], release: str,
                                       value: str | None) -> None:
    one = case(release, "dledger")
    if value is not None:
        one.settings["enableDLegerCommitLog"] = value
    made = one.told("loses")
    assert made["rows_lost"]
    assert made["messages_lost"] == made["messages"] > 0
    assert made["configuration"][0]["setting"] == "enableDLegerCommitLog"


@BOTH
def test_a_plain_log_goes_on_in_dledger(case: Callable[..., Case], release: str) -> None:
    one = case(release)
    one.settings |= {"enableDLegerCommitLog": "true", "dLegerGroup": "g",
                     "dLegerPeers": "n0-127.0.0.1:40911", "dLegerSelfId": "n0"}
    (told,) = one.preflight(0)["configuration"]
    assert told["effect"] == "differs"
    assert "dledger-n0/data" in told["detail"]


@BOTH
def test_dledger_with_and_without_what_it_needs(case: Callable[..., Case],
                                                release: str) -> None:
    one = case(release, "dledger")
    one.settings |= {"enableDLegerCommitLog": "true", "dLegerGroup": "g",
                     "dLegerPeers": "n0-127.0.0.1:40911", "dLegerSelfId": "n0"}
    one.preflight(0)
    one.settings["dLegerSelfId"] = "n1"  # another member, whose log is not here
    assert one.told("loses")["messages_lost"]
    del one.settings["dLegerSelfId"]
    assert "dLegerSelfId" in one.told("refuses")["refusals"][0]


@pytest.mark.parametrize(("setting", "effect"), [
    ("brokerName", "unserved"), ("brokerClusterName", "unserved")])
def test_another_identity_is_never_registered(case: Callable[..., Case], setting: str,
                                              effect: str) -> None:
    one = case(NEW, "controller")
    cluster, name, _ = (one.root / "brokerIdentity").read_text().split("#")
    one.settings |= {"enableControllerMode": "true", "brokerClusterName": cluster,
                     "brokerName": name}
    assert one.preflight(0)["configuration"] == []
    one.settings[setting] = "another"
    assert "brokerIdentity" in one.told(effect)["configuration"][0]["detail"]
    one.settings["enableControllerMode"] = "false"
    one.preflight(0)


@BOTH
def test_a_log_in_the_root(case: Callable[..., Case], release: str) -> None:
    one = case(release)
    for file in sorted((one.root / "commitlog").iterdir()):
        file.rename(one.root / file.name)
    (one.root / "commitlog").rmdir()
    one.settings["storePathCommitLog"] = one.root
    assert "checkpoint and lock" in one.told("refuses")["refusals"][0]
    done = one.run("recover").expect(6)
    assert "Nothing was changed" in done.err


@BOTH
def test_repairs_work_on_the_files_that_are_there(case: Callable[..., Case],
                                                  release: str) -> None:
    one = case(release)
    log = sorted((one.root / "commitlog").iterdir())[1]
    with log.open("r+b") as file:
        file.seek(8192)
        file.write(bytes(500))
    expected = [one.run(command).json() for command in ("verify", "recover")]
    one.settings |= {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6_000_000,
                     "maxHashSlotNum": 5000, "storePathCommitLog": "/gone"}
    wrong = [one.run(command).json() for command in ("verify", "recover")]
    assert wrong[0]["findings"] == expected[0]["findings"]
    assert wrong[1]["actions"] == expected[1]["actions"]
    one.settings |= one.sizes
    refused = one.run("recover", "--strategy", "broker").expect(6)
    assert "storePathCommitLog" in refused.err


def test_a_slave_without_an_id(case: Callable[..., Case]) -> None:
    one = case(NEW)
    one.settings["brokerRole"] = "SLAVE"
    assert "brokerId" in one.told("refuses")["refusals"][0]
    one.settings["brokerId"] = 1
    one.preflight(0)


def test_without_the_file_it_says_what_it_assumed(case: Callable[..., Case],
                                                  rmqctl: Runner) -> None:
    one = case(OLD)
    made = rmqctl("preflight", one.root, "-o", "json").expect(0).json()
    assert made["assumed"] == {
        "storePathRootDir": str(one.root), "storePathCommitLog": str(one.root / "commitlog"),
        "enableDLegerCommitLog": False, "storeType": "default",
        "mappedFileSizeCommitLog": int(str(one.settings["mappedFileSizeCommitLog"])),
        "mappedFileSizeConsumeQueue": int(str(one.settings["mappedFileSizeConsumeQueue"]))}
    assert "assumed: mappedFileSizeCommitLog=" in rmqctl("preflight", one.root).out


@pytest.mark.parametrize(("name", "other"), [
    ("fileReserverdTime", "fileReservedTime"), ("deletWhen", "deleteWhen"),
    ("FlushDiskType", "flushDiskType")])
def test_names_that_are_not_read_are_named(case: Callable[..., Case], name: str,
                                           other: str) -> None:
    one = case(OLD)
    one.settings[name] = "7"
    (told,) = one.preflight(0)["configuration"]
    assert (told["setting"], told["effect"]) == (name, "ignored")
    assert f"did you mean {other}?" in told["detail"]


@pytest.mark.parametrize(("name", "conf", "code"), [
    ("rocksdb", "default", 0), ("rocksdb", "defaultRocksDB", 0), ("rocksdb", "DEFAULTROCKSDB", 0),
    ("rocksdb-config-v1", "default", 1)])
def test_the_store_type_is_followed(case: Callable[..., Case], name: str, conf: str,
                                    code: int) -> None:
    pytest.importorskip("rocksdict")
    one = case(NEW, name)
    one.settings["storeType"] = conf
    made = one.preflight(code)
    effects = {told["effect"] for told in made["configuration"]}
    assert effects == ({"loses", "differs"} if code else {"differs"} if conf == "default"
                       else set())


def test_a_new_data_base_never_gets_the_first_message(case: Callable[..., Case]) -> None:
    """An empty data base is dispatched up to 0, and only later records get an entry."""
    pytest.importorskip("rocksdict")
    one = case(NEW)
    one.settings["storeType"] = "defaultRocksDB"
    made = one.preflight(1)
    assert (made["messages_lost"], made["unreachable"]) == (0, 1)
    said = one.run("doctor").expect(1).json()
    assert said["would_lose"] == 1
    assert "--consumequeue rocksdb" in said["next"][0]
    (one.root / "abort").touch()  # after an unclean end everything is dispatched
    assert one.preflight(0)["unreachable"] == 0


@pytest.mark.parametrize(("release", "name", "said"), [
    (OLD, "timerWheelEnable", "5.0.0 is the first that does"),
    (NEW, "somethingElse", "no release reads somethingElse")])
def test_a_name_that_is_not_read_is_told(case: Callable[..., Case], release: str, name: str,
                                         said: str) -> None:
    one = case(release)
    one.settings[name] = "7"
    (told,) = one.preflight(0)["configuration"]
    assert (told["setting"], told["effect"]) == (name, "ignored")
    assert said in told["detail"]


@pytest.mark.parametrize("hours", [0, -5])
def test_no_time_at_all_is_a_reserved_time(case: Callable[..., Case], hours: int) -> None:
    one = case(OLD)
    one.settings["fileReservedTime"] = hours
    for file in (one.root / "commitlog").iterdir():
        os.utime(file, (1, 1))
    disk = one.preflight(0)["disk"]
    assert (disk["reserved_hours"], disk["expires_files"]) == (hours, 4)


def test_a_log_that_was_found_elsewhere_is_an_assumption(golden_copy: GoldenFolder,
                                                         rmqctl: Runner) -> None:
    root = golden_copy("4.9.3/basic/store")
    assert "storePathCommitLog" not in rmqctl("preflight", root).expect(0).out
    (root / "commitlog").rename(root / "log")
    assert f"assumed: storePathCommitLog={root}/log" in rmqctl("preflight", root).expect(0).out


def test_impact_of_a_configuration_that_leads_to_another_log(golden_copy, tmp_path: Path):
    store, conf = golden_copy("4.9.3/basic/store"), tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={store}\nstorePathCommitLog={tmp_path / 'nowhere'}\n")
    shown = run("impact", store, "--broker-conf", conf).expect(1).out
    assert "which does not exist, and deletes all consume queues" in " ".join(shown.split())
