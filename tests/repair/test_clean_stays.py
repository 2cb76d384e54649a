"""What `verify` calls clean, `recover` leaves alone: they never disagree on a sound store."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.writer import EPOCH
from tests.conftest import GoldenFolder
from tests.repair.test_mend_time import SIZES, filled, with_a_clock_set_back
from tests.support.cli import run
from tests.support.golden import GoldenStore, golden_stores
from tests.support.share import sample

JSON = ("-o", "json")
BORDER_TWICE = frozenset(
    f"{version}/{kind}/after" for version in ("4.9.3", "5.3.3")
    for kind in ("clean-nocq", "crash-cqshort", "crash-live", "crash-noprealloc"))
"""A broker's start has indexed the last indexed message once more in these."""
FURTHER = ("%LMQ%a,%LMQ%b", "%LMQ%a", "P,Q", "%LMQ%b,P")
"""Queues that messages are dispatched to besides their own."""


def clean(store: Path, *options: str) -> bool:
    """Whether `verify` finds nothing; then `recover` has to plan nothing, too."""
    if run("verify", store, *options, *JSON).expect(0, 1).json()["findings"]:
        return False
    assert actions(store, *options) == []
    return True


def actions(store: Path, *options: str) -> list[dict[str, Any]]:
    planned: list[dict[str, Any]] = run("recover", store, *options, *JSON).recovered()["actions"]
    return planned


def test_a_sample_does_not_know_the_newest_message(tmp_path: Path) -> None:
    store, _ = with_a_clock_set_back(tmp_path)
    for seed in range(8):
        run("verify", store, *SIZES, "--sample", "30%", "--seed", str(seed)).expect(0)


def put(store: Path, body: str, *options: str) -> None:
    run("write", store, "--topic", "orders", "--queue", "0", "--body", body, *SIZES,
        *options).expect(0)


def index_names(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "index").iterdir())


def test_index_files_out_of_order_by_name_and_messages_since(tmp_path: Path) -> None:
    """A new file follows on the last one by name, which is full and not the newest, as a broker's
    would: there are two files that are not full.
    """
    store, _ = with_a_clock_set_back(tmp_path)
    for number in range(3):
        put(store, f"body {number}", "--key", f"w{number}")
        assert clean(store, *SIZES)
    assert len(index_names(store)) == 3


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_messages_without_keys(tmp_path: Path, version: str) -> None:
    """A broker makes an index file for the first message that it dispatches, with keys or without,
    and one that does not index makes none: an empty one says nothing, there or not. Its header
    counts 0 as it is made, and 1 after a 5.x shutdown.
    """
    store = filled(keyed=False, count=5).write(tmp_path / "s")
    assert not (store / "index").exists()
    assert clean(store, *SIZES)
    old = ("--broker-version", version)
    for number in range(3):
        source = tmp_path / "lines"
        source.write_bytes(plain(number))
        run("append", store, source, "--as-recorded", *SIZES, *old).expect(0)
        assert clean(store, *SIZES)
        for other in (*SIZES, *old), SIZES:
            assert actions(store, *other) == []
        assert len(index_names(store)) == 1
    for count in (0, 1):
        path = store / "index" / index_names(store)[0]
        path.write_bytes(bytes(36) + count.to_bytes(4, "big") + path.read_bytes()[40:])
        for other in (*SIZES, *old), SIZES:
            assert actions(store, *other) == []


def plain(number: int) -> bytes:
    """A record without any property."""
    return json.dumps({
        "topic": "orders", "queue_id": 0, "body": f"body {number}", "properties_raw": "",
        "store_timestamp": EPOCH + 100_000 + number, "born_timestamp": EPOCH,
        "store_host": "127.0.0.1:10911", "born_host": "127.0.0.1:0"}).encode() + b"\n"


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_no_message_at_all(tmp_path: Path, version: str) -> None:
    store = tmp_path / "s"
    run("init", store, "--broker-version", version).expect(0)
    assert clean(store)


