"""JSON that is made by column is, to the byte, what the rows of the same page are encoded to."""

from __future__ import annotations

import io
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from rmqctl.broker.view import view_of
from rmqctl.formats.local import sysflag
from rmqctl.output.cells import Encoded, RowLayout
from rmqctl.output.jsonlines import writer
from rmqctl.output.streams import Sink, WriterTarget
from rmqctl.scan.json_cells import LONG
from rmqctl.store.objects import FIELDS
from rmqctl.store.pages import Page
from rmqctl.store.projection import Projection
from rmqctl.store.query.conditions import Condition
from rmqctl.store.query.json_objects import JsonObjects
from rmqctl.store.query.select import Selection, Selector
from rmqctl.store.store import Store
from tests.support import tiny
from tests.support.cli import run
from tests.support.golden import GoldenStore, golden_stores
from tests.support.kernels import compiled_only, using
from tests.support.share import sample
from tests.support.tiny import Spec

pytestmark = compiled_only

PROJECTIONS = (
    Projection(), Projection(body="base64"), Projection(body="utf-8"), Projection(body="none"),
    Projection(decompress=True), Projection(("body_encoding", "msg_id")), Projection(("body",)),
    Projection(("property.KEYS", "keys", "property.a", "topic", "tags")))
PLAIN = RowLayout(None, None, None, None, None)
HOSTILE = ("\x1b]0;title\x07", "\u202etxet", "\u2028\u2029", "\x7f\x80\x9f", '"\\', "\r\n\t\b\f\0",
           "<script>", "'; --", "消息 🙂", "=1+1")


def shown(rows: Iterable[object], form: str, *, terminal: bool = False) -> bytes:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    target = WriterTarget(Sink(stream, "utf-8"), stream, {}, terminal, lambda _text: None, None)
    writer(form, target).rows(rows, PLAIN)  # type: ignore[arg-type]
    stream.flush()
    return stream.buffer.getvalue()  # type: ignore[attr-defined]


def hold(pages: Callable[[], Iterator[Page]], projection: Projection, form: str = "jsonl", *,
         terminal: bool = False) -> int:
    """How many messages were compared, of those that were made by column."""
    objects = JsonObjects(projection)
    count = 0

    def by_column() -> Iterator[object]:
        nonlocal count
        for page in pages():
            lines = objects.lines(page)
            if lines is None:
                yield from projection.rows(page)
            else:
                count += len(page)
                yield Encoded(lines, len(page))

    rows = (row for page in pages() for row in projection.rows(page))
    assert shown(by_column(), form, terminal=terminal) == shown(rows, form, terminal=terminal)
    return count


def pages_of(store: Store, *conditions: Condition) -> Callable[[], Iterator[Page]]:
    wanted = Selection(where=conditions)
    return lambda: Selector(store, wanted, view_of(store, "disk"), lambda _problem: None).pages()


@pytest.mark.parametrize("golden_store", sample(golden_stores(), 8, "json"),
                         ids=lambda golden_store: golden_store.id)
def test_golden_stores(golden_store: GoldenStore, golden: Callable[[str], Path]) -> None:
    with Store.open(str(golden(golden_store.id)), golden_store.commitlog_dirs) as store:
        pages = pages_of(store)
        for projection in PROJECTIONS:
            hold(pages, projection)
        hold(pages, PROJECTIONS[0], "json")
        hold(pages, PROJECTIONS[0], terminal=True)
        hold(pages_of(store, Condition.of("queue_id", ">", "0")), PROJECTIONS[0])


