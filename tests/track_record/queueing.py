"""Stores in which log and consumequeues do not agree."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from tests.support import cli, damage
from tests.track_record import anatomy, small
from tests.track_record.case import Case, as_it_is

STALE_ROWS = 9


def rows_of_a_lost_log(root: Path) -> None:
    """Nine rows at the end of a queue which lead into the middle of other messages."""
    def free(files: list[str]) -> int:
        size = (root / files[-1]).stat().st_size
        return size // anatomy.UNIT.size - len(anatomy.rows(root, files[-1]))

    file = max(anatomy.queues(root).values(), key=free)[-1]
    used = len(anatomy.rows(root, file))
    for number, record in enumerate(anatomy.records(root)[-2 * STALE_ROWS::2]):
        damage.cq_set(root, file, used + number, physical_offset=record.start + 7, size=record.size,
                      tags_code=0)


def one_row_missing(root: Path) -> None:
    """The later rows of the newest file stand one place too early."""
    damage.cq_missing(root, anatomy.longest_queue(root)[-1], 3)


def _two_newest_files(root: Path) -> tuple[list[anatomy.Placed], list[anatomy.Placed]]:
    records = anatomy.records(root)
    names = sorted({record.file for record in records})[-2:]
    older, newer = ([record for record in records if record.file == name] for name in names)
    return older, newer


def end_of_the_previous_file_lost(root: Path) -> None:
    """No rows from the last three messages of the second-last file on; recovery begins behind."""
    older, newer = _two_newest_files(root)
    anatomy.forget_rows(root, lambda row: row.physical_offset >= older[-3].start)
    # A broker begins at the newest file whose first message is 3 s older than the checkpoint.
    flushed = newer[0].store_timestamp + 3_001
    assert flushed <= newer[-1].store_timestamp
    damage.checkpoint(root, physic=flushed, logics=flushed, index=flushed)


def checkpoint_says_too_much(root: Path) -> None:
    """The checkpoint names the newest message; the rows of the last two files are lost."""
    older, newer = _two_newest_files(root)
    anatomy.forget_rows(root, lambda row: row.physical_offset >= older[0].start)
    last = newer[-1].store_timestamp
    damage.checkpoint(root, physic=last, logics=last, index=last)


def last_file_of_a_queue_deleted(root: Path) -> None:
    damage.remove(root, anatomy.longest_queue(root)[-1])


def deleted_topic(root: Path) -> None:
    """The topic with the most rows: not in topics.json, no queues, its messages in the log."""
    topic = Path(anatomy.longest_queue(root)[0]).parts[1]
    kept = sorted({Path(folder).parts[1] for folder in anatomy.queues(root)} - {topic})
    damage.remove_folder(root, f"consumequeue/{topic}")
    small.write_topics(root, kept)


def expired_head(root: Path) -> None:
    *expired, last = anatomy.log_files(root)
    for file in expired:
        damage.remove(root, file)
    without_expired_rows(root, int(Path(last).name))


def without_expired_rows(root: Path, start: int) -> None:
    """Delete queue files as a broker does once the log begins at ``start``."""
    for queue in (root / "consumequeue").glob("*/*"):
        for file in sorted(queue.iterdir())[:-1]:
            if int.from_bytes(file.read_bytes()[-20:-12]) >= start:
                break
            file.unlink()


def lmq_gap(root: Path) -> None:
    """A message of a retry topic took an offset of a light queue and has no row there.

    The log is written anew from the golden one with the message's topic changed; the engine then
    does what a broker does.
    """
    lines = cli.run("read", root, "-o", "jsonl", "--body", "base64").expect(0).jsonl()
    shared = [message for message in lines if "INNER_MULTI_DISPATCH" in message["properties"]]
    taken = shared[len(shared) // 2]
    taken["topic"] = "%RETRY%" + taken["topic"]
    names = [Path(file).name for file in anatomy.index_files(root)]
    shutil.rmtree(root)
    cli.run("init", root, "--commitlog-file-size", "32768", "--consumequeue-file-size", "380",
            "--index-slots", "100", "--index-max", "400", "--lmq", "--multi-dispatch").expect(0)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with tempfile.TemporaryDirectory() as folder:
        messages = Path(folder) / "messages.jsonl"
        messages.write_text(text)
        cli.run("append", root, messages, "--as-recorded").expect(0)
    # The engine names index files by the clock.
    for file, name in zip(anatomy.index_files(root), names, strict=True):
        (root / file).rename(root / "index" / name)


CASES = (
    Case(
        495, "rows-of-a-lost-log", "Rows that lead into the middle of messages",
        "After two crashes in a row the rows of a queue do not match the commitlog: nine of them "
        "are left of the log that was lost in the first crash. The user wrote a tool to read both "
        "files and find out.",
        "Nine rows at the end of a queue which lead into other messages.",
        "4.9.3/crash-live/before", rows_of_a_lost_log, ("cq-wrong-offset",)),
    Case(
        467, "one-row-missing", "One message has no row, and the later ones stand one too early",
        "After a crash a slave logs \"[BUG]logic queue order maybe wrong … Diff: 20\", and one "
        "message can never be consumed from it.",
        "One row is missing in the newest file of a queue; the later ones have moved up.",
        "4.9.3/crash-live/before", one_row_missing, ("cq-behind", "cq-out-of-order")),
    Case(
        405, "queues-behind", "The consumequeues are behind the log",
        "Power loss: messages had reached the commitlog but not the consumequeues. Are they "
        "dispatched after the start, or lost to consumers?",
        "The golden set made for it: the queues end long before the log, and the last run did "
        "not end cleanly.",
        "5.3.3/crash-cqlag/before", as_it_is, ()),
    Case(
        1434, "end-of-the-previous-file", "The last messages of the second-last file have no rows",
        "From reading the source: if a crash comes right after a new commitlog file was begun, "
        "recovery starts at that file, and the last messages of the one before never get rows.",
        "Built to the letter: rows are missing from three messages before the newest file on, and "
        "the checkpoint lets recovery begin at the newest file.",
        "4.9.3/crash-live/before", end_of_the_previous_file_lost, ("cq-behind",)),
    Case(
        678, "checkpoint-says-too-much", "The checkpoint is newer than the queues",
        "The time of the last row is flushed to the checkpoint by the index before the rows are: "
        "after a power loss recovery begins too late, and what lies between is never dispatched.",
        "The checkpoint names the newest message; the rows of the last two commitlog files are "
        "not there.",
        "5.3.3/crash-live/before", checkpoint_says_too_much, ("cq-behind",)),
    Case(
        7355, "last-file-of-a-queue", "The last file of a queue is gone",
        "After a machine went down: \"[BUG]logic queue order maybe wrong … Diff: 920\". The steps "
        "to see it: stop, delete the last consumequeue file of a queue, start. Helped so far: "
        "delete all consumequeues.",
        "The thread's steps (it was a DLedger node; this store has an ordinary log).",
        "4.9.3/crash-live/before", last_file_of_a_queue_deleted, ()),
    Case(
        8032, "consumequeue-deleted", "All consumequeues are gone",
        "A 5.2.0 DLedger broker was restarted, and the data in consumequeue was deleted: recovery "
        "had set the end of the log to 0.",
        "What was left, on an ordinary log: no consumequeue, an abort file.",
        "5.3.3/crash-nocq/before", as_it_is, ("cq-missing",)),
    Case(
        1852, "deleted-topic", "A deleted topic's messages are still in the log",
        "A topic was deleted with its queues; after a restart its consumequeues are back, because "
        "the log is dispatched again without asking whether the topic exists.",
        "A topic with messages in the log that has no queues and is not in topics.json.",
        "4.9.3/basic/store", deleted_topic, ()),
    Case(
        8753, "expired-log", "The log is gone where old rows lead",
        "After the first five of six commitlog files were deleted through the admin tool, "
        "topicStatus still shows the old minimum offsets for a topic that has nothing left.",
        "All commitlog files but the newest are gone, as a broker deletes expired ones. That is "
        "legal: nothing must be found.",
        "4.9.3/basic/store", expired_head, ()),
    Case(
        8693, "gap-in-a-light-queue", "An offset of a light queue that nobody has",
        "\"logic queue order maybe wrong\" for a light message queue: an offset was given to a "
        "message of a retry topic, which is then not dispatched to light queues.",
        "Messages written with the engine from a golden log, one of them under a retry topic. The "
        "gap is the broker's doing, not damage.",
        "5.3.3/lmq/store", lmq_gap, (), ("5.3.3",)),
)
