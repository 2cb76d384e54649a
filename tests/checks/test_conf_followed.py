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

    def answer(self, effect: str) -> dict[str, Any]:
        """What a start costs, which preflight and doctor agree on."""
        prediction = self.preflight(1)
        answer = self.run("doctor").expect(1).json()
        assert not answer["sound"]
        assert answer["configuration"] == prediction["configuration"]
        assert effect in {setting["effect"] for setting in prediction["configuration"]}
        assert prediction["next"][0].startswith(f"rmqctl config check {self.conf}")
        assert prediction["starts"] == (effect != "refuses")
        return prediction


@pytest.fixture
def case(tmp_path: Path, golden: GoldenFolder, rmqctl: Runner) -> Callable[..., Case]:
    return lambda release, name="basic": Case(tmp_path, golden, rmqctl, release, name)


@BOTH
def test_the_file_that_the_store_was_written_with(case: Callable[..., Case],
                                                  release: str) -> None:
    prediction = case(release).preflight(0)
    assert (prediction["starts"], prediction["configuration"], prediction["assumed"]) == (True, [],
                                                                                          {})


@BOTH
@pytest.mark.parametrize("place", ["missing", "empty", "misspelt", "quoted", "blank before slash"])
def test_a_log_in_another_folder_is_not_read(case: Callable[..., Case], release: str,
                                             place: str) -> None:
    scenario = case(release)
    folder = {"missing": scenario.folder / "disk2" / "log", "empty": scenario.folder / "empty",
              "misspelt": scenario.root / "commit-log", "quoted": f'"{scenario.root}/commitlog"',
              "blank before slash": f"{scenario.root}/commitlog /x"}[place]
    if place == "empty":
        Path(str(folder)).mkdir()
    scenario.settings["storePathCommitLog"] = folder
    prediction = scenario.answer("loses")
    assert prediction["messages_lost"] == prediction["messages"] == 600
    assert prediction["rows_lost"] == 600
    assert prediction["messages_already_lost"] == 0
    setting = next(item for item in prediction["configuration"] if item["effect"] == "loses")
    assert setting["setting"] == "storePathCommitLog"
    assert str(folder) in setting["detail"]


@BOTH
@pytest.mark.parametrize("setting", ["storePathRootDir", "storePathCommitLog"])
def test_blanks_after_a_path_are_part_of_it_before_5_2(case: Callable[..., Case], release: str,
                                                       setting: str) -> None:
    scenario = case(release)
    scenario.settings[setting] = f"{scenario.settings[setting]} "
    if release == NEW:
        assert scenario.preflight(0)["configuration"] == []
        return
    assert setting in {setting["setting"] for setting in scenario.answer("loses")["configuration"]}


@pytest.mark.parametrize(("release", "code"), [("4.9.3", 1), ("4.9.4", 0), ("5.3.3", 0)])
def test_the_log_is_below_the_root_since_4_9_4(case: Callable[..., Case], release: str,
                                               code: int) -> None:
    scenario = case(OLD if release < "5" else NEW)
    del scenario.settings["storePathCommitLog"]
    scenario.release = release
    prediction = scenario.preflight(code)
    assert bool(prediction["configuration"]) == bool(code)


@BOTH
@pytest.mark.parametrize("root", ["{empty}", "{beside}", "'{store}'", "${{HOME}}/store", "~/store",
                                  ""])
def test_another_root_serves_nothing_of_the_store(case: Callable[..., Case], release: str,
                                                  root: str) -> None:
    scenario = case(release)
    (scenario.folder / "empty").mkdir()
    scenario.settings["storePathRootDir"] = root.format(
        empty=scenario.folder / "empty", beside=scenario.folder / "stroe", store=scenario.root)
    prediction = scenario.answer("loses")
    assert prediction["messages_lost"] == 0
    assert prediction["actions"] == []
    del scenario.settings["storePathCommitLog"]
    assert scenario.answer("loses")["messages_lost"] == 600


