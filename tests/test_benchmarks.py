"""The bench stores are healthy stores: an independent, slow reader of the formats says so, and the
builders of consumequeue and index reproduce the real engine's files byte for byte."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest

from benchmarks import goals, peers, run, stage_yields
from benchmarks.consumequeue import Rows, write_queue
from benchmarks.goals import WORKS
from benchmarks.index import IndexEntries, write_index
from benchmarks.make_store import main, make_store, parse_options
from benchmarks.options import PROFILES, Options
from benchmarks.results import with_section
from benchmarks.run import Row
from tests.support.archives import unpack
from tests.support.model import java_hash

GOLDEN = Path(__file__).parent / "golden"
LOG_SIZE = 2 << 20
SMALL: dict[str, Any] = {
    "log_size": LOG_SIZE,
    "commitlog_file_size": 256 << 10,
    "consumequeue_file_size": 400,
    "index_slots": 200,
    "index_max": 801,
    "adversarial": 0.05,
}
MAGIC = 0xDAA320A7
MAGICS = [MAGIC.to_bytes(4, "big"), b"\xda\xa3\x20\xab", b"\xcb\xd4\x31\x94"]
BLANK_MAGIC = 0xCBD43194
RECORD = struct.Struct(">iIIiiqqiq8sq8siqi")
UNIT = struct.Struct(">qiq")
HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")


class Record(NamedTuple):
    phy: int
    size: int
    queue_id: int
    queue_offset: int
    born_timestamp: int
    store_timestamp: int
    body: bytes
    topic: str
    properties: dict[str, str]
    raw_properties: str


class Generated(NamedTuple):
    """A made store: its root, what make_store says of it, its records in log order."""

    store: Path
    facts: dict[str, Any]
    records: list[Record]


class Golden(NamedTuple):
    """A store of the engine: its root, the engine's configuration, its records in log order."""

    store: Path
    config: dict[str, str]
    records: list[Record]


class Peer(Protocol):
    def __call__(self, path: Path, base: int, /) -> peers.Scan: ...


def walk(commitlog: Path) -> Iterator[Record]:
    """Every record, each checked; also that every other byte is a blank record or zero."""
    files = sorted(commitlog.iterdir())
    for path in files:
        data, base = path.read_bytes(), int(path.name)
        assert len(data) == files[0].stat().st_size
        position = 0
        while position < len(data):
            size, magic = struct.unpack_from(">iI", data, position)
            if magic != MAGIC:
                break
            fields = RECORD.unpack_from(data, position)
            topic_at = position + RECORD.size + fields[14]
            body = data[position + RECORD.size : topic_at]
            properties_at = topic_at + 1 + data[topic_at]
            (length,) = struct.unpack_from(">h", data, properties_at)
            assert properties_at + 2 + length == position + size
            assert fields[6] == base + position
            assert fields[2] == zlib.crc32(body) & 0x7FFFFFFF
            raw = data[properties_at + 2 : position + size].decode()
            pairs = [pair.split("\x01", 1) for pair in raw.split("\x02") if pair]
            yield Record(
                *(base + position, size, fields[3], fields[5], fields[8], fields[10], body),
                data[topic_at + 1 : properties_at].decode(),
                dict(pairs),
                raw,
            )
            position += size
        if path == files[-1]:
            assert not any(data[position:])
        else:
            assert struct.unpack_from(">iI", data, position) == (len(data) - position, BLANK_MAGIC)
            assert not any(data[position + 8 :])


def tags_code(record: Record) -> int:
    return java_hash(record.properties.get("TAGS", ""))


def index_keys(record: Record) -> list[str]:
    unique = [record.properties["UNIQ_KEY"]] if "UNIQ_KEY" in record.properties else []
    keys = [key for key in record.properties.get("KEYS", "").split(" ") if key]
    return [f"{record.topic}#{key}" for key in unique + keys]


def index_hash(key: str) -> int:
    value = abs(java_hash(key))
    return 0 if value >> 31 else value


