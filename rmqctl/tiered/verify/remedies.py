"""The command that answers a finding about a tier: only commands which exist."""

from __future__ import annotations

import shlex
from dataclasses import replace

from rmqctl.checks.findings import INFO, Finding
from rmqctl.tiered.files.reader import is_url

_MENDED = frozenset({"tiered-cq-torn", "tiered-cq-missing", "tiered-cq-behind", "tiered-cq-ahead",
                     "tiered-cq-unit", "tiered-cq-order", "tiered-cq-wrong-tag",
                     "tiered-metadata-missing", "tiered-metadata-damaged",
                     "tiered-metadata-entry", "tiered-metadata-size", "tiered-segment-time"})
"""What the tiered files themselves still tell."""
_REMADE = frozenset({"tiered-index-unreadable", "tiered-index-header", "tiered-index-slot",
                     "tiered-index-chain", "tiered-index-hash", "tiered-index-item",
                     "tiered-index-time"})
"""Index files are made anew from the messages, where they are damaged."""
_OFFERED = frozenset({"tiered-orphans", "tiered-index-missing"})
"""What is no damage, and may be mended."""


def advised(finding: Finding, root: str) -> Finding:
    """The finding with its ``next`` filled in, where there is something to do."""
    return replace(finding, next=_command(finding, root))


def _command(finding: Finding, root: str) -> str | None:
    if finding.category in _MENDED or finding.category in _OFFERED:
        return f"rmqctl tiered recover {shlex.quote(root)}"
    if finding.severity == INFO:
        return None
    if finding.category in _REMADE:
        return f"rmqctl tiered recover {shlex.quote(root)}"
    if finding.file is not None and finding.position is not None and not is_url(finding.file):
        return f"rmqctl tiered dump {shlex.quote(finding.file)} --at {finding.position}"
    return f"rmqctl tiered ls {shlex.quote(root)} --segments"