@BOTH
def test_a_store_from_another_machine_stands_in_its_place(case: Callable[..., Case],
                                                          release: str) -> None:
    scenario = case(release)
    scenario.settings |= {"storePathRootDir": "/srv/rocketmq/a",
                          "storePathCommitLog": "/srv/rocketmq/a/commitlog"}
    prediction = scenario.preflight(0)
    assert (prediction["configuration"],
            prediction["assumed"]) == ([], {"storePathRootDir": str(scenario.root)})
    scenario.settings["storePathCommitLog"] = "/srv/log"
    assert scenario.answer("loses")["messages_lost"] == 600


def test_a_root_that_exists_is_a_copy_or_another_store(case: Callable[..., Case],
                                                       golden: GoldenFolder) -> None:
    scenario = case(OLD)
    other = scenario.folder / "other" / "data"
    scenario.settings |= {"storePathRootDir": other, "storePathCommitLog": other / "commitlog"}
    shutil.copytree(scenario.root, other)
    assert scenario.preflight(0)["assumed"] == {"storePathRootDir": str(scenario.root)}
    shutil.rmtree(other)
    shutil.copytree(golden("4.9.3/delay-delivered/store"), other)
    assert scenario.answer("loses")["configuration"][0]["setting"] == "storePathRootDir"


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
    scenario = case(release)
    value = scenario.settings[setting]
    if way in ("absent", "case", "old name"):
        del scenario.settings[setting]
        if way != "absent":
            scenario.settings[setting.lower() if way == "case"
                              else setting.replace("mapped", "maped")] = value
    else:
        scenario.settings[setting] = {
            "blank": f"{value} ", "tab": f"{value}\t", "comment": f"{value} # bytes",
            "quotes": f'"{value}"', "decimal": f"{value}.0", "unit": f"{value}B",
            "other": 1 << 20}[way]
    prediction = scenario.answer("refuses")
    assert setting in prediction["refusals"][0]
    assert "does not start" in prediction["refusals"][0]


@pytest.mark.parametrize("given", ["+65536", "0065536"])
def test_numbers_that_java_reads(case: Callable[..., Case], given: str) -> None:
    scenario = case(NEW)
    scenario.settings["mappedFileSizeCommitLog"] = given
    scenario.preflight(0)


def test_the_old_names_counted_up_to_4_5_1(case: Callable[..., Case]) -> None:
    scenario = case(OLD)
    for setting in _SIZES:
        _renamed(setting, setting.replace("mapped", "maped"))(scenario.settings, scenario.root)
    scenario.release = "4.5.1"
    assert scenario.preflight(0)["starts"]
    scenario.release = "4.5.2"
    assert not scenario.preflight(1)["starts"]


def test_an_option_wins_over_the_file(case: Callable[..., Case]) -> None:
    scenario = case(OLD)
    scenario.settings["mappedFileSizeCommitLog"] = 1 << 20
    scenario.settings["storePathCommitLog"] = "/gone"
    answer = scenario.run("preflight", "--commitlog-file-size", "65536", "--commitlog-dir",
                          "commitlog").expect(0).json()
    assert answer["starts"]
    assert answer["messages_lost"] == 0


@BOTH
def test_an_index_of_another_shape_finds_nothing(case: Callable[..., Case], release: str) -> None:
    scenario = case(release)
    del scenario.settings["maxHashSlotNum"]
    assert "key lookups find nothing" in scenario.answer("loses")["configuration"][0]["detail"]


@BOTH
@pytest.mark.parametrize("value", [None, "false", "true ", "yes"])
def test_a_dledger_log_without_dledger(case: Callable[..., Case], release: str,
                                       value: str | None) -> None:
    scenario = case(release, "dledger")
    if value is not None:
        scenario.settings["enableDLegerCommitLog"] = value
    prediction = scenario.answer("loses")
    assert prediction["rows_lost"]
    assert prediction["messages_lost"] == prediction["messages"] > 0
    assert prediction["configuration"][0]["setting"] == "enableDLegerCommitLog"


