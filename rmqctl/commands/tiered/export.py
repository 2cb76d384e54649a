"""``rmqctl tiered export``: export the messages of a tier to one file or a folder of files."""

from __future__ import annotations

from typing import Annotated

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.app.without_pandas import leave_pandas_out
from rmqctl.commands.shared.exporting import ExportOptions, run_export
from rmqctl.commands.shared.message_options import SelectOptions
from rmqctl.commands.shared.options import Out
from rmqctl.commands.shared.tiered_options import TierBroker
from rmqctl.parse_values import is_url


def command(
    *,
    select: Annotated[SelectOptions, pick(
        "topic queue from_offset count since until tag key where")],
    export: ExportOptions,
    tier: TierBroker,
    out: Out,
) -> None:
    """Export a tier's messages to Parquet, JSON lines, CSV, Avro, Arrow or Excel.

    Exports the messages that consume queues point to, queue by queue. physical_offset is the offset
    in the queue's own tiered commit log. The file appears only when complete; nothing is
    overwritten. Damage is reported, with exit code 1.

        rmqctl tiered export /mnt/tier --out orders.parquet --topic orders --since -7d
        rmqctl tiered export /mnt/tier --out messages --partition-by topic,day
    """
    leave_pandas_out()
    from rmqctl.export.plan import check_place
    from rmqctl.ext.tiered.read.exporting import plan_tier

    request = export.request(select, 1)
    if export.has_path and not is_url(export.target) and not is_url(tier.root):
        check_place(export.target, [tier.root], ())
    with tier.open() as opened:
        run_export(out, [plan_tier(opened, request.wanted, tier.broker)], export, request)
