"""Nothing is written outside the store because something in the store says so."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import zlib
from pathlib import Path

import pytest

from rmqctl.broker.settings import Settings
from rmqctl.engine.config.create import store_json
from rmqctl.errors import RefusedError
from rmqctl.files.bounds import WritableFolders
from tests.conftest import GoldenFolder, Runner
from tests.support import snapshot
from tests.support.holder import KINDS, held
from tests.support.tiny import Tiny

ID = "20260101T000000Z-1"
JSON = ("-o", "json")


def stamp(path: Path) -> list[int]:
    about = path.stat()
    return [about.st_size, about.st_mtime_ns, about.st_ino]


def forge(root: Path, step: dict[str, object], *, applied: bool = False,
          made_in: str | None = None, homes: tuple[str, ...] = (),
          times: dict[str, int] | None = None) -> Path:
    """Write the journal of a repair that nobody made; its folder, with content to put in place."""
    folder = root / ".rmqctl/repairs" / ID
    for name in ("new", "aside"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "new/000001").write_bytes(b"echo changed\n")
    if "new" not in step and step.get("staged"):
        step["new"] = stamp(folder / "new/000001")
    rest = json.dumps(step, separators=(",", ":")).encode() + b"\n"
    head = {"format": 1, "id": ID, "time": 1767225600000, "command": "recover", "actions": 0,
            "steps": 1, "homes": homes, "inode": os.stat(folder).st_ino, "times": times or {},
            "root": made_in or os.path.realpath(root), "neighbours": {},
            "crc": zlib.crc32(rest)}
    (folder / "journal.jsonl").write_bytes(json.dumps(head).encode() + b"\n" + rest)
    if applied:
        (folder / "state.json").write_text(json.dumps({"state": "applied", "time": 1}))
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of the user, beside the store."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".bashrc").write_text("# settings\n")
    return folder


TARGETS = ["../home/{}", "{home}/{}", "consumequeue/../../home/{}", "door/{}"]
"""Relative, absolute, through a folder of the store, through a link in it."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["create", "replace", "move", "folder"])
def test_an_interrupted_repair_of_a_stranger(rmqctl: Runner, tiny: Tiny, home: Path, target: str,
                                             kind: str) -> None:
    """Its journal names the very path of the store, and files of the user."""
    (tiny.root / "door").symlink_to(home)
    name = {"create": ".ssh/authorized_keys", "folder": "made/by/stranger"}.get(kind, ".bashrc")
    step: dict[str, object] = {"kind": kind, "target": target.replace("{home}", str(home)).replace(
        "{}", name)}
    if kind in ("create", "replace"):
        step |= {"staged": "new/000001", "undone": "undone/x"}
    if kind in ("replace", "move"):
        step |= {"backup": "aside/x", "kept": "aside/x", "old": stamp(home / ".bashrc")}
        del step["backup"]
    forge(tiny.root, step)
    shutil.rmtree(tiny.root / "consumequeue")
    before = snapshot.take(home)
    rmqctl("recover", tiny.root, *JSON)
    rmqctl("recover", tiny.root, "--apply", *JSON).expect(6)
    rmqctl("undo", tiny.root, "--yes").expect(6)
    rmqctl("undo", tiny.root, "--yes", "--force").expect(6)
    assert before.differences(snapshot.take(home)) == []


@pytest.mark.parametrize("target", TARGETS)
def test_undo_of_a_repair_that_was_never_made(rmqctl: Runner, tiny: Tiny, home: Path,
                                              target: str) -> None:
    """It would take away a file of the user."""
    (tiny.root / "door").symlink_to(home)
    forge(tiny.root, {"kind": "create", "staged": "new/gone", "undone": "undone/x",
                      "target": target.replace("{home}", str(home)).replace("{}", ".bashrc"),
                      "new": stamp(home / ".bashrc")}, applied=True)
    before = snapshot.take(home)
    rmqctl("undo", tiny.root, "--yes").expect(6)
    rmqctl("undo", tiny.root, "--yes", "--force").expect(6)
    assert before.differences(snapshot.take(home)) == []


