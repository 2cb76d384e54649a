"""``rmqctl case``: create or check an evidence folder about a store, a file or a disk image."""

from __future__ import annotations

import os
import shlex
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app import typed
from rmqctl.commands.shared.options import LayoutOptions, Out
from rmqctl.errors import ExitCode, NotAStoreError, StoreIOError, UsageError
from rmqctl.output.units import size_text
from rmqctl.parse_values import is_url
from rmqctl.phrases import Phrase, counted

if TYPE_CHECKING:
    from rmqctl.case.collect import CaseResult
    from rmqctl.case.folder import Check
    from rmqctl.output import Human, Output

_MAX_NAMED = 10


def command(
    *,
    path: Annotated[str, typer.Argument(
        metavar="PATH", show_default=False,
        help="A store, another folder, a file, a disk image or a block device; with --check, an "
        "evidence folder.")],
    target: Annotated[str | None, typer.Option(
        "--out", metavar="DIR", help="The evidence folder: a new or empty folder outside PATH.",
        show_default=False)] = None,
    check: Annotated[bool, typer.Option(
        "--check", help="Compare every file of the evidence folder PATH with its "
                        "checksum.")] = False,
    redact: Annotated[bool, typer.Option(
        "--redact", help="Replace bodies, keys, property values, addresses and ids with digests, "
                         "and do not copy damaged bytes.")] = False,
    layout: LayoutOptions,
    out: Out,
) -> None:
    """Create a folder with evidence about a store, which can be checked without rmqctl.

    README.txt lists the contents: the SHA-256 of every original (computed first); the output of
    `info`, `doctor`, `verify`, `preflight`, `offsets` and `report`; the messages with their
    locations; other records that `carve` finds; the bytes of damaged ranges; a log of every step;
    and SHA256SUMS for `sha256sum -c`. PATH is only read. Exit code 1 if anything is missing from
    the folder or has changed.

        rmqctl case STORE --out evidence
        rmqctl case evidence --check
    """
    from rmqctl.case.folder import check as checked

    if check:
        if target is not None or redact:
            raise UsageError("--check cannot be combined with --out or --redact")
        evidence = checked(path)
        out.document(evidence.as_dict(), lambda page: _checked(page, evidence))
        if not evidence.ok:
            raise typer.Exit(int(ExitCode.FINDINGS))
        return
    if target is None:
        raise UsageError("pass --out DIR to create an evidence folder, or --check to check one")
    result = _collected(out, path, target, layout, redact=redact)
    document = {"out": target, "sha256_of_sums": result.sums, **result.summary}
    out.document(document, lambda page: _show(page, path, document))
    if result.problems:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _collected(out: Output, path: str, target: str, layout: LayoutOptions, *,
               redact: bool) -> CaseResult:
    from rmqctl.case.collect import Case, collect
    from rmqctl.export.staging import checked_target
    from rmqctl.files.remote.reader import without_secrets
    from rmqctl.store.redaction import redaction_of

    # Refuse a target that is inside PATH or not empty.
    if is_url(path):
        raise UsageError(f"{without_secrets(path)}: not local; copy it to this machine first")
    if not os.path.exists(path):
        raise StoreIOError(f"{path}: does not exist")
    root, folder = os.path.abspath(path), checked_target(target)
    real = os.path.realpath(root)
    if folder == real or folder.startswith(real.rstrip(os.sep) + os.sep):
        raise UsageError(f"--out {target} is inside {path}, which is to be examined")
    is_store, log_folders, size = _store(out, root, layout)

    def words(*command: str) -> list[str]:
        return shlex.split(typed.other(*command, root))[1:]

    # One key for all commands of a redacted case, in a file without a name: nobody can read it
    # afterwards, however this run ends.
    with tempfile.TemporaryFile() as key, out.progress("collecting evidence") as progress:
        def step(name: str, total: int | None) -> Any:
            progress.phase(name, total)
            return progress.advance

        case = Case(root, is_store, words, log_folders)
        if redact:
            key.write(os.urandom(32))
            key.flush()
            name = f"/dev/fd/{key.fileno()}"
            case = replace(case, redaction=redaction_of(name, wanted=True), key=key.fileno(),
                           redact=("--redact", "--redact-key", name))
        return collect(case, folder, step, size)


def _store(out: Output, root: str, layout: LayoutOptions) -> tuple[bool, list[str], int]:
    """Return (whether ``root`` is a store, its log folders, the size of its files in bytes)."""
    from rmqctl.scan.source import FileSource
    from rmqctl.store import Store
    from rmqctl.store.info import inventory

    if not os.path.isdir(root):
        with FileSource(root, device=True) as source:
            return False, [], source.size
    try:
        with Store.open(root, layout.folders_of([root]), layout.sizes) as store:
            return True, list(store.log_folders), sum(item.size for item in inventory(store)[0])
    except NotAStoreError as error:
        out.note(Phrase("{error}; only its bytes are examined", error=error))
        return False, [], 0


def _show(page: Human, path: str, document: dict[str, Any]) -> None:
    originals = document["originals"]
    page.text(Phrase("evidence folder complete: {out}", out=document["out"])
              if document["complete"] else
              Phrase("evidence folder NOT complete: {out}", out=document["out"]),
              "good" if document["complete"] else "bad")
    page.blank()
    figures = {
        "examined": path,
        "originals": Phrase("{files}, {size}", files=counted(originals["files"], "file"),
                            size=size_text(originals["bytes"])),
        "verdict": document["verdict"],
        "messages": None if document["messages"] is None else f"{document['messages']:,}",
        "carved": ", ".join(f"{count:,} {name}" for name, count in sorted(
            document["carved"].items())) or None,
        "damaged ranges": f"{document['damaged_places']:,}",
        "sha256 of SHA256SUMS": document["sha256_of_sums"]}
    page.pairs({name: value for name, value in figures.items() if value is not None})
    for problem in document["problems"]:
        page.text(Phrase("missing: {problem}", problem=problem), "bad")
    page.heading("What next")
    page.text(f"rmqctl case {shlex.quote(document['out'])} --check")


def _checked(page: Human, result: Check) -> None:
    page.text(Phrase("{case}: unchanged, {files}", case=result.folder,
                     files=counted(result.files, "file")) if result.ok else
              Phrase("{case}: NOT unchanged", case=result.folder), "good" if result.ok else "bad")
    if not result.finished:
        page.text(Phrase("unfinished: `rmqctl case` was interrupted, or is still running"))
    for count, named in (
            (len(result.changed), [Phrase("changed: {name}", name=name)
                                   for name in result.changed[:_MAX_NAMED]]),
            (len(result.missing), [Phrase("missing: {name}", name=name)
                                   for name in result.missing[:_MAX_NAMED]]),
            (len(result.extra), [Phrase("not in SHA256SUMS: {name}", name=name)
                                 for name in result.extra[:_MAX_NAMED]])):
        for phrase in named:
            page.text(phrase)
        if count > _MAX_NAMED:
            page.text(Phrase("and {more:,} more", more=count - _MAX_NAMED))
    if result.sums is not None:
        page.pairs({"sha256 of SHA256SUMS": result.sums})
