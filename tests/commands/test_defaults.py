"""Defaults from the environment and the configuration file: what wins, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.commands import REGISTRY
from rmqctl.commands.app.defaults import GENERAL, NEVER, config_path, variable
from rmqctl.commands.app.describe import parameters
from rmqctl.commands.app.lazy import load
from tests.support.cli import Result, run
from tests.support.tiny import Tiny


class Config:
    """A configuration file, and runs with it."""

    def __init__(self, home: Path) -> None:
        self.path = home / "rmqctl" / "config.toml"
        self.path.parent.mkdir()
        self._env = {"XDG_CONFIG_HOME": str(home)}

    def run(self, *words: str | Path, text: str | None = None, **variables: str) -> Result:
        if text is not None:
            self.path.write_text(text)
        return run(*words, env={**self._env, **variables})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "home").mkdir()
    return Config(tmp_path / "home")


def test_typed_before_environment_before_file_before_built_in(config: Config,
                                                              tiny_base: Tiny) -> None:
    words = ("read", tiny_base.root, "--fields", "queue_offset", "-o", "jsonl")
    assert len(config.run(*words).jsonl()) > 3
    text = "[read]\nlimit = 3\n"
    assert len(config.run(*words, text=text).jsonl()) == 3
    assert len(config.run(*words, RMQCTL_READ_LIMIT="2").jsonl()) == 2
    assert len(config.run(*words, "--limit", "1", RMQCTL_READ_LIMIT="2").jsonl()) == 1
    assert len(config.run(*words, "--count", "1", RMQCTL_READ_LIMIT="2").jsonl()) == 1
    assert len(config.run(*words, RMQCTL_READ_LIMIT="").jsonl()) == 3


def test_for_all_commands_and_for_one(config: Config, tiny_base: Tiny) -> None:
    time = ("query", "time", tiny_base.root, "-t", "orders", "-i", "0", "--time", "0")
    read = ("read", tiny_base.root, "--limit", "1", "--fields", "store_timestamp", "-o", "plain")
    both = '[defaults]\ntz = "+08:00"\n[query.time]\ntz = "+09:00"\n'
    assert "+09:00" in config.run(*time, text=both).expect(0).out
    assert "+08:00" in config.run(*read).expect(0).out
    assert "+07:00" in config.run(*read, RMQCTL_TZ="+07:00").expect(0).out
    assert "+06:00" in config.run(*read, RMQCTL_TZ="+07:00", RMQCTL_READ_TZ="+06:00").out
    assert "20.000Z" in config.run(*read, "--tz", "UTC", RMQCTL_TZ="+07:00").out


def test_each_kind_of_value(config: Config, tiny_base: Tiny) -> None:
    config.path.write_text(
        "[read]\nwhere = ['topic=orders', 'queue_id=1']\nquiet = 1\nfrom-phy = 200\n"
        "decompress = true\nbody = 'none'\noutput = 'jsonl'\n")
    rows = config.run("read", tiny_base.root).expect(0).jsonl()
    assert [row["physical_offset"] for row in rows] == [1197]
    assert "body" not in rows[0]
    rows = config.run("read", tiny_base.root, RMQCTL_READ_WHERE="topic=bills 'queue_id=0'",
                      RMQCTL_READ_DECOMPRESS="no", RMQCTL_READ_FROM_PHY="0").expect(0).jsonl()
    assert {row["topic"] for row in rows} == {"bills"}


def test_what_is_required_may_come_from_there(config: Config, tiny_base: Tiny) -> None:
    text = "[query.key]\ntopic = 'orders'\n"
    config.run("query", "key", tiny_base.root, "-k", "k1", text=text).expect(0)


@pytest.mark.parametrize(("text", "expected_text"), [
    ("[read]\nlimt = 3\n", ":2: read has no 'limt'. Did you mean 'limit'?"),
    ("\n[read]\ncount = 3\n", ":3: read has no 'count'. Did you mean 'limit'?"),
    ("[read]\nlimit = '3'\n", ":2: --limit expects an integer, got '3'"),
    ("[read]\nlimit = true\n", ":2: --limit expects an integer, got True"),
    ("[read]\ndecompress = 1\n", ":2: --decompress expects true or false, got 1"),
    ("[read]\nfrom-phy = 1.5\n", ":2: --from-phy expects text, got 1.5"),
    ("[read]\ntopic = ['a']\n", ":2: --topic expects text, got ['a']"),
    ("[read]\nbody = 'rot13'\n", ":2: expected one of"),
    ("[defaults]\ntz = 8\n", ":2: unknown time zone '8'"),
    ("[defaults]\nlimit = 8\n", ":2: defaults has no 'limit'"),
    ("[raed]\nlimit = 8\n", ":1: no command 'raed'. Did you mean 'read'"),
    ("[query.kay]\nlimit = 8\n", ":1: no command 'query kay'. Did you mean 'key'?"),
    ("[query]\ntz = 'UTC'\n", ":2: 'tz' must be in a table"),
    ("tz = 'UTC'\n", ":1: 'tz' must be in a table"),
    ("[read\n", "line 1"),
])
def test_what_is_wrong_in_the_file_is_told_with_its_place(config: Config, tiny_base: Tiny,
                                                          text: str, expected_text: str) -> None:
    done = config.run("read", tiny_base.root, text=text).expect(2)
    assert done.out == ""
    assert f"rmqctl: error: {config.path}" in done.err
    assert expected_text in done.err
    assert config.run("read", "--help").expect(0).err == ""
    assert config.run("--help").expect(0).err == ""


def test_bytes_that_are_no_text(config: Config, tiny_base: Tiny) -> None:
    config.path.write_bytes(b"[read]\nbody = '\xff'\n")
    assert str(config.path) in config.run("read", tiny_base.root).expect(2).err


@pytest.mark.parametrize(("name", "value"), [
    ("RMQCTL_READ_LIMIT", "many"), ("RMQCTL_READ_DECOMPRESS", "maybe"), ("RMQCTL_TZ", "Mars"),
    ("RMQCTL_READ_WHERE", "'topic=a"), ("RMQCTL_OUTPUT", "xml")])
def test_what_is_wrong_in_the_environment_names_its_variable(config: Config, tiny_base: Tiny,
                                                             name: str, value: str) -> None:
    assert f"error: {name}: " in config.run("read", tiny_base.root, **{name: value}).expect(2).err


def test_what_changes_a_store_is_never_taken_from_there(config: Config, tiny: Tiny) -> None:
    before = (tiny.root / "commitlog/00000000000000000000").read_bytes()
    for text, variables in (("[truncate]\napply = true\n", {}),
                            ("", {"RMQCTL_TRUNCATE_APPLY": "1"}), ("[truncate]\nyes = true\n", {}),
                            ("[defaults]\napply = true\n", {})):
        done = config.run("truncate", tiny.root, "--to-phy", "0", text=text, **variables).expect(2)
        assert "can only be given on the command line" in done.err
    assert (tiny.root / "commitlog/00000000000000000000").read_bytes() == before
    names = {name[2:] for spec in REGISTRY for parameter in parameters(load(spec))
             for name in parameter.names if name.startswith("--")}
    assert {"apply", "yes", "force", "abandon"} <= names & NEVER
    assert not {name for name in names if "force" in name or "overwrite" in name} - NEVER


def test_general_options_mean_one_thing() -> None:
    for key in GENERAL:
        kinds = {(parameter.type, parameter.repeatable) for spec in REGISTRY
                 for parameter in parameters(load(spec)) if f"--{key}" in parameter.names}
        assert len(kinds) <= 1, key


def test_verbose_says_where_a_value_is_from(config: Config, tiny_base: Tiny) -> None:
    words = ("read", tiny_base.root, "--limit", "1", "-o", "json")
    done = config.run(*words, "-v", text="[read]\nbody = 'none'\n", RMQCTL_TZ="+08:00").expect(0)
    assert "rmqctl: --tz is set in RMQCTL_TZ\n" in done.err
    assert f"rmqctl: --body is set in {config.path}:2\n" in done.err
    assert "--limit is set in" not in done.err
    assert "is from" not in config.run(*words, RMQCTL_TZ="+08:00").err


def test_where_the_file_is() -> None:
    assert config_path({"XDG_CONFIG_HOME": "/etc/x"}) == "/etc/x/rmqctl/config.toml"
    for unset in ({}, {"XDG_CONFIG_HOME": ""}, {"XDG_CONFIG_HOME": "relative"}):
        assert config_path(unset).endswith("/.config/rmqctl/config.toml")


def test_commands_name_the_variable(config: Config) -> None:
    rows = {row["name"]: row for row in config.run("commands", "-o", "json").json()}
    options = {option["names"][0]: option["env"] for option in rows["truncate"]["options"]}
    assert options["--to-phy"] == variable(("truncate",), "to-phy") == "RMQCTL_TRUNCATE_TO_PHY"
    assert options["--apply"] is None