def test_folders_that_only_the_state_names(rmqctl: Runner, tiny: Tiny, home: Path) -> None:
    """``state.json`` says that a folder outside was moved to one of the user."""
    step = {"kind": "create", "target": "/data/log/.bashrc", "staged": "new/gone",
            "undone": "undone/x", "new": stamp(home / ".bashrc")}
    folder = forge(tiny.root, step, made_in="/data/store")
    (folder / "state.json").write_text(json.dumps({
        "state": "undoing", "time": 1, "force": True,
        "moved": {"root": os.path.realpath(tiny.root), "folders": {"/data/log": str(home)}}}))
    before = snapshot.take(home)
    for command in (("recover", "--apply"), ("undo", "--yes")):
        rmqctl(command[0], tiny.root, *command[1:], *JSON).expect(6)
    assert before.differences(snapshot.take(home)) == []


@pytest.mark.parametrize("name", ["staged", "kept", "undone"])
@pytest.mark.parametrize("path", ["../../../../../home/x", "{home}/x"])
def test_what_is_kept_stays_in_the_repairs_folder(rmqctl: Runner, tiny: Tiny, home: Path,
                                                  name: str, path: str) -> None:
    target = tiny.root / "checkpoint"
    step: dict[str, object] = {"kind": "replace", "target": "checkpoint", "staged": "new/000001",
                               "kept": "aside/x", "undone": "undone/x", "old": stamp(target)}
    step[name] = path.replace("{home}", str(home))
    step.setdefault("new", stamp(target))
    forge(tiny.root, step)
    before = snapshot.take(home)
    rmqctl("recover", tiny.root, "--apply", *JSON).expect(6)
    rmqctl("undo", tiny.root, "--yes").expect(6)
    assert before.differences(snapshot.take(home)) == []


@pytest.mark.parametrize("where", ["{home}/.ssh", "{home}/.rmqctl/repairs/" + ID + "-0badcafe",
                                   "{store}/door/.rmqctl/repairs/" + ID + "-0badcafe"])
@pytest.mark.parametrize("applied", [False, True])
def test_further_folders_that_a_journal_names(rmqctl: Runner, tiny: Tiny, home: Path, where: str,
                                              *, applied: bool) -> None:
    """What a repair keeps on another disk lies beside what it changed there, nowhere else."""
    (tiny.root / "door").symlink_to(home)
    folder = Path(where.replace("{home}", str(home)).replace("{store}", str(tiny.root)))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "id_rsa").write_text("secret")
    target = tiny.root / "checkpoint"
    forge(tiny.root, {"kind": "replace", "target": "checkpoint", "home": 1, "staged": "id_rsa",
                      "kept": "authorized_keys", "undone": "undone", "old": stamp(target),
                      "new": stamp(target if applied else folder / "id_rsa")},
          applied=applied, homes=(str(folder),))
    before, mine = snapshot.take(home), snapshot.take(tiny.root / "config")
    if not applied:
        rmqctl("recover", tiny.root, "--apply", *JSON).expect(6)
    rmqctl("undo", tiny.root, "--yes").expect(6)
    rmqctl("undo", tiny.root, "--yes", "--force").expect(6)
    assert before.differences(snapshot.take(home)) == []
    assert mine.differences(snapshot.take(tiny.root / "config")) == []


@pytest.mark.parametrize("kind", ["replace", "move", "create"])
@pytest.mark.parametrize("applied", [False, True])
def test_links_among_what_a_repair_keeps(rmqctl: Runner, tiny: Tiny, home: Path, kind: str, *,
                                         applied: bool) -> None:
    """A folder below ``aside`` is a folder of the user."""
    target = tiny.root / "checkpoint"
    step: dict[str, object] = {"kind": kind, "target": "checkpoint", "undone": "undone/door/x"}
    if kind != "create":
        step |= {"kept": "aside/door/.bashrc" if applied else "aside/door/authorized_keys",
                 "old": stamp(target)}
    if kind != "move":
        step |= {"staged": "new/door/.bashrc", "new": stamp(target if applied else
                                                           home / ".bashrc")}
    folder = forge(tiny.root, step, applied=applied)
    for name in ("new", "aside", "undone"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "door").symlink_to(home)
    if (applied and kind == "move") or (not applied and kind == "create"):
        target.unlink()
    before = snapshot.take(home)
    if not applied:
        rmqctl("recover", tiny.root, "--apply", *JSON).expect(6)
    rmqctl("undo", tiny.root, "--yes").expect(6)
    rmqctl("undo", tiny.root, "--yes", "--force").expect(6)
    assert before.differences(snapshot.take(home)) == []


@pytest.mark.parametrize("link", ["consumequeue/orders/0", "consumequeue/orders", "index",
                                  "consumequeue/orders/0/00000000000000000000"])
