"""Set the delay service back together with the log, so that it delivers again what it had delivered
after the cut.
"""

from __future__ import annotations

from rmqctl.checks.delays import FILE, DelayAhead
from rmqctl.formats.config import fastjson
from rmqctl.repair.plan import Changes, Replace
from rmqctl.store.config.config import load_one
from rmqctl.store.config.rows import rows_of
from rmqctl.store.store import Store


def cut_delays(store: Store, levels: list[DelayAhead]) -> Changes:
    """Set the offset of each level in ``config/delayOffset.json`` back to the first message that is
    not delivered. A damaged file is left as it is.
    """
    cut, file = Changes(), load_one(store, FILE)
    copy = file.main
    if not levels or not copy.usable or copy.damaged or copy.database:
        return cut
    table = {row["level"]: row["offset"] for row in rows_of(file.kind, copy.value, [])}
    table |= {level.level: level.first for level in levels}
    cut.act(Replace(copy.path, fastjson.build({**copy.value, "offsetTable": table})), "set back",
            None, len(levels), "later than the log: delayed messages count as delivered, but have "
            "no delivered copies", "delay level")
    return cut
