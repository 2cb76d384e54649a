"""``make fuzz``: every subject has its turn; seeds are printed and follow from the first one."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests import fuzz


def test_what_is_run_exists() -> None:
    for names in fuzz.SUBJECTS.values():
        for name in names:
            path, _, test = name.partition("::")
            assert (fuzz.ROOT / path).exists(), name
            if test:
                assert f"def {test}(" in (fuzz.ROOT / path).read_text()


@pytest.mark.parametrize("fails", [None, "rocksdb"])
def test_every_subject_has_a_turn_and_what_fails_is_named(
        fails: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
        ) -> None:
    ran: list[tuple[str, str]] = []

    def run(words: list[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        name = next(name for name, tests in fuzz.SUBJECTS.items() if words[-1] == tests[-1])
        ran.append((name, env["RMQCTL_SEED"]))
        return subprocess.CompletedProcess(words, int(name == fails), "what failed", "")

    monkeypatch.setattr(fuzz.subprocess, "run", run)
    assert fuzz.rounds(0, 7) == (fails is not None)
    assert [name for name, _ in ran] == list(fuzz.SUBJECTS)
    assert len({seed for _, seed in ran}) == len(ran)
    output = capsys.readouterr().out
    assert all(f"{name}: seed {seed}" in output for name, seed in ran)
    assert (f"again: RMQCTL_SEED={dict(ran).get(fails or '')} " in output) == (fails is not None)
    before = list(ran)
    fuzz.rounds(0, 7)
    assert ran == before * 2