@pytest.mark.parametrize("where", ["home", "store"])
def test_links_in_the_scratch_folder(rmqctl: Runner, tiny: Tiny, home: Path, link: str,
                                     where: str) -> None:
    """What an interrupted run had made is taken up again: a stranger may have made it."""
    name, at = tiny.unit_place(tiny.units[0])
    data = bytearray((tiny.root / name).read_bytes())
    data[at + 7] ^= 1
    (tiny.root / name).write_bytes(data)
    target = home if where == "home" else tiny.root / "commitlog"
    if link.endswith("0000"):
        target = min(path for path in target.iterdir() if path.is_file())
    place = tiny.root / ".rmqctl/scratch/recover" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(target)
    before, log = snapshot.take(home), snapshot.take(tiny.root / "commitlog")
    rmqctl("recover", tiny.root, "--apply", *JSON).expect(5)
    assert before.differences(snapshot.take(home)) == []
    assert log.differences(snapshot.take(tiny.root / "commitlog")) == []


@pytest.mark.parametrize("name", ["../home", "door", "{home}", "door/.ssh"])
def test_times_of_folders_that_a_journal_names(rmqctl: Runner, tiny: Tiny, home: Path,
                                               name: str) -> None:
    """Undo gives folders of the store the times they had, and no others."""
    (tiny.root / "door").symlink_to(home)
    target = tiny.root / "checkpoint"
    forge(tiny.root, {"kind": "create", "target": "checkpoint", "staged": "new/gone",
                      "undone": "undone/checkpoint", "new": stamp(target)}, applied=True,
          times={name.replace("{home}", str(home)): 1_000_000_000})
    before = snapshot.take(home)
    rmqctl("undo", tiny.root, "--yes").expect(0)
    assert not target.exists()
    assert before.differences(snapshot.take(home)) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("word", ["--commitlog-dir", "--broker-conf", "--write-outside"])
