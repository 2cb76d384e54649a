"""What is put into a store whose messages have a CRC appended has one, too.

A broker with ``forceVerifyPropCRC`` cuts its log at the first message without: the store classes of
5.3.3 cut what had been put without one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqctl.formats.local import append_crc
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.support.cli import run

SEALED = "5.3.3/appendcrc/store"


def put(root: Path, folder: Path, *words: str) -> list[bool | None]:
    """Whether the appended CRCs of two messages match that are put."""
    with Store.open(root) as store:
        topic = next(iter(store.queues.by_key))[0]
    lines = folder / "lines.jsonl"
    lines.write_text("".join(json.dumps({"topic": topic, "queue_id": 0, "body": body}) + "\n"
                             for body in ("one", "two")))
    run("append", root, lines, "--auto-create-topic", *words).expect(0)
    with Store.open(root) as store:
        places = [int(at) for batch in store.log.walk() for at in batch.offset]
        return [append_crc.verify(store.log.raw_at(at) or b"") for at in places[-2:]]


@pytest.mark.parametrize(("of", "words", "wanted"), [
    (SEALED, (), True), (SEALED, ("--no-append-crc",), None),
    (SEALED, ("--broker-version", "4.9.3"), None), ("5.3.3/basic/store", (), None)])
def test_a_log_goes_on_as_it_was_begun(golden_copy: GoldenFolder, tmp_path: Path, of: str,
                                       words: tuple[str, ...], wanted: bool | None) -> None:
    assert put(golden_copy(of), tmp_path, *words) == [wanted, wanted]