@BOTH
def test_a_plain_log_goes_on_in_dledger(case: Callable[..., Case], release: str) -> None:
    scenario = case(release)
    scenario.settings |= {"enableDLegerCommitLog": "true", "dLegerGroup": "g",
                          "dLegerPeers": "n0-127.0.0.1:40911", "dLegerSelfId": "n0"}
    (setting,) = scenario.preflight(0)["configuration"]
    assert setting["effect"] == "differs"
    assert "dledger-n0/data" in setting["detail"]


@BOTH
def test_dledger_with_and_without_what_it_needs(case: Callable[..., Case],
                                                release: str) -> None:
    scenario = case(release, "dledger")
    scenario.settings |= {"enableDLegerCommitLog": "true", "dLegerGroup": "g",
                          "dLegerPeers": "n0-127.0.0.1:40911", "dLegerSelfId": "n0"}
    scenario.preflight(0)
    scenario.settings["dLegerSelfId"] = "n1"  # another member, whose log is not here
    assert scenario.answer("loses")["messages_lost"]
    del scenario.settings["dLegerSelfId"]
    assert "dLegerSelfId" in scenario.answer("refuses")["refusals"][0]


@pytest.mark.parametrize(("setting", "effect"), [
    ("brokerName", "unserved"), ("brokerClusterName", "unserved")])
def test_another_identity_is_never_registered(case: Callable[..., Case], setting: str,
                                              effect: str) -> None:
    scenario = case(NEW, "controller")
    cluster, name, _ = (scenario.root / "brokerIdentity").read_text().split("#")
    scenario.settings |= {"enableControllerMode": "true", "brokerClusterName": cluster,
                          "brokerName": name}
    assert scenario.preflight(0)["configuration"] == []
    scenario.settings[setting] = "another"
    assert "brokerIdentity" in scenario.answer(effect)["configuration"][0]["detail"]
    scenario.settings["enableControllerMode"] = "false"
    scenario.preflight(0)


@BOTH
def test_a_log_in_the_root(case: Callable[..., Case], release: str) -> None:
    scenario = case(release)
    for file in sorted((scenario.root / "commitlog").iterdir()):
        file.rename(scenario.root / file.name)
    (scenario.root / "commitlog").rmdir()
    scenario.settings["storePathCommitLog"] = scenario.root
    assert "checkpoint and lock" in scenario.answer("refuses")["refusals"][0]
    done = scenario.run("recover").expect(6)
    assert "Nothing was changed" in done.err


@BOTH
def test_repairs_work_on_the_files_that_are_there(case: Callable[..., Case],
                                                  release: str) -> None:
    scenario = case(release)
    log = sorted((scenario.root / "commitlog").iterdir())[1]
    with log.open("r+b") as file:
        file.seek(8192)
        file.write(bytes(500))
    expected = [scenario.run(command).json() for command in ("verify", "recover")]
    scenario.settings |= {"mappedFileSizeCommitLog": 1 << 20,
                          "mappedFileSizeConsumeQueue": 6_000_000,
                          "maxHashSlotNum": 5000, "storePathCommitLog": "/gone"}
    wrong = [scenario.run(command).json() for command in ("verify", "recover")]
    assert wrong[0]["findings"] == expected[0]["findings"]
    assert wrong[1]["actions"] == expected[1]["actions"]
    scenario.settings |= scenario.sizes
    refused = scenario.run("recover", "--strategy", "broker").expect(6)
    assert "storePathCommitLog" in refused.err


def test_a_slave_without_an_id(case: Callable[..., Case]) -> None:
    scenario = case(NEW)
    scenario.settings["brokerRole"] = "SLAVE"
    assert "brokerId" in scenario.answer("refuses")["refusals"][0]
    scenario.settings["brokerId"] = 1
    scenario.preflight(0)


