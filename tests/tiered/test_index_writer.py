"""Feeding open index files: the bytes of the engine, over rolls, restarts, kills and full disks."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.ext.tiered.index import open_file
from rmqctl.ext.tiered.index.keys import BatchKeys
from rmqctl.ext.tiered.index.writer import TierIndexWriter
from rmqctl.formats.tiered import index as fmt
from tests.engine_write.faults import Killed, broken, failing, out_of_space
from tests.support.share import examples
from tests.tiered.index_model import Clock, Feed, arrays
from tests.tiered.test_index_keys import batch_of

TOPIC, QUEUE = 7, 3
Messages = list[tuple[list[int], int, int, int]]


def some(draw: random.Random, count: int, near: int = 1_795_228_436_874) -> Messages:
    """(hashes, offset, size, time) of messages; some keys recur."""
    return [([draw.choice([draw.randrange(1 << 31), draw.randrange(9)])
              for _ in range(draw.choice([0, 1, 1, 2, 2, 3]))], draw.randrange(1 << 40),
             draw.randrange(1, 1 << 22), near + draw.randrange(-9_999, 9_999))
            for _ in range(count)]


def feed_all(feed: TierIndexWriter, messages: Messages) -> int:
    rows, hashes, offset, size, when = arrays(messages)
    return feed.put_keys(BatchKeys(rows, hashes), offset, size, when, TOPIC, QUEUE)


def model_all(model: Feed, messages: Messages) -> None:
    for hashes, offset, size, when in messages:
        model.put(hashes, TOPIC, QUEUE, offset, size, when)


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir(), key=lambda path: int(path.name))]


@pytest.fixture(params=[(1, 50), (5, 10), (64, 180), (1000, 4000)], ids=lambda pair: f"{pair[0]}")
def shape(request) -> fmt.TieredIndexShape:
    return fmt.TieredIndexShape(*request.param)


def test_random_streams_give_the_engines_bytes(tmp_path, shape, seed) -> None:
    draw = random.Random(seed)
    for run in range(5):
        folder = tmp_path / str(run) / "tiered_index_file"
        model = Feed(*shape[:2], Clock())
        clock = Clock()
        feed = TierIndexWriter(str(folder), shape, clock)
        for _ in range(draw.randrange(1, 12)):
            messages = some(draw, draw.randrange(60))
            model_all(model, messages)
            assert feed_all(feed, messages) == sum(
                len(message[0]) for message in messages if len(message[0]) < shape.max_items)
            assert feed.position() == (model.files[-1].timestamp, model.files[-1].items)
            if draw.random() < 0.4:
                feed.commit()
            if draw.random() < 0.3:
                feed.commit()
                feed.close()
                before = contents(folder)
                feed = TierIndexWriter(str(folder), shape, clock)
                assert contents(folder) == before
        feed.commit()
        assert contents(folder) == [bytes(file.data) for file in model.files]
        assert [*feed.full_files(), feed.open_file] == [
            str(folder / str(file.timestamp)) for file in model.files]
        feed.close()


def test_the_example_of_the_specification(tmp_path) -> None:
    begin = 1_795_228_436_874
    with TierIndexWriter(str(tmp_path / "x"), fmt.TieredIndexShape(5, 10), lambda: begin) as feed:
        feed_all(feed, [([0x717125CA - n, 0x26458D37], 1000 + n, 500 + n, begin + 1500 * n - 1500)
                        for n in range(4)])
        feed.commit()
        raw = Path(feed.open_file).read_bytes()
    assert len(raw) == 388
    assert raw[:68].hex() == (
        "bcc50289000001a1fbf4098a000001a1fbf415420000000400000008"
        "00000001000000000000000000000000000000070000000000000008000000000000000300000000")
    expected = [(0x717125CA, 1000, 500, -1, 0), (0x26458D37, 1000, 500, -1, 0),
                (0x717125C9, 1001, 501, 0, 0), (0x26458D37, 1001, 501, 0, 2),
                (0x717125C8, 1002, 502, 1, 4), (0x26458D37, 1002, 502, 1, 5),
                (0x717125C7, 1003, 503, 3, 0), (0x26458D37, 1003, 503, 3, 6)]
    assert [(index_item.key_hash, index_item.commit_log_offset, index_item.size,
             index_item.time_diff, index_item.previous)
            for index_item in fmt.ITEM.decode_all(raw[100:100 + 256])] == expected


def test_messages_of_a_batch(tmp_path) -> None:
    with TierIndexWriter(str(tmp_path), fmt.TieredIndexShape(16, 100), Clock()) as feed:
        batch = batch_of([{"UNIQ_KEY": "u"}, {}, {"UNIQ_KEY": "v", "KEYS": "a b"}])
        assert feed.put(batch, "TopicA", 5, 2) == 4
        feed.commit()
        raw = Path(feed.open_file).read_bytes()
        timestamp, items = feed.position()
    texts = [fmt.ITEM.decode(raw, feed.shape.item_position(n)) for n in range(1, items + 1)]
    assert [text.key_hash for text in texts[:1]] == [fmt.key_hash("TopicA", "u")]
    assert {text.key_hash for text in texts[1:]} == {fmt.key_hash("TopicA", key)
                                                     for key in ("v", "a", "b")}
    assert [(text.topic_id, text.queue_id, text.commit_log_offset) for text in texts] == [
        (5, 2, int(batch.offset[at])) for at in (0, 2, 2, 2)]
    assert {text.time_diff for text in texts} == {
        fmt_seconds(6 - timestamp)}  # the store time of `batch_of` is 6


def fmt_seconds(value: int) -> int:
    value = -(-value // 1000) if value < 0 else value // 1000
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def test_what_cannot_be_put_is_counted(tmp_path) -> None:
    lost = -(1 << 31)
    with TierIndexWriter(str(tmp_path / "a"), fmt.TieredIndexShape(5, 4), Clock()) as feed:
        assert feed_all(feed, [([lost, 1], 0, 9, 9), ([1, 2, 3, 4], 0, 9, 9), ([7], 0, 9, 9)]) == 2
        assert feed.dropped == 5
        assert feed.full_files() == []
    with TierIndexWriter(str(tmp_path / "b"), fmt.TieredIndexShape(4, 4), Clock()) as feed:
        assert feed_all(feed, [([lost, 1], 0, 9, 9)]) == 2
        assert feed.dropped == 0


def test_new_files_are_newer_than_all(tmp_path) -> None:
    feed = TierIndexWriter(str(tmp_path), fmt.TieredIndexShape(3, 3), lambda: 1000, after=5000)
    feed_all(feed, [([n], n, 9, 9) for n in range(7)])
    assert [int(Path(full_file).name)
            for full_file in feed.full_files()] == [5001, 5002, 5003][:len(
                feed.full_files())]
    assert feed.position()[0] == 5004
    feed.close()


@pytest.mark.parametrize("make", ["size", "magic", "count"])
def test_a_file_of_another_kind_is_refused(tmp_path, make) -> None:
    shape = fmt.TieredIndexShape(5, 10)
    data = bytearray(shape.open_size + (8 if make == "size" else 0))
    if make != "size":
        data[:28] = fmt.HEADER.build(fmt.HeaderRecord(
            7 if make == "magic" else fmt.BEGIN_MAGIC, 1000, 0, 0, 10 if make == "count" else 1))
    (tmp_path / "1000").write_bytes(data)
    with pytest.raises(RefusedError, match="1000"):
        TierIndexWriter(str(tmp_path), shape, Clock())
    assert (tmp_path / "1000").read_bytes() == data


def test_files_of_an_old_broker_are_left_alone(tmp_path) -> None:
    for name in ("0000", "1111"):
        (tmp_path / name).write_bytes(b"old")
    with TierIndexWriter(str(tmp_path), fmt.TieredIndexShape(5, 10), Clock()) as feed:
        assert len(feed.open_file) > len(str(tmp_path / "0000"))
        assert feed.full_files() == []


# -- going back -----------------------------------------------------------------------------------

def test_going_back_and_putting_again_gives_the_same(tmp_path, seed) -> None:
    draw = random.Random(seed)
    for run in range(12):
        folder = tmp_path / str(run) / "tiered_index_file"
        slots, most = draw.choice([(3, 20), (64, 180), (100, 2000)])
        messages = some(draw, 200)
        cut = draw.randrange(201)
        model = Feed(slots, most, lambda: 10)
        model_all(model, messages)
        feed = TierIndexWriter(str(folder), fmt.TieredIndexShape(slots, most), lambda: 10)
        feed_all(feed, messages[:cut])
        feed.commit()
        position = feed.position()
        feed_all(feed, messages[cut:])
        if draw.random() < 0.7:
            feed.commit()
        if draw.random() < 0.7:
            feed.close()
            feed = TierIndexWriter(str(folder), fmt.TieredIndexShape(slots, most), lambda: 10)
        here = feed.position()
        assert not feed.rewind(here[0], here[1] + 1)
        assert not feed.rewind(9, 0)
        assert feed.rewind(*position)
        assert feed.position() == position
        feed_all(feed, messages[cut:])
        feed.commit()
        assert contents(folder) == [bytes(file.data) for file in model.files]
        feed.close()


# -- kills, errors, power failures ----------------------------------------------------------------

def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_file, "_PAGE", 4)
    monkeypatch.setattr(open_file, "_BRIDGED", 1)


class Story:
    """Puts and commits whose calls are counted; what the files should be at the end."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.shape = fmt.TieredIndexShape(16, 50)
        self.blocks = [some(draw, 15) for _ in range(4)]
        self.folder = folder
        model = Feed(16, 50, lambda: 10)
        for block in self.blocks:
            model_all(model, block)
        self.expected = [bytes(file.data) for file in model.files]
        self.progress: tuple[int, tuple[int, int]] | None = None

    def open(self) -> TierIndexWriter:
        return TierIndexWriter(str(self.folder), self.shape, lambda: 10)

    def run(self, feed: TierIndexWriter, start: int = 0) -> None:
        for number in range(start, len(self.blocks)):
            feed_all(feed, self.blocks[number])
            feed.commit()
            self.progress = number + 1, feed.position()

    def resume(self) -> None:
        with self.open() as feed:
            done, position = self.progress or (0, (10, 0))
            assert feed.rewind(*position)
            self.run(feed, done)


