"""No command that changes a store writes through a link that leads out of it.

Each command that the table calls ``mutates`` is run on stores in which one part was moved to a
folder outside, with a link in its place. That folder may be anybody's: nothing in it changes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmqctl.commands import REGISTRY
from tests.adversary.tier_writer import TierWriter
from tests.support import snapshot
from tests.support.cli import Result, run
from tests.support.tiny import EPOCH, Tiny

GROUP = "billing"
MESSAGE = json.dumps({"topic": "orders", "body": "more", "properties": {"KEYS": "k9"}}).encode()
PLAN = ("--apply", "--yes", "-o", "json")


@dataclass(frozen=True, slots=True)
class Writer:
    """One command: its words behind the name; what is done to the store before; whether it is for
    a tier; the package that it needs.
    """

    words: Sequence[str]
    before: Callable[[Path], None] = lambda root: None
    tier: bool = False
    needs: str = ""


def damage(root: Path) -> None:
    """Something to repair in every part of a store."""
    for pattern, place in (("commitlog/*", 60), ("consumequeue/*/*/*", 7), ("index/*", 45)):
        for path in sorted(root.glob(pattern)):
            data = bytearray(path.read_bytes())
            data[place] ^= 1
            path.write_bytes(data)
    (root / "checkpoint").write_bytes(bytes(4096))
    (root / "config/topics.json").write_bytes(b"{")


def repaired(root: Path) -> None:
    damage(root)
    run("recover", root, "--fillers", "in-place", "--ambiguous", "keep", *PLAN).expect(0, 1)


def old(root: Path) -> None:
    """Its log was last written long ago."""
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (10**9, 10**9))


def emptied(root: Path) -> None:
    """What an `init` that was killed may have left, and links beside it."""
    for path in sorted(root.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (root / ".rmqctl").mkdir()
    (root / ".rmqctl/init").touch()
    for name in ("commitlog", "consumequeue", "index", "config"):
        (root / name).mkdir()
    (root / "checkpoint").write_bytes(bytes(4096))


def older_offsets(root: Path) -> None:
    """A file of offsets beside the store."""
    (root.parent / "older.json").write_text('{"offsetTable": {"orders@older": {"0": 1}}}')


def appended(root: Path, topic: str, body: str, **properties: str) -> None:
    """One more message, as a broker puts it."""
    given = root.parent / "more"
    given.write_text(json.dumps({"topic": topic, "body": body, "properties": properties}))
    run("append", root, given, "--replay").expect(0)


def popped(root: Path) -> None:
    """The first message of orders was delivered by POP."""
    appended(root, "rmq_sys_REVIVE_LOG_c", json.dumps({
        "t": "orders", "c": GROUP, "q": 0, "so": 0, "n": 1, "pt": EPOCH, "it": 1000}), TAGS="ck")


def half(root: Path) -> None:
    """A transaction without an end."""
    appended(root, "RMQ_SYS_TRANS_HALF_TOPIC", "half", REAL_TOPIC="orders", REAL_QID="0",
             UNIQ_KEY="0A", PGROUP="pg", TRAN_MSG="true")


def other_topics(root: Path) -> None:
    """A file of topics beside the store."""
    (root.parent / "topics.json").write_text(
        '{"topicConfigTable": {"fresh": {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}}}')


def without_topics(root: Path) -> None:
    """A topics.json without a topic, and no backup."""
    for path in (root / "config").glob("topics.json*"):
        if path.suffix == ".bak":
            path.unlink()
        else:
            path.write_text("{}")


WRITERS = {
    "init": Writer(("{root}", "--commitlog-file-size", "1KiB", "--index-slots", "8",
                    "--index-max", "32"), emptied),
    "write": Writer(("{root}", "--topic", "orders", "--body", "more", "--key", "k",
                     "--auto-create-topic")),
    "append": Writer(("{root}", "{input}", "--auto-create-topic")),
    "dlq requeue": Writer(("{root}", "--group", GROUP, *PLAN)),
    "flush": Writer(("{root}",), lambda root: (root / "checkpoint").write_bytes(bytes(4096))),
    "topic create": Writer(("{root}", "fresh")),
    "recover": Writer(("{root}", "--ambiguous", "keep", "--only", ("commitlog,consumequeue,index,"
                       "checkpoint,topic-queue-table,config"), *PLAN), damage),
    "truncate": Writer(("{root}", "--to-phy", "0", *PLAN)),
    "convert": Writer(("{root}", "--consumequeue", "rocksdb", *PLAN), needs="rocksdict"),
    "expire": Writer(("{root}", "--older-than", "1h", *PLAN), old),
    "offsets reset": Writer(("{root}", "--group", GROUP, "--to", "earliest", *PLAN)),
    "offsets copy": Writer(("{root}", "--from-group", GROUP, "--to-group", "fresh", *PLAN)),
    "offsets import": Writer(("{root}", "{root}/../older.json", *PLAN), older_offsets),
    "pop release": Writer(("{root}", "--group", GROUP, *PLAN), popped),
    "transactions commit": Writer(("{root}", "--all", *PLAN), half),
    "transactions rollback": Writer(("{root}", "--all", *PLAN), half),
    "delete message": Writer(("{root}", "--key", "k1", *PLAN)),
    "delete key": Writer(("{root}", "k1", *PLAN)),
    "delete topic": Writer(("{root}", "orders", *PLAN)),
    "delete group": Writer(("{root}", GROUP, *PLAN)),
    "config merge": Writer(("{root}", "--from", "{root}/../topics.json", *PLAN), other_topics),
    "topic restore": Writer(("{root}", "orders", *PLAN), without_topics),
    "config convert": Writer(("{root}", "--to", "rocksdb-v1", *PLAN), needs="rocksdict"),
    "undo": Writer(("{root}", "--yes", "--force"), repaired),
    "tiered dispatch": Writer(("{root}", "{root}/tieredstore", "--broker", "b", "--cluster", "c")),
    "tiered commit": Writer(("{root}/tieredstore",), tier=True),
    "tiered compact": Writer(("{root}/tieredstore",), tier=True),
    "tiered recover": Writer(("{root}/tieredstore", *PLAN), tier=True),
    "tiered expire": Writer(("{root}/tieredstore", "--older-than", "0s", *PLAN), tier=True),
    "pipeline rebuild": Writer(("{root}", "--engine", "local", *PLAN), damage),
    "serve": Writer(("{root}", "--writable", "--listen", "127.0.0.1:0", "--idle-exit", "0",
                     "--topic", "fresh")),
}
MORE = {"serve"}
"""Commands that change a store with an option only."""

STORE_PARTS = ("consumequeue", "consumequeue/orders", "consumequeue/orders/0", "a queue file",
               "commitlog", "the first log file", "the last log file", "config",
               "config/topics.json", "config/topics.json.bak", "config/consumerOffset.json",
               "index", "an index file", "checkpoint", ".rmqctl", "lock", "abort", "abort.bak")
TIER_PARTS = ("a segment of messages", "a segment of units", "a queue", "config",
              "the metadata", "the local index", ".rmqctl")


def test_every_command_that_changes_a_store_is_here() -> None:
    assert set(WRITERS) == {spec.title for spec in REGISTRY if spec.effect == "mutates"} | MORE


def store_part(root: Path, name: str) -> Path:
    first = {"a queue file": "consumequeue/orders/0/*", "the first log file": "commitlog/*",
             "an index file": "index/*"}
    if name in first:
        return min(root.glob(first[name]), default=root / "commitlog/none")
    if name == "the last log file":
        return max(root.glob("commitlog/*"), default=root / "commitlog/none")
    return root / name


def tier_part(home: Path, name: str) -> Path:
    tier = home / "tieredstore"
    patterns = {"a segment of messages": "**/COMMIT_LOG/*",
                "a segment of units": "**/CONSUME_QUEUE/*",
                "a queue": "**/CONSUME_QUEUE"}
    if name in patterns:
        return min(tier.glob(patterns[name]))
    return {"config": home / "config", "the metadata": home / "config/tieredStoreMetadata.json",
            "the local index": home / "tiered_index_file", ".rmqctl": tier / ".rmqctl"}[name]


def move_out(part: Path, victim: Path) -> None:
    """The part, and things of somebody else beside it, in a folder outside; a link to it."""
    victim.mkdir()
    (victim / "id_rsa").write_text("secret")
    there = victim / part.name
    if part.exists():
        shutil.move(part, there)
    elif part.suffix or part.name in ("lock", "abort", "checkpoint"):
        there.write_bytes(b"")
    else:
        there.mkdir()
    if there.is_dir():
        (there / "authorized_keys").write_text("mine")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.symlink_to(there)
    old(victim)
    os.utime(victim, (10**9, 10**9))


@pytest.fixture
def store(retried_base: Tiny, tmp_path: Path) -> Path:
    return snapshot.copy_tree(retried_base.root, tmp_path / "store")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of a broker with a tier whose last message has no unit yet."""
    writer = TierWriter()
    for number in range(6):
        writer.put(b"message %d" % number, keys=f"k{number}")
    writer.units.pop(max(writer.units))
    tier = writer.write(tmp_path / "home")
    assert tier == tmp_path / "home/tieredstore"
    return tmp_path / "home"


