"""Files of the wrong kind, without permission, vanishing, random, empty, enormous.

Whatever lies in a store's folder: it is said, the rest is done, the exit code is not 0, nothing
hangs, grows or crashes.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.badinput.test_bit_flips import CONFIG, INDEX, LOG, QUEUES
from tests.conftest import Runner
from tests.support import cli, damage, subject
from tests.support import tiny as tiny_stores

ONE_OF_EACH = (LOG[0], LOG[1], QUEUES[0], INDEX, "checkpoint", CONFIG[0])
NOT_OVER_TWO_GIB = 2 << 30
Harm = Callable[[Path, str], damage.Damage]


def report_of(store: tiny_stores.Tiny, file: str, *, heals: bool = False) -> subject.Report:
    """Verify in a process of its own (it may hang), and the file must be named."""
    done = cli.run_process("verify", store.root, "-o", "json", timeout=30)
    assert done.code not in (*([] if heals else [0]), 70), done.describe()
    report = subject.verify(store.root)
    assert file in {finding.file for finding in report.findings}, report.text()
    return report


@pytest.mark.parametrize("file", ONE_OF_EACH)
@pytest.mark.parametrize("harm", [damage.fifo, damage.directory, damage.symlink,
                                  damage.symlink_to_itself], ids=lambda harm: harm.__name__)
def test_a_thing_that_is_no_file(harm: Harm, file: str, tiny: tiny_stores.Tiny) -> None:
    harm(tiny.root, file)
    report = report_of(tiny, file)
    if not file.startswith("commitlog/"):
        assert report.coverage["messages"] == len(tiny.messages), "the rest was not done"


@pytest.mark.parametrize("file", ["lock", "abort", "config/topics.json.bak"])
@pytest.mark.parametrize("harm", [damage.fifo, damage.directory, damage.symlink,
                                  damage.symlink_to_itself], ids=lambda harm: harm.__name__)
def test_a_small_thing_that_is_no_file(harm: Harm, file: str, tiny: tiny_stores.Tiny) -> None:
    """Not always worth a finding, but nothing waits for ever at a FIFO."""
    (tiny.root / file).touch()
    harm(tiny.root, file)
    for command in ("info", "verify", "config"):
        done = cli.run_process(command, tiny.root, timeout=30)
        assert done.code in (0, 1, 3, 5), done.describe()


@pytest.mark.skipif(not damage.can_deny(), reason="root may read everything")
@pytest.mark.parametrize("file", ONE_OF_EACH)
def test_a_file_without_permission(file: str, tiny: tiny_stores.Tiny) -> None:
    damage.unreadable(tiny.root, file)
    report_of(tiny, file)


@pytest.mark.parametrize("file", ONE_OF_EACH)
def test_a_file_the_system_refuses(file: str, tiny: tiny_stores.Tiny,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for root: opening the file fails with EACCES."""
    _refuse(monkeypatch, tiny.root / file)
    report = subject.verify(tiny.root)
    assert not report.ok
    assert file in {finding.file for finding in report.findings}, report.text()