def all_ways_lead(folder: Path, shape: fmt.TieredIndexShape) -> None:
    """Every counted item of every file is in its slot's chain, as a broker follows it."""
    for path in folder.iterdir():
        raw = path.read_bytes()
        if len(raw) != shape.open_size:
            continue
        header = fmt.HEADER.decode(raw)
        seen = set()
        for slot in range(shape.slots):
            number = fmt.SLOT.decode(raw, shape.slot_position(slot)).item
            while number > 0:
                assert number <= header.item_count
                item = fmt.ITEM.decode(raw, shape.item_position(number))
                assert item.key_hash % shape.slots == slot
                assert number not in seen
                seen.add(number)
                number = item.previous
        assert len(seen) == header.item_count


def test_a_kill_at_every_call(tmp_path, monkeypatch, seed) -> None:
    small_steps(monkeypatch)
    kills = 0
    for at in range(1000):
        story = Story(tmp_path / str(at) / "tiered_index_file", random.Random(seed))
        with failing(at, Killed) as counter:
            try:
                with story.open() as feed:
                    story.run(feed)
            except Killed:
                kills += 1
        story.resume()
        assert contents(story.folder) == story.expected, at
        if not counter.failed:
            break
    assert kills > 30


@pytest.mark.parametrize("error", [out_of_space, broken])
def test_an_error_at_every_call(tmp_path, monkeypatch, seed, error) -> None:
    """It is told, and a new run ends as if nothing had been."""
    small_steps(monkeypatch)
    failures = 0
    for at in range(1000):
        story = Story(tmp_path / str(at) / "tiered_index_file", random.Random(seed))
        with failing(at, error) as counter:
            try:
                with story.open() as feed:
                    story.run(feed)
            except StoreIOError as caught:
                failures += 1
                assert str(tmp_path) in str(caught)
        story.resume()
        assert contents(story.folder) == story.expected, at
        if not counter.failed:
            break
    assert failures > 30


