"""What `verify`, `preflight` and `doctor` say of one store that cannot all be true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cli import run

JSON = ("-o", "json")
COUNTS = ("messages_already_lost", "messages_undecided", "messages_replaced")
GONE = {"log-cut"}
"""Findings which say that messages are gone."""


def contradictions(root: Path, *options: str) -> list[str]:
    """Run the three on a store and compare what they say; empty where nothing contradicts."""
    results = {command: run(command, root, *options, *JSON).expect(0, 1, 3)
               for command in ("verify", "preflight", "doctor")}
    codes = {command: result.code for command, result in results.items()}
    # Not all of a store can be judged by all: exit code 3 with a sentence, and nothing is said.
    if 3 in codes.values():
        return [f"{command}: exit code 3 without a word" for command, result in results.items()
                if result.code == 3 and not result.err.strip()]
    return _compared(codes, *(results[command].json() for command in results))


def _compared(codes: dict[str, int], verified: Any, started: Any, plan: Any) -> list[str]:
    covered = verified["coverage"]
    texts = [f"{name}: verify {covered[name]}, preflight {started[name]}"
             for name in COUNTS
             if covered[name] != started[name] and not (
                 started["not_judged"] and covered[name] is None)]
    if plan["already_lost"] != started["messages_already_lost"]:
        texts.append(f"already lost: doctor {plan['already_lost']}, preflight "
                     f"{started['messages_already_lost']}")
    # A store without a finding has lost nothing so far; only a start may cost something.
    if verified["ok"] and any(loss["already"] for loss in started["losses"]):
        texts.append(f"verify finds nothing, preflight {started['losses']}")
    # Who says that messages are gone counts them.
    gone = {finding["category"] for finding in verified["findings"] if finding["severity"] != "info"
            and (finding["category"] in GONE or "messages are gone" in finding["detail"])}
    if gone and started["messages_already_lost"] == 0:
        texts.append(f"verify says that messages are gone ({gone}), nobody counts them")
    # Exit code 0 means the same everywhere.
    if (codes["doctor"] == 0) != (codes["verify"] == codes["preflight"] == 0):
        texts.append(f"exit codes {codes}")
    if codes["preflight"] == 0 and (started["losses"] or not started["starts"]):
        texts.append("preflight ends with 0 and names a loss")
    # What is not sound leads out: to a command that changes it, or to something to do by hand.
    held = plan["lock"]["held"]
    if plan["sound"] is False and not held and not plan["remains"] and all(
            step["effect"] == "read-only" and " config check " not in step["command"]
            for step in plan["steps"]):
        texts.append(f"a dead end: {plan['verdict']}, {plan['next']}")
    if ("nothing is lost" in plan["verdict"]) and (
            started["messages_already_lost"] != 0 or started["messages_undecided"]):
        texts.append(plan["verdict"])
    return texts
