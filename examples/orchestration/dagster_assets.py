"""A Dagster asset: the messages of a store as Parquet, with a partition per day, and its check.

    dagster dev -f dagster_assets.py

`rmqctl pipeline export` exits with 1 if messages are missing or damaged. Then the asset fails, and
`_rmqctl_export.json` lists the missing messages.
"""

import json
import os
import subprocess
from pathlib import Path

import dagster as dg

STORE = os.environ.get("RMQCTL_STORE", "/data/rocketmq/store")
LAKE = os.environ.get("RMQCTL_LAKE", "/data/lake/messages")
days = dg.DailyPartitionsDefinition(start_date="2024-01-01")


@dg.asset(partitions_def=days)
def messages(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """Export the messages that the broker stored on a day (UTC)."""
    day = context.partition_key
    out = Path(LAKE) / f"day-{day}"
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["rmqctl", "pipeline", "export", STORE, "--out", str(out), "--engine", "local",
                    "--since", f"{day}T00:00:00Z", "--until", f"{day}T23:59:59.999Z",
                    "--partition-by", "topic"], check=True)
    manifest = json.loads((out / "_rmqctl_export.json").read_text())
    return dg.MaterializeResult(metadata={"rows": manifest["rows"], "bytes": manifest["bytes"],
                                          "path": dg.MetadataValue.path(str(out))})


defs = dg.Definitions(assets=[messages])