def test_without_the_file_it_says_what_it_assumed(case: Callable[..., Case],
                                                  rmqctl: Runner) -> None:
    scenario = case(OLD)
    answer = rmqctl("preflight", scenario.root, "-o", "json").expect(0).json()
    assert answer["assumed"] == {
        "storePathRootDir": str(scenario.root),
        "storePathCommitLog": str(scenario.root / "commitlog"),
        "enableDLegerCommitLog": False, "storeType": "default",
        "mappedFileSizeCommitLog": int(str(scenario.settings["mappedFileSizeCommitLog"])),
        "mappedFileSizeConsumeQueue": int(str(scenario.settings["mappedFileSizeConsumeQueue"]))}
    assert "assumed: mappedFileSizeCommitLog=" in rmqctl("preflight", scenario.root).out


@pytest.mark.parametrize(("name", "other"), [
    ("fileReserverdTime", "fileReservedTime"), ("deletWhen", "deleteWhen"),
    ("FlushDiskType", "flushDiskType")])
def test_names_that_are_not_read_are_named(case: Callable[..., Case], name: str,
                                           other: str) -> None:
    scenario = case(OLD)
    scenario.settings[name] = "7"
    (setting,) = scenario.preflight(0)["configuration"]
    assert (setting["setting"], setting["effect"]) == (name, "ignored")
    assert f"did you mean {other}?" in setting["detail"]


@pytest.mark.parametrize(("name", "conf", "code"), [
    ("rocksdb", "default", 0), ("rocksdb", "defaultRocksDB", 0), ("rocksdb", "DEFAULTROCKSDB", 0),
    ("rocksdb-config-v1", "default", 1)])
def test_the_store_type_is_followed(case: Callable[..., Case], name: str, conf: str,
                                    code: int) -> None:
    pytest.importorskip("rocksdict")
    scenario = case(NEW, name)
    scenario.settings["storeType"] = conf
    prediction = scenario.preflight(code)
    effects = {setting["effect"] for setting in prediction["configuration"]}
    assert effects == ({"loses", "differs"} if code else {"differs"} if conf == "default"
                       else set())


def test_a_new_data_base_never_gets_the_first_message(case: Callable[..., Case]) -> None:
    """An empty data base is dispatched up to 0, and only later records get an entry."""
    pytest.importorskip("rocksdict")
    scenario = case(NEW)
    scenario.settings["storeType"] = "defaultRocksDB"
    prediction = scenario.preflight(1)
    assert (prediction["messages_lost"], prediction["unreachable"]) == (0, 1)
    answer = scenario.run("doctor").expect(1).json()
    assert answer["would_lose"] == 1
    assert "--consumequeue rocksdb" in answer["next"][0]
    (scenario.root / "abort").touch()  # after an unclean end everything is dispatched
    assert scenario.preflight(0)["unreachable"] == 0


@pytest.mark.parametrize(("release", "name", "expected_text"), [
    (OLD, "timerWheelEnable", "5.0.0 is the first that does"),
    (NEW, "somethingElse", "no release reads somethingElse")])
def test_a_name_that_is_not_read_is_told(case: Callable[..., Case], release: str, name: str,
                                         expected_text: str) -> None:
    scenario = case(release)
    scenario.settings[name] = "7"
    (setting,) = scenario.preflight(0)["configuration"]
    assert (setting["setting"], setting["effect"]) == (name, "ignored")
    assert expected_text in setting["detail"]


@pytest.mark.parametrize("hours", [0, -5])
def test_no_time_at_all_is_a_reserved_time(case: Callable[..., Case], hours: int) -> None:
    scenario = case(OLD)
    scenario.settings["fileReservedTime"] = hours
    for file in (scenario.root / "commitlog").iterdir():
        os.utime(file, (1, 1))
    disk = scenario.preflight(0)["disk"]
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
