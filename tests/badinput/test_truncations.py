"""Every file of a tiny store cut at every length, and the log's tail torn at every byte."""

from __future__ import annotations

import json

import pytest

from tests.badinput.test_bit_flips import CONFIG, FILES, INDEX, LOG, QUEUES
from tests.support import damage, subject
from tests.support import tiny as tiny_stores
from tests.support.share import every

FIELDS_OF_CHECKPOINT = 16


def lengths(size: int, file: str) -> list[int]:
    """Every length of a small file; the checkpoint's empty page only here and there."""
    if file == "checkpoint":
        return [*range(48), *range(48, size, 500), size - 1]
    return list(range(size))


def used(store: tiny_stores.Tiny, file: str) -> int:
    """The bytes of the file that hold something; a cut below must be noticed."""
    if file in LOG:
        return (store.root / file).stat().st_size  # the engine refuses any other length
    if file in QUEUES:
        return max(at + tiny_stores.UNIT.size for name, at in map(store.unit_place, store.units)
                   if name == file)
    if file == INDEX:
        return store.entry_place(len(store.entries) + 1)[1]
    if file == "checkpoint":
        return FIELDS_OF_CHECKPOINT
    return len((store.root / file).read_bytes().rstrip())


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("file", FILES)
def test_cut_at_every_length(file: str, step: int, tiny: tiny_stores.Tiny) -> None:
    whole = (tiny.root / file).read_bytes()
    filled = used(tiny, file)
    wrong = []
    for size in every(3, lengths(len(whole), file)[::step], file):
        damage.truncate(tiny.root, file, size)
        report = subject.verify(tiny.root)
        (tiny.root / file).write_bytes(whole)
        if not subject.every_byte_is_accounted_for(report):
            wrong.append(f"{size}: bytes do not add up: {report.coverage}")
        if size < filled and not any(finding.file == file for finding in report.findings):
            wrong.append(f"{size}: not found: {report.text()}")
    assert not wrong, "\n".join(wrong[:40])


@pytest.mark.parametrize("file", CONFIG)
def test_a_cut_config_file_falls_back_to_its_backup(file: str, tiny: tiny_stores.Tiny) -> None:
    """`config` gives the content all the same, says which copy it is and names the bad one."""
    name = file.removeprefix("config/")
    section = {"topics.json": "topics", "consumerOffset.json": "offsets",
               "delayOffset.json": "delay"}[name]
    whole = (tiny.root / file).read_bytes()
    good = subject.cli.run("config", tiny.root, section, "-o", "json").expect(0)
    for size in range(0, len(whole) - 1, 5):
        damage.config_truncated(tiny.root, name, size)
        rows_shown = subject.cli.run("config", tiny.root, section, "-o", "json").expect(0, 1)
        assert f"{name}.bak" in rows_shown.out + rows_shown.err, size
        report = subject.verify(tiny.root, only="config")
        bad = [finding for finding in report.findings if finding.file == file]
        assert bad, size
        assert any(".bak" in finding.detail for finding in bad), report.text()
        (tiny.root / file).write_bytes(whole)
    assert json.loads(good.out)


@pytest.mark.long
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_torn_tail_is_no_damage_in_the_middle(step: int, tiny: tiny_stores.Tiny) -> None:
    """Zeros from any byte of the last two messages on: the log ends exactly where it does."""
    whole = {file: (tiny.root / file).read_bytes() for file in tiny.files("commitlog")}
    second_last, last = tiny.messages[-2:]
    wrong = []
    for physical in range(second_last.start, last.end, step):
        file, position = tiny.place(physical)
        damage.zero(tiny.root, file, position, len(whole[file]) - position)
        report = subject.verify(tiny.root)
        torn = second_last if physical < last.start else last
        boundary = physical in (second_last.start, last.start)
        kept = [message for message in tiny.messages if message.end <= physical]
        places = [finding.physical_offset for finding in report.of("commitlog")
                  if finding.category != "log-cut"]
        properties = torn.end - len(torn.record.properties)
        if properties <= physical < torn.end:
            # No checksum covers them: what tells is that queue and index disagree.
            unmarked = not any(torn.raw[physical - torn.start:])
            if not unmarked and report.ok:
                wrong.append(f"{physical}: zeroed properties went unnoticed")
            for name, data in whole.items():
                (tiny.root / name).write_bytes(data)
            continue
        if report.coverage["messages"] != len(kept):
            wrong.append(f"{physical}: {report.coverage['messages']} messages, not {len(kept)}")
        if boundary and places:
            wrong.append(f"{physical}: the log just ends there: {report.text()}")
        # The last bytes of a record may be zero anyway: then nothing was lost.
        unchanged = not any(torn.raw[physical - torn.start:])
        # Of a size nothing but leading zeros is left: the log ends there, and rows say it did not.
        nothing_left = not any(torn.raw[:physical - torn.start])
        if not boundary and not unchanged and not nothing_left and places != [torn.start]:
            wrong.append(f"{physical}: {places}, not [{torn.start}]: {report.text()}")
        for name, data in whole.items():
            (tiny.root / name).write_bytes(data)
    assert not wrong, "\n".join(wrong[:40])


@pytest.mark.parametrize("size", range(0, 180, 9))
def test_a_record_in_progress_is_no_damage(size: int, tiny: tiny_stores.Tiny) -> None:
    """With an abort file the broker may be writing: the first bytes of a record at the end."""
    file, position = tiny.place(tiny.log_end)
    raw = tiny.messages[-1].raw
    damage.write(tiny.root, file, position, raw[:min(size, len(raw) - 1)])
    (tiny.root / "abort").write_bytes(b"1")
    report = subject.verify(tiny.root)
    assert not [finding for finding in report.findings
                if finding.severity == "error"], report.text()
    assert report.coverage["messages"] == len(tiny.messages)
