"""A copy from another store agrees with what is left of ours: two logs may be equal before and
behind a message, and not at it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.writer import Layout, Put, Writer, field_places
from tests.support.cli import run

OPTIONS = ("--index-slots", "16", "--index-max", "256", "-o", "json")
OURS, THEIRS, THIRD = (word * 20 for word in (b"ours     ", b"theirs   ", b"third    "))
Hurt = Callable[[Writer, Put, int], object]
LEFT: dict[str, Hurt] = {
    "one bit": lambda writer, _, body: writer.flip(body + 5, 3),
    "two bits": lambda writer, _, body: (writer.flip(body + 5, 3), writer.flip(body + 90, 1)),
    "20 bytes": lambda writer, _, body: writer.patch(body + 5, b"x" * 20),
    "zeros": lambda writer, _, body: writer.patch(body + 5, bytes(64)),
    "no head": lambda writer, message, _: writer.patch(message.physical, bytes(84))}


def log(body: bytes) -> Writer:
    """With another body in one of its messages."""
    writer = Writer(Layout(log_file_size=16 << 10, index_slots=16, index_entries=256))
    for number in range(60):
        writer.put("orders", body if number == 20 else b"order %d " % number * 9,
                   queue_id=number % 2, keys=f"o{number}", unique_key=f"u{number}", tags="a")
    return writer


def recovered(store: Path, *options: object) -> tuple[dict[str, Any], bytes]:
    done = run("recover", store, *map(str, options), *OPTIONS, "--apply", "--yes").expect(0, 1)
    return done.json(), b"".join(
        path.read_bytes() for path in sorted((store / "commitlog").iterdir()))


@pytest.mark.parametrize("hurt", LEFT)
@pytest.mark.parametrize("same", [False, True])
def test_what_is_left_of_ours_speaks(hurt: str, same: bool, tmp_path: Path) -> None:
    ours, source = log(OURS), log(OURS if same else THEIRS)
    put = ours.puts[20]
    LEFT[hurt](ours, put, put.physical + field_places(put.raw)["body"][0])
    store, other = ours.write(tmp_path / "ours"), source.write(tmp_path / "source")
    done, content = recovered(store, "--from", other)
    if same:
        assert put.raw in content
        assert done.get("conflicts", 0) == 0
        return
    assert source.puts[20].raw not in content
    assert done["conflicts"] == 1
    assert (put.raw in content) == (hurt == "one bit")  # its own CRC tells
    # Its user may say otherwise.
    run("undo", store, "--yes").expect(0)
    _, content = recovered(store, "--from", other, "--prefer", other)
    assert source.puts[20].raw in content


def test_where_nothing_is_left_what_is_around_proves_it(tmp_path: Path) -> None:
    ours, source = log(OURS), log(OURS)
    ours.patch(ours.puts[20].physical, bytes(ours.puts[20].size))
    store = ours.write(tmp_path / "ours")
    done, content = recovered(store, "--from", source.write(tmp_path / "source"))
    assert done.get("conflicts", 0) == 0
    assert ours.puts[20].raw in content


@pytest.mark.parametrize("order", [(THEIRS, OURS), (OURS, THEIRS)])
def test_of_two_sources_the_one_counts_that_ours_is_like(order: tuple[bytes, bytes],
                                                         tmp_path: Path) -> None:
    ours = log(OURS)
    put = ours.puts[20]
    LEFT["20 bytes"](ours, put, put.body_at)
    sources = [log(body).write(tmp_path / f"source{number}") for number, body in enumerate(order)]
    _, content = recovered(ours.write(tmp_path / "ours"), "--from", sources[0],
                           "--from", sources[1])
    assert put.raw in content


@pytest.mark.parametrize(("bodies", "chosen"), [
    ((THEIRS, OURS), None), ((THEIRS, OURS, OURS), OURS), ((OURS, THEIRS, OURS), OURS),
    ((THEIRS, OURS, THIRD), None)])
def test_where_ours_does_not_tell_the_majority_does(bodies: tuple[bytes, ...],
                                                    chosen: bytes | None, tmp_path: Path) -> None:
    ours = log(OURS)
    ours.patch(ours.puts[20].physical, bytes(ours.puts[20].size))
    sources = [log(body).write(tmp_path / f"source{number}") for number, body in enumerate(bodies)]
    options = [word for source in sources for word in ("--from", source)]
    done, content = recovered(ours.write(tmp_path / "ours"), *options)
    assert [body for body in set(bodies) if body in content] == ([chosen] if chosen else [])
    assert bool(done.get("conflicts", 0)) == (chosen is None)


@pytest.mark.parametrize("size", [512, 1024, 4096])
def test_sectors_of_another_place_do_not_speak(size: int, tmp_path: Path) -> None:
    """A page that was written to the wrong place: the records in it are no evidence of those that
    were there.
    """
    ours, source = log(OURS), log(OURS)
    page = bytes(source.log[0])[:size]
    at = 8192
    ours.patch(at, page)
    store, other = ours.write(tmp_path / "ours"), source.write(tmp_path / "source")
    done, content = recovered(store, "--from", other)
    assert done.get("conflicts", 0) == 0
    assert content == b"".join(
        path.read_bytes() for path in sorted((other / "commitlog").iterdir()))