@pytest.mark.parametrize("ahead", [28, 20])
def test_a_clock_set_back_before_the_last_message(tmp_path: Path, ahead: int) -> None:
    """The time in the checkpoint is that of an earlier message: rmqctl's only moves forward."""
    hour = 3_600_000
    times = {number: EPOCH + 9 * hour + number for number in range(ahead)} | {29: EPOCH}
    writer = filled(keyed=False, times={**times, ahead: EPOCH + 10 * hour})
    store = writer.write(tmp_path / "s")
    page = bytearray((store / "checkpoint").read_bytes())
    page[:16] = 2 * (EPOCH + 10 * hour).to_bytes(8, "big")
    (store / "checkpoint").write_bytes(page)
    assert clean(store, *SIZES)


@pytest.mark.parametrize("store", sample(
    golden_stores(), 12, "clean stays", always=lambda store: store.id in BORDER_TWICE),
    ids=lambda store: store.id)
def test_golden_stores(golden: GoldenFolder, store: GoldenStore) -> None:
    flag = clean(golden(store.id), *store.options)
    assert flag or not (store.is_clean or store.id in BORDER_TWICE)


# -- further queues -------------------------------------------------------------------------------


def switched(root: Path, version: str, *, lmq: bool, multi: bool, first: int = 0) -> Path:
    """A store with messages for further queues, of a broker with these switches."""
    run("init", root, "--broker-version", version, "--consumequeue-file-size", "400", *SIZES,
        "--commitlog-file-size", "64KiB", "--lmq" if lmq else "--no-lmq",
        "--multi-dispatch" if multi else "--no-multi-dispatch").expect(0)
    for part in range(2):
        dispatched(root, range(20 * part, 20 * part + 20), first)
    return root


def dispatched(root: Path, numbers: range, first: int = 0, *options: str) -> None:
    """Puts messages into the queues from ``first`` on."""
    source = root.parent / "lines"
    source.write_bytes(b"".join(json.dumps({
        "topic": "T0", "queue_id": first + number // 4 % 3, "body": f"body {number}", "properties":
        {"INNER_MULTI_DISPATCH": FURTHER[number % 4]}}).encode() + b"\n" for number in numbers))
    run("append", root, source, "--auto-create-topic", *options).expect(0)


def queues(root: Path) -> dict[str, bytes]:
    folder = root / "consumequeue"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")
            if path.is_file()}


def used(files: dict[str, bytes]) -> dict[str, bytes]:
    """Those of the files that hold anything."""
    return {name: data for name, data in files.items() if any(data)}


OWN_IDS = {f"{name}/{queue}" for name in ("P", "Q", "%LMQ%a", "%LMQ%b") for queue in range(3)}
SWITCHES = [(version, lmq, multi) for version in ("4.9.3", "5.3.3") for lmq in (False, True)
            for multi in (False, True)]


@pytest.mark.parametrize(("version", "lmq", "multi"), SWITCHES)
def test_further_queues(tmp_path: Path, version: str, lmq: bool, multi: bool) -> None:
    """4.9.3 needs enableMultiDispatch alone, and treats a light queue as any other without
    enableLmq. 5.3.3 gives queue offsets with enableLmq alone, in light queues only, and writes the
    rows with both.
    """
    root = switched(tmp_path / "s", version, lmq=lmq, multi=multi)
    light = {"%LMQ%a/0", "%LMQ%b/0"}
    wanted: set[str] = set()
    if version == "4.9.3" and multi:
        wanted = {name for name in OWN_IDS if name[0] != "%"} | light if lmq else OWN_IDS
    elif multi and lmq:
        wanted = light
    written = queues(root)
    assert {name.rpartition("/")[0] for name in written} - {f"T0/{i}" for i in range(3)} == wanted
    assert clean(root)

    shutil.rmtree(root / "consumequeue")
    run("recover", root, "--apply", *JSON).recovered()
    assert queues(root) == written

    # Nothing tells of the switches but what lies there.
    shutil.rmtree(root / ".rmqctl")
    assert clean(root)


