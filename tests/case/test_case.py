"""`rmqctl case`: what is in the folder is there, true and complete; the originals stay; a run that
is killed says so; a stranger's names, links and files do no harm.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmqctl.case import inventory
from rmqctl.case.folder import SUMS, UNFINISHED, Folder, json_line
from rmqctl.case.records import DamageCopies, FindingPlaces, Live, carve
from rmqctl.errors import StoreIOError
from rmqctl.scan import source
from tests.repair.carving import log, places, record, saved
from tests.support import snapshot, tiny
from tests.support.cli import Result, run

PAGE = 4096


def damaged(root: Path) -> Path:
    """A store with a body that does not match its CRC."""
    tiny.build(root)
    first = min((root / "commitlog").iterdir())
    data = bytearray(first.read_bytes())
    data[data.index(b"\xda\xa3\x20") + 84] ^= 1
    first.write_bytes(data)
    return root


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def sums_verify(folder: Path, sums: Path) -> bool:
    return subprocess.run(["sha256sum", "-c", "--quiet", "--strict", sums.absolute()], cwd=folder,
                          capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def built_case(forked: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Result]:
    """(a damaged store with hostile names, its evidence folder, what the command said)."""
    base = tmp_path_factory.mktemp("case")
    store = damaged(base / "store")
    (store / "new\nline\\back").write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(store) + b"/bad\xff")).write_bytes(b"y")
    os.mkfifo(store / "commitlog/fifo")
    (store / "loop").symlink_to("..")
    (base / "elsewhere").mkdir()
    (base / "elsewhere/file").write_bytes(b"not of the store")
    (store / "outside").symlink_to(base / "elsewhere")
    with snapshot.assert_unchanged(store):
        result = run("case", store, "--out", base / "evidence", "-o", "json").expect(1)
    return store, base / "evidence", result


def test_sums_of_everything_verify(built_case: tuple[Path, Path, Result]) -> None:
    store, folder, result = built_case
    assert sums_verify(folder, folder / SUMS)
    assert sums_verify(store, folder / "originals.sha256")
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    listed = {line.split("  ", 1)[1] for line in (folder / SUMS).read_text().splitlines()}
    assert listed == names - {SUMS}
    assert result.json()["sha256_of_sums"] == hashlib.sha256(
        (folder / SUMS).read_bytes()).hexdigest()
    assert run("case", folder, "--check", "-o", "json").expect(0).json()["unchanged"]


def test_every_original_is_listed_and_nothing_is_followed(
        built_case: tuple[Path, Path, Result]) -> None:
    store, folder, result = built_case
    rows = {row["path"]: row for row in lines(folder / "originals.jsonl")}
    assert set(rows) == {os.path.relpath(os.path.join(below, name), store)
                         for below, folders, files in os.walk(store)
                         for name in (*folders, *files)}
    assert (rows["loop"]["kind"], rows["loop"]["target"]) == ("link", "..")
    assert rows["commitlog/fifo"]["kind"] == "fifo"
    problems = result.json()["problems"]
    assert len(problems) == 1
    assert "a fifo, not read" in problems[0]


def test_a_file_that_cannot_be_read_and_a_linked_log(tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    store = tiny.build(tmp_path / "store").root
    (store / "commitlog").rename(tmp_path / "elsewhere")
    (store / "commitlog").symlink_to(tmp_path / "elsewhere")
    real = os.open

    def opened(path: Any, *args: Any, **more: Any) -> int:
        if os.fspath(path).endswith("checkpoint"):
            raise PermissionError(errno.EACCES, "no")
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", opened)
    folder = Folder(str(tmp_path / "out"))
    inventory_taken = inventory.take(folder, str(store), [str(store / "commitlog")],
                                     lambda _bytes: None)
    rows = {row["path"]: row for row in lines(tmp_path / "out" / inventory.LIST)}
    assert rows["commitlog"]["kind"] == "link"
    assert rows["commitlog/00000000000000000000"]["sha256"] == hashlib.sha256(
        (tmp_path / "elsewhere/00000000000000000000").read_bytes()).hexdigest()
    assert rows["checkpoint"]["sha256"] is None
    assert (inventory_taken.unread, len(inventory_taken.problems)) == (1, 1)
    assert sums_verify(store, tmp_path / "out" / inventory.SUMS)


def test_a_block_device_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is in no directory entry; below a folder no device is opened."""
    (tmp_path / "in").mkdir()
    image = saved(tmp_path / "in", log(3), "sdb")
    monkeypatch.setattr(source, "stat", SimpleNamespace(
        S_ISREG=lambda _mode: False, S_ISDIR=stat.S_ISDIR, S_ISBLK=stat.S_ISREG))
    monkeypatch.setitem(inventory._KINDS, stat.S_IFREG, "device")
    for root, files in ((image, 1), (image.parent, 0)):
        folder = Folder(str(tmp_path / f"out{files}"))
        inventory_taken = inventory.take(folder, str(root), [], lambda _bytes: None)
        (row,) = lines(tmp_path / f"out{files}" / inventory.LIST)
        assert (inventory_taken.files, inventory_taken.unread) == (files, 1 - files)
        assert row.get("sha256") == (hashlib.sha256(log(3)).hexdigest() if files else None)
    assert sums_verify(image.parent, tmp_path / "out1" / inventory.SUMS)


