"""A damaged body comes back from another message of the log that has the same one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record, decode, message_id
from rmqctl.repair.rebuild.derived_range import log_as_it_is
from rmqctl.repair.salvage.records import body_at
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.support import tiny
from tests.support.cli import run
from tests.support.share import RUN

BODY = b"tea, milk and a pound of sugar, please"
OPTIONS = ("--index-slots", "8", "--index-max", "32", "-o", "json")


def messages(root: Path) -> dict[int, Record]:
    found = {}
    with Store.open(root) as store:
        for part in log_as_it_is(store):
            with part.open() as source:
                for batch in Walk(source):
                    for row in range(len(batch)):
                        found[int(batch.offset[row])] = decode(batch.bytes_at(row))
    return found


def damage(root: Path, record: Record, luck: Random) -> None:
    """Every byte of its body becomes another one."""
    with Store.open(root) as store:
        file = store.log.file_of(record.physical_offset)
        assert file is not None
        path, position = Path(file.path), record.physical_offset - file.base + body_at(record)
    content = bytearray(path.read_bytes())
    for at in range(position, position + len(record.body)):
        content[at] ^= luck.randrange(1, 256)
    path.write_bytes(content)


def logs(root: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}


@pytest.mark.parametrize("name", [
    "4.9.3/transaction", "5.3.3/transaction", "4.9.3/delay-delivered", "5.3.3/timer"])
def test_copies_that_a_broker_makes(name: str, golden_copy: GoldenFolder) -> None:
    """Half messages and their ends, delayed and timed messages and their deliveries."""
    store = golden_copy(f"{name}/store")
    whole, alike = logs(store), defaultdict(list)
    for record in messages(store).values():
        key = props.parse(record.properties.decode()).get(props.UNIQUE_KEY)
        alike[key, record.body].append(record)
    pairs = [group for (key, body), group in alike.items() if key and body and len(group) > 1]
    luck = Random(RUN.number(name))
    one, other = luck.sample(pairs, 2)
    for record in (one[0], other[-1]):
        damage(store, record, luck)
    plan = run("recover", store, "--correct", "off", "--apply", "--yes", "-o",
               "json").expect(0).json()
    mended = [action for action in plan["actions"] if action["action"] == "mend record"]
    assert len(mended) == 2
    for action in mended:
        assert action["proof"]["fields"] == ["body"]
        assert "the body's CRC" in action["proof"]["witnesses"]
        assert action["proof"]["by"][0].startswith("its body from the ")
    assert logs(store) == whole


def build(root: Path, copy: bytes = BODY, key: str = "0A01", **properties: str) -> tiny.Tiny:
    return tiny.build(root, [
        tiny.Spec("other", 0, b"before"),
        tiny.Spec("orders", 0, BODY, {"UNIQ_KEY": "0A01"}),
        tiny.Spec("orders", 0, b"between", {"UNIQ_KEY": "0A02"}),
        tiny.Spec("%RETRY%billing", 0, copy, {"UNIQ_KEY": key, **properties})])


@pytest.mark.parametrize("index", [True, False])
def test_a_retry_and_its_origin(index: bool, tmp_path: Path) -> None:
    """The index knows both; ORIGIN_MESSAGE_ID knows the place of the origin without it."""
    origin = build(tmp_path / "measured").messages[1].record
    name = message_id(*origin.store_host, origin.physical_offset)
    for number in (1, 3):
        built = build(tmp_path / f"store{number}", ORIGIN_MESSAGE_ID=name)
        whole = logs(built.root)
        damage(built.root, built.messages[number].record, Random(number))
        if not index:
            for path in (built.root / "index").iterdir():
                path.unlink()
        result = run("recover", built.root, *OPTIONS, "--apply", "--yes")
        is_back = index or number == 3
        assert result.code == (0 if is_back else 1)
        assert (logs(built.root) == whole) == is_back


@pytest.mark.parametrize(("copy", "key"), [
    (BODY[:-1] + b"!", "0A01"), (BODY + b"!", "0A01"), (BODY, "0A0F")])
def test_another_body_or_key_is_no_copy(copy: bytes, key: str, tmp_path: Path) -> None:
    built = build(tmp_path / "store", copy, key)
    damage(built.root, built.messages[1].record, Random(1))
    plan = run("recover", built.root, *OPTIONS).expect(1).json()
    assert len(plan["messages_lost"]) == 1
