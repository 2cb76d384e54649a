"""A tier in place of a store: the commands of stores do what those of tiers do."""

from __future__ import annotations

import pytest

from rmqctl.commands.app.targets import OF_TIERS, is_tier

QUEUE = ["--topic", "TP_pay_Event5", "--queue", "0"]
LINES = {
    ("read",): [*QUEUE, "--offset", "1", "--limit", "3"],
    ("query", "key"): ["--topic", "TP_pay_Event5", "--key", "cart-273"],
    ("query", "time"): [*QUEUE, "--time", "0"],
    ("query", "offset"): [*QUEUE, "--offset", "1"],
    ("stats",): ["--by", "topic"],
    ("verify",): [],
    ("export",): ["--out", "-", "--topic", "TP_pay_Event5", "--limit", "3"],
    ("expire",): ["--older-than", "1d", "--now", "1795233890000"],
}


@pytest.mark.parametrize("name", LINES, ids=" ".join)
def test_a_tier_in_place_of_a_store(golden, rmqctl, name):
    tier = golden("5.3.3/tiered/store") / "tieredstore"
    words = [*LINES[name], "-o", "json"]
    new = rmqctl(*name, tier, *words)
    old = rmqctl("tiered", *name, tier, *words)
    assert new.code in (0, 1)
    assert (new.code, new.out, new.err) == (old.code, old.out, old.err)
    assert rmqctl(*name, *words, tier).out == new.out
    assert rmqctl(*name, *words, env={"RMQCTL_STORE": str(tier)}).out == new.out


def test_options_of_tiers_alone_come_before_the_tier_too(golden, rmqctl):
    root = golden("5.3.3/tiered/store")
    words = ["--local", root, "--strategy", "force", *QUEUE, "--offset", "0", "-o", "json"]
    new = rmqctl("read", *words, root / "tieredstore").expect(0)
    assert new.out == rmqctl("tiered", "read", root / "tieredstore", *words).out != ""


def test_each_command_that_there_is_twice_is_tried_and_not_listed(rmqctl):
    assert {*OF_TIERS} == {*LINES, ("dump",)}
    shown = rmqctl("tiered", "--help").out
    assert not any(f"\n  {name[0]} " in shown for name in OF_TIERS)
    assert "\n  dispatch " in shown


def test_a_store_with_a_tier_in_it_is_a_store(golden, tmp_path):
    root = golden("5.3.3/tiered/store")
    assert (is_tier(str(root)), is_tier(str(root / "tieredstore")), is_tier("s3://bucket/tier"),
            is_tier(str(tmp_path)), is_tier(str(tmp_path / "no"))) == (
                False, True, True, False, False)
