"""Each store of the track record is in the state it claims, and its page is what the list says.

What the pages show is compared in tests/test_transcripts.py. The claims are judged by a second,
independent reading (`tests.support.model`, plain ``struct``), not by rmqctl.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests import test_transcripts as transcripts
from tests.support import model, snapshot
from tests.support.share import sample
from tests.track_record import anatomy, build, pages, stores

NAMES = list(stores.ALL)


@pytest.fixture
def store_of(golden, tmp_path):
    """``made("467")``: the store, built afresh."""
    def build_store(word, name="store"):
        case = stores.find(word)
        return build.build(case, golden(case.base), tmp_path / name)

    return build_store


def judge(root, version="4.9.3", dirs=("commitlog",)):
    return model.Model(root, version, dirs, index_slots=100)


# -- the list --------------------------------------------------------------------------------------


def test_there_are_enough_and_none_twice():
    issues = [case.issue for case in stores.ALL.values()]
    assert len(issues) >= 24
    assert len(set(issues)) == len(issues)
    assert sum(len(cases) for cases in stores.GROUPS.values()) == len(stores.ALL)


@pytest.mark.parametrize("name", NAMES)
def test_verify_finds_what_is_named_and_nothing_else(store_of, rmqctl, name):
    case = stores.ALL[name]
    root = store_of(name)
    with snapshot.assert_unchanged(root):
        answer = rmqctl("verify", root, *case.options.split(), "-o", "json").expect(0, 1).json()
    assert sorted({finding["category"] for finding in answer["findings"]
                   if finding["severity"] != "info"}) == sorted(case.finds)
    assert answer["ok"] == (not case.finds)


@pytest.mark.parametrize(("name", "version"), sample([
    (case.name, version) for case in stores.ALL.values() for version in case.versions], 36,
    "starts"))
def test_preflight_knows_who_does_not_start(store_of, rmqctl, name, version):
    case = stores.ALL[name]
    root = store_of(name)
    with snapshot.assert_unchanged(root):
        report = rmqctl("preflight", root, *case.options.split(), "--broker-version", version,
                        "-o", "json").expect(0, 1).json()
    assert report["starts"] == (version not in case.refuses)


@pytest.mark.parametrize("name", sample(NAMES, 10, "built twice"))
def test_a_store_is_the_same_every_time(store_of, name):
    first, second = store_of(name, "first"), store_of(name, "second")
    assert snapshot.take(first, inodes=False).differences(
        snapshot.take(second, inodes=False)) == []


needs_recover = pytest.mark.skipif(("recover",) not in pages.COMMANDS, reason="no recover yet")


@needs_recover
@pytest.mark.parametrize("name", sample(NAMES, 14, "track record"))
def test_recover_leaves_a_store_that_any_broker_starts_on_and_undo_takes_it_back(
        store_of, golden, rmqctl, name):
    case = stores.ALL[name]
    root = store_of(name)
    intact = [file.start for file in kept(root, case, golden(case.base))]
    before = snapshot.take(root, inodes=False)
    options = case.options.split()
    done = rmqctl("recover", root, *options, "--apply", "--yes", "-o", "json")
    if case.left:
        assert done.code in (0, 1, 6), done.describe()
    else:
        done.expect(0, 1)
        assert case.finds or done.json()["messages_lost"] == [], "nothing was wrong with them"
        assert set(intact) <= {file.start for file in kept(root, case, golden(case.base))}
        answer = rmqctl("verify", root, *options, "-o", "json").expect(0, 1).json()
        assert {finding["category"] for finding in answer["findings"]
                if finding["severity"] != "info"} <= {
                    "config-offset"}, "only `offsets reset` moves offsets"
        for version in case.versions:
            report = rmqctl("preflight", root, *options, "--broker-version", version, "-o", "json")
            assert report.expect(1 if report.json()["offsets_beyond_end"] else 0).json()["starts"]
            assert report.json()["messages_lost"] == 0
    if rmqctl("undo", root, "--list", "-o", "json").json():
        rmqctl("undo", root, "--yes").expect(0)
    after = snapshot.take(root, inodes=False)
    changed = [line for line in before.differences(after)
               if ".rmqctl" not in line and not line.startswith("changed: . (")]
    assert changed == []


def kept(root, case, base):
    """The messages of the golden store that lie in this one, byte for byte, where they did."""
    folders = case.options.replace("--commitlog-dir", "").split()
    here = model.Stream(*(root / name for name in folders or ("commitlog",)))
    return [record for record in anatomy.records(base, *folders)
            if here.at(record.start, record.size) == anatomy.raw(base, record)]


# -- the states ------------------------------------------------------------------------------------


def test_sizes_and_names_keep_a_broker_from_starting(store_of):
    assert (store_of("6904", "a") / "commitlog" / "00000000000000196608").stat().st_size == 0
    stray = store_of("3257", "b") / "commitlog" / "the-bad-empty-file-fails-rocketmq-startup"
    assert stray.stat().st_size == 0
    other = store_of("1560", "c")
    assert {(other / file).stat().st_size for files in anatomy.queues(other).values()
            for file in files} == {220, 440}
    twice = [Path(file).name for file in anatomy.log_files(store_of("8859", "d"), "cl1", "cl2")]
    assert len(twice) == len(set(twice)) + 1


def test_an_empty_last_file_of_a_queue_and_no_queue_up_to_the_log_end(store_of):
    root = store_of("9728")
    sound = judge(root, "5.3.3")
    empty = [files[-1] for files in anatomy.queues(root).values()
             if len(files) > 1 and not anatomy.rows(root, files[-1])]
    assert len(empty) == 1
    # A broker cuts the queues only when one of them leads up to the end of the log or past it.
    assert max(row.physical_offset + row.size for row in anatomy.rows(root)) < sound.log_end


def test_the_queues_lead_to_a_log_that_is_not_there(store_of):
    root = store_of("1231")
    assert anatomy.log_files(root) == []
    assert len(anatomy.rows(root)) == 600


def test_the_magic_is_the_one_of_the_report(store_of):
    root = store_of("289")
    log = b"".join((root / file).read_bytes() for file in anatomy.log_files(root))
    assert log.count(struct.pack(">I", 0x696E4D73)) == 1


def test_the_slave_s_log_is_sound_up_to_the_masters_bytes_and_behind_them(store_of, golden):
    root = store_of("6767")
    here, there = judge(root), judge(golden("4.9.3/crash-live/before"))
    old = here.records[max(here.records)]
    assert old.body == b"written by the old master"
    new = there.records[old.physical_offset]
    assert old.size < new.size
    following = old.physical_offset + new.size
    assert here.log.at(following, 300) == there.log.at(following, 300)
    assert max(row.physical_offset for row in anatomy.rows(root)) == old.physical_offset


def test_a_message_in_the_middle_is_broken(store_of):
    root = store_of("1568")
    broken = [row for row in anatomy.rows(root)
              if judge(root).log.at(row.physical_offset, 64) == bytes(64)]
    assert [Path(row.file).parts[1] for row in broken] == ["RMQ_SYS_TRANS_HALF_TOPIC"]


def test_the_last_message_has_a_sound_body_and_no_properties(store_of):
    sound = judge(store_of("7437"), "5.3.3")
    last = sound.records[max(sound.records)]
    assert last.crc_ok
    assert last.properties.strip("\0") == ""
    assert len(last.properties) > 0


def test_the_crc_is_0_and_right(store_of):
    sound = judge(store_of("9121"), "5.3.3")
    zero = "__CRC32#\x010000000000\x02"
    records = [record for record in sound.records.values() if record.properties.endswith(zero)]
    assert len(records) == 1
    raw = sound.log.at(records[0].physical_offset, records[0].size)
    assert zlib.crc32(raw[:-20]) & 0x7FFFFFFF == 0


def test_whole_messages_that_say_another_place_follow_the_log(store_of, golden):
    here, there = (judge(root, "5.3.3") for root in (store_of("10017"),
                                                     golden("5.3.3/crash-live/before")))
    stale = [(at, record) for at, record in here.records.items() if at not in there.records]
    assert len(stale) == 3
    assert all(record.physical_offset != at and record.crc_ok for at, record in stale)
    assert stale[0][0] == there.log_end


def test_sound_messages_lie_behind_what_the_queues_know(store_of):
    for number, word in enumerate(("10666", "405", "1434", "678", "7355")):
        root = store_of(word, str(number))
        sound = judge(root)
        rows = {row.physical_offset for row in anatomy.rows(root)}
        missing = [record for at, record in sound.records.items() if at not in rows]
        assert len(missing) >= 5, word
        physical_offsets = {}
        for row in anatomy.rows(root):
            physical_offsets.setdefault(str(Path(row.file).parent), []).append(row.physical_offset)
        assert all(file.physical_offset > max(physical_offsets.get(
            f"consumequeue/{file.topic}/{file.queue_id}", [-1])) for file in missing), word


def test_recovery_begins_behind_the_messages_without_rows(store_of):
    """What a broker goes by: the first message of a file, and the checkpoint less 3 s."""
    for word in ("1434", "678"):
        root = store_of(word, word)
        physic, logics = struct.unpack(">qq", (root / "checkpoint").read_bytes()[:16])
        limit = min(physic, logics) - 3000
        records = anatomy.records(root)
        newest = next(record for record in records if record.file == records[-1].file)
        assert newest.store_timestamp <= limit
        rows = {row.physical_offset for row in anatomy.rows(root)}
        assert any(record.start not in rows for record in records
                   if record.start < newest.start), word


def test_stale_rows_lead_into_other_messages(store_of):
    root = store_of("495")
    stale = [row for row in anatomy.rows(root)
             if row.physical_offset not in judge(root).records]
    assert len(stale) == 9
    assert len({row.file for row in stale}) == 1


def test_one_row_is_missing_and_the_others_moved_up(store_of, golden):
    here, there = store_of("467"), golden("4.9.3/crash-live/before")
    gone = set(anatomy.rows(there)) - set(anatomy.rows(here))
    offsets = [{row.physical_offset for row in anatomy.rows(root)} for root in (there, here)]
    assert len(offsets[0] - offsets[1]) == 1
    assert len(gone) > 1


def test_the_deleted_topic_has_messages_and_nothing_else(store_of):
    root = store_of("1852")
    table = json.loads((root / "config" / "topics.json").read_text())["topicConfigTable"]
    topics = {record.topic for record in anatomy.records(root)}
    deleted = topics - set(table)
    assert len(deleted) == 1
    assert not (root / "consumequeue" / deleted.pop()).exists()


def test_rows_lead_before_the_log_where_it_expired(store_of):
    root = store_of("8753")
    start = int(Path(anatomy.log_files(root)[0]).name)
    assert min(row.physical_offset for row in anatomy.rows(root)) < start


def test_the_index_files_are_as_asked(store_of):
    empty = store_of("7539", "a")
    counts = [anatomy.index_count(empty, file) for file in anatomy.index_files(empty)]
    assert counts[-3:] == [-1] * 3
    other = store_of("8041", "b")
    headers = [anatomy.INDEX_HEADER.unpack((other / file).read_bytes()[:40])
               for file in anatomy.index_files(other)]
    assert min(header[2] for header in headers) > judge(other, "5.3.3").log_end
    cut = store_of("9441", "c")
    assert len({(cut / file).stat().st_size for file in anatomy.index_files(cut)}) == 2
    torn = store_of("4463", "d")
    assert (torn / anatomy.index_files(torn)[-1]).read_bytes()[:4096] == bytes(4096)
    doomed = store_of("3868", "e")
    flushed = struct.unpack_from(">q", (doomed / "checkpoint").read_bytes(), 16)[0]
    ends = [anatomy.INDEX_HEADER.unpack((doomed / file).read_bytes()[:40])[1]
            for file in anatomy.index_files(doomed)]
    assert ends[-1] > flushed >= max(ends[:-1])


def test_a_light_queue_has_a_gap_and_no_row_for_it(store_of):
    root = store_of("8693")
    retried = [record for record in anatomy.records(root) if record.topic.startswith("%RETRY%")
               and b"INNER_MULTI_DISPATCH" in anatomy.raw(root, record)]
    assert len(retried) == 1
    light = [row for row in anatomy.rows(root) if Path(row.file).parts[1].startswith("%LMQ%")]
    assert light
    assert retried[0].start not in {row.physical_offset for row in light}


def test_a_compressed_message_that_is_none(store_of):
    sound = judge(store_of("1375"))
    flagged = [record for record in sound.records.values()
               if record.sys_flag & 1 and record.topic == "RMQ_SYS_TRANS_HALF_TOPIC"]
    plain = [record for record in flagged if not record.body.startswith(b"\x78")]
    assert len(plain) == 1
    assert plain[0].crc_ok
    assert plain[0].body


# -- the script ------------------------------------------------------------------------------------


def script(*words):
    return subprocess.run([sys.executable, str(Path(build.__file__)), *map(str, words)],
                          capture_output=True, text=True, timeout=60)


def test_the_script_builds_what_is_asked_for(tmp_path, store_of):
    done = script(tmp_path / "out", "467", "6904-empty-last-file")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["467-one-row-missing",
                                                           "6904-empty-last-file"]
    assert done.stdout.split() == [str(out / "467-one-row-missing"),
                                   str(out / "6904-empty-last-file")]
    assert snapshot.take(out / "467-one-row-missing", inodes=False).differences(
        snapshot.take(store_of("467"), inodes=False)) == []


def test_the_script_overwrites_nothing(tmp_path):
    assert script(tmp_path, "467").returncode == 0
    done = script(tmp_path, "467")
    assert done.returncode == 2
    assert "is there already" in done.stderr
    assert "no such store: 4711" in script(tmp_path, "4711").stderr


# -- the pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_what_the_list_says(name):
    case = stores.ALL[name]
    text = pages.path_of(case).read_text()
    update = "run `python -m tests.track_record.pages`"
    assert pages.without_answers(text) == pages.page(case), update
    commands = [step for step in transcripts.parse(text)
                if isinstance(step, transcripts.Command)]
    # With nothing to do, --apply says nothing: that is for cron.
    assert all(command.expected for command in commands if "--apply" not in command.line), update


def test_there_is_no_page_too_many():
    stems = {path.stem for path in pages.FOLDER.iterdir() if path != pages.TABLE}
    assert stems == set(NAMES)


def test_answers_are_kept_when_a_page_is_written_anew():
    case = stores.find("467")
    text = pages.path_of(case).read_text()
    assert pages.with_answers(pages.page(case), text) == text
    assert pages.with_answers(pages.page(case), pages.page(case)) == pages.page(case)


@pytest.mark.parametrize("name", sample(NAMES, 8, "rows of the table"))
def test_the_row_of_a_store_is_current(store_of, name):
    case = stores.ALL[name]
    assert pages.line(case, store_of(name, name).parent) in pages.TABLE.read_text().splitlines()


@pytest.mark.exhaustive
def test_the_table_is_current(store_of):
    text = pages.TABLE.read_text()
    for case in stores.ALL.values():
        store_of(case.name, case.name)
    root = store_of("467", "last").parent
    assert pages.document(text, root) == text, "run `python -m tests.track_record.pages`"
