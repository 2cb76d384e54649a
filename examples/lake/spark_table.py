"""Write the messages of stores to a Delta Lake or Iceberg table with Spark.

    python examples/lake/spark_table.py examples/store --format delta --out /tmp/messages

Spark needs a jar of the format, which is not part of PySpark: `--packages` downloads it from Maven,
or `spark.jars` names a file. Without the jar the program exits with 3 before it reads anything.
"""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import SparkSession

FORMATS = {
    "delta": ("io.delta.sql.DeltaSparkSessionExtension", "io.delta:delta-spark_2.13:VERSION", {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}),
    "iceberg": ("org.apache.iceberg.spark.SparkCatalog",
                "org.apache.iceberg:iceberg-spark-runtime-VERSION_2.13:VERSION", {
                    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
                    "spark.sql.catalog.lake.type": "hadoop"}),
}
"""For each format: a class, its package, and the configuration of a session."""

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("stores", nargs="+", metavar="STORE", help="store directories or patterns")
parser.add_argument("--format", choices=[*FORMATS, "parquet"], default="delta")
parser.add_argument("--out", required=True, help="the folder of the table")
parser.add_argument("--packages", help="Maven coordinates of the format's jar")
arguments = parser.parse_args()

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
name, package, settings = FORMATS.get(arguments.format, ("java.lang.String", "", {}))
builder = SparkSession.builder.master("local[2]").appName("messages")
if arguments.packages:
    builder = builder.config("spark.jars.packages", arguments.packages)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if arguments.format == "iceberg":
        builder = builder.config("spark.sql.catalog.lake.warehouse", arguments.out)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
try:
    spark._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
except Exception:  # noqa: BLE001  # the JVM's ClassNotFoundException, in py4j's words
    print(f"{arguments.format}: its jar is missing; give --packages {package}, in the version for "
          f"Spark {spark.version}, or put it on spark.jars", file=sys.stderr)
    sys.exit(3)

messages = (spark.read.format("rocketmq").load(arguments.stores)
            .selectExpr("*", "date(store_timestamp) as day"))
if arguments.format == "iceberg":
    messages.writeTo("lake.rocketmq.messages").partitionedBy("topic", "day").createOrReplace()
    stored = spark.table("lake.rocketmq.messages")
else:
    messages.write.format(arguments.format).partitionBy("topic", "day").save(arguments.out)
    stored = spark.read.format(arguments.format).load(arguments.out)
print(f"{stored.count()} messages in {arguments.out}")