def test_a_full_disk_is_said_with_the_file(tmp_path: Path) -> None:
    file = Folder(str(tmp_path / "out")).new("log.jsonl")
    file.write(b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        with pytest.raises(StoreIOError, match=r"cannot write .*/out/log\.jsonl: "):
            file.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    file.close()


def test_messages_have_their_places(built_case: tuple[Path, Path, Result]) -> None:
    store, folder, result = built_case
    rows = lines(folder / "messages.jsonl")
    assert len(rows) == result.json()["messages"] > 3
    for row in rows:
        data = (store / row["file"]).read_bytes()[row["position"]:][:row["total_size"]]
        assert hashlib.sha256(data).hexdigest() == row["sha256"]


def test_damaged_bytes_are_copied(built_case: tuple[Path, Path, Result]) -> None:
    _, folder, result = built_case
    rows = lines(folder / "damage/index.jsonl")
    assert {row["category"] for row in rows} >= {"body-crc"}
    assert len(rows) == result.json()["damaged_places"]
    for row in rows:
        copy = (folder / row["copy"]).read_bytes()
        with open(row["file"], "rb") as source:
            source.seek(row["position"])
            assert source.read(row["length"]) == copy
        assert hashlib.sha256(copy).hexdigest() == row["sha256"]


def test_the_log_says_what_was_run(built_case: tuple[Path, Path, Result]) -> None:
    store, folder, _ = built_case
    host, originals, *steps = lines(folder / "log.jsonl")
    assert {"rmqctl", "python", "release", "host", "clock", "mounted_read_only"} <= set(host)
    assert originals["files"] > 10
    assert [row["command"].split()[1] for row in steps] == [
        "info", "doctor", "verify", "preflight", "offsets", "report", "export", "carve"]
    for row in steps:
        assert row["started"] <= row["ended"]
        assert row["exit_code"] in (0, 1, 3)
        assert (folder / row["output"]).exists() or row["output"] == "report.html"
    # Anybody can run a step again.
    verify = json.loads((folder / "verify.json").read_text())
    again = run(*steps[2]["command"].split()[1:]).json()
    assert again["findings"] == verify["findings"]
    assert str(store) in steps[0]["command"]


def test_the_page_is_plain_text(built_case: tuple[Path, Path, Result]) -> None:
    _, folder, _ = built_case
    page = (folder / "README.txt").read_text(encoding="utf-8")
    assert all(letter.isprintable() or letter == "\n" for letter in page)
    assert "NOT COMPLETE" in page
    assert "sha256sum -c SHA256SUMS" in page
    own = [line for line in page.splitlines() if str(folder.parent) not in line]
    assert max(map(len, own)) <= 80


def test_other_records_are_kept_with_how_they_were_found(forked: Any, tmp_path: Path) -> None:
    """A record of another place of the log, after damage."""
    built = tiny.build(tmp_path / "store")
    store, at = built.root, built.log_end + 40
    last = max((store / "commitlog").iterdir())
    old = record(at + (1 << 20), b"old" * 20, topic=b"orders")
    position = at - int(last.name)
    data = last.read_bytes()
    assert len(data) > position + len(old)
    last.write_bytes(data[:position] + old + data[position + len(old):])
    run("case", store, "--out", tmp_path / "out", "-qq").expect(0)
    (row,) = lines(tmp_path / "out/carved.jsonl")
    assert row["found"] == "embedded-in-damage"
    assert (row["source_offset"], row["body"]) == (position, "old" * 20)


def test_what_the_export_does_not_have_is_not_served(tmp_path: Path) -> None:
    class Runs:
        """Gives three records, as carving does."""

        @contextmanager
        def run(self, _words: object, _output: object, _out: object) -> Iterator[Any]:
            yield SimpleNamespace(stdout=io.BytesIO(b"".join(json_line({
                "source": str(tmp_path / "log"), "source_offset": at, "placement": placement,
                "duplicate": at == 200, "total_size": 90}) for at, placement in (
                    (0, "in-place"), (100, "in-place"), (200, "in-place"), (300, "damaged")))))

    folder = Folder(str(tmp_path / "out"))
    copies = DamageCopies(folder, None)
    live = Live(str(tmp_path), [json_line({"file": "log", "position": 0})])
    stale = FindingPlaces([{"file": str(tmp_path / "log"), "position": 90, "length": 20,
                            "category": "stale"}])
    carved = carve(Runs(), folder, [], live, stale, copies)  # type: ignore[arg-type]
    copies.close()
    assert carved == {"live": 1, "not-served": 1, "duplicate": 1, "damaged": 1}
    rows = lines(tmp_path / "out/carved.jsonl")
    assert [(row["found"], row["finding"]) for row in rows] == [
        ("not-served", "stale"), ("duplicate", None), ("damaged", None)]


def test_an_image(forked: Any, tmp_path: Path) -> None:
    data = bytearray(bytes(PAGE) + log(40))
    at = places(log(40))[4][0] + PAGE
    data[at + 100] ^= 1
    image = saved(tmp_path, bytes(data), "disk.img")
    with snapshot.assert_unchanged(image.parent):
        answer = run("case", image, "--out", tmp_path.parent / f"{tmp_path.name}-out", "-o",
                     "json").expect(0).json()
    folder = Path(answer["out"])
    assert answer["carved"] == {"in-place": 39, "damaged": 1}
    assert len(lines(folder / "carved.jsonl")) == 40
    (copy,) = lines(folder / "damage/index.jsonl")
    assert copy["position"] == at
    assert sums_verify(tmp_path, folder / "originals.sha256")


def test_a_folder_of_stores(forked: Any, tmp_path: Path) -> None:
    """It is examined as bytes; the stores in it are named."""
    for name in "ab":
        tiny.build(tmp_path / "in" / name)
    stderr = run("case", tmp_path / "in", "--out", tmp_path / "out").expect(0).err
    assert f"{tmp_path / 'in/a'}, {tmp_path / 'in/b'}?; only its bytes are examined" in stderr


def test_a_redacted_case_names_nobody(forked: Any, tmp_path: Path) -> None:
    store = damaged(tmp_path / "store")
    rows = run("read", store, "-o", "jsonl").expect(0, 1).jsonl()
    secrets = {text for row in rows for text in (
        row["msg_id"], row["unique_key"], row["born_host"].rpartition(":")[0], row["body"],
        row["store_host"].rpartition(":")[0], *row["keys"]) if text and len(text) > 5}
    run("case", store, "--out", tmp_path / "out", "--redact", "-qq").expect(0)
    shown = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*")
                     if path.is_file() and path.suffix != ".html")
    assert len(secrets) > 4
    assert not [text for text in secrets if text.encode() in shown]
    assert os.uname().nodename.encode() not in (tmp_path / "out/log.jsonl").read_bytes().split(
        b"\n")[0] or len(os.uname().nodename) < 4
    assert [path.name for path in (tmp_path / "out/damage").iterdir()] == ["index.jsonl"]