def test_a_commit_is_tried_again(tmp_path, monkeypatch, seed) -> None:
    small_steps(monkeypatch)
    for at in range(40):
        story = Story(tmp_path / str(at) / "x", random.Random(seed))
        with story.open() as feed:
            feed_all(feed, story.blocks[0])
            with failing(at, out_of_space) as counter:
                try:
                    feed.commit()
                except StoreIOError:
                    assert counter.failed
            feed.commit()
            position = feed.position()
            raw = Path(feed.open_file).read_bytes()
        all_ways_lead(story.folder, story.shape)
        assert fmt.HEADER.decode(raw).item_count == position[1]


class Disk:
    """What was written and not yet forced may or may not be there after a power failure."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.forced = path.read_bytes()
        self.loose: list[tuple[int, bytes]] = []

    def pwrite(self, fd: int, data, at: int) -> int:
        done = REAL_PWRITE(fd, data, at)
        self.loose.append((at, bytes(data)[:done]))
        return done

    def force(self, fd: int) -> None:
        self.loose, self.forced = [], self.path.read_bytes()

    def after(self, draw: random.Random) -> bytes:
        """One of the states a failure may leave: of each write nothing, a part, or all."""
        content = bytearray(self.forced)
        for at, data in draw.sample(self.loose, len(self.loose)):
            start = draw.choice([0, 0, draw.randrange(len(data) + 1)])
            end = draw.choice([len(data), start, draw.randrange(start, len(data) + 1)])
            content[at + start:at + end] = data[start:end]
        return bytes(content)


REAL_PWRITE = os.pwrite


def test_power_failures(tmp_path, monkeypatch, seed) -> None:
    """Whatever of a commit reached the disk: opening gives a whole file, of the state before or
    behind, and what was committed earlier is never lost to a broker.
    """
    small_steps(monkeypatch)
    draw = random.Random(seed)
    shape = fmt.TieredIndexShape(64, 400)
    states = set()
    for run in range(20):
        folder = tmp_path / str(run)
        feed = TierIndexWriter(str(folder), shape, lambda: 10)
        feed_all(feed, some(draw, 60))
        feed.commit()
        old = feed.position()[1]
        feed_all(feed, some(draw, 60))
        disk = Disk(folder / "10")
        images = []

        def note(fd, disk=disk, images=images) -> None:
            images += [disk.after(draw) for _ in range(3)]
            disk.force(fd)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "pwrite", disk.pwrite)
            patch.setattr(os, "fdatasync", note)
            feed.commit()
        new = feed.position()[1]
        feed.close()
        for number, image in enumerate(images):
            place = tmp_path / f"{run}-{number}"
            place.mkdir()
            (place / "10").write_bytes(image)
            _old_ways_lead(image, shape, old)
            with TierIndexWriter(str(place), shape, lambda: 10) as again:
                assert again.position()[1] in (old, new)
                repaired = (place / "10").read_bytes() != image
                states.add((again.position()[1] == new, repaired))
            all_ways_lead(place, shape)
    assert len(states) >= 3


def _old_ways_lead(raw: bytes, shape: fmt.TieredIndexShape, old: int) -> None:
    """As a broker reads it: a slot's chain begins at an item that the header counts."""
    header = fmt.HEADER.decode(raw)
    seen = set()
    for slot in range(shape.slots):
        number = fmt.SLOT.decode(raw, shape.slot_position(slot)).item
        while 0 < number <= header.item_count:
            seen.add(number)
            number = fmt.ITEM.decode(raw, shape.item_position(number)).previous
    assert set(range(1, old + 1)) <= seen


