"""The incidents of tests/cases: each answer is right, and the first step always leads out."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import cli, roomy

FOLDER = Path(__file__).parent / "cases"
CASES = sorted(path.parent for path in FOLDER.glob("*/case.json"))
USED = 0.4
Case = dict[str, Any]


def built(case: Path, out: Path) -> Path:
    """The folder with the stores of a case."""
    out.mkdir(parents=True)
    subprocess.run([sys.executable, case / "make.py", out], check=True, cwd=out, env={
        **os.environ, "PYTHONPATH": str(FOLDER), "PYTHONDONTWRITEBYTECODE": "1"})
    return out


def at(answer: Any, path: str) -> Any:
    """``a.b[0]`` in a JSON value; None where there is nothing."""
    for part in re.findall(r"[^.\[\]]+", path):
        try:
            answer = answer[int(part)] if isinstance(answer, list) else answer[part]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    return answer


class Incident:
    """A case with its stores, and commands on them."""

    def __init__(self, case: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.case, self.folder, self.patch = case, folder, monkeypatch
        self.builds = 0
        self.build()

    def build(self) -> None:
        self.builds += 1
        self.out = built(self.case, self.folder / str(self.builds))

    def fill(self, word: str) -> str:
        return word.replace("{store}", str(self.out / "store")).replace("{dir}", str(self.out))

    def run(self, words: list[str], disk: dict[str, float] | None = None) -> cli.Result:
        """``rmqctl WORDS`` on a disk that is so full."""
        free = math.floor(roomy.BLOCKS * (1 - (disk or {"used": USED})["used"]))

        def statvfs(path: Any) -> os.statvfs_result:
            return os.statvfs_result((*tuple(roomy.statvfs(path))[:3], free, free,
                                      *tuple(roomy.statvfs(path))[5:]))

        self.patch.setattr(os, "statvfs", statvfs)
        return cli.run(*(self.fill(word) for word in words))

    def check(self, check: Case) -> None:
        """One command and what its answer must be."""
        for words in check.get("before", ()):
            self.run(words).expect(0, 1, 6)
        result = self.run(check["run"], check.get("disk"))
        result.expect(*check["exit"])
        answer = result.json()
        for path, value in check.get("json", {}).items():
            assert at(answer, path) == value, (path, result.describe())
        for path in check.get("truthy", ()):
            assert at(answer, path), (path, result.describe())
        for path, least in check.get("at_least", {}).items():
            assert at(answer, path) >= least, (path, result.describe())
        for word in check.get("contains", ()):
            assert word in result.out + result.err, result.describe()

    def follow(self, check: Case) -> None:
        """Take the first step of every answer, and judge where that ends."""
        wanted = check["solved"]
        words, effect, count = ["doctor", "{store}"], "read-only", 0
        since_a_change: list[list[str]] = []
        remains: list[str] = []
        while True:
            assert words not in since_a_change, f"{words} is advised again"
            count += 1
            more = [] if effect == "read-only" else ["--apply", "--yes"]
            answer = self.run([*words, *more, "-o", "json"], check.get("disk")).expect(0, 1).json()
            since_a_change = [] if answer.get("applied") else [*since_a_change, words]
            if words[0] == "doctor":
                remains = [remainder["category"] for remainder in answer["remains"]]
            if answer.get("sound") or not answer.get("steps"):
                break
            assert count < wanted["most"], f"not solved, after {words}"
            step = answer["steps"][0]
            words = [self.fill(wanted["copy"]) if word == "COPY" else word
                     for word in shlex.split(step["command"])[1:]]
            effect = step["effect"]
        if wanted["ends"] == "sound":
            assert answer["sound"] is True, answer
        else:
            assert remains == wanted["ends"]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=[path.name for path in CASES])
def test_case(case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    incident = Incident(case, tmp_path, monkeypatch)
    for check in json.loads((case / "case.json").read_text())["checks"]:
        if check.get("fresh"):
            incident.build()
        if check.get("type") == "advice_closes":
            incident.build()
            incident.follow(check)
            incident.build()
        else:
            incident.check(check)


def test_there_are_cases() -> None:
    assert {path.name for path in CASES} >= {
        "incident-disk-full", "incident-messages-missing", "incident-power-loss",
        "incident-shorter-copy", "incident-topics-emptied"}
