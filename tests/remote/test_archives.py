"""Stores in archives: what is checked, what is bounded, and what links are."""

from __future__ import annotations

import gzip
import io
import os
import random
import stat
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rmqctl import vfs
from rmqctl.errors import NotAStoreError, StoreIOError
from rmqctl.files.remote import archive
from rmqctl.files.remote.files import RemoteFiles
from rmqctl.store import Store
from tests.conftest import GoldenFolder, Runner
from tests.remote.test_places import fresh, in_memory, in_tar, in_zip
from tests.serve.running import serving
from tests.serve.test_pull import drained, expected

__all__ = ["fresh"]
SMALL = "4.9.3/basic/store"


def test_a_damaged_member_that_a_zip_has_stored(golden: GoldenFolder, tmp_path: Path,
                                                rmqctl: Runner) -> None:
    path = Path(in_zip(golden(SMALL), tmp_path, zipfile.ZIP_STORED))
    rmqctl("read", path, "--limit", "1").expect(0)
    with zipfile.ZipFile(path) as packed:
        about = next(member for member in packed.infolist() if "/commitlog/0" in member.filename)
    data = bytearray(path.read_bytes())
    data[about.header_offset + 30 + len(about.filename) + about.file_size // 2] ^= 1
    path.write_bytes(data)
    done = rmqctl("read", path, "--limit", "1").expect(5)
    assert "commitlog/00000000000000000000" in done.err.replace("\n", "")
    assert "CRC mismatch" in done.err.replace("\n", " ")


class Endless(io.RawIOBase):
    """Gives the same bytes for ever; fails a test that reads too many of them."""

    def __init__(self, piece: bytes) -> None:
        self._piece, self.left = piece, 1 << 30

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), len(self._piece))
        buffer[:size] = self._piece[:size]
        self.left -= size
        assert self.left > 0
        return size


@pytest.mark.parametrize("piece", [bytes(1 << 20), random.Random(1).randbytes(1 << 20)],
                         ids=["zeros", "data"])
