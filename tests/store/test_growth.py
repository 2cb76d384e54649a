"""How far a growing log can be read: borders only, nothing torn, nothing left out."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rmqctl.errors import StoreIOError
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from rmqctl.store.files import StoreFile
from rmqctl.store.log import growth
from rmqctl.store.log.growth import PATIENCE, GrowingLog, LogSlice
from tests.pipeline.growing import FILE_SIZE, Writer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Followed:
    """A log with a writer, a follower and what it said."""

    def __init__(self, folder, **given) -> None:
        self.writer = Writer(folder / "store", **given)
        self.clock, self.notes = Clock(), []
        self.log = GrowingLog([str(folder / "store/commitlog")], self.notes.append, self.clock)

    def advance(self, *given, **more) -> int:
        return self.log.advance(*given, **more)

    def numbers(self, start: int, end: int, step: int = growth.STEP) -> list[int]:
        return [number for piece in self.log.pieces(start, end, step)
                for number in numbers(piece)]


def numbers(piece: LogSlice) -> list[int]:
    with FileSource(piece.file.path, piece.file.base) as source:
        walk = Walk(source, piece.start - piece.file.base, piece.end - piece.file.base)
        return [int(queue_offset) for batch in walk
                for queue_offset in batch.column("queue_offset")]


@pytest.fixture
def followed(tmp_path) -> Followed:
    return Followed(tmp_path)


def test_it_reads_what_is_whole_and_goes_on(followed):
    assert followed.advance(0) == 0
    position, read = 0, []
    for count in (1, 5, 0, 40, 1, 1, 30):
        followed.writer.append(count)
        reached = followed.advance(position)
        assert reached == followed.writer.position
        read += followed.numbers(position, reached)
        position = reached
    assert read == list(range(followed.writer.count))
    assert not followed.notes
    assert len(followed.log.files()) > 3


def test_files_laid_out_ahead_are_nothing_yet(followed):
    followed.writer.append(5)
    for base in (FILE_SIZE, 2 * FILE_SIZE):
        followed.writer.path(base).write_bytes(bytes(FILE_SIZE))
    assert followed.advance(0) == followed.writer.position
    assert followed.log.last_file() == 0
    followed.writer.append(20)
    assert followed.advance(0) == followed.writer.position
    assert followed.log.last_file() == FILE_SIZE


@pytest.mark.parametrize("limit", [1, 50, 300, 301, 5000])
def test_a_limit_is_kept_to_borders(followed, limit):
    followed.writer.append(100, body=80)
    borders = {0}
    for file in followed.log.files():
        with FileSource(file.path, file.base) as source:
            for batch in Walk(source):
                borders |= {*batch.offset.tolist(), *(span.offset for span in batch.spans)}
    position, read, steps = 0, [], 0
    while (reached := followed.advance(position, position + limit)) != position:
        assert reached in borders | {followed.writer.position}
        read += followed.numbers(position, reached)
        assert reached - position <= max(limit, 192)
        position, steps = reached, steps + 1
    assert read == list(range(100))
    assert steps >= followed.writer.position // max(limit, 192)


@pytest.mark.parametrize("share", [0.02, 0.05, 0.3, 0.6, 0.97, 0.999])
def test_a_torn_record_is_waited_for(followed, share):
    followed.writer.append(3)
    border = followed.writer.position
    raw = followed.writer.torn(share)
    for _ in range(4):
        assert followed.advance(0) == border
        assert followed.log.torn
        assert followed.advance(border) == border
        assert followed.log.torn
        followed.clock.now += 0.4
    followed.writer._put(raw)
    followed.clock.now += 0.4
    assert followed.advance(border) == border + len(raw)
    assert not followed.log.torn


def test_a_torn_record_that_stays_is_never_read(followed):
    followed.writer.append(3)
    border = followed.writer.position
    followed.writer.torn(0.6)
    for _ in range(5):
        followed.clock.now += 10 * PATIENCE
        assert followed.advance(border) == border
    assert followed.advance(border, patient=True) == border


def test_a_torn_end_before_a_file_in_use_is_damage(followed):
    followed.writer.append(3)
    border = followed.writer.position
    followed.writer.torn(0.6)
    followed.writer.position = FILE_SIZE
    followed.writer.append(2)
    assert followed.advance(border) == followed.writer.position
    assert followed.numbers(border, followed.writer.position) == [3, 4]


@pytest.mark.parametrize("zeros", [False, True])
def test_damage_with_records_behind_it_is_passed_after_a_while(followed, zeros):
    followed.writer.append(2)
    border = followed.writer.position
    followed.writer.append(3)
    with followed.writer.path(0).open("r+b") as file:
        file.seek(border)
        file.write(bytes(60) if zeros else b"\xff" * 12)
    assert followed.advance(0) == border
    followed.clock.now += 0.9 * PATIENCE
    assert followed.advance(0) == border
    followed.clock.now += 0.2 * PATIENCE
    assert followed.advance(border) == followed.writer.position
    assert followed.advance(border, patient=True) == followed.writer.position
    assert followed.numbers(border, followed.writer.position) == [3, 4]


def test_a_body_that_never_fits_its_crc_is_read_after_a_while(followed):
    followed.writer.append(2)
    border = followed.writer.position
    followed.writer.append(1)
    with followed.writer.path(0).open("r+b") as file:
        file.seek(border + 90)
        file.write(b"?")
    assert followed.advance(0) == border
    assert followed.log.torn
    assert followed.advance(border, patient=True) == followed.writer.position
    followed.clock.now += 1.1 * PATIENCE
    assert followed.advance(border) == followed.writer.position


def test_an_idle_log_costs_next_to_nothing(followed, monkeypatch):
    """It is asked a hundred times a second: few listings, and fewer looks behind the zeros."""
    followed.writer.append(2)
    position = followed.advance(0)
    walks, listings = [], []
    walk, files = growth.walked, growth.log_listings
    monkeypatch.setattr(growth, "walked", lambda *a, **k: walks.append(1) or walk(*a, **k))
    monkeypatch.setattr(growth, "log_listings",
                        lambda *a, **k: listings.append(1) or files(*a, **k))
    for _ in range(3000):
        followed.clock.now += 0.01
        assert followed.advance(position) == position
    assert 2 <= len(walks) <= 5
    assert 25 <= len(listings) <= 35
    followed.writer.append(1)
    assert followed.advance(position) == followed.writer.position


def test_an_idle_log_notices_the_next_file(followed):
    """Its last file was closed by a broker that died: no blank, and the next file in use."""
    followed.writer.append(2)
    position = followed.advance(0)
    assert followed.advance(position) == position
    followed.writer.position = FILE_SIZE
    followed.writer.append(1)
    followed.clock.now += 1.01
    assert followed.advance(position) == followed.writer.position


def test_an_idle_log_notices_that_its_file_is_gone(followed):
    followed.writer.append(2)
    position = followed.advance(0)
    assert followed.advance(position) == position
    followed.writer.position = FILE_SIZE
    followed.writer.append(1)
    followed.writer.path(0).unlink()
    assert followed.advance(position) == followed.writer.position


def test_an_expired_head_is_reported_and_passed(followed):
    followed.writer.append(60)
    middle = followed.advance(0, 1000)
    followed.writer.path(0).unlink()
    assert followed.advance(middle) == followed.writer.position
    assert followed.log.first() == FILE_SIZE
    numbers = followed.numbers(middle, followed.writer.position)
    assert numbers == list(range(numbers[0], 60))
    (line,) = followed.notes
    assert f"{middle} to 4096 have expired" in line
    assert followed.numbers(0, middle) == []
    assert f"0 to {middle} have expired" in followed.notes[1]


def test_a_missing_file_in_between_is_reported_and_passed(followed):
    followed.writer.append(60)
    followed.writer.path(FILE_SIZE).unlink()
    assert followed.advance(0) == followed.writer.position
    numbers = followed.numbers(0, followed.writer.position)
    assert 20 < len(numbers) < 50
    (line,) = followed.notes
    assert "4096 to 8192 are in no file" in line


def test_a_file_that_vanishes_while_it_is_opened(followed, monkeypatch):
    followed.writer.append(60)
    real, first = StoreFile.open, followed.writer.path(0)

    def vanishing(file):
        if file.path == str(first) and first.exists():
            first.unlink()
        return real(file)

    monkeypatch.setattr(StoreFile, "open", vanishing)
    assert followed.advance(0, 500) == FILE_SIZE


def test_a_log_that_was_made_anew_is_reported_once(followed):
    followed.writer.append(60)
    end = followed.advance(0)
    for file in followed.log.files()[1:]:
        followed.writer.path(file.base).unlink()
    for _ in range(3):
        assert followed.advance(end) == end
    (line,) = followed.notes
    assert f"ends before physical offset {end}" in line


def test_what_a_limit_held_back_is_not_taken_for_nothing(followed):
    followed.writer.append(3)
    assert followed.advance(0, 5, least=False) == 0
    first = followed.advance(0, 5)
    assert first > 5
    assert followed.advance(first, first + 5, least=False) == first
    assert followed.advance(first) == followed.writer.position


def test_an_unreadable_file_is_an_error(followed):
    followed.writer.append(60)
    followed.writer.path(FILE_SIZE).unlink()
    followed.writer.path(FILE_SIZE).symlink_to(followed.writer.path(FILE_SIZE))
    with pytest.raises(StoreIOError):
        followed.advance(FILE_SIZE, FILE_SIZE + 100)


def test_the_end_of_the_log_from_its_last_file(followed):
    assert followed.log.last_file() == 0
    followed.writer.append(50)
    assert followed.advance(followed.log.last_file()) == followed.writer.position


def test_a_border_for_any_offset(followed):
    followed.writer.append(60)
    borders = [0]
    for file in followed.log.files():
        with FileSource(file.path, file.base) as source:
            borders += [int(offset) for batch in Walk(source) for offset in batch.offset]
    for physical in range(0, 2 * FILE_SIZE, 37):
        behind = followed.log.border(physical)
        assert behind >= physical
        assert followed.numbers(behind, followed.writer.position) == [
            number for number, start in enumerate(borders[1:]) if start >= physical]
    end = followed.writer.position
    assert followed.log.border(end + 50) == end
    assert followed.log.border(1 << 40) == 1 << 40


@pytest.mark.parametrize("step", [1, 100, 500, 1000, FILE_SIZE, 1 << 20])
def test_pieces_are_cut_at_borders_and_follow_from_their_ends(followed, monkeypatch, step):
    monkeypatch.setattr(growth, "_WHOLE_FILES", 1 << 30)
    followed.writer.append(100)
    with followed.writer.path(FILE_SIZE).open("r+b") as file:  # damage, and zeros
        file.seek(1000)
        file.write(bytes(700))
    end = followed.writer.position
    whole = followed.numbers(0, end, 1 << 20)
    starts = sorted({0, end, *(piece.start for piece in followed.log.pieces(0, end, 300))})
    assert len(starts) > 20
    for first in starts[::4]:
        for last in [start for start in starts[::3] if start > first]:
            pieces = list(followed.log.pieces(first, last, step))
            assert pieces == list(followed.log.pieces(first, last, step))
            assert pieces[0].start == first
            assert pieces[-1].end == last
            assert all(first.end == other.start for first, other in pairwise(pieces))
    assert [number for piece in followed.log.pieces(0, end, step)
            for number in numbers(piece)] == whole
    assert len(list(followed.log.pieces(0, end, step))) >= len(followed.log.files())


def test_very_many_bytes_are_cut_by_files(followed):
    followed.writer.append(60)
    pieces = list(followed.log.pieces(0, followed.writer.position, 1))
    assert [piece.start for piece in pieces] == [file.base for file in followed.log.files()]
