"""A log in a folder that nobody named: what a broker without that setting does is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import cli

SETTING = "with storePathCommitLog=commitlog.old would start and lose nothing"


@pytest.mark.parametrize("name", ["4.9.3/basic/store", "5.3.3/basic/store"])
@pytest.mark.parametrize("again", [False, True])
def test_a_renamed_folder(golden_copy, name: str, again: bool) -> None:
    """``again``: a broker has created an empty folder since."""
    store = golden_copy(name)
    (store / "commitlog").rename(store / "commitlog.old")
    if again:
        (store / "commitlog").mkdir()
    preflight = cli.run("preflight", str(store)).expect(0)
    assert SETTING in preflight.out.splitlines()[0]
    assert "deletes all consume queues" in preflight.err
    doctor = cli.run("doctor", str(store)).expect(0)
    assert SETTING in doctor.out.splitlines()[0]
    assert "without storePathCommitLog=commitlog.old, a broker finds no log" in doctor.out


def test_a_folder_that_is_named(golden_copy, tmp_path: Path) -> None:
    store = golden_copy("5.3.3/basic/store")
    (store / "commitlog").rename(store / "commitlog.old")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={store}\nstorePathCommitLog={store}/commitlog.old\n"
                    "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=380\n")
    for options in (("--commitlog-dir", "commitlog.old"), ("--broker-conf", str(conf))):
        for command in ("preflight", "doctor"):
            result = cli.run(command, str(store), *options)
            assert "storePathCommitLog=commitlog.old" not in result.out.splitlines()[0]
            assert "finds no log" not in result.out + result.err
