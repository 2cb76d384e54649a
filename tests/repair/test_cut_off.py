"""What `recover --strategy broker` cuts off stays in the file, as a broker leaves it: that it is no
damage any more is known as long as nobody has written there, and only then.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.store.log.cut_off import NOTE, cut_at
from rmqctl.store.store import Store
from tests.support import damage, tiny
from tests.support.cli import run as rmqctl

ENDS = {"4.9.3": 171647, "5.3.3": 171668}
FILE = "commitlog/00000000000000163840"


@pytest.fixture(params=sorted(ENDS))
def cut(request, golden_copy) -> tuple[Path, int]:
    """A store of which the end was cut off, and where its log ends."""
    root = golden_copy(f"{request.param}/clean-crc/before")
    rmqctl("recover", root, "--strategy", "broker", "--broker-version", request.param,
           "--apply").expect(1)
    return root, ENDS[request.param]


def test_what_was_cut_off_is_no_damage(cut):
    root, end = cut
    judged = rmqctl("verify", root, "-o", "json").expect(0).json()
    assert {finding["severity"] for finding in judged["findings"]} == {"info"}
    (left,) = [finding for finding in judged["findings"] if finding["category"] == "cut-off"]
    assert (left["offset"], left["count"]) == (end, 20)
    predicted = rmqctl("preflight", root, "-o", "json").expect(0).json()
    assert (predicted["truncate_to"], predicted["messages_lost"]) == (end, 0)
    assert any("a repair truncated the log" in note for note in predicted["notes"])
    again = rmqctl("recover", root, "--strategy", "broker", "--apply", "-o", "json").expect(0)
    assert not again.json()["applied"]


def test_a_sample_of_it_is_sound_too(cut):
    root, _ = cut
    for seed in range(3):
        rmqctl("verify", root, "--sample", "50%", "--seed", str(seed)).expect(0)


def test_writing_goes_on_there_and_leaves_no_rest(cut):
    root, end = cut
    for number in range(2):
        put = rmqctl("write", root, "--topic", "TP_pay_Topic", "--queue", "1", "--body",
                     str(number), "-o", "json").expect(0).json()
        assert put["queue_offset"] == 43 + number
        assert (put["physical_offset"] == end) == (not number)
    findings = rmqctl("verify", root, "-o", "json").expect(0).json()["findings"]
    assert {finding["category"] for finding in findings} <= {"lost-in-repair"}


def test_undone_it_is_damage_again(cut):
    root, _ = cut
    rmqctl("undo", root, "--yes").expect(0)
    assert not (root / ".rmqctl/log-end.json").exists()
    assert rmqctl("preflight", root, "-o", "json").expect(1).json()["messages_lost"] == 20
    rmqctl("verify", root).expect(1)


def test_salvage_still_brings_it_back(cut):
    root, end = cut
    answer = rmqctl("recover", root, "--correct", "off", "--apply", "-o", "json").expect(1).json()
    assert any(f"truncated the log at {end}" in note for note in answer["notes"])
    assert rmqctl("verify", root, "-o", "json").expect(0).json()["coverage"]["messages"] == 274


@pytest.fixture
def without_files(tmp_path: Path) -> tuple[Path, str]:
    """A store of which a repair did away with three of six log files, and the repair's id."""
    root = tiny.build(tmp_path / "store", tiny.DEFAULT * 4, index_max=128).root
    damage.write(root, "commitlog/00000000000000002048", 0, b"\xff" * 60)
    damage.checkpoint_zero(root)
    (root / "abort").touch()
    done = rmqctl("recover", root, "--strategy", "broker", "--apply", "-o", "json").expect(1)
    assert len(list((root / "commitlog").iterdir())) == 3
    return root, done.json()["id"]


