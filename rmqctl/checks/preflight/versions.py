"""What other versions would do differently to this very store (spec: recovery.md, versions.md)."""

from __future__ import annotations

from rmqctl.checks.preflight.load import Load
from rmqctl.checks.preflight.types import Prediction
from rmqctl.formats.local import properties as props


def differences(made: Prediction, found: Load) -> list[str]:
    """One sentence a row of the tables that matters here; empty where all versions agree."""
    out: list[str] = []
    if found.wrong_size:
        out.append("a file of the wrong size: up to 4.4.0, and in 4.9.2, it and the files behind "
                   "it are left out and the broker starts; 4.5.1 to 4.9.1 and 4.9.3 on refuse")
    if found.folders:
        out.append("folders among the files are skipped from 5.1.0 on; older brokers refuse")
    if found.emptied:
        out.append("a last file without a byte is deleted from 5.1.3 on; older brokers refuse")
    if any("correctMinOffset" in one for one in made.refusals):
        out.append("a queue whose last file has no row keeps brokers from 5.0.0 on from starting; "
                   "older ones go on with it")
    if not made.starts:
        return out
    clean = made.recovery == "normal"
    lagging = made.rows_added > 0
    if made.rows_lost:
        out.append("consumequeues are destroyed with an empty log after a clean end since 4.5.1; "
                   "older brokers did it only after an unclean one")
    if clean and lagging:
        out.append("after a clean end missing rows come back in 4.5.1 to 4.9.8 and from 5.3.2 "
                   "on; in 5.0.0 to 5.3.1 they stay missing")
    if clean and (made.messages_lost or made.rows_cut):
        out.append("after a clean end the walk starts with the third file from the end up to "
                   "5.3.1, and where the consumequeues end in 5.3.2 and 5.3.3: damage between "
                   "the two is seen by the one and not by the other")
    if not clean and "do not add up" in made.stop_reason:
        out.append("up to 4.3.1 a record whose lengths do not add up is taken for valid after an "
                   "unclean end")
    if "v2 record" in made.stop_reason:
        out.append("v2 records are known from 5.1.0 on; every older broker cuts the log at the "
                   "first")
    if "blank" in made.stop_reason and "names more" in made.stop_reason:
        out.append("before 5.3.2 such a blank ends its file, and the walk goes on with the next")
    if made.index_discarded:
        out.append("with messageIndexSafe=true the walk starts earlier and more keys come back "
                   "(all versions; off by default)")
    if not clean and any(one.action == "add rows" and one.target.startswith(
            f"consumequeue/{props.SCHEDULE_TOPIC}/") for one in made.actions):
        out.append("rows of delayed messages that recovery makes carry no deliver time in 4.9.2 "
                   "to 4.9.8 (they are delivered at once); they are right in all other versions")
    return out