def _refuse(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Every way this process opens ``path`` fails."""
    import builtins
    import io

    real_open, real_os_open, real_io_open = builtins.open, os.open, io.open

    def is_it(name: object) -> bool:
        return isinstance(name, str | os.PathLike) and os.path.abspath(name) == str(path)

    def denied(real: Callable[..., object]) -> Callable[..., object]:
        def opening(name: object, *args: object, **kwargs: object) -> object:
            if is_it(name):
                raise PermissionError(13, "Permission denied", str(path))
            return real(name, *args, **kwargs)

        return opening

    monkeypatch.setattr(builtins, "open", denied(real_open))
    monkeypatch.setattr(io, "open", denied(real_io_open))
    monkeypatch.setattr(os, "open", denied(real_os_open))


@pytest.mark.parametrize("file", ONE_OF_EACH)
def test_an_empty_file(file: str, tiny: tiny_stores.Tiny) -> None:
    damage.empty_file(tiny.root, file)
    report_of(tiny, file, heals=file == "checkpoint")  # a start makes it anew


@pytest.mark.parametrize("file", ONE_OF_EACH)
def test_a_file_that_is_not_there(file: str, tiny: tiny_stores.Tiny) -> None:
    """A missing structure may be legal (index, checkpoint); it is never a crash."""
    damage.remove(tiny.root, file)
    report = subject.verify(tiny.root)
    assert subject.every_byte_is_accounted_for(report)
    # A log without its first file looks like one whose head has expired: legal.
    if file.startswith(("commitlog", "consumequeue")) and file != LOG[0]:
        assert report.problems, "a missing file went unnoticed"


@pytest.mark.parametrize("file", [LOG[0], LOG[1], QUEUES[0], INDEX, "checkpoint"])
def test_an_enormous_sparse_file(file: str, tiny: tiny_stores.Tiny) -> None:
    """A terabyte of nothing: neither the time nor the memory of one."""
    damage.huge_sparse(tiny.root, file)
    done = cli.run_process("verify", tiny.root, "-o", "json", timeout=60,
                           memory=NOT_OVER_TWO_GIB)
    assert done.code not in (0, 70), done.describe()


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("file", ONE_OF_EACH)
def test_random_bytes(file: str, number: int, tiny: tiny_stores.Tiny, seed: int) -> None:
    damage.random_bytes(tiny.root, file, seed + number)
    report = subject.verify(tiny.root)
    assert subject.every_byte_is_accounted_for(report)
    assert file in {finding.file for finding in report.findings}, report.text()


@pytest.mark.parametrize("count", [20, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_random_bytes_everywhere(count: int, tiny: tiny_stores.Tiny, seed: int) -> None:
    """Runs of random bytes at random places of all files at once."""
    whole = {file: (tiny.root / file).read_bytes() for file in tiny.files()}
    for number in range(count):
        chance = random.Random(seed + number)
        for file, data in whole.items():
            start = chance.randrange(len(data))
            length = chance.randint(1, 40)
            mixed = data[:start] + chance.randbytes(length) + data[start + length:]
            (tiny.root / file).write_bytes(mixed)
        report = subject.verify(tiny.root)
        assert subject.every_byte_is_accounted_for(report), f"seed {seed + number}"


@pytest.mark.parametrize("name", ["readme.txt", "0000", "00000000000000001000", ".nfs0001",
                                  "00000000000000000000.bak", "-0000000000000000001"])
def test_an_extra_file(name: str, tiny: tiny_stores.Tiny) -> None:
    """A broker refuses to start on a strange name in the commitlog; verify says which one."""
    damage.add_file(tiny.root, f"commitlog/{name}")
    report = subject.verify(tiny.root)
    assert f"commitlog/{name}" in {finding.file for finding in report.findings}, report.text()
    assert report.coverage["messages"] == len(tiny.messages)


@pytest.mark.parametrize("argument", ["missing", "a file", "an empty folder", "a fifo"])
@pytest.mark.parametrize("command", ["info", "verify", "read", "offsets", "stats", "config"])
def test_what_is_no_store(command: str, argument: str, tmp_path: Path,
                          rmqctl_process: Runner) -> None:
    path = tmp_path / "thing"
    if argument == "a file":
        path.write_bytes(b"?")
    elif argument == "an empty folder":
        path.mkdir()
    elif argument == "a fifo":
        os.mkfifo(path)
    done = rmqctl_process(command, path, timeout=30)
    assert done.code == 3, done.describe()
    assert str(path) in done.err


@pytest.mark.long
def test_files_that_vanish_while_read(tiny: tiny_stores.Tiny) -> None:
    """A broker's cleaner removes files under the reader: no crash, whatever is met when."""
    stop = threading.Event()
    data = {file: (tiny.root / file).read_bytes() for file in (*LOG, *QUEUES, INDEX)}

    def come_and_go() -> None:
        while not stop.is_set():
            for file, content in data.items():
                (tiny.root / file).unlink(missing_ok=True)
                (tiny.root / file).write_bytes(content)

    worker = threading.Thread(target=come_and_go)
    worker.start()
    try:
        for _ in range(10):
            for words in (("verify",), ("read", "-o", "jsonl"), ("info",), ("offsets",)):
                done = cli.run(words[0], tiny.root, *words[1:])
                assert done.code in (0, 1, 3, 5), done.describe()
    finally:
        stop.set()
        worker.join()
