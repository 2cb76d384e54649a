"""Stores on which a broker does not start, or starts and throws away what was there."""

from __future__ import annotations

from pathlib import Path

from tests.support import damage
from tests.track_record import anatomy
from tests.track_record.case import Case, as_it_is


def empty_last_file(root: Path) -> None:
    damage.empty_file(root, anatomy.log_files(root)[-1])


def empty_queue_file(root: Path) -> None:
    """The newest file of one queue holds no row, and the log ends before its first message.

    The last message that is left has no row yet, so that no queue leads up to the log's end: only
    then a broker does not look at the queues again.
    """
    last_files = [files[-1] for files in anatomy.queues(root).values() if len(files) > 1]
    end = max(anatomy.rows(root, file)[0].physical_offset for file in last_files)
    last = max(record.start for record in anatomy.records(root) if record.end <= end)
    anatomy.cut_log(root, end)
    anatomy.forget_rows(root, lambda row: row.physical_offset >= last)


def stray_file(root: Path) -> None:
    damage.add_file(root, "commitlog/the-bad-empty-file-fails-rocketmq-startup", b"")


def other_size_of_a_queue(root: Path) -> None:
    """A queue with few rows, in a file of half the size."""
    file = min((files[0] for files in anatomy.queues(root).values() if len(files) == 1),
               key=lambda file: len(anatomy.rows(root, file)))
    damage.truncate(root, file, (root / file).stat().st_size // 2 // 20 * 20)


def same_name_twice(root: Path) -> None:
    """The newest file of the log once more in the other folder, with nothing in it."""
    newest = anatomy.log_files(root, "cl1", "cl2")[-1]
    other = newest.replace("cl2", "cl1") if newest.startswith("cl2") else (
        newest.replace("cl1", "cl2"))
    damage.add_file(root, other, bytes((root / newest).stat().st_size))


def moved_log(root: Path) -> None:
    for file in anatomy.log_files(root):
        damage.remove(root, file)


CASES = (
    Case(
        6904, "empty-last-file", "A commitlog file of length zero",
        "After `kill -9` the broker (5.1.1) sometimes does not start again; store.log says "
        "\"0 length not matched message store config value\".",
        "The broker was killed between creating the next commitlog file and extending it.",
        "5.3.3/crash-live/before", empty_last_file, ("file-empty",), refuses=("4.9.3",)),
    Case(
        9728, "empty-queue-file", "The newest file of a queue is empty, and the log lost its tail",
        "A 5.3.3 broker fails to start after a crash with an IllegalArgumentException in "
        "`correctMinOffset`: the last file of a consumequeue is empty, and the messages it was "
        "made for are lost from the log (asynchronous flush).",
        "As the thread's steps say: the tail of the log and the newest file of a queue never "
        "reached the disk.",
        "5.3.3/crash-live/before", empty_queue_file, ("cq-behind", "index-ahead"),
        refuses=("5.3.3",)),
    Case(
        3257, "stray-file", "A file in commitlog/ that the broker did not write",
        "An empty file called `the-bad-empty-file-fails-rocketmq-startup` in the commitlog folder "
        "keeps the broker from starting, and nothing says clearly why.",
        "Exactly that file. A 5.1.3 or later broker deletes it, because it sorts last and is "
        "empty.",
        "4.9.3/basic/store", stray_file, ("file-name",), refuses=("4.9.3",)),
    Case(
        1560, "queue-of-another-size", "A consumequeue file of another size",
        "After an upgrade from 4.3.2 to 4.5.2 the broker does not start: a file of a dead-letter "
        "queue has \"300000 length not matched message store config value\". The old version had "
        "not minded it.",
        "One queue's file has half the size of the others.",
        "4.9.3/crash-base/store", other_size_of_a_queue, ("file-size",),
        refuses=("4.9.3", "5.3.3")),
    Case(
        3467, "log-file-of-another-size", "A commitlog file of another size",
        "A merge error in 4.9.2 made a broker go on without a file of the wrong size and all "
        "behind it. The request: refuse to start, as 4.9.3 does again, with \"please check it "
        "manually\".",
        "The golden set made for it: a commitlog file is shorter than the others.",
        "4.9.3/crash-shortfile/before", as_it_is,
        ("cq-ahead", "file-size", "index-ahead", "torn-tail"), refuses=("4.9.3", "5.3.3")),
    Case(
        8859, "same-name-in-two-folders", "Two commitlog files of the same name",
        "With several commitlog folders, after a long load test, the same file name is in two of "
        "them, and one of the two is empty. Is that a risk at the next start?",
        "The newest file's name once more in the other folder, full of zeros.",
        "5.3.3/multipath/store", same_name_twice, ("file-name", "zero-gap"),
        options="--commitlog-dir cl1 --commitlog-dir cl2",
        left="which of the two it is must be decided by hand"),
    Case(
        1231, "empty-commitlog", "The commitlog folder is empty, the queues are there",
        "After `storePathCommitLog` was changed and the store moved, offsets no longer move and "
        "the slave no longer follows; as far as the thread tells, the paths did not match, and the "
        "broker began a new log at offset 0.",
        "The state in which that start found it: queues and index of the old log, no commitlog "
        "file. A broker that starts on it deletes every consumequeue.",
        "4.9.3/basic/store", moved_log, ("cq-ahead", "index-ahead", "log-cut"),
        left="the log must be put back by hand"),
)
