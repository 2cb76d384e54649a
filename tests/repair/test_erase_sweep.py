"""After `delete --purge` no file of a store has anything of an erased message, in every layout."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record, build
from rmqctl.repair.erase.find import MIN_RUN, content
from tests.conftest import GoldenFolder
from tests.repair.test_erase import records
from tests.support.cli import run
from tests.support.layouts import layout_set

SETS = ("basic", "timer", "compaction", "tiered", "transaction", "delay")
LAYOUTS = ("rocksdb", "dledger")


@pytest.fixture(params=[*SETS, *LAYOUTS])
def root(request: pytest.FixtureRequest, golden: GoldenFolder, tmp_path: Path) -> Path:
    source = (layout_set(f"5.3.3/{request.param}") / "store" if request.param in LAYOUTS
              else golden(f"5.3.3/{request.param}/store"))
    shutil.copytree(source, tmp_path / "store")
    return tmp_path / "store"


def marks(record: Record) -> Iterator[bytes]:
    """Runs of a body at its start, middle and end; ids and keys."""
    for body in {content(record), bytes(record.body)}:
        for at in {0, len(body) // 2, len(body) - MIN_RUN}:
            if any(run := body[at:at + MIN_RUN]) and len(run) == MIN_RUN:
                yield run
    properties = props.parse(record.properties.decode("utf-8", "replace"))
    for key in (properties.get(props.UNIQUE_KEY), *props.split_keys(properties.get(props.KEYS))):
        if key and len(key) >= 6:
            yield key.encode()


@pytest.mark.parametrize("what", ["topic", "message"])
def test_nothing_of_an_erased_message_is_left(what: str, root: Path) -> None:
    before = [*records(root)]
    chosen = next(record for record in before if record.topic.startswith(b"TP_")
                  and len(content(record)) >= MIN_RUN and b"UNIQ_KEY" in record.properties)
    properties = props.parse(chosen.properties.decode())
    words = ([root, chosen.topic.decode()] if what == "topic"
             else [root, "--id", properties[props.UNIQUE_KEY]])
    run("delete", what, *words, "--apply", "--yes", "--purge", "-o", "json").expect(0)
    after = {record.physical_offset: record for record in records(root)}
    gone = [record for record in before if after.get(record.physical_offset) != record]
    assert chosen in gone
    # What other messages have, too, stays.
    stays = b"\0".join(build(record) + content(record) for record in before if record not in gone)
    wanted = {mark for record in gone for mark in marks(record) if mark not in stays}
    assert wanted
    either = re.compile(b"|".join(rb"(?<![0-9A-Za-z])" + re.escape(mark) if len(mark) != MIN_RUN
                                  else re.escape(mark) for mark in wanted))
    left = [(str(path.relative_to(root)), hit.group()) for path in root.rglob("*")
            if path.is_file() for hit in [either.search(path.read_bytes().rstrip(b"\0"))] if hit]
    left += [(f"record {record.physical_offset}", hit.group()) for record in after.values()
             for hit in [either.search(content(record))] if hit]
    assert left == []
    run("verify", root).expect(0)
