"""Tiers with anything in their files: a clear end, one plan that is enough, all is taken back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.support import cli, snapshot
from tests.tiered import recovering

KINDS = ("metadata", "names", "COMMIT_LOG", "CONSUME_QUEUE", "INDEX")
WORDS = ("9" * 25, "-1", "null", "true", "{}", '"', "[", ",", "}", str(1 << 63), "1e400",
         "\\ud800", "")


def spoil_metadata(chosen: random.Random, root: Path) -> None:
    path = root / recovering.METADATA
    text = path.read_text()
    for _ in range(chosen.randint(1, 5)):
        at = chosen.randrange(len(text))
        text = text[:at] + chosen.choice(WORDS) + text[at + chosen.randint(0, 8):]
    path.write_text(text)
    if chosen.random() < 0.3:
        Path(f"{path}.bak").unlink()


def spoil_names(chosen: random.Random, root: Path) -> None:
    path = chosen.choice(sorted(file for file in (root / recovering.BROKER).rglob("*")
                                if file.is_file()))
    match chosen.randrange(5):
        case 0:
            (path.parent / "zz").mkdir()
        case 1:
            path.rename(path.with_name("strange"))
        case 2:
            base = chosen.choice([7, 20, 1000, 1 << 62, (1 << 63) - 1])
            path.rename(path.with_name(recovering.name_of(base)))
        case 3:
            path.rename(path.with_name("01234567" + path.name[8:]))
        case _:
            path.unlink()


def spoil_bytes(chosen: random.Random, root: Path, kind: str) -> None:
    files = sorted((root / recovering.BROKER).glob(f"*/*/{kind}/*"))
    for path in chosen.sample([file for file in files if file.is_file()], min(2, len(files) // 2)):
        data = bytearray(path.read_bytes())
        for _ in range(chosen.randint(1, 4)):
            at = chosen.randrange(len(data) + 1)
            what = chosen.choice([b"\xff" * 8, bytes(8), b"\x7f\xff\xff\xff", chosen.randbytes(1),
                                  chosen.randbytes(40)])
            data[at:at + chosen.choice([0, len(what)])] = what
        path.write_bytes(data[:chosen.choice([len(data), chosen.randrange(len(data) + 1)])])


def trial(chosen: random.Random, root: Path) -> None:
    for kind in chosen.sample(KINDS, chosen.randint(1, 3)):
        if kind == "metadata":
            spoil_metadata(chosen, root)
        elif kind == "names":
            spoil_names(chosen, root)
        else:
            spoil_bytes(chosen, root, kind)
    before = recovering.content(root)
    recovering.recover(root, apply=False)
    assert not recovering.changed(before, recovering.content(root))
    applied = recovering.recover(root)["applied"]
    again = recovering.recover(root, apply=False)
    assert again["actions"] == []
    if applied:
        recovering.undo(root)
    assert not recovering.changed(before, recovering.content(root))
    cli.run("tiered", "expire", root / "tieredstore", "--older-than", "0s", "--now",
            "1795233890000", "-o", "json").expect(0, 6)


@pytest.mark.long
def test_any_tier(golden: GoldenFolder, tmp_path, seed):
    chosen = random.Random(seed)
    for number in range(6):
        trial(chosen, snapshot.copy_tree(golden(recovering.GOLDEN), tmp_path / str(number)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(5))
def test_many_tiers(golden: GoldenFolder, tmp_path, number):
    chosen = random.Random(number)
    for at in range(10):
        trial(chosen, snapshot.copy_tree(golden(recovering.GOLDEN), tmp_path / str(at)))
