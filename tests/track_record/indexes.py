"""Stores whose index cannot answer, or lies."""

from __future__ import annotations

from pathlib import Path

from tests.support import damage
from tests.track_record import anatomy
from tests.track_record.case import Case, as_it_is

OTHER_LOG = 10 << 30


def files_without_content(root: Path) -> None:
    """Three files of the right size with nothing in them, newer than the last good one."""
    last = anatomy.index_files(root)[-1]
    size = (root / last).stat().st_size
    for number in range(1, 4):
        damage.add_file(root, f"index/{int(Path(last).name) + 1_000 * number}", bytes(size))


def of_another_log(root: Path) -> None:
    """Every offset in the index is 10 GiB higher: it is of a log that was left behind."""
    slots = 100
    for file in anatomy.index_files(root):
        header = anatomy.INDEX_HEADER.unpack((root / file).read_bytes()[:40])
        damage.index_header(root, file, begin_offset=header[2] + OTHER_LOG,
                            end_offset=header[3] + OTHER_LOG)
        entries = (root / file).read_bytes()[40 + 4 * slots:]
        for number in range(1, anatomy.index_count(root, file) + 1):
            offset = anatomy.INDEX_ENTRY.unpack_from(entries, number * 20)[1]
            damage.index_set(root, file, slots, number, physical_offset=offset + OTHER_LOG)


def cut_in_half(root: Path) -> None:
    file = anatomy.index_files(root)[-1]
    damage.truncate(root, file, (root / file).stat().st_size // 2)


def never_flushed(root: Path) -> None:
    """The first page of the newest file, header and all, never reached the disk."""
    damage.zero_page(root, anatomy.index_files(root)[-1], 0)


CASES = (
    Case(
        3868, "newer-than-the-checkpoint", "An index file that a start will delete",
        "After an abnormal exit a broker deletes every index file that was written to after the "
        "checkpoint's index time, with all the older keys in it; only the newest files of the log "
        "are indexed again.",
        "A copy of a directory taken while the engine ran. Nothing is damaged; what is lost is "
        "lost by the start.",
        "4.9.3/crash-live/before", as_it_is, ()),
    Case(
        7539, "index-files-without-content", "Index files with nothing in them",
        "Index files are made over and over until the disk is full (200 GB): each is created at "
        "full size, then an exception comes before it is put to use.",
        "Three files of full size, all zeros, behind the good ones.",
        "5.3.3/crash-base/store", files_without_content, ()),
    Case(
        8041, "index-of-another-log", "An index of another log",
        "After the commitlog path had changed, new messages get no index entries, without a word "
        "in any log: the index says that offsets far behind the log's end are indexed already. "
        "The user parsed the file by hand to see it.",
        "Every offset in the index is 10 GiB higher than the log's.",
        "5.3.3/crash-base/store", of_another_log, ("index-ahead",)),
    Case(
        9441, "index-file-cut", "An index file of half the size",
        "A request, without a story: check the length of an index file before it is used.",
        "The newest index file is cut in half.",
        "5.3.3/crash-base/store", cut_in_half,
        ("index-behind", "index-unreadable")),
    Case(
        4463, "index-never-flushed", "The newest index file was never flushed",
        "An index file is flushed when it is full; one that is not may be lost though the broker "
        "ended cleanly, if the power fails afterwards.",
        "The first page of the newest index file is zero; everything else ended cleanly.",
        "4.9.3/crash-base/store", never_flushed, ("index-behind",)),
    Case(
        7477, "no-index", "No message is found by its key",
        "After all three nodes were restarted, messages are found by offset message id, but not "
        "by their unique key.",
        "The messages are all there, and there is no index (the user's was a DLedger cluster of "
        "4.9.6).",
        "5.3.3/clean-noindex/before", as_it_is, ("index-missing",)),
)
