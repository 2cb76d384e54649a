"""Nothing is written outside the store because something in the store says so."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import zlib
from pathlib import Path

import pytest

from rmqctl.errors import RefusedError
from rmqctl.files.bounds import Bounds
from tests.conftest import GoldenFolder, Runner
from tests.support import snapshot
from tests.support.tiny import Tiny

ID = "20260101T000000Z-1"
JSON = ("-o", "json")


def stamp(path: Path) -> list[int]:
    about = path.stat()
    return [about.st_size, about.st_mtime_ns, about.st_ino]


def forge(root: Path, step: dict[str, object], *, applied: bool = False,
          made_in: str | None = None) -> Path:
    """Write the journal of a repair that nobody made; its folder, with content to put in place."""
    folder = root / ".rmqctl/repairs" / ID
    for name in ("new", "aside"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "new/000001").write_bytes(b"echo changed\n")
    if "new" not in step and step.get("staged"):
        step["new"] = stamp(folder / "new/000001")
    rest = json.dumps(step, separators=(",", ":")).encode() + b"\n"
    head = {"format": 1, "id": ID, "time": 1767225600000, "command": "recover", "actions": 0,
            "steps": 1, "homes": [], "inode": os.stat(folder).st_ino, "times": {},
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
    done = rmqctl("recover", tiny.root, "--write-outside", folder, "--apply", "--yes").expect(0, 1)
    assert before.differences(snapshot.take(disk))
    (command,) = [line.strip() for line in done.out.splitlines()
                  if line.strip().startswith("rmqctl undo ")]
    rmqctl(*shlex.split(command)[1:], "--yes").expect(0)
    assert before.differences(snapshot.take(disk)) == []


def test_a_noted_root_without_a_lock_gets_none(rmqctl: Runner, tiny: Tiny, home: Path) -> None:
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
    bounds = Bounds(str(tmp_path / "store"), [str(tmp_path / "link")])
    assert bounds.contain(str(tmp_path / "store/commitlog/0"))
    assert bounds.contain(str(tmp_path / "named/0"))
    for outside in ("store-2/0", "0", "name/0"):
        assert not bounds.contain(str(tmp_path / outside))
        with pytest.raises(RefusedError, match=f"--write-outside {tmp_path}"):
            bounds.require("x", str(tmp_path / outside))