def test_the_key_of_a_redacted_case_has_no_name(forked: Any, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """So nobody finds it after a run that was killed; one key for all commands."""
    from rmqctl.case import collect

    store, texts = damaged(tmp_path / "store"), list[str]()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    real = collect.carve

    def carve(*args: Any) -> Any:
        texts.extend(map(str, (tmp_path / "temporary").rglob("*")))
        return real(*args)

    monkeypatch.setattr(collect, "carve", carve)
    run("case", store, "--out", tmp_path / "out", "--redact", "-qq").expect(0)
    assert not texts
    hosts = {row["store_host"] for name in ("messages.jsonl", "carved.jsonl")
             for row in lines(tmp_path / "out" / name)}
    assert len(hosts) == 1


@pytest.mark.parametrize("is_gone", [False, True])
def test_originals_that_change_are_said(is_gone: bool, forked: Any, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found until then is kept."""
    from rmqctl.case import collect

    image = saved(tmp_path, log(3))
    real = collect.carve

    def carve(*args: Any) -> Any:
        image.unlink() if is_gone else image.write_bytes(log(4))
        return real(*args)

    monkeypatch.setattr(collect, "carve", carve)
    out = tmp_path / "out"
    answer = run("case", image, "--out", out, "-o", "json").expect(1).json()
    assert answer["originals_changed"]
    assert not answer["complete"]
    assert run("case", out, "--check").expect(0)


# -- places, and runs that do not end -----------------------------------------------------------


def test_places_that_are_refused(tmp_path: Path) -> None:
    store = tiny.build(tmp_path / "store").root
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(store)
    with snapshot.assert_unchanged(tmp_path):
        for target, code in ((store / "new", 2), (store, 2), (tmp_path / "full", 6),
                             (tmp_path / "link/new", 2), (tmp_path / "no/parent", 5)):
            run("case", store, "--out", target).expect(code)
        run("case", tmp_path, "--out", tmp_path / "new").expect(2)
        run("case", tmp_path / "nothing", "--out", tmp_path / "new").expect(5)
        elsewhere = run("case", "s3://me:secret@host/bucket", "--out", tmp_path / "new").expect(2)
        assert "secret" not in elsewhere.err
        run("case", store).expect(2)
        run("case", store, "--check", "--out", tmp_path / "new").expect(2)
        run("case", store, "--check").expect(3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_run_is_unfinished(number: int, tmp_path: Path) -> None:
    image, out = saved(tmp_path, log(30)), tmp_path.parent / f"{tmp_path.name}-out"
    process = subprocess.Popen([sys.executable, "-m", "rmqctl", "case", image, "--out", out],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (out / "originals.sha256").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    process.communicate()
    assert (out / UNFINISHED).exists()
    assert "unfinished" in run("case", out, "--check").expect(1).out
    run("case", image, "--out", out).expect(6)


def test_what_changed_is_named(forked: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("case", saved(tmp_path, log(3)), "--out", out, "-qq").expect(0)
    (out / "carved.jsonl").write_bytes(b"forged")
    (out / "README.txt").unlink()
    (out / "more").symlink_to("README.txt")
    answer = run("case", out, "--check", "-o", "json").expect(1).json()
    assert (answer["changed"], answer["missing"], answer["extra"]) == (
        ["carved.jsonl"], ["README.txt"], ["more"])


def test_sums_of_a_stranger(tmp_path: Path) -> None:
    """Names that lead out of the folder, links in the place of files, lines that are none."""
    digest = hashlib.sha256(b"secret").hexdigest()
    (tmp_path / "secret").write_bytes(b"secret")
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    (folder / SUMS).write_bytes(b"\n".join([
        f"{digest}  {name}".encode() for name in ("../secret", str(tmp_path / "secret"), "link",
                                                  "pipe")] + [b"garbage \xff"]))
    answer = run("case", folder, "--check", "-o", "json").expect(1).json()
    assert answer["changed"] == ["link", "pipe"]
    assert len(answer["missing"]) == 3
