"""Pieces of a repair over those of an earlier round: as written in turn, in linear time."""

from __future__ import annotations

import itertools
import time

from hypothesis import given
from hypothesis import strategies as st

from rmqctl.repair.salvage.log_files import over
from rmqctl.scan.overlay import OverlayPiece

SIZE = 60


@st.composite
def pieces(draw: st.DrawFn) -> list[OverlayPiece]:
    """Ranges of a file without overlaps; some have holes, some touch."""
    edges = sorted(draw(st.sets(st.integers(0, SIZE), max_size=12)))
    some = []
    for start, end in itertools.pairwise(edges):
        if draw(st.booleans()):
            data = draw(st.binary(min_size=end - start, max_size=end - start))
            low = draw(st.integers(0, end - start))
            some.append(OverlayPiece(start, end - start, ((low, data[low:]),) if low < len(
                data) else ()))
    return draw(st.permutations(some))


def written(*layers: list[OverlayPiece]) -> tuple[bytes, bytes]:
    """Return the file after the layers are written in turn, and which of its bytes were written."""
    content, mask = bytearray(SIZE), bytearray(SIZE)
    for layer in layers:
        for piece in layer:
            piece.read_into(memoryview(content)[piece.at:piece.end], 0)
            mask[piece.at:piece.end] = bytes([1]) * piece.size
    return bytes(content), bytes(mask)


@given(pieces(), pieces())
def test_as_if_written_one_after_the_other(below: list[OverlayPiece],
                                           above: list[OverlayPiece]) -> None:
    merged = over(below, above)
    assert written(list(merged)) == written(below, above)
    assert all(a.end <= b.at for a, b in itertools.pairwise(merged))


def test_many_pieces_over_many() -> None:
    below = [OverlayPiece.of(at * 10, b"12345") for at in range(20_000)]
    above = [OverlayPiece.of(at * 10 + 4, b"xyz") for at in range(20_000)]
    began = time.process_time()
    merged = over(below, above)
    assert time.process_time() - began < 5  # each against each: minutes
    assert len(merged) == 40_000
    assert [piece.size for piece in merged[:4]] == [4, 3, 4, 3]