def test_light_queues_of_either_kind(tmp_path: Path) -> None:
    """A broker that got enableLmq later."""
    root = switched(tmp_path / "s", "4.9.3", lmq=False, multi=True, first=1)
    dispatched(root, range(40, 80), 1, "--lmq")
    assert {"%LMQ%a/0", "%LMQ%a/1"} <= {name.rpartition("/")[0] for name in queues(root)}
    assert clean(root)
    shutil.rmtree(root / ".rmqctl")
    assert clean(root)


def untold(root: Path, *options: str) -> list[tuple[str, int]]:
    """The light queues of which `verify` cannot tell whether rows are missing, and how many."""
    document = run("verify", root, *options, *JSON).expect(0).json()
    assert {finding["category"]
            for finding in document["findings"]} <= {"not-judged", "unclean-shutdown"}
    return sorted((finding["topic"], finding["count"]) for finding in document["findings"]
                  if finding["topic"])


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("periods", sample([
    (True, False), (False, True), (True, False, True), (False, True, False),
    (True, True, False)], 2, "periods of light queues"))
def test_multi_dispatch_was_switched_while_light_queues_stayed_on(
        tmp_path: Path, periods: tuple[bool, ...], unclean: bool) -> None:
    """5.x gives the queue offsets all the time. Without a word on the switch nothing tells the
    store from one whose rows are lost: that is said, and nothing is planned.
    """
    root = tmp_path / "s"
    switched(root, "5.3.3", lmq=True, multi=periods[0])
    for number, multi in enumerate(periods[1:], 2):
        dispatched(root, range(20 * number, 20 * number + 20), 0,
                   "--multi-dispatch" if multi else "--no-multi-dispatch")
    shutil.rmtree(root / ".rmqctl")
    if unclean:
        (root / "abort").touch()
    before = queues(root)
    assert untold(root)
    assert not [action for action in actions(root) if action["target"].startswith("consumequeue")]
    run("recover", root, "--apply", *JSON).recovered()
    assert queues(root) == before
    for value in ("true", "false"):
        conf = tmp_path / f"{value}.conf"
        conf.write_text(f"enableLmq=true\nenableMultiDispatch={value}\n")
    off = ("--broker-conf", str(tmp_path / "false.conf"))
    assert untold(root, *off) == []
    assert not [action for action in actions(root, *off)
                if action["target"].startswith("consumequeue")]
    # A broker that has it on now may have had it off when the messages came.
    on = ("--broker-conf", str(tmp_path / "true.conf"))
    assert untold(root, *on)
    assert not [action for action in actions(root, *on)
                if action["target"].startswith("consumequeue")]
    assert bool(actions(root, "--multi-dispatch"))
    assert not [action for action in actions(root, "--no-multi-dispatch")
                if action["target"].startswith("consumequeue")]


@pytest.mark.parametrize("name", ["4.9.3/lmq/store", "5.3.3/lmq/store"])
def test_light_queues_are_gone_with_all_others(name: str, golden_copy: GoldenFolder) -> None:
    """Where no queue has a row, the switch is no reason that light ones have none."""
    root = golden_copy(name)
    before = queues(root)
    assert any(key.startswith("%LMQ%") for key in map(str, before))
    shutil.rmtree(root / "consumequeue")
    answer = run("verify", root, *JSON).expect(1).json()
    assert "not-judged" not in {finding["category"] for finding in answer["findings"]}
    assert answer["impact"]["messages"] == answer["impact"]["of"]
    size = len(next(iter(before.values())))
    run("recover", root, "--apply", *JSON, "--consumequeue-file-size", str(size)).recovered()
    assert used(queues(root)) == used(before)


def test_what_is_remembered_of_the_switch_is_no_proof(tmp_path: Path) -> None:
    """The store was made for a broker that had it on; it was switched off later."""
    root = switched(tmp_path / "s", "5.3.3", lmq=True, multi=True)
    dispatched(root, range(40, 60), 0, "--no-multi-dispatch")
    assert '"multi_dispatch": true' in (root / ".rmqctl" / "store.json").read_text()
    assert untold(root) == [("%LMQ%a", 10), ("%LMQ%b", 5)]
    assert not [action for action in actions(root) if action["target"].startswith("consumequeue")]
    run("doctor", root).expect(0)


