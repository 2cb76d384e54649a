"""Analyse a store with polars and DuckDB: its content, delays of messages, and a chart of them.

    python examples/python/delays.py examples/store --png delays.png

The parts between ``# %%`` are cells: editors run them one by one, and jupytext converts them to a
notebook. Required: pip install 'rmqctl[data]' polars matplotlib.
"""

# %% The messages as a data frame, with only the named columns
from __future__ import annotations

import argparse

import duckdb
import matplotlib as mpl
import polars as pl

import rmqctl

mpl.use("Agg")  # write files, open no windows; remove this line in a notebook
import matplotlib.pyplot as plt

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("store", help="a store directory")
parser.add_argument("--png", default="delays.png", help="the picture to be made")
arguments = parser.parse_args()

with rmqctl.open(arguments.store) as store:
    messages = store.messages(fields=["topic", "queue_id", "tags", "born_timestamp",
                                      "store_timestamp", "total_size"])
    frame = messages.to_polars()
    for problem in messages.problems:
        print("not read:", problem.text)

# %% By topic
print(frame.group_by("topic").agg(pl.len().alias("messages"), pl.col("total_size").sum())
      .sort("topic"))

# %% The same data in SQL: which tags are the largest?
print(duckdb.sql("""
    select tags, count(*) as messages, round(avg(total_size)) as mean_size
    from frame where tags is not null group by tags order by messages desc, tags limit 5
"""))

# %% From the producer's clock to the broker's, and messages per second
delays = frame.with_columns(
    delay=(pl.col("store_timestamp") - pl.col("born_timestamp")).dt.total_milliseconds())
seconds = (frame.group_by(pl.col("store_timestamp").dt.truncate("5s"), "topic").len()
           .sort("store_timestamp"))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
topics = sorted(delays["topic"].unique())
left.hist([delays.filter(topic=topic)["delay"] for topic in topics], bins=20, stacked=True,
          label=topics)
for topic in topics:
    part = seconds.filter(topic=topic)
    right.plot(part["store_timestamp"], part["len"], label=topic, linewidth=1.2)
left.set(title="born to stored", xlabel="ms", ylabel="messages")
right.set(title="messages in 5 seconds", ylim=(0, None))
right.tick_params(axis="x", rotation=30)
left.legend(fontsize=8)
figure.savefig(arguments.png, dpi=110)
print(f"wrote {arguments.png}")
