"""The registry of releases: which profile stands for which, and what is said of the others."""

from __future__ import annotations

import re

import pytest

from rmqctl.broker.versions import (
    DIFFERENCES,
    NEWEST,
    RELEASES,
    VERSIONS,
    profile_note,
    release_of,
    version_of,
)
from rmqctl.errors import UsageError
from tests.conftest import Runner
from tests.support.tiny import Tiny


def test_releases_are_ascending_and_hold_the_profiles() -> None:
    numbers = [tuple(map(int, release.split("."))) for release in RELEASES]
    assert numbers == sorted(set(numbers))
    assert set(VERSIONS) <= set(RELEASES)
    assert NEWEST in VERSIONS
    assert {release for difference in DIFFERENCES
            for release in (difference.first, difference.last)} <= set(RELEASES)


@pytest.mark.parametrize(("typed", "release"), [
    ("4.9.3", "4.9.3"), ("4.9", "4.9.8"), ("v5.1.4", "5.1.4"), ("5.4", "5.4.0"), ("4.0", "4.0.0"),
    ("4.0.0-incubating", "4.0.0"), ("rocketmq-all-5.3.2", "5.3.2"), (" 5.3 ", "5.3.4")])
def test_releases_as_they_are_typed(typed: str, release: str) -> None:
    assert release_of(typed) == release


@pytest.mark.parametrize("typed", ["", "4", "5", "3.9.9", "4.4.1", "5.9", "6.0.0", "5.3.3.1", "x"])
def test_what_is_no_release(typed: str) -> None:
    with pytest.raises(UsageError, match=r"4\.0\.0 to 5\.4\.0"):
        release_of(typed)


def test_each_release_has_the_rules_of_its_line_and_says_so() -> None:
    for release in RELEASES:
        rules, note = version_of(release), profile_note(release)
        assert rules.generation == int(release[0])
        assert rules.name == {4: "4.9.3", 5: "5.3.3"}[rules.generation]
        if release in VERSIONS:
            assert rules is VERSIONS[release]
            assert note is None
        else:
            assert note is not None
            assert re.match(f"a {re.escape(release)} broker follows the rules of "
                            f"{re.escape(rules.name)}", note)


@pytest.mark.parametrize(("release", "rule", "value"), [
    ("4.4.0", "reput_from_queues", False), ("4.5.1", "reput_from_queues", True),
    ("4.9.1", "delay_levels_late", False), ("4.9.2", "delay_levels_late", True),
    ("5.0.0", "message_v2", False), ("5.1.0", "message_v2", True),
    ("5.1.0", "nearest_in_time", True), ("5.1.1", "nearest_in_time", False),
    ("5.1.2", "deletes_empty_last", False), ("5.1.3", "deletes_empty_last", True),
    ("5.3.1", "normal_by_queues", False), ("5.3.2", "normal_by_queues", True),
    ("5.3.1", "blank_must_fit", False), ("5.3.2", "blank_must_fit", True)])
def test_rules_change_with_the_release_that_changed_them(release: str, rule: str,
                                                         value: bool) -> None:
    assert getattr(version_of(release), rule) is value


def test_commands_say_which_profile_they_mean(tiny: Tiny, rmqctl: Runner) -> None:
    done = rmqctl("preflight", tiny.root, "--broker-version", "5.1", "-o", "json").expect(0, 1)
    assert (done.json()["broker_version"], done.json()["profile"]) == ("5.1.4", "5.3.3")
    assert "a 5.1.4 broker follows the rules of 5.3.3; except: after a" in done.err
    assert "not covered" not in done.err
    done = rmqctl("recover", tiny.root, "--broker-version", "4.3.0").expect(0, 1)
    assert "a 4.3.0 broker follows the rules of 4.9.3" in done.err
    assert "not covered: after an unclean shutdown it accepts a record whose lengths" in done.err
    done = rmqctl("preflight", tiny.root, "--broker-version", "5.3.3", "-o", "json").expect(0, 1)
    assert "profile" not in done.err
    done = rmqctl("preflight", tiny.root, "--broker-version", "3.0").expect(2)
    assert "expected 4.0.0 to 5.4.0" in done.err


def test_a_store_remembers_its_release(tmp_path, rmqctl: Runner) -> None:
    root = tmp_path / "store"
    done = rmqctl("init", root, "--broker-version", "5.0.0", "--commitlog-file-size", "64KiB",
                  "--consumequeue-file-size", "2000", "--index-slots", "10", "--index-max",
                  "40").expect(0)
    assert "a 5.0.0 broker follows the rules of 5.3.3" in done.err
    rmqctl("write", root, "--topic", "T", "--body", "x", "--auto-create-topic").expect(0)
    assert rmqctl("preflight", root, "-o", "json").expect(0).json()["broker_version"] == "5.0.0"