def by_queue(records: list[Record]) -> dict[str, list[Record]]:
    """`topic/queue` -> its records."""
    queues = defaultdict(list)
    for record in records:
        queues[f"{record.topic}/{record.queue_id}"].append(record)
    return queues


@pytest.fixture(scope="module", params=["100", "1k"])
def generated(request: pytest.FixtureRequest,
              tmp_path_factory: pytest.TempPathFactory) -> Generated:
    """A small store of two profiles, with several files of every kind."""
    store = tmp_path_factory.mktemp("bench") / "store"
    options = Options(PROFILES[request.param].body_length, **SMALL)
    facts = make_store(options, store)
    return Generated(store, facts, list(walk(store / "commitlog")))


def test_log_is_full_of_valid_records(generated: Generated) -> None:
    store, facts, records = generated
    assert len(records) == facts["records"]
    last = records[-1]
    assert facts["log_bytes"] == last.phy + last.size
    largest = max(record.size for record in records)
    assert LOG_SIZE - largest < facts["log_bytes"] <= LOG_SIZE
    assert len(list((store / "commitlog").iterdir())) == 8
    times = [record.store_timestamp for record in records]
    assert times == sorted(times)
    assert times[0] < times[-1]
    assert all(0 <= r.store_timestamp - r.born_timestamp < 1000 for r in records)


def test_properties_are_those_of_a_broker(generated: Generated) -> None:
    records = generated.records
    assert len({record.topic for record in records}) == 8
    assert all(record.raw_properties.endswith("\x02") for record in records)
    assert all(record.properties["CLUSTER"] == "DefaultCluster" for record in records)
    unique = [record.properties["UNIQ_KEY"] for record in records]
    assert all(re.fullmatch("[0-9A-F]{32}", key) for key in unique)
    assert len(set(unique)) == len(unique)
    for name in ("TAGS", "KEYS"):
        assert 0.3 < sum(name in record.properties for record in records) / len(records) < 0.95
    assert any(" " in record.properties.get("KEYS", "") for record in records)


def test_some_bodies_imitate_records(generated: Generated) -> None:
    tricky = [r for r in generated.records if any(magic in r.body for magic in MAGICS)]
    assert 0.03 < len(tricky) / len(generated.records) < 0.07
    assert all(any(magic in record.body for record in tricky) for magic in MAGICS)
    originals = {record.body for record in generated.records[:64]}
    kinds: dict[tuple[int, bool], int] = defaultdict(int)
    for record in tricky:
        whole = [copy for copy in embedded(record.body) if copy.body in originals]
        here = [copy.phy == record.phy + RECORD.size + copy.at for copy in whole]
        kinds[len(whole), bool(here) and all(here)] += 1
    assert set(kinds) == {(0, False), (1, False), (1, True), (2, True)}


class Copy(NamedTuple):
    """A whole record at position `at` of a body, claiming to lie at phy."""

    at: int
    phy: int
    body: bytes


def embedded(body: bytes) -> Iterator[Copy]:
    """Every whole record found in a body by its magic."""
    for item in re.finditer(re.escape(MAGICS[0]), body):
        at = item.start() - 4
        if 0 <= at <= len(body) - RECORD.size:
            fields = RECORD.unpack_from(body, at)
            if RECORD.size < fields[0] <= len(body) - at:
                start = at + RECORD.size
                yield Copy(at, fields[6], body[start : start + fields[14]])


def test_consumequeue_and_log_agree_both_ways(generated: Generated) -> None:
    store, _, records = generated
    queues = by_queue(records)
    root = store / "consumequeue"
    assert {f"{p.parent.name}/{p.name}" for p in root.glob("*/*")} == set(queues)
    for name, members in queues.items():
        files = sorted((root / name).iterdir())
        assert [int(path.name) for path in files] == [400 * n for n in range(len(files))]
        assert [path.stat().st_size for path in files] == [400] * len(files)
        data = b"".join(path.read_bytes() for path in files)
        units = list(UNIT.iter_unpack(data))
        assert len(members) <= len(units) < len(members) + 20
        assert [record.queue_offset for record in members] == list(range(len(members)))
        assert units[: len(members)] == [(r.phy, r.size, tags_code(r)) for r in members]
        assert not any(data[UNIT.size * len(members) :])


