"""Stores made to hurt: links, strange kinds of files, wild values, damaged leftovers.

A repair refuses with a sentence or does its work; it never hangs, never goes through a link into
something else, and what it did comes back to the byte.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.sparse import same_content
from rmqctl.formats.local import message
from rmqctl.repair import targets
from rmqctl.repair.executor import staging_dirs
from rmqctl.repair.executor.staging import clear
from rmqctl.repair.scratch import Scratch
from tests.support import snapshot
from tests.support.cli import Result
from tests.support.share import every
from tests.support.tiny import INDEX_NAME, Tiny, variant

Run = Callable[..., Result]
QUEUE_FILE = "consumequeue/orders/0/00000000000000000000"
LOG_FILES = "commitlog/00000000000000000000", "commitlog/00000000000000001024"
INDEX_FILE = f"index/{INDEX_NAME}"
JSON = ("-o", "json")


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return variant(tmp_path / "store", "default")


def state(root: Path) -> snapshot.Snapshot:
    """Everything but what rmqctl keeps for itself."""
    kept = {name: entry for name, entry in snapshot.take(root).entries.items()
            if not name.startswith(".rmqctl") and name not in (".", "lock")}
    return snapshot.Snapshot(kept)


def index_sizes(tiny: Tiny) -> tuple[str, ...]:
    """For a store without a file that tells them."""
    return ("--index-slots", str(tiny.options.index_slots),
            "--index-max", str(tiny.options.index_max))


def there_and_back(run: Run, root: Path, *words: str,
                   outside: tuple[str, ...] = ()) -> dict[str, str]:
    """Plans, applies, plans again (nothing is left), takes back; target -> reason of the plan."""
    was = state(root)
    words = (*words, *outside)
    planned = run("recover", root, *words, *JSON).recovered()
    assert not was.differences(state(root)), "a plan changes nothing"
    done = run("recover", root, *words, "--apply", *JSON).recovered()
    assert done["actions"] == planned["actions"]
    assert done["applied"]
    assert planned["actions"]
    assert run("recover", root, *words, *JSON).recovered()["actions"] == []
    run("undo", root, "--yes", *outside, *JSON).expect(0)
    assert not was.differences(state(root))
    return {action["target"]: action["reason"] for action in planned["actions"]}


def clear_away(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


def fifo(path: Path) -> None:
    clear_away(path)
    os.mkfifo(path)


def folder(path: Path) -> None:
    clear_away(path)
    path.mkdir()
    (path / "inside").write_bytes(b"x")


def file(path: Path) -> None:
    clear_away(path)
    path.write_bytes(b"x" * 40)


# -- other things than files ----------------------------------------------------------------------


@pytest.mark.parametrize("put", [fifo, folder])
@pytest.mark.parametrize("name", [QUEUE_FILE, INDEX_FILE, "checkpoint"])
def test_what_is_no_file_goes_aside_for_one(rmqctl: Run, tiny: Tiny, name: str,
                                            put: Callable[[Path], None]) -> None:
    put(tiny.root / name)
    reasons = there_and_back(rmqctl, tiny.root)
    assert any(name.startswith(target) for target in reasons)


@pytest.mark.parametrize("put", [fifo, file])
@pytest.mark.parametrize("name", ["consumequeue/orders/0", "consumequeue/orders", "index"])
def test_what_is_no_folder_goes_aside_for_one(rmqctl: Run, tiny: Tiny, name: str,
                                              put: Callable[[Path], None]) -> None:
    put(tiny.root / name)
    there_and_back(rmqctl, tiny.root)


def test_files_that_are_none_are_never_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "fifo")
    for first, other in (("file", "fifo"), ("fifo", "file")):
        with pytest.raises(StoreIOError, match="not a regular file"):
            same_content(str(tmp_path / first), str(tmp_path / other))


def test_a_log_of_actions_that_cannot_be_written_stops_the_repair_first(rmqctl: Run,
                                                                        tiny: Tiny) -> None:
    (tiny.root / QUEUE_FILE).unlink()
    (tiny.root / ".rmqctl/log.jsonl").mkdir(parents=True)
    was = state(tiny.root)
    assert "log.jsonl" in rmqctl("recover", tiny.root, "--apply", *JSON).expect(5).err
    assert not was.differences(state(tiny.root))
    assert rmqctl("undo", tiny.root, "--list", *JSON).expect(0).out.strip() in ("[]", "")


# -- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpoint", QUEUE_FILE, INDEX_FILE])
def test_a_link_to_another_file_of_the_store_is_not_written_through(rmqctl: Run, tiny: Tiny,
                                                                    name: str) -> None:
    other = tiny.root / "consumequeue/bills/0/00000000000000000000"
    content = other.read_bytes()
    (tiny.root / name).unlink()
    (tiny.root / name).symlink_to(other)
    there_and_back(rmqctl, tiny.root, *index_sizes(tiny))
    rmqctl("recover", tiny.root, *index_sizes(tiny), "--apply", *JSON).expect(0)
    assert other.read_bytes() == content
    assert not (tiny.root / name).is_symlink()
    rmqctl("verify", tiny.root).expect(0)


def test_the_log_is_not_patched_through_a_link_to_another_part_of_it(rmqctl: Run,
                                                                     tiny: Tiny) -> None:
    first, second = (tiny.root / name for name in LOG_FILES)
    content = first.read_bytes()
    second.unlink()
    second.symlink_to(first)
    rmqctl("recover", tiny.root, *JSON)
    rmqctl("recover", tiny.root, "--apply", *JSON)
    assert first.read_bytes() == content


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can follow such links")
@pytest.mark.parametrize("name", ["checkpoint", INDEX_FILE, QUEUE_FILE])
def test_a_users_link_does_not_lead_the_administrator_elsewhere(rmqctl: Run, tiny: Tiny,
                                                                tmp_path: Path,
                                                                name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"root only\n")
    path = tiny.root / name
    path.unlink()
    path.symlink_to(secret)
    os.chown(path, 4711, 4711, follow_symlinks=False)
    sizes = index_sizes(tiny)
    for words in ((), ("--apply",)):
        rmqctl("recover", tiny.root, *sizes, *words, *JSON).expect(6)
    assert secret.read_bytes() == b"root only\n"
    os.chown(secret, 4711, 4711)
    assert "is a link" in rmqctl("recover", tiny.root, *sizes, "--apply", *JSON).expect(6).err
    assert secret.read_bytes() == b"root only\n"


@pytest.mark.parametrize("name", ["checkpoint", "abort", "abort.bak"])
@pytest.mark.parametrize("words", [
    ("write", "--topic", "orders", "--body", "x"), ("append",), ("flush",)], ids=" ".join)
def test_small_files_are_not_written_through_a_link(rmqctl: Run, tiny: Tiny, tmp_path: Path,
                                                    name: str, words: tuple[str, ...]) -> None:
    if words[0] == "flush" and name != "checkpoint":
        return  # it makes no abort file
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"12345")
    path = tiny.root / name
    path.unlink(missing_ok=True)
    path.symlink_to(elsewhere)
    was = snapshot.take(tiny.root)
    command, *options = words
    if command == "append":
        options = [str(tmp_path / "lines")]
        (tmp_path / "lines").write_text('{"topic": "orders", "body": "x"}\n')
    report = rmqctl(command, tiny.root, *options).expect(6)
    assert f"{path} is a link" in report.err
    assert elsewhere.read_bytes() == b"12345"
    assert not was.differences(snapshot.take(tiny.root))


@pytest.mark.parametrize("name", [
    "lock", ".rmqctl", ".rmqctl/log.jsonl", ".rmqctl/store.json", ".rmqctl/held.json",
    ".rmqctl/scratch", ".rmqctl/repairs", ".rmqctl/aside", ".rmqctl/kept",
    ".rmqctl/repairs/20240101T000000Z-1", ".rmqctl/repairs/20240101T000000Z-1/journal",
    ".rmqctl/repairs/20240101T000000Z-1/aside"])
@pytest.mark.parametrize("words", [
    ("recover", "--apply", "--yes"), ("write", "--topic", "orders", "--body", "x"),
    ("topic", "create", "another"), ("flush",)], ids=" ".join)
def test_nothing_is_written_through_links_of_our_own(rmqctl: Run, tiny: Tiny, tmp_path: Path,
                                                     name: str, words: tuple[str, ...]) -> None:
    """Whoever made it, and whatever is to be written: the error says which name it is."""
    elsewhere = tmp_path / "elsewhere"
    if Path(name).suffix in (".jsonl", ".json") or Path(name).name in ("lock", "journal"):
        elsewhere.write_bytes(b'{"format": 1}\n')
    else:
        elsewhere.mkdir()
    (tiny.root / QUEUE_FILE).unlink()
    path = tiny.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(elsewhere)
    before, was = snapshot.take(elsewhere), snapshot.take(tiny.root)
    command, *options = words
    placed = [command, options.pop(0), tiny.root] if command == "topic" else [command, tiny.root]
    report = rmqctl(*placed, *options).expect(6)
    assert f"{path} is a link" in report.err
    assert not before.differences(snapshot.take(elsewhere))
    assert not was.differences(snapshot.take(tiny.root))


def test_the_scratch_folder_is_no_way_out(rmqctl: Run, tiny: Tiny) -> None:
    (tiny.root / ".rmqctl/scratch").mkdir(parents=True)
    (tiny.root / ".rmqctl/scratch/recover").symlink_to(tiny.root)
    was = state(tiny.root)
    rmqctl("recover", tiny.root, "--apply", *JSON).expect(6)
    assert not was.differences(state(tiny.root))
    inner = tiny.root.parent / "scratch"
    (inner / "name").mkdir(parents=True)
    (inner / "name/consumequeue").symlink_to(tiny.root / "consumequeue")
    with pytest.raises(StoreIOError, match="is a link"):
        Scratch(str(inner), "name")


def test_a_store_of_links_is_repaired_where_they_lead(rmqctl: Run, tiny: Tiny,
                                                      tmp_path: Path) -> None:
    for number, name in enumerate(("commitlog", "consumequeue/orders", "index")):
        place = tmp_path / f"disk{number}" / "inner"
        place.parent.mkdir()
        shutil.move(tiny.root / name, place)
        (tiny.root / name).symlink_to(os.path.relpath(place, (tiny.root / name).parent))
    for unit in (tiny.units[0], tiny.units[2]):
        name, at = tiny.unit_place(unit)
        data = bytearray((tiny.root / name).read_bytes())
        data[at + 7] ^= 1
        (tiny.root / name).write_bytes(data)
    disks = [snapshot.take(path) for path in sorted(tmp_path.glob("disk*"))]
    # The links are the store's word: it takes the user's.
    for words in ((), ("--apply", "--yes")):
        refused = rmqctl("recover", tiny.root, *words, *JSON).expect(6)
        assert f"--write-outside {tmp_path / 'disk'}" in refused.err
    for was, path in zip(disks, sorted(tmp_path.glob("disk*")), strict=True):
        assert not was.differences(snapshot.take(path))
    named = [word for file in tmp_path.glob("disk*")
             for word in ("--write-outside", str(file / "inner"))]
    there_and_back(rmqctl, tiny.root, outside=tuple(named))
    for was, path in zip(disks, sorted(tmp_path.glob("disk*")), strict=True):
        assert not was.differences(snapshot.take(path))
    assert (tiny.root / "commitlog").is_symlink()


def test_a_file_with_further_names_is_mentioned(rmqctl: Run, tiny: Tiny, tmp_path: Path) -> None:
    path = tiny.root / LOG_FILES[0]
    data = bytearray(path.read_bytes())
    start = tiny.messages[1].start
    data[start + 88:start + 96] = b"\xff" * 8
    path.write_bytes(data)
    assert not any("hard links" in note for note in rmqctl(
        "recover", tiny.root, *JSON).recovered()["notes"])
    os.link(path, tmp_path / "backup")
    assert any("hard links" in note for note in rmqctl(
        "recover", tiny.root, *JSON).recovered()["notes"])


# -- wild values ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("time", [1 << 62, -(1 << 62), 1 << 55, 253_402_300_799_999])
def test_store_times_that_no_calendar_has(rmqctl: Run, tiny: Tiny, time: int) -> None:
    stored_message = tiny.messages[0]
    raw = message.build(replace(stored_message.record, store_timestamp=time))
    path = tiny.root / LOG_FILES[0]
    path.write_bytes(raw + path.read_bytes()[len(raw):])
    (tiny.root / INDEX_FILE).unlink()
    shutil.rmtree(tiny.root / "consumequeue")
    there_and_back(rmqctl, tiny.root)


def test_what_apply_refuses_is_no_plan(rmqctl: Run, tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tiny.root / "abort").symlink_to(tmp_path / "elsewhere")
    for words in ((), ("--apply",)):
        assert "link to a folder" in rmqctl("recover", tiny.root, *words, *JSON).expect(6).err


# -- leftovers ------------------------------------------------------------------------------------


@pytest.mark.long
def test_every_damage_to_a_journal_is_a_sentence(rmqctl: Run, tiny: Tiny) -> None:
    (tiny.root / QUEUE_FILE).unlink()
    id = rmqctl("recover", tiny.root, "--apply", *JSON).recovered()["id"]  # noqa: A001
    folder = tiny.root / ".rmqctl/repairs" / id
    for name in ("journal.jsonl", "state.json"):
        path = folder / name
        whole = path.read_bytes()
        for at in every(max(1, len(whole) // 3), range(len(whole)), name):
            for changed in (whole[:at], whole[:at] + b"\xff" + whole[at + 1:],
                            whole[:at] + b"9" + whole[at + 1:], whole[:at] + b"[" * 5000):
                path.write_bytes(changed)
                rmqctl("undo", tiny.root, "--list", *JSON).expect(0)
                rmqctl("undo", tiny.root, id, "--dry-run", *JSON).expect(0, 5, 6)
                rmqctl("recover", tiny.root, *JSON).expect(0)
        path.write_bytes(whole)
    for name in ("journal.jsonl", "state.json"):
        (folder / name).rename(folder / "kept")
        os.mkfifo(folder / name)
        rmqctl("undo", tiny.root, id, "--yes", *JSON).expect(5, 6)
        (folder / name).unlink()
        (folder / "kept").rename(folder / name)
    rmqctl("undo", tiny.root, id, "--yes", *JSON).expect(0)


def test_a_copy_of_a_store_leaves_the_homes_of_the_original_alone(tmp_path: Path) -> None:
    original, copy = tmp_path / "store", tmp_path / "copy"
    id = "20260101T000000Z-1"  # noqa: A001
    homes = []
    for root in (original, copy):
        home = tmp_path / "disk/.rmqctl/repairs" / staging_dirs._staging_dir_name(str(root), id)
        home.mkdir(parents=True)
        homes.append(home)
    folder = copy / ".rmqctl/repairs" / id
    folder.mkdir(parents=True)
    (folder / "homes.json").write_text(str([str(home) for home in homes]).replace("'", '"'))
    clear(str(copy), id)
    assert homes[0].is_dir()
    assert not homes[1].exists()


def test_foreign_links_are_refused_only_to_the_administrator(tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch
                                                             ) -> None:
    (tmp_path / "link").symlink_to("/")
    mine = os.lstat(tmp_path / "link").st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    targets.refuse_foreign_links(str(tmp_path), "link/x")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if mine:
        with pytest.raises(RefusedError):
            targets.refuse_foreign_links(str(tmp_path), "link/x")


@pytest.mark.parametrize(("old", "new", "copied"), [
    ("orders", "orders.bak", True), ("orders/0", "orders/5", True), ("orders", "%LMQ%z", True),
    ("orders/0", "orders/9", False), ("orders", "ordert", False),
])
def test_folders_of_queues_change_nothing_in_the_log(rmqctl: Run, tiny: Tiny, old: str, new: str,
                                                     copied: bool) -> None:
    """They are copied and renamed by people: that is no proof against a message."""
    queues = tiny.root / "consumequeue"
    if copied:
        shutil.copytree(queues / old, queues / new)
    else:
        (queues / old).rename(queues / new)
    answer = rmqctl("recover", tiny.root, *JSON).recovered()
    assert not [action for action in answer["actions"]
                if not action["target"].startswith("consumequeue")]
    assert answer["messages_lost"] == []
