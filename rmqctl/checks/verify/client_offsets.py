"""Check of the offsets.json of a broadcasting consumer, and the effect of damage on the client."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rmqctl import vfs
from rmqctl.checks.findings import WARNING, Finding
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.verdict import VerifyResult
from rmqctl.errors import FormatError
from rmqctl.formats import kinds
from rmqctl.phrases import Phrase
from rmqctl.scan.source import FileSource
from rmqctl.store.config import client_offsets
from rmqctl.store.config.client_offsets import ClientOffsets, instead
from rmqctl.store.config.config import BACKUP, MAX_SIZE, NOT_LOADED

STRUCTURE = "client-offsets"
_HEAD = 4096


class ClientOffsetsCoverage(NamedTuple):
    """The numbers of queues, brokers and topics in an offsets.json file."""

    queues: int
    brokers: int
    topics: int

    def as_dict(self) -> Mapping[str, Any]:
        return self._asdict()


def verdict_of(path: str, most: int) -> VerifyResult[ClientOffsetsCoverage] | None:
    """Return the verdict on an offsets.json, with at most ``most`` findings; None if the file is
    of another kind.
    Raises: StoreIOError.
    """
    with FileSource(path) as source:
        data = source.read(0, min(source.size, MAX_SIZE + 1))
    parts = vfs.abspath(path).split(os.sep)
    if kinds.recognise(parts, data[:_HEAD], len(data)) != kinds.CLIENT_OFFSETS:
        return None
    offsets: ClientOffsets | None = None
    findings: list[Finding] = []

    def tell(category: str, detail: str, offset: int | None, severity: str = "") -> None:
        findings.append(Finding(category, STRUCTURE, detail, file=path, offset=offset,
                                length=None if offset is None else max(len(data) - offset, 0),
                                severity=severity, next=f"rmqctl dump {shlex.quote(path)}"))

    try:
        offsets = client_offsets.parse(data)
        for reason, offset in _unread(offsets):
            raise FormatError(reason, offset=offset, path="$")
    except FormatError as error:
        then = instead(path)
        where = "" if error.path in (None, "$") else f" at {error.path}"
        tell("config-backup" if _is_good(path) else "config-unreadable",
             "; ".join(filter(None, (f"{error.reason}{where}", then))), error.offset)
    else:
        for oddity in offsets.oddities:
            tell("config-oddity", oddity.detail, oddity.offset)
        if offsets.faults:
            tell("config-oddity", f"{plural(len(offsets.faults), 'entry', 'entries')} with the "
                 f"wrong format: {offsets.faults[0]}", None, WARNING)
    rows = [] if offsets is None else offsets.rows
    counts = Counter((finding.category, finding.severity) for finding in findings)
    return VerifyResult(path, not any(finding.is_trouble for finding in findings),
                        tuple(findings[:most]), counts,
                        ClientOffsetsCoverage(len(rows), len({row.broker for row in rows}),
                                              len({row.topic for row in rows})),
                        ({"structure": STRUCTURE},))


def covered(verdict: VerifyResult[ClientOffsetsCoverage]) -> dict[str, Any]:
    """Return the values for the sentence that describes what was checked."""
    return {"queues": str(verdict.coverage.queues), "brokers": str(verdict.coverage.brokers),
            "topics": str(verdict.coverage.topics),
            "group": client_offsets.group_of(verdict.root) or Phrase("unknown")}


def _unread(offsets: ClientOffsets) -> Iterator[tuple[str, int]]:
    """Return each reason why a client does not load a parsable file, with the fault's offset."""
    return ((oddity.detail, oddity.offset) for oddity in offsets.oddities
            if oddity.kind in NOT_LOADED)


def _is_good(path: str) -> bool:
    return not path.endswith(BACKUP) and instead(path).startswith("the client reads ")
