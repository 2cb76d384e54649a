"""Stores behind URLs and in archives: the same answers as of the store on this machine."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pytest

from rmqctl import api, vfs
from rmqctl.errors import FormatError, NotAStoreError, RefusedError, StoreIOError
from rmqctl.files.remote import ranges, tree
from rmqctl.files.remote.ranges import RangeCache
from rmqctl.files.remote.reader import RemoteReader
from rmqctl.sql.options import ReadOptions
from rmqctl.store import Store
from tests.conftest import GoldenFolder, Runner
from tests.support import golden
from tests.support.arrow_rows import rows_of
from tests.support.share import sample
from tests.support.webhdfs import serving_webhdfs

COMMANDS = (["info"], ["verify"], ["offsets"], ["stats"], ["read", "--limit", "40"], ["doctor"],
            ["timers", "list"], ["pop", "list"], ["config"],
            ["preflight", "--disk-used", "ignore"])
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    vfs.unmount_all()
    yield
    vfs.unmount_all()


def in_memory(store: Path, _tmp: Path) -> str:
    url = f"memory://places-{os.getpid()}-{next(_numbers)}/a"
    fs = fsspec.filesystem("memory")
    for path in store.rglob("*"):
        if path.is_file():
            fs.pipe_file(f"{url}/{path.relative_to(store)}", path.read_bytes())
    return url


def in_tar(store: Path, tmp: Path, mode: str = "w:", ending: str = ".tar") -> str:
    with tarfile.open(tmp / f"x{ending}", mode) as packed:
        packed.add(store, "some/where")
    return str(tmp / f"x{ending}")


def in_zst(store: Path, tmp: Path) -> str:
    from backports import zstd

    path = Path(in_tar(store, tmp))
    (tmp / "x.tar.zst").write_bytes(zstd.compress(path.read_bytes()))
    path.unlink()
    return str(tmp / "x.tar.zst")


def in_zip(store: Path, tmp: Path, how: int = zipfile.ZIP_DEFLATED) -> str:
    with zipfile.ZipFile(tmp / "x.zip", "w", how) as packed:
        for path in sorted(store.rglob("*")):
            packed.write(path, f"store/{path.relative_to(store)}")
    return str(tmp / "x.zip")


def in_sparse_tar(store: Path, tmp: Path) -> str:
    if shutil.which("tar") is None:
        pytest.skip("no tar here")
    subprocess.run(["tar", "-C", store.parent, "-S", "-cf", tmp / "x.tar", store.name], check=True)
    return str(tmp / "x.tar")


class Files(SimpleHTTPRequestHandler):
    """A server of files with ranges and lists of folders."""

    fault: Callable[[Any], bool] | None = None

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        if self.fault is not None and self.fault():
            return
        path = Path(self.translate_path(self.path))
        if asked is None or not path.is_file():
            super().do_GET()
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        with path.open("rb") as file:
            file.seek(int(first))
            part = file.read(int(last) + 1 - int(first))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/"
                         f"{path.stat().st_size}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that went away."""


@pytest.fixture
def serving() -> Iterator[Callable[..., str]]:
    """Serves a folder by HTTP, and gives the URL."""
    pytest.importorskip("aiohttp")
    servers = []

    def serve(store: Path, _tmp: Path | None = None, fault: Any = None) -> str:
        handler = type("Handler", (Files,), {"fault": fault})
        server = Server(("127.0.0.1", 0), partial(handler, directory=str(store)))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def answers(rmqctl: Runner, place: str, root: Path) -> dict[str, Any]:
    """What the commands say of a store, with the name of the place as that of ``root``."""
    result = {}
    for command in COMMANDS:
        done = rmqctl(*command, place, "-o", "json")
        name = tree.mounted(place) if vfs.is_elsewhere(place) else place
        text = done.out.replace(name, str(root)).replace(place, str(root))
        result[" ".join(command)] = done.code, text, done.err.replace(name, str(root)).replace(
            place, str(root))
    return result


