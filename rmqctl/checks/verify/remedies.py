"""The command that answers a finding: only commands which exist, with their real arguments.

What can be repaired is answered by the plan of that repair, which changes nothing; what a broker's
start would act on, by the prediction of that start; the rest by a look at the place.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from rmqctl.checks.findings import Finding

_STARTING = frozenset({"unclean-shutdown", "log-cut", "torn-tail", "garbage-tail"})
_DAMAGE = frozenset({"body-crc", "property-crc", "record-damaged", "physical-offset", "zero-gap",
                     "file-missing", "file-size"})
_EVIDENCE = frozenset({"cq-lost", "cq-ahead", "index-ahead"})
"""Rows and entries that tell of messages the log lacks: salvage goes by them first."""
_DERIVED = {"consumequeue": "consumequeue", "index": "index"}


def advised(finding: Finding, root: str) -> Finding:
    """The finding with its ``next`` filled in, where there is something to look at."""
    return replace(finding, next=_command(finding, root))


def _command(finding: Finding, root: str) -> str | None:
    store = shlex.quote(root)
    if finding.structure == "config":
        return f"rmqctl config {store}"
    if finding.category == "file-name":
        repaired = finding.structure in ("commitlog", "consumequeue", "index")
        return f"rmqctl {'recover' if repaired else 'info'} {store}"
    if finding.category == "message-fields":
        if finding.topic is not None and finding.structure == "commitlog":
            return f"rmqctl query offset {store} --phy {finding.offset}"
        return f"rmqctl recover table {store}"
    if finding.category in _STARTING:
        return f"rmqctl preflight {store}"
    if finding.category in _EVIDENCE or (
            finding.structure == "commitlog" and finding.category in _DAMAGE):
        return f"rmqctl recover {store}"
    if finding.category.startswith("checkpoint-"):
        return f"rmqctl recover {store} --only checkpoint"
    if finding.structure in _DERIVED and finding.category.startswith(("cq-", "index-", "file-")):
        return f"rmqctl recover {store} --only {_DERIVED[finding.structure]}{_queue(finding)}"
    if finding.file is None or finding.position is None:
        return f"rmqctl info {store}" if finding.structure != "store" else None
    return f"rmqctl dump {shlex.quote(finding.file)} --at {finding.position} --hex"


def _queue(finding: Finding) -> str:
    if (finding.structure != "consumequeue" or finding.category == "cq-missing"
            or finding.topic is None or finding.queue_id is None):
        return ""
    return f" --topic {shlex.quote(finding.topic)} --queue {finding.queue_id}"