def test_index_chains_find_every_key(generated: Generated) -> None:
    store, facts, records = generated
    slots, maximum = SMALL["index_slots"], SMALL["index_max"]
    files = [path.read_bytes() for path in sorted((store / "index").iterdir())]
    assert {len(data) for data in files} == {40 + 4 * slots + 20 * maximum}
    counts = [HEADER.unpack_from(data)[5] - 1 for data in files]
    wanted = [(key, record.phy) for record in records for key in index_keys(record)]
    assert counts[:-1] == [maximum - 1] * (len(files) - 1)
    assert sum(counts) == len(wanted) == facts["index_entries"]

    entries_by_key = defaultdict(list)
    total = 0
    for data, count in zip(files, counts, strict=True):
        begin, end, first, last, used, _ = HEADER.unpack_from(data)
        table = struct.unpack_from(f">{slots}i", data, HEADER.size)
        assert used == sum(number > 0 for number in table)
        times = []
        for slot, newest in enumerate(table):
            number = newest
            while number:
                key_hash, phy, seconds, previous = ENTRY.unpack_from(
                    data, HEADER.size + 4 * slots + ENTRY.size * number
                )
                assert key_hash % slots == slot
                assert 0 <= previous < number <= count
                entries_by_key[key_hash].append(phy)
                times.append((number, phy, seconds))
                total, number = total + 1, previous
        assert min(times)[1] == first
        assert max(times)[1] == last
        assert 0 <= max(seconds for _, _, seconds in times) <= (end - begin) // 1000 + 1
    assert total == len(wanted)
    expected = defaultdict(list)
    for key, phy in wanted:
        expected[index_hash(key)].append(phy)
    assert {key: sorted(phys) for key, phys in entries_by_key.items()} == dict(expected)


def test_small_files_and_probe(generated: Generated) -> None:
    store, facts, records = generated
    checkpoint = (store / "checkpoint").read_bytes()
    last = records[-1].store_timestamp
    full = [HEADER.unpack_from(p.read_bytes()) for p in sorted((store / "index").iterdir())]
    index_time = [fields[1] for fields in full if fields[5] == SMALL["index_max"]][-1]
    assert len(checkpoint) == 4096
    assert struct.unpack_from(">qqqqq", checkpoint) == (last, last, index_time, 0, 0)
    assert (store / "lock").read_bytes() == b"lock"
    assert not (store / "abort").exists()
    topics = json.loads((store / "config" / "topics.json").read_text())["topicConfigTable"]
    assert set(topics) == {record.topic for record in records}
    text = (store / "config" / "consumerOffset.json").read_text()
    table = json.loads(re.sub(r"(\d+):", r'"\1":', text))["offsetTable"]
    queues = by_queue(records)
    for name, offsets in table.items():
        for queue, offset in offsets.items():
            assert 0 <= offset <= len(queues[f"{name.split('@')[0]}/{queue}"])
    probe = facts["probe"]
    record = next(record for record in records if record.phy == probe["phy"])
    assert (record.topic, record.queue_id) == (probe["topic"], probe["queue"])
    assert record.queue_offset == probe["queue_offset"]
    assert record.store_timestamp == probe["store_timestamp"]
    assert record.properties["UNIQ_KEY"] == probe["unique_key"]
    assert probe["key"] in record.properties["KEYS"].split()
    assert probe["msg_id"] == f"0A000001{10911:08X}{record.phy:016X}"


def digest(store: Path) -> str:
    """Of all names and contents."""
    total = hashlib.sha256()
    for path in sorted(store.rglob("*")):
        total.update(str(path.relative_to(store)).encode())
        total.update(path.read_bytes() if path.is_file() else b"")
    return total.hexdigest()


