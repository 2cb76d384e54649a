"""The command that answers a finding: only commands which exist, with their real arguments."""

from __future__ import annotations

import shlex
from dataclasses import replace

from rmqctl.checks.findings import Finding

_LISTING = frozenset({"cq-missing", "index-missing", "file-missing", "checkpoint-missing",
                      "unclean-shutdown", "file-name", "log-cut"})


def advised(finding: Finding, root: str) -> Finding:
    """The finding with its ``next`` filled in, where there is something to look at."""
    return replace(finding, next=_command(finding, root))


def _command(finding: Finding, root: str) -> str | None:
    store = shlex.quote(root)
    if finding.structure == "config":
        return f"rmqctl config {store}"
    if finding.category in _LISTING:
        return f"rmqctl info {store}"
    if finding.category in ("message-fields", "cq-behind"):
        if finding.topic is not None and finding.structure == "commitlog":
            return f"rmqctl query offset {store} --phy {finding.offset}"
        return f"rmqctl recover table {store}"
    if finding.file is None or finding.position is None:
        return f"rmqctl info {store}" if finding.structure != "store" else None
    return f"rmqctl dump {shlex.quote(finding.file)} --at {finding.position} --hex"
