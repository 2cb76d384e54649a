"""An Airflow DAG: check a store every night, and export yesterday's messages if it is intact.

For Airflow 3 (`airflow.sdk`). Copy it to the DAG folder of an installation whose workers have
rmqctl and access to the store. The paths are environment variables, so that a test can import this
file.
"""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime

from airflow.sdk import dag, task

STORE = os.environ.get("RMQCTL_STORE", "/data/rocketmq/store")
LAKE = os.environ.get("RMQCTL_LAKE", "/data/lake/messages")


@dag(schedule="0 3 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False,
     tags=["rocketmq"])
def rocketmq_nightly() -> None:
    """Verify the store, then export."""

    @task
    def verify() -> None:
        # Exit code 1: findings, which fail the task and are in its log.
        subprocess.run(["rmqctl", "verify", STORE], check=True)

    @task
    def export(day: str) -> str:
        """Export the messages of a day; the folder appears only when it is complete."""
        out = f"{LAKE}/day-{day}"
        subprocess.run(["rmqctl", "pipeline", "export", STORE, "--out", out, "--engine", "local",
                        "--since", f"{day}T00:00:00Z", "--until", f"{day}T23:59:59.999Z",
                        "--partition-by", "topic"], check=True)
        return out

    verify() >> export("{{ ds }}")


rocketmq_nightly()