def same(here: dict[str, Any], there: dict[str, Any]) -> None:
    for name, (code, text, err) in here.items():
        if name in ("info", "doctor"):  # what a file takes on a disk, and how large that is
            documents = [json.loads(data) for data in (text, there[name][1])]
            for document in documents:
                for key in ("disk", "next", "steps"):
                    document.pop(key, None)
                for row in document.get("files", []) + document.get("structures", []):
                    row.pop("allocated", None)
            assert documents[0] == documents[1], name
        else:
            assert json.loads(text or "null") == json.loads(there[name][1] or "null"), name
        others = [line for line in there[name][2].splitlines() if "is only read" not in line]
        assert (code, err.splitlines()) == (there[name][0], others), name


PLACES = {"memory": in_memory, "tar": in_tar, "sparse": in_sparse_tar, "zip": in_zip,
          "stored": partial(in_zip, how=zipfile.ZIP_STORED), "zst": in_zst,
          "xz": partial(in_tar, mode="w:xz", ending=".tar.xz"),
          "gz": partial(in_tar, mode="w:gz", ending=".tgz")}
STORES = [*golden.golden_stores(), *golden.rocksdb_stores()]


@pytest.mark.long
@pytest.mark.parametrize("store", sample([
    store for store in STORES if not store.options and "tiered" not in store.id], 8, "places",
                                         always=golden.is_covering),
                         ids=lambda golden_store: golden_store.id)
def test_golden_stores_in_memory(store: golden.GoldenStore, golden: GoldenFolder, tmp_path: Path,
                                 rmqctl: Runner) -> None:
    root = golden(store.id)
    same(answers(rmqctl, str(root), root), answers(rmqctl, in_memory(root, tmp_path), root))


@pytest.mark.long
@pytest.mark.parametrize("kind", PLACES)
def test_each_kind_of_place(kind: str, golden: GoldenFolder, tmp_path: Path,
                            rmqctl: Runner) -> None:
    root = golden("5.3.3/crash-crc/before")
    place = PLACES[kind](root, tmp_path)
    same(answers(rmqctl, str(root), root), answers(rmqctl, place, root))


@pytest.mark.long
def test_a_web_server(golden: GoldenFolder, serving: Callable[..., str], rmqctl: Runner) -> None:
    root = golden("5.3.3/timer/store")
    same(answers(rmqctl, str(root), root), answers(rmqctl, serving(root), root))


def test_the_library(golden: GoldenFolder, tmp_path: Path) -> None:
    root = golden("4.9.3/basic/store")
    url = in_memory(root, tmp_path)
    with api.open(root) as here, api.open(url) as there:
        assert list(here.messages()) == list(there.messages())
        assert here.verify().findings == there.verify().findings == ()


@pytest.mark.parametrize("command", [
    ["recover"], ["truncate"], ["expire"], ["undo", "--list"], ["du"],
    ["retention"], ["backup"], ["offsets", "reset"], ["topic", "create"], ["append"]])
def test_what_changes_a_store_refuses(command: list[str], golden: GoldenFolder, tmp_path: Path,
                                      rmqctl: Runner) -> None:
    root = golden("4.9.3/basic/store")
    for place in (in_memory(root, tmp_path), in_tar(root, tmp_path)):
        done = rmqctl(*command, place).expect(6)
        assert f"rmqctl {' '.join(word for word in command if word.isalpha())}" in done.err
        assert f"`rmqctl restore {place} FOLDER`" in " ".join(done.err.split())