def drive(name: str, root: Path) -> Result:
    writer = WRITERS[name]
    if writer.needs:
        pytest.importorskip(writer.needs)
    given = root.parent / "input"
    given.write_bytes(MESSAGE)
    words = [word.replace("{root}", str(root)).replace("{input}", str(given))
             for word in writer.words]
    return run(*name.split(), *words)


def _pairs() -> Iterator[tuple[str, str]]:
    for name, writer in WRITERS.items():
        for part in TIER_PARTS if writer.tier else STORE_PARTS:
            yield name, part


@pytest.mark.parametrize("name", WRITERS)
def test_it_changes_a_store_without_links(name: str, store: Path, home: Path) -> None:
    """Else the next test would prove nothing."""
    root = home if WRITERS[name].tier else store
    WRITERS[name].before(root)
    before = snapshot.take(root)
    drive(name, root).expect(0, 1)
    assert before.differences(snapshot.take(root))


@pytest.mark.parametrize(("name", "part"), list(_pairs()))
def test_nothing_is_written_through_a_link(name: str, part: str, store: Path, home: Path,
                                           tmp_path: Path) -> None:
    root = home if WRITERS[name].tier else store
    WRITERS[name].before(root)
    link = (tier_part if WRITERS[name].tier else store_part)(root, part)
    victim = tmp_path / "victim"
    move_out(link, victim)
    before, target = snapshot.take(victim), os.readlink(link)
    drive(name, root)
    assert before.differences(snapshot.take(victim)) == []
    assert os.path.islink(link), "the link was moved"
    assert os.readlink(link) == target


@pytest.mark.parametrize("part", TIER_PARTS)
def test_a_dispatch_goes_on_through_no_link(part: str, store: Path, tmp_path: Path) -> None:
    """A tier that has messages already, and gets more."""
    drive("tiered dispatch", store).expect(0)
    drive("append", store).expect(0)
    link, victim = tier_part(store, part), tmp_path / "victim"
    move_out(link, victim)
    before = snapshot.take(victim)
    drive("tiered dispatch", store).expect(6)
    assert before.differences(snapshot.take(victim)) == []
