"""The last messages, and following a log that is being written, with a clock of our own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rmqctl.store import Store
from rmqctl.store.files import StoreFile
from rmqctl.store.log import tail as tail_module
from rmqctl.store.log.bounds import View
from rmqctl.store.log.follow import Follower
from rmqctl.store.log.growth import PATIENCE, GrowingLog
from rmqctl.store.log.tail import Tail
from rmqctl.store.problems import Problem
from rmqctl.store.query.conditions import Condition
from rmqctl.store.query.select import Selection, Selector
from tests.conftest import GoldenFolder
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores
from tests.support.share import sample
from tests.support.writer import Part, Writer, parts_of

STORES = [pytest.param(golden_store, id=golden_store.id)
          for golden_store in golden_sets.golden_stores()]


def places(store: Store, selection: Selection | None = None) -> list[int]:
    return [record.physical_offset
            for record in Selector(store, selection or Selection(), View(store)).records()]


def last(store: Store, count: int, selection: Selection | None = None,
         problems: list[Problem] | None = None) -> list[int]:
    reported: list[Problem] = [] if problems is None else problems
    numbers = Tail(View(store), selection or Selection(), reported.append).last(count)
    return [record.physical_offset for record in numbers]


# -- the last messages ----------------------------------------------------------------------------


@pytest.mark.parametrize("store", sample(STORES, 30, "tails"))
def test_the_last_of_every_store(store: golden_sets.GoldenStore, golden: GoldenFolder,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows smaller than the messages: many of them, over many files."""
    monkeypatch.setattr(tail_module, "_FIRST_WINDOW", 300)
    with Store.open(golden(store.id), store.dirs) as opened:
        every = places(opened)
        for count in (0, 1, 10, 100, len(every) + 5):
            assert last(opened, count) == every[max(len(every) - count, 0):]


@pytest.fixture
def basic(golden: GoldenFolder) -> Iterator[Store]:
    with Store.open(golden("5.3.3/basic/store")) as opened:
        yield opened


@pytest.mark.parametrize("selection", [
    Selection(topic="TP_ship_evt-x"), Selection(topic="TP_ship_evt-x", queue_id=1),
    Selection(tag="A"), Selection(key="pay-60"),
    Selection(where=(Condition.of("queue_offset", "<", "5"),)), Selection(topic="nix")],
    ids=["topic", "queue", "tag", "key", "where", "nothing"])