def test_recover_takes_messages_from_there(golden: GoldenFolder, golden_copy: GoldenFolder,
                                           tmp_path: Path, rmqctl: Runner) -> None:
    root = golden("4.9.3/basic/store")
    with api.open(root) as sound:
        want = list(sound.messages())
    for place in (in_memory(root, tmp_path), in_tar(root, tmp_path)):
        broken = golden_copy("4.9.3/basic/store")
        [path, *_] = sorted((broken / "commitlog").iterdir())
        with path.open("r+b") as file:
            file.seek(8192)
            file.write(bytes(4096))
        rmqctl("recover", broken, "--from", place, "--apply", "--yes").expect(0, 1)
        with api.open(broken) as mended:
            assert list(mended.messages()) == want


def test_sql_export_and_diff(golden: GoldenFolder, tmp_path: Path, rmqctl: Runner) -> None:
    root = golden("5.3.3/basic/store")
    for place in (in_memory(root, tmp_path), in_tar(root, tmp_path)):
        rmqctl("diff", root, place).expect(0)
        query = "select topic, count(*) from messages group by topic order by topic"
        assert rmqctl("sql", place, query, "-o", "json").expect(0).out == rmqctl(
            "sql", root, query, "-o", "json").expect(0).out
        for name, target in ((place, "there.jsonl"), (str(root), "here.jsonl")):
            rmqctl("export", name, "--out", tmp_path / target, "--format", "jsonl").expect(0)
        assert (tmp_path / "there.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
        (tmp_path / "there.jsonl").unlink()
        (tmp_path / "here.jsonl").unlink()


@pytest.mark.parametrize("place", ["web", "tar", "zip", "memory"])
def test_what_is_not_there(place: str, golden_copy: GoldenFolder, tmp_path: Path,
                               serving: Callable[..., str], rmqctl: Runner) -> None:
    root = golden_copy("4.9.3/basic/store")
    topic = next((root / "consumequeue").iterdir())
    (topic / "77").mkdir()
    (root / "lock").unlink()
    there = {"web": serving, **PLACES}[place](root, tmp_path)
    for command, key in (("info", "topics"), ("offsets", "queues")):
        answers = [rmqctl(command, name, "-o", "json").expect(0).json() for name in (root, there)]
        assert answers[0].get("lock") == answers[1].get("lock")
        here, result = (answer[key] for answer in answers)
        text = json.dumps(here)
        assert '"queue_id": 77' in text
        # An object store has no empty folders; everything else is the same.
        assert (here == result) is (place != "memory")
        assert ('"queue_id": 77' in json.dumps(result)) is (place != "memory")


@pytest.mark.long
@pytest.mark.parametrize("store_is_there", [True, False])
def test_folders_of_the_log_elsewhere(store_is_there: bool, golden_copy: GoldenFolder,
                                      tmp_path: Path, rmqctl: Runner) -> None:
    root = golden_copy("5.3.3/multipath/store")
    folders = [str(shutil.move(root / name, tmp_path / name)) for name in ("cl1", "cl2")]
    here = [word for folder in folders for word in ("--commitlog-dir", folder)]
    there = [word if word not in folders else in_memory(Path(word), tmp_path) for word in here]
    place = in_memory(root, tmp_path) if store_is_there else str(root)
    query = "select topic, count(*) from messages group by topic order by topic"
    for command, *words in (("read",), ("verify",), ("offsets",), ("sql", query),
                            ("export", "--out", "-", "--format", "jsonl")):
        form = [] if command == "export" else ["-o", "json"]
        vfs.unmount_all()
        want = rmqctl(command, root, *here, *words, *form).expect(0).out
        got = rmqctl(command, place, *there, *words, *form).expect(0).out
        names = zip((place, *there), (str(root), *here), strict=True)
        for name, own in names:
            got = got.replace(name, own)
        assert got == want, command
    assert not any(tree.users for tree in vfs._trees.values())
    for words in (["truncate", "--to-phy", "0"], ["recover"], ["expire"]):
        done = rmqctl(words[0], root, *there, *words[1:]).expect(6)
        assert "requires a local store" in done.err
    rmqctl("read", root, "--commitlog-dir", f"memory://none-{os.getpid()}/x").expect(3)


@pytest.mark.parametrize("store_is_there", [True, False])
@pytest.mark.parametrize("log_is_there", [True, False])
def test_the_spark_source_of_a_log_elsewhere(
        store_is_there: bool, log_is_there: bool, golden_copy: GoldenFolder,
        tmp_path: Path) -> None:
    """Each task reads on a machine that knows nothing but what was planned."""
    pytest.importorskip("pyspark")
    from tests.pipeline.reading import plan, read

    root = golden_copy("5.3.3/multipath/store")
    folders = [str(shutil.move(root / name, tmp_path / name)) for name in ("cl1", "cl2")]
    place = in_memory(root, tmp_path) if store_is_there else str(root)
    there = [in_memory(Path(path), tmp_path) for path in folders] if log_is_there else folders
    for table in ("messages", "frames", "consumequeue", "index"):
        values = []
        for path, logs in ((str(root), folders), (place, there)):
            options = ReadOptions.of({"path": path, "table": table, "commitlogDirs": ",".join(logs),
                                      "numPartitions": "4"})
            parts = pickle.loads(pickle.dumps(plan(options, options.filters)))
            vfs.unmount_all()
            rows = [row for part in parts
                    for row in rows_of(read([part], table, options.filters))]
            assert {row["store"] for row in rows} == {path}
            for row in rows:
                if table in ("messages", "frames"):  # a file elsewhere is named in full
                    assert logs is folders or row["file"].startswith(tuple(logs))
                    row["file"] = row["file"].rpartition("/")[2]
                row["store"] = ""
            values.append(rows)
        assert values[0] == values[1], table
        assert values[0]


def test_an_object_that_changes(golden_copy: GoldenFolder, tmp_path: Path) -> None:
    root = golden_copy("4.9.3/basic/store")
    fs, url = fsspec.filesystem("memory"), in_memory(root, tmp_path)
    [path, *_] = sorted((root / "commitlog").iterdir())
    name = f"{url}/commitlog/{path.name}"
    with Store.open(url) as store:
        place = vfs._trees[url]
        place.reader = RangeCache(RemoteReader(url), place.files)  # nothing is kept
        fs.pipe_file(name, path.read_bytes())
        with pytest.raises(StoreIOError, match=f"commitlog/{path.name}: was changed"):
            list(store.log.walk())
        fs.rm_file(name)
        with pytest.raises(StoreIOError, match=f"commitlog/{path.name}: was deleted"):
            list(store.log.walk())


@pytest.mark.parametrize("kind", ["503", "short", "closed"])
@pytest.mark.parametrize("times", [1, 100])
def test_faults_of_a_server(kind: str, times: int, golden: GoldenFolder,
                            serving: Callable[..., str], monkeypatch: pytest.MonkeyPatch,
                            rmqctl: Runner) -> None:
    root, left = golden("4.9.3/basic/store"), [times]
    monkeypatch.setattr(ranges, "_PAUSE", 0.001)

    def fault(handler: Any) -> bool:
        if "commitlog" not in handler.path or not handler.headers.get("Range") or not left[0]:
            return False
        left[0] -= 1
        if kind == "503":
            handler.send_error(503)
        elif kind == "short":
            handler.send_response(206)
            handler.send_header("Content-Length", "3")
            handler.end_headers()
            handler.wfile.write(b"abc")
        else:
            handler.connection.close()
            handler.close_connection = True
        return True

    url = serving(root, fault=fault)
    done = rmqctl("read", url, "-o", "jsonl")
    if times == 1:
        assert len(done.expect(0).jsonl()) == 600
    else:
        assert f"{url}/commitlog/00000000000000000000" in done.expect(5).err.replace("\n", "")


def test_what_is_no_store(golden: GoldenFolder, tmp_path: Path, rmqctl: Runner) -> None:
    with pytest.raises(NotAStoreError, match="does not exist or is empty"):
        Store.open(f"memory://none-{os.getpid()}/x")
    with tarfile.open(tmp_path / "two.tar", "w") as packed:
        for name in ("a", "b/c"):
            packed.add(golden("4.9.3/basic/store"), name)
    done = rmqctl("info", tmp_path / "two.tar").expect(3)
    assert f"{tmp_path}/two.tar/a, {tmp_path}/two.tar/b/c" in done.err.replace("\n", " ")
    rmqctl("info", tmp_path / "two.tar" / "b/c").expect(0)
    with tarfile.open(tmp_path / "none.tar", "w") as packed:
        packed.add(__file__, "x")
    rmqctl("info", tmp_path / "none.tar").expect(3)


@pytest.mark.parametrize("place", ["tar", "zst", "zip", "gz", "xz"])
def test_an_archive_that_ends_early(place: str, golden: GoldenFolder, tmp_path: Path) -> None:
    path = Path(PLACES[place](golden("4.9.3/basic/store"), tmp_path))
    path.write_bytes(path.read_bytes()[:-path.stat().st_size // 3])
    with pytest.raises(FormatError, match="ends early"):
        Store.open(path)


def test_hostile_archives(golden: GoldenFolder, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as packed:
        packed.add(golden("4.9.3/basic/store"), "store")
        for name in ("../outside", "/etc/passwd", "store/consumequeue/../../x"):
            about = tarfile.TarInfo(name)
            packed.addfile(about)
        link = tarfile.TarInfo("store/consumequeue/passwd")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        packed.addfile(link)
    with Store.open(tmp_path / "x.tar") as store:
        assert not vfs.exists(store.path("consumequeue", "passwd"))
        assert store.log.record_at(0) is not None


def test_few_bytes_are_read(golden: GoldenFolder, tmp_path: Path) -> None:
    root = golden("4.9.3/basic/store")
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    with api.open(in_memory(root, tmp_path)) as store:
        reader: Any = vfs._trees[store.path].reader
        assert store.verify().ok
        assert reader.requested <= 1.2 * size


def test_ranges_grow_and_are_read_once() -> None:
    url, fs = f"memory://ranges-{os.getpid()}", fsspec.filesystem("memory")
    data = os.urandom(9 << 20)
    fs.pipe_file(f"{url}/a/x", data)
    place = tree.tree_of(f"{url}/a")
    reader: Any = place.reader
    assert reader.read("x", 5 << 20, 10) == data[5 << 20:(5 << 20) + 10]
    assert reader.requested == 64 << 10
    position = 0
    while part := reader.read("x", position, 50_000):
        assert part == data[position:position + 50_000]
        position += len(part)
    assert position == len(data)
    assert reader.requested <= len(data) + (128 << 10)
    assert reader._size <= ranges._MAX_KEPT + ranges._MAX_RANGE
    place.reader.close()


def test_reads_of_any_size_give_the_bytes_of_the_file() -> None:
    url, fs = f"memory://mixed-{os.getpid()}", fsspec.filesystem("memory")
    data, random = os.urandom(300_000), Random(1)
    fs.pipe_file(f"{url}/a/x", data)
    reader: Any = tree.tree_of(f"{url}/a").reader
    for _ in range(500):
        reader.sampled = random.random() < 0.5  # then small ranges are asked for
        start, length = random.randrange(300_000), random.choice((1, 20, 900, 5_000, 70_000))
        assert reader.read("x", start, length) == data[start:start + length]
    assert reader.requested == len(data)
    reader.close()


def test_nothing_is_written_there(golden: GoldenFolder, tmp_path: Path) -> None:
    from rmqctl.files.lock import StoreLock

    with pytest.raises((RefusedError, StoreIOError, OSError)), StoreLock(
            in_memory(golden("4.9.3/basic/store"), tmp_path)):
        pass


@pytest.mark.parametrize("island", [None, 2 << 20, 3 << 20])
def test_ends_from_samples(island: int | None) -> None:
    url, fs = f"memory://samples-{os.getpid()}-{next(_numbers)}/a", fsspec.filesystem("memory")
    data = bytearray(4 << 20)
    data[:300_000] = os.urandom(300_000)
    if island is not None:  # more than one sample apart
        data[island:island + 300_000] = os.urandom(300_000)
    fs.pipe_file(f"{url}/commitlog/0", bytes(data))
    fs.pipe_file(f"{url}/index/0", bytes(data))
    reader: Any = tree.tree_of(url).reader
    assert reader.next_data("commitlog/0", 1 << 20) == 1 << 20
    reader.sampled = True
    next_data = reader.next_data("commitlog/0", 1 << 20)
    assert next_data == (len(data) if island is None else 1 << 20)
    assert reader.next_data("index/0", 1 << 20) == 1 << 20
    assert reader.requested < 1 << 20
    reader.close()


def test_a_damaged_header_of_a_tar(golden: GoldenFolder, tmp_path: Path) -> None:
    path = Path(in_tar(golden("4.9.3/basic/store"), tmp_path))
    with tarfile.open(path) as packed:
        later = [member.offset for member in packed][3:]
    for place in later[::20]:
        data = bytearray(path.read_bytes())
        data[place + 150] ^= 255
        (tmp_path / "y.tar").write_bytes(data)
        with pytest.raises(FormatError, match="neither a header"):
            Store.open(tmp_path / "y.tar")
        vfs.unmount_all()


def test_of_a_name_twice_the_last_counts(golden: GoldenFolder, tmp_path: Path) -> None:
    root = golden("4.9.3/basic/store")
    with tarfile.open(tmp_path / "x.tar", "w") as packed:
        packed.add(root, "store")
        link = tarfile.TarInfo("store/checkpoint")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        packed.addfile(link)
    with Store.open(tmp_path / "x.tar") as store:
        assert not vfs.exists(store.path("checkpoint"))


def test_a_damaged_member_of_a_zip(golden: GoldenFolder, tmp_path: Path, rmqctl: Runner) -> None:
    path = Path(in_zip(golden("4.9.3/basic/store"), tmp_path))
    with zipfile.ZipFile(path) as packed:
        about = next(member for member in packed.infolist() if "/commitlog/0" in member.filename)
    data = bytearray(path.read_bytes())
    place = about.header_offset + 30 + len(about.filename) + about.compress_size // 2
    data[place:place + 64] = bytes(64)
    path.write_bytes(data)
    done = rmqctl("read", path, "-o", "jsonl").expect(5)
    assert "is damaged" in done.err


def test_places_that_nobody_reads_are_forgotten(golden: GoldenFolder, tmp_path: Path) -> None:
    root = golden("4.9.3/basic/store")
    with Store.open(in_memory(root, tmp_path)) as first:
        readers = []
        for number in range(3 * vfs._MAX_IDLE):
            with Store.open(in_memory(root, tmp_path)) as store:
                assert store.log.record_at(0) is not None
                readers.append(vfs._trees[store.root].reader)
                if not number:
                    readers[0].failed = StoreIOError("why")
        assert len(vfs._trees) <= vfs._MAX_IDLE + 2
        assert not any(reader._size  # type: ignore[attr-defined]
                       for reader in readers[:vfs._MAX_IDLE])
        assert first.log.record_at(0) is not None
        with pytest.raises(StoreIOError, match="why"):
            vfs.raise_failure()


@pytest.mark.long
def test_hdfs_by_its_web_server(golden: GoldenFolder, rmqctl: Runner) -> None:
    pytest.importorskip("requests")
    root = golden("4.9.3/basic/store")
    with serving_webhdfs(root.parent) as url:
        same(answers(rmqctl, str(root), root), answers(rmqctl, f"{url}store", root))
        rmqctl("info", f"{url}none").expect(3)
