"""Read-only means it: bytes, times and inodes of every input stay as they were.

Every command of the registry that declares itself read-only is run with the arguments of
`COMMANDS`; a new command without a line there fails the first test.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqctl.backup.backup import BackupSource, back_up
from tests.browse.driving import browse
from tests.conftest import GoldenFolder
from tests.support import cli, damage, snapshot, subject
from tests.support import tiny as tiny_stores
from tests.tiered import tiers

FIRST_ID = "0A00000100002A9F0000000000000000"
"""The offset message id of the tiny store's first message."""
TIERED_LOG = "/".join(tiers.Queue().log_path(Path("x")).parts[1:])
COMMANDS: dict[str, list[list[str]]] = {
    "commands": [["-o", "json"]],
    "browse": [["{store}"]],
    "info": [["{store}"]],
    "dump": [["{store}/commitlog/00000000000000000000", "--hex"],
             ["{store}/consumequeue/orders/0/00000000000000000000"],
             ["{store}/index/" + tiny_stores.INDEX_NAME], ["{store}/checkpoint"],
             ["{store}/config/topics.json"]],
    "read": [["{store}"], ["{store}", "--topic", "orders", "--queue", "0", "--offset", "0"],
             ["{store}", "-o", "jsonl", "--body", "base64"],
             ["{store}", "--group", "billing", "--unconsumed"]],
    "tail": [["{store}", "-n", "3"]],
    "query key": [["{store}", "--topic", "orders", "--key", "k1"]],
    "query id": [["{store}", FIRST_ID], ["{store}", FIRST_ID, "--track"]],
    "query time": [["{store}", "--topic", "orders", "--queue", "0", "--time",
                    str(tiny_stores.EPOCH)]],
    "query offset": [["{store}", "--phy", "0"]],
    "offsets": [["{store}"], ["{store}", "--group", "billing"]],
    "offsets diff": [["{store}", "{store}"]],
    "offsets export": [["{store}"]],
    "timers list": [["{store}"]],
    "pop list": [["{store}"]],
    "transactions list": [["{store}"]],
    "dlq list": [["{store}"]],
    "backup list": [["{store}"]],
    "backup check": [["{store}"]],
    "du": [["{store}"], ["{store}", "-o", "csv"]],
    "config": [["{store}"]],
    "config check": [["{store}/conf/broker.conf"], ["{store}/conf/broker.conf", "{store}"]],
    "stats": [["{store}"], ["{store}", "--by", "queue"]],
    "verify": [["{store}"], ["{store}", "-o", "json"]],
    "pipeline verify": [["{store}", "--engine", "local"], ["{store}", "--dry-run"]],
    "pipeline stats": [["{store}", "--engine", "local"], ["{store}", "--dry-run"]],
    "diff": [["{store}", "{store}"]],
    "recover table": [["{store}"]],
    "preflight": [["{store}"]],
    "retention": [["{store}"], ["{store}", "--disk-used", "0.5", "-o", "json"]],
    "impact": [["{store}"], ["{store}", "--group", "billing"]],
    "explain": [["body-crc"], []],
    "exporter": [["{store}", "--once"]],
    "serve": [["{store}", "--listen", "127.0.0.1:0", "--idle-exit", "300ms"]],
    "sql": [["{store}", "select count(*) from messages"], ["{store}", "select * from findings"]],
    "doctor": [["{store}"], ["{store}", "-o", "json"]],
    "tiered read": [["{store}"], ["{store}", "--topic", "orders", "--local", "{store}",
                                  "--strategy", "force"]],
    "tiered query key": [["{store}", "--topic", "orders", "--key", "k1"]],
    "tiered query time": [["{store}", "--topic", "orders", "--queue", "0", "--time", "0"]],
    "tiered query offset": [["{store}", "--topic", "orders", "--queue", "0", "--phy", "0"]],
    "tiered ls": [["{store}"], ["{store}", "--segments", "-o", "json"]],
    "tiered verify": [["{store}"], ["{store}", "-o", "json"]],
    "tiered stats": [["{store}"], ["{store}", "--by", "queue"]],
    "tiered dump": [["{store}/tieredstore/" + TIERED_LOG, "--hex"]],
}
LINES = [pytest.param(name, words, id=f"{name}-{number}")
         for name, lines in COMMANDS.items() for number, words in enumerate(lines)]