def test_bytes_depend_on_the_seed_only(tmp_path: Path) -> None:
    small = {**SMALL, "log_size": LOG_SIZE // 4}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_store(Options(200, seed=seed, **small), tmp_path / name)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


def test_defaults_are_the_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, _ = parse_options(["--out", "x"])
    assert (options.log_size, options.commitlog_file_size) == (1 << 30, 1_073_741_824)
    main(["--profile", "100", "--log-size", "256KiB", "--out", str(tmp_path / "s")])
    assert json.loads(capsys.readouterr().out)["records"] > 500
    sizes = {path.stat().st_size for path in (tmp_path / "s").rglob("*") if path.is_file()}
    assert {1_073_741_824, 6_000_000, 420_000_040} < sizes


@pytest.mark.parametrize(
    "options",
    [
        {"body_length": 10},
        {"topics": 300},
        {"queues": 0},
        {"commitlog_file_size": 1000},
        {"log_size": 100},
    ],
)
def test_impossible_stores_are_refused(options: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"imitate|between|does not fit|too small"):
        make_store(Options(**{"body_length": 1024, **SMALL, **options}), tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.fixture(scope="module", params=["4.9.3", "5.3.3"])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN / request.param / "basic.tar.xz") as archive:
        unpack(archive, folder, "data")
    folder /= "basic"
    config = json.loads((folder / "expect.json").read_text())["config"]
    return Golden(folder / "store", config, list(walk(folder / "store" / "commitlog")))


def test_consumequeue_builder_equals_the_engine(golden: Golden, tmp_path: Path) -> None:
    store, config, records = golden
    size = int(config["mappedFileSizeConsumeQueue"])
    for name, members in by_queue(records).items():
        rows = Rows(
            np.array([record.phy for record in members]),
            np.array([record.size for record in members], dtype=np.int32),
            np.array([tags_code(record) for record in members]),
        )
        write_queue(rows, size, tmp_path / name)
    root = store / "consumequeue"
    theirs = {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    ours = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert len(theirs) > 20
    assert ours == theirs


def test_index_builder_equals_the_engine(golden: Golden, tmp_path: Path) -> None:
    store, config, records = golden
    keys = [(index_hash(key), r.phy, r.store_timestamp) for r in records for key in index_keys(r)]
    hashes, phys, times = map(np.array, zip(*keys, strict=True))
    entries = IndexEntries(hashes.astype(np.int32), phys, times)
    slots, maximum = int(config["maxHashSlotNum"]), int(config["maxIndexNum"])
    full_until = write_index(entries, slots, maximum, tmp_path / "index")
    theirs = [path.read_bytes() for path in sorted((store / "index").iterdir())]
    ours = [path.read_bytes() for path in sorted((tmp_path / "index").iterdir())]
    assert len(theirs) == 3
    assert ours == theirs
    assert full_until == struct.unpack_from(">qqq", (store / "checkpoint").read_bytes())[2]


PEERS: list[Peer] = [peers.construct_parse, peers.struct_loop, peers.struct_fields]


@pytest.mark.parametrize("peer", PEERS)
def test_peers_see_all_records(peer: Peer, generated: Generated) -> None:
    store, _, records = generated
    seen = [peer(path, int(path.name)) for path in sorted((store / "commitlog").iterdir())]
    assert sum(scan.records for scan in seen) == len(records)
    assert sum(scan.bytes for scan in seen) == sum(record.size for record in records)


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("what", ["body", "physicalOffset", "lengths"])
def test_peers_notice_damage(peer: Peer, what: str, generated: Generated, tmp_path: Path) -> None:
    store, _, records = generated
    victim = records[5]
    position = {
        "body": victim.phy + RECORD.size + 9,
        "physicalOffset": victim.phy + 35,
        "lengths": victim.phy + RECORD.size + len(victim.body) + len(victim.topic) + 2,
    }[what]
    data = bytearray((store / "commitlog" / f"{0:020d}").read_bytes())
    data[position] ^= 1
    damaged = tmp_path / "log"
    damaged.write_bytes(data)
    message = {"body": "CRC", "physicalOffset": what, "lengths": what}[what]
    with pytest.raises(ValueError, match=message):
        peer(damaged, 0)


@pytest.mark.long
def test_run_measures_in_processes_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = make_store(Options(1024, **SMALL), tmp_path / "s1k")
    (tmp_path / "s1k.json").write_text(json.dumps(facts))
    names = ("peer: cat", "peer: struct loop, isal CRC", "walk + CRC", "query id", "append_many")
    figures = tmp_path / "figures.json"
    run.main(
        [
            *("--dir", str(tmp_path), "--profile", "1k", "--times", "1", "--scale", "0.001"),
            *(part for name in names for part in ("--only", name)),
            *("--json", str(figures)),
        ]
    )
    assert "walk + CRC" in capsys.readouterr().out
    document = json.loads(figures.read_text())
    assert "Python" in document["machine"]
    *rows, peak = document["rows"]
    assert len(rows) == len(names)
    for row in rows:
        assert float(row["one core"]) > 0, row
        assert float(row["MiB"]) > 1
        assert bool(row["goal"]) == (row["reached"] in ("yes", "NO", "NO (NO)", "yes (NO)"))
    assert [bool(row["two threads"]) for row in rows] == [name == "walk + CRC" for name in names]
    assert float(peak["one core"]) == max(float(row["MiB"]) for row in rows[2:])


def test_results_judge_goals_and_show_failures() -> None:
    works = {work.name: work for work in WORKS}
    rows = [
        Row(works[goals.DAMAGED], "1k", (1.0,), 1.0, 90),
        Row(works["recover of it, a plan"], "1k", (1.9,), 1.9, 91),
        Row(works["recover of it, a plan"], "100", (1.9,), 1.9, 91),
        Row(works["walk + CRC"], "1k", (9.4, 16.1), 0.1, 50),
        Row(works["query id"], "1k", (0.19,), 0.19, 201),
        Row(works[goals.COPY], "1k", (0.5,), 1.0, 4000),
        Row(works["tier dispatch with index, forced"], "1k", (0.44,), 1.0, 90),
        Row(works["tier dispatch with index, forced"], "100", (0.61,), 1.0, 90),
        Row(works["verify, in process"], "1k", error="exit 1: a finding"),
    ]
    lines = [dict(zip(run.COLUMNS, line, strict=True)) for line in run.table(rows)[1:]]
    assert [line["reached"] for line in lines] == [
        "", "yes", "", "NO (yes)", "yes", "", "NO", "yes", "NO: exit 1: a finding",
        "NO: query id (1k)"]
    assert lines[3]["goal"] == "10 (16)"
    assert lines[3]["x engine"] == "2.00"
    assert lines[-1]["one core"] == "201"
    rows[1].figures, rows[6].figures = (2.1,), (0.46,)
    assert [line[6] for line in run.table(rows)[1:]][1:8:5] == ["NO", "yes"]


def test_the_results_file_keeps_its_other_sections():
    text = "# A\n\n## Writing\n\n### x\nold\n\n## Rebuilding\n\nkept\n"
    done = with_section(text, "\n## Writing\n", ["## Writing", "", "new", ""])
    assert done == "# A\n\n## Writing\n\nnew\n\n## Rebuilding\n\nkept\n"
    assert with_section(done, "\n## Other\n", ["## Other", "", "more", ""]) == (
        done + "\n## Other\n\nmore\n")


def test_yields_count_what_has_its_bytes_again(tmp_path: Path) -> None:
    assert stage_yields.of_damage("bit of a body", 1, tmp_path) == (1, 1)
    assert stage_yields.of_field("magic", 1, tmp_path, sealed=False) == (1, 1)
