"""Read RocketMQ stores with Spark: counts, a join, SQL, a stream, and a chart over time.

    python examples/pipeline/messages_over_time.py examples/store --png messages_over_time.png

The parts between ``# %%`` are cells: editors run them one by one, and jupytext converts them to a
notebook. With several stores (``/mnt/brokers/*/store``) the figures are those of all stores.
"""

# %% The stores to read, and the path of the chart
from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own name for it

mpl.use("Agg")  # write files, open no windows; remove this line in a notebook
import matplotlib.pyplot as plt
from matplotlib import dates

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("stores", nargs="+", metavar="STORE", help="store directories or patterns")
parser.add_argument("--png", default="messages_over_time.png", help="the picture to be made")
arguments = parser.parse_args()

# %% A session whose workers run the same Python as this program
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = (
    SparkSession.builder.master("local[2]")
    .appName("messages over time")
    .config("spark.python.unix.domain.socket.enabled", "true")  # shorter waits per task
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")  # for a small store
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")


def table(name: str, columns: str, paths: list[str] = arguments.stores) -> DataFrame:
    """Return a table of the stores. Only the columns of the schema are read."""
    return spark.read.format("rocketmq").option("table", name).schema(columns).load(paths)


# %% Messages by topic and hour
messages = table("messages", "topic string, queue_id int, store_timestamp timestamp, "
                             "born_timestamp timestamp, physical_offset long, "
                             "total_size int").cache()
hours = (
    messages.groupBy("topic", F.date_trunc("hour", "store_timestamp").alias("hour"))
    .agg(F.count("*").alias("messages"), F.sum("total_size").alias("bytes"))
    .orderBy("hour", F.desc("messages"), "topic")
)
hours.show(100, truncate=False)

# %% The log and the consumequeues: messages without an entry, entries without a message
log = table("messages", "store string, physical_offset long, total_size int")
rows = table("consumequeue", "store string, physical_offset long, size int")
both = log.alias("m").join(
    rows.alias("q"),
    F.expr("m.store = q.store AND m.physical_offset = q.physical_offset "
           "AND m.total_size = q.size"),
    "full_outer",
)
seen = (
    F.when(F.col("q.store").isNull(), "message without a row")
    .when(F.col("m.store").isNull(), "row without a message")
    .otherwise("message with its row")
)
both.groupBy(seen.alias("found")).count().orderBy("found").show(truncate=False)

# %% SQL: how long do messages take from the client to the log?
messages.createOrReplaceTempView("messages")
spark.sql("""
    SELECT topic, count(*) AS messages,
           percentile(ms, 0.5) AS median_ms, max(ms) AS longest_ms
    FROM (SELECT topic, unix_millis(store_timestamp) - unix_millis(born_timestamp) AS ms
          FROM messages)
    GROUP BY topic ORDER BY topic
""").show(100, truncate=False)

# %% A stream that follows a copy of the first store; the second run reads the new messages
with tempfile.TemporaryDirectory() as folder:
    growing, taken = f"{folder}/store", f"{folder}/taken"
    (first,) = table("messages", "store string").select("store").limit(1).collect()
    shutil.copytree(first.store, growing)
    written = sorted(Path(growing, "commitlog").iterdir())
    # The last file is not written yet, and no entry leads there: a missing file would be a loss.
    later = written[-1].rename(f"{folder}/later")
    for entries in ("consumequeue", "index"):
        shutil.rmtree(f"{growing}/{entries}")

    def follow() -> int:
        """Read the new messages, save the position in the checkpoint, return the message count."""
        before = spark.read.parquet(taken).count() if Path(taken).exists() else 0
        stream = (
            spark.readStream.format("rocketmq")
            .schema("topic string, queue_id int, queue_offset long, physical_offset long")
            .load(growing)
        )
        stream.writeStream.format("parquet").option("checkpointLocation", f"{folder}/at").option(
            "path", taken).trigger(availableNow=True).start().awaitTermination()
        return spark.read.parquet(taken).count() - before

    print("stream, first run: ", follow(), "messages")
    later.rename(written[-1])  # as if the broker had continued
    print("stream, second run:", follow(), "messages")

# %% The chart: messages over time, by topic. Spark counts; only the counts come here.
STEPS = [seconds * 1000 for seconds in (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)]
BARS = 40
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7F7F7F"]
OTHERS = "other topics"

stored = F.unix_millis("store_timestamp")
total, begin, end, size = messages.agg(
    F.count("*"), F.min(stored), F.max(stored), F.sum("total_size")).first()
step = next((width for width in STEPS if (end - begin) / width <= BARS),
            STEPS[-1] * -(-(end - begin) // (STEPS[-1] * BARS)))
largest = [row.topic for row in messages.groupBy("topic").count().orderBy(
    F.desc("count"), "topic").limit(len(COLOURS) - 1).collect()]
counted = messages.groupBy(
    (F.floor(stored / step) * step).alias("time"),
    F.when(F.col("topic").isin(largest), F.col("topic")).otherwise(OTHERS).alias("topic"),
).count()
counts = {(row.topic, row.time): row["count"] for row in counted.collect()}
spark.stop()


# %%
def label(milliseconds: int) -> str:
    """Return a duration as ``10 s``, ``5 min`` or ``1 h``."""
    seconds = milliseconds // 1000
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def amount(size: float) -> str:
    """Return a size as ``316 KiB`` or ``11.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def clock(milliseconds: int) -> datetime:
    """Return a store time as a datetime."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


times = list(range(begin // step * step, end + 1, step))
shown = [*largest, *([OTHERS] if any(topic == OTHERS for topic, _ in counts) else [])]
figure, axes = plt.subplots(figsize=(9, 4.2), dpi=100, layout="constrained")
below = [0] * len(times)
for topic, colour in zip(shown, COLOURS, strict=False):
    heights = [counts.get((topic, start), 0) for start in times]
    axes.bar([clock(start) for start in times], heights, width=step / 86_400_000, align="edge",
             bottom=below, color=colour, edgecolor="white", linewidth=0.6, label=topic)
    below = [low + height for low, height in zip(below, heights, strict=True)]

ticks = dates.AutoDateLocator(tz=UTC, minticks=4, maxticks=8)
hours_shown = (end - begin) / 3_600_000
axes.xaxis.set_major_locator(ticks)
axes.xaxis.set_major_formatter(dates.DateFormatter(
    "%H:%M:%S" if hours_shown < 0.2 else "%H:%M" if hours_shown < 24 else
    "%m-%d %H:%M" if hours_shown < 96 else "%Y-%m-%d", tz=UTC))
first_day, last_day = f"{clock(begin):%Y-%m-%d}", f"{clock(end):%Y-%m-%d}"
axes.set_xlabel("store time (UTC), "
                + (first_day if first_day == last_day else f"{first_day} to {last_day}"))
axes.set_ylabel(f"messages per {label(step)}")
axes.set_ylim(0, max(below) * 1.05)
axes.yaxis.get_major_locator().set_params(integer=True)
axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
axes.set_axisbelow(True)
axes.spines[["top", "right"]].set_visible(False)
across = max(1, min(4, 100 // (8 + max(map(len, shown)))))
axes.set_title(f"Messages over time: {total:,} messages, {amount(size)}", loc="left",
               fontsize=13, fontweight="bold", pad=12 + 16 * -(-len(shown) // across))
axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=across, frameon=False, fontsize=9)
figure.savefig(arguments.png, metadata={"Software": None})  # for reproducible bytes
print("picture:", arguments.png)