def test_a_broker_that_went_on_after_lost_slots_is_repaired(tmp_path) -> None:
    shape = fmt.TieredIndexShape(8, 100)
    with TierIndexWriter(str(tmp_path), shape, lambda: 10) as feed:
        feed_all(feed, [([n * 3], n, 9, 9) for n in range(40)])
        feed.commit()
    path = tmp_path / "10"
    raw = bytearray(path.read_bytes())
    # One more item behind an old value of its slot, as after lost slots.
    item = fmt.ItemRecord(16, 1, 1, 5, 9, 0, 2)
    raw[shape.item_position(41):shape.item_position(42)] = fmt.ITEM.build(item)
    raw[shape.slot_position(0):shape.slot_position(0) + 4] = (41).to_bytes(4, "big")
    raw[24:28] = (41).to_bytes(4, "big")
    path.write_bytes(raw)
    TierIndexWriter(str(tmp_path), shape, lambda: 10).close()
    all_ways_lead(tmp_path, shape)


def test_much_is_committed_by_itself(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(open_file, "MAX_PENDING", 50)
    with TierIndexWriter(str(tmp_path), fmt.TieredIndexShape(16, 1000), lambda: 10) as feed:
        def counted() -> int:
            return fmt.HEADER.decode((tmp_path / "10").read_bytes()).item_count

        feed_all(feed, [([n], n, 9, 9) for n in range(40)])
        assert counted() == 0
        feed_all(feed, [([n], n, 9, 9) for n in range(40)])
        assert counted() == 40
        feed_all(feed, [([n], n, 9, 9) for n in range(120)])
        assert counted() == 180
        feed.commit()
        assert counted() == 200
    all_ways_lead(tmp_path, fmt.TieredIndexShape(16, 1000))


@settings(max_examples=examples(60))
@given(st.integers(1, 40), st.integers(2, 60),
       st.lists(st.lists(st.lists(st.integers(0, (1 << 31) - 1), max_size=4), max_size=20),
                max_size=5))
def test_any_stream(tmp_path_factory, slots, most, blocks) -> None:
    folder = tmp_path_factory.mktemp("feed")
    model = Feed(slots, most, Clock())
    with TierIndexWriter(str(folder), fmt.TieredIndexShape(slots, most), Clock()) as feed:
        for block in blocks:
            messages = [(hashes, at, 100, 5) for at, hashes in enumerate(block)]
            model_all(model, messages)
            feed_all(feed, messages)
        feed.commit()
    assert contents(folder) == [bytes(file.data) for file in model.files]


def test_any_damage_is_repaired_or_refused(tmp_path, seed) -> None:
    draw = random.Random(seed)
    shape = fmt.TieredIndexShape(8, 60)
    with TierIndexWriter(str(tmp_path / "whole"), shape, lambda: 10) as feed:
        feed_all(feed, some(draw, 25))
        feed.commit()
    whole = (tmp_path / "whole" / "10").read_bytes()
    refused = repaired = 0
    for number in range(200):
        place = tmp_path / str(number)
        place.mkdir()
        raw = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            at = draw.choice([draw.randrange(28), 28 + draw.randrange(64),
                              draw.randrange(len(raw))])
            raw[at] = draw.randrange(256)
        (place / "10").write_bytes(raw)
        try:
            with TierIndexWriter(str(place), shape, lambda: 10) as feed:
                repaired += (place / "10").read_bytes() != raw
                feed_all(feed, some(draw, 10))
                feed.commit()
        except RefusedError:
            refused += 1
            assert (place / "10").read_bytes() == raw
            continue
        all_ways_lead(place, shape)
    assert refused > 10
    assert repaired > 10


def test_more_than_a_broker_can_map_is_refused(tmp_path) -> None:
    with pytest.raises(RefusedError, match="2 GiB"):
        TierIndexWriter(str(tmp_path), fmt.TieredIndexShape(1 << 40, 10), Clock())
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_folder(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreIOError):
        TierIndexWriter(str(tmp_path / "file"), fmt.TieredIndexShape(3, 3), Clock())