def test_a_light_queue_that_never_had_a_row(tmp_path: Path) -> None:
    root = switched(tmp_path / "s", "5.3.3", lmq=True, multi=True)
    source = tmp_path / "lines"
    source.write_text(json.dumps({"topic": "T0", "queue_id": 0, "body": "b", "properties": {
        "INNER_MULTI_DISPATCH": "%LMQ%new"}}) + "\n")
    run("append", root, source, "--no-multi-dispatch").expect(0)
    shutil.rmtree(root / ".rmqctl")
    assert untold(root) == [("%LMQ%new", 1)]
    assert actions(root) == []


@pytest.mark.parametrize("rows", [1, 5])
def test_rows_of_one_light_queue_are_lost(tmp_path: Path, rows: int) -> None:
    """Another one has rows for messages between them: it was on then."""
    root = switched(tmp_path / "s", "5.3.3", lmq=True, multi=True)
    shutil.rmtree(root / ".rmqctl")
    path = root / "consumequeue" / "%LMQ%b" / "0" / ("0" * 20)
    raw = path.read_bytes()
    end = len(raw.rstrip(b"\0")) // 20 * 20 + 20 * bool(len(raw.rstrip(b"\0")) % 20)
    path.write_bytes(raw[:end - 20 * rows] + bytes(len(raw) - end + 20 * rows))
    findings = run("verify", root, *JSON).expect(1).json()["findings"]
    assert [(finding["category"], finding["topic"], finding["count"]) for finding in findings] == [
        ("cq-behind", "%LMQ%b", rows)]
    assert len(actions(root)) == 1


def test_rows_of_light_queues_that_are_lost_with_others(tmp_path: Path) -> None:
    """A consumequeue that ends early everywhere is behind, whatever was switched."""
    root = switched(tmp_path / "s", "5.3.3", lmq=True, multi=True)
    shutil.rmtree(root / ".rmqctl")
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file():
            raw = path.read_bytes()
            end = len(raw.rstrip(b"\0")) // 20 * 20
            path.write_bytes(raw[:end - 60] + bytes(len(raw) - end + 60))
    findings = run("verify", root, *JSON).expect(1).json()["findings"]
    assert {(finding["category"], finding["severity"])
            for finding in findings} == {("cq-behind", "error")}
    assert len(findings) == 5
    assert len(actions(root)) == 5


