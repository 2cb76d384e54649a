"""Export the messages of stores to a Delta Lake table, without Spark.

    python examples/lake/to_delta.py examples/store --out messages

`pipeline export` writes Parquet by topic and day; delta-rs adds the log of a Delta table to these
files. Required: pip install 'rmqctl[data]' deltalake. If messages are missing (exit code 1), no
table is created.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import pyarrow as pa
from deltalake import DeltaTable, Schema, convert_to_deltalake

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("stores", nargs="+", metavar="STORE", help="store directories or patterns")
parser.add_argument("--out", required=True, help="the new folder")
arguments = parser.parse_args()

subprocess.run([sys.executable, "-m", "rmqctl", "pipeline", "export", *arguments.stores, "--out",
                arguments.out, "--engine", "local"], check=True)
by = Schema.from_arrow(pa.schema([("topic", pa.string()), ("day", pa.string())]))
convert_to_deltalake(arguments.out, partition_by=by, partition_strategy="hive")

table = DeltaTable(arguments.out)
print(f"version {table.version()}: {len(table.file_uris())} files, "
      f"{sum(pa.table(table.get_add_actions(flatten=True))['num_records'].to_pylist())} messages")
