"""Verdicts of `verify` on several stores, combined into one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmqctl.checks.verify.verdict import VerifyResult
from rmqctl.checks.verify.verify import Coverage
from rmqctl.errors import RmqctlError
from rmqctl.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class JudgedStore:
    """The verdict on a store, or the error that prevented a verdict."""

    root: str
    verdict: VerifyResult[Coverage] | None
    error: RmqctlError | None = None

    def findings(self) -> list[dict[str, Any]]:
        """Return the findings as rows that include the name of the store."""
        return [] if self.verdict is None else [
            {"store": self.root, **finding.as_dict()} for finding in self.verdict.findings]

    def summary(self) -> dict[str, Any]:
        """Return the verdict without its findings."""
        if self.verdict is None:
            return {"store": self.root, "ok": False, "error": str(self.error)}
        return {"store": self.root, **{name: value for name, value in self.verdict.as_dict().items()
                                       if name != "findings"}}


def document(judged: Sequence[JudgedStore]) -> dict[str, Any]:
    """Return the JSON document of ``verify`` for several stores, with a summary of each."""
    verdicts = [store.verdict for store in judged if store.verdict is not None]
    coverage: dict[str, int] = {}
    checked: dict[str, None] = {}
    for verdict in verdicts:
        checked |= dict.fromkeys(str(row["structure"]) for row in verdict.checked)
        for name, value in verdict.coverage.as_dict().items():
            coverage[name] = coverage.get(name, 0) + value
    return {"ok": all(store.verdict is not None and store.verdict.ok for store in judged),
            "findings": [row for store in judged for row in store.findings()], "coverage": coverage,
            "checked": [{"structure": name} for name in checked],
            "findings_total": sum(judgement.total for judgement in verdicts),
            "stores": [store.summary() for store in judged]}
