"""`config check`: what a broker does not read of its configuration file, or reads otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.conf import java
from rmqctl.broker.conf.names import is_read, meant, table
from tests.conftest import GoldenFolder, Runner

STORE = "4.9.3/basic/store"


def checked(rmqctl: Runner, folder: Path, text: str, *words: object,
            code: int = 1) -> dict[tuple[str, str], dict[str, Any]]:
    """The findings by category and setting."""
    (folder / "broker.conf").write_text(text)
    answer = rmqctl("config", "check", folder / "broker.conf", *words, "-o", "json").expect(
        code).json()
    assert answer["ok"] == (code == 0)
    return {(finding["category"], finding["setting"]): finding for finding in answer["findings"]}


@pytest.mark.parametrize(("line", "release", "category", "severity", "expected_text"), [
    ("mapedFileSizeCommitLog=1", "4.9.3", "conf-name", "warning", "mappedFileSizeCommitLog?"),
    ("mapedFileSizeCommitLog=1", "4.5.1", None, "", ""),
    ("mappedFileSizeCommitLog=1", "4.5.1", "conf-name", "warning", "mapedFileSizeCommitLog?"),
    ("fileReserverdTime=9", "5.3.3", "conf-name", "warning", "did you mean fileReservedTime?"),
    ("timerWheelEnable=true", "4.9.3", "conf-name", "warning", "5.0.0 is the first"),
    ("commercialEnable=true", "5.3.3", "conf-name", "warning", "4.9.8 was the last"),
    ("ourOwnThing=1", "5.3.3", "conf-name", "info", "no release reads ourOwnThing"),
    ("fileReservedTime=48h", "5.3.3", "conf-value", "error", "the broker uses the default, 72"),
    ("fileReservedTime=48 ", "5.3.3", "conf-value", "error", "'48 ' is not a number"),
    ("autoCreateTopicEnable=yes", "5.3.3", "conf-value", "error", 'only "true" is true'),
    ("autoCreateTopicEnable=TRUE", "5.3.3", None, "", ""),
    ("brokerRole=MASTER", "5.3.3", "conf-value", "error", "SLAVE: the broker uses the default"),
    ("brokerRole=SLAVE ", "4.9.3", "conf-value", "error", "the broker uses the default"),
    ("brokerName=a ", "4.9.3", "conf-value", "error", "4.9.3 keeps the blanks"),
    ("brokerName=a ", "5.3.3", "conf-value", "info", "5.3.3 strips the blanks"),
    ('brokerName="a"', "5.3.3", "conf-value", "error", "the quotes are part"),
    ("brokerName=a # ours", "5.3.3", "conf-value", "error", "the comment is part of the value"),
    ("storePathRootDir=~/data", "5.3.3", "conf-value", "error", "variables or ~"),
    ("storePathEpochFile=/gone/x", "5.3.3", "conf-path", "warning", "/gone/x does not exist")])
def test_a_setting(line: str, release: str, category: str | None, severity: str, expected_text: str,
                   rmqctl: Runner, tmp_path: Path) -> None:
    setting = line.partition("=")[0]
    troubled = severity in ("error", "warning")
    check_answer = checked(rmqctl, tmp_path, f"# first\n{line}\n", "--broker-version", release,
                           code=int(troubled))
    about = {key: item for key, item in check_answer.items()
             if key[1] == setting and key[0] != "conf-default"}
    if category is None:
        assert about == {}
        return
    finding = about[category, setting]
    assert (finding["severity"], finding["line"]) == (severity, 2)
    assert expected_text in finding["detail"]


def test_the_last_of_several_counts(rmqctl: Runner, tmp_path: Path) -> None:
    finding = checked(rmqctl, tmp_path, "deleteWhen=01\n\ndeleteWhen=02\n")["conf-value",
                                                                            "deleteWhen"]
    assert "lines 1, 3" in finding["detail"]
    assert finding["value"] == "02"


def test_with_a_store(rmqctl: Runner, golden: GoldenFolder, tmp_path: Path) -> None:
    root = golden(STORE)
    check_answer = checked(rmqctl, tmp_path, f"storePathRootDir={root}\n", root)
    assert check_answer["conf-store", "storePathCommitLog"]["severity"] == "error"
    assert "~/store/commitlog" in check_answer["conf-default", "storePathCommitLog"]["detail"]
    assert check_answer["conf-default", "mappedFileSizeCommitLog"]["severity"] == "info"
    check_answer = checked(rmqctl, tmp_path, "\n".join((
        "storePathRootDir=/srv/a", f"storePathCommitLog={root}/commitlog",
        "storePathEpochFile=/srv/a/gone", "storePathBrokerIdentity=/srv/a/lock")),
        root, "--broker-version", "5.3.3")
    assert {key[1] for key in check_answer if key[0] == "conf-path"} == {"storePathEpochFile"}
    (tmp_path / "broker.conf").write_text(f"storePathRootDir={root}\n")
    page = rmqctl("config", "check", tmp_path / "broker.conf", root).expect(1).out
    assert "(for a 4.9.3 broker)" in page


def test_what_is_none(rmqctl: Runner, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert "no line NAME=VALUE" in rmqctl("config", "check", tmp_path / "empty").expect(2).err
    rmqctl("config", "check", tmp_path / "gone").expect(5)


def test_the_table_of_names() -> None:
    assert len(table()) > 450
    assert is_read("storePathRootDir", "4.0.0")
    assert not is_read("storepathRootDir", "4.0.0")
    assert not is_read("enableDLegerCommitLog", "4.4.0")
    assert is_read("dLegerSelfId", "4.5.0")
    assert {setting.kind for setting in table().values()} == {
        "int", "long", "double", "boolean", "String"}
    assert meant("nothing like it at all", "5.3.3") is None


@pytest.mark.parametrize(("kind", "text", "value"), [
    ("int", "+7", 7), ("int", "-2147483648", -(1 << 31)), ("long", "2147483648", 1 << 31),
    ("double", " 0.8 ", 0.8), ("double", "1.5f", 1.5), ("boolean", "TRUE", True),
    ("boolean", "true ", False), ("boolean", "1", False)])
def test_values_of_java(kind: str, text: str, value: object) -> None:
    assert java.value(kind, text, trims=False) == value


@pytest.mark.parametrize(("kind", "text"), [
    ("int", ""), ("int", " 7"), ("int", "7 "), ("int", "2147483648"), ("int", "0x10"),
    ("int", "1_000"), ("long", "7L"), ("double", "0,8"), ("double", "")])
def test_what_is_no_value_of_java(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match="^"):
        java.value(kind, text, trims=True)