def test_whole_files_of_it_come_back_with_undo(without_files):
    root, repair = without_files
    planned = rmqctl("recover", root, "-o", "json").json()
    assert planned["next"] == [f"rmqctl undo {root} {repair}"]
    assert any("moved 3 complete files of the log aside" in note and planned["next"][0] in note
               for note in planned["notes"])
    rmqctl("undo", root, repair, "--yes").expect(0)
    planned = rmqctl("recover", root, "-o", "json").json()
    assert planned["next"] == [f"rmqctl recover {root} -o json --apply"]
    assert not any("aside" in note for note in planned["notes"])
    rmqctl("recover", root, "--apply").expect(1)
    assert rmqctl("verify", root, "-o", "json").expect(0).json()["coverage"]["messages"] == 32


def test_undo_is_not_advised_where_it_would_take_back_more(without_files):
    root, repair = without_files
    (root / "checkpoint").write_bytes(bytes(4096))
    planned = rmqctl("recover", root, "-o", "json").json()
    assert not planned["next"][0].startswith("rmqctl undo")
    assert any(f"repair {repair} moved 3 complete files" in note and "changed since" in note
               for note in planned["notes"])


@pytest.mark.parametrize("at", ["end", "beyond"])
def test_what_was_written_there_since_is_none_of_it(cut, at: str):
    root, end = cut
    place = end - 163840 + (0 if at == "end" else 3000)
    with (root / FILE).open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    assert rmqctl("preflight", root, "-o", "json").expect(1).json()["messages_lost"] >= 19
    rmqctl("verify", root).expect(1)


def test_damage_at_the_same_place_in_newer_messages_is_damage(cut):
    root, end = cut
    for number in range(3):
        rmqctl("write", root, "--topic", "TP_pay_Topic", "--queue", "1", "--body",
               f"body{number}").expect(0)
    data = bytearray((root / FILE).read_bytes())
    data[data.index(b"body0")] ^= 1
    (root / FILE).write_bytes(data)
    predicted = rmqctl("preflight", root, "-o", "json").expect(1).json()
    assert (predicted["truncate_to"], predicted["messages_lost"]) == (end, 2)
    findings = rmqctl("verify", root, "-o", "json").expect(1).json()["findings"]
    assert any(finding["category"] == "body-crc" and finding["offset"] == end
               for finding in findings)


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"format": 1, "end": 1e400, "used": 0}',
                                  b'{"format": 1, "end": -5, "used": -5, "crc": 0}'])
def test_a_note_that_is_none_says_nothing(cut, note: bytes):
    root, _ = cut
    (root / ".rmqctl/log-end.json").write_bytes(note)
    rmqctl("verify", root).expect(1)
    rmqctl("preflight", root).expect(1)


@pytest.mark.parametrize("version", sorted(ENDS))
def test_where_it_cannot_be_known_both_meanings_are_said(golden, version: str):
    """A real broker has cut this store, and noted it only in its checkpoint."""
    root = golden(f"{version}/crash-crc/after")
    predicted = rmqctl("preflight", root, "-o", "json").expect(1)
    assert predicted.json()["messages_lost"] == 20
    assert any("it is unknown which" in note for note in predicted.json()["notes"])
    judged = rmqctl("verify", root, "-o", "json").expect(1).json()
    (damage,) = [finding for finding in judged["findings"] if finding["category"] == "body-crc"]
    assert damage["severity"] == "error"
    assert ("perhaps truncated by a startup" in damage["detail"]) == (version == "5.3.3")


@pytest.mark.parametrize("version", sorted(ENDS))
def test_a_note_alone_hides_no_messages(golden_copy, version: str):
    """Whoever wrote it: a broker reads on where an intact message begins."""
    root = golden_copy(f"{version}/basic/store")
    with Store.open(root) as store:
        places = [int(place) for batch in store.log.walk(store.log.files[-1].base)
                  for place in batch.offset]
        note = cut_at(store.log, places[len(places) // 2])
    (root / NOTE).parent.mkdir()
    (root / NOTE).write_bytes(note.build())
    judged = rmqctl("verify", root, "-o", "json").expect(0).json()
    assert judged["findings"] == []
    assert not any("a repair has ended" in line for line in rmqctl(
        "recover", root, "-o", "json").expect(0).json()["notes"])
    assert rmqctl("preflight", root, "-o", "json").expect(0).json()["truncate_to"] > note.end