def test_what_is_unpacked_is_bounded(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 5 << 20
    monkeypatch.setattr(archive, "_LEFT", 1 << 20)
    monkeypatch.setattr(archive, "free_bytes", lambda _folder: free)
    monkeypatch.setattr(archive, "_ZEROS", 4)
    stream: Any = io.BufferedReader(Endless(piece))
    with pytest.raises(StoreIOError, match=rf"cannot unpack x.tar.gz into .*{free:,}.*TMPDIR"):
        archive._Spool(stream, "x.tar.gz")


@pytest.mark.parametrize("kind", ["gz", "zip"])
def test_archives_that_need_more_than_there_is(kind: str, tmp_path: Path, rmqctl: Runner,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "free_bytes", lambda _folder: 1 << 20)
    about = tarfile.TarInfo("store/commitlog/00000000000000000000")
    about.size = 1 << 62
    if kind == "gz":
        path = tmp_path / "x.tar.gz"
        path.write_bytes(gzip.compress(about.tobuf() + bytes(32 << 20)))
    else:
        path = tmp_path / "x.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr(about.name, bytes(32 << 20))
    done = rmqctl("read", path).expect(5)
    assert "set TMPDIR to a folder with more space" in done.err.replace("\n", " ")


def test_links_in_archives(golden: GoldenFolder, tmp_path: Path, rmqctl: Runner) -> None:
    root = golden(SMALL)
    with tarfile.open(tmp_path / "x.tar", "w") as packed:
        packed.add(root, "store")
        for name, kind, target in (("store/config/hard", tarfile.LNKTYPE, "store/checkpoint"),
                                   ("store/config/dangling", tarfile.LNKTYPE, "store/none"),
                                   ("store/config/soft", tarfile.SYMTYPE, "/etc/passwd")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, target
            packed.addfile(link)
    with Store.open(tmp_path / "x.tar") as store:
        assert store.read_small("config", "hard") == store.read_small("checkpoint")
        for name in ("dangling", "soft"):
            path = store.path("config", name)
            assert vfs.lexists(path)
            assert not vfs.exists(path)
            with pytest.raises(StoreIOError):
                store.read_small("config", name)
    troubles = rmqctl("info", tmp_path / "x.tar", "-o", "json").expect(0).json()["troubles"]
    assert {row["path"]: row["reason"] for row in troubles} == {
        f"config/{name}": "broken link" for name in ("dangling", "soft")}


def test_links_in_a_zip_are_no_files(golden: GoldenFolder, tmp_path: Path) -> None:
    path = Path(in_zip(golden(SMALL), tmp_path))
    with zipfile.ZipFile(path, "a") as packed:
        link = zipfile.ZipInfo("store/config/soft")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(link, "/etc/passwd")
    with Store.open(path) as store:
        assert vfs.lexists(store.path("config", "soft"))
        assert not vfs.isfile(store.path("config", "soft"))


def test_hostile_names_in_archives(golden: GoldenFolder, tmp_path: Path, rmqctl: Runner) -> None:
    """Names that lead out are skipped; others are shown as what they are, on a line."""
    for ending in ("tar", "zip"):
        names = ["store/config/a\nb", "store/config/\x1b[31mred", "store/checkpoint/below",
                 "../x", "/x", "store/../../x", "store/config/" + "n" * 300, "store//config//y",
                 "./store/config/z", "store/config/\udcff"]
        path = tmp_path / f"x.{ending}"
        if ending == "tar":
            with tarfile.open(path, "w") as packed:
                packed.add(golden(SMALL), "store")
                for name in names:
                    packed.addfile(tarfile.TarInfo(name))
        else:
            in_zip(golden(SMALL), tmp_path)
            with zipfile.ZipFile(path, "a") as zipped:
                for name in names[:-1]:
                    zipped.writestr(name, "")
        for command in (["info"], ["verify"], ["read", "--limit", "1"]):
            done = rmqctl(*command, path).expect(0, 1)
            assert "\x1b[31m" not in done.out + done.err
        listed = [row["path"] for row in rmqctl("info", path, "-o", "json").expect(0).json()[
            "files"]]
        assert {"config/y", "config/z", "config/a\nb"} <= set(listed)
        assert not [name for name in listed if ".." in name or name.startswith("/")]


@pytest.mark.parametrize("ending", [".tar", ".zip", ".tar.zst"])
def test_a_folder_at_a_url_may_be_named_like_an_archive(ending: str, golden: GoldenFolder,
                                                        tmp_path: Path, rmqctl: Runner) -> None:
    root = golden(SMALL)
    url = in_memory(root, tmp_path)
    fs = fsspec.filesystem("memory")
    fs.copy(url, f"{url}{ending}", recursive=True)
    assert rmqctl("read", f"{url}{ending}", "-o", "jsonl").expect(0).out == rmqctl(
        "read", root, "-o", "jsonl").expect(0).out
    with pytest.raises(NotAStoreError):
        Store.open(f"{url}-none{ending}")


def test_an_archive_at_a_url_lists_nothing_else(golden: GoldenFolder, tmp_path: Path,
                                                rmqctl: Runner,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    fs = fsspec.filesystem("memory")
    url = f"memory://archives-{os.getpid()}"
    for place in (in_tar(golden(SMALL), tmp_path), in_zip(golden(SMALL), tmp_path,
                                                          zipfile.ZIP_STORED)):
        name = os.path.basename(place)
        fs.pipe_file(f"{url}/{name}", Path(place).read_bytes())
        with monkeypatch.context() as patched:
            patched.setattr(type(fs), "find", None)
            patched.setattr(type(fs), "ls", None)
            done = rmqctl("stats", f"{url}/{name}", "-o", "json").expect(0)
        assert done.out.replace(url, str(tmp_path)) == rmqctl(
            "stats", place, "-o", "json").expect(0).out


def test_a_large_result_is_uploaded_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(os.urandom(48 << 20))
    for url in (f"file://{tmp_path}/there", f"memory://uploads-{os.getpid()}"):
        with RemoteFiles(url) as remote:
            tracemalloc.start()
            remote.publish_file("a/b", str(tmp_path / "here"))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert remote.size("a/b") == 48 << 20
            assert url.startswith("memory") or peak < 24 << 20


@pytest.mark.long
@pytest.mark.parametrize("state", ["store", "store-live"])
@pytest.mark.parametrize("place", [in_memory, in_tar], ids=["url", "tar"])
def test_the_tier_in_a_store(place: Callable[[Path, Path], str], state: str, golden: GoldenFolder,
                             tmp_path: Path, rmqctl: Runner) -> None:
    root = golden("5.3.3/tiered") / state
    url = place(root, tmp_path)
    for command in (["verify"], ["preflight", "--disk-used", "ignore"]):
        here = rmqctl(*command, root, "-o", "json")
        there = rmqctl(*command, url, "-o", "json")
        name = next(tree.root for tree in vfs._trees.values())
        assert (there.code, there.out.replace(name, str(root))) == (here.code, here.out), command
        if command == ["verify"]:
            assert here.json()["coverage"]["tiered"]["queues"]
        vfs.unmount_all()


@pytest.mark.parametrize("place", [in_memory, in_tar], ids=["url", "tar"])
def test_stores_there_are_served(place: Callable[[Path, Path], str], golden: GoldenFolder,
                                 tmp_path: Path) -> None:
    root = golden(SMALL)
    wanted = expected(root)
    with serving(Path(place(root, tmp_path)) if place is in_tar else place(
            root, tmp_path)) as served, served.client() as client:  # type: ignore[arg-type]
        for (topic, queue_id), messages in wanted.items():
            assert drained(client, topic, queue_id) == messages
