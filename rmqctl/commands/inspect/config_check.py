"""``rmqctl config check``: check a broker's configuration file as the broker reads it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.engine_options import EngineOptions
from rmqctl.commands.shared.options import Out, complete_folders
from rmqctl.errors import ExitCode
from rmqctl.phrases import Phrase, counted

if TYPE_CHECKING:
    from rmqctl.checks.conf_check import ConfFinding
    from rmqctl.output import Human

_COLUMNS = ("category", "severity", "setting", "value", "line", "detail", "file")
_BRIEF = ("severity", "category", "line", "detail")
_STYLES = {"error": "bad", "warning": "warn", "info": "dim"}


def command(
    *,
    file: Annotated[str, typer.Argument(
        metavar="FILE", show_default=False, help="The broker's configuration file (broker.conf).")],
    store: Annotated[str | None, typer.Argument(
        metavar="[STORE]", autocompletion=complete_folders, show_default=False,
        help="The store that the broker will start on.")] = None,
    engine: Annotated[EngineOptions, pick("version")],
    out: Out,
) -> None:
    """Check a broker.conf: names, values, folders, and whether it fits a store.

    Lists names that a broker of this release ignores, values that Java reads in an unexpected way,
    missing folders, and defaults that matter. With STORE, also lists each setting that keeps a
    broker from starting on the store or from reading all of it. Exit code 1 if something is wrong;
    info findings do not count.

        rmqctl config check /etc/rocketmq/broker.conf /data/store
    """
    from rmqctl.broker.recovery import default_release
    from rmqctl.broker.versions import NEWEST, release_of
    from rmqctl.checks.conf_check import check
    from rmqctl.store import Sizes, Store
    from rmqctl.store.broker_conf import read_conf

    conf = read_conf(file)
    with ExitStack() as stack:
        opened = None if store is None else stack.enter_context(
            Store.open(store, conf.folders(store), Sizes(conf=conf)))
        release = release_of(engine.version) if engine.version else (
            NEWEST if opened is None else default_release(opened))
        findings = check(conf, release, opened)
    ok = not any(conf_finding.finding.is_trouble for conf_finding in findings)
    rows = [conf_finding.as_dict() for conf_finding in findings]
    document = {"ok": ok, "file": file, "store": store, "broker_version": release,
                "findings": rows}
    out.listing(document, lambda page: _show(page, file, release, findings, ok), rows=rows,
                columns=_COLUMNS)
    if not ok:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _show(page: Human, file: str, release: str, findings: list[ConfFinding], ok: bool) -> None:
    troubles = sum(conf_finding.finding.is_trouble for conf_finding in findings)
    page.text(Phrase("{file}: {verdict} (for a {release} broker)", file=file, release=release,
                     verdict=Phrase("no problems found") if ok else counted(troubles, "finding")),
              "good" if ok else "bad")
    if findings:
        page.blank()
        page.table([{"severity": row.finding.severity, "category": row.finding.category,
                     "line": row.line, "detail": row.finding.detail} for row in findings],
                   _BRIEF, styles={"severity": _STYLES.get})
