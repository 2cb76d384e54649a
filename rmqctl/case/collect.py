"""Create an evidence folder.

Its files are written in this order: a list of the originals with their checksums, rmqctl's
findings, the checksums of all other files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from rmqctl import __version__
from rmqctl.case import inventory
from rmqctl.case.folder import README, Folder
from rmqctl.case.inventory import Inventory
from rmqctl.case.readme import readme
from rmqctl.case.records import LIVE, DamageCopies, FindingPlaces, Live, carve
from rmqctl.case.runs import CommandRuns, host, now
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.redaction import Redaction

SUMMARY, REPORT = "case.json", "report.html"
MAX_FINDINGS = 10_000
DOCUMENTS = {"info": (), "doctor": (), "verify": ("--limit", str(MAX_FINDINGS)),
             "preflight": (), "offsets": ()}
"""Commands that print one JSON document, each with its options."""


@dataclass(frozen=True, slots=True)
class Case:
    """Subject of an examination.

    ``words``: returns the arguments of an rmqctl command on the subject.
    ``redaction``: redaction of the output, if any.
    ``redact``: option for the commands that redact their own output.
    ``key``: file descriptor from which these commands read the redaction's key.
    """

    root: str
    is_store: bool
    words: Callable[..., list[str]]
    log_folders: Sequence[str] = ()
    redaction: Redaction | None = None
    redact: Sequence[str] = ()
    key: int | None = None


@dataclass(slots=True)
class CaseResult:
    """Result of an examination. ``problems``: reasons why the folder is incomplete. ``sums``:
    SHA-256 of the file of checksums.
    """

    summary: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    sums: str = ""


def collect(case: Case, target: str, step: Callable[[str, int | None], Callable[[int], None]],
            size: int) -> CaseResult:
    """Create the evidence folder ``target``.

    ``step`` is called at the start of each step, with the name and the number of bytes of the step.
    ``step`` returns a function that is called with the number of bytes processed.
    Raises: StoreIOError, RefusedError.
    """
    result, folder = CaseResult(), Folder(target)
    began, before = now(), inventory.stamps(case.root, case.log_folders)
    runs = CommandRuns(folder, case.redaction, () if case.key is None else (case.key,))
    copies = DamageCopies(folder, case.redaction)
    try:
        # First what identifies the run, then the originals, before anything else reads them.
        runs.note({"rmqctl": __version__, "source": case.root, **host(
            case.root, redacted=case.redaction is not None)})
        advance = step("hashing", size)
        originals = inventory.take(folder, case.root, case.log_folders, advance)
        runs.note({"listed": inventory.LIST, "sums": inventory.SUMS, "files": originals.files,
                   "bytes": originals.bytes, "ended": now()})
        examined = _examined(case, folder, runs, copies, lambda name: step(name, None))
    finally:
        runs.close()
        copies.close()
    # Whether the originals have changed, then the summary, and the sums of everything.
    changed = before != inventory.stamps(case.root, case.log_folders)
    result.problems = list(_problems(originals, runs, copies, folder, changed=changed))
    result.summary = {
        "source": case.root, "base": inventory.base_of(case.root),
        "kind": "store" if case.is_store else "bytes", "began": began, "ended": now(),
        "rmqctl": __version__, "redacted": case.redaction is not None,
        "originals": {"files": originals.files, "bytes": originals.bytes,
                      "links": originals.links, "not_read": originals.unread},
        "originals_changed": changed, **examined, "damaged_places": copies.count,
        "complete": not result.problems, "problems": result.problems}
    folder.write(SUMMARY, json.dumps(result.summary, indent=2, ensure_ascii=True).encode() + b"\n")
    folder.write(README, readme(result.summary, runs.rows, os.listdir(target)))
    step("sums", None)
    result.sums = folder.finish()
    return result


def _examined(case: Case, folder: Folder, runs: CommandRuns, copies: DamageCopies,
              step: Callable[[str], object]) -> dict[str, Any]:
    """Run the commands; return the part of the summary that is about their output."""
    documents: dict[str, Any] = {}
    live = None
    if case.is_store:
        # The answers of rmqctl about the store.
        for name, options in DOCUMENTS.items():
            step(name)
            documents[name] = runs.document(
                [*case.words(name), "-o", "json", *options], f"{name}.json")
        step("report")
        masked = ("--redact", "bodies,properties,addresses") if case.redaction else ()
        runs.finished([*case.words("report"), "--no-hash", "--out", folder.at(REPORT), *masked],
                      REPORT)
        # The messages of the store.
        step("export")
        runs.finished([*case.words("export"), "--provenance", "--out", folder.at(LIVE),
                       *case.redact], LIVE)
        if os.path.exists(folder.at(LIVE)):
            with open(folder.at(LIVE), "rb") as exported:
                live = Live(case.root, exported)
    # Copies of damaged places, and the other records there.
    findings = (documents.get("verify") or {}).get("findings", [])
    for row in findings:
        if row.get("file") and row.get("position") is not None:
            copies.add(row["file"], row["position"], row.get("length") or 0, {
                key: row.get(key) for key in ("category", "severity", "structure", "detail",
                                              "topic", "queue_id", "queue_offset")})
    step("carve")
    carved = carve(runs, folder, [*case.words("carve"), "-o", "jsonl", "--embedded", "--damaged",
                                  "--duplicates", *case.redact], live, FindingPlaces(findings),
                   copies)
    carved.pop("live", None)
    return {"verdict": (documents.get("doctor") or {}).get("verdict"),
            "findings": (documents.get("verify") or {}).get("findings_total"),
            "messages": None if live is None else live.count, "carved": dict(carved)}


def _problems(originals: Inventory, runs: CommandRuns, copies: DamageCopies, folder: Folder, *,
              changed: bool) -> list[str]:
    problems = list(originals.problems)
    if originals.unread > len(problems):
        problems.append(f"and {originals.unread - len(problems)} more originals were not read")
    problems += [f"step {row['step']} ({row['command'].split()[1]}): {row['meaning']}, exit code "
                 f"{row['exit_code']}" for row in runs.rows
                 if not row["done"] or not os.path.exists(folder.at(row["output"]))
                 if (row["exit_code"], row["output"]) != (3, REPORT)]  # the report is an extra
    if changed:
        problems.append("the originals changed while they were examined")
    if copies.left_out:
        problems.append(f"{copies.left_out} more damaged places were not copied")
    return problems