@pytest.mark.parametrize("is_known", [True, False])
def test_a_lost_message_with_further_rows(tmp_path: Path, is_known: bool) -> None:
    """Its filler has the rows where the broker looks for them."""
    root = switched(tmp_path / "s", "4.9.3", lmq=False, multi=True)
    before = queues(root)
    if not is_known:
        shutil.rmtree(root / ".rmqctl")
    row = before["%LMQ%b/1/" + "0" * 20][20:40]
    place = int.from_bytes(row[:8], "big")
    log = next((root / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(place)
        file.write(bytes(60))
    run("recover", root, "--apply", *JSON).recovered()
    after = queues(root)
    assert {name: _places(raw) for name, raw in after.items()} == {
        name: _places(raw) for name, raw in before.items()}
    assert actions(root) == []


def _places(raw: bytes) -> list[bytes]:
    return [raw[start:start + 12] for start in range(0, len(raw), 20)]


# -- at random ------------------------------------------------------------------------------------


def lines(chosen: random.Random, count: int, *, keyed: float, version: str) -> bytes:
    out = []
    for number in range(count):
        properties = {"TAGS": chosen.choice("AB")}
        if chosen.random() < keyed:
            properties["KEYS"] = " ".join(f"k{chosen.randrange(9)}"
                                          for _ in range(chosen.choice((1, 1, 2))))
        if chosen.random() < .1:
            properties["DELAY"] = str(chosen.randint(1, 3))
        if chosen.random() < .1:
            properties["INNER_MULTI_DISPATCH"] = chosen.choice(FURTHER)
        topic = chosen.choice(("T0", "T1", "x" * (200 if version == "5.3.3" else 100)))
        message: dict[str, Any] = {"topic": topic, "queue_id": chosen.randrange(2),
                                   "body": "b" * chosen.randrange(300)}
        if chosen.random() < .15:
            message["messages"] = [{"body": f"{number}", "properties": {
                "KEYS": f"k{number}"} if keyed else {}} for _ in range(chosen.randint(1, 4))]
            del message["body"]
        else:
            message["properties"] = properties
        out.append(json.dumps(message).encode() + b"\n")
    return b"".join(out)


def recorded(chosen: random.Random, count: int, *, keyed: float) -> bytes:
    """Records of any time: the clock is set back and forth between them."""
    out, when = [], int(time.time()) * 1000
    for number in range(count):
        when += chosen.choice((0, 1, 1700, 1700, 60_000))
        if chosen.random() < .1:
            when += chosen.choice((-1, 1)) * chosen.randrange(10 * 3_600_000)
        raw = f"KEYS\1k{chosen.randrange(9)}\2" if chosen.random() < keyed else ""
        out.append(json.dumps({
            "topic": "T2", "queue_id": number % 2, "body": "r" * chosen.randrange(200),
            "store_timestamp": when, "born_timestamp": when, "store_host": "127.0.0.1:10911",
            "born_host": "127.0.0.1:0", "properties_raw": raw}).encode() + b"\n")
    return b"".join(out)


def any_store(root: Path, chosen: random.Random) -> list[str]:
    """Makes a store in a few runs; what was done, for whoever reads a failure."""
    version = chosen.choice(("4.9.3", "5.3.3"))
    switches = []
    for name in ("consumequeue-ext", "lmq", "multi-dispatch"):
        on = "" if chosen.random() < .5 else "no-"
        switches.append(f"--{on}{name}")
    if version == "5.3.3" and chosen.random() < .5:
        switches.append("--append-crc")
    keyed = chosen.choice((0, .5, 1))
    done = [version, *switches, f"keyed {keyed}"]
    run("init", root, "--broker-version", version, "--commitlog-file-size",
        chosen.choice(("4KiB", "16KiB")), "--consumequeue-file-size", "400",
        "--index-slots", "16", "--index-max", chosen.choice(("20", "64")), *switches).expect(0)
    # Records as they were recorded bring no CRC of their properties: `verify` names them.
    ways = ("append", "write") if "--append-crc" in switches else ("append", "recorded", "write")
    for _ in range(chosen.randint(1, 4)):
        source, how = root.parent / "lines", chosen.choice(ways)
        done.append(how)
        if how == "write":
            run("write", root, "--topic", "T0", "--body", "w", "--auto-create-topic",
                *(("--key", "w") if keyed else ())).expect(0)
        elif how == "append":
            source.write_bytes(lines(chosen, chosen.randrange(30), keyed=keyed, version=version))
            run("append", root, source, "--auto-create-topic", "--on-error", "skip").expect(0, 1)
        else:
            source.write_bytes(recorded(chosen, chosen.randrange(30), keyed=keyed))
            run("append", root, source, "--as-recorded").expect(0)
        if chosen.random() < .3:
            done.append("unclean")
            (root / "abort").touch()
            run("write", root, "--topic", "T0", "--body", "w", "--auto-create-topic").expect(0)
        if chosen.random() < .3:
            done.append(set_clock_back(root))
    return done


def set_clock_back(root: Path) -> str:
    """The newest index file gets the name of an earlier time."""
    names = index_names(root) if (root / "index").exists() else []
    if len(names) < 2:
        return "clock stays"
    (root / "index" / names[-1]).rename(root / "index" / f"{int(names[0]) - 1000:017d}")
    return "clock set back"


def check_any(root: Path, seed: int) -> None:
    done = any_store(root, random.Random(seed))
    assert clean(root), (seed, done, run("verify", root).out)


@pytest.mark.parametrize("number", range(6))
def test_any_store(tmp_path: Path, seed: int, number: int) -> None:
    check_any(tmp_path / "s", seed + number)


@pytest.mark.exhaustive
def test_many_stores(tmp_path: Path, seed: int) -> None:
    for number in range(300):
        check_any(tmp_path / str(number), seed + 1000 + number)