@pytest.mark.parametrize("enough", [2000, 1 << 30])
def test_filters(selection: Selection, enough: int, basic: Store,
                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the log alone, and with the consumequeue taking over after 2000 bytes."""
    monkeypatch.setattr(tail_module, "_FIRST_WINDOW", 600)
    monkeypatch.setattr(tail_module, "_MAX_DISPATCH_LAG", enough)
    every = places(basic, selection)
    for count in (1, 10, 1000):
        assert last(basic, count, selection) == every[max(len(every) - count, 0):]


def test_light_queues_by_name(golden: GoldenFolder) -> None:
    with Store.open(golden("5.3.3/lmq/store")) as opened:
        names = sorted({topic for topic, _ in opened.queues.by_key if topic.startswith("%LMQ%")})
        assert names
        for name in names:
            selection = Selection(topic=name)
            assert last(opened, 1000, selection) == places(opened, selection)


def test_the_end_is_behind_the_last_message_or_blank(tiny: tiny_stores.Tiny) -> None:
    with Store.open(tiny.root) as opened:
        tail = Tail(View(opened), Selection(topic="nix"), lambda _: None)
        assert tail.last(3) == []
        assert tail.end == tiny.log_end


def test_damage_is_passed_and_reported(tiny: tiny_stores.Tiny,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "_FIRST_WINDOW", 100)
    lost = tiny.messages[-3]
    file, position = tiny.place(lost.start)
    with (tiny.root / file).open("r+b") as log:
        log.seek(position)
        log.write(b"\xee" * len(lost.raw))
    problems: list[Problem] = []
    with Store.open(tiny.root) as opened:
        numbers = last(opened, len(tiny.messages), problems=problems)
    assert numbers == [message.start for message in tiny.messages if message is not lost]
    assert [(problem.kind, problem.offset, problem.length) for problem in problems] == [
        ("damage", lost.start, len(lost.raw))]


def test_a_store_without_a_log(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with Store.open(tmp_path) as opened:
        assert last(opened, 10) == []


# -- following ------------------------------------------------------------------------------------


@dataclass
class Followed:
    """A log being written and the one who follows it."""

    writer: Writer
    parts: list[Part]
    now: float = 0.0
    problems: list[Problem] = field(default_factory=list)
    follower: Follower = field(init=False)

    def __post_init__(self) -> None:
        self.follow(0)

    def follow(self, start: int) -> None:
        self.follower = Follower([str(self.writer.folder)], start, self.problems.append,
                                 lambda: self.now)

    def poll(self) -> list[int]:
        """What has come since the last look, a tenth of a second ago."""
        self.now += 0.1
        return [record.physical_offset for record in self.follower.poll()]

    def after_patience(self) -> list[int]:
        """Polls, lets the time pass, polls again."""
        status = self.poll()
        self.now += PATIENCE + 0.1
        return status + self.poll()

    def write(self, *parts: Part) -> None:
        for part in parts:
            self.writer.write(part.offset, part.raw)

    def texts(self) -> str:
        return "\n".join(problem.text for problem in self.problems)


@pytest.fixture
def followed(golden: GoldenFolder, tmp_path: Path) -> Followed:
    folder = golden("5.3.3/crash-base/store/commitlog")
    parts = parts_of(folder)
    assert sum(not part.is_message for part in parts) >= 4, "no rolls to follow"
    return Followed(Writer(tmp_path / "store", min(folder.iterdir()).stat().st_size), parts)


def test_every_message_once_in_every_state(followed: Followed) -> None:
    """Each message in four pieces (half a head, half a body, all but a byte): never too early."""
    shown = []
    for part in followed.parts:
        size = len(part.raw)
        for there in followed.writer.append(part, cuts=(3, 40, size // 2, size - 1)):
            status = followed.poll()
            # Zeros that are still to come are there already: the file was made of them.
            assert not status or (status, any(part.raw[there:])) == ([part.offset], False)
            shown += status
    assert shown == [part.offset for part in followed.parts if part.is_message]
    assert not followed.problems, followed.texts()


@pytest.mark.parametrize("ahead", [True, False], ids=["next file made before", "only when needed"])
def test_over_the_end_of_a_file(ahead: bool, followed: Followed) -> None:
    blank = next(number for number, part in enumerate(followed.parts) if not part.is_message)
    followed.write(*followed.parts[:blank])
    followed.poll()
    after = followed.parts[blank + 1]
    if ahead:
        followed.writer.make(after.offset)
    assert followed.poll() == []
    followed.write(followed.parts[blank])
    assert followed.after_patience() == []
    followed.write(after)
    assert followed.poll() == [after.offset]
    assert not followed.problems, followed.texts()


def test_files_that_grow(followed: Followed) -> None:
    """Another implementation may append instead of filling a file made before."""
    shown = []
    for part in followed.parts:
        path = followed.writer.path(part.offset)
        for piece in (part.raw[:30], part.raw[30:]):
            with path.open("ab") as log:
                log.write(piece)
            shown += followed.poll()
    assert shown == [part.offset for part in followed.parts if part.is_message]
    assert not followed.problems, followed.texts()


def test_many_at_once_and_nothing(followed: Followed) -> None:
    assert followed.poll() == []
    assert "waiting" in followed.texts()
    followed.write(*followed.parts)
    assert followed.poll() == [part.offset for part in followed.parts if part.is_message]
    assert followed.poll() == []
    assert len(followed.problems) == 1


def test_a_torn_record_is_waited_for_and_reported_once(followed: Followed) -> None:
    first, two = followed.parts[:2]
    followed.writer.write(first.offset, first.raw[:50])
    assert followed.after_patience() == []
    assert followed.after_patience() == []
    assert [problem.kind for problem in followed.problems] == ["in-progress"]
    followed.write(first, two)
    assert followed.poll() == [first.offset, two.offset]


def test_damage_is_passed_over_once_the_log_goes_on(followed: Followed) -> None:
    first, two, three = followed.parts[:3]
    followed.write(first)
    followed.writer.write(two.offset, b"\xee" * len(two.raw))
    assert followed.poll() == [first.offset]
    followed.write(three)
    assert followed.after_patience() == [three.offset]
    assert [(problem.kind, problem.offset, problem.length) for problem in followed.problems] == [
        ("damage", two.offset, len(two.raw))]


def test_damage_up_to_the_next_file(followed: Followed) -> None:
    """The rest of a file is empty, without a blank, and the next one is in use."""
    blank = next(number for number, part in enumerate(followed.parts) if not part.is_message)
    followed.write(*followed.parts[:blank])
    shown = followed.poll()
    after = followed.parts[blank + 1]
    followed.write(after)
    assert followed.after_patience() == [after.offset]
    assert len(shown) == blank
    assert [(problem.kind, problem.offset) for problem in followed.problems] == [
        ("damage", followed.parts[blank].offset)]


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_a_roll_between_two_looks_is_no_damage(every: int, followed: Followed,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """After a quiet time the broker fills a file and rolls, just while we look."""
    blank = next(number for number, part in enumerate(followed.parts) if not part.is_message)
    followed.write(*followed.parts[:blank - 2])
    followed.writer.make(followed.parts[blank + 1].offset)
    assert len(followed.after_patience()) == blank - 2
    written = iter(followed.parts[blank - 2:blank + 3])
    real = StoreFile.open

    def rolling(file: StoreFile) -> Any:
        followed.write(*islice(written, every))
        return real(file)

    monkeypatch.setattr(StoreFile, "open", rolling)
    followed.now += PATIENCE
    assert followed.poll() + followed.poll() + followed.after_patience() == [
        part.offset for part in followed.parts[blank - 2:blank + 3] if part.is_message]
    assert not followed.problems, followed.texts()


def test_a_wrong_crc_is_shown_in_the_end(followed: Followed) -> None:
    first, two = followed.parts[:2]
    wrong = bytearray(first.raw)
    wrong[100] ^= 1
    followed.writer.write(first.offset, wrong)
    assert followed.poll() == []
    followed.now += PATIENCE + 0.1
    numbers = list(followed.follower.poll())
    assert [(record.physical_offset, record.crc_ok)
            for record in numbers] == [(first.offset, False)]
    wrong = bytearray(two.raw)
    wrong[100] ^= 1
    followed.writer.write(two.offset, wrong)
    followed.write(followed.parts[2])  # what follows proves that it stays so
    assert followed.poll() == [two.offset, followed.parts[2].offset]


def test_a_log_that_was_cut_back(followed: Followed) -> None:
    """A broker started anew, cut the log and went on with other messages."""
    followed.write(*followed.parts[:10])
    assert len(followed.poll()) == 10
    cut = followed.parts[6].offset
    path = followed.writer.path(cut)
    data = bytearray(path.read_bytes())
    data[cut:] = bytes(len(data) - cut)
    path.write_bytes(data)
    assert followed.poll() == []
    assert "was truncated" in followed.texts()
    assert str(cut) in followed.texts()
    followed.write(*followed.parts[6:9])
    assert followed.poll() == [part.offset for part in followed.parts[6:9]]
    assert len(followed.problems) == 1


def test_a_store_that_was_made_anew(followed: Followed, golden: GoldenFolder) -> None:
    followed.write(*followed.parts[:10])
    assert len(followed.poll()) == 10
    shutil.rmtree(followed.writer.folder)
    assert followed.poll() == []
    assert "no commitlog file" in followed.texts()
    followed.writer.folder.mkdir()
    other = parts_of(golden("4.9.3/basic/store") / "commitlog")
    followed.write(*other[:3])
    assert followed.poll() == [part.offset for part in other[:3]]
    assert "recreated" in followed.texts()


def test_files_that_expire_behind_us(followed: Followed) -> None:
    followed.write(*followed.parts)
    every = followed.poll()
    files = sorted(followed.writer.folder.iterdir())
    for path in files[:2]:
        path.unlink()
    assert followed.poll() == []
    assert not followed.problems, followed.texts()
    # Everything shown has gone, and more than that.
    last_base = int(files[-1].name)
    followed.follow(0)
    for path in files[2:-1]:
        path.unlink()
    assert followed.poll() == [place for place in every if place >= last_base]


def test_the_messages_shown_before_are_the_marks(golden_copy: GoldenFolder) -> None:
    """The store was cut between the last messages and the first look afterwards."""
    root = golden_copy("5.3.3/basic/store")
    problems: list[Problem] = []
    with Store.open(root) as opened:
        tail = Tail(View(opened), Selection(tag="A"), problems.append)
        tail.last(2)
        follower = tail.follower(problems.append)
        newest = last(opened, 3)
        cut = newest[1]
        path = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= cut)
        data = bytearray(path.read_bytes())
        data[cut - int(path.name):] = bytes(len(data) - (cut - int(path.name)))
        path.write_bytes(data)
        assert list(follower.poll()) == []
    assert follower.next == cut
    assert "was truncated" in problems[0].text


def test_nothing_that_was_there_is_shown_again(basic: Store) -> None:
    problems: list[Problem] = []
    tail = Tail(View(basic), Selection(), problems.append)
    tail.last(5)
    assert list(tail.follower(problems.append).poll()) == []
    assert not problems


def test_a_file_that_vanishes_between_listing_and_opening(
        followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    followed.write(*followed.parts[:3])
    real = Follower._file_of

    def vanishing(self: Follower, offset: int) -> StoreFile | None:
        file = real(self, offset)
        shutil.rmtree(followed.writer.folder, ignore_errors=True)
        return file

    monkeypatch.setattr(Follower, "_file_of", vanishing)
    assert followed.poll() == []
    assert "retrying" in followed.texts()


def test_a_log_that_is_cut_back_just_while_it_is_read(followed: Followed,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """What went between the two looks is no damage: nothing is known to follow it."""
    followed.write(*followed.parts[:10])
    cut = followed.parts[6].offset
    path, real = followed.writer.path(cut), GrowingLog.advance

    def cutting(self: GrowingLog, position: int) -> int:
        reached = real(self, position)
        data = path.read_bytes()
        path.write_bytes(data[:cut] + bytes(len(data) - cut))
        return reached

    monkeypatch.setattr(GrowingLog, "advance", cutting)
    assert followed.poll() == [part.offset for part in followed.parts[:6]]
    assert not followed.problems, followed.texts()
    assert followed.follower.next == cut
