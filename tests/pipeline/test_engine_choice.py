"""--engine auto: what it takes for how much, and that it says so."""

from __future__ import annotations

import pytest

from rmqctl.commands.shared.spark_options import AUTO_FROM, chosen_engine, conf_of, named_stores
from rmqctl.errors import NotAStoreError, UsageError


@pytest.mark.parametrize(("engine", "master", "size", "chosen"), [
    ("auto", "local[*]", 1 << 50, "local"), ("auto", "spark://h:1", AUTO_FROM - 1, "local"),
    ("auto", "spark://h:1", AUTO_FROM, "spark"), (None, "yarn", AUTO_FROM, "spark"),
    ("spark", "local[*]", 0, "spark"), ("local", "yarn", 1 << 50, "local")])
def test_what_is_chosen(engine, master, size, chosen):
    name, why = chosen_engine(engine, master, size)
    assert name == chosen
    assert why


@pytest.mark.parametrize("command", [("verify",), ("stats",), ("pipeline", "verify"),
                                     ("pipeline", "stats")])
def test_auto_says_what_and_why(command, golden, rmqctl):
    root = golden("4.9.3/basic/store")
    report = rmqctl(*command, root, "--engine", "auto").expect(0)
    assert "engine: local, always faster on one machine" in report.err
    assert rmqctl(*command, root, "--engine", "local").expect(0).out == report.out
    assert "engine" not in rmqctl(*command, root, "--engine", "auto", "-q").expect(0).err


def test_export_says_it_too(golden, rmqctl, tmp_path):
    root = golden("4.9.3/basic/store")
    report = rmqctl("pipeline", "export", root, "--out", tmp_path / "out", "--engine", "auto")
    assert "engine: local, always faster on one machine" in report.expect(0).err
    assert rmqctl("pipeline", "export", root, "--out", tmp_path / "two").expect(0).err == ""


def test_stores_by_patterns(tmp_path):
    for name in ("b1", "b2", "[odd]"):
        (tmp_path / name).mkdir()
    (tmp_path / "b3").touch()
    names = named_stores([f"{tmp_path}/b?", f"{tmp_path}/b1/", f"{tmp_path}/[odd]"])
    assert names == [f"{tmp_path}/b1", f"{tmp_path}/b2", f"{tmp_path}/[odd]"]
    with pytest.raises(NotAStoreError, match="no matching folder"):
        named_stores([f"{tmp_path}/c*"])


def test_settings():
    assert conf_of(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    for bad in ("a", "=1"):
        with pytest.raises(UsageError, match="NAME=VALUE"):
            conf_of([bad])


@pytest.mark.long
def test_the_store_may_come_from_the_environment(golden, rmqctl, tmp_path):
    root = golden("4.9.3/basic/store")
    named = rmqctl("pipeline", "verify", root, "--engine", "local").expect(0)
    there = {"RMQCTL_STORE": str(root)}
    again = rmqctl("pipeline", "verify", "--engine", "local", env=there)
    assert again.expect(0).out == named.out
    rmqctl("pipeline", "export", "--out", tmp_path / "out", env=there).expect(0)
    assert "name a store, or set RMQCTL_STORE" in rmqctl("pipeline", "stats").expect(2).err
