"""``rmqctl report``: an HTML incident report about a store."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl import vfs
from rmqctl.commands.app import typed
from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.advising import planned
from rmqctl.commands.shared.engine_options import EngineOptions
from rmqctl.commands.shared.options import Jobs, Out, StoreOptions, Zone, worker_count
from rmqctl.commands.shared.verifying import diagnosed_with_tier
from rmqctl.errors import ExitCode, RefusedError, StoreIOError, noting_refusals, require
from rmqctl.output.units import size_text
from rmqctl.parse_values import is_url, now_ms, show_times_in
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.ext.report.facts import Facts
    from rmqctl.output import Human
    from rmqctl.store import Store

_DAY = 86_400_000


def command(
    *,
    target: Annotated[str, typer.Option(
        "--out", metavar="FILE.html", help="A new file outside the store; existing files are never "
                                           "replaced.")],
    redact: Annotated[str | None, typer.Option(
        "--redact", metavar="LIST", show_default=False,
        help="Mask (comma-separated) bodies, properties, addresses (also in ids), topics, "
             "groups, paths, or all.")] = None,
    hashes: Annotated[bool, typer.Option(
        "--hash/--no-hash", help="Include the SHA-256 of every file of the store (reads all of "
                                 "them again).")] = True,
    engine: Annotated[EngineOptions, pick("version")],
    jobs: Jobs = 0,
    store: StoreOptions,
    tz: Zone = UTC,
    out: Out,
) -> None:
    """Write a self-contained HTML incident report.

    Combines `doctor`, `verify`, `preflight`, `stats`, `offsets` and `impact`: verdict, messages
    over time, a map of the log, topics, groups, findings with explanations, what a startup would
    do, and the SHA-256 of every file. No scripts, no network; printable. Exit code 0 for a sound
    store, 1 if anything is wrong, 3 if part of it is in an unsupported format. Requires pip install
    'rmqctl[report]'.

        rmqctl report STORE --out incident.html
        rmqctl report STORE --out incident.html --redact bodies,properties,addresses
    """
    require("jinja2", "matplotlib")
    from rmqctl.export.staging import checked_target
    from rmqctl.ext.report.facts import gather
    from rmqctl.ext.report.masking import Mask, parse_kinds
    from rmqctl.ext.report.page import PageRequest, of_report, page
    from rmqctl.files.durable import new_whole_file
    from rmqctl.files.remote.reader import without_secrets
    from rmqctl.files.remote.upload import uploaded

    # Check the target before the long work: an existing file is never replaced.
    kinds = parse_kinds(redact)
    if not is_url(target):
        path = checked_target(target)
        if os.path.isdir(path):
            raise RefusedError(f"{target}: is a folder; name a new file")
    show_times_in(tz)
    # Collect the facts once, and draw everything from them.
    with store.open() as opened, noting_refusals() as refused:
        facts = gather(opened, engine.version, worker_count(jobs), out.watch, hashes=hashes)
        facts.notes.extend(refused)
        diagnosis = diagnosed_with_tier(out, opened, facts.diagnosis)
        facts = replace(facts, diagnosis=replace(diagnosis, outlook=planned(
            opened, diagnosis, store, out)))
        # Masking happens last, so that verdicts rest on the real values.
        mask = Mask(kinds, facts.topic_names, facts.group_names,
                    (vfs.realpath(store.root), vfs.abspath(store.root), store.root),
                    _paths(opened))
        html = page(facts, PageRequest(
            of_report(out.lang), tz, mask, now_ms(), _commands(store.root, facts, mask),
            [(mask.text(typed.completed(step.command) or ""), step.why)
             for step in facts.diagnosis.next],
            opened.log if opened.layout.reads("commitlog") else None))
    # Write the complete page at once, then show where it is.
    data = html.encode("utf-8", "backslashreplace")
    with uploaded(target if is_url(target) else path) as target_file:
        new_whole_file(target_file, data)
    document = _document(without_secrets(target), facts, data)
    out.document(document, lambda page: _show(page, facts, document))
    if refused:
        raise StoreIOError(f"{refused[0]}; the report was made without it")
    if not facts.diagnosis.sound:
        raise typer.Exit(int(ExitCode.FINDINGS))
    facts.diagnosis.require_judged()


def _paths(opened: Store) -> Iterator[str]:
    """Yield other paths to mask in the report: typed paths, and log folders outside the store."""
    for typed_word in typed.words.get()[1:]:
        word = typed_word.partition("=")[2] if typed_word.startswith("-") else typed_word
        if os.sep in word or os.path.lexists(word):
            yield word
    for folder in opened.log_folders:
        inside = os.path.relpath(folder, opened.root)
        if inside.startswith(os.pardir):
            yield from (folder, vfs.abspath(folder), inside)


def _commands(root: str, facts: Facts, mask: Any) -> dict[str, str]:
    """Return, for each part of the report, the command line that shows the same facts."""
    from rmqctl.ext.report.drawing import bars

    lines = {name: typed.other(*words, root) for name, words in {
        "doctor": ("doctor",), "verify": ("verify",), "preflight": ("preflight",),
        "offsets": ("offsets",), "groups": ("impact",)}.items()}
    drawn = None if facts.profile is None else bars(
        facts.profile.times, facts.lost_times)
    step = 0 if drawn is None else drawn.step
    by = "day" if step >= _DAY else "hour" if step >= _DAY // 24 else "minute"
    lines["time"] = f"{typed.other('stats', root)} --by {by} --plot"
    lines["queues"] = f"{typed.other('stats', root)} --by queue"
    lines["report"] = typed.again()
    if not facts.diagnosis.sound and not facts.diagnosis.not_judged:
        lines["recover"] = typed.other("recover", root)
    if facts.neighbours and facts.neighbours[0].before is not None:
        first = facts.neighbours[0].before["physical_offset"]
        lines["around"] = f"{typed.other('read', root)} --from-phy {first} --count 2"
    if facts.files is not None:
        lines["files"] = f"cd {shlex.quote(root)} && sha256sum --check LIST"
    return {name: mask.text(line) for name, line in lines.items()}


def _document(target: str, facts: Facts, data: bytes) -> dict[str, Any]:
    diagnosis = facts.diagnosis
    return {"out": target, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
            "sound": diagnosis.sound, "verdict": diagnosis.verdict,
            "findings": sum(row.count for row in diagnosis.damaged),
            "files": None if facts.files is None else len(facts.files)}


def _show(page: Human, facts: Facts, document: dict[str, Any]) -> None:
    diagnosis = facts.diagnosis
    page.text(Phrase("{store}: {verdict}", store=facts.root, verdict=diagnosis.verdict),
              "good" if diagnosis.sound else "bad")
    page.blank()
    page.pairs({
        "report": Phrase("{name}, {size}", name=document["out"],
                         size=size_text(document["bytes"])),
        "sha256": document["sha256"], "findings": f"{document['findings']:,}",
        "files": Phrase("not hashed") if facts.files is None else Phrase(
            "{count:,} file hashed, {size}", "{count:,} files hashed, {size}",
            count=len(facts.files), size=size_text(facts.total_size))})
