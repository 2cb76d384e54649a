"""rmqctl report: one file that tells all that other commands say, and nothing that is masked."""

from __future__ import annotations

import ast
import base64
import hashlib
import html
import json
import re
import shutil
import string
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.checks import digests
from rmqctl.checks.explanations import explanations
from rmqctl.ext.report.masking import HIDDEN, KINDS, Mask
from rmqctl.output.language import language
from rmqctl.output.units import time_text
from rmqctl.scan.profile import Timeline
from rmqctl.store.info import Item
from tests.conftest import GoldenFolder, Runner
from tests.support import damage
from tests.support import tiny as tiny_stores
from tests.support.cli import Result

jinja2 = pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

PACKAGE = Path(__file__).parents[2] / "rmqctl" / "ext" / "report"
VOID = {"meta", "link", "br", "hr", "img", "input"}
LOG = "commitlog/00000000000000000000"
NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;{{7*7}}\x1b[31m\u202e"


class Page(HTMLParser):
    """A page taken apart; a tag that is not closed in its turn is an error."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), f"{tag}: an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def charts(self) -> list[str]:
        """The shapes of its charts, in their order."""
        return [names[1] for _, attrs in self.tags
                if (names := (attrs.get("class") or "").split())[:1] == ["chart"]]

    def tones(self) -> dict[str, str]:
        """The tone of every tile, by its caption; that of the headline is ""."""
        head = next(attrs["class"] for tag, attrs in self.tags if tag == "header")
        tiles = re.findall(r'<div class="tile (\w*)"><b>.*?</b><span>(.*?)</span>', self.source)
        return {"": head.removeprefix("top "), **{
            html.unescape(caption): tone for tone, caption in tiles}}

    def titles(self) -> list[str]:
        """What is shown over parts of its charts."""
        return [html.unescape(text) for text in re.findall("<title>(.*?)</title>", self.source)]

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)


@pytest.fixture
def report(rmqctl: Runner, tmp_path: Path):
    """Makes a report of a store: (the page, what the command said)."""
    def write_report(store: Path, *options: str, code: int | None = None) -> tuple[Page, Result]:
        out = tmp_path / f"{len(list(tmp_path.glob('*.html')))}.html"
        done = rmqctl("report", store, "--out", out, *options)
        if code is not None:
            done.expect(code)
        return Page(out.read_text()), done
    return write_report


@pytest.fixture
def damaged(tiny: tiny_stores.Tiny) -> Path:
    """The tiny store with a turned bit in a body and a page of zeros in a queue."""
    damage.flip_bit(tiny.root, LOG, 690, 3)
    damage.zero(tiny.root, "consumequeue/orders/0/00000000000000000000", 0, 20)
    return tiny.root


def check_policy(page: Page) -> None:
    """Nothing is run, nothing is fetched, and no style counts but that of the page."""
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "iframe", "object", "embed", "img", "form", "base", "a"}
    policy = next(attrs["content"] for tag, attrs in page.tags
                  if attrs.get("http-equiv") == "Content-Security-Policy")
    css = re.search("<style>(.*?)</style>", page.source, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; ")
    assert "unsafe" not in policy
    assert "url(" not in css
    assert "@import" not in css
    ids = [attrs["id"] for _, attrs in page.tags if attrs.get("id")]
    assert len(ids) == len(set(ids))
    for tag, attrs in page.tags:
        for name, value in attrs.items():
            assert name != "style"
            assert not name.startswith("on")
            if name in ("src", "href", "clip-path"):
                assert value == "data:," or re.fullmatch(r"#[\w-]+|url\(#[\w-]+\)", value), (
                    tag, name, value)
                reference = value.removeprefix("url(").strip("#)")
                assert value == "data:," or reference in ids


@pytest.mark.parametrize("name", ["5.3.3/crash-crc/before", "4.9.3/crash-trunc-garbage/before",
                                  "5.3.3/basic/store"])
def test_it_says_what_the_other_commands_say(name: str, golden: GoldenFolder, rmqctl: Runner,
                                             report) -> None:
    store = golden(name)
    doctor = rmqctl("doctor", store, "-o", "json")
    answer = doctor.json()
    page, result = report(store, code=doctor.code)
    check_policy(page)
    assert answer["verdict"] in result.out
    for finding in rmqctl("verify", store, "-o", "json").json()["findings"]:
        explained = explanations()[finding["category"]]
        assert f"{finding['category']}" in page.text
        assert html.escape(explained.cause).split("`")[0] in html.escape(page.text)
        assert re.sub(r"\s+", " ", finding["detail"]) in page.text
    for topic in rmqctl("stats", store, "-o", "json").json()["rows"]:
        assert topic["topic"] in page.text
    for count in (answer["already_lost"], answer["would_lose"]):
        assert f"<b>{count:,}</b>" in page.source
    assert all(step in page.text for step in answer["next"])
    assert ("nothing is lost" in page.text) == answer["sound"]
    assert page.charts() == ["wide", "narrow"] * 2


def test_the_digests_are_those_of_the_files(damaged: Path, report) -> None:
    (damaged / "config" / "odd\nname\\").write_bytes(b"x")
    page, _ = report(damaged)
    lines = re.search(r'<pre class="fold">(.*?)</pre>', page.source, re.DOTALL).group(1)
    lines = html.unescape(lines).splitlines()
    files = sorted(path for path in damaged.rglob("*") if path.is_file())
    assert len(lines) == len(files)
    checked = subprocess.run(["sha256sum", "--check", "--strict", "-"], cwd=damaged, text=True,
                             input="\n".join(lines) + "\n", capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert f"{hashlib.sha256((damaged / LOG).read_bytes()).hexdigest()}  {LOG}" in lines
    assert hashlib.sha256(("\n".join(lines) + "\n").encode()).hexdigest() in page.text


def test_holes_beyond_all_use_are_not_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                             ) -> None:
    """A file of 1 TiB that takes no space would be read for an hour."""
    monkeypatch.setattr(digests, "MAX_HOLES", 8 << 20)
    read: list[int] = []
    real = digests.FileSource.read
    monkeypatch.setattr(digests.FileSource, "read", lambda of, at, size: (
        read.append(size), real(of, at, size))[1])
    for name, holes in (("few", 6 << 20), ("many", 1 << 40)):
        with (tmp_path / name).open("wb") as file:
            file.write(b"x" * 8192)
            file.truncate(holes)
            file.seek(holes)
            file.write(b"y")
    items = [Item(path.name, "other", path.stat().st_size, 0, None)
             for path in sorted(tmp_path.iterdir())]
    few, many = digests.digests(str(tmp_path), items)
    assert few.sha256 == hashlib.sha256((tmp_path / "few").read_bytes()).hexdigest()
    assert (many.sha256, many.size) == (None, (1 << 40) + 1)
    assert "of it are holes" in many.problem
    assert len(read) < 32


def test_nothing_of_a_store_becomes_markup(tmp_path: Path, report) -> None:
    spec = tiny_stores.Spec("orders", 0, NASTY.encode(), {"KEYS": NASTY, "UNIQ_KEY": NASTY})
    other = tiny_stores.Spec(NASTY.replace("/", "")[:100], 1, b"second", {"TAGS": NASTY})
    store = tiny_stores.build(tmp_path / "store<b>", [spec, other, spec, other, spec],
                              tiny_stores.Options(commitlog_file_size=8192))
    damage.flip_bit(store.root, LOG, store.messages[2].start + 100, 2)
    name = f"consumequeue/{NASTY.replace('/', '')[:60]}"
    (store.root / name).mkdir(parents=True)
    (store.root / name / "0").write_bytes(b"")
    (store.root / "config" / "consumerOffset.json").write_text(json.dumps(
        {"offsetTable": {f"orders@{NASTY}": {"0": 1}}}))
    page, _ = report(store.root)
    check_policy(page)
    for raw in ("<script", "<img", "\x1b", "\u202e", "<b>\""):
        assert raw not in page.source
    assert page.text.count("{{7*7}}") > 5
    assert "onerror=alert" in page.text


def test_what_is_masked_is_nowhere(tmp_path: Path, report) -> None:
    secret = ["SECRET-body", "SECRET-key", "SECRET-topic", "SECRET-group"]
    specs = [tiny_stores.Spec(secret[2], 0, secret[0].encode(), {
        "KEYS": secret[1], "TAGS": "SECRET-tag",
        "UNIQ_KEY": f"0A00000700000000000000000000{n:04X}"})
        for n in range(5)]
    store = tiny_stores.build(tmp_path / "SECRET-path", specs)
    damage.flip_bit(store.root, LOG, store.messages[2].start + 92, 2)
    (store.root / "config" / "consumerOffset.json").write_text(json.dumps(
        {"offsetTable": {f"{secret[2]}@{secret[3]}": {"0": 1},
                         f"%RETRY%{secret[3]}@{secret[3]}": {"0": 9}}}))
    addresses = re.compile(r"\d+\.\d+\.\d+\.\d+|[0-9A-F]{32}")
    page, _ = report(store.root, "--redact", "groups")
    for word in (*secret[:3], "SECRET-path"):
        assert word in page.source
    assert secret[3] not in page.source
    assert addresses.search(page.text)
    page, _ = report(store.root, "--redact", "bodies,properties,addresses")
    assert secret[0] not in page.source
    assert secret[1] not in page.source
    assert secret[2] in page.source
    assert not addresses.search(page.source)
    page, _ = report(store.root, "--redact", "all", "--no-hash")
    assert "--no-hash" in page.text
    assert "SECRET" not in page.source
    assert not addresses.search(page.source)
    assert "topic-1" in page.text
    assert "%RETRY%group-1" in page.text


@pytest.mark.parametrize(("text", "left"), [
    ("from 10.0.0.7:52011 and [::1]:10911, fe80::1 too", "from # and #, # too"),
    ("[2001:db8::7]:10911", "#"),
    ("id 0A00000100002A9F0000000000000000 at 12:30:45.123", "id # at 12:30:45.123"),
    ("version 5.3.3, 2024-06-23T19:12:52.000Z, 00000000000000065536",
     "version 5.3.3, 2024-06-23T19:12:52.000Z, 00000000000000065536"),
])
def test_what_an_address_is(text: str, left: str) -> None:
    assert Mask({"addresses"}).text(text) == left.replace("#", HIDDEN)
    assert Mask(()).text(text) == text


def test_names_have_pseudonyms_in_any_sentence() -> None:
    mask = Mask(KINDS, ["orders", "a b", "x.y", "%RETRY%g"], ["g", "orders"], ["/data/store"])
    assert mask.text("g: 3 of orders, a b and x.y. /data/store/consumequeue/x.y/0 %RETRY%g") == (
        "group-1: 3 of group-2, topic-1 and topic-2. STORE/consumequeue/topic-2/0 %RETRY%group-1")
    assert mask.text("preorders goes g-g") == "preorders goes g-g"


def test_names_in_paths_and_configuration_files_are_masked(tmp_path: Path, report) -> None:
    store = tiny_stores.build(tmp_path / "store", [tiny_stores.Spec("orders", 0, b"x", {})] * 3)
    (store.root / "consumequeue" / "SECRET-folder" / "x").mkdir(parents=True)
    extension = store.root / "consumequeue_ext" / "SECRET-ext" / "0"
    extension.mkdir(parents=True)
    (extension / "00000000000000000000").write_bytes(b"")
    for name, table in (
            ("topics.json", {"topicConfigTable": {"SECRET-key": {
                "topicName": "SECRET-topic", "perm": "SECRET-x"}}}),
            ("subscriptionGroup.json", {"subscriptionGroupTable": {"SECRET-group": {
                "groupName": "SECRET-group", "retryQueueNums": "SECRET-y"}}}),
            ("consumerOffset.json", {"offsetTable": {"SECRET-a@SECRET-b": {"SECRET-c": 1}}})):
        (store.root / "config" / name).write_text(json.dumps(table))
    assert report(store.root)[0].source.count("SECRET-") > 8
    assert "SECRET-" not in report(store.root, "--redact", "topics,groups")[0].source


@pytest.mark.parametrize("is_linked", [False, True])
def test_paths_are_masked_however_they_are_typed(is_linked: bool, tmp_path: Path, report,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [tiny_stores.Spec("orders", 0, b"x" * 300, {})] * 20
    store = tiny_stores.build(tmp_path / "SECRET 's" / "SECRET-store", specs,
                              tiny_stores.Options(commitlog_file_size=4096))
    disk = tmp_path / "SECRET 'disk"
    (store.root / "commitlog").rename(disk)
    (tmp_path / "SECRET-link").symlink_to(store.root)
    (tmp_path / "SECRET.conf").write_text(f"storePathCommitLog={disk}\n")
    monkeypatch.chdir(tmp_path)
    root = "SECRET-link" if is_linked else store.root
    for options in (["--broker-conf", "SECRET.conf"], [f"--commitlog-dir={disk}"]):
        assert "SECRET" in report(root, *options)[0].source
        page, _ = report(root, *options, "--redact", "paths")
        assert "SECRET" not in page.source
        assert "rmqctl verify STORE" in page.text or "rmqctl verify 'STORE'" in page.text


def test_a_link_to_a_folder_beside_the_store_is_a_note(tiny: tiny_stores.Tiny, tmp_path: Path,
                                                       report) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "private").write_bytes(b"of somebody else")
    (tiny.root / "extra").symlink_to(tmp_path / "elsewhere")
    page, _ = report(tiny.root, code=0)
    assert "extra: link to a folder; not read" in page.text
    assert "private" not in page.source


def test_a_quoted_value_ends_where_its_quotes_do() -> None:
    assert Mask({"properties"}).detail(r"'it\'s a', 'b' is no number", "property-number") == (
        f"{HIDDEN}, {HIDDEN} is no number")


# -- what is lost ----------------------------------------------------------------------------------

LAST, MIDDLE = "commitlog/00000000000000262144", "commitlog/00000000000000131072"


@pytest.mark.parametrize("file", [MIDDLE, LAST])
@pytest.mark.long
def test_a_missing_file_is_in_map_chart_and_words(file: str, golden_copy: GoldenFolder,
                                                  rmqctl: Runner, report) -> None:
    """Also the last one: entries and index prove that it was there, and until when."""
    root = golden_copy("5.3.3/basic/store")
    damage.remove(root, file)
    start = rmqctl("preflight", root, "-o", "json").expect(1).json()
    page, _ = report(root, code=1)
    check_policy(page)
    name = Path(file).name
    assert f"Missing file: {name}" in page.text
    assert f"A log file is missing: {name}." in page.text
    assert page.tones()["of log in missing files"] == "bad"
    # One path for all cells of the map without a file, in each of the two shapes.
    missing = [attrs["d"] for tag, attrs in page.tags
               if tag == "path" and attrs.get("class") == "f-missing"]
    assert [path.count("M") for path in missing] == [256, 256]
    times = [time_text(start[f"already_lost_{end}"]) for end in ("from", "to")]
    assert f"messages stored between {times[0]} and {times[1]} are lost" in page.titles()
    drawn = re.search("From (.*?) to (.*?); one bar", page.text)
    assert drawn.group(1) <= times[0][:19].replace("T", " ")
    assert drawn.group(2) >= times[1][:19].replace("T", " ")


@pytest.mark.parametrize("harm", [
    lambda root: damage.remove(root, LAST), lambda root: damage.remove(root, MIDDLE),
    lambda root: damage.garbage_tail(root, LAST, 9000, 7, 3000),
    lambda root: damage.cq_missing(root, "consumequeue/TP_ship_evt-x/0/00000000000000000000", 3)])
@pytest.mark.long
def test_nothing_is_green_unless_all_is_sound(harm, golden_copy: GoldenFolder, report) -> None:
    root = golden_copy("5.3.3/basic/store")
    page, _ = report(root, "--no-hash", code=0)
    assert set(page.tones().values()) == {"", "good"}
    harm(root)
    page, _ = report(root, "--no-hash", code=1)
    assert page.tones()[""] in ("warn", "bad")
    assert "good" not in page.tones().values()


@pytest.mark.long
def test_a_store_without_its_log_is_not_said_to_lose_nothing(golden_copy: GoldenFolder,
                                                             report) -> None:
    root = golden_copy("5.3.3/basic/store")
    for path in (root / "commitlog").iterdir():
        path.unlink()
    page, _ = report(root, "--no-hash", code=1)
    assert "start and lose nothing" not in page.text
    assert "delete all consume queues" in page.text
    assert "The log has no files" in page.text
    assert page.charts() == ["wide", "narrow"]  # the time of what is lost; no map
    assert "good" not in page.tones().values()
    page, _ = report(root, "--no-hash", "--lang", "zh", code=1)
    assert "并删除全部 ConsumeQueue" in page.text


def test_what_only_the_checkpoint_proves_is_in_the_chart(tmp_path: Path, report) -> None:
    store = tiny_stores.build(tmp_path / "s", [tiny_stores.Spec("orders", 0, b"x" * 40, {})] * 40)
    later = store.messages[-1].record.store_timestamp + 60_000
    damage.checkpoint(store.root, physic=later, logics=later)
    page, _ = report(store.root, code=1)
    assert "The index or the checkpoint proves a latest store time of" in page.text
    drawn = re.search("From (.*?) to (.*?); one bar", page.text)
    assert drawn.group(2) >= time_text(later)[:19].replace("T", " ")


@pytest.mark.parametrize(("lost", "first", "last"), [
    ((), 100, 109), ((105, 130), 100, 130), ((90,), 90, 109), ((10_000_000,), 100, 109)])
def test_bars_reach_lost_times_that_are_not_far_away(lost: tuple[int, ...], first: int,
                                                     last: int) -> None:
    from rmqctl.ext.report.drawing import bars

    second = 1000
    base = 1_700_000_000 * second
    times = Timeline()
    times.add(np.array([base + (100 + number) * second for number in range(10)]),
              np.full(10, 50))
    drawn = bars(times, [base + time * second for time in lost])
    assert drawn.start <= base + first * second < drawn.start + drawn.step
    assert drawn.end - drawn.step <= base + last * second < drawn.end
    assert sum(drawn.messages) == 10
    alone = bars(Timeline(), [base, base + second])
    assert alone.end - alone.start >= second
    assert sum(alone.messages) == 0


def test_a_narrow_chart_is_for_phones_and_every_cell_of_a_stack_is_named(damaged: Path,
                                                                        report) -> None:
    page, _ = report(damaged)
    css = re.sub(r"\s+", " ", (PACKAGE / "report.css").read_text())
    phone = css[css.index("@media screen and (max-width"):css.index("@media print")]
    assert ".chart.wide { display: none; } .chart.narrow { display: block; }" in phone
    assert ".chart.narrow { display: none; }" in css[:css.index("@media screen")]
    sizes = {shape: float(re.search(rf"class=.chart {shape}.[^>]*viewBox=.0 0 ([\d.]+) |"
                                    rf"viewBox=.0 0 ([\d.]+) [^>]*class=.chart {shape}.",
                                    page.source).group(1, 2)[1] or 0)
             for shape in ("wide", "narrow")}
    assert sizes["narrow"] <= 310 < sizes["wide"]  # the room on a phone: texts keep their size
    rows = re.findall(r'<table class="stack">.*?</table>', page.source, re.DOTALL)
    assert len(rows) >= 3
    for row in re.findall(r"<tr><td.*?</tr>", "".join(rows), re.DOTALL):
        for cell in re.findall(r"<td[^>]*>", row)[1:]:
            assert "data-h=" in cell or "colspan" in cell or "barred" in cell


def test_paper_is_white_and_tables_are_not_torn() -> None:
    css = re.sub(r"\s+", " ", (PACKAGE / "report.css").read_text())
    paper = css[css.index("@media print"):]
    assert "@page { size: A4" in paper
    assert "body { background: #fff" in paper
    assert "color-scheme: light;" in paper
    colours = dict(re.findall(r"(--[\w-]+): (#\w+)", paper))
    screen = dict(re.findall(r"(--[\w-]+): (#\w+)", css[:css.index("@media")]))
    assert set(colours) == set(screen)  # no colour of a dark screen is left
    assert all(int(colours[name][1:3], 16) > 200 for name in ("--page", "--card", "--zero"))
    assert re.search(r"tr, [^{]*{ break-inside: avoid", paper)


def test_a_report_never_writes_over_anything_or_into_a_store(tiny: tiny_stores.Tiny, rmqctl: Runner,
                                                             tmp_path: Path) -> None:
    there = tmp_path / "there.html"
    there.write_text("precious")
    assert "files are never changed" in rmqctl("report", tiny.root, "--out", there).expect(6).err
    assert there.read_text() == "precious"
    inside = tiny.root / "config" / "report.html"
    rmqctl("report", tiny.root, "--out", inside).expect(2)
    assert not inside.exists()
    rmqctl("report", tiny.root, "--out", tmp_path / "no" / "report.html").expect(5)
    done = rmqctl("report", tiny.root, "--out", tmp_path / "x.html", "--redact", "names").expect(2)
    assert "bodies, properties, addresses" in done.err
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["there.html"]


def test_an_empty_store_and_one_without_a_log(tmp_path: Path, report) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    page, _ = report(tmp_path / "store", code=0)
    check_policy(page)
    assert "No messages to draw." in page.text
    assert "The store contains no files." in page.text


def test_json_names_the_file_and_its_digest(damaged: Path, rmqctl: Runner, tmp_path: Path) -> None:
    out = tmp_path / "incident.html"
    answer: dict[str, Any] = rmqctl("report", damaged, "--out", out, "-o", "json").expect(1).json()
    assert answer["out"] == str(out)
    assert answer["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert answer["bytes"] == out.stat().st_size
    assert answer["sound"] is False
    assert answer["verdict"] == rmqctl("doctor", damaged, "-o", "json").json()["verdict"]


# -- Chinese ---------------------------------------------------------------------------------------


def sentence_keys() -> set[str]:
    """The sentences of the report by their names in a catalog."""
    keys = set()
    for path in PACKAGE.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and "say" in (getattr(call.func, "id", ""),
                                                        getattr(call.func, "attr", "")):
                texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
                keys |= set(texts[-1:])
    template = jinja2.Environment().parse((PACKAGE / "report.html").read_text())
    for call in template.find_all(jinja2.nodes.Call):
        if getattr(call.node, "name", "") == "say":
            assert all(isinstance(arg, jinja2.nodes.Const) for arg in call.args)
            keys.add(call.args[-1].value)
    return keys


def test_every_sentence_is_there_in_chinese() -> None:
    from rmqctl.ext.report.page import of_report

    own = set(of_report("zh").catalog) - set(language("zh").catalog)
    catalog, keys = of_report("zh").catalog, sentence_keys()
    assert keys - set(catalog) == set()
    assert own - keys == set(), "left over"

    def names(text: str) -> set[str]:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name}

    for key in keys:
        assert names(key) == names(catalog[key]), key
        assert not re.search(r"[\u4e00-\u9fff][,;:!?()]|[,;:!?()][\u4e00-\u9fff]", catalog[key])


def test_a_chinese_page_leaves_no_sentence_in_english(damaged: Path, report) -> None:
    page, done = report(damaged, "--lang", "zh")
    check_policy(page)
    assert '<html lang="zh">' in page.source
    assert "已有消息丢失" in page.text
    assert "有损坏" in done.out
    plain = {key for key in sentence_keys() if "{" not in key and " " in key}
    assert [key for key in plain if f">{html.escape(key)}<" in page.source] == []
    assert explanations("zh")["body-crc"].cause in page.text
    assert explanations()["body-crc"].cause not in page.text


# -- a browser -------------------------------------------------------------------------------------


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                None)


def looked_at(page: Path, shot: Path) -> str:
    """What a browser says on its console when it shows a page."""
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         f"--user-data-dir={shot.parent / 'profile'}", "--enable-logging=stderr",
         "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1180,2400",
         f"--screenshot={shot}", page.as_uri()],
        capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
def test_a_browser_shows_it_without_a_word(damaged: Path, rmqctl: Runner, tmp_path: Path) -> None:
    """The policy forbids every connection, and the console would tell of each that was refused."""
    out, shot = tmp_path / "r.html", tmp_path / "r.png"
    rmqctl("report", damaged, "--out", out).expect(1)
    assert looked_at(out, shot) == ""
    assert shot.stat().st_size > 50_000
    out.write_text(out.read_text().replace(
        "<main>", '<main><img src="http://localhost/a.png"><p style="color: red">'))
    text = looked_at(out, shot)
    assert "http://localhost/a.png" in text
    assert "inline style" in text


# -- without the extra -----------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_extra_is_said(package: str, tiny: tiny_stores.Tiny, rmqctl: Runner,
                                 tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = rmqctl("report", tiny.root, "--out", tmp_path / "r.html").expect(3)
    assert "rmqctl[report]" in done.err or "EXTRAS=report" in done.err
    assert not (tmp_path / "r.html").exists()


@pytest.mark.long
def test_a_repaired_store_does_not_read_as_if_nothing_had_been_lost(
        golden_copy: GoldenFolder, rmqctl: Runner, tmp_path: Path) -> None:
    root = golden_copy("5.3.3/crash-trunc-header/before")
    rmqctl("recover", root, "--ambiguous", "leave-out", "--apply", "--yes").expect(0, 1)
    out = tmp_path / "report.html"
    assert rmqctl("report", root, "--no-hash", "--out", out, "-o", "json").expect(0).json()["sound"]
    page = out.read_text()
    assert "No damage now; messages were lost before" in page
    assert "nothing is lost" not in page
