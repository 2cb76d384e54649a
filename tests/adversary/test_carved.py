"""`carve` of files without their store, and of images: what only a body holds is never in place,
and no intact message is lost to the fear of that. `dump` of a file judges alike.

A sender knows which queue offsets come next, and where his message will lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.adversary.hostile import BODIES, FORGED, PLACES, Case, Hostile, build
from tests.adversary.test_alone import alone, dumped, several
from tests.adversary.writer import Frame, Header, Layout, Put, Writer, frame, framed
from tests.support.cli import run
from tests.support.share import sample

INNER_BATCH = 0x80
JUNK = b"\1"


def sources(store: Hostile, folder: Path) -> Iterator[Path]:
    """The log without its store: its files, all of them in one, and that in an image."""
    files = alone(store.folder, folder / "alone")
    yield folder / "alone"
    data = b"".join(file.read_bytes() for file in files)
    (folder / "one").write_bytes(data)
    yield folder / "one"
    (folder / "image").write_bytes(JUNK * 4096 + data + JUNK * 999)
    yield folder / "image"


def carved(source: Path) -> dict[str, set[int]]:
    """Physical offsets by placement."""
    physical_offsets: dict[str, set[int]] = {}
    for row in run("carve", source, "-o", "jsonl", "--body", "none").expect(0, 1).jsonl():
        physical_offsets.setdefault(row["placement"], set()).add(row["physical_offset"])
    return physical_offsets


def check(store: Hostile, folder: Path) -> list[int]:
    """How many intact messages are doubtful, for each way to lay the log."""
    put, intact = ({message.physical for message in some} for some in (store.puts, store.intact))
    counts = []
    for source in sources(store, folder):
        carve_result = carved(source)
        assert carve_result.get("in-place", set()) <= put, source
        doubtful = carve_result.get("doubtful", set())
        assert intact <= carve_result.get("in-place", set()) | doubtful, source
        counts.append(len(intact & doubtful))
    shown = {row["physical_offset"] for row in dumped(sorted((folder / "alone").iterdir()))
             if row["type"] == "message"}
    assert shown <= put
    return counts


@pytest.mark.parametrize(("body", "place"), sample(product(BODIES, PLACES), 9, "carved bodies",
                                                   always=lambda name: name
                                                   == ("nested", "middle")))
def test_nothing_is_left_of_the_head(body: str, place: str, tmp_path: Path) -> None:
    store = build(tmp_path / "store", Case(body, place, "zeros", "nothing"))
    check(store, tmp_path)


# -- senders who know the queue offsets -------------------------------------------------------


class Sender:
    """A log of two topics with four queues each, and messages in it which hold frames."""

    def __init__(self) -> None:
        self.writer = Writer(Layout(log_file_size=64 << 10, with_queues=False, with_index=False))
        self.damaged: set[int] = set()

    def ordinary(self, count: int, size: int = 9) -> None:
        for number in range(count):
            self.writer.put(("orders", "bills")[number // 4 % 2], b"ordinary" * size,
                            queue_id=number % 4, keys="k")

    def next_ones(self, count: int, skip: int = 1) -> list[Frame]:
        """Frames with the queue offsets that come next but ``skip``, topic by topic and queue by
        queue.
        """
        return [frame(topic, FORGED + b"%d" % number, self.writer.next_offset.get(
            (topic, queue), 0) + skip + number // 8, queue_id=queue)
            for number in range(count)
            for topic, queue in [(("orders", "bills")[number // 4 % 2], number % 4)]]

    def evil(self, frames: list[Frame], *, header: Header | None = None, after: int = 30) -> Put:
        """A message of them, of whose head nothing is left."""
        put = self.writer.put("orders", framed(frames, before=b"x" * 9, after=b"y" * after),
                              header=header)
        self.zero(put, put.body_at - put.physical)
        return put

    def zero(self, put: Put, size: int) -> None:
        self.writer.patch(put.physical, bytes(size))
        self.damaged.add(put.physical)

    def stored(self, folder: Path, outer: Put) -> Hostile:
        self.writer.write(folder)
        return Hostile(folder, tuple(self.writer.puts), outer, frozenset(self.damaged))


def _single(sender: Sender) -> Put:
    return sender.evil(sender.next_ones(12))


def _the_very_next(sender: Sender) -> Put:
    return sender.evil(sender.next_ones(12, 0))


def _far_ahead(sender: Sender) -> Put:
    """As if many had been lost before the frames."""
    return sender.evil(sender.next_ones(12, 40))


def _two(sender: Sender) -> Put:
    """The frames in the second body say that much is missing between them and the first."""
    outer = sender.evil(sender.next_ones(8))
    sender.ordinary(3)
    sender.evil(sender.next_ones(16, 30))
    return outer


def _two_in_a_row(sender: Sender) -> Put:
    outer = sender.evil(sender.next_ones(8))
    sender.evil(sender.next_ones(16, 30))
    return outer


def _behind_small_ones(sender: Sender) -> Put:
    """Zeros over small messages, up to the head of the one: their queue offsets are free."""
    for number in range(20):
        sender.zero(sender.writer.put("orders", b"s", queue_id=number % 4, unique_key=""), 140)
    sender.damaged.update(put.physical for put in sender.writer.puts[-20:])
    first = sender.writer.puts[-20].physical
    outer = sender.evil(sender.next_ones(12, -4))
    sender.writer.patch(first, bytes(outer.body_at - first))
    return outer


def _end_of_another(sender: Sender) -> Put:
    """Zeros over the end of a message, and over the head of the next one."""
    sender.writer.put("orders", b"before" * 99, queue_id=1)
    before = sender.writer.puts[-1]
    outer = sender.evil(sender.next_ones(12))
    sender.writer.patch(before.end - 200, bytes(200))
    sender.damaged.add(before.physical)
    return outer


def _next_is_gone(sender: Sender) -> Put:
    """Nothing is left of the message behind it either, nor of its own end."""
    outer = sender.evil(sender.next_ones(12))
    sender.writer.put("orders", b"z" * 50, queue_id=2)
    gone = sender.writer.puts[-1]
    sender.writer.patch(outer.end - 20, bytes(gone.end - outer.end + 20))
    sender.damaged.add(gone.physical)
    return outer


def _torn(sender: Sender) -> Put:
    outer = sender.evil(sender.next_ones(12), after=900)
    sender.writer.tear(outer.end - 500)
    return outer


def _batch(sender: Sender) -> Put:
    """One message that takes as many queue offsets as it says."""
    header = Header(sys_flag=INNER_BATCH)
    for _ in range(2):
        sender.writer.put("orders", b"a batch", header=header)
    outer = sender.evil(sender.next_ones(3), header=header)
    for queue in range(4):
        sender.writer.next_offset["orders", queue] += 100
    sender.ordinary(8)
    sender.zero(sender.writer.put("orders", b"another" * 9), 120)
    for _ in range(2):
        sender.writer.put("orders", b"a batch", header=header)
    return outer


ATTACKS: dict[str, Callable[[Sender], Put]] = {
    "one": _single, "the very next": _the_very_next, "far ahead": _far_ahead, "two": _two,
    "two in a row": _two_in_a_row, "behind small ones": _behind_small_ones,
    "end of another": _end_of_another, "next is gone": _next_is_gone, "torn": _torn,
    "batch": _batch}


@pytest.mark.parametrize(("attack", "ending"), sample(
    product(ATTACKS, ["whole", "later damage", "torn end"]), 12, "attacks that know the offsets"))
def test_who_knows_the_queue_offsets_proves_nothing(attack: str, ending: str,
                                                    tmp_path: Path) -> None:
    sender = Sender()
    sender.ordinary(40)
    outer = ATTACKS[attack](sender)
    if attack != "torn":
        sender.ordinary(40)
        if ending == "later damage":
            sender.zero(sender.writer.put("bills", b"gone" * 20), 150)
            sender.ordinary(20)
        elif ending == "torn end":
            sender.writer.tear(sender.writer.puts[-1].physical + 70)
            sender.damaged.add(sender.writer.puts[-1].physical)
    check(sender.stored(tmp_path / "store", outer), tmp_path)


@pytest.mark.parametrize("behind", [20, 800])
def test_a_log_that_begins_with_damage(behind: int, tmp_path: Path) -> None:
    """In an image nothing tells what lies before the first record of a log."""
    sender = Sender()
    outer = _single(sender)
    sender.ordinary(behind)
    store = sender.stored(tmp_path / "store", outer)
    put = {message.physical for message in store.puts}
    for source in list(sources(store, tmp_path))[:2]:
        assert carved(source).get("in-place", set()) <= put


# -- honest logs ------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("damage", ["zeros", "noise", "head", "body", "size", "magic", "place"])
def test_messages_between_damaged_ones_are_given(damage: str, torn: bool, tmp_path: Path) -> None:
    """The log is shorter than a record may be: all may be the body of one that is gone."""
    store = several(damage, tmp_path / "store", torn=torn)
    counts = check(store, tmp_path)
    assert not counts[0] or damage in ("zeros", "noise")


@pytest.mark.parametrize("pages", [1, 2, 5])
def test_pages_that_are_gone_leave_little_doubt(pages: int, tmp_path: Path) -> None:
    """Many more messages lie behind them than could be lost in them, and the log goes on for longer
    than a record may.
    """
    writer = Writer(Layout(log_file_size=8 << 20, with_queues=False, with_index=False), seed=3)
    puts = [writer.put("orders", b"message %d " % number * 60, queue_id=number % 8)
            for number in range(6500)]
    gone = [range(at, at + 4096) for at in range(40_960, 40_960 + pages * 143_360, 143_360)]
    for page in gone:
        writer.patch(page.start, bytes(4096))
    damaged = {message.physical for message in puts for page in gone
               if message.physical < page.stop and page.start < message.end}
    writer.write(tmp_path / "store")
    store = Hostile(tmp_path / "store", tuple(puts), puts[0], frozenset(damaged))
    files, together, _ = check(store, tmp_path)
    assert max(files, together) < 50 * pages


def test_the_new_store_has_the_doubtful_ones_unless_told(tmp_path: Path) -> None:
    sender = Sender()
    sender.ordinary(40)
    outer = sender.evil(sender.next_ones(12))
    sender.ordinary(40)
    store = sender.stored(tmp_path / "store", outer)
    alone(store.folder, tmp_path / "alone")
    size = ("--index-slots", "16", "--index-max", "256", "-o", "json")
    with_them = run("carve", tmp_path / "alone", "--out", tmp_path / "with", *size).expect(1)
    assert (with_them.json()["doubtful"], with_them.json()["written"]) == (52, 92)
    assert "--no-doubtful skips them" in with_them.err
    without = run("carve", tmp_path / "alone", "--out", tmp_path / "without", *size,
                  "--no-doubtful")
    assert without.expect(1).json()["written"] == 40
    run("carve", tmp_path / "alone", "--no-doubtful").expect(2)


@pytest.mark.parametrize("messages", [1, 2, 30])
def test_queues_of_few_messages_are_no_broken_logs(messages: int, tmp_path: Path) -> None:
    writer = Writer(Layout(log_file_size=16 << 10))
    for number in range(messages):
        writer.put("orders", b"x" * 20)
        writer.put("pays", b"y" * 90, queue_id=number)
    store = writer.write(tmp_path / "store")
    assert len(run("carve", store, "-o", "jsonl").expect(0).jsonl()) == 2 * messages