@pytest.fixture(scope="module")
def store(tiny_base: tiny_stores.Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny store with a tier in it: one for all, since whoever changes it fails."""
    root = snapshot.copy_tree(tiny_base.root, tmp_path_factory.mktemp("read-only") / "store")
    tiers.small_tier(root / "tieredstore", root)
    _configuration(root)
    back_up(BackupSource(str(root)), f"{root}-backup", lambda: tiny_stores.EPOCH, "1.0.0")
    snapshot.copy_tree(Path(f"{root}-backup/.rmqctl"), root / ".rmqctl")  # as if it were one
    return root


def _configuration(root: Path) -> None:
    """The file that its broker is started with, in a folder of the store."""
    (root / "conf").mkdir(exist_ok=True)
    (root / "conf" / "broker.conf").write_text(
        f"storePathRootDir={root}\nstorePathCommitLog={root}/commitlog\n"
        "mappedFileSizeCommitLog=1024\nmappedFileSizeConsumeQueue=60\nmaxHashSlotNum=8\n"
        "maxIndexNum=32\n")


@pytest.fixture(scope="module")
def damaged(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = snapshot.copy_tree(store, tmp_path_factory.mktemp("read-only") / "damaged")
    damage.zero(root, "commitlog/00000000000000000000", 200, 300)
    damage.truncate(root, "consumequeue/orders/0/00000000000000000000", 33)
    damage.config_truncated(root, "topics.json", 9)
    damage.checkpoint_short(root)
    _configuration(root)
    return root


def run(name: str, words: list[str], store: Path) -> cli.Result:
    if name not in subject.read_only_commands():
        pytest.skip(f"there is no command {name} yet")
    if name == "browse":  # it needs a terminal, or somebody who drives it without
        browse(store, lambda screen: screen.press("tab", "end", "2", "v", "escape", "r"))
        return cli.Result((name,), 0, "", "")
    return cli.run(*name.split(), *(word.format(store=store) for word in words))


def test_every_read_only_command_is_tried() -> None:
    assert set(subject.read_only_commands()) <= set(COMMANDS)


@pytest.mark.parametrize(("name", "words"), LINES)
def test_the_store_stays_as_it_was(name: str, words: list[str], store: Path) -> None:
    with snapshot.assert_unchanged(store):
        run(name, words, store).expect(0)


@pytest.mark.parametrize(("name", "words"), LINES)
def test_a_damaged_store_stays_as_it_was(name: str, words: list[str], damaged: Path) -> None:
    with snapshot.assert_unchanged(damaged):
        run(name, words, damaged).expect(0, 1, 3, 5)


@pytest.mark.parametrize(("name", "words"), LINES)
def test_nothing_is_opened_for_writing(name: str, words: list[str], store: Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen at the system call: no file below the store is opened but to read, none is made."""
    if name not in subject.read_only_commands():
        pytest.skip(f"there is no command {name} yet")
    real = os.open
    wrong: list[str] = []

    def watched(path: object, flags: int, *args: object, **kwargs: object) -> int:
        if (isinstance(path, str | os.PathLike) and str(store) in os.path.abspath(path)
                and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)):
            wrong.append(f"{path} with {flags:#o}")
        return real(path, flags, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", watched)
    events = Auditing(str(store))
    run(name, words, store)
    assert not wrong + events.stop(), wrong


class Auditing:
    """Collects writing ``open`` calls under a folder from the interpreter's audit events."""

    _current: Auditing | None = None
    _hooked = False

    def __init__(self, folder: str) -> None:
        import sys

        self.folder, self.findings = folder, list[str]()
        Auditing._current = self
        if not Auditing._hooked:
            sys.addaudithook(Auditing._hook)
            Auditing._hooked = True

    @staticmethod
    def _hook(event: str, args: tuple[object, ...]) -> None:
        mine = Auditing._current
        if mine is None or event != "open":
            return
        path, mode, flags = args[0], args[1], args[2]
        writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (
            isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if writes and isinstance(path, str) and mine.folder in os.path.abspath(path):
            mine.findings.append(f"{path} {mode} {flags}")

    def stop(self) -> list[str]:
        Auditing._current = None
        return self.findings


@pytest.fixture(scope="module")
def read_only_place(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The store where nothing can be written: folders without permission, or a mount."""
    if damage.can_deny():
        folders = [store, *(path for path in store.rglob("*") if path.is_dir())]
        for path in folders:
            path.chmod(0o555)
        yield store
        for path in folders:
            path.chmod(0o755)
        return
    place = tmp_path_factory.mktemp("mounted")
    if not _mount("--bind", str(store), str(place)):
        pytest.skip("root, and mounting is not allowed here")
    if not _mount("-o", "remount,bind,ro", str(place)):
        subprocess.run(["umount", str(place)], check=True)
        pytest.skip("a read-only mount is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def _mount(*words: str) -> bool:
    try:
        return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("name", "words"), LINES)
def test_a_place_that_cannot_be_written(name: str, words: list[str],
                                        read_only_place: Path) -> None:
    run(name, words, read_only_place).expect(0)


@pytest.mark.parametrize("kind", ["basic", "multipath", "cqext", "timer", "compaction", "batchcq",
                                  "tiered", "crash-trunc-garbage"])
def test_golden_stores_stay_as_they_were(kind: str, golden: GoldenFolder) -> None:
    """Structures the tiny store has not: ext, timer, compaction, batch queues."""
    from tests.support import golden as golden_sets

    for store in golden_sets.golden_stores():
        if store.kind != kind:
            continue
        root = golden(store.id)
        with snapshot.assert_unchanged(root):
            for name in ("info", "read", "verify", "stats", "offsets", "recover table"):
                if name in subject.read_only_commands():
                    cli.run(*name.split(), root, *store.options).expect(0, 1)
