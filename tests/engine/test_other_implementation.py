"""A store written by another implementation of the broker reads and verifies like any other.

Its archive is not part of this repository: the test looks for it beside the repository
(``../shared/golden``) and skips where it is not.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.conftest import Runner
from tests.support import snapshot, subject
from tests.support.archives import unpack

NAME = "rocketmq-rust-0.9.0"
ARCHIVE = Path(__file__).parents[3] / "shared" / "golden" / f"{NAME}.tar.xz"
pytestmark = pytest.mark.skipif(not ARCHIVE.exists(), reason=f"{NAME} is not at hand")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("other")
    with tarfile.open(ARCHIVE) as archive:
        unpack(archive, base)
    return base / NAME


@pytest.fixture(scope="module")
def root(folder: Path) -> Path:
    return folder / "local-file"


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, object]:
    raw: dict[str, object] = json.loads((folder / "expected-records.json").read_text())
    return raw


def test_it_reads(root: Path, answers: dict[str, object], rmqctl: Runner) -> None:
    with snapshot.assert_unchanged(root):
        messages = rmqctl("read", root, "-o", "jsonl").expect(0).jsonl()
        queued = rmqctl("read", root, "--topic", str(answers["topic"]), "--queue", "0",
                        "--from-offset", "0", "-o", "jsonl").expect(0).jsonl()
    assert [message["body"] for message in messages] == answers["message_bodies"]
    assert messages == queued
    assert all(message["crc_ok"] for message in messages)


def test_its_queue_and_index_answer(root: Path, answers: dict[str, object], rmqctl: Runner) -> None:
    rows = rmqctl("offsets", root, "-o", "json").expect(0).json()["queues"]
    assert [row["max_offset"] for row in rows if row["topic"] == answers["topic"]] == [
        answers["queue_max_offset"]]
    answer = rmqctl("query", "key", root, "--topic", str(answers["topic"]), "--key",
                    str(answers["message_key"]), "-o", "json").expect(0).json()
    assert len(answer) == answers["index_result_count"]


def test_it_verifies(root: Path) -> None:
    report = subject.verify(root)
    assert report.problems == (), report.text()
    assert subject.every_byte_is_accounted_for(report)
    assert report.coverage["messages"] == 2