def test_the_lock_of_the_store_that_contains_the_folder(
        rmqctl: Runner, tiny: Tiny, tmp_path: Path, kind: str, word: str) -> None:
    """The log is another store's: it is written while that store's lock is ours, and not before."""
    other = snapshot.copy_tree(tiny.root, tmp_path / "other")
    (other / "lock").write_bytes(b"lock")
    log = other / "commitlog"
    shutil.rmtree(tiny.root / "commitlog")
    (tiny.root / "commitlog").symlink_to(log)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={tiny.root}\nstorePathCommitLog={log}\n")
    named = (word, str(conf if word == "--broker-conf" else log))
    place = tiny.messages[1].start
    cut = ("truncate", tiny.root, "--to-phy", str(place), *named, "--apply", *JSON)
    refused = rmqctl("truncate", tiny.root, "--to-phy", str(place), "--apply", *JSON).expect(6)
    assert str(log) in refused.err
    before = snapshot.take(log)
    with held(other, kind):
        rmqctl(*cut).expect(4)
        assert before.differences(snapshot.take(log)) == []
    rmqctl(*cut).expect(0, 1)
    assert before.differences(snapshot.take(log))
    applied = snapshot.take(log)
    with held(other, kind):
        rmqctl("undo", tiny.root, "--yes", "--write-outside", log).expect(4)
        assert applied.differences(snapshot.take(log)) == []
    rmqctl("undo", tiny.root, "--yes", "--write-outside", log).expect(0)
    assert before.differences(snapshot.take(log)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_lock_around_a_folder_that_undo_is_told_of(rmqctl: Runner, tiny: Tiny, tmp_path: Path,
                                                       kind: str) -> None:
    """``--moved`` names a folder of another store."""
    other = snapshot.copy_tree(tiny.root, tmp_path / "other")
    log = other / "commitlog"
    victim = log / "20"
    victim.write_bytes(b"x")
    forge(tiny.root, {"kind": "create", "target": "/data/log/20", "staged": "new/gone",
                      "undone": "undone/x", "new": stamp(victim)}, applied=True,
          made_in="/data/store")
    words = ("undo", tiny.root, "--yes", "--moved", f"/data/log={log}")
    with held(other, kind):
        rmqctl(*words).expect(4)
    assert victim.exists()
    rmqctl(*words).expect(0)
    assert not victim.exists()


@pytest.mark.parametrize("words", [
    ("recover",), ("truncate", "--to-phy", "0"), ("expire", "--older-than", "1h")], ids=" ".join)
def test_a_link_out_of_the_store(rmqctl: Runner, tiny: Tiny, home: Path,
                                 words: tuple[str, ...]) -> None:
    """A queue's folder is a folder of the user: its files are neither moved nor replaced."""
    command, *options = words
    queue = tiny.root / "consumequeue/orders/0"
    shutil.rmtree(queue)
    queue.symlink_to(home)
    (home / "id_rsa").write_text("secret")
    before = snapshot.take(home)
    rmqctl(command, tiny.root, *options, *JSON)
    rmqctl(command, tiny.root, *options, "--apply", *JSON)
    assert before.differences(snapshot.take(home)) == []


def test_the_undo_that_is_shown_names_the_folder(rmqctl: Runner, tiny: Tiny,
                                                 tmp_path: Path) -> None:
    disk = tmp_path / "a disk" / "orders"
    disk.parent.mkdir()
    shutil.move(tiny.root / "consumequeue/orders", disk)
    (tiny.root / "consumequeue/orders").symlink_to(disk)
    name, at = tiny.unit_place(tiny.units[0])
    data = bytearray((tiny.root / name).read_bytes())
    data[at + 7] ^= 1
    (tiny.root / name).write_bytes(data)
    before = snapshot.take(disk)
    refused = rmqctl("recover", tiny.root).expect(6)
    folder = os.path.dirname(os.path.realpath(tiny.root / name))
    assert f"--write-outside {shlex.quote(folder)}" in " ".join(refused.err.split())
    relative = os.path.relpath(folder)  # as the shell has it, not from the store
    done = rmqctl("recover", tiny.root, "--write-outside", relative, "--apply",
                  "--yes").expect(0, 1)
    assert before.differences(snapshot.take(disk))
    (command,) = [line.strip() for line in done.out.splitlines()
                  if line.strip().startswith("rmqctl undo ")]
    rmqctl(*shlex.split(command)[1:], "--yes").expect(0)
    assert before.differences(snapshot.take(disk)) == []


@pytest.mark.parametrize("lock", [False, True])
def test_a_noted_root_gets_no_lock_file(rmqctl: Runner, tiny: Tiny, home: Path, *,
                                        lock: bool) -> None:
    if lock:
        (home / "lock").touch()
    (tiny.root / ".rmqctl").mkdir(exist_ok=True)
    (tiny.root / ".rmqctl/held.json").write_text(json.dumps({"homes": [str(home)]}))
    (tiny.root / "checkpoint").unlink()
    before = snapshot.take(home)
    rmqctl("recover", tiny.root, "--apply", *JSON)
    assert before.differences(snapshot.take(home)) == []


@pytest.mark.parametrize("name", [".bashrc", "config/notes", "tieredstore-2/x"])
def test_beside_a_tier_only_its_metadata_and_index_are_written(
        rmqctl: Runner, golden_copy: GoldenFolder, name: str) -> None:
    """The folder around a tier may be the user's home: a journal in the tier names a file there."""
    home = golden_copy("5.3.3/tiered")
    tier = next(home.rglob("tieredstore"))
    victim = tier.parent / name
    victim.parent.mkdir(exist_ok=True)
    victim.write_text("mine")
    forge(tier, {"kind": "create", "target": str(victim), "staged": "new/gone",
                 "undone": "undone/x", "new": stamp(victim)}, applied=True)
    rmqctl("undo", tier, "--yes").expect(6)
    rmqctl("undo", tier, "--yes", "--force").expect(6)
    assert victim.read_text() == "mine"


def test_bounds(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store-2").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "named")
    (tmp_path / "store/door").symlink_to(tmp_path / "name")
    bounds = WritableFolders(str(tmp_path / "store"), [str(tmp_path / "link"),
                                                       str(tmp_path / "store/door")])
    assert bounds.contain(str(tmp_path / "store/commitlog/0"))
    assert bounds.contain(str(tmp_path / "named/0"))
    for outside in ("store-2/0", "0", "name/0"):
        assert not bounds.contain(str(tmp_path / outside))
        with pytest.raises(RefusedError, match=f"--write-outside {tmp_path}"):
            bounds.require("x", str(tmp_path / outside))


@pytest.mark.parametrize("words", [("recover",), ("truncate", "--to-phy", "0")], ids=" ".join)
def test_every_file_that_is_moved_aside_is_listed(rmqctl: Runner, tiny: Tiny,
                                                  words: tuple[str, ...]) -> None:
    """Strange files in a queue's folder go with it: whoever reads the plan sees each of them."""
    command, *options = words
    strange = [f"consumequeue/orders/0/id_{number}" for number in range(50)]
    for name in strange:
        (tiny.root / name).write_text("secret")
    name, at = tiny.unit_place(tiny.units[0])
    data = bytearray((tiny.root / name).read_bytes())
    data[at + 7] ^= 1
    (tiny.root / name).write_bytes(data)
    before = {str(path.relative_to(tiny.root)) for path in tiny.root.rglob("*") if path.is_file()}
    planned = rmqctl(command, tiny.root, *options, *JSON).json()["moved_aside"]
    page = rmqctl(command, tiny.root, *options).out
    done = rmqctl(command, tiny.root, *options, "--apply", *JSON).expect(0, 1).json()
    kept = tiny.root / done["kept"] / "aside"
    moved = {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()}
    replaced = {name for name in moved if (tiny.root / name).exists()
                and name not in done["moved_aside"]}
    assert set(planned) == set(done["moved_aside"]) == moved - replaced
    assert set(planned) <= before
    assert command == "truncate" or set(strange) <= set(planned)
    for name in planned:
        assert os.path.basename(name) in page, name


@pytest.fixture
def borrowed(tiny: Tiny, tmp_path: Path) -> tuple[Path, Path]:
    """(a store whose ``store.json`` names the log of another store, that store)."""
    other = snapshot.copy_tree(tiny.root, tmp_path / "other")
    (other / "lock").write_bytes(b"lock")
    shutil.rmtree(tiny.root / "commitlog")
    (tiny.root / ".rmqctl").mkdir(exist_ok=True)
    document = json.loads(store_json(Settings(commitlog_file_size=1024, consumequeue_file_size=60,
                                              index_slots=8, index_max=32)))
    (tiny.root / ".rmqctl/store.json").write_text(json.dumps(
        {**document, "commitlog_dirs": [str(other / "commitlog")]}))
    return tiny.root, other


BORROWERS = {
    "append": ("append", "{root}", "{input}", "--auto-create-topic"),
    "write": ("write", "{root}", "--topic", "orders", "--body", "x", "--auto-create-topic"),
    "serve": ("serve", "{root}", "--writable", "--listen", "127.0.0.1:0", "--idle-exit", "0",
              "--topic", "t"),
    "truncate": ("truncate", "{root}", "--to-phy", "156", "--apply", "-o", "json"),
    "expire": ("expire", "{root}", "--keep-bytes", "1", "--apply", "-o", "json"),
}


@pytest.mark.parametrize("name", BORROWERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_only_the_store_names(rmqctl: Runner, borrowed: tuple[Path, Path],
                                         tmp_path: Path, name: str, kind: str) -> None:
    """It is read; written where the user names it, too, and the lock of its store is ours."""
    root, other = borrowed
    given = tmp_path / "input"
    given.write_text('{"topic": "orders", "body": "more"}\n')
    words = [word.replace("{root}", str(root)).replace("{input}", str(given))
             for word in BORROWERS[name]]
    log = other / "commitlog"
    before = snapshot.take(other)
    assert rmqctl("info", root, *JSON).json()["max_phy_offset"] > 0
    refused = rmqctl(*words).expect(6)
    assert str(log) in refused.err
    assert before.differences(snapshot.take(other)) == []
    named = ("--commitlog-dir", str(log))
    with held(other, kind):
        rmqctl(*words, *named).expect(4)
        assert before.differences(snapshot.take(other)) == []
    rmqctl(*words, *named).expect(0, 1)
    if name != "serve":
        assert before.differences(snapshot.take(other))


@pytest.mark.parametrize("part", ["consumequeue/orders/0", "a queue file", "commitlog"])
def test_recover_names_the_link(rmqctl: Runner, tiny: Tiny, tmp_path: Path, part: str) -> None:
    name, at = tiny.unit_place(tiny.units[0])
    data = bytearray((tiny.root / name).read_bytes())
    data[at + 7] ^= 1
    (tiny.root / name).write_bytes(data)
    log = tiny.root / "commitlog/00000000000000000000"
    data = bytearray(log.read_bytes())
    data[88] ^= 1
    log.write_bytes(data)
    link = tiny.root / (name if part == "a queue file" else part)
    victim = tmp_path / "victim"
    shutil.move(link, victim)
    link.symlink_to(victim)
    before = snapshot.take(victim)
    for apply in ((), ("--apply",)):
        refused = rmqctl("recover", tiny.root, *apply, *JSON).expect(6)
        assert str(victim) in refused.err
        assert "--write-outside" in refused.err or part == "a queue file"
    assert before.differences(snapshot.take(victim)) == []
