"""``README.txt``: a description of the evidence folder for readers who do not know rmqctl."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

_WIDTH = 78
_FILES = {
    "SHA256SUMS": "the SHA-256 of every other file of this folder",
    "case.json": "this page as JSON, for programs",
    "originals.sha256": "the SHA-256 of every original file, taken first",
    "originals.jsonl": "every original file, folder and link: size, times, owner, inode",
    "log.jsonl": "machine and versions; every command: when, how long, exit code",
    "stderr/": "warnings and notes of the commands",
    "report.html": "the report for people; open it in a browser",
    "doctor.json": "the verdict, and who is affected",
    "verify.json": "every finding, with file and position",
    "info.json": "files, times, versions and counts of the store",
    "preflight.json": "what a broker would do to the store at startup",
    "offsets.json": "queues and consumer offsets",
    "messages.jsonl": "the messages of the log, one per line",
    "carved.jsonl": "all other records found in the bytes, one per line",
    "damage/": "the bytes of every place that a finding names, and index.jsonl",
}
_RESULTS = {
    "not-served": "intact and at its own offset, but not a message of the log: from an earlier use "
                  "of the file, from another structure such as the compaction log, or not "
                  "confirmed by anything (see `finding`)",
    "in-place": "intact, and nothing contradicts its physical offset",
    "doubtful": "intact, but it may be part of the body of a damaged message",
    "misplaced": "intact, but other records contradict its physical offset",
    "embedded-in-damage": "intact, but after or inside damage: a message, or a copy in the body "
                          "of a damaged message",
    "damaged": "its body does not match its checksum",
    "duplicate": "the same record as one found before",
}


def readme(summary: Mapping[str, Any], runs: Sequence[Mapping[str, Any]],
           present: Collection[str]) -> bytes:
    """Return the text of the file: at most 78 columns wide except for names and commands."""
    lines = [*_lines(summary, runs, present)]
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


def _lines(summary: Mapping[str, Any], runs: Sequence[Mapping[str, Any]],
           present: Collection[str]) -> Iterator[str]:
    originals = summary["originals"]
    # The subject and the results.
    yield from ("EVIDENCE FOLDER", "===============", "")
    yield f"Examined   {_shown(summary['source'])}"
    yield (f"           {originals['files']:,} file{'s' * (originals['files'] != 1)}, "
           f"{originals['bytes']:,} bytes")
    yield f"From, to   {summary['began']}, {summary['ended']}"
    yield f"With       rmqctl {summary['rmqctl']}, tools for Apache RocketMQ"
    if summary["verdict"]:
        yield from _folded(f"Verdict    {summary['verdict']}", 11)
    if summary["messages"] is not None:
        yield f"Messages   {summary['messages']:,} in the log of the store"
    if summary["carved"]:
        yield from _folded("Carved     " + ", ".join(
            f"{count:,} {name}" for name, count in sorted(summary["carved"].items())), 11)
    yield f"Damage     {summary['damaged_places']:,} places"
    if summary["redacted"]:
        yield from _folded("Redacted   bodies, keys, property values, addresses and ids are "
                           "digests; equal values have equal digests", 11)
    # Missing parts.
    yield ""
    if summary["complete"]:
        yield "Everything was read, and the originals did not change meanwhile."
    else:
        yield "NOT COMPLETE:"
        for problem in summary["problems"]:
            yield from _folded(f"- {problem}", 2)
    # How to check the folder.
    yield from ("", "IS IT UNCHANGED?", "----------------", "",
                "This folder:     sha256sum -c SHA256SUMS      (in this folder)",
                "The originals:   sha256sum -c /path/to/originals.sha256",
                f"                 (in {_shown(summary['base'])})", "")
    yield from _folded("Anyone who changes this folder can also change SHA256SUMS. So keep the "
                       "SHA-256 of SHA256SUMS, which the command printed, in another place.", 0)
    # The files.
    yield from ("", "FILES", "-----", "")
    for name, meaning in _FILES.items():
        if name == "SHA256SUMS" or name.rstrip("/") in present:
            yield from _folded(f"{name:<18}{meaning}", 18)
    yield ""
    yield from _folded("Files that end with .jsonl have one JSON object per line. A message names "
                       "the file (`file` or `source`) and the position in it (`position` or "
                       "`source_offset`, in bytes) where it was found.", 0)
    if summary["carved"]:
        yield from ("", "HOW A RECORD WAS FOUND (`found` in carved.jsonl)",
                    "------------------------------------------------", "")
    for name, meaning in _RESULTS.items():
        if name in summary["carved"]:
            yield from _folded(f"{name:<20}{meaning}", 20)
    # The commands.
    yield from ("", "COMMANDS", "--------", "")
    for row in runs:
        yield f"{row['step']:>2}. {_shown(row['command'])}"
        yield f"    exit code {row['exit_code']} ({row['meaning']}), {row['seconds']:.1f} s"


def _folded(text: str, indent: int) -> list[str]:
    return textwrap.wrap(_shown(text), _WIDTH, subsequent_indent=" " * indent,
                         break_long_words=False, break_on_hyphens=False)


def _shown(text: str) -> str:
    """Return a text as one line: line breaks and other special characters become escapes."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
