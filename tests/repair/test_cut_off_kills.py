"""Killed while what `recover --strategy broker` cut off is being cleared, for messages to follow.

Until none of it is left, neither bytes nor rows, it is known as what was cut off: the old damage is
not reported again. From the first new message on it is not, and damage in that one is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.engine import opening
from rmqctl.store.log.cut_off import NOTE
from tests.conftest import GoldenFolder
from tests.engine_write.faults import Killed, failing
from tests.support.cli import run
from tests.support.share import RUN, every, sample

END = {"4.9.3": 171647, "5.3.3": 171668}
FILE = "commitlog/00000000000000163840"
BLOCK = 4096
"""The tail has 12 KB: three writes clear it."""
JSON = ("-o", "json")
PUT = ("--topic", "TP_pay_Topic", "--queue", "1", "--body")


@pytest.fixture(params=sorted(END))
def cut(request: pytest.FixtureRequest, golden_copy: GoldenFolder,
        monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    root = golden_copy(f"{request.param}/clean-crc/before")
    run("recover", root, "--strategy", "broker", "--broker-version", request.param, "--apply",
        "--yes").expect(1)
    monkeypatch.setattr(opening, "_BLOCK", BLOCK)
    return root, request.param


def killed_put(store: Path, at: int | None) -> int:
    """A write that dies at its call ``at``; the number of calls up to where the note is gone."""
    until = [0]
    with failing(at, Killed) as counter:
        real = os.unlink

        def unlink(path: Any, **more: Any) -> None:
            real(path, **more)
            if str(path).endswith(NOTE):
                until[0] = counter.calls

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "unlink", unlink)
            try:
                run("write", store, *PUT, "body0").expect(0)
            except Killed:
                assert counter.failed
    return until[0]


def torn_put(store: Path, at: int) -> bool:
    """A write that dies when half of the bytes of its positional write ``at`` are written."""
    real: Callable[..., int] = os.pwrite
    calls = [0]

    def pwrite(fd: int, data: Any, position: int) -> int:
        calls[0] += 1
        if calls[0] > at:
            real(fd, memoryview(data)[:max(1, len(data) // 2)], position)
            raise Killed
        return real(fd, data, position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        try:
            run("write", store, *PUT, "body0").expect(0)
        except Killed:
            return True
    return False


def serious(store: Path) -> dict[str, int]:
    """Category -> physical offset, or place, of what `verify` finds wrong."""
    findings = run("verify", store, *JSON).expect(0, 1).json()["findings"]
    return {finding["category"]: finding["offset"] for finding in findings
            if finding["severity"] != "info"}


def check(store: Path, version: str, *, goes_on: bool) -> None:
    """A store after a kill: what is said of it, and what follows (``goes_on`` with messages)."""
    text = f"{version}, {sorted(str(path) for path in store.glob('.rmqctl/*'))}"
    # That the keys behind doubtful index files must be indexed again is no old damage.
    assert {*serious(store)} <= {"index-behind", "index-missing", "index-key-missing"}, text
    predicted = run("preflight", store, "--broker-version", version, *JSON).json()
    assert predicted["messages_lost"] == 0, text
    if not goes_on:
        run("recover", store, "--strategy", "broker", "--broker-version", version, "--apply",
            "--yes").expect(0)
        assert {*serious(store)} == set(), text
        return
    run("write", store, *PUT, "body1").expect(0)
    findings = run("verify", store, *JSON).expect(0).json()["findings"]
    assert {finding["category"] for finding in findings} <= {"lost-in-repair"}, text
    assert not (store / NOTE).exists()
    data = bytearray((store / FILE).read_bytes())
    data[data.index(b"body1")] ^= 1
    (store / FILE).write_bytes(data)
    assert "body-crc" in serious(store), text


@pytest.mark.long
def test_killed_at_a_call(cut: tuple[Path, str], tmp_path: Path) -> None:
    root, version = cut
    store = tmp_path / "store"
    calls = killed_put(shutil.copytree(root, store), None)
    assert calls > 50
    shutil.rmtree(store)
    for number, at in enumerate(every(45, range(calls + 4), f"kills of a clearing {version}")):
        for goes_on in (True, False) if RUN.exhaustive else (number % 2 == 0,):
            killed_put(shutil.copytree(root, store), at)
            check(store, version, goes_on=goes_on)
            shutil.rmtree(store)


@pytest.mark.long
def test_killed_in_a_write(cut: tuple[Path, str], tmp_path: Path) -> None:
    root, version = cut
    store = tmp_path / "store"
    for at in every(3, range(8), f"torn writes of a clearing {version}"):
        assert torn_put(shutil.copytree(root, store), at)
        check(store, version, goes_on=at % 2 == 0)
        shutil.rmtree(store)


@pytest.mark.parametrize(("first", "second"), sample(
    [(1, 0), (2, 1), (3, 0), (4, 1), (4, 3)], 2, "torn twice"))
def test_killed_twice(cut: tuple[Path, str], tmp_path: Path, first: int, second: int) -> None:
    """The second clearing begins with what the first one has left."""
    root, version = cut
    store = shutil.copytree(root, tmp_path / "store")
    assert torn_put(store, first)
    assert torn_put(store, second)
    check(store, version, goes_on=True)


@pytest.mark.parametrize("copy", ["/etc/passwd", "../x", ".rmqctl/aside/../../abort", 7, "",
                                  ".rmqctl/aside/none", ".rmqctl/aside"])
def test_a_copy_that_is_none_says_nothing(cut: tuple[Path, str], copy: object) -> None:
    root, _ = cut
    (root / ".rmqctl/aside").mkdir()
    note = json.loads((root / NOTE).read_text())
    (root / NOTE).write_text(json.dumps({**note, "crc": 1, "copy": copy}))
    assert "body-crc" in serious(root)
