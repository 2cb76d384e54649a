"""What servers do wrong: an error that names the object with exit code 5, never a wrong answer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from rmqctl import vfs
from rmqctl.errors import StoreIOError
from rmqctl.files.remote import listing, ranges, tree, web
from rmqctl.files.remote.listing import remote_files
from rmqctl.files.remote.reader import RemoteReader, hide, revealed
from rmqctl.store import Store
from tests.conftest import GoldenFolder, Runner
from tests.remote.test_places import Files, Server, fresh, serving
from tests.remote.test_s3 import upload
from tests.support.s3 import simulated
from tests.support.sftp import serving_sftp

__all__ = ["fresh", "serving"]
SMALL = "4.9.3/basic/store"
LOG = "commitlog/00000000000000000000"
Fault = Callable[[Any], None]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_PAUSE", 0.001)
    monkeypatch.setattr(web, "PATIENCE", 1.0)


def sends(handler: Any, status: int, body: bytes = b"", *, length: int | None = None,
          **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)
    handler.close_connection = True


def asked(handler: Any) -> tuple[int, int, bytes]:
    first, _, last = handler.headers["Range"].removeprefix("bytes=").partition("-")
    data = Path(handler.translate_path(handler.path)).read_bytes()
    return int(first), int(last) + 1, data


def stalls(handler: Any) -> None:
    time.sleep(1.3)
    handler.close_connection = True


def stalls_within(handler: Any) -> None:
    start, end, data = asked(handler)
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
    handler.send_header("Content-Length", str(end - start))
    handler.end_headers()
    handler.wfile.write(data[start:start + 10])
    handler.wfile.flush()
    time.sleep(1.3)
    handler.close_connection = True


def ignores_ranges(handler: Any) -> None:
    sends(handler, 200, asked(handler)[2] + bytes(64 << 20))


def other_range(handler: Any) -> None:
    start, end, data = asked(handler)
    sends(handler, 206, data[:end - start],
          Content_Range=f"bytes {start + 1}-{end}/{len(data)}")


def other_size(handler: Any) -> None:
    start, end, data = asked(handler)
    sends(handler, 206, data[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(data) + 1}")


def sends_more(handler: Any) -> None:
    start, end, data = asked(handler)
    sends(handler, 206, data[start:end] + b"x",
          Content_Range=f"bytes {start}-{end - 1}/{len(data)}")


def ends_early(handler: Any) -> None:
    start, end, data = asked(handler)
    sends(handler, 206, data[start:end][:100], length=end - start,
          Content_Range=f"bytes {start}-{end - 1}/{len(data)}")


def says_less(handler: Any) -> None:
    start, end, data = asked(handler)
    sends(handler, 206, data[start:end], length=end - start - 1,
          Content_Range=f"bytes {start}-{end - 1}/{len(data)}")


def changed(handler: Any) -> None:
    path = Path(handler.translate_path(handler.path))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    start, end, data = asked(handler)
    sends(handler, 206, data[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(data)}",
          Last_Modified="Sun, 29 Nov 2026 00:00:00 GMT")


def goes_round(handler: Any) -> None:
    sends(handler, 302, Location=handler.path)


FAULTS: dict[str, Fault] = {
    "503": lambda handler: sends(handler, 503), "403": lambda handler: sends(handler, 403),
    "404": lambda handler: sends(handler, 404), "stalls": stalls, "stalls-within": stalls_within,
    "ignores-ranges": ignores_ranges, "other-range": other_range, "other-size": other_size,
    "sends-more": sends_more, "ends-early": ends_early, "says-less": says_less,
    "redirects": goes_round}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_web_server_that_fails(kind: str, golden: GoldenFolder, rmqctl: Runner,
                                 serving: Callable[..., str],
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(handler: Any) -> bool:
        if LOG in handler.path and handler.headers.get("Range"):
            FAULTS[kind](handler)
            return True
        return False

    url = serving(golden(SMALL), fault=fault)
    if "stalls" in kind:
        monkeypatch.setattr(web, "PATIENCE", 1.5)
        monkeypatch.setattr(ranges, "_TRIES", 2)
    started = time.monotonic()
    done = rmqctl("read", url, "-o", "jsonl").expect(5)
    assert LOG in done.err.replace("\n", "")
    assert time.monotonic() - started < 40


def test_a_web_server_without_ranges(tmp_path: Path, serving: Callable[..., str]) -> None:
    sent = []

    def fault(handler: Any) -> bool:
        if "commitlog" in handler.path and handler.headers.get("Range"):
            sent.append(handler.path)  # the client goes away while it is sent
            sends(handler, 200, bytes(1 << 20), length=1 << 40)
            return True
        return False

    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "0").write_bytes(os.urandom(1 << 20))
    place = tree.tree_of(serving(tmp_path, fault=fault))
    with pytest.raises(StoreIOError, match="commitlog/0: the server does not serve ranges"):
        place.reader.read("commitlog/0", 0, 100)
    assert len(sent) == 1
    place.reader.close()


@pytest.mark.parametrize("kind", ["503", "stalls", "ends-early", "says-less"])
def test_what_a_web_server_does_once_is_asked_for_again(
        kind: str, golden: GoldenFolder, rmqctl: Runner, serving: Callable[..., str]) -> None:
    left = [1]

    def fault(handler: Any) -> bool:
        if LOG not in handler.path or not handler.headers.get("Range") or not left[0]:
            return False
        left[0] -= 1
        FAULTS[kind](handler)
        return True

    done = rmqctl("read", serving(golden(SMALL), fault=fault), "-o", "jsonl").expect(0)
    assert done.out == rmqctl("read", golden(SMALL), "-o", "jsonl").expect(0).out
    assert not left[0]


def test_a_file_on_a_web_server_that_changes(golden_copy: GoldenFolder, rmqctl: Runner,
                                             serving: Callable[..., str]) -> None:
    root = golden_copy(SMALL)
    url = serving(root)
    with Store.open(url):
        path = root / LOG
        path.write_bytes(path.read_bytes())  # the same bytes, but who knows
        later = path.stat().st_mtime + 10
        os.utime(path, (later, later))
        done = rmqctl("read", url, "-o", "jsonl").expect(5)
    assert f"{LOG}: was changed" in done.err.replace("\n", " ")


def test_a_web_server_that_says_no_sizes(golden: GoldenFolder, rmqctl: Runner,
                                         serving: Callable[..., str],
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    def head(handler: Any) -> bool:
        if LOG not in handler.path:
            return False
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        return True

    monkeypatch.setattr(Files, "do_HEAD", lambda self: head(self) or super(
        Files, self).do_HEAD())
    done = rmqctl("info", serving(golden(SMALL), fault=head)).expect(5)
    assert LOG in done.err.replace("\n", "")
    assert "the server does not report its size" in done.err.replace("\n", " ")


class Pages(BaseHTTPRequestHandler):
    """Pages that list folders, with links of any kind."""

    links: tuple[str, ...] = ()

    def do_GET(self) -> None:
        page = "".join(f'<a href="{link}">x</a>' for link in self.links).encode()
        sends(self, 200, page, Content_Type="text/html")

    def do_HEAD(self) -> None:
        sends(self, 200, Content_Type="application/octet-stream")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def pages() -> Iterator[Callable[..., str]]:
    servers: list[Server] = []

    def serve(*links: str) -> str:
        server = Server(("127.0.0.1", 0), type("Handler", (Pages,), {"links": links}))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/a"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_names_in_pages(pages: Callable[..., str]) -> None:
    pytest.importorskip("aiohttp")
    url = pages("x", "%25RETRY%25g", "a%20b", "a&amp;b", "%0Anew", "%ff", "é", "../up", "%2e%2e",
                "c/../d", "q%2fr", "?C=N;O=D", "#top", "/etc/passwd", "http://other.example/x",
                "//other.example/x", ".", "", "a%00b", "mailto:x@example.org")
    with RemoteReader(url) as remote:
        files = remote_files(remote).files
    assert set(files) == {"x", "%RETRY%g", "a b", "a&b", "\nnew", "\udcff", "é",
                          "mailto:x@example.org"}


@pytest.mark.parametrize(("links", "why"), [
    (("sub/",), "nested folders"), (("a/", "b/", "c/", "d/"), "files")])
def test_folders_without_end(links: tuple[str, ...], why: str, pages: Callable[..., str],
                             monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(listing, "_MAX_FILES", 200)
    with RemoteReader(pages(*links)) as remote, pytest.raises(StoreIOError, match=why):
        remote_files(remote)


def test_a_folder_that_cannot_be_listed(golden: GoldenFolder, rmqctl: Runner,
                                        serving: Callable[..., str]) -> None:
    """What is in it is unknown: the store must not look as if that did not exist."""
    def fault(handler: Any) -> bool:
        if handler.path.rstrip("/").endswith("TP_fraud_Topic"):
            sends(handler, 403)
            return True
        return False

    done = rmqctl("verify", serving(golden(SMALL), fault=fault)).expect(5)
    assert "consumequeue/TP_fraud_Topic" in done.err.replace("\n", "")


# -- S3 -------------------------------------------------------------------------------------------

class Between(BaseHTTPRequestHandler):
    """Passes requests on to an S3, unless there is a fault to show."""

    protocol_version = "HTTP/1.1"
    target, fault = "", staticmethod(lambda _handler: False)

    def do_GET(self) -> None:
        if self.fault(self):
            return
        request = urllib.request.Request(f"{self.target}{self.path}", method=self.command, headers={
            name: value for name, value in self.headers.items() if name != "Host"})
        try:
            answer: Any = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            answer = error
        body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", answer.headers.get("Content-Length", "0")
                         if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def slow_down(handler: Any) -> None:
    sends(handler, 503, b"<?xml version='1.0'?><Error><Code>SlowDown</Code></Error>",
          Content_Type="application/xml")


def denied(handler: Any) -> None:
    sends(handler, 403, b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
          Content_Type="application/xml")


def truncated(handler: Any) -> None:
    sends(handler, 206, b"abc", ETag='"x"', Content_Range="bytes 0-2/65536")


def broken(handler: Any) -> None:
    sends(handler, 206, b"abc", length=65536, ETag='"x"')


@pytest.mark.long
@pytest.mark.parametrize("fault", [slow_down, denied, truncated, broken, stalls],
                         ids=lambda function: function.__name__)
def test_an_s3_that_fails(fault: Fault, golden: GoldenFolder, rmqctl: Runner,
                          monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated(monkeypatch) as client:
        from fsspec.config import conf

        url = upload(client, golden(SMALL), "x")
        monkeypatch.setattr(Between, "target", conf["s3"]["endpoint_url"])
        monkeypatch.setattr(Between, "fault", staticmethod(lambda handler: bool(
            LOG in handler.path and handler.headers.get("Range")) and (fault(handler), True)[1]))
        server = Server(("127.0.0.1", 0), Between)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            endpoint = f"http://127.0.0.1:{server.server_port}"
            monkeypatch.setitem(conf, "s3", {"endpoint_url": endpoint})
            monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 2)
            monkeypatch.setattr(web, "PATIENCE", 1.5)
            done = rmqctl("read", url, "-o", "jsonl").expect(5)
            assert f"{url}/{LOG}" in done.err.replace("\n", "")
            monkeypatch.setattr(Between, "fault", staticmethod(lambda _handler: False))
            vfs.unmount_all()
            assert rmqctl("read", url, "-o", "jsonl").expect(0).out == rmqctl(
                "read", golden(SMALL), "-o", "jsonl").out
        finally:
            server.shutdown()
            server.server_close()


@pytest.mark.long
def test_hostile_keys_in_a_bucket(golden: GoldenFolder, rmqctl: Runner,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated(monkeypatch) as client:
        url = upload(client, golden(SMALL), "x")
        for key in ("x/../y", "x//y", "x/config/../../../etc/passwd", "x/\x1b[31mred",
                    "x/commitlog/", "x/config/.", "x/checkpoint/below"):
            client.put_object(Bucket="bucket", Key=key, Body=b"")
        for command in (["info"], ["verify"], ["read", "--limit", "1"]):
            done = rmqctl(*command, url).expect(0, 1)
            assert "\x1b[31m" not in done.out + done.err
        listed = [row["path"] for row in rmqctl("info", url, "-o", "json").json()["files"]]
        assert not [name for name in listed if ".." in name or "//" in name]
        assert "\x1b[31mred" in listed


# -- SFTP -----------------------------------------------------------------------------------------

@pytest.mark.long
def test_links_on_a_file_server(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    root = golden_copy(SMALL)
    (root / LOG).rename(root / "elsewhere")
    (root / LOG).symlink_to("../elsewhere")
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "round").symlink_to("..")
    (root / "config" / "nowhere").symlink_to("none")
    with serving_sftp(root) as url:
        troubles = rmqctl("info", url, "-o", "json").expect(0).json()["troubles"]
        assert {row["path"] for row in troubles} >= {"config/nowhere", "config/round"}
        done = rmqctl("read", url, "-o", "jsonl").expect(0)
        assert done.out == rmqctl("read", root, "-o", "jsonl").expect(0).out
        for command in ("info", "verify", "doctor"):
            done = rmqctl(command, url, "-o", "json")
            assert "secret" not in done.out + done.err


def interrupted(command: list[str], stalled: threading.Event) -> None:
    """Run a command, interrupt it while the server stalls, and see it end."""
    done = subprocess.Popen([sys.executable, "-m", "rmqctl", *command], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)
    try:
        assert stalled.wait(20)
        time.sleep(0.1)
        done.send_signal(signal.SIGINT)
        out, err = done.communicate(timeout=5)
    finally:
        done.kill()
    assert (done.returncode, out, err) == (130, "", "rmqctl: interrupted\n")


@pytest.mark.long
@pytest.mark.parametrize("where", [f"{LOG}:range", f"{LOG}:size", "/consumequeue/:list", "/:list"])
@pytest.mark.parametrize("command", [["info"], ["verify"], ["export", "--out", "-"]],
                         ids=lambda command: command[0])
def test_an_interrupt_while_a_web_server_stalls(
        command: list[str], where: str, golden: GoldenFolder, serving: Callable[..., str],
        monkeypatch: pytest.MonkeyPatch) -> None:
    stalled, over, (path, _, kind) = threading.Event(), threading.Event(), where.partition(":")

    def stall(handler: Any) -> bool:
        asks = "range" if handler.headers.get("Range") else (
            "size" if handler.command == "HEAD" else "list")
        if asks == kind and handler.path.endswith(path):
            stalled.set()
            over.wait(30)
        return False

    monkeypatch.setattr(Files, "do_HEAD", lambda self: stall(self) or super(
        Files, self).do_HEAD())
    url = serving(golden(SMALL), fault=stall)
    try:
        interrupted([command[0], url, *command[1:]], stalled)
    finally:
        over.set()


@pytest.mark.long
def test_an_interrupt_while_an_sftp_server_stalls(golden: GoldenFolder,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    paramiko = pytest.importorskip("paramiko")
    stalled, over = threading.Event(), threading.Event()
    monkeypatch.setattr(paramiko.SFTPHandle, "read",
                        lambda *_: stalled.set() or (over.wait(30) and b""))
    with serving_sftp(golden(SMALL)) as url:
        try:
            interrupted(["verify", url], stalled)
        finally:
            over.set()


@pytest.mark.long
def test_passwords_are_in_no_output_and_in_no_file(golden: GoldenFolder, rmqctl: Runner,
                                                   tmp_path: Path) -> None:
    root = golden("4.9.3/crash-crc/after")
    with serving_sftp(root) as url:
        done = [rmqctl(*words) for words in (
            ["info", url], ["verify", url, "-o", "json"], ["doctor", url], ["preflight", url],
            ["export", url, "--out", tmp_path / "a.jsonl", "--manifest", "--provenance"],
            ["export", url, "--out", tmp_path / "b", "--partition-by", "store"],
            ["sql", url, "select distinct store, file from messages"],
            ["pipeline", "verify", url, "--engine", "local", "-o", "json"],
            ["pipeline", "stats", url, "--engine", "local"],
            ["report", url, "--out", tmp_path / "r.html"],
            ["recover", shutil.copytree(root, tmp_path / "c"), f"--from={url}", "-o", "json"])]
        assert {run.code for run in done} <= {0, 1}
        assert not [run for run in done if "secret" in run.out + run.err]
        assert not [path for path in tmp_path.rglob("*") if "secret" in str(path) or (
            path.is_file() and b"secret" in path.read_bytes())]
    with serving_sftp(root.parent) as url:
        many = rmqctl("pipeline", "verify", f"{url}/*", "--engine", "local", "-o", "json")
        assert [row["store"].rpartition("@")[2].partition("/")[2] for row in
                many.expect(1).json()["stores"]] == ["after", "before"]


@pytest.mark.long
def test_an_sftp_server_that_stalls(golden: GoldenFolder, rmqctl: Runner,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    paramiko = pytest.importorskip("paramiko")
    stall, real = threading.Event(), paramiko.SFTPHandle.read

    def read(self: Any, offset: int, length: int) -> Any:
        stall.wait(0.9)
        return real(self, offset, length)

    monkeypatch.setattr(paramiko.SFTPHandle, "read", read)
    monkeypatch.setattr(web, "PATIENCE", 0.4)
    with serving_sftp(golden(SMALL)) as url:
        done = rmqctl("read", url, "-o", "jsonl").expect(5)
        assert "did not answer in time" in done.err.replace("\n", " ")
        assert f"@{url.partition('@')[2]}/" in done.err.replace("\n", "")
        stall.set()


def test_names_of_urls_with_passwords() -> None:
    urls = ["sftp://u:p@host/a/b", "sftp://u:q@host/a", "s3://bucket/a@b:c", "sftp://u:p@other",
            "zip::sftp://u:p@host/x.zip"]
    names = [hide(url) for url in urls]
    assert names == ["sftp://***@host/a/b", "sftp://***2@host/a", "s3://bucket/a@b:c",
                     "sftp://***@other", "zip::sftp://***@host/x.zip"]
    assert [revealed(name) for name in names] == urls
    assert revealed("sftp://***@hostile/a") == "sftp://***@hostile/a"
    assert [hide(name) for name in names] == names
