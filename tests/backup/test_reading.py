"""A backup at a URL is a store that reading commands understand; stores elsewhere are copied."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rmqctl import api, vfs
from rmqctl.backup.entries import header
from rmqctl.backup.objects import Objects
from rmqctl.backup.points import require_inside
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.files.remote.reader import hide, revealed, without_secrets
from rmqctl.store.store import Store
from tests.backup.test_backup import LAYOUTS, SOUND, findings, folders_of, growing, messages
from tests.backup.test_entries import queues
from tests.backup.test_remote import bounds, offsets, run, url
from tests.conftest import GoldenFolder, Runner
from tests.support import damage, golden
from tests.support.holder import held
from tests.support.layouts import layout_set
from tests.support.share import sample

Growing = Callable[[int, int], Path]
__all__ = ["growing", "url"]
_DERIVED = {"index-missing", "tiered-index-missing"}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    vfs.unmount_all()
    yield
    vfs.unmount_all()


def reads_alike(root: Path, place: str, dirs: Any = ()) -> None:
    """The backup has the messages, bounds, offsets and findings of the store."""
    assert messages(place) == messages(root, dirs)
    assert findings(place) == {finding for finding in findings(root, dirs)
                               if finding[0] not in _DERIVED}
    with api.open(root, commitlog_dirs=dirs) as opened, api.open(place) as two:
        assert offsets(opened) == offsets(two)
        assert bounds(opened) == bounds(two)


_ALWAYS = ("5.3.3/batchcq/store", "5.3.3/cqext/store", "5.3.3/multipath/store")
_IN_FILES = [item for item in SOUND if "rocksdb" not in item.id]


@pytest.mark.parametrize("in_file",
                         sample(_IN_FILES, 3, "backups that are read", always=lambda golden_store: (
                             golden_store.id in _ALWAYS)), ids=lambda golden_store: golden_store.id)
def test_a_golden_store(in_file: golden.GoldenStore, golden: GoldenFolder, url: str) -> None:
    root = golden(in_file.id)
    run(root, url, dirs=folders_of(in_file, root))
    reads_alike(root, url, folders_of(in_file, root))


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "rocksdb" not in name])
def test_other_layouts(name: str, url: str) -> None:
    root = layout_set(name) / "store"
    run(root, url)
    reads_alike(root, url)


def test_consume_queues_in_rocksdb_are_not_judged(url: str, rmqctl: Runner) -> None:
    root = layout_set("5.3.3/rocksdb") / "store"
    run(root, url)
    assert messages(url) == messages(root)
    done = rmqctl("verify", url, "-o", "json").expect(3)
    assert [finding["category"] for finding in json.loads(done.out)["findings"]] == ["not-judged"]
    assert "rmqctl restore" in done.err
    topic = messages(root)[0]["topic"]
    with api.open(url) as there, api.open(root) as here:
        assert [message["physical_offset"] for message in there.messages(topic=topic)] == sorted(
            message["physical_offset"] for message in here.messages(topic=topic))


def test_later_runs(growing: Growing, url: str) -> None:
    root = growing(0, 60)
    run(root, url)
    reads_alike(root, url)
    for number in range(1, 4):
        growing(60 * number, 25)
        run(root, url, 1_750_000_000_000 + number)
        vfs.unmount_all()
        reads_alike(root, url)


def test_a_topic_that_was_created_again(growing: Growing, url: str) -> None:
    run(root := growing(0, 120), url)
    shutil.rmtree(root / "consumequeue" / "T0")
    growing(120, 40)
    run(root, url, 1_750_000_000_001)
    reads_alike(root, url)
    for path, want in queues(root).items():
        with vfs.open_bytes(f"{url}/{path}") as file:
            assert file.read().rstrip(b"\0") == want, path


def test_a_topic_that_was_deleted(growing: Growing, url: str) -> None:
    run(root := growing(0, 60), url)
    with api.open(root) as store:
        want = {key: bound for key, bound in bounds(store).items() if key[0] != "T0"}
    shutil.rmtree(root / "consumequeue" / "T0")
    topics = root / "config" / "topics.json"
    table = json.loads(topics.read_text())
    del table["topicConfigTable"]["T0"]
    topics.write_text(json.dumps(table))
    run(root, url, 1_750_000_000_001)
    with api.open(url) as there:
        assert bounds(there) == want
    assert messages(url) == messages(root)
    reads_alike(root, url)


def test_topics_that_were_created_again(growing: Growing, url: str) -> None:
    root = growing(0, 100)
    shutil.rmtree(root / "consumequeue" / "T0")
    growing(100, 30)
    shutil.rmtree(root / "consumequeue" / "T1")
    growing(130, 200)
    run(root, url)
    assert len(messages(url)) == 330
    reads_alike(root, url)
    shutil.rmtree(root / "index")
    assert messages(root) == messages(url)


def test_a_run_ends_while_the_place_is_listed(growing: Growing, url: str,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    run(root := growing(0, 60), url)
    find = MemoryFileSystem.find

    def earlier(*given: Any, **options: Any) -> Any:
        rows = find(*given, **options)
        monkeypatch.undo()
        growing(60, 20)
        run(root, url, 1_750_000_000_001)
        return rows | {name: row for name, row in find(*given, **options).items()
                       if "/points/" in name}

    monkeypatch.setattr(MemoryFileSystem, "find", earlier)
    reads_alike(root, url)


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_a_point_that_cannot_be_read(which: str, growing: Growing, url: str) -> None:
    root = growing(0, 60)
    run(root, url)
    name = {"oldest": "20200101T000000.000Z", "newest": "20300101T000000.000Z"}[which]
    MemoryFileSystem().pipe_file(f"{url.removeprefix('memory:/')}/points/{name}.json", b"{")
    if which == "newest":
        with pytest.raises(FormatError):
            Store.open(url)
        return
    reads_alike(root, url)


_NAME = "0" * 20


@pytest.mark.parametrize(("path", "unit"), [
    ("consumequeue", 20), (f"consumequeue/T/0/x/{_NAME}", 20), (f"consumequeue//0/{_NAME}", 20),
    (f"consumequeue/T/0/../{_NAME}", 20), (f"consumequeue/{'a/' * 20}0/{_NAME}", 20),
    (f"consumequeue/T/x/{_NAME}", 20), ("consumequeue/T/0/x", 20),
    (f"consumequeue/T/0/{_NAME}", 20.0), (f"consumequeue/T/0/{_NAME}", 46),
    (f"batchconsumequeue/T/0/{_NAME}", 20), (f"consumequeue/T/./{_NAME}", 20), ([], 20)])
def test_entries_of_what_is_no_queue(path: Any, unit: Any) -> None:
    with pytest.raises(FormatError):
        header(json.dumps([path, 0, 920, 920, unit, False]).encode(), "place")


@pytest.mark.parametrize("path", [
    "", ".", "..", "a/../b", "./a", "a//b", "a/", "/a", "a\0b", "a/" * 20 + "b", 1])
def test_paths_that_are_in_no_store(path: Any) -> None:
    with pytest.raises(ValueError, match="not a path inside a backup"):
        require_inside(path)


def test_queries(golden: GoldenFolder, url: str, rmqctl: Runner) -> None:
    root = golden("5.3.3/basic/store")
    run(root, url)
    with api.open(root) as store:
        every = list(store.messages())
    keyed = next(message for message in every if message["keys"])
    unique = next(message for message in every if message["unique_key"])
    topic = ("--topic", keyed["topic"])
    for words in (("query", "key", *topic, "--key", keyed["keys"][0], "--max", "5"),
                  ("query", "id", unique["unique_key"]), ("stats",), ("read", *topic),
                  ("query", "key", *topic, "--key", "none", "--view", "disk")):
        runs = [rmqctl(*words, place, "-o", "json") for place in (root, url)]
        assert runs[0].code == runs[1].code
        assert runs[0].out == runs[1].out, words
    doctor = json.loads(rmqctl("doctor", url, "-o", "json").expect(0).out)
    assert doctor["verdict"].startswith("sound: no damage, and nothing is lost")
    assert doctor["disk"]["total"] is None
    assert not rmqctl("preflight", url).expect(0).err.count("no index")


def test_offsets_that_a_running_broker_commits_meanwhile(growing: Growing, url: str,
                                                         rmqctl: Runner) -> None:
    root = growing(0, 30)
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text(
        json.dumps({"offsetTable": {"T0@G": {"0": 10_000}}}))
    with held(root):
        point = run(root, url)
    assert point.lowered == 1
    with api.open(url) as store:
        [row] = [row for row in store.offsets("G") if row.queue_id == 0]
        assert row.diff == 0
    assert "config-offset" not in {finding[0] for finding in findings(url)}


def test_the_folder_of_a_url(growing: Growing, tmp_path: Path, rmqctl: Runner) -> None:
    run(growing(0, 20), f"file://{tmp_path}/objects")
    stderr = rmqctl("verify", tmp_path / "objects").expect(3).err
    assert f"read through its URL: file://{tmp_path}/objects" in stderr
    rmqctl("verify", f"file://{tmp_path}/objects").expect(0)


def test_an_object_that_is_missing(growing: Growing, url: str, rmqctl: Runner) -> None:
    run(growing(0, 60), url)
    with Objects(url) as objects:
        [name, *_] = sorted(objects.find("log"))
        objects.remove(name)
    done = rmqctl("verify", url).expect(5)
    assert name.rpartition("/")[2] in done.err


@pytest.mark.parametrize("place", ["header", "point"])
def test_damage_in_the_backup(place: str, growing: Growing, url: str) -> None:
    run(growing(0, 60), url)
    fs = MemoryFileSystem()
    with Objects(url) as objects:
        names = [name for name in objects.find("points" if place == "point" else "small")
                 if place == "point" or b'["consumequeue' in objects.read(name, 0, 30)]
    for name in names:
        path = f"{url.removeprefix('memory:/')}/{name}"
        data = fs.cat_file(path)
        fs.pipe_file(path, b"\0" * 9 + data[9:])
    with pytest.raises(FormatError):
        Store.open(url)


# -- stores elsewhere, copied ---------------------------------------------------------------------


@pytest.fixture
def archived(growing: Growing, tmp_path: Path) -> Path:
    """Return a tar file with a damaged store in it."""
    root = growing(0, 60)
    damage.zero(root, "commitlog/00000000000000000000", 400, 200)
    (root / "empty").mkdir()
    return Path(shutil.make_archive(str(tmp_path / "copy"), "tar", tmp_path, "store"))


def tree(root: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
            for path in root.rglob("*")}


def test_doctor_leads_to_a_repair(archived: Path, tmp_path: Path, rmqctl: Runner,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = f"{archived}/store"
    document = json.loads(rmqctl("doctor", place, "-o", "json").expect(1).out)
    copied, *others = document["next"]
    assert copied == f"rmqctl restore {place} store.restored"
    assert not any(str(archived) in command for command in others)
    done = rmqctl("recover", place).expect(6)
    assert f"`rmqctl restore {place} FOLDER`" in done.err
    rmqctl(*copied.split()[1:]).expect(0)
    assert tree(tmp_path / "store.restored") == tree(tmp_path / "store")
    assert "rmqctl recover store.restored" in others
    rmqctl("recover", "store.restored", "--apply", "--yes").expect(1)
    assert json.loads(rmqctl("preflight", place, "-o", "json").out)["next"] in (
        [], [f"rmqctl doctor {place}"])
    rmqctl(*copied.split()[1:]).expect(6)  # it is taken
    rmqctl("restore", place, "other", "--until", "-2h").expect(2)
    assert not (tmp_path / "other").exists()


def test_a_copy_is_whole_or_none(golden: GoldenFolder, tmp_path: Path, rmqctl: Runner) -> None:
    root, place = golden("5.3.3/basic/store"), f"memory://copied-{os.getpid()}/store"
    fs = MemoryFileSystem()
    for path in root.rglob("*"):
        if path.is_file():
            fs.pipe_file(f"{place.removeprefix('memory:/')}/{path.relative_to(root)}",
                         path.read_bytes())
    rmqctl("restore", place, tmp_path / "new").expect(0)
    assert messages(tmp_path / "new") == messages(root)
    monkey = pytest.MonkeyPatch()
    vfs.unmount_all()
    with monkey.context() as patched:
        def fetch(*_: object) -> Any:
            raise StoreIOError("the server is gone")

        patched.setattr("rmqctl.files.remote.reader.RemoteReader.fetch", fetch)
        patched.setattr("rmqctl.files.remote.ranges._PAUSE", 0)
        done = rmqctl("restore", place, tmp_path / "other").expect(5)
    assert "the server is gone" in done.err
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "other.restoring").exists()


def test_what_is_no_store_is_not_copied(tmp_path: Path, rmqctl: Runner) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a").write_text("x")
    place = shutil.make_archive(str(tmp_path / "copy"), "zip", tmp_path, "photos")
    rmqctl("restore", f"{place}/photos", tmp_path / "new").expect(3)
    assert not (tmp_path / "new").exists()


def test_links_are_named(growing: Growing, tmp_path: Path, rmqctl: Runner) -> None:
    root = growing(0, 10)
    (root / "consumequeue" / "link").symlink_to("/elsewhere")
    place = shutil.make_archive(str(tmp_path / "copy"), "tar", root.parent, root.name)
    done = rmqctl("restore", place, tmp_path / "new", "-o", "json").expect(0)
    assert json.loads(done.out)["notes"] == ["1 link not copied: consumequeue/link"]
    assert "consumequeue/link" in done.err
    assert not os.path.lexists(tmp_path / "new" / "consumequeue" / "link")


def test_folders_deep_inside_each_other(growing: Growing, tmp_path: Path,
                                        rmqctl: Runner) -> None:
    root = growing(0, 10)
    deep = root.joinpath(*["a"] * 70)
    deep.mkdir(parents=True)
    place = shutil.make_archive(str(tmp_path / "copy"), "tar", root.parent, root.name)
    for words in (("info", place), ("restore", place, tmp_path / "new")):
        assert "nested folders" in rmqctl(*words).expect(5).err
    assert not list(tmp_path.glob("new*"))


@pytest.mark.parametrize("password", ["secret", "se@cret", "se:cr@e@t", ""])
def test_passwords_are_hidden(password: str) -> None:
    url = f"sftp://user:{password}@host:22/a@b"
    assert without_secrets(url) == "sftp://***@host:22/a@b"
    assert revealed(hide(url)) == url
    assert "user" not in hide(url)


@pytest.mark.parametrize("password", ["se/secret", "/secret", "x1/secret:x", "secret/12"])
@pytest.mark.parametrize("scheme", ["s3", "ftp", "http", "memory"])
def test_a_password_with_a_slash_is_refused_and_not_shown(
        password: str, scheme: str, growing: Growing, rmqctl: Runner) -> None:
    """A driver takes its start for a port, and would show all of it."""
    url = f"{scheme}://user:{password}@host/a@b"
    for words in (("info", url), ("doctor", url), ("recover", url), ("tiered", "ls", url),
                  ("backup", growing(0, 1), url), ("restore", url, "new")):
        done = rmqctl(*words).expect(2, 3, 6)
        assert "secret" not in done.out + done.err, words
        assert re.search(r"\*\*\*\d*@host/a@b", "".join(done.err.split())), words


@pytest.mark.parametrize("url", ["http://host:80/a@b", "http://[::1]:80/a@b", "s3://bucket/a:b/c@d",
                                 "file:///a:b/c@d", "zip://a/b::s3://bucket/a@b"])
def test_other_colons_are_no_password(url: str) -> None:
    assert without_secrets(url) == hide(url) == url
