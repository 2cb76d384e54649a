"""Every single bit of a tiny store turned, one after the other.

Nothing may crash; every byte of the log stays accounted for; one bit costs at most one record; and
what is found is exactly what can be found (`tests.support.detectability`). The quick run turns
one bit of every third byte, ``--exhaustive`` turns all of them and counts what went unnoticed per
field; the counts are held in ``undetected.json`` (``RMQCTL_UPDATE=1`` writes it anew).
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support import damage, subject
from tests.support import tiny as tiny_stores
from tests.support.detectability import Judgement, Verdict, judge
from tests.support.share import every

UNDETECTED = Path(__file__).with_name("undetected.json")
INDEX = f"index/{tiny_stores.INDEX_NAME}"
LOG = tuple(f"commitlog/{start:020d}" for start in (0, 1024))
QUEUES = tuple(f"consumequeue/{name}" for name in (
    "orders/0/00000000000000000000", "orders/0/00000000000000000060",
    "orders/1/00000000000000000000", "bills/0/00000000000000000000"))
CONFIG = tuple(f"config/{name}" for name in (
    "topics.json", "consumerOffset.json", "delayOffset.json"))
CHECKPOINT_FIELDS = 40
FILES = (*LOG, *QUEUES, INDEX, "checkpoint", *CONFIG)


def test_the_list_is_complete(tiny_base: tiny_stores.Tiny) -> None:
    backups = {f"{name}.bak" for name in CONFIG}
    assert set(tiny_base.files()) == {*FILES, *backups, "lock"}


def quick_bits(size: int, file: str) -> Iterator[tuple[int, int]]:
    """One bit of every 18th byte (a sixth of those that all runs take), each time another.

    Of the checkpoint's empty page fewer.
    """
    for number, offset in enumerate(every(6, range(0, size, 3), file)):
        if file == "checkpoint" and offset > CHECKPOINT_FIELDS and number % 100:
            continue
        yield offset, number % 8


def all_bits(size: int, file: str) -> Iterator[tuple[int, int]]:
    for offset in range(size):
        empty = file == "checkpoint" and offset > CHECKPOINT_FIELDS
        yield from ((offset, bit) for bit in ((offset % 8,) if empty else range(8)))


def turn(store: tiny_stores.Tiny, file: str,
         bits: Iterable[tuple[int, int]]) -> dict[str, Counter[str]]:
    """Turn each bit, verify, turn it back. Per field: how many were ``seen`` and ``unseen``."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    wrong: list[str] = []
    for offset, bit in bits:
        judgement = judge(store, file, offset, bit)
        done = damage.flip_bit(store.root, file, offset, bit)
        report = subject.verify(store.root, options=store.cli_options)
        damage.undo(store.root, done)
        seen[judgement.field]["seen" if report.findings else "unseen"] += 1
        problem = _problem(store, file, judgement, report)
        if problem:
            wrong.append(f"{file}@{offset} bit {bit}, {judgement.field}: {problem}")
    assert not wrong, f"{len(wrong)} bits judged wrongly:\n" + "\n".join(wrong[:40])
    return seen


def _problem(store: tiny_stores.Tiny, file: str, judgement: Judgement,
             report: subject.Report) -> str | None:
    if not subject.every_byte_is_accounted_for(report):
        return f"bytes do not add up: {report.coverage}"
    if report.coverage["messages"] < len(store.messages) - 1:
        return f"only {report.coverage['messages']} messages are left"
    if judgement.verdict is Verdict.ALWAYS and not report.findings:
        return "not found"
    if judgement.verdict is Verdict.NEVER and report.findings:
        return f"a false alarm: {report.text()}"
    if judgement.verdict is Verdict.ALWAYS and judgement.span is not None and not any(
            finding.touches(file, judgement.span) for finding in report.findings):
        return f"found at another place: {report.text()}"
    return None


def test_the_untouched_store_has_no_finding(tiny: tiny_stores.Tiny) -> None:
    report = subject.verify(tiny.root)
    assert report.findings == (), report.text()
    assert report.ok
    assert subject.every_byte_is_accounted_for(report)
    assert report.coverage["messages"] == len(tiny.messages)
    assert report.coverage["bytes_in_messages"] == sum(len(message.raw)
                                                       for message in tiny.messages)
    assert report.coverage["bytes_unverifiable"] > 0, "nothing covers flag, born time and host"


@pytest.mark.long
@pytest.mark.parametrize("file", FILES)
def test_one_bit_of_some_bytes(file: str, tiny: tiny_stores.Tiny) -> None:
    turn(tiny, file, quick_bits((tiny.root / file).stat().st_size, file))


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", FILES)
def test_every_bit(file: str, tiny: tiny_stores.Tiny) -> None:
    seen = turn(tiny, file, all_bits((tiny.root / file).stat().st_size, file))
    unseen = {field: f"{counts['unseen']} of {counts.total()}"
              for field, counts in sorted(seen.items()) if counts["unseen"]}
    print(f"undetected bits of {file}: {json.dumps(unseen, indent=1)}")
    document = json.loads(UNDETECTED.read_text()) if UNDETECTED.exists() else {}
    if os.environ.get("RMQCTL_UPDATE"):
        document[file] = unseen
        UNDETECTED.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    assert document.get(file, unseen) == unseen


@pytest.fixture(scope="session")
def with_crc(tmp_path_factory: pytest.TempPathFactory) -> tiny_stores.Tiny:
    return tiny_stores.variant(tmp_path_factory.mktemp("crc") / "store", "appended crc")


@pytest.mark.long
@pytest.mark.parametrize("file", ["commitlog/00000000000000000000",
                                  "commitlog/00000000000000001200"])
def test_an_appended_crc_covers_the_whole_record(file: str, with_crc: tiny_stores.Tiny) -> None:
    turn(with_crc, file, quick_bits((with_crc.root / file).stat().st_size, file))


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", ["commitlog/00000000000000000000",
                                  "commitlog/00000000000000001200"])
def test_every_bit_under_an_appended_crc(file: str, with_crc: tiny_stores.Tiny) -> None:
    turn(with_crc, file, all_bits((with_crc.root / file).stat().st_size, file))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["ipv6", "transaction", "delayed", "lmq", "consumequeue ext",
                                  "compressed"])
def test_bits_of_other_stores(name: str, tmp_path: Path) -> None:
    """The map holds for the other shapes of record and queue too."""
    store = tiny_stores.variant(tmp_path / "store", name)
    for file in store.files("commitlog", "consumequeue"):
        turn(store, file, quick_bits((store.root / file).stat().st_size, file))
