"""`rmqctl carve` as a user meets it: rows, options, exit codes, new stores."""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path

import pytest

from rmqctl.formats.local.filler import TOPIC as FILLER
from rmqctl.formats.local.message import decode
from rmqctl.repair.carve.bridging import Bridge
from rmqctl.repair.carve.ordering import Order
from tests.conftest import GoldenFolder, Runner
from tests.repair.carving import carve, log, places, record, saved
from tests.support import snapshot
from tests.support.golden import GoldenStore, golden_stores
from tests.support.stored import log_bytes

NAME = f"{0:020d}"
SMALL = ("--index-slots", "100", "--index-max", "400", "-q")
HEALTHY = [golden_store for golden_store in golden_stores()
           if golden_store.state == "store" and golden_store.kind not in ("tiered", "multipath")]


def written(rmqctl: Runner, root: Path) -> list[dict[str, object]]:
    return [{name: value for name, value in row.items() if name != "msg_id"}
            for row in rmqctl("read", root, "-o", "jsonl", "--body", "base64").expect(0).jsonl()]


# -- listing ----------------------------------------------------------------------------------


def test_rows_are_message_objects_with_their_source(rmqctl: Runner, golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    read = rmqctl("read", root, "-o", "jsonl").expect(0).jsonl()
    with snapshot.assert_unchanged(root):
        rows = rmqctl("carve", root, "-o", "jsonl").expect(0).jsonl()
    for row in rows:
        place = row.pop("source"), row.pop("source_offset"), row.pop("placement")
        at = row["physical_offset"] % 65536
        path = root / "commitlog" / f"{row['physical_offset'] - at:020d}"
        assert place == (str(path), at, "in-place")
    assert rows == read


def test_filters(rmqctl: Runner, golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    rows = rmqctl("carve", root, "-o", "jsonl").expect(0).jsonl()
    topic, time = rows[40]["topic"], rows[300]["store_timestamp"]
    for options, kept in (
        (["--topic", topic, "--queue", "1"],
         lambda queue: (queue["topic"], queue["queue_id"]) == (topic, 1)),
        (["--since", str(time)], lambda message: message["store_timestamp"] >= time),
        (["--until", str(time)], lambda message: message["store_timestamp"] <= time),
        (["--where", "body_crc>1000000000"], lambda message: message["body_crc"] > 1_000_000_000),
        (["--tag", rows[1]["tags"]], lambda message: message["tags"] == rows[1]["tags"]),
    ):
        entries = rmqctl("carve", root, "-o", "jsonl", *options).expect(0).jsonl()
        assert entries == [row for row in rows if kept(row)] != []
    rmqctl("carve", root, "--topic", "nowhere").expect(1)


def test_what_else_there_is_can_be_asked_for(rmqctl: Runner, tmp_path: Path) -> None:
    inner = record(77, b"a record in a body")
    data = log(50)
    whole = data + record(len(data), b"look: " + inner) + log(9, base=1 << 20, seed=b"far")
    broken = bytearray(whole)
    broken[len(data) + 89] ^= 1
    path, twice = saved(tmp_path, bytes(broken), NAME), saved(tmp_path, log(2), "twice")
    plain = rmqctl("carve", path, twice, "-o", "jsonl").expect(1)
    assert [row["placement"] for row in plain.jsonl()] == ["in-place"] * 50 + ["misplaced"] * 9
    assert "--damaged" in plain.err
    assert "--embedded" in plain.err
    assert "2 duplicates" in plain.err
    rows = rmqctl("carve", path, twice, "-o", "jsonl", "--embedded", "--damaged",
                  "--duplicates").expect(1).jsonl()
    more = [(row["placement"], row["crc_ok"], row["duplicate"]) for row in rows]
    assert more.count(("embedded-in-damage", True, False)) == 1
    assert more.count(("damaged", False, False)) == 1
    assert sum(item[2] for item in more) == 2
    assert len(rows) == 63


def test_summary(rmqctl: Runner, tmp_path: Path) -> None:
    path = saved(tmp_path, log(20) + b"rest", NAME)
    answer = rmqctl("carve", path, "--summary", "-o", "json").expect(1).json()
    assert (answer["messages"], answer["in_place"], answer["breaks"]) == (20, 20, 1)
    assert answer["bytes_read"] == path.stat().st_size


@pytest.mark.parametrize("content", [b"", bytes(100_000), random.Random(92).randbytes(100_000)],
                         ids=["no bytes", "zeros", "noise"])
def test_nothing_found(rmqctl: Runner, content: bytes, tmp_path: Path) -> None:
    result = rmqctl("carve", saved(tmp_path, content), "-o", "jsonl").expect(1)
    assert result.out == ""
    (tmp_path / "empty").mkdir()
    rmqctl("carve", tmp_path / "empty", "-o", "json").expect(1)


def test_usage(rmqctl: Runner, tmp_path: Path) -> None:
    path = saved(tmp_path, log(3))
    rmqctl("carve").expect(2)
    rmqctl("carve", tmp_path / "missing").expect(5)
    rmqctl("carve", path, "--no-misplaced").expect(2)
    for option in ("--summary", "--damaged", "--duplicates", "--redact"):
        rmqctl("carve", path, "--out", tmp_path / "new", option).expect(2)
    inside = rmqctl("carve", tmp_path, "--out", tmp_path / "new").expect(2)
    assert "which is to be carved" in inside.err
    assert not (tmp_path / "new").exists()


def test_unreadable_places_lead_to_5(rmqctl: Runner, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = saved(tmp_path, log(200), NAME), os.preadv

    def preadv(fd: int, buffers: list[memoryview], position: int) -> int:
        if position < 9000 < position + sum(map(len, buffers)):
            raise OSError(errno.EIO, "worn out")
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", preadv)
    result = rmqctl("carve", path, "-o", "jsonl").expect(5)
    assert len(result.jsonl()) > 150
    assert "4096 bytes at 8192 cannot be read" in result.err


# -- new stores -------------------------------------------------------------------------------


@pytest.mark.parametrize("store", HEALTHY, ids=lambda golden_store: golden_store.id)
def test_a_whole_log_becomes_the_same_log(store: GoldenStore, rmqctl: Runner,
                                          golden: GoldenFolder, tmp_path: Path) -> None:
    root, new = golden(store.id), tmp_path / "new"
    document = rmqctl("carve", root / "commitlog", "--out", new, "-o", "json", *SMALL,
                      "--broker-version", store.version).expect(0).json()
    assert (document["refused"], document["queue_offsets_renumbered"]) == (0, 0)
    assert document["written"] == document["physical_offsets_kept"] == document["messages"] > 0
    before, after = (log_bytes(item, ("commitlog",)) for item in (root, new))
    for base, data in after.items():
        assert data == before[base]
    rmqctl("verify", new, "-o", "json").expect(0)


def test_messages_keep_their_places_after_a_loss(rmqctl: Runner, golden_copy: GoldenFolder,
                                                 tmp_path: Path) -> None:
    """Queues have a filler for each message that is lost between others, as `recover` gives it."""
    root, new = golden_copy("5.3.3/basic/store"), tmp_path / "new"
    with (root / "commitlog" / f"{65536:020d}").open("r+b") as file:
        file.seek(20_000)
        file.write(bytes(9000))
    messages = carve(root).messages
    document = rmqctl("carve", root, "--out", new, "-o", "json", *SMALL).expect(1).json()
    assert document["written"] == len(messages) < 600
    assert document["queue_offsets_renumbered"] == 0
    assert document["physical_offsets_kept"] == len(messages)
    rmqctl("verify", new).expect(0)
    place = ("physical_offset", "topic", "queue_id", "queue_offset", "body")
    rows = {tuple(row[name] for name in place): row for row in written(rmqctl, new)}
    before = {tuple(row[name] for name in place) for row in rmqctl(
        "read", root, "-o", "jsonl", "--body", "base64").expect(0, 1).jsonl()}
    assert before <= rows.keys()
    lost = [row for key, row in rows.items() if key not in before and row["topic"] != FILLER]
    assert len(lost) == document["queue_fillers"] > 0
    assert all(row["properties"] == {"RMQCTL": "lost"} for row in lost)
    queues: dict[tuple[object, object], list[int]] = {}
    for key in rows:
        if key[1] != FILLER:
            queues.setdefault(key[1:3], []).append(int(str(key[3])))
    assert all(sorted(offsets) == list(range(min(offsets), max(offsets) + 1))
               for offsets in queues.values())


def test_the_order_of_the_log_not_of_the_pieces(rmqctl: Runner, tmp_path: Path) -> None:
    data, new = log(600, size=500), tmp_path / "new"
    cut = places(data)[300][0]
    image = saved(tmp_path, data[cut:] + b"noise" * 100 + data[:cut])
    rmqctl("carve", image, "--out", new, "-o", "json", *SMALL).expect(1)
    rows = written(rmqctl, new)
    assert [message["queue_offset"] for message in rows] == list(range(600))
    assert [message["physical_offset"] for message in rows] == [at for at, _ in places(data)]


def test_one_broker_after_the_other(tmp_path: Path) -> None:
    """The broker with the earliest message first, each in the order of its log."""
    late = [record(1000 * number, b"x", store=1, time=900 + number) for number in range(20)]
    early = [record(1000 * number, b"x", store=2, time=100 + number) for number in range(20)]
    path = saved(tmp_path, b"".join(late[::-1] + early))
    from rmqctl.repair.carve.carve import CarveOptions, Carving
    from rmqctl.repair.carve.sources import inputs

    order = Order(run=7)
    raw = path.read_bytes()
    with Carving(list(inputs([str(path)], lambda *_: None)), CarveOptions()) as carving:
        for page in carving.pages():
            order.add(page)
        assert (len(order), order.size) == (40, len(raw))
        logs = order.logs(lambda: Bridge(1 << 20, 1 << 20))
        placed = [place for log in logs for place in log.ordered()]
    assert all(keeps for _, keeps in placed)
    assert [len(log.places) for log in logs] == [20, 20]
    records = [decode(raw, place[4]) for place, _ in placed]
    assert [(record.store_host[0][-1], record.physical_offset) for record in records] == [
        (store, 1000 * number) for store in (2, 1) for number in range(20)]


def test_all_intact_messages_are_written_unless_misplaced_ones_are_refused(
        rmqctl: Runner, tmp_path: Path) -> None:
    path = saved(tmp_path, log(30) + log(4, base=1 << 20, seed=b"far"), NAME)
    document = rmqctl("carve", path, "--out", tmp_path / "a", "-o", "json", "--index-slots", "100",
                      "--index-max", "400").expect(1)
    assert document.json()["written"] == 34
    assert "4 misplaced messages found (written too; --no-misplaced" in document.err
    document = rmqctl("carve", path, "--out", tmp_path / "b", "-o", "json", "--no-misplaced",
                      *SMALL)
    assert document.expect(1).json()["written"] == 30


def test_an_image_with_a_log_out_of_order_is_no_damage(rmqctl: Runner, tmp_path: Path) -> None:
    """A file system lays the files of a log down in any order."""
    parts = [log(30, base=base, seed=b"%d" % base) for base in (3 << 16, 1 << 16, 2 << 16)]
    image = bytes(4096) + b"".join(part + bytes(-len(part) % 8192) for part in parts)
    path = saved(tmp_path, image, "disk.img")
    answer = rmqctl("carve", path, "--summary", "-o", "json").expect(0).json()
    assert (answer["messages"], answer["in_place"]) == (90, 90)
    report = rmqctl("carve", path, "--out", tmp_path / "new", "-o", "json", *SMALL).expect(0)
    assert report.json()["physical_offsets_kept"] == report.json()["written"] == 90


def test_where_a_message_was_found_can_be_named_as_a_field(rmqctl: Runner, tmp_path: Path) -> None:
    path = saved(tmp_path, log(2), NAME)
    rows = rmqctl("carve", path, "--fields", "placement,topic,source_offset,source", "-o",
                  "jsonl").expect(0).jsonl()
    assert [list(row) for row in rows] == [["placement", "topic", "source_offset", "source"]] * 2
    assert rows[0] == {"placement": "in-place", "topic": rows[0]["topic"], "source_offset": 0,
                       "source": str(path)}
    assert rmqctl("carve", path, "--fields", "source,placement", "-o", "csv").expect(
        0).out.splitlines()[:2] == ["source,placement", f"{path},in-place"]
    refused = rmqctl("carve", path, "--fields", "placement,duplicate").expect(2)
    assert "source_offset" in refused.err
    rmqctl("carve", path, "--fields", "placement,duplicate", "--duplicates").expect(0)
    rmqctl("read", tmp_path, "--fields", "source").expect(2, 3)


def test_a_place_that_is_taken_is_refused_first(rmqctl: Runner, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "something").write_bytes(b"mine")
    path = saved(tmp_path, log(3))
    with snapshot.assert_unchanged(taken):
        assert "not empty" in rmqctl("carve", path, "--out", taken).expect(6).err


def test_nothing_found_makes_no_store(rmqctl: Runner, tmp_path: Path) -> None:
    path = saved(tmp_path, bytes(5000))
    report = rmqctl("carve", path, "--out", tmp_path / "new", "-o", "json").expect(1)
    assert report.json()["written"] == 0
    assert not (tmp_path / "new").exists()


def test_messages_that_the_store_cannot_take_are_reported(rmqctl: Runner, tmp_path: Path) -> None:
    path = saved(tmp_path, log(5) + record(len(log(5)), b"b" * 5000), NAME)
    report = rmqctl("carve", path, "--out", tmp_path / "new", "-o", "json", "--commitlog-file-size",
                    "4KiB", "--index-slots", "100", "--index-max", "400").expect(1)
    assert (report.json()["written"], report.json()["refused"]) == (5, 1)
    assert "rejected: 1 message: " in report.err


def test_objects_can_be_appended_again(rmqctl: Runner, golden: GoldenFolder,
                                       tmp_path: Path) -> None:
    root, lines, new = golden("4.9.3/basic/store"), tmp_path / "lines", tmp_path / "new"
    lines.write_text(rmqctl("carve", root, "-o", "jsonl").expect(0).out, encoding="utf-8")
    rmqctl("init", new, "--commitlog-file-size", "64KiB", "--broker-version", "4.9.3",
           "--index-slots", "100", "--index-max", "400").expect(0)
    rmqctl("append", new, lines, "--as-recorded").expect(0)
    assert written(rmqctl, new) == written(rmqctl, root)
    assert json.loads(lines.read_text(encoding="utf-8").splitlines()[0])["placement"] == "in-place"


def test_what_next_is_to_verify_the_new_store(rmqctl: Runner, golden: GoldenFolder,
                                              tmp_path: Path) -> None:
    new = tmp_path / "new"
    done = rmqctl("carve", golden("5.3.3/basic/store") / "commitlog", "--out", new).expect(0, 1)
    assert done.out.endswith(f"What next\n---------\nrmqctl verify {new}\n")