def hostile(source: random.Random) -> Spec:
    texts = [*HOSTILE, "", "a", "k" * 40]
    pick = lambda: "".join(source.choices(texts, k=source.randrange(3)))  # noqa: E731
    names, assigns = ("TAGS", "KEYS", "UNIQ_KEY", "a", pick()), ("\x01", "\x01\x01", "")
    raw = "".join(source.choice(names) + source.choice(assigns) + pick() + " " + pick() + "\x02"
                  for _ in range(source.randrange(6)))
    body = source.choice((pick().encode(), source.randbytes(source.randrange(60)),
                          zlib.compress(pick().encode())))
    flags = source.choice((0, 0, sysflag.BORN_HOST_V6, sysflag.STORE_HOST_V6, sysflag.COMPRESSED,
                           0x30, 0x8, 0x701))
    return Spec(source.choice(("t", "größe", "消息🙂", '"', "a b")), source.randrange(3), body,
                raw_properties=raw, sys_flag=flags,
                flag=source.randrange(-9, 9),
                born=tiny.BORN_V6 if flags & sysflag.BORN_HOST_V6 else tiny.BORN,
                store=tiny.STORED_V6 if flags & sysflag.STORE_HOST_V6 else tiny.STORED)


def test_hostile_and_damaged_logs(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    compared = 0
    for number in range(6):
        built = tiny.build(tmp_path / str(number), [hostile(source) for _ in range(40)],
                           tiny.Options(commitlog_file_size=1 << 16, index_max=999))
        log = built.root / built.place(0)[0]
        data = bytearray(log.read_bytes())
        if number % 2:  # bits within bodies, topics and properties, lengths too
            for _ in range(60):
                data[source.randrange(built.log_end)] ^= 1 << source.randrange(8)
            log.write_bytes(data)
        with Store.open(str(built.root)) as store:
            for projection in PROJECTIONS:
                for form in ("jsonl", "json"):
                    for terminal in (False, True):
                        compared += hold(pages_of(store), projection, form, terminal=terminal)
    assert compared > 3000


def test_long_bodies_and_many_hosts(tmp_path: Path) -> None:
    source = random.Random(1)
    bodies = [b"x" * (LONG + 1), "ö".encode() * (LONG // 2 + 1), b"\xff" * (LONG + 1),
              b"\x01" * LONG, b"", b"x"]
    specs = [Spec("t", 0, body, {"a": "b" * 500}) for body in bodies] + [
        Spec("t", 0, b"", born=f"10.1.{number // 250}.{number % 250}:{number}")
        for number in range(4200)]
    source.shuffle(specs)
    built = tiny.build(tmp_path / "store", specs, tiny.Options(commitlog_file_size=1 << 25))
    with Store.open(str(built.root)) as store:
        assert hold(pages_of(store), Projection()) == len(specs)
        assert hold(pages_of(store), Projection(body="utf-8")) == len(specs)


def test_pages_that_rows_are_made_of(tmp_path: Path) -> None:
    built = tiny.build(tmp_path / "store")
    with Store.open(str(built.root)) as store:
        page = next(pages_of(store)())
        assert JsonObjects(Projection()).lines(page) is not None
        # Compressed bodies are decompressed one by one, and people get a preview.
        assert JsonObjects(Projection(decompress=True)).lines(page) is None
        assert JsonObjects(Projection(preview=20)).lines(page) is None
        assert JsonObjects(Projection(("body",), "none")).lines(page) is None
        assert JsonObjects(Projection((*FIELDS, "property.\x01"))).lines(page) is None


def test_the_command_takes_that_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = tiny.build(tmp_path / "store", tiny.DEFAULT * 20,
                       tiny.Options(commitlog_file_size=1 << 16, index_max=999))
    taken = []
    real = JsonObjects.lines

    def lines(self: JsonObjects, page: Page) -> memoryview | None:
        taken.append(len(page))
        return real(self, page)

    monkeypatch.setattr(JsonObjects, "lines", lines)
    for form in ("jsonl", "json"):
        fast = run("read", built.root, "-o", form).expect(0)
        assert sum(taken) == len(built.messages)
        taken.clear()
        with using("python"):
            assert run("read", built.root, "-o", form).expect(0).out == fast.out
        taken.clear()
